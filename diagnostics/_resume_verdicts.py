"""What a resumed run says of its checkpoint: each thing that was lost or changed, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from diagnostics._guard import same_bytes
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._resume_trial import RATE_FACTOR, STEPS_BEFORE, Trip
from diagnostics._state import fitting_change, some
from diagnostics._text import Text, say

NOISE = {"cpu": 0.0}  # of the largest weight; the same sums in the same order on the same machine
NOISE_ELSEWHERE = 1e-5  # atomic additions on a GPU come in any order


def judge_saving(trip: Trip) -> Iterator[CheckResult]:
    """Saving reads; it leaves the live run alone."""
    weights = _different(trip.saved.parameters, trip.after_saving.parameters)
    moments = _different(trip.saved_optimizer.tensors, trip.after_saving_optimizer.tensors)
    modes = trip.saved.training != trip.after_saving.training
    moved = trip.saved.device != trip.after_saving.device
    if weights or moments or modes or moved:
        what = (
            say("{n:weight|weights}", n=len(weights))
            if weights
            else say("{n:optimizer tensor|optimizer tensors}", n=len(moments))
            if moments
            else "the device"
            if moved
            else "the mode"
        )
        yield verdict(
            Status.FAIL,
            "resume.save_changes",
            say("saving changes the run that is going on: {what}", what=what),
            measured=say("{name} differs after save_state", name=(weights or moments or [what])[0]),
            expected=say("model and optimizer as before"),
            causes=(say("eval(), half() or cpu() is called on the live model to save it"),),
            next_step=say("save tensors through .detach().cpu(), and leave the model as it is"),
        )


def judge_model(trip: Trip) -> Iterator[CheckResult]:
    """The loaded model is the saved one: values, types, ties and what is trainable."""
    saved, loaded = trip.saved, trip.loaded
    wrong = _different(saved.parameters, loaded.parameters)
    if wrong:
        name = wrong[0]
        is_live = not _different(trip.continued.parameters, loaded.parameters)
        change = None
        if name in loaded.parameters:
            change = fitting_change(
                saved.parameters[name], loaded.parameters[name], saved.parameters
            )
        causes: tuple[Text, ...] = (
            say("the file holds references: the run that went on changed them"),
        )
        if not is_live:
            causes = (
                (say("{name} comes back {change}", name=name, change=change),) if change else ()
            )
        yield verdict(
            Status.FAIL,
            "resume.weights",
            say(
                "{n} of {total:weight comes|weights come} back changed",
                n=len(wrong),
                total=len(saved.parameters),
            ),
            measured=say(
                "{name} differs by {d}",
                name=name,
                d=_distance(saved.parameters[name], loaded.parameters.get(name)),
            ),
            expected=say("equal bit for bit"),
            where=say("{names}", names=some(wrong)),
            causes=causes,
            next_step=say("write copies at the moment of saving; see `checkpoint`"),
            numbers={"weights": wrong},
        )
    yield from _judge_buffers(trip)
    yield from _judge_structure(trip)


def _judge_buffers(trip: Trip) -> Iterator[CheckResult]:
    """What training moves beside the weights; a table that is made anew is left alone."""
    start, saved, loaded = trip.start.buffers, trip.saved.buffers, trip.loaded.buffers
    trained = {n: saved[n] for n in _different(saved, start) if n in trip.saved.persistent}
    wrong = _different(trained, loaded)
    if wrong:
        name = wrong[0]
        restarts = name in start and name in loaded and same_bytes(start[name], loaded[name])
        yield verdict(
            Status.FAIL,
            "resume.buffers",
            say(
                "{n} of {total:buffer that training moves comes|buffers that training moves come} "
                "back changed",
                n=len(wrong),
                total=len(trained),
            ),
            measured=say(
                "{name} differs by {d}", name=name, d=_distance(saved[name], loaded.get(name))
            ),
            expected=say("equal bit for bit"),
            where=say("{names}", names=some(wrong)),
            causes=(
                (say("they are not saved, and start again as in a new model"),)
                if restarts
                else (say("they are not saved, or not found by their name"),)
            ),
            next_step=say("save the whole model.state_dict(), and load it with strict=True"),
            numbers={"buffers": wrong},
        )


def _judge_structure(trip: Trip) -> Iterator[CheckResult]:
    """What is trainable, and which weights are one."""
    saved, loaded = trip.saved, trip.loaded
    frozen = [n for n, was in saved.trainable.items() if loaded.trainable.get(n, was) != was]
    if frozen:
        yield verdict(
            Status.FAIL,
            "resume.frozen",
            say(
                "{n:parameter changes|parameters change} between frozen and trainable",
                n=len(frozen),
            ),
            measured=say(
                "{name}.requires_grad is {now}", name=frozen[0], now=loaded.trainable[frozen[0]]
            ),
            expected=say("{was}, as when it was saved", was=saved.trainable[frozen[0]]),
            where=say("{names}", names=some(frozen)),
            causes=(say("a state_dict does not hold requires_grad"),),
            next_step=say("freeze the same parameters after loading, before the optimizer"),
        )
    if saved.ties - loaded.ties:
        names = min(sorted(group) for group in saved.ties - loaded.ties)  # of several the first
        yield verdict(
            Status.FAIL,
            "resume.untied",
            say("weights that were one tensor come back as two"),
            measured=say("{names} do not share storage", names=" and ".join(names)),
            expected=say("one parameter, trained as one"),
            causes=(say("load_state_dict(assign=True) replaces each of them"),),
            next_step=say("tie them again after loading: model.head.weight = model.wte.weight"),
        )


def judge_optimizer(probe: Probe, trip: Trip) -> Iterator[CheckResult]:
    """The loaded optimizer steps the loaded model, with the saved moments and settings."""
    saved, loaded = trip.saved_optimizer, trip.loaded_optimizer
    if loaded.foreign or saved.covered - loaded.covered:
        lost = sorted(saved.covered - loaded.covered)
        yield verdict(
            Status.FAIL,
            "resume.optimizer_elsewhere",
            say("the loaded optimizer does not step the loaded model"),
            measured=say(
                "{n} of its parameters are not the model's; {m} of the model's are not in it",
                n=loaded.foreign,
                m=len(lost),
            ),
            expected=say(
                "the {n:parameter|parameters} that were trained before", n=len(saved.covered)
            ),
            where=say("{names}", names=some(lost)) if lost else "",
            causes=(
                say("the optimizer was made before the model was replaced or moved"),
                say("the optimizer of the old model is returned with the new one"),
            ),
            next_step=say("load the model, then optimizer = make_optimizer(model), then its state"),
            numbers={"foreign": loaded.foreign, "lost": lost},
        )
        return
    if saved.kind != loaded.kind:
        yield verdict(
            Status.FAIL,
            "resume.optimizer_class",
            say("{was} is saved and {now} comes back", was=saved.kind, now=loaded.kind),
            measured=say("{now}", now=loaded.kind),
            expected=say("{was}", was=saved.kind),
            next_step=say("make the optimizer of the same class before loading its state"),
        )
        return
    yield from _judge_moments(trip)
    yield from _judge_settings(probe, trip)


def _judge_moments(trip: Trip) -> Iterator[CheckResult]:
    saved, loaded = trip.saved_optimizer.tensors, trip.loaded_optimizer.tensors
    wrong = _different(saved, loaded)
    if not wrong:
        return
    missing = [name for name in wrong if name not in loaded]
    reason = "resume.optimizer_state"
    causes: tuple[Text, ...] = ()
    if len(missing) == len(saved):
        reason = "resume.optimizer_state_lost"
        causes = (say("optimizer.state_dict() is not written, or not loaded"),)
    elif not _different(trip.continued_optimizer.tensors, loaded):
        causes = (say("the file holds references: the run that went on changed them"),)
    elif any(_is_another(saved, loaded, name) for name in wrong):
        reason = "resume.moments_swapped"
        causes = (say("parameters are grouped or ordered otherwise than when they were saved"),)
    yield verdict(
        Status.FAIL,
        reason,
        say("the optimizer's moments are lost: it starts like a new one")
        if reason == "resume.optimizer_state_lost"
        else say(
            "{n} of {total:optimizer tensor comes|optimizer tensors come} back changed",
            n=len(wrong),
            total=len(saved),
        ),
        measured=say("{name} is missing", name=wrong[0])
        if wrong[0] in missing
        else say(
            "{name} differs by {d}", name=wrong[0], d=_distance(saved[wrong[0]], loaded[wrong[0]])
        ),
        expected=say("all {total:tensor|tensors}, equal bit for bit", total=len(saved)),
        where=say("{names}", names=some(wrong)),
        causes=causes,
        next_step=say("write optimizer.state_dict() and give it to load_state_dict"),
        numbers={"missing": len(missing), "changed": len(wrong) - len(missing)},
    )


def _judge_settings(probe: Probe, trip: Trip) -> Iterator[CheckResult]:
    """Learning rates and the other settings of each group."""
    saved, loaded = trip.saved_optimizer.settings, trip.loaded_optimizer.settings
    for number, (was, now) in enumerate(zip(saved, loaded, strict=False)):
        changed = [key for key in was if key in now and now[key] != was[key]]
        if not changed:
            continue
        key = "lr" if "lr" in changed else changed[0]
        is_rate = key == "lr"
        ratio = now[key] / was[key] if is_rate and was[key] else float("nan")
        # a loop that sets the rate from a schedule at every step does not need the saved one
        scheduled = is_rate and probe.pipeline.learning_rate is not None
        yield verdict(
            Status.WARN if scheduled else Status.FAIL,
            "resume.learning_rate" if is_rate else "resume.settings",
            say("the learning rate comes back as {now}, saved as {was}", now=now[key], was=was[key])
            if is_rate
            else say(
                "{key} comes back as {now}, saved as {was}",
                key=key,
                now=str(now[key]),
                was=str(was[key]),
            ),
            measured=say("{ratio} times the saved one", ratio=ratio)
            if is_rate
            else say("{now}", now=str(now[key])),
            expected=say("{was}", was=str(was[key])),
            where=say("group {number} of {total}", number=number, total=len(saved)),
            causes=(_cause_of_rate(probe, was, now),) if is_rate else (),
            next_step=say("load the optimizer's state last, and set the rate from the step"),
            numbers={"saved": str(was[key]), "loaded": str(now[key])},
        )
        return


def _cause_of_rate(probe: Probe, was: Mapping[str, Any], now: Mapping[str, Any]) -> Text:
    """Say how a rate changed: to the first one, by a factor a second time, or one of the two."""
    again = say("a factor of the schedule is applied to a rate that holds it already")
    restarts = say("the rate starts again at its first value: the schedule restarts")
    base = was.get("initial_lr")  # where torch's schedulers keep the rate without any factor
    if base and math.isclose(now["lr"] * base, was["lr"] ** 2, rel_tol=1e-6):
        return again
    first = (was["lr"] / RATE_FACTOR, _first_rate(probe))
    if any(math.isclose(now["lr"], rate, rel_tol=1e-6) for rate in first):
        return restarts
    return say("the schedule starts again, or a factor of it is applied a second time")


def _first_rate(probe: Probe) -> float:
    """Return the rate that the pipeline's schedule has for step 0; NaN without a schedule."""
    if probe.pipeline.learning_rate is None:
        return math.nan
    with probe.seeded("schedule"):
        try:
            return float(probe.pipeline.learning_rate(0))
        except Exception:  # any: the schedule itself may raise; `schedule` says where
            return math.nan


