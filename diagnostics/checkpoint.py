"""Checkpoint: what was saved is what is loaded: same logits, tensors, ties, types and buffers.

Why it matters
    A checkpoint that loses something loads without a word, and the loss of the resumed run or
    the text of the product tells it days later, when the run that made it is gone.

How it is measured
    A copy of the model gets jittered weights, so that nothing equals what a fresh model holds,
    and is saved in train mode into a temporary folder. Saving must leave it as it was. Then its
    weights are moved, and the file is loaded twice: both must hold the weights of the moment of
    saving, and neither may share storage with the other. Names, shapes, dtypes, buffers and ties
    are compared, and the logits in eval mode on the same tokens. Where a tensor differs, rounding
    to half precision, a transpose and a mix-up with another tensor are tried as explanations.
    The path given to your functions is model.safetensors, then model.pt, then model (a folder),
    the first that both accept.

What it cannot see
    Optimizer, step, random states and the learning rate schedule: that is for `resume`. Which of
    several checkpoints is the best one. Whether a tokenizer belongs to it: `fingerprint`. What
    loading into another architecture would do: see `compare_state_dicts`.

Break it
    python -m exercises.break_checkpoint
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._round_trip import (
    NAMES,
    Refusal,
    RoundTrip,
    distance,
    make_round_trip,
    same_values,
)
from diagnostics._state import (
    StateDifference,
    compare_state_dicts,
    fitting_change,
    some,
)
from diagnostics._text import Text, say

__all__ = ["StateDifference", "check_checkpoint", "compare_state_dicts", "run"]


def check_checkpoint(
    model: nn.Module,
    save: Callable[[nn.Module, Path], None],
    load: Callable[[Path], nn.Module],
    **parts: Any,
) -> CheckResult:
    """Check that `load` gives back what `save` was given.

    save: (model, path) -> None.    load: (path) -> model.    parts: other fields of Pipeline.
    """
    return run(Probe(Pipeline(model, save=save, load=load, **parts)))


def run(probe: Probe) -> CheckResult:
    """Save a jittered copy, move it, load twice, and compare."""
    save, load = probe.pipeline.save, probe.pipeline.load
    if save is None or load is None:
        raise MissingPartError("save and load", why="there is no way to write and read a model")
    with tempfile.TemporaryDirectory(prefix="diagnostics-") as folder:
        trip = make_round_trip(probe, save, load, Path(folder))
    if isinstance(trip, Refusal):
        return _raised(trip.part, trip.error)
    warning: CheckResult | None = None
    for finding in _findings(trip):
        if finding.status is not Status.WARN:
            return finding if finding.failed or warning is None else warning
        warning = finding if warning is None else warning
    raise AssertionError("the last finding is a pass")


def _findings(trip: RoundTrip) -> Iterator[CheckResult]:
    """Judge the round trip, the more basic first; the last finding is the pass."""
    yield from _judge_saver(trip)
    yield from _judge_names(trip)
    yield from _judge_values(trip)
    yield from _judge_buffers(trip)
    yield from _judge_ties(trip)
    yield from _judge_types(trip)
    yield from _judge_logits(trip)
    saved = trip.saved
    yield CheckResult(
        check="checkpoint",
        status=Status.PASS,
        reason="checkpoint.ok",
        claim=say(
            "saved and loaded: {tensors} tensors bit for bit, {ties:tie|ties}, and {logits}",
            tensors=len(saved.parameters) + len(saved.buffers),
            ties=len(saved.ties),
            logits=_logits_text(trip),
        ),
        numbers={
            "tensors": len(saved.parameters) + len(saved.buffers),
            "logit_difference": trip.logit_difference,
            "file_name": trip.file_name,
            "loaded_in_train_mode": any(trip.first.training),
        },
    )


def _judge_saver(trip: RoundTrip) -> Iterator[CheckResult]:
    """Saving is reading: the model must be as it was."""
    before, after = trip.saved, trip.after_saving
    changes: list[str] = []
    if after.training != before.training:
        changes.append("the mode (train became eval)")
    if after.device != before.device:
        changes.append(f"the device ({before.device} became {after.device})")
    if not same_values(before, after):
        changes.append("weights or their dtype")
    if after.trainable != before.trainable:
        changes.append("requires_grad")
    if any(_gradient_lost(g, after.gradients.get(n)) for n, g in before.gradients.items()):
        changes.append("gradients")
    if changes:
        yield verdict(
            Status.FAIL,
            "checkpoint.saver_changes_model",
            say("saving changes the model that is being trained: {what}", what=", ".join(changes)),
            measured=say("{count:change|changes}", count=len(changes)),
            expected=say("0: saving only reads"),
            causes=(say("save calls .eval(), .cpu(), .half() or zero_grad() on the model itself"),),
            next_step=say(
                "work on tensors: {{k: v.detach().cpu() for k, v in state_dict.items()}}"
            ),
            numbers={"changes": changes},
        )


def _judge_names(trip: RoundTrip) -> Iterator[CheckResult]:
    """Names and shapes of the parameters."""
    difference = compare_state_dicts(trip.saved.parameters, trip.first.parameters)
    if difference.mismatched:
        name, (wanted, came) = next(iter(difference.mismatched.items()))
        yield verdict(
            Status.FAIL,
            "checkpoint.resized",
            say(
                "{count:tensor comes|tensors come} back in another shape, {name} as {came}",
                count=len(difference.mismatched),
                name=name,
                came=came,
            ),
            measured=say("shape {came}", came=came),
            expected=say("shape {wanted}", wanted=wanted),
            where=say("{names}", names=some(list(difference.mismatched))),
            causes=(
                say("the model is built from a configuration that is not the saved one"),
                say("a mismatch is mended silently, by cutting or padding"),
            ),
            next_step=say("build the model from the configuration stored in the checkpoint"),
            numbers={"mismatched": list(difference.mismatched)},
        )
    if difference.missing or difference.unexpected:
        same_logits = trip.logit_difference == 0
        yield verdict(
            Status.WARN if same_logits else Status.FAIL,
            "checkpoint.other_names",
            say(
                "the loaded model lacks {missing} of the saved parameters and has {unexpected} "
                "others",
                missing=len(difference.missing),
                unexpected=len(difference.unexpected),
            ),
            measured=_logits_text(trip),
            expected=say("the names that were saved"),
            where=say("{names}", names=some(difference.missing or difference.unexpected)),
            next_step=say("print(compare_state_dicts(model.state_dict(), loaded.state_dict()))"),
            numbers={"missing": difference.missing, "unexpected": difference.unexpected},
        )


def _judge_values(trip: RoundTrip) -> Iterator[CheckResult]:
    """The parameters' values, and the independence of what was loaded."""
    saved, first = trip.saved.parameters, trip.first.parameters
    common = [name for name in saved if name in first]
    random = [n for n in common if not _equal(first[n], trip.second.parameters.get(n))]
    wrong = [n for n in common if not _equal(saved[n], first[n])]
    if random and len(wrong) < len(common):
        yield verdict(
            Status.FAIL,
            "checkpoint.random_after_load",
            say(
                "{count} of {total:tensor differs|tensors differ} from load to load",
                count=len(random),
                total=len(common),
            ),
            measured=say("two loads of one file disagree"),
            expected=say("the saved values, every time"),
            where=say("{names}", names=some(random)),
            causes=(say("they are not in the file, or not found, and stay freshly initialised"),),
            next_step=say("load with strict=True and print what is missing"),
            numbers={"names": random},
        )
    if wrong:
        yield _wrong_values(trip, common, wrong)
    if trip.shares_storage:
        yield verdict(
            Status.FAIL,
            "checkpoint.loads_share_weights",
            say("two loaded models share their weights: moving one moves the other"),
            measured=say("a loaded model moved"),
            expected=say("each load gives tensors of its own"),
            causes=(say("load returns a cached object, or assigns tensors without copying"),),
            next_step=say("copy what is cached: {{k: v.clone() for k, v in state.items()}}"),
        )


