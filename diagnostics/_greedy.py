"""Greedy text, followed step by step: which token should come, and which mistake gives this one.

Shapes: T0 prompt tokens, n new tokens, W width of the logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._probe import Probe

# Between a cached and a full forward; relative to the largest logit. Measured: 1e-6 and 6e-3.
TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 3e-2}
EVERY_LENGTH_MAX = 128  # block up to which every shorter context is tried
PENALTIES = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.8, 2.0, float("inf"))

Scores = Callable[[Tensor, int], Tensor]  # (text so far (t,), T0) -> scores (W,); the best comes


@dataclass(frozen=True)
class Case:
    """One call of generate: a prompt, how many tokens were asked for, and the whole text."""

    prompt: Tensor  # (T0,)
    count: int
    text: Tensor  # (T0 + n,), the prompt first

    @property
    def steps(self) -> range:
        """The lengths of the text before each new token."""
        return range(len(self.prompt), len(self.text))


@dataclass(frozen=True)
class Step:
    """One new token: the case, and how long the text was before it."""

    case: Case
    length: int

    @property
    def so_far(self) -> Tensor:
        """The text before the token."""
        return self.case.text[: self.length]

    @property
    def token(self) -> int:
        """The token that came."""
        return int(self.case.text[self.length])


@dataclass(frozen=True)
class Reading:
    """A mistake and the scores by which it would choose."""

    reason: str
    scores: Scores
    facts: tuple[tuple[str, Any], ...] = ()


class Follower:
    """Compares text with the model's own forward calls."""

    def __init__(self, probe: Probe, model: nn.Module) -> None:
        self.probe, self.model = probe, model
        self.block = probe.block_size
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, context: Tensor) -> Tensor:
        """Return logits (up to 3, W) of a context (t,): first, last but one, and last position."""
        key = tuple(context.tolist())
        if key not in self._known:
            with torch.no_grad(), self.probe.seeded("generation"):
                logits = self.probe.adapter.logits(self.model, context[None])
            t = logits.shape[1]
            self._known[key] = logits[0, sorted({0, max(0, t - 2), t - 1})].detach()
        return self._known[key]

    def crop(self, text: Tensor) -> Tensor:
        """Return the last block of a text, all of it where the model has no limit."""
        return text if self.block is None else text[-self.block :]

    def right(self, text: Tensor, prompt_length: int) -> Tensor:
        """Return the scores (W,) that decide: the last logits of the last block."""
        return self.logits(self.crop(text))[-1]

    def agrees(self, scores: Tensor, token: int) -> bool:
        """Whether the token is the best, or equal to the best within the noise of two kernels."""
        if not 0 <= token < len(scores):
            return False
        V = self.probe.vocab_size
        best = scores[:V].max() if token < V else scores.max()
        return bool(scores[token] >= best - _noise(scores))

    def wrong_steps(self, cases: Sequence[Case]) -> list[Step]:
        """Return every step whose token is not what the model's own forward call says."""
        return [step for step in _steps(cases) if not self._explains(self.right, step)]

    def impossible_steps(self, cases: Sequence[Case]) -> list[Step]:
        """Return every step whose token is no id of the vocabulary."""
        V = self.probe.vocab_size
        return [step for step in _steps(cases) if not 0 <= step.token < V]

    def decided(self, cases: Sequence[Case]) -> int:
        """Return how many steps have one best token: with equal logits everything is right."""
        count = 0
        for step in _steps(cases):
            scores = self.right(step.so_far, len(step.case.prompt))
            count += int((scores >= scores.max() - _noise(scores)).sum()) == 1
        return count

    def fitting(self, cases: Sequence[Case], readings: Iterator[Reading]) -> Reading | None:
        """Return the first reading that gives every token of every case."""
        steps = _steps(cases)
        for reading in readings:
            try:
                if all(self._explains(reading.scores, step) for step in steps):
                    return reading
            except Exception:  # any: a context that the model cannot read explains nothing
                continue
        return None

    def _explains(self, scores: Scores, step: Step) -> bool:
        return self.agrees(scores(step.so_far, len(step.case.prompt)), step.token)

    @cached_property
    def reads_beyond_block(self) -> bool:
        """Whether the model takes more than block_size tokens: no learned table of positions."""
        if self.block is None:
            return True
        try:
            self.logits(self.probe.tokens(1, self.block + 1, "beyond")[0])
        except Exception:  # any: a model refuses in its own way
            return False
        return True

    # ---- the usual mistakes --------------------------------------------------------------

    def readings(self) -> Iterator[Reading]:
        """Yield what could give wrong tokens at any length of the text."""
        yield Reading("argmin", lambda text, T0: -self.right(text, T0))
        yield Reading("first_position", lambda text, T0: self.logits(self.crop(text))[0])
        yield Reading("position_before", self._position_before)
        yield Reading(
            "position_before",
            lambda text, T0: self.logits(self.crop(text[:-1] if len(text) > 1 else text))[-1],
        )
        yield Reading("newest_token_only", lambda text, T0: self.logits(text[-1:])[-1])
        yield Reading(
            "prompt_not_read", lambda text, T0: self.logits(self.crop(text[T0 - 1 :]))[-1]
        )
        yield Reading("prompt_not_read", self._forgets_prompt_after_first)
        yield Reading("not_fed_back", lambda text, T0: self.logits(self.crop(text[:T0]))[-1])
        yield Reading("second_best", self._second_best)
        for penalty in PENALTIES:
            for seen in ("text", "new tokens"):
                yield Reading(
                    "repetition_penalty",
                    self._penalised(penalty, seen),
                    (("penalty", penalty), ("seen", seen)),
                )

    def readings_past_block(self) -> Iterator[Reading]:
        """Yield what shows only once the text is longer than the block."""
        block = self.block
        if block is None:
            return
        yield Reading("keeps_first_block", lambda text, T0: self.logits(text[:block])[-1])
        yield Reading("past_block", lambda text, T0: self.logits(text)[-1])
        for length in _shorter(block):
            reason = "shorter_context" if 2 * length >= block else "context_too_short"
            for always in (True, False):
                yield Reading(reason, self._last(length, always), (("length", length),))
        if block <= EVERY_LENGTH_MAX:
            yield Reading("shorter_context", self._any_half(block), (("length", block // 2),))

    def _last(self, length: int, always: bool) -> Scores:
        """Read the last tokens only: always, or once the text is longer than the block."""

        def scores(text: Tensor, T0: int) -> Tensor:
            whole = not always and len(text) <= (self.block or len(text))
            return self.logits(text if whole else text[-length:])[-1]

        return scores

    def _any_half(self, block: int) -> Scores:
        """A window that is read anew at half a block and then grows: any length between fits."""

        def scores(text: Tensor, T0: int) -> Tensor:
            if len(text) <= block:
                return self.right(text, T0)
            kept = [self.logits(text[-n:])[-1] for n in range(block // 2, block + 1)]
            chosen = torch.full_like(kept[0], -torch.inf)
            for each in kept:
                chosen[each.argmax()] = 0.0
            return chosen

        return scores

    def _position_before(self, text: Tensor, T0: int) -> Tensor:
        logits = self.logits(self.crop(text))
        return logits[-2] if len(logits) > 1 else logits[-1]

    def _forgets_prompt_after_first(self, text: Tensor, T0: int) -> Tensor:
        return self.logits(self.crop(text[T0:] if len(text) > T0 else text))[-1]

    def _second_best(self, text: Tensor, T0: int) -> Tensor:
        scores = self.right(text, T0).clone()
        scores[scores.argmax()] = -torch.inf
        return scores

    def _penalised(self, penalty: float, seen: str) -> Scores:
        def scores(text: Tensor, T0: int) -> Tensor:
            chosen = self.right(text, T0).clone()
            old = torch.unique(text if seen == "text" else text[T0:])
            value = chosen[old]
            if penalty == float("inf"):
                chosen[old] = -torch.inf
            else:
                chosen[old] = torch.where(value > 0, value / penalty, value * penalty)
            return chosen

        return scores


def _shorter(block: int) -> list[int]:
    """Return the lengths below the block to try, the longest first."""
    if block <= EVERY_LENGTH_MAX:
        return list(range(block - 1, 0, -1))
    likely = {block - 1, block - 2, 3 * block // 4, block // 2 + 1, block // 2, block // 2 - 1}
    return sorted(likely | {block >> shift for shift in range(2, 20)} - {0}, reverse=True)


def _noise(scores: Tensor) -> float:
    finite = scores[scores.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    return TOLERANCE.get(scores.dtype.itemsize, TOLERANCE[4]) * max(1.0, size)


def _steps(cases: Sequence[Case]) -> list[Step]:
    return [Step(case, length) for case in cases for length in case.steps]
