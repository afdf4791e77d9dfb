"""Calls whose results can be compared: an exact copy, dropout silenced, and a limit to judge by.

Shapes: B batch, T time, W width of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diagnostics._guard import kept_random_states
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say
from diagnostics._trace import dropout_off, tensors_in

# Calls of other shapes sum in another order. Measured on healthy models, relative to the largest
# logit: 1e-15, 2e-6 and 2e-2; the smallest real difference seen in float64: 2e-4.
LIMITS = {8: 1e-9, 4: 1e-4, 2: 6e-2}  # by bytes of the least precise number inside the model
EXPERT_WORDS = ("expert", "moe", "router", "routing")
SPARSE_SHARE = 0.5  # a capacity touches the dropped tokens only; a statistic touches all


@dataclass(frozen=True)
class Bench:
    """A model on the bench: a copy that can be called again and again with the same randomness."""

    probe: Probe
    model: nn.Module
    tolerance: float  # relative to the largest logit
    _known: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of `plain`

    def plain(self, tokens: Tensor) -> Tensor:
        """Return what `call` gives for tokens, which it is asked only once for equal ones.

        For the weights as they were lent: not while a table is written to or a hook is in place.
        """
        for asked, logits in self._known:
            if torch.equal(asked, tokens):
                return logits
        logits = self.call(tokens)
        self._known.append((tokens.clone(), logits))
        return logits

    def call(self, tokens: Tensor, mask: Tensor | None = None, *, seed: str = "bench") -> Tensor:
        """Return logits (B, T, W) of every position. Raises MissingPartError without them."""
        self.probe.reseed(seed)  # `bench` puts the random states back
        if mask is None:
            return self.probe.logits(self.model, tokens)
        with torch.no_grad():
            return self.probe.adapter.logits(self.model, tokens, mask).detach()

    def limit(self, logits: Tensor) -> float:
        """Return the largest difference from these logits that rounding explains."""
        finite = logits[logits.isfinite()].abs()
        return self.tolerance * max(1.0, float(finite.max()) if finite.numel() else 0.0)

    def repeats(self, tokens: Tensor) -> bool:
        """Whether two calls agree under two seeds: no noise, no memory of the call before."""
        first, second = self.plain(tokens), self.call(tokens, seed="bench again")
        equally_broken = first.isnan() & second.isnan()
        close = (first == second) | ((first - second).abs() <= self.limit(first))
        return bool((close | equally_broken).all())


def direct_probe(
    model: nn.Module,
    tokens: Tensor | None,
    vocab_size: int | None,
    parts: Mapping[str, object],
    *,
    rows_min: int = 0,
    length_min: int = 0,
) -> Probe:
    """Return a probe of a model that is given by itself, to a check that is called directly.

    Raises ValueError when tokens are not (B, T) with B >= rows_min and T >= length_min.
    """
    if tokens is not None and (
        tokens.ndim != 2 or tokens.shape[0] < rows_min or tokens.shape[1] < length_min
    ):
        wanted = f"B >= {rows_min}" if rows_min else f"T >= {length_min}"
        raise ValueError(f"tokens must have shape (B, T) with {wanted}, got {tuple(tokens.shape)}")
    return Probe(Pipeline(model, vocab_size=vocab_size, **parts))  # type: ignore[arg-type]


def on_bench(
    probe: Probe, check: str, tokens: Tensor, judge: Callable[[Bench, Tensor, float], CheckResult]
) -> CheckResult:
    """Judge tokens (B, T) on a copy that repeats itself; `judge` also gets the limit of rounding.

    A model that does not repeat itself cannot be compared with itself: a SKIP.
    """
    tokens = tokens.to(probe.device)
    with bench(probe) as model_bench:
        if not model_bench.repeats(tokens):
            return no_comparison(check)
        return judge(model_bench, tokens, model_bench.limit(model_bench.plain(tokens)))


@contextmanager
def bench(probe: Probe, *, train: bool = False, exact: bool = True) -> Iterator[Bench]:
    """Lend a jittered copy, in float64 where it can run in it, with every dropout silenced.

    train: leave every module in train mode.    exact: False stays in the model's own precision.
    """
    with (
        kept_random_states(),
        probe.model(train=train, exact=exact, jitter=JITTER_STD) as model,
        dropout_off(model),
    ):
        yield Bench(probe, model, _tolerance(probe, model))


def moved(before: Tensor, after: Tensor) -> Tensor:
    """Return the largest change over the last axis; equal values, infinities too, give 0.

    A NaN on either side gives NaN, which no limit lets pass.
    """
    return torch.where(before == after, 0.0, (before - after).abs()).amax(dim=-1)


def other_tokens(probe: Probe, tokens: Tensor) -> Tensor:
    """Return tokens of the same shape that differ in every place."""
    V = probe.usable_vocab_size
    steps = torch.randint(1, max(2, V), tokens.shape, generator=probe.generator("other tokens"))
    return (tokens + steps.to(tokens.device)) % V


def bench_tokens(probe: Probe, B: int, T: int, name: str) -> Tensor:
    """Return random ids (B, T) on the model's device, none of which is the padding id."""
    tokens = probe.tokens(B, T, name) % probe.usable_vocab_size
    pad = probe.pipeline.pad_id
    if pad is None:
        return tokens
    return torch.where(tokens == pad, (pad + 1) % probe.usable_vocab_size, tokens)


def parameter_count(probe: Probe) -> int:
    """Return the number of weights; each costs two operations a token, in a dense model."""
    return max(1, sum(parameter.numel() for parameter in probe.pipeline.model.parameters()))


def names_experts(model: nn.Module) -> bool:
    """Whether a module speaks of experts: of limited capacity, they drop tokens of a full batch."""
    names = (f"{path} {type(module).__name__}".lower() for path, module in model.named_modules())
    return any(word in name for name in names for word in EXPERT_WORDS)


def no_comparison(check: str) -> CheckResult:
    """Return the SKIP for a model that does not repeat itself, which `modes` reports."""
    return verdict(
        Status.SKIP,
        f"{check}.not_repeatable",
        say("not measured: two equal calls in eval mode differ, so no two can be compared"),
        next_step=say("mend what `modes` reports, then run this check again"),
    )


def not_causal(check: str) -> CheckResult:
    """Return the SKIP for a model that is declared to read the future."""
    return verdict(
        Status.SKIP,
        f"{check}.not_causal",
        say("not measured: the model is declared not causal (causal=False)"),
        next_step=say("leave causal=False out to have it checked"),
    )


def one_token(reason: str, consequence: str) -> CheckResult:
    """Return the SKIP for a context of one token, with what is missing there."""
    return verdict(
        Status.SKIP,
        reason,
        say("not measured: the context is one token long, so that {what}", what=consequence),
        next_step=say("nothing to do; a longer block_size would have it measured"),
    )


def _tolerance(probe: Probe, model: nn.Module) -> float:
    watch = _PrecisionWatch()
    tokens = probe.tokens(2, min(4, probe.probe_length)) % probe.usable_vocab_size
    try:
        with watch, probe.seeded("bench"):
            probe.logits(model, tokens)
    except (RuntimeError, NotImplementedError, TypeError):  # compiled models refuse to be watched
        return LIMITS[4]
    return LIMITS[min(8, max(2, watch.bytes_min))]


class _PrecisionWatch(TorchFunctionMode):
    """Note the least precise floating point number that any call of torch gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_min = 8

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the function as it is and look at what it returns."""
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.is_floating_point():
                self.bytes_min = min(self.bytes_min, tensor.element_size())
        return result
