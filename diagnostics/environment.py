"""Environment: this Python, this torch and its global switches can train this model.

Why it matters
    A switch that another cell or library left on changes every run without a word:
    gradients off, half precision by default, autocast on, a hook that replaces what a
    layer returns. It is ruled out first, because all later measurements stand on it.

How it is measured
    The switches are read as they were when `diagnose` was called. Weights and buffers
    are counted by device and type; where they are mixed, the model is run, because a
    mixture that runs is a design. With forward hooks on the model, its logits and
    gradients are compared with those of a copy without them; hooks that a fresh model,
    torch itself or the model's own methods bring along belong to the design. The state
    of the optimizer must lie where its parameters lie. Two seeded calls of the loader
    and of make_model must agree; of a loader that goes on through the data, or through a
    shuffled pass over it, two passes that start after the same seeding.

What it cannot see
    Switches that your program sets after this point. Hooks on tensors (copies lose
    them) and backward hooks that only a real training step fires. Kernels that differ
    between devices: compare with a run on the CPU. Whether two whole runs agree; here
    it is one call of each part. Of a loader that is bound to its data, whether a new
    pass follows the seed: then it is a warning that names both readings.

Break it
    python -m exercises.break_environment
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._hooks import Hook, Outcome, find_culprit, foreign_hooks, outcome
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._repeatable import Disagreement, compare_batches, compare_models
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._versions import environment_block, measure_versions

TORCH_MIN = (2, 4)  # the oldest release that the package installs with


def check_environment(model: nn.Module | None = None, **parts: Any) -> CheckResult:
    """Check the interpreter, torch's switches, and the model's devices, types and hooks.

    model: None: only what is global.    parts: other fields of Pipeline, such as make_optimizer.
    """
    return run(Probe(Pipeline(nn.Identity() if model is None else model, **parts)))


def run(probe: Probe) -> CheckResult:
    """Judge the switches as they were at the start, then the pipeline's parts."""
    warning: CheckResult | None = None
    judges = (_judge_switches, _judge_weights, _judge_hooks, _judge_optimizer, _judge_repeatable)
    with probe.entry.set_aside():
        for judge in judges:
            for result in judge(probe):
                if result.failed:
                    return result
                warning = result if warning is None else warning
    if warning is not None:
        return warning
    facts = measure_environment()
    return CheckResult(
        check="environment",
        status=Status.PASS,
        reason="environment.ok",
        claim=say(
            "Python {python} with torch {torch}: device {device} (CUDA: {cuda}, MPS: {mps}), "
            "gradients on, {dtype} by default; the model is on {place}",
            python=facts["python"],
            torch=facts["torch"],
            device=facts["device"],
            cuda="yes" if facts["cuda_available"] else "no",
            mps="yes" if facts["mps_available"] else "no",
            dtype=facts["default_dtype"],
            place=str(probe.device),
        ),
        numbers=facts,
    )


