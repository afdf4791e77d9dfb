"""What `python -m minigpt.memory` prints: what is kept, when the peak comes, what to turn."""

from __future__ import annotations

import textwrap

from minigpt._memory_advice import describe_change, find_fitting, find_largest_batch, list_knobs
from minigpt._memory_budget import OVERHEAD_BYTES, MemoryBudget
from minigpt._memory_machine import UNITS, format_bytes
from minigpt._memory_measure import MeasuredMemory

WIDTH = 80
LABEL = 12
PHASES = {  # how the moments of a prediction go with the phases of a measurement
    "forward": ("forward ends", "forward", "whole block read"),
    "backward": (
        "loss, backward",
        "head, backward",
        "last block, backward",
        "first block, backward",
        "backward ends",
    ),
    "update": ("optimizer step",),
}
OVERHEAD_WORDS = {
    "cpu": "Python and torch themselves",
    "cuda": "the CUDA context and its libraries",
    "mps": "Python and torch themselves",
}


def print_header(budget: MemoryBudget) -> None:
    """Say what the figures are about; the effective batch is always among it."""
    sizes, work = budget.sizes, budget.workload
    _say("device", f"{work.device}, {work.dtype}, {work.mode}")
    _say(
        "model",
        f"block {sizes.block_size}, dim {sizes.embedding_dim}, {sizes.num_heads} heads, "
        f"{sizes.num_layers} layers, vocabulary {sizes.vocab_size:,}, dropout "
        f"{sizes.dropout:g}: {budget.parameters:,} parameters",
    )
    if work.mode != "train":
        _say("batch", f"B = {_count(work.batch_size, 'row')} of {sizes.block_size} tokens")
        print()
        return
    parts = [_count(work.batch_size, "row"), _count(work.processes, "process", "processes")]
    parts.append(_count(work.accumulation_steps, "accumulation step"))
    rows, tokens = work.effective_batch, work.effective_batch * sizes.block_size
    _say("batch", f"{' x '.join(parts)}: effective batch {rows:,}, {tokens:,} tokens")
    print()


def print_kept(budget: MemoryBudget) -> None:
    """Print what is kept, by kind, with its formula in words, and the rows of the activations."""
    kinds = [row for row in budget.rows if row.kind != "activations"]
    total = sum(row.bytes for row in budget.rows)
    label = "kept, each process" if budget.workload.processes > 1 else "kept"
    print(f"{label:<18}{'size':>11} {'share':>6}  how it comes about")
    for row in kinds:
        _row(row.name, row.bytes, total, row.formula)
    if budget.activations:
        _row("activations", budget.activations, total, "kept by the forward pass of one batch:")
        for row in budget.rows:
            if row.kind == "activations":
                _row("  " + row.name, row.bytes, total, row.formula)
    print()


def print_moments(budget: MemoryBudget) -> None:
    """Print what is alive at each moment, and mark the peak."""
    unit = "GiB" if budget.peak.total >= 10 * UNITS["GiB"] else "MiB"
    heads = ("weights", "gradients", "optimizer", "activations", "working", "total")
    widths = (9, 10, 10, 12, 8, 8)
    cells = "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))
    print(f"{'alive, in ' + unit:<23}{cells}")
    for moment in budget.moments:
        mark = ">" if moment is budget.peak else " "
        values = (getattr(moment, head) / UNITS[unit] for head in heads)
        pairs = zip(values, widths, strict=True)
        cells = "".join(f"{value:>{width},.1f}" for value, width in pairs)
        print(f"{mark} {moment.name:<21}{cells}")
    print(f"> is the peak: {format_bytes(budget.peak.total)}\n")


