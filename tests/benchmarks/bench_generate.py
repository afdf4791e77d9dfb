"""Generating tokens with a key/value cache against doing a full forward for each of them.

Run by hand: `python tests/benchmarks/bench_generate.py [debug] [cpu] [small]`. Peers: nanoGPT, or
the textbook loop where it is not to be had, and transformers (see `_peers.py`). Batch 1, top-k 20,
prompt of one token. Two lengths: until the block is full, and 500 tokens, most of which may lie
beyond it; there positions move with the window, and everybody computes it anew for every token.
Ours can also slide by half a block at a time (`slide_by`), which no peer does.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from _peers import SHAPES, make_nanogpt, make_transformers_gpt2
from _timing import Comparison, compare, print_comparisons
from torch import Tensor

from minigpt.generate import generate
from minigpt.model import MiniGPT

GOAL = 0.07
PROMPT = torch.zeros((1, 1), dtype=torch.int64)


def main() -> None:
    """Print the table for the shapes named on the command line, or for all."""
    torch.set_num_threads(1)
    print_comparisons([row for name in sys.argv[1:] or SHAPES for row in compare_shape(name)])


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare the shape that the goal is for; quick takes the smallest instead."""
    return compare_shape("debug" if quick else "small")


def compare_shape(name: str) -> list[Comparison]:
    """Compare inside the block with every peer, and beyond it with those that go there."""
    config = SHAPES[name][1]
    torch.manual_seed(0)
    model = MiniGPT(config).eval()
    half = copy.deepcopy(model).to(torch.bfloat16)
    inside, beyond, slide_by = config.block_size - 1, 500, config.block_size // 2
    rows = []
    for peer_name, peer in make_peers(model, inside).items():
        figure = f"generate {name} {inside} / {peer_name}"
        rows.append(compare_generate(figure, model, inside, peer))
    for peer_name, peer in make_peers(model, beyond).items():
        figure = f"generate {name} {beyond}"
        rows += [
            compare_generate(f"{figure} / {peer_name}", model, beyond, peer),
            compare_generate(
                f"{figure}, slide {slide_by} / {peer_name}", model, beyond, peer, slide_by
            ),
            compare_generate(
                f"{figure}, slide {slide_by}, bf16 / {peer_name}", half, beyond, peer, slide_by
            ),
        ]
    return rows


def compare_generate(
    figure: str, model: MiniGPT, count: int, peer: Callable[[], object], slide_by: int = 1
) -> Comparison:
    """Compare one length with one peer."""

    def ours() -> object:
        return generate(model, PROMPT, count, top_k=20, slide_by=slide_by)

    goal = GOAL if " small " in figure and "nanoGPT" in figure else None
    return compare(figure, ours, peer, rounds=3, goal=goal)


def make_peers(model: MiniGPT, count: int) -> dict[str, Callable[[], object]]:
    """Return name -> a function that generates `count` tokens."""
    peers: dict[str, Callable[[], object]] = {}
    nanogpt = make_nanogpt(model.config)
    if nanogpt is not None:
        nanogpt.eval()
        peers["nanoGPT"] = lambda: nanogpt.generate(PROMPT, count, top_k=20)
    else:
        peers["no cache"] = lambda: without_cache(model, count)
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
