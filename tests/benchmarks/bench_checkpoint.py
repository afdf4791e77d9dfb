"""Writing and reading checkpoints against torch.save and torch.load, for model and optimizer.

Run by hand: `python tests/benchmarks/bench_checkpoint.py`. The peer has no digest, and writes with
fsync and without. It reads with `torch.load(weights_only=True)` and `load_state_dict` into a model
and an optimizer. Where that model comes from is given both ways: built for the load, as a program
that starts has to (and as ours does), or there already.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from _timing import Comparison, compare, print_comparisons

from minigpt import (
    CharTokenizer,
    MiniGPT,
    MiniGPTConfig,
    load_checkpoint,
    make_optimizer,
    save_checkpoint,
)

ROUNDS = 11
LEARNING_RATE = 1e-3
TOKENIZER = CharTokenizer([chr(code) for code in range(32, 132)])
CONFIGS = {
    "debug": MiniGPTConfig.debug(100),
    "small": MiniGPTConfig(
        vocab_size=100, block_size=256, embedding_dim=384, num_heads=6, num_layers=6
    ),
}


def main() -> None:
    """Print one table for both sizes."""
    torch.set_num_threads(1)
    print_comparisons(comparisons())


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare both sizes; quick leaves the large one out."""
    rows = []
    for size, config in CONFIGS.items():
        if not (quick and size == "small"):
            with tempfile.TemporaryDirectory() as folder:
                rows += compare_one_size(size, config, Path(folder))
    return rows


def compare_one_size(size: str, config: MiniGPTConfig, folder: Path) -> list[Comparison]:
    """Return the rows of one configuration; the goals are for the large one."""
    model, target = MiniGPT(config), MiniGPT(config)
    optimizer = make_optimizer(model, learning_rate=LEARNING_RATE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    ours, theirs = folder / "a.safetensors", folder / "a.pt"

    def write() -> None:
        save_checkpoint(ours, model, TOKENIZER, optimizer=optimizer)

    def peer_write() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, theirs)

    def peer_write_durably() -> None:
        peer_write()
        with theirs.open("rb+") as file:
            os.fsync(file.fileno())

    def read() -> None:
        checkpoint = load_checkpoint(ours)
        fresh = make_optimizer(checkpoint.model, learning_rate=LEARNING_RATE)
        checkpoint.restore_optimizer(fresh)

    def peer_read(given: MiniGPT | None = None) -> None:
        built = MiniGPT(config) if given is None else given
        fresh = make_optimizer(built, learning_rate=LEARNING_RATE)
        state = torch.load(theirs, weights_only=True)
        built.load_state_dict(state["model"])
        fresh.load_state_dict(state["optimizer"])

    write()
    name = f"{size}, {ours.stat().st_size / 1e6:.0f} MB"
    goal_write, goal_read = (0.85, 0.25) if size == "small" else (None, None)
    return [
        compare(f"save {name} / torch.save", write, peer_write, rounds=ROUNDS, goal=goal_write),
        compare(f"save {size} / torch.save + fsync", write, peer_write_durably, rounds=ROUNDS),
        compare(f"load {size} / build and load", read, peer_read, rounds=ROUNDS, goal=goal_read),
        compare(
            f"load {size} / load",
            read,
            lambda: peer_read(target),
            rounds=ROUNDS,
            goal=goal_read,
        ),
    ]


if __name__ == "__main__":
    main()