def print_comparison(budget: MemoryBudget, measured: MeasuredMemory, tolerance: float) -> bool:
    """Print prediction and measurement side by side; returns whether the peak and each kind fit."""
    print(f"{'measured here':<18}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    pairs = [("weights", budget.weights, measured.weights)]
    if budget.workload.mode == "train":
        for kind in ("gradients", "optimizer", "activations"):
            pairs.append((kind, getattr(budget, kind), getattr(measured, kind)))
    held = True
    for name, predicted, counted in pairs + _pair_phases(budget, measured):
        close = abs(predicted - counted) <= tolerance * counted
        judged = not name.startswith("  ")  # a phase that is not the peak is shown only
        held = held and (close or not judged)
        ratio = f"{predicted / counted:8.3f}" if counted else f"{'-':>8}"
        verdict = ("  [OK]" if close else f"  [FAIL] beyond {tolerance:.0%}") if judged else ""
        print(f"{name:<18}{format_bytes(predicted):>12}{format_bytes(counted):>12}{ratio}{verdict}")
    if measured.process is not None and measured.imports is not None:
        _say(
            "system",
            f"the process itself grew by {format_bytes(measured.process)} after its imports, which "
            f"took {format_bytes(measured.imports)}; malloc and matrix libraries keep the rest",
        )
    print()
    return held


def _pair_phases(budget: MemoryBudget, measured: MeasuredMemory) -> list[tuple[str, int, int]]:
    """Return (name, predicted, measured) of the peak, and below it of each phase."""
    pairs = [("peak", budget.peak.total, measured.peak)]
    for phase, counted in measured.peaks.items():
        names = PHASES.get(phase, ())
        moments = [m.total for m in budget.moments if m.name in names or m.name.startswith(phase)]
        if moments and len(measured.peaks) > 1:
            pairs.append((f"  {phase}", max(moments), counted))
    return pairs


def print_verdict(budget: MemoryBudget, limit: int | None, whose: str) -> None:
    """Say whether it fits, how large a batch would, and what is not in the figure."""
    work = budget.workload
    overhead = OVERHEAD_BYTES[work.device]
    each = f"{format_bytes(budget.peak.total)} + about {format_bytes(overhead)} for "
    each += OVERHEAD_WORDS[work.device]
    if work.processes > 1:
        each += ", in each process" if work.device == "cuda" else f", times {work.processes}"
    _say("needed", f"{format_bytes(budget.needed)}: {each}")
    if limit is None:
        _say("fits", "unknown: the free memory cannot be read here; give --budget")
    else:
        fits = budget.needed <= limit
        words = "fits" if fits else "does not fit"
        status, size = "[OK]" if fits else "[FAIL]", format_bytes(limit)
        if fits and budget.needed_at_worst > limit:
            status, words = "[WARN]", "just fits"
            size += f" {whose}; malloc may hold on to more, up to"
            whose = format_bytes(budget.needed_at_worst)
        _say(status, f"{words} into the {size} {whose}")
        rows = find_largest_batch(budget, limit)
        words = f"a batch of {_count(rows, 'row')} fits" if rows else "no batch fits"
        _say("largest", f"{words}, all else equal")
    left_out = "the corpus, workspaces of matrix libraries, --compile"
    if work.device == "cuda":
        left_out += ", what the allocator rounds up"
    else:
        left_out += ", what malloc holds on to (up to half as much again)"
    if work.device == "cuda" and work.mode == "train":
        left_out += ", a copy of weights and optimizer in the machine's memory while saving"
    _say("not in it", left_out)
    if work.device != "cpu":
        hint = ", which --measure does" if work.device == "cuda" else ""
        _say("note", f"the formulas were compared with a CPU, not with {work.device}{hint}")
    print()


def print_advice(budget: MemoryBudget, limit: int | None, *, measured: bool) -> None:
    """Print the knobs in the guide's order, each alone, and the first combination that fits."""
    print("what to turn, in this order; each line alone, from the sizes above")
    _say("measure", "done, see above" if measured else "--measure runs it and compares")
    for knob in list_knobs(budget):
        _say(knob.name, f"{knob.how}: {_describe_gain(budget, knob.after)}{knob.remark}")
    if limit is None or budget.needed <= limit:
        return
    found = find_fitting(budget, limit)
    print()
    if found is None:
        work = budget.workload
        outside = budget.needed - budget.peak.total * (
            1 if work.device == "cuda" else work.processes
        )
        words = "no combination of these fits; it takes more memory or a smaller model"
        if outside >= limit:
            words = f"no model fits: {OVERHEAD_WORDS[work.device]} take {format_bytes(outside)}"
        _say("together", words)
        return
    batch = f"; effective batch {found.workload.effective_batch}"
    _say(
        "together",
        f"{describe_change(budget, found)}: {format_bytes(found.needed)}, the first that fits"
        + (batch if budget.workload.mode == "train" else ""),
    )


def _describe_gain(before: MemoryBudget, after: MemoryBudget) -> str:
    less = before.needed - after.needed
    if less:
        return f"{format_bytes(abs(less))} {'less' if less > 0 else 'more'}"
    in_update = before.update_peak.total - after.update_peak.total
    if in_update > 0:
        return f"{format_bytes(in_update)} less in the update, but the evaluation stays the peak"
    return f"nothing less, the peak is elsewhere ({before.peak.name})"


def _row(name: str, count: int, total: int, formula: str) -> None:
    start = f"{name:<18}{format_bytes(count):>11} {count / total:>6.1%}  "
    lines = textwrap.wrap(formula, WIDTH - len(start))
    print(start + ("\n" + " " * len(start)).join(lines))


def _say(label: str, text: str) -> None:
    print(textwrap.fill(f"{label:<{LABEL}}{text}", WIDTH, subsequent_indent=" " * LABEL))


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
