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
    assert [reading.status for reading in said] == ["pass", "pass", "none", "none", "none"]
    assert said[2].claim == (
        "underfitting so far: validation is still falling, and 0.02 nats above training"
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
        "use the weights of step 10",
    )
    run.best_path = "best.safetensors"
    assert only(run, "overfitting")[2] == "use best.safetensors, the weights of step 10"
    level = run_of(validation_loss=[4.0, 3.0, 3.0], training_loss=[4.0, 2.95, 2.95])
    assert only(level, "underfitting") == (
        "pass",
        "neither over- nor underfitting shows: validation is 0.05 nats above training",
        None,
    )
    gap = run_of(validation_loss=[4.0, 3.0, 2.5], training_loss=[4.0, 2.5, 1.5])
    assert only(gap, "overfitting") == (
        "none",
        "no overfitting so far: validation is 1 nats above training, and still falling",
        None,
    )


def test_a_training_loss_that_rises_too_is_no_overfitting() -> None:
    """As with too high a rate: the gap has always been there, and both losses rise."""
    run = run_of(validation_loss=[4.0, 3.0, 3.5], training_loss=[4.0, 2.8, 3.3])
    status, claim, step = only(run, "overfitting")
    assert (status, step) == ("warn", None)
    assert claim == (
        "the validation loss is 0.5 above its lowest, at step 10, and the training loss rose since "
        "then, from 2.8 to 3.3: that is no overfitting"
    )
    noisy = run_of(validation_loss=[4.0, 3.0, 5.0], training_loss=[4.0, 0.04, 0.05])
    assert only(noisy, "overfitting")[1].startswith("overfitting: validation is 4.95 nats above")


def test_a_model_that_has_not_begun_to_learn_is_not_called_fine() -> None:
    """Rate 0: both losses stay at ln V, where there is no gap and no rise either."""
    run = run_of(validation_loss=[4.18, 4.18, 4.18], training_loss=[4.17, 4.17, 4.17])
    assert readings(run) == []
    run.unigram_entropy = 3.3
    assert [reading.claim.partition(":")[0] for reading in readings(run)] == [
        "the validation loss 4.18 at step 20 is not below 3.3, what the frequencies of single "
        "tokens give"
    ]


def test_the_loss_before_the_first_update_counts_for_the_lowest() -> None:
    """Lowest of those after it is no lowest: 30, 20, 10 after 4 is no underfitting."""
    run = run_of(validation_loss=[4.0, 30.0, 20.0, 10.0], training_loss=[4.0, 30.0, 20.0, 10.0])
    assert not [reading for reading in readings(run) if "underfitting" in reading.claim]


def test_a_rate_of_0_moves_nothing() -> None:
    run = run_of(learning_rate=[0.0] * 3)
    assert only(run, "rate")[1] == "the learning rate is 0: no update moves a weight"


def test_no_rate_is_called_fine() -> None:
    """A fall alone does not say that another rate would not do better."""
    falling = {"train_loss": [4.0 - 0.1 * place for place in range(20)]}
    run = run_of(learning_rate=[0.05] * 20, **falling)
    status, claim, step = only(run, "learning rate")
    assert (status, step) == ("none", None)
    assert claim.startswith(
        "the training loss fell from 3.9 (from step 0) to 2.55 (up to step 190) at"
    )
    run.unigram_entropy = 2.5  # no more than the frequencies of single tokens give
    assert not [reading for reading in readings(run) if "learning rate" in reading.claim]


@pytest.mark.parametrize(("clipped", "status"), [(4, "pass"), (16, "none")])
def test_a_share_of_clipped_updates_below_nearly_all(clipped: int, status: str) -> None:
    run = run_of(grad_norm=[1.5] * 20, clipped=[place < clipped for place in range(20)])
    run.clip_norm = 1.0
    assert only(run, "clipped") == (
        status,
        f"{5 * clipped} % of 20 updates were clipped at 1",
        None,
    )


def test_a_limit_on_norms_after_clipping_is_compared_with_nothing() -> None:
    run = run_of(grad_norm=[1.0] * 20, clipped=[True] * 20)
    run.clip_norm = 1.0
    assert only(run, "clipped")[2] is None


def test_a_rate_that_is_too_high_is_seen_in_the_loss() -> None:
    run = run_of(train_loss=[4.0] * 10 + [7.0] * 10, learning_rate=[0.3] * 20)
    status, claim, step = only(run, "learning rate")
    assert status == "warn"
    assert claim == (
        "a sign of too high a learning rate, peak 0.3: the training loss is 7 up to step "
        "190, more than the 4 from step 0"
    )
    assert step == "train again with a peak of 0.1"


@pytest.mark.parametrize(
    ("reason", "word", "peak"),
    [("loss_spike", "high", "0.1"), ("updates_too_small", "low", "3")],
)
def test_messages_of_the_monitor_are_signs_too(reason: str, word: str, peak: str) -> None:
    run = run_of(learning_rate=[0.3])
    run.events.append({"reason": f"monitor.{reason}", "claim": "the loss jumped", "measured": 1e-4})
    status, claim, step = only(run, "sign of too")
    assert status == "warn"
    assert claim == f"a sign of too {word} a learning rate, peak 0.3: the loss jumped"
    assert step == f"train again with a peak of {peak}"


def test_a_rate_that_nobody_meant_is_not_multiplied() -> None:
    run = run_of(learning_rate=[1e-12])
    moved = {"reason": "monitor.updates_too_small", "claim": "c", "measured": 1e-12}
    run.events.append(moved)
    assert only(run, "sign of too")[2] == "compare the learning rate with the one that was meant"


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


def test_a_vocabulary_of_nothing_is_compared_with_nothing() -> None:
    run = run_of(validation_loss=[9.0])
    run.vocab_size = 0
    assert readings(run) == []


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


def test_the_training_loss_has_a_say_about_the_context() -> None:
    """A few tokens of validation may be frequent ones; a text learnt by heart does not carry."""
    lucky = run_of(validation_loss=[4.2, 3.0], training_loss=[4.2, 4.18])
    lucky.unigram_entropy = 3.3
    assert only(lucky, "frequencies")[:2] == (
        "warn",
        "the training loss 4.18 at step 10 is not below 3.3, what the frequencies of single tokens "
        "give, and the validation loss 3 is: that says nothing of the model, the validation text "
        "has other frequencies",
    )
    by_heart = run_of(validation_loss=[4.2, 5.0], training_loss=[4.2, 0.1])
    by_heart.unigram_entropy = 3.3
    assert only(by_heart, "frequencies")[1].endswith(
        "and the validation loss 5 is not: what is learnt does not hold for the validation text"
    )
