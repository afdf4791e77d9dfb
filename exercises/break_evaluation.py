"""Break the evaluation: report a number that is not the model's loss, or disturb the training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from exercises._symptom import train_briefly
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.evaluate import evaluate, evaluation_mode

ROWS = 16  # windows in one batch
STEPS = 60


def break_left_in_eval(lab: Lab) -> Pipeline:
    """Switch to eval mode and stay there: all training after it runs without dropout."""

    @torch.no_grad()
    def evaluate_once(model: nn.Module, ids: Tensor) -> float:
        was_training = False  # BROKEN: was was_training = model.training
        model.eval()
        loss = _mean_over_tokens(lab, model, ids)
        model.train(was_training)
        return loss

    return lab.pipeline(evaluate=evaluate_once)


def break_train_mode(lab: Lab) -> Pipeline:
    """Leave dropout on while the loss is measured."""
    config = MiniGPTConfig.debug(lab.tokenizer.vocab_size, dropout=0.2)

    def evaluate_once(model: nn.Module, ids: Tensor) -> float:
        with torch.no_grad():  # BROKEN: was with torch.no_grad(), evaluation_mode(model):
            return _mean_over_tokens(lab, model, ids)

    return lab.pipeline(evaluate=evaluate_once, edit_model=lambda model: MiniGPT(config))


def break_mean_of_means(lab: Lab) -> Pipeline:
    """Average the batches: the short one at the end weighs as much as a full one."""

    @torch.no_grad()
    def evaluate_once(model: nn.Module, ids: Tensor) -> float:
        nats, weights = 0.0, 0
        with evaluation_mode(model):
            for inputs, targets in _batches(lab, ids):
                weight = 1  # BROKEN: was weight = targets.numel()
                nats += float(model(inputs, targets)[1]) * weight
                weights += weight
        return nats / weights

    return lab.pipeline(evaluate=evaluate_once)


def break_ignores_ids(lab: Lab) -> Pipeline:
    """Take the ids from the surroundings: validation reports the training loss."""

    def evaluate_once(model: nn.Module, ids: Tensor) -> float:
        ids = lab.train_ids  # BROKEN: was ids = ids.long()
        return evaluate(model, ids, max_windows=64)  # type: ignore[arg-type]

    return lab.pipeline(evaluate=evaluate_once)


def _mean_over_tokens(lab: Lab, model: nn.Module, ids: Tensor) -> float:
    nats, tokens = 0.0, 0
    for inputs, targets in _batches(lab, ids):
        nats += float(model(inputs, targets)[1]) * targets.numel()
        tokens += targets.numel()
    return nats / tokens


def _batches(lab: Lab, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Cut ids (N,) into windows of a block, and the rest into a shorter one."""
    T = lab.config.block_size
    count = (len(ids) - 1) // T
    rows = ids[: count * T + 1].unfold(0, T + 1, T)  # (windows, T + 1)
    parts = [*rows.split(ROWS), ids[None, count * T :]]
    return [(part[:, :-1], part[:, 1:]) for part in parts if part.shape[1] > 1]


def symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Train briefly; return the reported loss, the honest one, and the mode that is left."""
    model, _ = train_briefly(lab, pipeline, STEPS)
    ids = lab.val_ids[: 17 * lab.config.block_size + 6]
    honest = evaluate(model, ids)  # type: ignore[arg-type]
    assert pipeline.evaluate is not None
    reported = float(pipeline.evaluate(model, ids))
    return {
        "reported validation loss": f"{reported:.4f} nats",
        "mean over all tokens": f"{honest:.4f} nats",
        "mode of the model afterwards": "train" if model.training else "eval",
    }


EXERCISE = Exercise(
    name="break_evaluation",
    question=(
        "An evaluation returns one number. What could be wrong with it although the number looks "
        "right, and what could it leave behind in the model?"
    ),
    bugs=(
        Bug(
            name="left_in_eval",
            break_it=break_left_in_eval,
            trips="evaluation",
            reason="evaluation.left_in_eval",
            note="The number is right. From the first evaluation on, dropout is off in training.",
            question=(
                "The number that is reported is right. What is different in every training step "
                "after the first evaluation, and in which curve would you see it at last?"
            ),
            hints=(
                "Leave the number alone, and look at the model before and after the call.",
                (
                    "Print model.training before and after an evaluation in the middle of "
                    "training. Healthy is True both times."
                ),
                (
                    "The mode has to be noted before eval() is called, and what was noted is given "
                    "back at the end."
                ),
            ),
            lesson=(
                "A function that measures may leave nothing behind: no mode, no gradient, no "
                "position of a random generator. Test what it changes as well as what it returns."
            ),
        ),
        Bug(
            name="train_mode",
            break_it=break_train_mode,
            trips="evaluation",
            reason="evaluation.train_mode",
            note="The loss is a little higher, and another one at each call.",
            question=(
                "The weights do not change between two evaluations of the same ids. Will the two "
                "numbers be equal, and on which side of the honest loss will they lie?"
            ),
            hints=(
                "Evaluate the same model on the same ids twice in a row, and compare all digits.",
                (
                    "Print model.training inside the evaluation. Healthy is False there, and the "
                    "two losses of the same weights are equal."
                ),
                (
                    "no_grad stops gradients and nothing else. Dropout stops when the model is put "
                    "into eval mode for the time of the measurement."
                ),
            ),
            lesson=(
                "no_grad and eval mode are two switches: one is about gradients, the other about "
                "what the layers compute. A measurement that does not repeat itself exactly has a "
                "source of chance in it; find it before you average it away."
            ),
            guide="The generalization gap",
        ),
        Bug(
            name="mean_of_means",
            break_it=break_mean_of_means,
            trips="evaluation",
            reason="evaluation.mean_of_means",
            level=2,
            note="With batches of equal size it would be right; the last one is shorter.",
            question=(
                "Under which condition on the sizes of the batches is this number right all the "
                "same, and what does one more token of text do to it?"
            ),
            hints=(
                (
                    "Print the number of targets of each batch beside its loss, the last batch "
                    "included."
                ),
                (
                    "Compute the sum of loss times targets over all batches, divided by all "
                    "targets. A healthy evaluation reports that; for the 550 ids of the table it "
                    "is 2.6410 nats."
                ),
                (
                    "Each batch loss is a mean already. It has to be weighted with the number of "
                    "tokens over which it is a mean."
                ),
            ),
            lesson=(
                "A mean of means is the mean only for groups of one size. Carry sums and counts, "
                "and divide once, at the end; the same holds for accuracy, for gradients of "
                "micro-batches and for several machines."
            ),
            guide="The average that moved",
        ),
        Bug(
            name="ignores_ids",
            break_it=break_ignores_ids,
            trips="evaluation",
            reason="evaluation.ignores_ids",
            level=2,
            note="The value is a true loss of true text. It belongs to the other split.",
            question=(
                "The function is called with training ids, then with validation ids. What will the "
                "gap between the two losses be, however long you train?"
            ),
            hints=(
                (
                    "Follow the argument ids through the function, and ask where each window that "
                    "is read comes from."
                ),
                (
                    "Evaluate on your ids, and then on random ids of the same length. A healthy "
                    "loss moves by far more than rounding; here the same number comes back."
                ),
                (
                    "The windows must be cut from the argument. A name from the surroundings must "
                    "not replace it."
                ),
            ),
            lesson=(
                "A function that ignores its argument answers every question with the same number. "
                "Change the input, and make sure that the output changes; it takes one line and "
                "finds caches, globals and typos."
            ),
            guide="The generalization gap",
        ),
    ),
    hint="Compare with the sum of nats over all tokens, divided once; then look at model.training.",
    lesson=(
        "Watch the model while it is evaluated: which windows it reads, in which mode, and what "
        "their tokens cost. The reported number must be the mean of exactly that."
    ),
    symptom=symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