def _wrong_values(trip: RoundTrip, common: list[str], wrong: list[str]) -> CheckResult:
    saved, first, moved = trip.saved.parameters, trip.first.parameters, trip.moved.parameters
    facts = {"count": len(wrong), "total": len(common)}
    numbers: dict[str, Any] = {"names": wrong, **facts}
    where = say("{names}", names=some(wrong))
    expected = say("the values at the moment of saving, bit for bit")
    if all(_equal(moved[name], first[name]) for name in wrong):
        return verdict(
            Status.FAIL,
            "checkpoint.saved_by_reference",
            say(
                "{count} of {total:tensor comes|tensors come} back as they are now, not as they "
                "were saved",
                **facts,
            ),
            measured=say("the weights after saving"),
            expected=expected,
            where=where,
            causes=(say("save keeps the model's own tensors instead of copies"),),
            next_step=say("copy.deepcopy(model.state_dict()), or write to disk at once"),
            numbers=numbers,
        )
    changes = {name: fitting_change(saved[name], first[name], saved) for name in wrong}
    kinds = {(change or "").split(" ")[0] for change in changes.values()}
    if len(kinds) == 1 and kinds != {""}:
        reason, cause, next_step = _CHANGES[kinds.pop()]
        return verdict(
            Status.FAIL,
            reason,
            say(
                "{count} of {total:tensor comes|tensors come} back {change}",
                change=changes[wrong[0]],
                **facts,
            ),
            measured=say("{name} is {change}", name=wrong[0], change=changes[wrong[0]]),
            expected=expected,
            where=where,
            causes=(cause,),
            next_step=next_step,
            numbers=numbers,
        )
    return _unexplained_values(trip, common, wrong)


