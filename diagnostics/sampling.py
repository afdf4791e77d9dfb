"""Sampling: temperature, top-k and nucleus change the distribution exactly as they are defined.

Why it matters
    A filter that keeps one token too many, or all of them, never raises; the text is a little
    wilder or a little duller than the settings say, and the model is blamed or praised for it.

How it is measured
    `next_token_probabilities` is called on logits (V,) of our choosing and compared, in float64,
    with softmax(logits / temperature), then top-k, then the smallest set of most probable tokens
    whose mass reaches top_p. The logits are shuffled, and shifted up and down, which must change
    nothing: a fill value such as 0 or -10 shows at once. Where the result differs the usual
    mistakes are tried on all calls of a kind, and the one that fits them all is named. Also: the
    limits (temperature 0, k = V and above, p = 1 and nearly 0), equal logits, logits of -inf,
    large ones, half precision; the argument stays as it was, and a second call gives the same.

What it cannot see
    Whether tokens are drawn from this distribution (multinomial fed with logits), and whether the
    generator uses this function at all. A repetition penalty, which needs the text so far and has
    no place in this part: `check_repetition_penalty` of this module takes one by itself. Logits
    where the mass meets top_p exactly: rounding decides there. Whether temperature 0 may be asked
    for: where it gives NaN, that is a warning. Rows that are mixed in a batch: one vector of logits
    is passed at a time.

Break it
    python -m exercises.break_sampling
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._sampling_penalty import check_repetition_penalty
from diagnostics._sampling_readings import (
    Setting,
    alternatives,
    before_temperature,
    distribution,
    plain_mistakes,
    temperature_mistakes,
    top_k_mistakes,
    top_p_mistakes,
)
from diagnostics._sampling_session import Session, differs, fault, judge
from diagnostics._text import say

__all__ = ["check_repetition_penalty", "check_sampling", "run"]

VOCAB_SIZE = 32  # where nothing says V
HALF_NOISE = 0.03  # bfloat16 has 8 bits: 0.4 % a step, and sums of many
SHIFTS = (0.0, -10.0, 10.0)  # all logits negative, all positive: the distribution is the same
SPREAD = 2.0  # standard deviation of the logits
CLAMP_MAX = 0.2  # a temperature of 0 that is raised to less than this is nearly argmax


def check_sampling(
    next_token_probabilities: Callable[..., Tensor],
    *,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 42,
) -> CheckResult:
    """Check next_token_probabilities(logits (V,), temperature, top_k, top_p) -> (V,).

    top_k and top_p are given by position and are None where they are off; a function that takes
    no None is called with V and 1.0.    vocab_size: V >= 2.    Raises what the function raises.
    """
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
    generator = torch.Generator().manual_seed(seed)
    return _check(next_token_probabilities, vocab_size, generator, torch.device("cpu"))


def run(probe: Probe) -> CheckResult:
    """Judge the pipeline's function on logits as wide as its vocabulary."""
    function = probe.pipeline.next_token_probabilities
    if function is None:
        raise MissingPartError(
            "next_token_probabilities", why="there are no sampling filters to look at"
        )
    try:
        V = max(2, probe.vocab_size)
    except MissingPartError:
        V = VOCAB_SIZE
    with probe.seeded("sampling"):
        return _check(function, V, probe.generator("sampling"), probe.device)


def _check(
    function: Callable[..., Tensor], V: int, generator: torch.Generator, device: torch.device
) -> CheckResult:
    logits = SPREAD * torch.randn(V, generator=generator, dtype=torch.float64)
    logits -= logits.mean()
    session = Session(function, logits.float().to(device))
    warning: CheckResult | None = None
    for ask in _QUESTIONS:
        for finding in (*ask(session), *session.complaints()):
            if finding.status is not Status.WARN:
                return finding
            warning = finding if warning is None else warning
    if warning is not None:
        return warning
    return verdict(
        Status.PASS,
        "sampling.ok",
        say("{n} settings give the distribution of their definition", n=session.settings),
        measured=say(
            "within {worst}; of {V} equal logits top_k=2 keeps {ties}",
            worst=session.worst,
            V=V,
            ties=session.kept_of_ties,
        ),
        numbers={
            "settings": session.settings,
            "worst": session.worst,
            "kept_of_ties": session.kept_of_ties,
        },
    )


# ---- the questions, in order ---------------------------------------------------------------


def _ask_plain(session: Session) -> Iterator[CheckResult]:
    """All filters off: softmax, whatever is added to all logits."""
    settings = [Setting(session.logits + shift) for shift in SHIFTS]
    yield from judge(session, settings, "sampling.plain", plain_mistakes())


def _ask_temperature(session: Session) -> Iterator[CheckResult]:
    """Logits are divided by the temperature."""
    settings = [Setting(session.logits + s, temperature=t) for s in SHIFTS for t in (0.5, 2.0)]
    yield from judge(session, settings, "sampling.temperature", temperature_mistakes())


