"""Common ids that no later position sees, although it sees what stands before them.

Shapes: B batch, T time, K ids, one to a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._id_runs import standing_in_text
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import Bench, bench_tokens, moved
from diagnostics._text import say
from diagnostics._tokenizer import TokenizerReader, is_special

COMMON = 32  # ids that are looked at, beside 0 and the pad; of letters nearly all of the text
LENGTH_MAX = 16  # tokens of a row
ROUNDS = 3  # a gate or a router may hide an id among some neighbours, not among all


def judge_common_ids(bench: Bench) -> CheckResult | None:
    """Move the embedding of one common id in each row: something after it has to move.

    None where the data are not given, where no nn.Embedding reads the ids, or nothing is hidden.
    """
    probe = bench.probe
    ids = _common_ids(probe)
    if len(ids) < 2:
        return None
    hidden = set(ids)
    for number in range(ROUNDS):
        seen = _seen_later(bench, ids, f"context ids {number}")
        if seen is None:
            return None
        hidden &= {token for token, (own, before) in seen.items() if before and not own}
        if not hidden:
            return None
    return (
        None
        if len(hidden) == len(ids)
        else _hidden(probe, [i for i in ids if i in hidden], len(ids))
    )


def _common_ids(probe: Probe) -> list[int]:
    """Return the most common ids of the data, 0 and the pad, if they stand there as text does."""
    data = probe.pipeline.train_ids
    if data is None or not len(data):
        return []
    data = torch.as_tensor(data).flatten().cpu().long()
    counts = data[(data >= 0) & (data < probe.usable_vocab_size)].bincount()
    order = counts.argsort(descending=True, stable=True)[:COMMON].tolist()
    order += [i for i in (0, probe.pipeline.pad_id) if i is not None and i not in order]
    return standing_in_text(data, dict.fromkeys(order))


def _seen_later(bench: Bench, ids: list[int], name: str) -> dict[int, tuple[bool, bool]] | None:
    """Return for each id whether later positions see it, and what stands before it."""
    probe = bench.probe
    T = min(probe.probe_length, LENGTH_MAX)
    place = max(1, T // 3)
    if place >= T - 1:
        return None
    mine = torch.tensor(ids, device=probe.device)[:, None]  # (K, 1)
    tokens = bench_tokens(probe, len(ids), T, name)  # (K, T)
    V = probe.usable_vocab_size
    tokens = torch.where(tokens == mine, (tokens + 1) % V, tokens)
    tokens[:, place - 1 : place] = torch.tensor(ids, device=probe.device).roll(1)[:, None]
    tokens[:, place : place + 1] = mine
    plain = bench.call(tokens)
    limit = bench.limit(plain)
    seen = []
    for column in (place, place - 1):
        with _moved_embedding(bench.model, tokens, column) as hits:
            after = bench.call(tokens)
        if not hits:
            return None
        change = moved(plain, after)[:, place + 1 :]  # (K, T - place - 1)
        seen.append((~(change <= limit)).any(1).tolist())
    return {token: (own, before) for token, own, before in zip(ids, *seen, strict=True)}


@contextmanager
def _moved_embedding(model: nn.Module, tokens: Tensor, column: int) -> Iterator[list[str]]:
    """Add noise to what tables of embeddings give for one column; yields a mark for each call."""
    hits: list[str] = []

    def move(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not given or not isinstance(given[0], Tensor) or not torch.equal(given[0], tokens):
            return None  # positions, or kinds of tokens
        hits.append(type(module).__name__)
        noise = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(column))
        changed = output.clone()
        changed[:, column] += noise.to(output) * output.detach().std()
        return changed

    handles = [
        module.register_forward_hook(move)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        yield hits
    finally:
        for handle in handles:
            handle.remove()


def _hidden(probe: Probe, hidden: list[int], looked_at: int) -> CheckResult:
    """An id of the text is a fault; a mark between texts may be hidden on purpose."""
    data = torch.as_tensor(probe.pipeline.train_ids).flatten()
    text = {token: _text_of(probe, token) for token in hidden}
    sure = [token for token in hidden if text[token] is not None]
    token = (sure or hidden)[0]
    is_pad = token == probe.pipeline.pad_id
    facts = {"token": token, "text": f" ({text[token]!r})" if token in sure else ""}
    return verdict(
        Status.FAIL if sure else Status.WARN,
        "context.hidden_id",
        say(
            "no later position sees token id {token}{text}, which is {share:%} of train_ids, "
            "although it sees the tokens before it",
            share=float((data == token).double().mean()),
            **facts,
        ),
        measured=say(
            "no logit after it moves with its embedding, in {rounds} rows of other tokens",
            rounds=ROUNDS,
        ),
        expected=say("a logit that moves, as after other ids"),
        where=say("{count} of {total} common ids", count=len(hidden), total=looked_at),
        causes=(
            say("a mask hides pad_id={token}, and that id is a token of the text", token=token)
            if is_pad
            else say(
                "a mask made of ids != {token} takes a token of the text for padding", **facts
            ),
        ),
        next_step=say(
            "give padding an id that no text holds, or make the mask from the lengths of the rows"
        ),
        numbers={"hidden": hidden, "pad_id": probe.pipeline.pad_id},
    )


def _text_of(probe: Probe, token: int) -> str | None:
    """Return the text that an id stands for; None for a mark, or where no tokenizer tells it."""
    tokenizer, text = probe.pipeline.tokenizer, probe.pipeline.train_text
    if tokenizer is None:
        return None
    try:
        reader = TokenizerReader(tokenizer)
        decoded = reader.decode([token])
        marks = set(reader.special_ids.values())
    except Exception:  # any: of the user's tokenizer; `roundtrip` reports it
        return None
    if not isinstance(decoded, str) or not decoded or is_special(decoded):
        return None
    if token in marks and (text is None or decoded not in text):
        return None
    return decoded if text is None or decoded in text else None
