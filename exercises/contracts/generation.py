"""The contract of generation: greedy text is what full forward calls say, token after token.

Shapes: B rows, T0 prompt tokens, V vocabulary, n tokens of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    count_unequal,
)

BLOCK, V = 6, 11
CASES = ((1, 2, 4), (3, 4, 12), (2, BLOCK, 5), (4, 9, 7))  # (B, T0, count): below, across, beyond

Window = Callable[[Tensor], Tensor]  # the text of one row so far -> what is read of it


def right_append(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Read the last block anew for each token, and append."""
    ids = prompt
    for _ in range(count):
        window = ids[:, -len(weights) :]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def right_running_sum(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Keep the sum of what was read, as long as the text fits into the block."""
    block, (B, T0) = len(weights), prompt.shape
    ids = torch.zeros(B, T0 + count, dtype=torch.int64)
    ids[:, :T0] = prompt
    logits = torch.zeros(B, weights.shape[2], dtype=weights.dtype)
    for end in range(T0, T0 + count):
        if end == T0 or end > block:
            window = ids[:, max(0, end - block) : end]
            logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        else:
            logits = logits + weights[end - 1, ids[:, end - 1]]
        ids[:, end] = logits.argmax(dim=1)
    return ids


def right_rows(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Continue one row after the other, in any order, with lists of plain numbers."""
    block, table = len(weights), weights.tolist()
    texts = prompt.tolist()
    for row in torch.randperm(len(texts)).tolist():
        text = texts[row]
        for _ in range(count):
            read = [table[place][token] for place, token in enumerate(text[-block:])]
            logits = [math.fsum(column) for column in zip(*read, strict=True)]
            text.append(max(range(len(logits)), key=logits.__getitem__))
    return torch.tensor(texts)


def right_one_hot(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Multiply one-hot vectors with the weights, over all positions of the window."""
    columns = list(prompt.unbind(dim=1))
    for _ in range(count):
        window = torch.stack(columns[-len(weights) :], dim=1)  # (B, n)
        hot = functional.one_hot(window, weights.shape[1]).to(weights.dtype)  # (B, n, V)
        each = torch.einsum("bnv,nvw->bnw", hot, weights[: window.shape[1]])
        columns.append(each.cumsum(dim=1)[:, -1].topk(1).indices[:, 0])
    return torch.stack(columns, dim=1)


def wrong_first_position(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Choose by the logits of position 0, which has read one token only."""
    ids = prompt
    for _ in range(count):
        window = ids[:, -len(weights) :]
        logits = weights[torch.arange(window.shape[1]), window].cumsum(dim=1)  # (B, n, V)
        last = logits[:, 0]  # BROKEN: was last = logits[:, -1]
        ids = torch.cat([ids, last.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def wrong_keeps_first_block(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Crop the wrong end: once the text fills the block, nothing new is read."""
    ids, block = prompt, len(weights)
    for _ in range(count):
        window = ids[:, :block]  # BROKEN: was window = ids[:, -block:]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def wrong_prompt_lost(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Return the new tokens without the prompt."""
    ids = prompt
    for _ in range(count):
        window = ids[:, -len(weights) :]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids[:, prompt.shape[1] :]  # BROKEN: was return ids


def wrong_window_too_short(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Read one token less than the block allows."""
    ids, block = prompt, len(weights)
    for _ in range(count):
        window = ids[:, 1 - block :]  # BROKEN: was window = ids[:, -block:]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def wrong_old_positions(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Let every token keep the position at which it was read first, as a ring buffer does."""
    ids, block = prompt, len(weights)
    for _ in range(count):
        end = ids.shape[1]
        start = max(0, end - block)
        places = torch.arange(start, end) % block  # BROKEN: was places = torch.arange(end - start)
        logits = weights[places, ids[:, start:]].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def wrong_first_row_for_all(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Choose once, for the first row, and append that token to every row."""
    ids = prompt
    for _ in range(count):
        window = ids[:, -len(weights) :]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        chosen = logits[:1].argmax(dim=1)  # BROKEN: was chosen = logits.argmax(dim=1)
        ids = torch.cat([ids, chosen.expand(len(ids))[:, None]], dim=1)
    return ids


def wrong_prompt_cropped(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Crop the prompt once, at the start: a long one comes back without its beginning."""
    block = len(weights)
    ids = prompt[:, -block:]  # BROKEN: was ids = prompt[:, :]
    for _ in range(count):
        window = ids[:, -block:]
        logits = weights[torch.arange(window.shape[1]), window].sum(dim=1)  # (B, V)
        ids = torch.cat([ids, logits.argmax(dim=1, keepdim=True)], dim=1)
    return ids


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Continue prompts below, at, across and beyond the block, of one row and of several."""
    for _ in range(2):
        weights = torch.randn(BLOCK, V, V, dtype=torch.float64)
        for B, T0, count in CASES:
            prompt = torch.randint(V, (B, T0))
            ids = as_tensor(implementation(weights, prompt, count), "ids", dtype=torch.int64)
            wanted = _continued(weights, prompt, count)
            if ids.shape != wanted.shape:
                yield Finding(math.inf, _shape_claim(ids, wanted, T0))
                return
            strange = ids[(ids < 0) | (ids >= V)]
            if strange.numel():
                share = f"{strange.numel()} of {ids.numel()} tokens"
                such = f"outside the vocabulary 0..{V - 1}, the first is {int(strange[0])}"
                yield Finding(math.inf, f"{share} lie {such}")
                return
            yield Finding(
                count_unequal(ids[:, :T0], prompt),
                f"{count_unequal(ids[:, :T0], prompt)} of the {B * T0} tokens of the prompt come "
                f"back changed, expected 0",
            )
            yield Finding(count_unequal(ids, wanted), _token_claim(ids, wanted, weights, T0))


def _continued(weights: Tensor, prompt: Tensor, count: int) -> Tensor:
    """Return (B, T0 + count): each new token is the best one after the last block of its row."""
    texts = []
    for text in prompt:
        for _ in range(count):
            text = torch.cat([text, _best_after(weights, text[-BLOCK:])[None]])
        texts.append(text)
    return torch.stack(texts)


def _best_after(weights: Tensor, window: Tensor) -> Tensor:
    """Return the token () with the largest logit after a window (n,)."""
    return weights[torch.arange(len(window)), window].sum(dim=0).argmax()


def _shape_claim(ids: Tensor, wanted: Tensor, T0: int) -> str:
    came = f"ids has shape {tuple(ids.shape)}, wanted {tuple(wanted.shape)}"
    count = wanted.shape[1] - T0
    if ids.shape == (len(wanted), count):
        return f"{came}: the {count} new tokens come without the {T0} of the prompt"
    if ids.shape == (len(wanted), BLOCK + count):
        return f"{came}: of a prompt of {T0} tokens only the last {BLOCK}, the block, come back"
    return f"{came}: the prompt of {T0} tokens and {count} new ones"


def _token_claim(ids: Tensor, wanted: Tensor, weights: Tensor, T0: int) -> str:
    """Name the first token that differs, and the mistake that explains every token."""
    wrong = torch.nonzero(ids != wanted)
    if not len(wrong):
        return f"no token of {ids.numel()} differs from the one with the largest logit"
    row, place = min(wrong.tolist(), key=lambda pair: (pair[1], pair[0]))
    claim = (
        f"after {place} tokens of row {row} comes {int(ids[row, place])}, where the largest logit "
        f"is that of {int(wanted[row, place])}, with a block of {BLOCK}"
    )
    pattern = _pattern(ids, weights, T0)
    return f"{claim}: {pattern}" if pattern else claim


def _pattern(ids: Tensor, weights: Tensor, T0: int) -> str:
    if len(ids) > 1 and bool((ids[:, T0:] == ids[:1, T0:]).all()):
        return "every row gets the tokens of row 0"
    windows: dict[str, Window] = {
        "it is the choice of position 0": lambda text: text[-BLOCK:][:1],
        f"only the first {BLOCK} tokens are read": lambda text: text[:BLOCK],
        "the newest token is not read": lambda text: text[:-1][-BLOCK:],
        f"only the last {BLOCK - 1} tokens are read": lambda text: text[1 - BLOCK :],
    }
    ends = range(T0, ids.shape[1])
    for told, window in windows.items():
        if all(
            _best_after(weights, window(text[:end])) == text[end] for text in ids for end in ends
        ):
            return told
    return ""


CONTRACT = Contract(
    check="generation",
    signature="implementation(weights: Tensor, prompt: Tensor, count: int) -> Tensor",
    promise=(
        "weights is (block, V, V), float64; prompt is (B, T0), int64, T0 >= 1; count >= 1. The "
        "model reads a window of at most block tokens: the logits (V,) at position t are the sum "
        "of weights[i, window[i]] over i = 0..t. It returns (B, T0 + count), int64: the whole "
        "prompt, and count new tokens in each row, each the one with the largest logit at the last "
        "position of a window that holds the last block tokens of its row."
    ),
    rights=(
        Right(name="append", implementation=right_append, note="reads the last block each time"),
        Right(name="running_sum", implementation=right_running_sum, note="a cache in the block"),
        Right(name="rows", implementation=right_rows, note="rows one by one, in plain numbers"),
        Right(name="one_hot", implementation=right_one_hot, note="one-hot vectors and einsum"),
    ),
    wrongs=(
        Wrong(
            name="first_position",
            implementation=wrong_first_position,
            note="tokens are chosen by the logits of position 0",
        ),
        Wrong(
            name="keeps_first_block",
            implementation=wrong_keeps_first_block,
            note="beyond the block the first tokens are read, not the last",
        ),
        Wrong(
            name="prompt_lost",
            implementation=wrong_prompt_lost,
            note="the new tokens come without the prompt",
        ),
        Wrong(
            name="window_too_short",
            implementation=wrong_window_too_short,
            note="one token less than the block is read",
            held_out=True,
        ),
        Wrong(
            name="old_positions",
            implementation=wrong_old_positions,
            note="beyond the block tokens keep the positions at which they were read first",
            held_out=True,
        ),
        Wrong(
            name="first_row_for_all",
            implementation=wrong_first_row_for_all,
            note="every row gets the token that is chosen for the first row",
            held_out=True,
        ),
        Wrong(
            name="prompt_cropped",
            implementation=wrong_prompt_cropped,
            note="a prompt longer than the block comes back without its beginning",
            held_out=True,
        ),
    ),
    examine=examine,
)
