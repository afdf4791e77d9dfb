"""Training runs in every state, their numbers made up so that each chart has something to show."""

from __future__ import annotations

import math

from diagnostics.page._run_history import RunHistory, RunState
from tests.pages import hostile

STEPS, EVERY = 2000, 100
SAMPLE = " falls, and the model says so:\n    for t in range(T): print(loss[t])\n\n" * 4


def running() -> RunHistory:
    """In the middle, with samples and a message."""
    run = _trained(until=1240)
    run.state = RunState(kind="running", seconds=754.2, written="2026-01-02 03:04:05")
    run.events.append(
        {
            "step": 700,
            "reason": "monitor.loss_spike",
            "claim": "the loss rose from 2.31 to 4.92 within one update",
            "expected": "at most 1 nat above the median of the last 50",
            "cause": "the gradient norm of that update is 31 times the usual one",
            "count": 3,
            "last_step": 910,
        }
    )
    return run


def finished() -> RunHistory:
    """At its end, overfitted."""
    run = _trained(until=STEPS)
    run.best_path = "checkpoints/mini_gpt_best.safetensors"
    run.state = RunState(kind="finished", seconds=1251.0, resumed_after=600)
    return run


def failed() -> RunHistory:
    """Ended by a loss that is not a number."""
    run = _trained(until=900)
    run.add(901, {"train_loss": math.nan, "grad_norm": math.inf, "clipped": True})
    run.state = RunState(
        kind="failed",
        message="the loss is nan at step 901; the last finite one was 2.412 at step 900",
        postmortem="checkpoints/postmortem-901/report.json",
        seconds=612.0,
    )
    return run


def begun() -> RunHistory:
    """Nothing measured yet."""
    return RunHistory(total_steps=STEPS, state=RunState(kind="running", seconds=0.4))


def hostile_run() -> RunHistory:
    """Texts from everywhere, and numbers that no chart can hold."""
    run = _trained(until=700)
    run.title = hostile.EVERYTHING
    run.facts = dict.fromkeys(hostile.TEXTS, hostile.EVERYTHING) | {hostile.EVERYTHING: "name"}
    run.best_path = hostile.EVERYTHING
    run.gaps.append(hostile.EVERYTHING)
    for number, text in enumerate(hostile.TEXTS.values()):
        run.add_sample(100 * number, text, prompt=text)
        run.events.append(
            {"step": number, "reason": text, "claim": text, "expected": text, "cause": text}
        )
    for step in (0, 1, 2, 3):
        run.add(step, {hostile.EVERYTHING: step, "a" * 10_000: 1e300 * (-1) ** step})
    run.add(710, {"train_loss": math.inf, "learning_rate": -math.inf, "tokens_per_second": 0.0})
    run.state = RunState(
        kind="failed", message=hostile.EVERYTHING, postmortem=hostile.TEXTS["tags"], seconds=1e9
    )
    return run


def _trained(*, until: int) -> RunHistory:
    run = RunHistory(
        title="Training run in checkpoints",
        total_steps=STEPS,
        vocab_size=65,
        unigram_entropy=3.31,
        clip_norm=1.0,
        facts={"command": "python -m minigpt.train --max-steps 2000", "parameters": "10,795,776"},
    )
    for step in range(until + 1):
        loss = 1.2 + 2.97 * math.exp(-step / 400)
        wobble = math.sin(12.9 * step) * math.sin(0.13 * step)
        norm = 0.8 + 0.25 * wobble
        row = {
            "train_loss": loss + 0.1 * wobble,
            "learning_rate": 1e-3 * min(step / 100, 0.55 + 0.45 * math.cos(math.pi * step / STEPS)),
            "grad_norm": norm,
            "clipped": norm > 1.0,
            "tokens_per_second": 48_000 + 900 * wobble,
        }
        run.add(step, row if step and step % 10 == 0 else {})
        if step % EVERY == 0:
            validation = loss + 0.01 + 4e-7 * max(0, step - 900) ** 2
            run.add(step, {"training_loss": loss, "validation_loss": validation})
            run.add_sample(step, SAMPLE, prompt="The loss")
    return run
