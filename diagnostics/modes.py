"""Modes: eval mode is repeatable, and train mode differs from it by dropout only.

Why it matters
    A validation loss with dropout still on is another number at each call; a model that computes
    something else while it trains is judged by weights that were fitted to another function.
    Every later comparison of two runs relies on this check.

How it is measured
    On copies with jittered weights. Eval: the same ids three times, under two seeds, bit for bit.
    Train: the same again with every dropout silenced (torch's functions are intercepted, and
    probabilities in modules and configurations set to 0), which must give the eval logits; what
    randomness is left must scatter around them. Also: logits with targets, with other targets
    and with gradients are those without; train() and eval() reach every module; a forward call
    leaves weights, buffers, modes and global random states as they should be.

What it cannot see
    A dropout written by hand whose probability no name tells can hide a small difference between
    the modes in its scatter. Code that runs on another device only. Whether your evaluation
    function calls eval() at all: that is for `evaluation`.

Break it
    python -m exercises.break_modes
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook

from diagnostics._guard import same_bytes
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._trace import (
    DropoutWatch,
    call_name,
    declared_dropout,
    dropout_off,
    first_divergence,
    record_calls,
    unregistered_modules,
)

# Two kernels for the same sum differ in their last digits. Measured on healthy models: 2e-15 in
# float64, 2e-6 in float32, 2e-2 in bfloat16; the smallest real difference seen: 3e-3 (float64).
EXACT = 1e-6  # float64, relative to the largest logit; float32 parts inside are allowed for
TOLERANCE = {4: 1e-4, 2: 6e-2}  # by bytes per number, where float64 does not run
SAMPLES = 16  # draws of what randomness is left in train mode
SCATTER_MAX = 2.0  # standard deviations of those draws from their mean to the eval logits


def check_modes(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that eval mode is repeatable and that train mode differs from it by dropout only.

    tokens: (B, T) ids to feed; None: random ones.    vocab_size: V; None: read from the model.
    parts: other fields of Pipeline, such as forward.    Raises ValueError for another shape.
    """
    if tokens is not None and tokens.ndim != 2:
        raise ValueError(f"tokens must have shape (B, T), got {tuple(tokens.shape)}")
    pipeline = Pipeline(model, vocab_size=vocab_size, **parts)  # type: ignore[arg-type]
    return _check(Probe(pipeline), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge both modes on random tokens."""
    return _check(probe, None)


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    """Ask one question after the other, the most basic first; the first FAIL is the verdict."""
    if tokens is None:
        tokens = probe.tokens(3, probe.probe_length, "modes")  # (B, T)
    trial = _Trial(probe, tokens.to(probe.device))
    warning: CheckResult | None = None
    # bit for bit on the numbers the user has, then code paths on exact ones
    for exact, questions in ((False, _ON_OWN_NUMBERS), (True, _ON_EXACT_NUMBERS)):
        with probe.model(exact=exact, jitter=JITTER_STD) as model:
            for ask in questions:
                result = ask(trial, model)
                if result is not None and result.status is not Status.WARN:
                    return result
                warning = result if warning is None else warning
    if warning is not None:
        return warning
    return verdict(
        Status.PASS,
        "modes.ok",
        say(
            "eval mode repeats itself bit for bit, and train mode without dropout gives the same "
            "logits within {difference} of the largest",
            difference=trial.train_difference,
        ),
        measured=say("{sites:dropout call|dropout calls} in train mode", sites=len(trial.fired)),
        numbers={"train_difference": trial.train_difference, "dropout_calls": len(trial.fired)},
    )


@dataclass
class _Trial:
    """What the questions share."""

    probe: Probe
    tokens: Tensor  # (B, T)
    train_difference: float = 0.0
    fired: tuple[str, ...] = ()  # places of active dropout in train mode

    @cached_property
    def limit(self) -> float:
        """How far two ways of computing the same logits may lie apart, relative to the largest."""
        if self.probe.runs_in_float64:
            return EXACT
        weights = self.probe.pipeline.model.parameters()
        size = min((p.dtype.itemsize for p in weights if p.is_floating_point()), default=4)
        return TOLERANCE.get(size, TOLERANCE[4])

    def logits(self, model: nn.Module, seed: str = "modes") -> Tensor:
        """Return logits (B, T, W) under a seed named by `seed`."""
        with self.probe.seeded(seed):
            return self.probe.logits(model, self.tokens)

    def random_state_after(self, model: nn.Module, seed: str) -> tuple[Tensor, bytes, bytes]:
        """Return logits and a digest of the global random states that the forward call leaves."""
        with self.probe.seeded(seed):
            logits = self.probe.logits(model, self.tokens)
            numpy_state = np.random.get_state()
            plain = repr((random.getstate(), numpy_state[1].tobytes(), numpy_state[2]))  # type: ignore[index]
            return logits, torch.get_rng_state().numpy().tobytes(), plain.encode()

    def differ(self, a: Tensor, b: Tensor) -> bool:
        """Whether logits differ by more than two kernels for the same sum do; NaN differs."""
        return not relative_distance(a, b) <= self.limit


def relative_distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors of equal shape, relative to the largest value.

    The same infinity in both (a closed vocabulary entry) counts as no difference.
    """
    if a.shape != b.shape:
        return float("inf")
    a, b = a.double() if a.device.type != "mps" else a.float(), b.to(a.device)
    distance = torch.where(a == b, torch.zeros_like(a), (a - b.to(a.dtype)).abs())
    size = a[a.isfinite()].abs()
    largest = float(size.max()) if size.numel() else 0.0
    return float(distance.max()) / max(largest, 1e-6)


# ---- the questions, in order ---------------------------------------------------------------


def _ask_switch(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Do train() and eval() reach every module?"""
    for module in model.modules():
        module.training = True
    model.eval()
    stuck = [path or "the model" for path, module in model.named_modules() if module.training]
    if not stuck:
        return None
    return verdict(
        Status.FAIL,
        "modes.eval_incomplete",
        say("model.eval() leaves {count:module|modules} in train mode", count=len(stuck)),
        measured=say("{path}.training is True after model.eval()", path=stuck[0]),
        expected=say("False in every module"),
        where=say("{count:module|modules}; first is {path}", count=len(stuck), path=stuck[0]),
        causes=(say("a module overrides train() and does not call super().train(mode)"),),
        next_step=say("call super().train(mode) in the override, which visits every child"),
        numbers={"stuck": stuck},
    )


def _ask_eval(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Is eval mode repeatable, and does it leave everything alone?"""
    warm = trial.logits(model, "a")  # lazily built tables exist from here on
    V = trial.probe.vocab_size
    if not bool(warm[..., :V].isfinite().all()):
        return verdict(
            Status.SKIP,
            "modes.not_finite",
            say("not measured: the logits hold NaN or infinity"),
            next_step=say("mend what forward_hooks reports: it names the first such module"),
        )
    before = _tensors_of(model)
    first, torch_a, plain_a = trial.random_state_after(model, "a")
    with trial.probe.seeded("between"):  # what is kept from a call shows only after another one
        trial.probe.logits(model, trial.tokens.flip(1))
    second = trial.logits(model, "a")
    other, torch_b, plain_b = trial.random_state_after(model, "b")
    changed = [path for path, tensor, saved in before if not same_bytes(tensor, saved)]
    switched = [path for path, module in model.named_modules() if module.training]
    if torch_a == torch_b or plain_a == plain_b:
        return _resets_random_state("eval")
    tampered = _changed_tensors(model, changed, "eval")
    if tampered is not None and tampered.failed:
        return tampered  # weights that a call moves are why the next one differs
    if not _repeats(trial, first, second):
        return _stateful(trial, model, relative_distance(first, second))
    if not _repeats(trial, first, other):
        return _eval_random(trial, model, relative_distance(first, other))
    if switched:
        return _forward_switches(switched[0], "eval", len(switched))
    return tampered


def _ask_targets(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Are the logits the same without targets, with targets, and with other targets?"""
    probe, tokens = trial.probe, trial.tokens
    adapter = probe.adapter
    given = adapter.forward is not None or adapter.target_name or adapter.target_position
    if not given:
        return None
    with torch.no_grad():
        pairs = []
        for name in ("targets", "other targets"):
            targets = probe.tokens(tokens.shape[0], tokens.shape[1], name)
            with probe.seeded("modes"):
                pairs.append(adapter.call(model, tokens, targets).logits)
        without = trial.logits(model)
    if pairs[0].shape != without.shape:
        return None  # for `shapes` to say
    if trial.differ(pairs[0], pairs[1]):
        return verdict(
            Status.FAIL,
            "modes.targets_leak",
            say("the logits depend on the values of the targets: the answer is an input"),
            measured=say(
                "logits moved by {d} of the largest logit when only the targets changed",
                d=relative_distance(pairs[0], pairs[1]),
            ),
            expected=say("at most {limit}", limit=trial.limit),
            next_step=say("search forward for targets: they may be read by the loss only"),
            numbers={"distance": relative_distance(pairs[0], pairs[1])},
        )
    if trial.differ(without, pairs[0]):
        return _two_paths(
            trial, "modes.targets_change_logits", "with targets", "without them", without, pairs[0]
        )
    return None


def _ask_grad(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Are the logits the same with gradients recorded, and is recording left as it was?"""
    probe = trial.probe
    with probe.seeded("modes"):
        without = trial.logits(model)
        try:
            with torch.enable_grad():
                recorded = probe.adapter.logits(model, trial.tokens).detach()
                left_on = torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)
    if not left_on:
        return verdict(
            Status.FAIL,
            "modes.grad_left_off",
            say("a forward call leaves gradient recording switched off for everything after it"),
            measured=say("torch.is_grad_enabled() is False after the call"),
            expected=say("True, as before the call"),
            causes=(say("torch.set_grad_enabled(False) is called as a function, not in a with"),),
            next_step=say("write `with torch.no_grad():` around the lines that need it"),
        )
    if trial.differ(without, recorded):
        return _two_paths(
            trial,
            "modes.grad_changes_logits",
            "with gradients",
            "under no_grad",
            without,
            recorded,
        )
    return None


def _ask_train(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Does train mode without dropout give the eval logits?"""
    evaluated = trial.logits(model)
    before = _tensors_of(model)
    model.train()
    modes = {path: module.training for path, module in model.named_modules()}
    with dropout_off(model):
        trained, torch_a, plain_a = trial.random_state_after(model, "a")
        other, torch_b, plain_b = trial.random_state_after(model, "b")
    if torch_a == torch_b or plain_a == plain_b:
        return _resets_random_state("train")
    switched = [path for path, m in model.named_modules() if m.training != modes[path]]
    if switched:
        return _forward_switches(switched[0], "train", len(switched))
    changed = [path for path, tensor, saved in before if not same_bytes(tensor, saved)]
    tampered = _changed_tensors(model, changed, "train")
    if tampered is not None and tampered.failed:
        return tampered
    _put_back(before)
    model.eval()
    if trial.differ(evaluated, trial.logits(model)):
        distance = relative_distance(evaluated, trial.logits(model))
        return _mode_remembered("logits moved by {d} of the largest logit", d=distance)
    trial.train_difference = relative_distance(evaluated, trained)
    if not trial.differ(evaluated, trained):
        return tampered
    return _explain_train(trial, model, evaluated, trained, other)


def _ask_order(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Is eval mode still repeatable when the first call of all was in train mode?"""
    model.train()
    trial.logits(model, "a")
    model.eval()
    first, other = trial.logits(model, "a"), trial.logits(model, "b")
    if _repeats(trial, first, other):
        return None
    return _mode_remembered(
        "after a first call in train mode, eval logits move by {d} of the largest at each call",
        d=relative_distance(first, other),
    )


def _ask_dropout(trial: _Trial, model: nn.Module) -> CheckResult | None:
    """Does the dropout that the model declares drop something, anew at each call?"""
    model.train()
    declared = declared_dropout(model)
    with DropoutWatch() as watch:
        first = trial.logits(model, "a")
    other = trial.logits(model, "b")
    with dropout_off(model):
        silent = trial.logits(model, "a")
    trial.fired = tuple(place for _, place in watch.fired)
    if torch.equal(first, other) and not torch.equal(first, silent):
        model.eval()
        return _same_mask()
    if watch.passive and all(module.training for module in model.modules()):
        return _mode_remembered(
            "in train mode the dropout at {place} is told training=False", place=watch.passive[0]
        )
    model.eval()
    if declared and torch.equal(first, silent):
        path, p = next(iter(declared.items()))
        return verdict(
            Status.WARN,
            "modes.dropout_never_fires",
            say("the model declares dropout, and in train mode nothing is dropped"),
            measured=say("logits in train mode equal those without dropout bit for bit"),
            expected=say(
                "other logits: {path} drops each value with probability {p}", path=path, p=p
            ),
            where=say(
                "{count:dropout module|dropout modules}; first is {path}",
                count=len(declared),
                path=path,
            ),
            next_step=say(
                "check that forward calls {path}, and that train() reaches it", path=path
            ),
            numbers={"declared": declared},
        )
    return None


_ON_OWN_NUMBERS = (_ask_switch, _ask_eval, _ask_dropout)
_ON_EXACT_NUMBERS = (_ask_order, _ask_targets, _ask_grad, _ask_train)

# ---- the verdicts --------------------------------------------------------------------------


def _eval_random(trial: _Trial, model: nn.Module, distance: float) -> CheckResult:
    built = _built_in_forward(trial, model)
    with DropoutWatch() as watch:  # apart from the comparison: it turns torch's fast paths off
        trial.logits(model, "a")
    places = [place for _, place in watch.fired]
    lost = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, part in unregistered_modules(module)
        if part.training and declared_dropout(part)
    ]
    causes = _causes_of_random(built, lost, places)
    return verdict(
        Status.FAIL,
        "modes.eval_random",
        say("in eval mode the same ids give different logits at each call"),
        measured=say("logits moved by {d} of the largest logit between two seeds", d=distance),
        expected=say("0: eval mode draws nothing at random"),
        where=_place_of(trial, model, "a", "b"),
        causes=causes,
        next_step=say("build the layer in __init__ and call it in forward")
        if built
        else say("gate it: functional.dropout(x, p, training=self.training)")
        if causes
        else say("draw random numbers only under `if self.training:`"),
        numbers={
            "distance": distance,
            "active_dropout": places,
            "unregistered": lost,
            "built": built,
        },
    )


def _causes_of_random(built: list[str], lost: list[str], places: list[str]) -> tuple[Text, ...]:
    """Say what was seen: layers made in forward, dropout in a list, dropout that is active."""
    causes: list[Text] = []
    if built:
        causes.append(
            say(
                "a layer ({kind}) is built inside forward, with new random weights at each call",
                kind=built[0],
            )
        )
    if lost:
        causes.append(
            say("{name} keeps dropout in a plain list, so eval() never reaches it", name=lost[0])
        )
    if places:
        causes.append(
            say(
                "dropout is active in eval mode at {place}: it is told no training flag, or its "
                "module is made anew at each call",
                place=places[0],
            )
        )
    return tuple(causes)


def _built_in_forward(trial: _Trial, model: nn.Module) -> list[str]:
    """Return the kinds of the layers with weights that come into being during a forward call."""
    built: list[str] = []
    handle = register_module_parameter_registration_hook(
        lambda module, name, parameter: built.append(type(module).__name__)
    )
    try:
        trial.logits(model, "a")
    finally:
        handle.remove()
    return built


def _same_mask() -> CheckResult:
    return verdict(
        Status.FAIL,
        "modes.same_mask",
        say("dropout drops the same units at every call: the mask never changes"),
        measured=say("equal logits under two seeds, other logits without dropout"),
        expected=say("a new mask at each call"),
        causes=(say("the mask is drawn from a generator that is seeded at each call"),),
        next_step=say("draw the mask from torch's global generator, or seed only once"),
    )


def _stateful(trial: _Trial, model: nn.Module, distance: float) -> CheckResult:
    return verdict(
        Status.FAIL,
        "modes.stateful",
        say("in eval mode a second call with the same ids and the same seed gives other logits"),
        measured=say("logits moved by {d} of the largest logit", d=distance),
        expected=say("0: a call must not depend on the calls before it"),
        where=_place_of(trial, model, "a", "a"),
        causes=(
            say("the model keeps something from the last call: a cache, a hidden state, a mean"),
            say("the model draws from a random generator of its own"),
        ),
        next_step=say("reset the state at the start of forward, or pass it in as an argument"),
        numbers={"distance": distance},
    )


def _resets_random_state(mode: str) -> CheckResult:
    return verdict(
        Status.FAIL,
        "modes.resets_random_state",
        say("a forward call in {mode} mode seeds the global random state", mode=mode),
        measured=say("equal random states after calls that started from two seeds"),
        expected=say("different ones: whoever draws after the model must not repeat itself"),
        causes=(say("manual_seed is called inside forward, so all dropout masks are equal too"),),
        next_step=say("search forward for manual_seed; seed once, at the start of the run"),
        numbers={"mode": mode},
    )


def _forward_switches(path: str, mode: str, count: int) -> CheckResult:
    return verdict(
        Status.FAIL,
        "modes.forward_switches_mode",
        say(
            "a forward call in {mode} mode changes the mode of {path}",
            mode=mode,
            path=path or "the model",
        ),
        measured=say("{count:module is|modules are} in another mode after the call", count=count),
        expected=say("0: every module in {mode} mode, as before the call", mode=mode),
        causes=(say("train() or eval() is called inside forward or in a helper it calls"),),
        next_step=say("move the call of train() or eval() to the training loop"),
    )


def _changed_tensors(model: nn.Module, changed: list[str], mode: str) -> CheckResult | None:
    """Judge what a forward call wrote: weights never, buffers only for a declared purpose."""
    weights = [path for path, _ in model.named_parameters() if path in changed]
    renormalised = any(getattr(module, "max_norm", None) is not None for module in model.modules())
    if weights and not renormalised:
        return verdict(
            Status.FAIL,
            "modes.weights_changed",
            say(
                "a forward call in {mode} mode changes the weight {path}",
                mode=mode,
                path=weights[0],
            ),
            measured=say(
                "{count:parameter differs|parameters differ} after the call", count=len(weights)
            ),
            expected=say("0: only the optimizer changes weights"),
            causes=(say("an operation in place (x += ..., x.add_()) reaches the weight itself"),),
            next_step=say("write x = x + ... in place of x += ... where x may be a weight"),
            numbers={"changed": weights},
        )
    norms = [path for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
    others = [path for path in changed if not any(path.startswith(f"{norm}.") for norm in norms)]
    if others:
        return verdict(
            Status.WARN,
            "modes.buffers_changed",
            say(
                "a forward call in {mode} mode changes the buffer {path}", mode=mode, path=others[0]
            ),
            measured=say("{count:buffer differs|buffers differ} after the call", count=len(others)),
            expected=say("0, unless the model counts or averages something on purpose"),
            next_step=say(
                "print {path} before and after a call, and keep it if it is meant", path=others[0]
            ),
            numbers={"changed": others},
        )
    return None


def _mode_remembered(measured: str, **facts: object) -> CheckResult:
    return verdict(
        Status.FAIL,
        "modes.mode_remembered",
        say("the model computes in the mode of an earlier call, not in the mode it is in"),
        measured=say(measured, **facts),
        expected=say("train() and eval() decide at each call whether dropout is on"),
        causes=(
            say("a compiled or cached function is kept from the first mode it ran in"),
            say("the flag was read once, when the module was built"),
        ),
        next_step=say("read self.training inside forward, and key every cache by it"),
        numbers=dict(facts),
    )


def _explain_train(
    trial: _Trial, model: nn.Module, evaluated: Tensor, trained: Tensor, other: Tensor
) -> CheckResult | None:
    """Find what the difference between the modes comes from: noise, batch norm, or other code."""
    model.train()
    numbers: dict[str, Any] = {"distance": relative_distance(evaluated, trained)}
    if not torch.equal(trained, other):
        with dropout_off(model):
            draws = torch.stack([trial.logits(model, f"draw {n}") for n in range(SAMPLES)])
        off = (draws.mean(0) - evaluated).abs() > SCATTER_MAX * draws.std(0)
        numbers["outside_share"] = float(off.double().mean())
        if numbers["outside_share"] <= 0.5:  # noise of the design: jitter, stochastic depth
            return None
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.eval()
    with dropout_off(model):
        calls_train = record_calls(model, lambda: trial.logits(model, "a"), clone=True)
        again = trial.logits(model, "a")
    if norms and not trial.differ(evaluated, again):
        return _batch_norm_warning(len(norms), numbers, trial.limit)
    model.eval()
    calls_eval = record_calls(model, lambda: trial.logits(model, "a"), clone=True)
    call = first_divergence(calls_eval, calls_train)
    path = call_name(call) if call else ""
    words = f"{path} {call.kind}".lower() if call else ""
    routed = any(word in words for word in ("moe", "expert", "router", "gate"))
    return verdict(
        Status.WARN if routed else Status.FAIL,
        "modes.train_differs",
        say("with dropout off, train mode computes other logits than eval mode"),
        measured=say("logits differ by {d} of the largest logit", d=numbers["distance"]),
        expected=say("at most {limit}", limit=trial.limit),
        where=say("first in {path} ({kind})", path=path, kind=call.kind) if call else "",
        causes=(say("forward takes another path when self.training is True, in {path}", path=path),)
        if call
        else (),
        next_step=say("compare the two branches on self.training; only dropout may differ"),
        numbers={**numbers, "path": path},
    )


def _batch_norm_warning(count: int, numbers: dict[str, Any], limit: float) -> CheckResult:
    return verdict(
        Status.WARN,
        "modes.batch_norm",
        say("train mode normalises over the batch, so its logits differ from eval mode's"),
        measured=say("logits differ by {d} of the largest logit", d=numbers["distance"]),
        expected=say("at most {limit}, in a model that treats each position alone", limit=limit),
        where=say("{count:batch norm module|batch norm modules}", count=count),
        next_step=say("use nn.LayerNorm or nn.RMSNorm in place of batch norm"),
        numbers=numbers,
    )


def _two_paths(
    trial: _Trial, reason: str, one: str, another: str, without: Tensor, other: Tensor
) -> CheckResult:
    distance = relative_distance(without, other)
    places = torch.nonzero(((without - other).abs().amax(2) > 0).any(0)).flatten()
    first = int(places[0]) if len(places) else 0  # NaN only
    return verdict(
        Status.FAIL,
        reason,
        say(
            "the logits {one} differ from those {another}: two code paths disagree",
            one=one,
            another=another,
        ),
        measured=say("logits differ by {d} of the largest logit", d=distance),
        expected=say("at most {limit}", limit=trial.limit),
        where=say("first at position {first} of {T}", first=first, T=without.shape[1]),
        causes=(say("one of the two paths lacks a mask, a scale, a norm or a position"),),
        next_step=say("run both paths on one row of 4 tokens and print what each module gives"),
        numbers={"distance": distance, "first_position": first},
    )


# ---- small helpers -------------------------------------------------------------------------


def _repeats(trial: _Trial, a: Tensor, b: Tensor) -> bool:
    """Bit for bit on the CPU; other devices may add in another order at each call."""
    return same_bytes(a, b) or (a.device.type != "cpu" and not trial.differ(a, b))


def _place_of(trial: _Trial, model: nn.Module, seed: str, other: str) -> Text | str:
    """Name the innermost module that gives different tensors for equal inputs."""
    runs = [
        record_calls(model, lambda name=name: trial.logits(model, name), clone=True)  # type: ignore[misc]
        for name in (seed, other)
    ]
    call = first_divergence(*runs)
    return (
        ""
        if call is None
        else say("first in {path} ({kind})", path=call_name(call), kind=call.kind)
    )


def _tensors_of(model: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(path, tensor, tensor.detach().clone()) for path, tensor in named]


def _put_back(saved_tensors: list[tuple[str, Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for _, tensor, saved in saved_tensors:
            if tensor.shape == saved.shape:
                tensor.copy_(saved)
