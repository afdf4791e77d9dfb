"""What `loss` says about each reading of a reported loss: claim, cause, next step, status.

A reading that a healthy design can have on purpose is a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagnostics._result import Status


@dataclass(frozen=True)
class Verdict:
    """What is said about one reading; {parameter} and {ignore} are filled in."""

    claim: str
    cause: str
    next_step: str
    status: Status = Status.FAIL


_NEXT = "compare with functional.cross_entropy(logits.flatten(0, 1), targets.flatten())"
_OWN = '; an objective of your own is declared with allow=("loss.mismatch",)'
_PAIRS = "pair logits[:, t] with the token at t + 1: shift in the loader or in the model, once"
_IN_LOADER = (
    "set the targets of padding to {ignore} in the loader, or pass ignore_index to the loss"
)
VERDICTS = {
    "loss.not_shifted": Verdict(
        "the loss scores each position against its own input token, not the next one",
        "neither the batch nor the model shifts, or the loss reads the inputs as targets",
        _PAIRS,
    ),
    "loss.shifted_twice": Verdict(
        "the loss scores each position against the token two ahead, not the next one",
        'loader and model both shift; a model that is meant to needs labels="same" to be declared',
        _PAIRS,
    ),
    "loss.shifted_backward": Verdict(
        "the loss scores each position against the token before it",
        "logits[:, 1:] meets targets[:, :-1]: the slices are exchanged",
        _PAIRS,
    ),
    "loss.low_precision": Verdict(
        "the loss is computed in 16 bits, where numbers near 4 lie 0.004 (float16) or 0.03 "
        "(bfloat16) apart",
        "the logits are float16 or bfloat16 when cross_entropy takes its exponentials and sums",
        "cast before the loss: functional.cross_entropy(logits.float().flatten(0, 1), ...)",
    ),
    "loss.last_target_dropped": Verdict(
        "the last target of every row is not scored",
        "the loss takes its targets from inputs[:, 1:], or cuts one position too many",
        _PAIRS,
    ),
    "loss.first_target_dropped": Verdict(
        "the first target of every row is not scored", "a slice starts one too late", _PAIRS
    ),
    "loss.last_position_only": Verdict(
        "only the last position of each row is scored",
        "logits[:, -1] is what generation needs; training needs every position",
        "compute the loss before the logits are cut to the last position",
    ),
    "loss.first_position_only": Verdict(
        "only the first position of each row is scored", "an index 0 stands for a slice", _NEXT
    ),
    "loss.wrapped_target": Verdict(
        "the last position of each row is scored against the row's first token",
        "targets are made with roll(-1), which carries the first token round to the end",
        "cut instead of rolling: logits[:, :-1] with targets[:, 1:]",
    ),
    "loss.double_softmax": Verdict(
        "the logits pass through softmax before cross-entropy, which applies it again",
        "probabilities are handed to a loss that expects raw scores",
        "hand the head's raw output to cross_entropy",
    ),
    "loss.probabilities_returned": Verdict(
        "the model returns probabilities in place of logits; its loss takes their log rightly",
        "softmax is the last layer of the model",
        "make sure that nothing after the model applies softmax again",
        Status.WARN,
    ),
    "loss.summed": Verdict(
        "the loss is the sum over all scored targets, not their mean",
        'reduction="sum"',
        'use reduction="mean", or divide by the number of scored targets',
    ),
    "loss.summed_over_time": Verdict(
        "the loss is a sum over time and a mean over rows only",
        "the sum is divided by the batch size",
        "divide by the number of scored targets",
    ),
    "loss.summed_over_rows": Verdict(
        "the loss is a sum over rows and a mean over time only",
        "the sum is divided by the length",
        "divide by the number of scored targets",
    ),
    "loss.denominator_counts_ignored": Verdict(
        "the loss is divided by all positions, although the ignored ones add nothing",
        "(loss * mask).mean() in place of (loss * mask).sum() / mask.sum()",
        "divide by the number of scored targets",
    ),
    "loss.mean_of_row_means": Verdict(
        "the loss is a mean of row means: a token in a short row counts more than in a long one",
        "the mean is taken per row first, and then over rows",
        "sum over all scored targets, then divide by their number",
    ),
    "loss.ignored_counted": Verdict(
        "targets set to ignore_index still change the loss",
        "the loss and the loader do not agree on the value that marks an ignored target",
        "pass ignore_index to the loss, and the same value as Pipeline(ignore_index=...)",
    ),
    "loss.ignores_real_token": Verdict(
        "targets with token id {parameter} are not scored at all",
        "ignore_index={parameter} in the loss collides with a real token",
        "use -100 for ignored targets; if the id is padding, declare pad_id={parameter}",
    ),
    "loss.padding_counted": Verdict(
        "{parameter} targets of the batch are padding after padding, and the loss counts them",
        "the targets hold the pad id where they should hold ignore_index",
        _IN_LOADER,
    ),
    "loss.flattened_in_another_order": Verdict(
        "logits and targets are flattened in different orders: positions meet foreign targets",
        "a transpose or permute is missing before reshape(-1, V)",
        "flatten (B, T, V) logits with flatten(0, 1), and (B, T) targets with flatten()",
    ),
    "loss.softmax_over_another_axis": Verdict(
        "probabilities are normalised over rows or positions of the batch, not over the vocabulary",
        "softmax or log_softmax is given dim=0 or dim=1 in place of dim=-1",
        "logits.log_softmax(dim=-1), or cross_entropy on the logits themselves",
    ),
    "loss.averaged_over_vocabulary": Verdict(
        "the loss is the cross-entropy divided by {parameter}, the width of the logits",
        'the mean runs over the vocabulary as well, as in kl_div with reduction="mean"',
        "sum over the vocabulary first, then take the mean over the scored targets",
    ),
    "loss.arguments_swapped": Verdict(
        "prediction and truth have changed places in the cross-entropy",
        "a hand-written cross-entropy takes its two arguments in the other order",
        _NEXT,
    ),
    "loss.no_log": Verdict(
        "the loss is the negative probability of the target, without a logarithm",
        "nll_loss is given softmax where it expects log_softmax",
        _NEXT,
    ),
    "loss.not_normalised": Verdict(
        "the loss is the negative raw logit of the target: pushing all logits up lowers it",
        "nll_loss is given logits where it expects log_softmax",
        _NEXT,
    ),
    "loss.squared_error": Verdict(
        "the loss is the mean squared error against one-hot targets",
        "a regression loss stands where cross-entropy belongs",
        _NEXT,
    ),
    "loss.binary": Verdict(
        "the loss is a mean of V separate binary cross-entropies",
        "binary_cross_entropy stands where cross_entropy belongs",
        _NEXT,
    ),
    "loss.error_rate": Verdict(
        "the loss is the share of wrong predictions, which has no gradient",
        "a metric is returned in place of the loss",
        _NEXT,
    ),
    "loss.perplexity": Verdict(
        "the loss is exp(cross-entropy), the perplexity",
        "exp is applied inside the model",
        "return the cross-entropy; take exp of its mean where it is printed",
    ),
    "loss.sign_flipped": Verdict(
        "the loss has the opposite sign: training makes the model worse",
        "a minus is missing or doubled in a hand-written cross-entropy",
        _NEXT,
    ),
    "loss.base_two": Verdict(
        "the loss is in bits, not in nats",
        "log2 in place of log",
        "return nats; divide by ln 2 where bits are printed",
    ),
    "loss.divided": Verdict(
        "the loss is the cross-entropy divided by {parameter}",
        "a division for accumulation over micro-batches sits inside the model",
        "divide in the training loop, where the micro-batches are counted",
    ),
    "loss.multiplied": Verdict(
        "the loss is the cross-entropy times {parameter}",
        "a constant factor is applied inside the model",
        "return the mean cross-entropy itself",
    ),
    "loss.clamped": Verdict(
        "the loss is cut off at {parameter}: where it is larger it has no gradient",
        "clamp(max=...) on the loss in place of clipping the gradients",
        "remove the clamp; clip gradients with clip_grad_norm_",
    ),
    "loss.probability_floor": Verdict(
        "the loss is -log(p + e) with e = exp(-{parameter}): confident mistakes are not punished",
        "a small constant inside the logarithm, to avoid log(0)",
        "use cross_entropy on logits, which needs no such constant",
        Status.WARN,
    ),
    "loss.temperature": Verdict(
        "the loss is computed from the logits times {parameter}, not from the logits returned",
        "a temperature or scale is applied on one of the two paths only",
        "compute the loss from the logits that are returned",
    ),
    "loss.label_smoothing": Verdict(
        "the loss includes label smoothing of {parameter}",
        "label_smoothing is set; its loss cannot reach 0 and is not comparable with others",
        "evaluate without it; nothing to mend if it is meant",
        Status.WARN,
    ),
    "loss.z_loss": Verdict(
        "the loss includes a z-loss: {parameter} * logsumexp(logits)**2",
        "a penalty on the normaliser is added, usually on purpose",
        "evaluate without it; nothing to mend if it is meant",
        Status.WARN,
    ),
    "loss.z_loss_sign": Verdict(
        "the loss is lowered by a large normaliser: {parameter} * logsumexp(logits)**2 is added",
        "the z-loss has the wrong sign: it rewards what it is meant to keep small",
        "add the square with a positive factor, as in + 1e-4 * logsumexp(logits)**2",
    ),
    "loss.entropy_term": Verdict(
        "the loss includes {parameter} times the entropy of the prediction",
        "a confidence penalty is added, usually on purpose",
        "evaluate without it; nothing to mend if it is meant",
        Status.WARN,
    ),
    "loss.extra_term": Verdict(
        "the loss is the cross-entropy plus {parameter}, which no target changes",
        "an auxiliary term is added, such as load balancing or a weight penalty",
        "report the cross-entropy separately; nothing to mend if the term is meant",
        Status.WARN,
    ),
    "loss.targets_dropped": Verdict(
        "{parameter:%} of the targets have no influence on the loss",
        "a slice or a mask leaves positions or rows out",
        _NEXT,
    ),
    "loss.remainder_dropped": Verdict(
        "{parameter:%} of the targets, the last of a batch, have no influence on the loss",
        "the loss is taken in chunks of the flattened tokens, and a rest that fills none is lost",
        "make the number of chunks -(-N // size), not N // size: torch.split keeps the rest",
    ),
    "loss.ignores_targets": Verdict(
        "the loss stays the same when the targets are exchanged",
        "the targets are overwritten, or the loss reads something else",
        _NEXT,
    ),
    "loss.differs_when_large": Verdict(
        "the loss is right at ordinary weights and differs when it is large",
        "a clamp, a floor or a rounding acts on large losses",
        _NEXT,
    ),
}
MISMATCH = Verdict("the reported loss is not the cross-entropy of the logits", "", _NEXT + _OWN)
