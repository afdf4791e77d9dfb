"""One step of our trainer against the loop that most tutorials write, and against peers.

Run by hand: `python tests/benchmarks/bench_training_step.py [highest|high|medium]`; the argument is
what our command is given as --matmul-precision, the peers keep torch's default. Every side draws a
batch, runs forward and backward, clips to norm 1.0, steps AdamW and reads the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from _peers import SHAPES, make_nanogpt, make_transformers_gpt2
from _timing import compare, print_comparisons
from torch import Tensor

from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.tokenizer import CharTokenizer
from minigpt.trainer import Trainer, TrainSettings

ROUNDS = {"debug": 201, "cpu": 61, "small": 7}
Forward = Callable[[Any, Tensor, Tensor], Tensor]


def main() -> None:
    """Measure every shape against every peer; print the table."""
    torch.set_num_threads(1)
    precision = sys.argv[1] if len(sys.argv) > 1 else "highest"
    rows = []
    for name, (batch_size, config) in SHAPES.items():
        data = torch.randint(config.vocab_size, (100_000,))
        for peer_name, peer in make_peers(config, batch_size, data).items():
            ours = make_ours(config, batch_size, data, precision)
            rows.append(compare(f"{name}: {peer_name}", ours, peer, rounds=ROUNDS[name]))
    print_comparisons(rows)


def make_ours(
    config: MiniGPTConfig, batch_size: int, data: Tensor, precision: str
) -> Callable[[], object]:
    """Return one update of our trainer."""
    tokenizer = CharTokenizer(map(chr, range(config.vocab_size)))
    settings = TrainSettings(max_steps=10_000, batch_size=batch_size)
    trainer = Trainer(MiniGPT(config), tokenizer, data, data, settings)

    def step() -> None:
        torch.set_float32_matmul_precision(precision)
        trainer.update()
        torch.set_float32_matmul_precision("highest")

    return step


def make_peers(
    config: MiniGPTConfig, batch_size: int, data: Tensor
) -> dict[str, Callable[[], object]]:
    """Return name -> one step of another loop."""
    models: dict[str, tuple[Any | None, Forward]] = {
        "plain loop, our model": (MiniGPT(config), lambda m, x, y: m(x, y)[1]),
        "nanoGPT": (make_nanogpt(config), lambda m, x, y: m(x, y)[1]),
        "transformers GPT-2": (make_transformers_gpt2(config), shifted_inside),
    }
    return {
        name: make_plain_loop(model, forward, config.block_size, batch_size, data)
        for name, (model, forward) in models.items()
        if model is not None
    }


def shifted_inside(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    """Score one token less per row: this model shifts by itself and gets no token beyond."""
    return model(input_ids=inputs, labels=inputs).loss


def make_plain_loop(
    model: Any, forward: Forward, block_size: int, batch_size: int, data: Tensor
) -> Callable[[], float]:
    """Return the step that most tutorials write, around any model."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))

    def step() -> float:
        starts = torch.randint(len(data) - block_size, (batch_size,))
        inputs = torch.stack([data[i : i + block_size] for i in starts])
        targets = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
        optimizer.zero_grad(set_to_none=True)
        loss = forward(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
