"""Where text ends: the model is made to say given tokens, and the stop token ends a row, no other.

A hook on the copy raises the logit of the token that a script wants next, so that the stop token
comes when we want it, in one row of two. Shapes: B rows, T time, T0 prompt tokens, W logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._adapter import find_logits
from diagnostics._generation_trial import Trial, as_text
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

STOPS_MAX = 512  # vocabulary up to which every id is said once to find the one that stops
WORK_MAX = 3e10  # parameters x tokens read without a cache: about 2 s on one CPU core
PROMPT_LENGTH = 2
NEW_TOKENS = 4


def judge_stop(trial: Trial) -> Iterator[CheckResult]:
    """Two rows, of which one says the stop token: the other goes on, and this one rests."""
    V = trial.probe.usable_vocab_size
    if V < 4 or speak(trial, [[0, 1], [1, 0]]) is None:
        return  # one row at a time is all that was promised
    stop = _find_stop(trial, V)
    if stop is None:
        return
    free = [token for token in range(V) if token not in (stop, trial.probe.pipeline.pad_id)]
    one, two, three = (free + free)[:3]
    ending, going = [one, stop, two, three], [one, two, three, one]
    alone, together = speak(trial, [going]), speak(trial, [going, ending])
    turned = speak(trial, [ending, going])
    if alone is None or together is None or turned is None or alone[0] != going:
        return
    goes_on, rests = together
    if goes_on != going and rests[:2] == ending[:2] and going[: len(goes_on)] == goes_on:
        yield verdict(
            Status.FAIL,
            "generation.rows_cut",
            say("a row that ends cuts the other rows of its batch short"),
            measured=say(
                "{came} of {n} new tokens in a row without token {stop}",
                came=len(goes_on),
                n=NEW_TOKENS,
                stop=stop,
            ),
            expected=say("{n}, as the row gets alone", n=NEW_TOKENS),
            causes=(say("one flag for all rows: the loop stops as soon as any row has ended"),),
            next_step=say("keep `finished |= new == stop` per row, and stop at finished.all()"),
        )
    # a loop that looks at row 0 alone is meant for one row, and none other was promised
    elif rests == ending and turned[1] == going:
        yield verdict(
            Status.WARN,
            "generation.ended_row_goes_on",
            say("a row that has ended is continued while another one still runs"),
            measured=say("token {two} comes after the stop token {stop}", two=two, stop=stop),
            expected=say("nothing but padding, or a caller that cuts at the first stop token"),
            causes=(say("new tokens of finished rows are not replaced by padding"),),
            next_step=say("write new = torch.where(finished, pad_id, new) before appending"),
        )


def _find_stop(trial: Trial, V: int) -> int | None:
    """Return the id that ends a text: said one after the other, all ids before it come."""
    size = sum(parameter.numel() for parameter in trial.model.parameters())
    if V <= STOPS_MAX and size * V * V <= WORK_MAX:
        candidates = _around_end(trial, V)
    else:
        tokenizer = trial.probe.pipeline.tokenizer
        names = ("eos_token_id", "eot_token", "eos_id")
        found = [getattr(tokenizer, name, None) for name in names]
        candidates = [token for token in found if isinstance(token, int) and 0 <= token < V]
    for token in candidates:
        other = (token + 1) % V
        said = speak(trial, [[other, token, other]])
        if said is not None and len(said[0]) < 3 and said[0][:1] == [other]:
            return token
    return None


def _around_end(trial: Trial, V: int) -> list[int]:
    """Return the ids beside which a text of all ids ends; none where it goes on, or is changed.

    The ids are said in texts that fit into the block: a window that slides is computed anew for
    every token.
    """
    longest = max(NEW_TOKENS, (trial.follower.block or V) - PROMPT_LENGTH)
    for start in range(0, V, longest - 1):  # an id that ends a text as its last one is said again
        order = [token % V for token in range(start, min(start + longest, V + 1))]
        said = speak(trial, [order])
        if said is None or said[0] != order[: len(said[0])]:
            return []
        if len(said[0]) < len(order):  # the id that ends it is kept in the text, or it is not
            last = start + len(said[0])
            return [token % V for token in (last - 1, last) if token >= 0]
    return []


def speak(
    trial: Trial, scripts: Sequence[list[int]], prompts: Tensor | None = None
) -> list[list[int]] | None:
    """Generate while the model says each row's script; return the new tokens of each row.

    prompts: (B, T0); None: random ones.
    None where generate refuses, returns something else, or reads no logits of these calls.
    """
    if prompts is None:
        prompts = trial.probe.tokens(len(scripts), PROMPT_LENGTH, "stop")
    T0 = prompts.shape[1]
    try:
        with _scripted(trial.model, scripts):
            raw = trial.generate(prompts, len(scripts[0]))
    except Exception:  # any: several rows, or a text of any length, were never promised
        return None
    if len(scripts) == 1:
        text = as_text(raw)
        return None if text is None else [text[T0:].tolist()]
    if not isinstance(raw, Tensor) or raw.ndim != 2 or len(raw) != len(scripts):
        return None
    return [row[T0:].tolist() for row in raw]


@contextmanager
def _scripted(model: nn.Module, scripts: Sequence[list[int]]) -> Iterator[None]:
    """At its n-th call the model finds the n-th token of each row's script best."""
    calls = [0]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        logits = find_logits(output)
        number, calls[0] = calls[0], calls[0] + 1
        if logits is None or logits.ndim < 2 or len(logits) != len(scripts):
            return
        last = logits.detach()[:, -1] if logits.ndim == 3 else logits.detach()  # (B, W), a view
        with torch.no_grad():
            for row, script in enumerate(scripts):
                if number < len(script):
                    last[row, script[number]] = last[row].max() + 10.0

    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
