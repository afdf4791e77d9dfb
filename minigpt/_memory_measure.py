"""The measurement: a few steps of the real training code in a process of their own.

Weights, gradients and optimizer states are counted by the sizes of their tensors, activations by
what autograd saves: each storage once, parameters left out. The peak comes from the allocator:
on CUDA from its own statistics, on the CPU from the profiler's record of every allocation and
release. Buffers of oneDNN and MKL, and what malloc keeps for itself, are in the figure of the
operating system only.

Run as a command it reads a request from standard input, and answers on standard output.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt._memory_sizes import ModelSizes, Sizes, Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from minigpt._memory_peak import PeakMeter
    from minigpt.model import MiniGPT
    from minigpt.update import Precision

KILLED = -9  # by SIGKILL, a name that Windows does not have
SIZE_FIELDS = tuple(ModelSizes.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """What a run needed, in bytes.

    activations: what autograd saved in the forward pass of one batch; 0 without training.
    peaks: phase ("forward", "backward", "update", "evaluation") -> most bytes alive in it.
    process: peak of the process's resident memory less what it had after its imports; None where
        the system does not tell.
    imports: resident memory after the imports; None likewise.
    """

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peaks: dict[str, int]
    process: int | None
    imports: int | None

    @property
    def peak(self) -> int:
        """Return the most bytes alive in any phase."""
        return max(self.peaks.values())


class MeasurementError(RuntimeError):
    """The measuring process ended without an answer; the message says how."""


def measure_memory(
    config: Sizes, *, batch_size: int, threads: int | None = None, **workload: Any
) -> MeasuredMemory:
    """Run two updates (or one pass without gradients) in a child process and measure them.

    The other arguments are those of `predict_memory`; `processes` must be 1. Raises ValueError for
    what cannot be measured, MeasurementError when the child fails, as it does where the memory is
    not there.
    """
    wanted = Workload(batch_size=batch_size, **workload)
    if wanted.processes != 1 or wanted.device == "mps":
        raise ValueError("only one process on cpu or cuda can be measured")
    request = {
        "sizes": {name: getattr(config, name) for name in SIZE_FIELDS},
        "workload": asdict(wanted),
        "threads": threads,
    }
    done = subprocess.run(
        [sys.executable, "-m", "minigpt._memory_measure"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
    )
    if done.returncode:
        raise MeasurementError(_describe_end(done.returncode, done.stderr))
    return MeasuredMemory(**json.loads(done.stdout.splitlines()[-1]))


def _describe_end(code: int, errors: str) -> str:
    if code == KILLED:
        return "the measuring process was killed by the system, as it does when memory runs out"
    lines = errors.strip().splitlines() or [f"exit code {code}"]
    return f"the measuring process failed: {lines[-1][:200]}"


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process, which must be a fresh one; returns what JSON can hold."""
    import torch

    from minigpt._memory_peak import PeakMeter
    from minigpt.model import MiniGPT, MiniGPTConfig
    from minigpt.optimizer import make_optimizer

    if request["threads"]:
        torch.set_num_threads(request["threads"])
    workload = Workload(**request["workload"])
    torch.set_float32_matmul_precision(workload.matmul_precision)
    device = torch.device(workload.device)
    make_optimizer(torch.nn.Linear(1, 1).to(device), learning_rate=1.0)  # imports more of torch
    imports = resident_bytes("VmRSS")
    torch.manual_seed(0)
    model = MiniGPT(MiniGPTConfig(**request["sizes"])).to(device)
    if workload.checkpointed:
        checkpoint_blocks(model)
    meter = PeakMeter(device)
    run = _train if workload.mode == "train" else _infer
    numbers = run(model, workload, meter)
    return asdict(
        MeasuredMemory(
            parameters=model.parameter_count(),
            weights=_bytes(model.parameters()),
            peaks=meter.peaks,
            imports=imports,
            process=None if meter.resident is None else meter.resident - (imports or 0),
            **numbers,
        )
    )


