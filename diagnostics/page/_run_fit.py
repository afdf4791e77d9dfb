"""Whether the model uses its context, and whether it over- or underfits: losses of evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics._text import say
from diagnostics.page._run_findings import NOISE_NATS, distance, finite, is_broken, still_falls
from diagnostics.page._run_history import RunHistory
from diagnostics.page._run_reading import INITIAL_NATS, NEAR_NATS, TOO_HIGH, Reading, event_of
from diagnostics.page._thinning import Point

OVERFIT_GAP_NATS = 0.1  # with a rise: as `python -m minigpt.train` judges at the end of a run


def context_reading(run: RunHistory) -> Reading | None:
    """Compare the loss with the entropy of single tokens: a model that uses no context has that.

    A small validation part may lie below it by its choice of tokens, and a model that has learnt
    its text by heart far above: so the training loss has a say, where it is known.
    """
    points, entropy = finite(run.points("validation_loss")), run.unigram_entropy
    if not points or entropy is None or points[-1][0] == 0 or is_broken(run):
        return None
    step, loss = points[-1]
    training = dict(finite(run.points("training_loss"))).get(step)
    facts = {"loss": loss, "step": step, "entropy": entropy, "training": training}
    limit = entropy - NEAR_NATS
    if loss < limit and (training is None or training < limit):
        claim = say(
            "the validation loss {loss} at step {step} is below {entropy}, what the frequencies of "
            "single tokens give: the context is used",
            **facts,
        )
        return Reading("pass", claim)
    if training is not None and training < limit:
        claim = say(
            "the training loss {training} at step {step} is below {entropy}, what the frequencies "
            "of single tokens give, and the validation loss {loss} is not: what is learnt does not "
            "hold for the validation text",
            **facts,
        )
        return Reading("warn", claim)
    if loss < limit:
        claim = say(
            "the training loss {training} at step {step} is not below {entropy}, what the "
            "frequencies of single tokens give, and the validation loss {loss} is: that says "
            "nothing of the model, the validation text has other frequencies",
            **facts,
        )
        return Reading("warn", claim)
    claim = say(
        "the validation loss {loss} at step {step} is not below {entropy}, what the frequencies of "
        "single tokens give: the context is not used yet",
        **facts,
    )
    return Reading("none" if run.state.kind == "running" else "warn", claim)


def gap_reading(run: RunHistory) -> Reading | None:
    """Over- or underfitting, from two losses of the last evaluation that were measured alike."""
    points, gaps = finite(run.points("validation_loss")), finite(run.gap())
    if not gaps or points[-1][0] != gaps[-1][0] or points[-1][0] == 0 or is_broken(run):
        return None
    best, training = min(points, key=lambda point: point[1]), dict(run.points("training_loss"))
    rise, gap, now = points[-1][1] - best[1], gaps[-1][1], training[points[-1][0]]
    facts = {"gap": distance(gap), "rise": rise, "best": best[0], "now": now}
    then = training.get(best[0])
    if rise > NOISE_NATS and then is not None and now - then > rise / 2:
        claim = say(
            "the validation loss is {rise} above its lowest, at step {best}, and the training loss "
            "rose since then, from {then} to {now}: that is no overfitting",
            then=then,
            **facts,
        )
        return Reading("warn", claim)
    if rise > NOISE_NATS and gap > OVERFIT_GAP_NATS:
        claim = say(
            "overfitting: validation is {gap} training, and {rise} above its lowest, at step "
            "{best}",
            **facts,
        )
        better = say("use the weights of step {best}", **facts)
        if run.best_path is not None and run.best == best:
            better = say("use {path}, the weights of step {best}", path=run.best_path, **facts)
        return Reading("warn", claim, better)
    if not _has_learnt(run, points, now):
        return None  # neither is a word for a model that has not begun to learn
    return _fit(run, points, gap)


def _has_learnt(run: RunHistory, points: Sequence[Point], training: float) -> bool:
    if run.unigram_entropy is not None:
        return training < run.unigram_entropy - NEAR_NATS
    return points[0][0] != 0 or training < points[0][1] - INITIAL_NATS


def _fit(run: RunHistory, points: Sequence[Point], gap: float) -> Reading:
    facts = {"gap": distance(gap)}
    if not still_falls(points):
        claim = say("neither over- nor underfitting shows: validation is {gap} training", **facts)
        return Reading("pass", claim)
    if gap > OVERFIT_GAP_NATS:
        claim = say(
            "no overfitting so far: validation is {gap} training, and still falling", **facts
        )
        return Reading("none", claim)
    claim = say("underfitting so far: validation is still falling, and {gap} training", **facts)
    longer = run.state.kind in ("finished", "early") and event_of(run, TOO_HIGH) is None
    return Reading("none", claim, say("train again with more steps") if longer else None)