def _unexplained_values(trip: RoundTrip, common: list[str], wrong: list[str]) -> CheckResult:
    facts = {"count": len(wrong), "total": len(common)}
    worst = max(distance(trip.saved.parameters[n], trip.first.parameters[n]) for n in wrong)
    everything = len(wrong) == len(common)
    return verdict(
        Status.FAIL,
        "checkpoint.nothing_loaded" if everything else "checkpoint.partly_loaded",
        say(
            "none of the {total:tensor comes|tensors come} back: the loaded model is another one",
            **facts,
        )
        if everything
        else say("{count} of {total:tensor comes|tensors come} back with other values", **facts),
        measured=say("largest difference {worst}", worst=worst),
        expected=say("the values at the moment of saving, bit for bit"),
        where=say("{names}", names=some(wrong)),
        causes=(
            say("names do not match (a wrapper's prefix), and strict=False lets that pass")
            if everything
            else say("they are not saved, or are filled with something else after loading"),
        ),
        next_step=say("load with strict=True and print what is missing"),
        numbers={"names": wrong, **facts},
    )


# what the values became: (reason, cause, next step)
_CHANGES = {
    "rounded": (
        "checkpoint.precision_lost",
        say("the weights are saved or loaded in half precision"),
        say("save in the dtype that is trained, and convert for inference only"),
    ),
    "transposed": (
        "checkpoint.transposed",
        say("matrices are turned while loading; square ones raise no error"),
        say("compare one square matrix with its saved value before and after loading"),
    ),
    "replaced": (
        "checkpoint.mixed_up",
        say("names are matched by position or by shape instead of by name"),
        say("load by name: model.load_state_dict(state, strict=True)"),
    ),
}


def _judge_buffers(trip: RoundTrip) -> Iterator[CheckResult]:
    """Buffers are judged by their effect: a cache that is not persistent may differ."""
    saved, first = trip.saved.buffers, trip.first.buffers
    wrong = [n for n in saved if n not in first or not _equal(saved[n], first[n])]
    felt = not trip.logits_agree
    if wrong and (felt or any(name in trip.saved.persistent for name in wrong)):
        yield verdict(
            Status.FAIL if felt else Status.WARN,
            "checkpoint.buffers_differ",
            say(
                "{count} of {total:buffer does|buffers do} not come back, and {logits}",
                count=len(wrong),
                total=len(saved),
                logits=_logits_text(trip),
            ),
            measured=say("{name} differs", name=wrong[0]),
            expected=say("running statistics and tables as they were saved"),
            where=say("{names}", names=some(wrong)),
            causes=(
                say("only parameters are saved, or the buffer is registered persistent=False"),
            ),
            next_step=say("save model.state_dict(), which holds persistent buffers too"),
            numbers={"names": wrong},
        )


