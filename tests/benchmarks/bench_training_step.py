"""One step of our trainer against the loop that most tutorials write, and against peers.

Run by hand: `python tests/benchmarks/bench_training_step.py [threads]`. Ours trains as
`--matmul-precision auto` chooses on this chip, and once more under bfloat16 autocast; the peers in
float32 with torch's defaults. Every side draws a batch, runs forward and backward, clips to norm
1.0, steps AdamW and reads the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from _peers import SHAPES, make_nanogpt, make_transformers_gpt2
from _timing import Comparison, compare, print_comparisons
from torch import Tensor

from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.speed import bfloat16_seconds_ratio, matmul_precision, try_matmul_precision
from minigpt.tokenizer import CharTokenizer
from minigpt.trainer import Trainer, TrainSettings

ROUNDS = {"debug": 201, "cpu": 61, "small": 7}
GOALS = {"debug": 0.85, "cpu": 0.65, "small": 0.60}  # / nanoGPT; reached on chips with AVX-512
BFLOAT16_GOALS = {"cpu": 0.45, "small": 0.35}
HOPELESS = 3.0  # times as long in a layer: two rounds show it, and a large model would take minutes
Forward = Callable[[Any, Tensor, Tensor], Tensor]


def main() -> None:
    """Measure every shape against every peer; print the table."""
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    print_comparisons(comparisons())


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare in float32 with every peer and under bfloat16 with nanoGPT; quick: debug and cpu."""
    rows = []
    for name, (batch_size, config) in SHAPES.items():
        if quick and name == "small":
            continue
        rounds = ROUNDS[name] // 5 if quick else ROUNDS[name]
        data = torch.randint(config.vocab_size, (100_000,))
        precision = try_matmul_precision(config, batch_size * config.block_size).precision
        for peer_name, peer in make_peers(config, batch_size, data).items():
            goal = GOALS[name] if peer_name == "nanoGPT" else None
            ours = make_ours(config, batch_size, data, precision=precision)
            rows.append(compare(f"step {name} / {peer_name}", ours, peer, rounds=rounds, goal=goal))
        if name in BFLOAT16_GOALS and make_nanogpt(config) is not None:
            rows += compare_bfloat16(name, rounds)
    return rows


def compare_bfloat16(name: str, rounds: int) -> list[Comparison]:
    """Compare ours under autocast with nanoGPT in float32, where the chip lets that end."""
    batch_size, config = SHAPES[name]
    if bfloat16_seconds_ratio(config, batch_size * config.block_size) > HOPELESS:
        if name == "small":
            return []
        rounds = 2
    data = torch.randint(config.vocab_size, (100_000,))
    peer = make_peers(config, batch_size, data)["nanoGPT"]
    ours = make_ours(config, batch_size, data, dtype="bfloat16")
    figure, goal = f"step {name}, bf16 / nanoGPT fp32", BFLOAT16_GOALS[name]
    return [compare(figure, ours, peer, rounds=rounds, goal=goal)]


def make_ours(
    config: MiniGPTConfig,
    batch_size: int,
    data: Tensor,
    *,
    precision: str = "highest",
    dtype: str = "float32",
) -> Callable[[], object]:
    """Return one update of our trainer."""
    tokenizer = CharTokenizer(map(chr, range(config.vocab_size)))
    settings = TrainSettings(max_steps=10_000, batch_size=batch_size, dtype=dtype)
    trainer = Trainer(MiniGPT(config), tokenizer, data, data, settings)

    def step() -> None:
        with matmul_precision(precision):
            trainer.update()

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