def _train(model: MiniGPT, workload: Workload, meter: PeakMeter) -> dict[str, int]:
    """Make two updates, the second one measured, then an evaluation."""
    import torch

    from minigpt.optimizer import make_optimizer
    from minigpt.update import forward_precision, update_weights

    optimizer: torch.optim.Optimizer = make_optimizer(model, learning_rate=1e-3)
    if workload.optimizer != "adamw":
        momentum = 0.9 if workload.optimizer == "sgd-momentum" else 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
    model.train()
    precision = forward_precision(workload.dtype, next(model.parameters()).device)
    steps = workload.accumulation_steps
    update_weights(model, optimizer, [_batch(model, workload)] * steps, precision=precision)
    if workload.evaluation_windows >= 0:
        _evaluate(model, workload.evaluation_windows or 64)
    meter.resident = resident_bytes("VmHWM")  # now, since the profiler has a memory of its own
    activations = _saved_bytes(model, _batch(model, workload), precision)
    optimizer.zero_grad(set_to_none=True)
    states = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    steady = _bytes([*model.parameters(), *states])
    with meter.watch(model, optimizer, steady):
        batches = [_batch(model, workload) for _ in range(steps)]
        update_weights(model, optimizer, batches, clip_norm=1.0, precision=precision)
        del batches
        if workload.evaluation_windows >= 0:
            meter.mark("evaluation")
            _evaluate(model, workload.evaluation_windows or 64)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "activations": activations,
        "gradients": _bytes(gradients),
        "optimizer": _bytes(states),
    }


def _infer(model: MiniGPT, workload: Workload, meter: PeakMeter) -> dict[str, int]:
    """Score one batch, or generate one token after a prompt that leaves room for one."""
    import torch

    from minigpt.generate import generate

    if workload.dtype == "bfloat16":
        model.bfloat16()
    model.eval()
    inputs, targets = _batch(model, workload)

    def run() -> None:
        if workload.mode == "inference":
            model(inputs.clone(), targets.clone())
        else:
            generate(model, inputs[:, : max(1, model.config.block_size - 1)], 1)

    with torch.no_grad():
        run()
        meter.resident = resident_bytes("VmHWM")
        with meter.watch(model, None, _bytes(model.parameters())):
            meter.mark("forward")
            run()
    return {"activations": 0, "gradients": 0, "optimizer": 0}


def checkpoint_blocks(model: MiniGPT) -> None:
    """Let each block keep its input only, and compute it once more in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _evaluate(model: MiniGPT, windows: int) -> None:
    import torch

    from minigpt.evaluate import evaluate

    count = min(windows, 64) * model.config.block_size + 1  # one batch shows the most there is
    evaluate(model, torch.arange(count) % model.config.vocab_size, max_windows=windows)


def _batch(model: MiniGPT, workload: Workload) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets, (B, T) each, in memory of their own."""
    import torch

    config = model.config
    shape = (workload.batch_size, config.block_size)
    device = next(model.parameters()).device
    inputs, targets = (torch.randint(config.vocab_size, shape, device=device) for _ in range(2))
    return inputs, targets


def _saved_bytes(model: MiniGPT, batch: tuple[Tensor, Tensor], precision: Precision) -> int:
    """Return the bytes of the storages that autograd saves in one forward pass."""
    from torch.autograd.graph import saved_tensors_hooks

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in batch}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), precision():
        _, loss = model(*batch)
    del loss  # only now: a released address would be given to another tensor
    return sum(saved.values())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def resident_bytes(field: str) -> int | None:
    """Return VmRSS (now) or VmHWM (its peak) of this process; None where the system has neither.

    Not `getrusage`: on Linux its peak starts with that of the process that started this one.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


if __name__ == "__main__":
    print(json.dumps(run_request(json.load(sys.stdin))))