def _ask_zero(session: Session) -> Iterator[CheckResult]:
    """Temperature 0 is argmax, or refused, aloud or with NaN; a tiny one is argmax."""
    logits = session.logits.clone()
    logits[logits.argmax()] += 1.0  # far enough from the second for any small temperature
    best = torch.zeros(len(logits), dtype=torch.float64)
    best[logits.argmax()] = 1.0
    for temperature in (0.0, 1e-4):
        setting = Setting(logits, temperature=temperature)
        try:
            got = session.ask(setting)
        except Exception:  # any: refusing is clear enough
            continue
        session.settings += 1
        if differs(got, best):
            yield _zero_fault(temperature, logits, got)
            return


def _zero_fault(temperature: float, logits: Tensor, got: Tensor) -> CheckResult:
    """Say what came in place of argmax.

    NaN at exactly 0 is a warning: a design may ask for a temperature above 0, and nothing can be
    drawn from NaN in silence, for torch.multinomial raises. A finite distribution that is not
    argmax is drawn from without a word.
    """
    finite = bool(got.isfinite().all())
    read_as = _temperature_of(got, logits)
    clamped = temperature == 0 and read_as is not None and read_as <= CLAMP_MAX
    cause = "logits are divided by 0, or by a number so small that they overflow"
    if finite and not differs(got, logits.double().cpu().softmax(-1)):
        cause = "0 is taken for `off`, as `if temperature:` does"
    elif finite:
        cause = f"0 is raised to {read_as:.2g}" if clamped else ""
    return verdict(
        Status.WARN if clamped or (temperature == 0 and not finite) else Status.FAIL,
        "sampling.temperature_zero",
        say("temperature {t} does not give the most probable token alone", t=temperature)
        if finite
        else say("temperature {t} gives NaN, from which no token can be drawn", t=temperature),
        measured=say(
            "{n} of {V} probabilities are finite; the largest is {top}",
            n=int(got.isfinite().sum()),
            V=len(got),
            top=float(got.nan_to_num(nan=0.0).max()),
        ),
        expected=say("1 on the largest logit, or a ValueError"),
        causes=(say(cause),) if cause else (),
        next_step=say(
            "if temperature == 0: put everything on logits.argmax(), or raise ValueError"
        ),
        numbers={"temperature": temperature, "read_as": read_as},
    )


def _temperature_of(got: Tensor, logits: Tensor) -> float | None:
    """Return the temperature at which softmax gives these probabilities, None where none does."""
    first, second = logits.topk(2).indices.tolist()
    ratio = float(got[first] / got[second])
    if not (math.isfinite(ratio) and ratio > 1.0):
        return None
    temperature = float(logits[first] - logits[second]) / math.log(ratio)
    fits = not differs(got, (logits.double().cpu() / temperature).softmax(-1), 1e-3)
    return temperature if fits else None