def judge_step(trip: Trip) -> Iterator[CheckResult]:
    """The counter goes on where it stopped."""
    step = trip.loaded_step
    if step == STEPS_BEFORE and not isinstance(step, bool):
        return
    off = step - STEPS_BEFORE if isinstance(step, int) else None
    cause = {
        -1: "the step is saved before it is counted: one step is made twice",
        1: "the step is counted once more on loading: one step is left out",
        -STEPS_BEFORE: "the step is not saved, or starts at 0 again",
    }.get(off if off is not None else 99)
    yield verdict(
        Status.FAIL,
        "resume.step",
        say(
            "the run was saved after step {was} and goes on from {now}",
            was=STEPS_BEFORE,
            now=str(step),
        ),
        measured=say("{now}", now=str(step)),
        expected=say("{was}", was=STEPS_BEFORE),
        causes=(say(cause),) if cause else (),
        next_step=say("save the number of steps that were made, and go on from it"),
        numbers={"step": str(step)},
    )


def judge_future(trip: Trip) -> Iterator[CheckResult]:
    """Both runs arrive at the same weights."""
    wrong = _different(trip.continued.parameters, trip.resumed.parameters)
    noise = NOISE.get(trip.saved.device.split(":")[0], NOISE_ELSEWHERE)
    apart = [
        name
        for name in wrong
        if not _distance(trip.continued.parameters[name], trip.resumed.parameters.get(name))
        <= noise * max(1.0, float(trip.continued.parameters[name].abs().max()))
    ]
    if apart:
        name = apart[0]
        causes: tuple[Text, ...] = ()
        if trip.stays_in_eval:
            causes = (say("the loaded model stays in eval mode: its dropout is off"),)
        elif _different(trip.saved.buffers, trip.loaded.buffers):
            causes = (say("buffers of the model come back changed"),)
        yield verdict(
            Status.FAIL,
            "resume.diverges",
            say("the resumed run leaves the path of the run that never stopped"),
            measured=say(
                "{name} differs by {d} after {n:step|steps}",
                name=name,
                n=STEPS_BEFORE,
                d=_distance(trip.continued.parameters[name], trip.resumed.parameters.get(name)),
            ),
            expected=say("equal weights: batches and random state were the same"),
            where=say(
                "{n} of {total:weight|weights}; losses {a} and {b}",
                n=len(apart),
                total=len(trip.continued.parameters),
                a=_listed(trip.losses[0]),
                b=_listed(trip.losses[1]),
            ),
            causes=causes,
            next_step=say("call model.train() after loading")
            if trip.stays_in_eval
            else say("look for state that neither model nor optimizer holds"),
            numbers={"apart": apart},
        )


def judge_chance(trip: Trip) -> Iterator[CheckResult]:
    """The random state comes back, where steps draw from it."""
    if trip.draws_random and not trip.random_kept:
        yield verdict(
            Status.WARN,
            "resume.random_state",
            say("the random state is not restored: dropout takes another course after loading"),
            measured=say("torch's random state differs from that at saving"),
            expected=say("equal, where a run must repeat itself exactly"),
            causes=(say("only weights and optimizer are saved"),),
            next_step=say("save torch.get_rng_state(), and set it after loading"),
        )


def _different(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    return [name for name, value in a.items() if name not in b or not same_bytes(value, b[name])]


def _distance(a: Tensor, b: Tensor | None) -> float:
    if b is None or a.shape != b.shape:
        return float("inf")
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def _is_another(saved: dict[str, Tensor], loaded: dict[str, Tensor], name: str) -> bool:
    """Whether a loaded tensor with more than one value is the saved one of another parameter."""
    found = loaded.get(name)
    if found is None or found.numel() < 2:
        return False
    return any(other != name and same_bytes(value, found) for other, value in saved.items())


def _listed(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
