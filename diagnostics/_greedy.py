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
            with torch.no_grad():
                self.probe.reseed("generation")  # the check puts the random states back
                logits = self.probe.adapter.logits(self.model, context[None])
            t = logits.shape[1]
            self._known[key] = logits[0, sorted({0, max(0, t - 2), t - 1})].detach()
        return self._known[key]

    def crop(self, text: Tensor) -> Tensor:
        """Return the last block of a text, all of it where the model has no limit."""
        return text if self.block is None else text[-self.block :]

    def right(self, text: Tensor) -> Tensor:
        """Return the scores (W,) that decide: the last logits of the last block."""
        return self.logits(self.crop(text))[-1]

    def agrees(self, scores: Tensor, token: int) -> bool:
        """Whether the token is the best, or equal to the best within the noise of two kernels."""
        if not 0 <= token < len(scores):
            return False
        V = self.probe.vocab_size
        best = scores[:V].max() if token < V else scores.max()
        return bool(scores[token] >= best - _noise(scores))

    def nearly_best(self, step: Step) -> bool:
        """Whether half precision somewhere on the way could have made the token the best."""
        scores = self.right(step.so_far)
        if not 0 <= step.token < len(scores):
            return False
        return bool(scores[step.token] >= scores.max() - TOLERANCE[2] * scores.abs().max())

    def wrong_steps(self, cases: Sequence[Case]) -> list[Step]:
        """Return every step whose token is not what the model's own forward call says."""
        return [s for s in _steps(cases) if not self.agrees(self.right(s.so_far), s.token)]

    def impossible_steps(self, cases: Sequence[Case]) -> list[Step]:
        """Return every step whose token is no id of the vocabulary."""
        V = self.probe.vocab_size
        return [step for step in _steps(cases) if not 0 <= step.token < V]

    def decided(self, cases: Sequence[Case]) -> int:
        """Return how many steps have one best token: with equal logits everything is right."""
        count = 0
        for step in _steps(cases):
            scores = self.right(step.so_far)
            count += int((scores >= scores.max() - _noise(scores)).sum()) == 1
        return count

    def fitting(self, cases: Sequence[Case], readings: Iterator[Reading]) -> Reading | None:
        """Return the first reading that gives every token of every case."""
        steps = _steps(cases)
        for reading in readings:
            try:
                if all(self._explains(reading, step) for step in steps):
                    return reading
            except Exception:  # any: a context that the model cannot read explains nothing
                continue
        return None

    def _explains(self, reading: Reading, step: Step) -> bool:
        return self.agrees(reading.scores(step.so_far, len(step.case.prompt)), step.token)

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

    @cached_property
    def sets_no_limit(self) -> bool:
        """Whether nothing in the model says how much it reads: how much to feed is a choice."""
        return self.reads_beyond_block and not self.probe.model_states_block

    # ---- the usual mistakes --------------------------------------------------------------

    def readings(self) -> Iterator[Reading]:
        """Yield what could give wrong tokens at any length of the text."""
        yield Reading("generation.argmin", lambda text, T0: -self.right(text))
        yield Reading("generation.first_position", lambda text, T0: self.logits(self.crop(text))[0])
        yield Reading("generation.position_before", self._position_before)
        yield Reading(
            "generation.position_before",
            lambda text, T0: self.logits(self.crop(text[:-1] if len(text) > 1 else text))[-1],
        )
        yield Reading("generation.newest_token_only", lambda text, T0: self.logits(text[-1:])[-1])
        yield Reading(
            "generation.prompt_not_read",
            lambda text, T0: self.logits(self.crop(text[T0 - 1 :]))[-1],
        )
        yield Reading("generation.prompt_not_read", self._forgets_prompt_after_first)
        yield Reading(
            "generation.not_fed_back", lambda text, T0: self.logits(self.crop(text[:T0]))[-1]
        )
        yield Reading("generation.second_best", self._second_best)
        for penalty in PENALTIES:
            for seen in ("text", "new tokens"):
                yield Reading(
                    "generation.repetition_penalty",
                    self._penalised(penalty, seen),
                    (("penalty", penalty), ("seen", seen)),
                )

    def readings_of_windows(self, longest: int) -> Iterator[Reading]:
        """Yield windows of any length, for texts of up to `longest` tokens.

        One token alone is a reading of its own; a text of the whole length is no window.
        """
        for length in self._lengths(longest):
            yield Reading(
                self._window_reason(length), self._last(length, True), (("length", length),)
            )

    def readings_of_beginnings(self, longest: int) -> Iterator[Reading]:
        """Yield the first tokens in place of the last ones, as many as a window may hold."""
        for length in self._lengths(longest):
            yield Reading(
                "generation.keeps_first_block", self._first(length), (("length", length),)
            )

    def readings_past_block(self) -> Iterator[Reading]:
        """Yield what shows only once the text is longer than the block."""
        block = self.block
        if block is None:
            return
        yield Reading("generation.keeps_first_block", self._first(block), (("length", block),))
        yield Reading("generation.past_block", lambda text, T0: self.logits(text)[-1])
        if not self.sets_no_limit:
            longer = range(block, block + 2)
            yield Reading("generation.longer_context", self._any(longer), (("length", block + 1),))
        for length in _shorter(block):
            for always in (True, False):
                yield Reading(
                    self._window_reason(length), self._last(length, always), (("length", length),)
                )
        if block <= EVERY_LENGTH_MAX:
            yield Reading(
                "generation.shorter_context",
                self._any(range(block // 2, block + 1)),
                (("length", block // 2),),
            )

    def _lengths(self, longest: int) -> list[int]:
        return [n for n in _shorter(min(longest, self.block or longest)) if n > 1]

    def _window_reason(self, length: int) -> str:
        """Say whether a window may be meant: half a block, or any where nothing sets a limit."""
        if self.sets_no_limit or self.block is None or 2 * length >= self.block:
            return "generation.shorter_context"
        return "generation.context_too_short"

    def _last(self, length: int, always: bool) -> Scores:
        """Read the last tokens only: always, or once the text is longer than the block."""

        def scores(text: Tensor, T0: int) -> Tensor:
            whole = not always and len(text) <= (self.block or len(text))
            return self.logits(text if whole else text[-length:])[-1]

        return scores

    def _any(self, lengths: range) -> Scores:
        """Beyond the block any of these windows fits: one may grow, and be read anew when full."""

        def scores(text: Tensor, T0: int) -> Tensor:
            if len(text) <= (self.block or len(text)):
                return self.right(text)
            kept = [self.logits(text[-n:])[-1] for n in lengths]
            chosen = torch.full_like(kept[0], -torch.inf)
            for each in kept:
                chosen[each.argmax()] = 0.0
            return chosen

        return scores

    def _first(self, length: int) -> Scores:
        """Read the first tokens only."""
        return lambda text, T0: self.logits(text[:length])[-1]

    def _position_before(self, text: Tensor, T0: int) -> Tensor:
        logits = self.logits(self.crop(text))
        return logits[-2] if len(logits) > 1 else logits[-1]

    def _forgets_prompt_after_first(self, text: Tensor, T0: int) -> Tensor:
        return self.logits(self.crop(text[T0:] if len(text) > T0 else text))[-1]

    def _second_best(self, text: Tensor, T0: int) -> Tensor:
        scores = self.right(text).clone()
        scores[scores.argmax()] = -torch.inf
        return scores

    def _penalised(self, penalty: float, seen: str) -> Scores:
        def scores(text: Tensor, T0: int) -> Tensor:
            chosen = self.right(text).clone()
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