def measure_environment() -> dict[str, Any]:
    """Return versions, devices and switches; no paths, so that two machines can be compared."""
    cuda, mps = torch.cuda.is_available(), _mps_is_available()
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **measure_versions(),
        "system": platform.system(),
        "system_release": platform.release(),
        "machine": platform.machine(),
        "byte_order": sys.byteorder,
        "device": "cuda" if cuda else "mps" if mps else "cpu",
        "cuda_available": cuda,
        "cuda_version": torch.version.cuda,
        "cudnn_version": torch.backends.cudnn.version() if cuda else None,
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if cuda
        else [],
        "mps_available": mps,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "default_dtype": _short(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def render_environment() -> str:
    """Return the environment as a block to paste into a report of a bug."""
    return environment_block(measure_environment())


# ---- switches --------------------------------------------------------------------------------


def _judge_switches(probe: Probe) -> Iterator[CheckResult]:
    entry = probe.entry
    if entry.inference_mode:
        yield verdict(
            Status.FAIL,
            "environment.inference_mode",
            say("inference mode is on: nothing that is computed now can ever be trained"),
            measured=say("torch.is_inference_mode_enabled() is True"),
            expected=say("False"),
            causes=(say("the call stands inside torch.inference_mode()"),),
            next_step=say("end torch.inference_mode() before training or checking"),
        )
    if not entry.grad_enabled and not entry.inference_mode:
        yield verdict(
            Status.FAIL,
            "environment.grad_disabled",
            say("gradients are switched off: backward would find nothing to train"),
            measured=say("torch.is_grad_enabled() is False"),
            expected=say("True"),
            causes=(
                say("torch.set_grad_enabled(False) was called and never undone"),
                say("the call stands inside torch.no_grad()"),
            ),
            next_step=say("torch.set_grad_enabled(True)"),
        )
    yield from _judge_defaults(probe)
    yield from _judge_modes(probe)
    yield from _judge_version()


def _judge_defaults(probe: Probe) -> Iterator[CheckResult]:
    """Judge what new tensors are made as, and where."""
    entry = probe.entry
    if entry.default_dtype is not torch.float32:
        result = verdict(
            Status.FAIL,
            "environment.default_dtype",
            say("new weights are made as {dtype}", dtype=_short(entry.default_dtype)),
            measured=say("torch.get_default_dtype() is {dtype}", dtype=str(entry.default_dtype)),
            expected=say("float32"),
            causes=(say("torch.set_default_dtype was called and never undone"),),
            next_step=say("torch.set_default_dtype(torch.float32)"),
        )
        # 16-bit floats reach 65,504 only, and Adam's 1e-8 is 0 in them; the others train
        yield result if entry.default_dtype is torch.float16 else _as_warning(result)
    if entry.default_device not in ("cpu", probe.device.type):
        yield _warning(
            "environment.default_device",
            say(
                "new tensors are made on {device}, and the model is on {place}",
                device=entry.default_device,
                place=str(probe.device),
            ),
            measured=say("torch.get_default_device() is {device}", device=entry.default_device),
            expected=say("the device of the model, or the CPU"),
            next_step=say('torch.set_default_device("cpu")'),
        )


def _judge_modes(probe: Probe) -> Iterator[CheckResult]:
    """Judge what was switched on around everything."""
    entry = probe.entry
    if entry.autocast:
        yield _warning(
            "environment.autocast_on",
            say("autocast is on for {types} around everything", types=", ".join(entry.autocast)),
            measured=say("torch.is_autocast_enabled is True"),
            expected=say("autocast around the forward pass only"),
            next_step=say("open torch.autocast(...) around model and loss, and close it there"),
        )
    if entry.anomaly_mode:
        yield _warning(
            "environment.anomaly_mode",
            say("anomaly detection is on: a small model trains about three times as slowly"),
            measured=say("torch.is_anomaly_enabled() is True"),
            expected=say("False, except while looking for the origin of a NaN"),
            next_step=say("torch.autograd.set_detect_anomaly(False)"),
        )


def _judge_version() -> Iterator[CheckResult]:
    parts = torch.__version__.split(".")[:2]
    version = tuple(int(part) for part in parts if part.isdigit())
    if version < TORCH_MIN:
        yield _warning(
            "environment.old_torch",
            say("torch {version} is older than what is tested here", version=torch.__version__),
            measured=say("{version}", version=torch.__version__),
            expected=say("{major}.{minor} or later", major=TORCH_MIN[0], minor=TORCH_MIN[1]),
            next_step=say("pip install --upgrade torch"),
        )


# ---- weights ---------------------------------------------------------------------------------


def _judge_weights(probe: Probe) -> Iterator[CheckResult]:
    model = probe.pipeline.model
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    devices = Counter(str(tensor.device) for tensor in tensors.values())
    if "meta" in devices:
        yield _weights_failure("environment.meta_weights", tensors, lambda t: t.is_meta, _META)
        return
    frozen = {name: p for name, p in model.named_parameters() if p.is_inference()}
    if frozen:
        yield _weights_failure("environment.inference_weights", frozen, lambda t: True, _INFERENCE)
        return
    floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
    types = Counter(_short(tensor.dtype) for tensor in floats.values())
    if len(devices) > 1 or len(types) > 1:
        yield from _judge_mixture(probe, tensors, devices, types)
    parameters = dict(model.named_parameters())
    halves = {name: p for name, p in parameters.items() if p.dtype is torch.float16}
    if any(p.requires_grad for p in halves.values()):
        yield _as_warning(
            _weights_failure("environment.float16_weights", halves, lambda t: True, _FLOAT16)
        )


def _judge_mixture(
    probe: Probe, tensors: dict[str, Tensor], devices: Counter[str], types: Counter[str]
) -> Iterator[CheckResult]:
    """Run the model: a mixture that runs is a design, one that does not is a fault."""
    try:
        with probe.model() as copied:
            probe.logits(copied, probe.tokens(2, min(4, probe.probe_length)))
    except (RuntimeError, TypeError, ValueError) as error:
        message = str(error).split("\n")[0]
    except MissingPartError:
        return
    else:
        return
    by_device = len(devices) > 1
    if not any(word in message for word in ("device", "dtype", "type")):
        return  # it stops for another reason, which other checks will name
    counts = devices if by_device else types
    rare = min(counts, key=lambda kind: counts[kind])

    def is_rare(tensor: Tensor) -> bool:
        return rare == (str(tensor.device) if by_device else _short(tensor.dtype))

    first = next(name for name, tensor in tensors.items() if is_rare(tensor))
    yield verdict(
        Status.FAIL,
        "environment.mixed_devices" if by_device else "environment.mixed_dtypes",
        say(
            "the model does not run, because {first} is {rare} among weights that are not",
            first=first,
            rare=rare,
        ),
        measured=say("{counts}", counts=", ".join(f"{n} on {k}" for k, n in counts.items()))
        if by_device
        else say("{counts}", counts=", ".join(f"{n} {k}" for k, n in counts.items())),
        expected=say("all alike, or a forward pass that converts"),
        where=say("{message}", message=message[:160]),
        causes=(
            say("a tensor is made in __init__ and not registered, so that .to() leaves it behind"),
        )
        if by_device
        else (say("a part was converted or loaded by itself, after the model was made"),),
        next_step=say("model.to(device)") if by_device else say("model.float()"),
        numbers={"counts": dict(counts), "first": first},
    )


_META = (
    say("on the meta device: they have a shape and no values"),
    say("the model was built on the meta device, and not every weight was loaded"),
    say("list the keys that load_state_dict reports as missing"),
)
_INFERENCE = (
    say("made in inference mode, which rules out any gradient"),
    say("the model was built or loaded inside torch.inference_mode()"),
    say("build and load the model outside torch.inference_mode()"),
)
_FLOAT16 = (
    say("trainable in float16, where Adam's 1e-8 is 0 and small updates round to nothing"),
    say("the model was converted with .half()"),
    say("keep weights in float32, and use torch.autocast for speed"),
)


def _weights_failure(
    reason: str,
    tensors: Mapping[str, Tensor],
    chosen: Callable[[Tensor], bool],
    words: tuple[Text, Text, Text],
) -> CheckResult:
    names = [name for name, tensor in tensors.items() if chosen(tensor)]
    told, cause, remedy = words
    return verdict(
        Status.FAIL,
        reason,
        say(
            "{count} of {total:weight is|weights are} {told}",
            count=len(names),
            total=len(tensors),
            told=told,
        ),
        measured=say("{count} of {total}", count=len(names), total=len(tensors)),
        expected=say("0: weights with values, in a type that trains"),
        where=say("first is {name}", name=names[0]),
        causes=(cause,),
        next_step=remedy,
        numbers={"count": len(names), "first": names[0]},
    )


# ---- hooks -----------------------------------------------------------------------------------


def _judge_hooks(probe: Probe) -> Iterator[CheckResult]:
    for table in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if getattr(torch.nn.modules.module, table, {}):
            yield _warning(
                "environment.global_hooks",
                say("a hook on every module of the program is registered"),
                measured=say("torch.nn.modules.module.{table} is not empty", table=table),
                expected=say("no hook, unless a tool is at work"),
                next_step=say("call .remove() on the handle that registering it gave"),
            )
    foreign = foreign_hooks(probe)
    if not foreign:
        return
    with_hooks = outcome(probe)
    without = outcome(probe, {hook.place for hook in foreign})
    if not with_hooks.same(without):
        yield _hook_acts(find_culprit(probe, foreign, without), with_hooks, without)
    counts = Counter((hook.path, hook.table, hook.code) for hook in foreign)
    (path, table, _), most = counts.most_common(1)[0]
    if most > 1:
        yield _warning(
            "environment.hooks_piled_up",
            say("{path} carries the same hook {most} times", path=path or "the model", most=most),
            measured=say("{most} equal hooks in {table}", most=most, table=table),
            expected=say("each hook once"),
            where=say("{count} hooks on the whole model", count=len(foreign)),
            causes=(say("hooks are registered in a loop and never removed"),),
            next_step=say("call .remove() on the handle in a finally block"),
            numbers={"hooks": len(foreign), "most": most},
        )


def _hook_acts(hook: Hook, with_hooks: Outcome, without: Outcome) -> CheckResult:
    changed = with_hooks.changed_gradients(without)
    moved = float((with_hooks.logits.double() - without.logits.double()).abs().max())
    by_logits = not same_bytes(with_hooks.logits, without.logits)
    return verdict(
        Status.FAIL,
        "environment.hook_changes_output",
        say(
            "a hook on {path} ({name}) changes the {what} of the model",
            path=hook.path or "the model",
            name=hook.name,
            what="logits" if by_logits else "gradients",
        ),
        measured=say("a logit moves by {moved}", moved=moved)
        if by_logits
        else say(
            "{count:gradient changes|gradients change}, first {first}",
            count=len(changed),
            first=changed[0],
        ),
        expected=say("the same values with and without hooks, bit for bit"),
        where=say("{table} of {path}", table=hook.table, path=hook.path or "the model"),
        causes=(
            say("the hook returns a value, and torch takes it in the place of the output"),
            say("the hook writes into the tensors that it was given"),
        ),
        next_step=say("let an observing hook return None, and remove it through its handle"),
        numbers={
            "logits_moved": moved,
            "gradients_changed": len(changed),
            "module": hook.path,
        },
    )


# ---- optimizer -------------------------------------------------------------------------------


def _judge_optimizer(probe: Probe) -> Iterator[CheckResult]:
    """The state must lie where its parameter lies; a fresh optimizer has none."""
    make = probe.pipeline.make_optimizer
    if make is None:
        return
    with probe.model() as model, probe.seeded("make_optimizer"):
        names = {id(p): name for name, p in model.named_parameters()}
        try:
            optimizer = make(model)
        except Exception:  # any: a maker that refuses this model is for `optimizer` to report
            return
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    where = names.get(id(parameter), "a parameter")
                    yield from _judge_state(where, key, value, parameter)


def _judge_state(name: str, key: str, state: Tensor, parameter: Tensor) -> Iterator[CheckResult]:
    moved = state.device != parameter.device
    # a wider state than its parameter is good practice; 8-bit states are a method of their own
    narrow = state.is_floating_point() and state.dtype.itemsize < parameter.dtype.itemsize
    if not moved and not narrow:
        return
    came = str(state.device) if moved else _short(state.dtype)
    wanted = str(parameter.device) if moved else _short(parameter.dtype)
    result = verdict(
        Status.FAIL,
        "environment.optimizer_state_device" if moved else "environment.optimizer_state_dtype",
        say(
            "the optimizer keeps {key} of {name} as {came}, and the parameter is {wanted}",
            key=key,
            name=name,
            came=came,
            wanted=wanted,
        ),
        measured=say("{came}", came=came),
        expected=say("{wanted}", wanted=wanted),
        causes=(say("the state was loaded from a checkpoint, and not moved after the model was"),),
        next_step=say(
            "move each tensor of optimizer.state to its parameter's device and type after loading"
        ),
        numbers={"parameter": name, "state": key},
    )
    # bfloat16 states save memory on purpose; float16 cannot hold squares of small gradients
    deliberate = not moved and state.dtype is not torch.float16
    yield _as_warning(result) if deliberate else result


# ---- reproducibility -------------------------------------------------------------------------


def _judge_repeatable(probe: Probe) -> Iterator[CheckResult]:
    for compare in (compare_models, compare_batches):
        found = compare(probe)
        if found is None:
            continue
        yield _warning(
            "environment.not_reproducible",
            say("two calls of {part} after the same seeding give other results", part=found.part),
            measured=say(
                "{count} of {total} differ; the first is {first}",
                first=found.first,
                count=found.count,
                total=found.total,
            ),
            expected=say("0 of {total}, bit for bit", total=found.total),
            causes=_causes(found),
            next_step=say(
                "nothing to mend if {part} goes on through its pass; then seed before it starts"
                if found.in_pass
                else "seed the generator of {part} where the run starts",
                part=found.part,
            ),
            numbers={"part": found.part, "count": found.count},
        )


def _causes(found: Disagreement) -> tuple[Text, ...]:
    told = [
        "{part} draws from a generator of its own, which goes on",
        "{part} takes its seed from the clock or the system",
    ]
    if found.in_pass:
        told = ["{part} goes on through a shuffled pass, where the last call ended", *told]
    return tuple(say(cause, part=found.part) for cause in told)


# ---- small things ----------------------------------------------------------------------------


def _mps_is_available() -> bool:
    backend = getattr(torch.backends, "mps", None)  # older builds come without it
    return bool(backend is not None and backend.is_available())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _warning(reason: str, claim: Text, **fields: Any) -> CheckResult:
    return _as_warning(verdict(Status.FAIL, reason, claim, **fields))


def _as_warning(result: CheckResult) -> CheckResult:
    return dataclasses.replace(result, status=Status.WARN)