def _judge_ties(trip: RoundTrip) -> Iterator[CheckResult]:
    """Which names share a tensor."""
    saved, first = trip.saved, trip.first
    common = [name for name in saved.parameters if name in first.parameters]
    if len(common) == len(saved.parameters) and saved.ties != first.ties:
        broken = sorted(map(sorted, saved.ties - first.ties))
        yield verdict(
            Status.FAIL,
            "checkpoint.tie_broken" if broken else "checkpoint.tie_added",
            say(
                "{names} share one tensor before saving, and not after loading",
                names=" and ".join(broken[0]),
            )
            if broken
            else say("parameters share a tensor after loading that did not before saving"),
            measured=say("{came:tie|ties}", came=len(first.ties)),
            expected=say("{wanted:tie|ties}", wanted=len(saved.ties)),
            causes=(say("loading replaces the parameter object (assign=True, a new Parameter)"),),
            next_step=say("tie again after loading: head.weight = embedding.weight"),
            numbers={"before": len(saved.ties), "after": len(first.ties)},
        )


def _judge_types(trip: RoundTrip) -> Iterator[CheckResult]:
    """Dtypes and requires_grad, which a healthy loader may change on purpose."""
    saved, first = trip.saved, trip.first
    common = [name for name in saved.parameters if name in first.parameters]
    retyped = [n for n in common if saved.parameters[n].dtype != first.parameters[n].dtype]
    if retyped:
        name = retyped[0]
        yield verdict(
            Status.WARN,
            "checkpoint.dtype_changed",
            say(
                "{count:tensor comes|tensors come} back in another dtype, with equal values",
                count=len(retyped),
            ),
            measured=say("{name} is {came}", name=name, came=str(first.parameters[name].dtype)),
            expected=say("{wanted}", wanted=str(saved.parameters[name].dtype)),
            where=say("{names}", names=some(retyped)),
            next_step=say("build the model in the dtype of the file before loading"),
            numbers={"names": retyped},
        )
    unfrozen = [n for n in common if saved.trainable[n] != first.trainable[n]]
    if unfrozen:
        yield verdict(
            Status.WARN,
            "checkpoint.trainable_changed",
            say(
                "requires_grad of {count:parameter|parameters} is not what it was before saving",
                count=len(unfrozen),
            ),
            measured=say("{name}: {came}", name=unfrozen[0], came=first.trainable[unfrozen[0]]),
            expected=say("{wanted}", wanted=saved.trainable[unfrozen[0]]),
            where=say("{names}", names=some(unfrozen)),
            next_step=say("freeze again after loading, where training goes on"),
            numbers={"names": unfrozen},
        )


def _judge_logits(trip: RoundTrip) -> Iterator[CheckResult]:
    if not trip.logits_agree:
        yield verdict(
            Status.FAIL,
            "checkpoint.other_configuration",
            say(
                "every tensor comes back, and yet the logits differ by up to {worst}",
                worst=trip.logit_difference,
            ),
            measured=_logits_text(trip),
            expected=say("the same logits: same tensors, same tokens, eval mode"),
            causes=(
                say("a setting without a tensor is not saved: heads, a scale, a window, an eps"),
            ),
            next_step=say("save the configuration beside the weights and build the model from it"),
            numbers={"logit_difference": trip.logit_difference},
        )


def _raised(part: str, error: Exception) -> CheckResult:
    return verdict(
        Status.FAIL,
        "checkpoint.save_raises" if part == "save" else "checkpoint.load_raises",
        say(
            "{part} raises {kind}: {message}",
            part=part,
            kind=type(error).__name__,
            # the first line of load_state_dict's error names nothing yet
            message=" ".join(line.strip() for line in str(error).strip().split("\n")[:2])[:240],
        ),
        measured=say("no file name of {names} is accepted", names=", ".join(NAMES)),
        expected=say("a model that is saved can be loaded"),
        next_step=say("call save and load by hand and read the traceback from the bottom"),
        numbers={"exception": type(error).__name__},
    )


def _equal(saved: Tensor, loaded: Tensor | None) -> bool:
    """Whether values agree exactly; a wider dtype may hold the same values."""
    if loaded is None or saved.shape != loaded.shape:
        return False
    if saved.dtype == loaded.dtype:
        return same_bytes(saved, loaded)
    return same_bytes(saved.double(), loaded.double())


def _gradient_lost(before: Tensor | None, after: Tensor | None) -> bool:
    return before is not None and (after is None or not torch.equal(before, after))


def _logits_text(trip: RoundTrip) -> Text:
    if not trip.repeatable:
        return say("logits were not compared: the model does not repeat its own")
    if trip.logit_difference == 0:
        return say("the logits are equal bit for bit")
    return say("the logits differ by up to {worst}", worst=trip.logit_difference)
