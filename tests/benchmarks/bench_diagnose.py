"""All checks on a debug-size Mini-GPT against the eight classic tests, written out by hand.

Run by hand: `python tests/benchmarks/bench_diagnose.py`.

The peer does what a person writes after reading a debugging guide: round trip, id range, shift,
forward, one causal split, gradients, one optimizer step, and 300 steps on one batch, with the loss
and the accuracy read at every step. Then: milliseconds by check, as the process spends them, and
the steps after which one batch of real text is memorised, for twenty seeds.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from _timing import Comparison, compare, print_comparisons
from torch.nn import functional

from diagnostics import Pipeline, check_overfit, diagnose
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, get_batch
from minigpt._parts import describe_run
from minigpt._training_state import TrainSettings
from minigpt.corpus import data_path, read_text

OVERFIT_STEPS, OVERFIT_RATE, B = 300, 1e-3, 8
CHECK_ROUNDS, SEEDS = 5, 20


def main() -> None:
    """Print the table, the time by check, and the steps of `overfit`."""
    torch.set_num_threads(1)
    print_comparisons(comparisons())
    model, _, train_ids, parts = debug_run()
    print_time_by_check(Pipeline(model, fresh=True, **parts))
    print_overfit_steps(model.config, train_ids)


def debug_run() -> tuple[MiniGPT, CharTokenizer, torch.Tensor, dict[str, Any]]:
    """Return a fresh model of debug size, its tokenizer, its training ids, and all other parts."""
    text = read_text(data_path("guide.txt"))
    tokenizer = CharTokenizer.from_text(text)
    ids = torch.tensor(tokenizer.encode(text))
    cut = len(ids) * 9 // 10
    config = MiniGPTConfig.debug(tokenizer.vocab_size)
    settings = TrainSettings(max_steps=2000, warmup_steps=100)
    parts = describe_run(config, tokenizer, ids[:cut], ids[cut:], settings)
    return MiniGPT(config), tokenizer, ids[:cut], parts


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare the full and the fast report with the eight tests, with and without their 300."""
    rounds = 3 if quick else 9
    model, tokenizer, train_ids, parts = debug_run()

    def ours(fast: bool) -> Callable[[], object]:
        return lambda: diagnose(Pipeline(model, fresh=True, **parts), fast=fast)

    def peer(steps: int) -> Callable[[], object]:
        return lambda: eight_tests(model, tokenizer, train_ids, steps)

    full, fast = ours(False), ours(True)
    eight, seven = peer(OVERFIT_STEPS), peer(0)
    return [
        compare("full report / eight tests", full, eight, rounds=rounds, goal=1.0),
        compare("--fast / eight tests", fast, eight, rounds=rounds, goal=0.2),
        compare("--fast / seven tests, no overfit", fast, seven, rounds=rounds),
    ]


def print_time_by_check(pipeline: Pipeline) -> None:
    """Print the median milliseconds of processor time of each check, the longest first."""
    spent: dict[str, list[float]] = {}
    for _ in range(CHECK_ROUNDS):
        marks: list[tuple[str, float]] = []

        def note(name: str, index: int, total: int, marks: list[Any] = marks) -> None:
            marks.append((name, time.process_time()))

        diagnose(pipeline, progress=note)
        note("", 0, 0)  # each check ends where the next one begins
        for (name, start), (_, end) in itertools.pairwise(marks):
            spent.setdefault(name, []).append((end - start) * 1e3)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    print(f"\nprocessor time by check, {sum(medians.values()):.0f} ms in all")
    for name, value in sorted(medians.items(), key=lambda row: -row[1]):
        if value >= 1:
            print(f"  {name:22} {value:7.1f} ms")


def print_overfit_steps(config: MiniGPTConfig, ids: torch.Tensor) -> None:
    """Print after how many steps a fresh model has learnt 8 x 32 characters, over many seeds."""
    steps, failures = [], 0
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        result = check_overfit(MiniGPT(config), *get_batch(ids, B, config.block_size))
        steps.append(result.numbers["steps"])
        failures += result.failed
    print(
        f"\noverfit, {SEEDS} seeds: {failures} failures; steps {min(steps)} to {max(steps)}, "
        f"median {statistics.median(steps):.0f}"
    )


def eight_tests(model: MiniGPT, tokenizer: CharTokenizer, ids: torch.Tensor, steps: int) -> None:
    """Run them one after another; an assertion ends them."""
    T = model.config.block_size
    sample = ids[:1000].tolist()
    assert tokenizer.encode(tokenizer.decode(sample)) == sample
    assert int(ids.min()) >= 0
    assert int(ids.max()) < tokenizer.vocab_size
    inputs, targets = get_batch(ids, B, T)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    model.eval()
    logits, loss = model(inputs, targets)
    assert logits.shape == (B, T, tokenizer.vocab_size)
    assert loss is not None
    assert bool(loss.isfinite())
    changed = inputs.clone()
    changed[:, T // 2 :] = (changed[:, T // 2 :] + 1) % tokenizer.vocab_size
    with torch.no_grad():
        moved = (model(changed)[0] - model(inputs)[0])[:, : T // 2].abs().max()
    assert moved.item() < 1e-5
    trained = copy.deepcopy(model).train()
    trained(inputs, targets)[1].backward()  # type: ignore[union-attr]
    for parameter in trained.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.norm().item() >= 0
    optimizer = torch.optim.AdamW(trained.parameters(), lr=OVERFIT_RATE)
    before = [parameter.detach().clone() for parameter in trained.parameters()]
    optimizer.step()
    assert any(
        not torch.equal(old, new) for old, new in zip(before, trained.parameters(), strict=True)
    )
    if steps:
        overfit(MiniGPT(model.config), inputs, targets, steps)


def overfit(
    model: MiniGPT, inputs: torch.Tensor, targets: torch.Tensor, steps: int
) -> tuple[float, float]:
    """Memorise one batch; return the last loss and accuracy."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=OVERFIT_RATE)
    value, accuracy = 0.0, 0.0
    for _ in range(steps):
        logits, _ = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        accuracy = (logits.argmax(-1) == targets).float().mean().item()
    return value, accuracy


if __name__ == "__main__":
    main()
