"""What watching costs: a training step with the monitor, and with what people use instead.

Run by hand: `python tests/benchmarks/bench_monitor.py [rounds]`. All sides run the same step on
models of the same shape: draw a batch, forward, backward, clip to norm 1.0, AdamW, read the loss.
The peer of every figure is that plain step. "no norm" does not clip and gives the monitor no norm.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

import torch
from _peers import SHAPES
from _timing import Comparison, compare, print_comparisons
from torch import Tensor, nn

from diagnostics import TrainingMonitor
from minigpt.batches import get_batch
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import make_optimizer

Watch = Callable[[nn.Module, torch.optim.Optimizer], Callable[..., None]]
ROUNDS = 401  # several looks at the parameters and into the forward pass are among them


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print_comparisons(comparisons(rounds=rounds))


def comparisons(*, quick: bool = False, rounds: int = ROUNDS) -> list[Comparison]:
    """Compare watched steps of the debug shape with the plain one; quick takes fewer rounds."""
    rounds = rounds // 5 if quick else rounds
    batch_size, config = SHAPES["debug"]
    rows = []
    for name, watch, clip, goal in (
        ("monitor / plain step", monitored, True, 1.05),
        ("monitor, loss and norm as floats", monitored_floats, True, None),
        ("monitor, no norm given", monitored, False, None),
        ("hook on every module checks isfinite", hooked, True, None),
        ("set_detect_anomaly", anomaly, True, None),
    ):
        plain = make_step(config, batch_size, unwatched, clip=clip)
        watched = make_step(config, batch_size, watch, clip=clip)
        rows.append(compare(name, watched, plain, rounds=rounds, goal=goal))
    return rows


def make_step(
    config: MiniGPTConfig, batch_size: int, watch: Watch, *, clip: bool
) -> Callable[[], object]:
    """Return one training step, watched by what `watch` returns for its model."""
    torch.manual_seed(0)
    data = torch.randint(config.vocab_size, (100_000,))
    model = MiniGPT(config)
    optimizer = make_optimizer(model, learning_rate=1e-3)
    seen = watch(model, optimizer)

    def step() -> None:
        torch.autograd.set_detect_anomaly(watch is anomaly)
        inputs, targets = get_batch(data, batch_size, config.block_size)
        optimizer.zero_grad(set_to_none=True)
        _, loss = model(inputs, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0) if clip else None
        optimizer.step()
        seen(loss, inputs, targets, norm)
        torch.autograd.set_detect_anomaly(False)

    return step


def unwatched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Read the loss, as every loop does."""

    def seen(loss: Tensor, inputs: Tensor, targets: Tensor, norm: Tensor | None) -> None:
        loss.item()

    return seen


def monitored(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Hand the tensors on, with the default settings."""
    monitor = TrainingMonitor(
        model, optimizer, clip_norm=1.0, on_event=None, folder=tempfile.gettempdir()
    )

    def seen(loss: Tensor, inputs: Tensor, targets: Tensor, norm: Tensor | None) -> None:
        monitor.step(loss, inputs=inputs, targets=targets, grad_norm=norm)

    return seen


def monitored_floats(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Hand numbers on that the loop has read already."""
    monitor = TrainingMonitor(model, optimizer, clip_norm=1.0, on_event=None)

    def seen(loss: Tensor, inputs: Tensor, targets: Tensor, norm: Tensor | None) -> None:
        number = None if norm is None else norm.item()
        monitor.step(loss.item(), inputs=inputs, targets=targets, grad_norm=number)

    return seen


def hooked(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Check the output of every module, as many guides advise."""

    def check(module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and not bool(output.isfinite().all()):
            raise FloatingPointError(type(module).__name__)

    for module in model.modules():
        module.register_forward_hook(check)
    return unwatched(model, optimizer)


def anomaly(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Let autograd check every gradient; `make_step` switches it on."""
    return unwatched(model, optimizer)


if __name__ == "__main__":
    main()
