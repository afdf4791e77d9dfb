"""Generating tokens with a key/value cache against doing a full forward for each of them.

Run by hand: `python tests/benchmarks/bench_generate.py [debug] [cpu] [small]`. Peers: our own model
without a cache, and transformers and nanoGPT where they are to be had (see `_peers.py`). Batch 1,
top-k 20, prompt of one token. Two lengths: until the block is full, and 500 tokens, most of which
may lie beyond it; there positions move with the window and everybody computes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from _peers import SHAPES, make_nanogpt, make_transformers_gpt2
from _timing import Comparison, compare, print_comparisons
from torch import Tensor

from minigpt.generate import generate
from minigpt.model import MiniGPT

PROMPT = torch.zeros((1, 1), dtype=torch.int64)


def main() -> None:
    """Measure every shape and length against every peer; print the table."""
    torch.set_num_threads(1)
    rows = []
    for name in sys.argv[1:] or SHAPES:
        config = SHAPES[name][1]
        torch.manual_seed(0)
        model = MiniGPT(config).eval()
        for count in (config.block_size - 1, 500):
            peers = make_peers(model, count)
            for peer_name, peer in peers.items():
                figure = f"{name}: {count} tokens / {peer_name}"
                rows.append(compare_generate(figure, model, count, peer))
    print_comparisons(rows)


def compare_generate(
    figure: str, model: MiniGPT, count: int, peer: Callable[[], object]
) -> Comparison:
    """Compare one length with one peer."""
    return compare(figure, lambda: generate(model, PROMPT, count, top_k=20), peer, rounds=3)


def make_peers(model: MiniGPT, count: int) -> dict[str, Callable[[], object]]:
    """Return name -> a function that generates `count` tokens."""
    peers: dict[str, Callable[[], object]] = {"no cache": lambda: without_cache(model, count)}
    nanogpt = make_nanogpt(model.config)
    if nanogpt is not None:
        nanogpt.eval()
        peers["nanoGPT"] = lambda: nanogpt.generate(PROMPT, count, top_k=20)
    gpt2 = make_transformers_gpt2(model.config)
    if gpt2 is not None and count < model.config.block_size:  # it does not go beyond its block
        gpt2.eval()
        peers["transformers"] = lambda: gpt2.generate(
            PROMPT, max_new_tokens=count, min_new_tokens=count, do_sample=True, top_k=20
        )
    return peers


@torch.no_grad()
def without_cache(model: MiniGPT, count: int) -> Tensor:
    """The textbook loop: crop, forward, cut to the best k, draw, append."""
    ids = PROMPT
    for _ in range(count):
        logits = model(ids[:, -model.config.block_size :])[0][:, -1]
        logits[logits < logits.topk(20).values[:, [-1]]] = -torch.inf
        ids = torch.cat([ids, torch.multinomial(logits.softmax(dim=-1), 1)], dim=1)
    return ids


if __name__ == "__main__":
    main()
