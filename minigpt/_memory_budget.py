"""The prediction: `predict_memory`, from sizes and workload to bytes, without running anything."""

from __future__ import annotations

from dataclasses import dataclass

from minigpt._memory_activations import MemoryRow, Numbers, activation_rows
from minigpt._memory_moments import (
    Account,
    Moment,
    cache_bytes,
    generation_moments,
    inference_moments,
    training_moments,
)
from minigpt._memory_sizes import OPTIMIZER_STATES, Sizes, Workload, parameter_count

HEAP_FACTOR = 1.5  # how much malloc held on to, of the tensors' peak: measured 0.94 to 1.48
OVERHEAD_BYTES = {  # of one process, beyond tensors
    "cpu": 300 * 2**20,  # Python, torch and what the optimizer imports: measured 220 + 75 MiB
    "cuda": 500 * 2**20,  # the CUDA context and its libraries: 300 to 500 MiB, by their version
    "mps": 300 * 2**20,  # the memory is the machine's own
}


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """What a workload needs, by kind and by moment, in bytes for each process.

    rows: what is kept, line by line; the rows of a kind add up to that kind.
    moments: what is alive when; `peak` is the largest of them.
    """

    sizes: Sizes
    workload: Workload
    parameters: int
    rows: tuple[MemoryRow, ...]
    moments: tuple[Moment, ...]

    @property
    def weights(self) -> int:
        """Return the bytes of the weights."""
        return self._kind("weights")

    @property
    def gradients(self) -> int:
        """Return the bytes of all gradients."""
        return self._kind("gradients")

    @property
    def optimizer(self) -> int:
        """Return the bytes of the optimizer's states."""
        return self._kind("optimizer")

    @property
    def activations(self) -> int:
        """Return the bytes that the forward pass of one batch keeps for the backward pass."""
        return self._kind("activations")

    @property
    def peak(self) -> Moment:
        """Return the moment at which the most is alive."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def update_peak(self) -> Moment:
        """Return the same without the evaluations, whose rows do not depend on the batch."""
        update = (m for m in self.moments if not m.name.startswith("evaluation"))
        return max(update, key=lambda moment: moment.total)

    @property
    def needed(self) -> int:
        """Return the peak of all processes that share the device's memory, with their overhead.

        On a CPU (and on MPS) they share the machine's; on CUDA each has a device of its own.
        """
        device = self.workload.device
        each = self.peak.total + OVERHEAD_BYTES[device]
        return each if device == "cuda" else each * self.workload.processes

    @property
    def needed_at_worst(self) -> int:
        """Return `needed` with what malloc may hold on to; on CUDA the same as `needed`."""
        if self.workload.device == "cuda":
            return self.needed
        each = int(self.peak.total * HEAP_FACTOR) + OVERHEAD_BYTES[self.workload.device]
        return each * self.workload.processes

    def _kind(self, kind: str) -> int:
        return sum(row.bytes for row in self.rows if row.kind == kind)


def predict_memory(
    config: Sizes,
    *,
    batch_size: int,
    mode: str = "train",
    accumulation_steps: int = 1,
    dtype: str = "float32",
    matmul_precision: str = "highest",
    optimizer: str = "adamw",
    processes: int = 1,
    device: str = "cpu",
    evaluation_windows: int = 240,
    checkpointed: bool = False,
) -> MemoryBudget:
    """Predict the memory of a MiniGPT of that configuration, without running it.

    config: a MiniGPTConfig, or a ModelSizes where torch is not to be imported. (A prediction of
        bfloat16 on a CPU still asks torch, where there is one, for the chip.)
    The other arguments are those of `Workload`. Raises ValueError naming the one that does not fit.
    """
    workload = Workload(
        batch_size=batch_size,
        mode=mode,
        accumulation_steps=accumulation_steps,
        dtype=dtype,
        matmul_precision=matmul_precision,
        optimizer=optimizer,
        processes=processes,
        device=device,
        evaluation_windows=evaluation_windows,
        checkpointed=checkpointed,
    )
    return budget_for(config, workload)


def budget_for(sizes: Sizes, workload: Workload) -> MemoryBudget:
    """Return the prediction for a workload that is put together already."""
    numbers = Numbers(sizes, workload)
    moments = {
        "train": training_moments,
        "inference": inference_moments,
        "generation": generation_moments,
    }[workload.mode]
    return MemoryBudget(
        sizes=sizes,
        workload=workload,
        parameters=parameter_count(sizes),
        rows=tuple(_rows(numbers)),
        moments=tuple(moments(numbers)),
    )


def _rows(numbers: Numbers) -> list[MemoryRow]:
    account, workload = Account(numbers), numbers.workload
    count = parameter_count(numbers.sizes)
    width = account.weights // count

    def row(kind: str, bytes_: int, formula: str) -> MemoryRow:
        return MemoryRow(kind=kind, name=kind, bytes=bytes_, formula=formula)

    rows = [row("weights", account.weights, f"{count:,} parameters x {width} bytes")]
    if workload.mode == "generation":
        formula = f"2 x layers x B x block x C x {numbers.width} bytes, at full length at once"
        rows.append(row("cache", cache_bytes(numbers), formula))
    if workload.mode != "train":
        return rows
    states = OPTIMIZER_STATES[workload.optimizer]
    rows.append(row("gradients", account.gradients, "as many numbers as weights x 4 bytes"))
    formula = f"{workload.optimizer}: {states} x 4 bytes for each weight"
    rows.append(row("optimizer", account.optimizer, formula))
    return rows + activation_rows(numbers)
