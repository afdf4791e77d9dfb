"""Writing and reading checkpoints against torch.save and torch.load, for model and optimizer.

Run by hand: `python tests/benchmarks/bench_checkpoint.py`. The peer writes without fsync and
without a digest, and reads with `torch.load(weights_only=True)` and `load_state_dict` into a model
and an optimizer. Where that model comes from is given both ways: built for the load, as a program
that starts has to (and as ours does), or there already.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from _timing import compare, print_comparisons

from minigpt import MiniGPT, MiniGPTConfig, load_checkpoint, make_optimizer, save_checkpoint
from minigpt.tokenizer import CharTokenizer

SIZES = {
    "debug": {"block_size": 32, "embedding_dim": 64, "num_heads": 4, "num_layers": 2},
    "small": {"block_size": 256, "embedding_dim": 384, "num_heads": 6, "num_layers": 6},
}


def main() -> None:
    torch.set_num_threads(1)
    tokenizer = CharTokenizer([chr(code) for code in range(32, 132)])
    rows = []
    for size, numbers in SIZES.items():
        config = MiniGPTConfig(vocab_size=100, **numbers)
        model = MiniGPT(config)
        optimizer = make_optimizer(model, learning_rate=1e-3)
        model(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64))[1].backward()
        optimizer.step()
        target = MiniGPT(config)
        with tempfile.TemporaryDirectory() as folder:
            native, guide = Path(folder) / "a.safetensors", Path(folder) / "a.pt"

            def write() -> None:
                save_checkpoint(native, model, tokenizer, optimizer=optimizer)

            def peer_write() -> None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, guide)

            def read() -> None:
                checkpoint = load_checkpoint(native)
                checkpoint.restore_optimizer(make_optimizer(checkpoint.model, learning_rate=1e-3))

            def peer_read(given: MiniGPT | None = None) -> None:
                built = given if given is not None else MiniGPT(config)
                fresh = make_optimizer(built, learning_rate=1e-3)
                state = torch.load(guide, weights_only=True)
                built.load_state_dict(state["model"])
                fresh.load_state_dict(state["optimizer"])

            def peer_read_into_given() -> None:
                peer_read(target)

            write(), peer_write()
            megabytes = f"{native.stat().st_size / 1e6:.1f} MB"
            rows += [
                compare(f"write {size}, {megabytes}", write, peer_write, rounds=11),
                compare(f"read {size}, peer builds a model", read, peer_read, rounds=11),
                compare(f"read {size}, peer has a model", read, peer_read_into_given, rounds=11),
            ]
    print_comparisons(rows)


if __name__ == "__main__":
    main()
