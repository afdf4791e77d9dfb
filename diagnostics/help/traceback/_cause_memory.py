"""Causes of too little memory: a budget of weights, gradients, optimizer states, activations."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted

_UNITS = {
    "": 1,
    "bytes": 1,
    "B": 1,
    "KB": 2**10,
    "MB": 2**20,
    "GB": 2**30,
    "TB": 2**40,
    "PB": 2**50,
}
_SIZE = r"([\d.]{1,20}) ?(bytes|B|[KMGTP]i?B)"
_TRIED = re.compile(rf"[Tt]ried to allocate {_SIZE}|Unable to allocate {_SIZE}")
_ABSURD_BYTES = 2**40  # 1 TiB at once: no laptop's or student's budget, but a wrong size
_ORDER = (
    "measure what needs the memory",
    "a smaller batch, with accumulation steps that keep the effective batch",
    "a shorter block",
    "bfloat16",
    "activation checkpointing",
    "then fewer weights or an optimizer with less state",
)
_ORDER_IS = "what helps, in this order"
_MEASURE = "python -m minigpt.memory --measure"


def _out_of_memory(clues: Clues) -> Explanation | None:
    said = re.search(
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory"
        r"|DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
        r"|Unable to allocate [\d.]+ \wi?B for an array",
        clues.message,
    )
    if said is None:
        return None
    tried = _size(_TRIED, clues.message)
    evidence = quoted(_sentence(clues.message, said.start()))
    if tried is not None and tried > _ABSURD_BYTES:
        return Explanation(
            name="memory.wrong_size",
            cause=say(
                "{size} were asked for at once, which is no budget but a size that was "
                "computed wrongly",
                size=_show(tried),
            ),
            evidence=evidence,
            next_step=say("print the sizes that the line above is called with"),
        )
    fragmented = _fragmented(clues.message, tried)
    others = _others(clues.message)
    cause = _budget(clues.message, tried) + _when(clues)
    if fragmented:
        cause = fragmented
        step: str = say(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the same command"
        )
    elif others:
        cause, step = others, say("nvidia-smi")
    else:
        step = measure(clues)
    return Explanation(
        name="memory.fragmented" if fragmented else "memory.others" if others else "memory.budget",
        cause=cause,
        evidence=evidence,
        others=() if fragmented or others else tuple(say(part) for part in _ORDER),
        others_are=say(_ORDER_IS),
        next_step=step,
    )


def measure(clues: Clues) -> str:
    """Return the step that says what needs the memory; ours measures a Mini-GPT only."""
    if clues.is_course:
        return say(_MEASURE)
    if "CUDA" in clues.message:
        return say("print(torch.cuda.memory_summary()) on the line before the one above")
    return say("halve the batch size, and double the accumulation steps")


def _budget(message: str, tried: int | None) -> str:
    budget = say(
        "weights + gradients + optimizer states + activations are more than the device has"
    )
    if tried is None:
        return budget
    capacity = _size(
        re.compile(rf"total capac\w+ of {_SIZE}|{_SIZE} total capacity|max allowed: {_SIZE}"),
        message,
    )
    free = _size(re.compile(rf"of which {_SIZE} is free|{_SIZE} free"), message)
    if capacity is None and not re.search(r"CUDA|HIP|XPU|MPS", message):
        return say("{tried} were asked for at once, more than the machine gave", tried=_show(tried))
    if capacity is None:
        return say("{budget}: {tried} more were asked for", budget=budget, tried=_show(tried))
    if tried > capacity:
        return say(
            "one tensor of {tried} is larger than the whole device ({capacity})",
            tried=_show(tried),
            capacity=_show(capacity),
        )
    if free is None:
        return say(
            "{budget}: {tried} more were asked for, {capacity} are there in all",
            budget=budget,
            tried=_show(tried),
            capacity=_show(capacity),
        )
    return say(
        "{budget}: {tried} more were asked for, and {free} of {capacity} were free",
        budget=budget,
        tried=_show(tried),
        free=_show(free),
        capacity=_show(capacity),
    )


def _when(clues: Clues) -> str:
    """Return what the place says about the part that did not fit; nothing where it says nothing."""
    files = [frame.file.replace("\\", "/") for frame in clues.trace.frames]
    if any("/torch/optim/" in file for file in files):
        return say("; it came in the optimizer's step, whose first call makes its states")
    if clues.has_call("backward"):
        return say(
            "; it came in the backward pass, where gradients are made beside the activations"
        )
    if clues.has_call("load_state_dict", "_load", "torch_load", "load_file"):
        return say("; it came while weights were loaded, when a model may be there twice")
    return ""


def _fragmented(message: str, tried: int | None) -> str | None:
    """More is reserved and unused than was asked for: the pieces are too small, not too few."""
    unused = _size(re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated"), message)
    if unused is None or tried is None or unused <= 2 * tried:
        return None
    return say(
        "torch holds {unused} that it does not use, in pieces smaller than the "
        "{tried} that were asked for: fragmentation",
        unused=_show(unused),
        tried=_show(tried),
    )


def _others(message: str) -> str | None:
    """Most of the device belongs to other processes, as the numbers of the message say."""
    capacity = _size(re.compile(rf"total capac\w+ of {_SIZE}"), message)
    free = _size(re.compile(rf"of which {_SIZE} is free"), message)
    own = _size(re.compile(rf"this process has {_SIZE} memory in use"), message)
    if capacity is None or free is None or own is None:
        return None
    elsewhere = capacity - free - own
    if elsewhere < 0.5 * capacity:
        return None
    return say(
        "other processes hold about {elsewhere} of the device's {capacity}, this one {own}",
        elsewhere=_show(elsewhere),
        capacity=_show(capacity),
        own=_show(own),
    )


def _size(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    try:
        return int(float(number) * _UNITS[unit.replace("i", "")])
    except (ValueError, KeyError):
        return None


def _show(size_bytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024  # type: ignore[assignment]
    return f"{size_bytes:.4g} PiB"


def _sentence(message: str, start: int) -> str:
    return message[start:].split("\n")[0].partition(" If reserved")[0]


def _killed(clues: Clues) -> Explanation | None:
    """Linux ends the process that needs the most memory, and says no more than Killed."""
    if clues.kind != "Killed" and "oom_kill event" not in clues.message:
        return None
    return Explanation(
        name="memory.killed",
        cause=say(
            "the process was ended from outside; on Linux that is most often the "
            "kernel, when the machine's memory is full"
        ),
        evidence=quoted(clues.message),
        others=tuple(say(part) for part in _ORDER),
        others_are=say(_ORDER_IS),
        next_step=measure(clues),
    )


def _memory_error(clues: Clues) -> Explanation | None:
    if clues.kind != "MemoryError":
        return None
    return Explanation(
        name="memory.python",
        cause=say("the line asked for more memory than the system gives this process"),
        evidence=quoted(clues.kind),
        next_step=say("print the sizes that the line above works with, on the line before it"),
    )


RULES: tuple[Rule, ...] = (_out_of_memory, _memory_error, _killed)
