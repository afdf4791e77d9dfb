"""What is read from a run: a cause only where the numbers point to it, and no alarm for health."""

import math

import pytest

from diagnostics.page import RunHistory
from diagnostics.page._run_readings import readings
from tests.diagnostics.page.test_run_findings import run_of


def test_a_healthy_run_is_not_warned_of() -> None:
    losses = [4.2, 3.0, 2.8, 2.7]
    run = run_of(
        validation_loss=losses,
        training_loss=[loss - 0.02 for loss in losses],
        train_loss=[4.2 - 0.05 * place for place in range(30)],
        learning_rate=[0.001] * 30,
        grad_norm=[1.5] * 30,
        clipped=[True] * 30,
    )
    run.vocab_size, run.unigram_entropy, run.clip_norm = 65, 3.3, 1.0
    said = readings(run)
    assert [reading.status for reading in said] == ["pass", "pass", "none", "pass", "none"]
    assert said[2].claim == (
        "underfitting so far: validation is at its lowest, and 0.02 nats above training"
    )
    assert said[4].claim.startswith("100 % of 30 updates were clipped: the limit 1, and not")


def only(run: RunHistory, word: str) -> tuple[str, str, str | None]:
    """The one reading that has the word."""
    [found] = [reading for reading in readings(run) if word in reading.claim]
    return found.status, found.claim, found.next_step


def test_overfitting_needs_a_gap_and_a_rise() -> None:
    run = run_of(validation_loss=[4.0, 3.0, 3.25], training_loss=[4.0, 2.9, 2.5])
    assert only(run, "overfitting") == (
        "warn",
        "overfitting: validation is 0.75 nats above training, and 0.25 above its lowest, at step "
        "10",
        "go on from the weights of step 10",
    )
    rise = run_of(validation_loss=[4.0, 3.0, 3.25], training_loss=[4.0, 3.0, 3.25])
    assert only(rise, "underfitting") == (
        "pass",
        "neither over- nor underfitting shows: validation is 0 nats above training",
        None,
    )


def test_a_rate_that_is_too_high_is_seen_in_the_loss() -> None:
    run = run_of(train_loss=[4.0] * 10 + [7.0] * 10, learning_rate=[0.3] * 20)
    status, claim, step = only(run, "learning rate")
    assert status == "warn"
    assert claim == (
        "a sign of too high a learning rate, peak 0.3: the training loss is 7, more than the 4 it "
        "began at"
    )
    assert step == "train again with a peak of 0.1"


@pytest.mark.parametrize(
    ("reason", "word", "peak"),
    [("loss_spike", "high", "0.1"), ("updates_too_small", "low", "0.9")],
)
def test_messages_of_the_monitor_are_signs_too(reason: str, word: str, peak: str) -> None:
    run = run_of(learning_rate=[0.3])
    run.events.append({"reason": f"monitor.{reason}", "claim": "the loss jumped", "step": 3})
    status, claim, step = only(run, "sign of too")
    assert status == "warn"
    assert claim == f"a sign of too {word} a learning rate, peak 0.3: the loss jumped"
    assert step == f"train again with a peak of {peak}"


def test_a_loss_that_is_not_finite_names_no_cause() -> None:
    """NaN has many; the post-mortem says which, where there is one."""
    run = run_of(train_loss=[4.0, math.nan], learning_rate=[0.1, 0.1])
    assert only(run, "became") == ("fail", "the training loss became nan at step 10", None)
    run.state.postmortem = "p.json"
    assert only(run, "became")[2] == "read p.json, which says where it began"
    assert not [reading for reading in readings(run) if "learning rate" in reading.claim]


def test_a_start_far_from_a_blind_guess_is_shown() -> None:
    run = run_of(validation_loss=[9.0])
    run.vocab_size = 65
    assert only(run, "began")[:2] == (
        "warn",
        "the validation loss began at 9, not near ln 65 = 4.174, a blind guess",
    )


def test_a_loss_at_the_entropy_of_single_tokens_uses_no_context() -> None:
    run = run_of(validation_loss=[4.2, 3.31])
    run.unigram_entropy = 3.3
    assert only(run, "context")[0] == "none"  # it may only just have begun
    run.state.kind = "finished"
    assert only(run, "context")[:2] == (
        "warn",
        "the validation loss 3.31 at step 10 is not below 3.3, what the frequencies of single "
        "tokens give: the context is not used yet",
    )
