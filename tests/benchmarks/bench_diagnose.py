"""All checks on a debug-size Mini-GPT against the eight classic tests, written out by hand.

Run by hand: `python tests/benchmarks/bench_diagnose.py`.

The peer does what a person writes after reading a debugging guide: round trip, id range, shift,
forward, one causal split, gradients, one optimizer step, and 300 steps on one batch, with the loss
and the accuracy read at every step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from _timing import compare, print_comparisons
from torch.nn import functional

from diagnostics import Pipeline, diagnose
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, get_batch
from minigpt._parts import describe_run
from minigpt._training_state import TrainSettings
from minigpt.corpus import data_path, read_text

OVERFIT_STEPS, OVERFIT_RATE, B = 300, 1e-3, 8


def main() -> None:
    """Print the ratios of the full and the fast report to the eight tests with and without 300."""
    torch.set_num_threads(1)
    text = read_text(data_path("guide.txt"))
    tokenizer = CharTokenizer.from_text(text)
    ids = torch.tensor(tokenizer.encode(text))
    cut = len(ids) * 9 // 10
    config = MiniGPTConfig.debug(tokenizer.vocab_size)
    model = MiniGPT(config)
    settings = TrainSettings(max_steps=2000, warmup_steps=100)
    parts = describe_run(config, tokenizer, ids[:cut], ids[cut:], settings)

    def ours(fast: bool) -> Callable[[], object]:
        return lambda: diagnose(Pipeline(model, fresh=True, **parts), fast=fast)

    def peer(steps: int) -> Callable[[], object]:
        return lambda: eight_tests(model, tokenizer, ids[:cut], steps)

    print_comparisons(
        [
            compare("full report / eight tests", ours(False), peer(OVERFIT_STEPS), rounds=9),
            compare("--fast / eight tests", ours(True), peer(OVERFIT_STEPS), rounds=9),
            compare("--fast / seven tests, no overfit", ours(True), peer(0), rounds=9),
        ]
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