def _ask_top_k(session: Session) -> Iterator[CheckResult]:
    """Exactly the k largest logits survive, at any shift."""
    V = len(session.logits)
    counts = sorted({k for k in (1, 2, 3, V // 2, V - 1, V) if 1 <= k <= V})
    settings = [Setting(session.logits + s, top_k=k) for s in SHIFTS for k in counts]
    yield from judge(session, settings, "sampling.top_k", top_k_mistakes())


def _ask_more_than_all(session: Session) -> Iterator[CheckResult]:
    """top_k above V keeps everything, or is refused."""
    setting = Setting(session.logits, top_k=len(session.logits) + 5)
    try:
        got = session.ask(setting)
    except Exception:  # any: refusing is clear enough
        return
    session.settings += 1
    if differs(got, distribution(setting)):
        yield fault("sampling.top_k_above_v", [(setting, got)], 1)


def _ask_ties(session: Session) -> Iterator[CheckResult]:
    """Equal logits: k tokens or all that tie, and never fewer; what is kept sums to 1."""
    V = len(session.logits)
    for setting in (
        Setting(torch.zeros_like(session.logits), top_k=2),
        Setting(torch.zeros_like(session.logits), top_p=0.5),
    ):
        got = session.answer(setting)
        kept = int((got > 0).sum())
        least = 2 if setting.top_k else -(-V // 2)
        if setting.top_k:
            session.kept_of_ties = kept
        if not (abs(float(got.sum()) - 1) <= 1e-4 and kept >= least):
            yield fault("sampling.ties", [(setting, got)], 1)


def _ask_top_p(session: Session) -> Iterator[CheckResult]:
    """The smallest set that reaches p; p lies midway between two masses, far from rounding."""
    settings = [
        Setting(session.logits + shift, top_p=p)
        for shift in SHIFTS
        for p in (*_midway(session.logits, (2, 3, len(session.logits) // 2)), 1.0)
    ]
    yield from judge(session, settings, "sampling.top_p", top_p_mistakes())


def _ask_tiny_p(session: Session) -> Iterator[CheckResult]:
    """However small p is, the most probable token stays."""
    settings = [Setting(session.logits, top_p=p) for p in (1e-6, *_midway(session.logits, (1,)))]
    yield from judge(session, settings, "sampling.top_p_empty", iter(()))


def _ask_order(session: Session) -> Iterator[CheckResult]:
    """The nucleus is measured on the tempered distribution."""
    for temperature in (0.5, 2.0):
        tempered = session.logits / temperature
        for p in _midway(tempered, (2, len(tempered) // 2)):
            setting = Setting(session.logits, temperature=temperature, top_p=p)
            got = session.answer(setting)
            if not differs(got, distribution(setting)):
                continue
            if differs(got, before_temperature(setting)):
                yield fault("sampling.top_p", [(setting, got)], 1)
                return
            yield verdict(
                Status.WARN,
                "sampling.nucleus_before_temperature",
                say("the nucleus is chosen before the temperature is applied"),
                measured=say(
                    "{kept:token|tokens} kept for {setting}",
                    kept=int((got > 0).sum()),
                    setting=str(setting),
                ),
                expected=say(
                    "{kept}, chosen from the tempered distribution, as is usual",
                    kept=int((distribution(setting) > 0).sum()),
                ),
                next_step=say("divide by the temperature first, then choose the nucleus"),
            )
            return


def _ask_together(session: Session) -> Iterator[CheckResult]:
    """All three at once: top-k before the nucleus, or after it on the whole distribution."""
    V = len(session.logits)
    for k in sorted({min(V, 4), max(2, V // 2)}):
        for p in (0.3, 0.77):
            setting = Setting(session.logits + SHIFTS[1], temperature=0.7, top_k=k, top_p=p)
            got = session.answer(setting)
            fits = (distribution(setting), *alternatives(setting), before_temperature(setting))
            if all(differs(got, each) for each in fits):
                yield fault("sampling.together", [(setting, got)], 1)
                return


def _ask_closed(session: Session) -> Iterator[CheckResult]:
    """A logit of -inf is a closed token: its probability stays 0 in every setting."""
    V = len(session.logits)
    logits = session.logits.clone()
    logits[logits.argmax()] = -torch.inf
    settings = [Setting(logits), Setting(logits, temperature=2.0), Setting(logits, top_k=V)]
    settings += [Setting(logits, top_k=1), Setting(logits, top_p=1.0)]
    yield from judge(session, settings, "sampling.closed_tokens", iter(()))


def _ask_large(session: Session) -> Iterator[CheckResult]:
    """Large logits give finite probabilities: the maximum goes first."""
    settings = [
        Setting((session.logits + shift).double().float(), top_k=k)
        for shift in (1000.0, -1000.0)
        for k in (None, 2)
    ]
    answers = [(setting, session.answer(setting)) for setting in settings]
    wrong = [pair for pair in answers if differs(pair[1], distribution(pair[0]), 1e-3)]
    if wrong:
        yield fault("sampling.overflow", wrong, len(answers))


def _ask_half(session: Session) -> Iterator[CheckResult]:
    """Half precision gives the same within its rounding, and NaN never."""
    for dtype in (torch.bfloat16, torch.float16):
        setting = Setting(session.logits.to(dtype), temperature=0.8, top_k=2)
        try:
            got = session.ask(setting)
        except Exception:  # any: not every operation has a half precision kernel
            continue
        session.settings += 1
        if differs(got, distribution(setting), HALF_NOISE):
            yield fault("sampling.half", [(setting, got)], 1)
            return


def _ask_again(session: Session) -> Iterator[CheckResult]:
    """The same call gives the same again: nothing is kept from call to call."""
    for setting, first in (session.first_results[3], session.first_results[-1]):
        again = session.ask(setting)
        if differs(again, first):
            yield fault("sampling.remembers", [(setting, again)], 1)
            return


def _midway(logits: Tensor, counts: tuple[int, ...]) -> list[float]:
    """Return the p midway between the masses of n - 1 and n tokens, for each count n."""
    masses = logits.double().softmax(-1).sort(descending=True).values.cumsum(-1).tolist()
    masses = [0.0, *masses]
    return [(masses[n - 1] + masses[n]) / 2 for n in sorted(set(counts)) if 1 <= n < len(masses)]


_QUESTIONS: tuple[Callable[[Session], Iterator[CheckResult]], ...] = (
    _ask_plain,
    _ask_temperature,
    _ask_top_k,
    _ask_more_than_all,
    _ask_top_p,
    _ask_tiny_p,
    _ask_ties,
    _ask_order,
    _ask_together,
    _ask_zero,  # an edge: what is wrong at usual settings comes first
    _ask_closed,
    _ask_large,
    _ask_half,
    _ask_again,
)
