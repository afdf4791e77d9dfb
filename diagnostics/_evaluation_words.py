"""What each wrong formula of an evaluation means, in words."""

from __future__ import annotations

_WEIGH = "add up loss x tokens of each batch, and divide once by all tokens"

# reason: (claim, cause, next step)
FORMULAS = {
    "evaluation.mean_of_means": (
        "the loss is a mean of batch means, in which a short batch weighs as much as a full one",
        "the losses of batches or rows of unequal length are averaged as equals",
        _WEIGH,
    ),
    "evaluation.first_batch_only": (
        "the loss is that of the first batch, although more are read",
        "the loop returns too early, or keeps its first loss only",
        _WEIGH,
    ),
    "evaluation.last_batch_only": (
        "the loss is that of the last batch, although more are read",
        "the loop variable is returned in place of the mean",
        _WEIGH,
    ),
    "evaluation.last_batch_dropped": (
        "the last batch is read and not counted",
        "the sum is taken before the loop adds its last loss, or a slice ends one early",
        _WEIGH,
    ),
    "evaluation.batches_miscounted": (
        "the sum of losses is divided by another number of batches than was read",
        "the counter starts at 1, or counts one batch too few",
        _WEIGH,
    ),
    "evaluation.length_off_by_one": (
        "the sum of nats is divided by another number of tokens than was scored",
        "T tokens are counted where T - 1 are scored, or the other way round",
        "count the targets that were scored, not the inputs that were read",
    ),
    "evaluation.perplexity": (
        "the value is an exponential, a perplexity, not nats",
        "exp() is applied to the losses",
        "return the mean loss; take its exp() where perplexity is printed, after averaging",
    ),
    "evaluation.exp_inside_mean": (
        "the value is the logarithm of a mean of exponentials: exp() is taken before averaging",
        "perplexities of tokens or of batches are averaged, and large ones outweigh the rest",
        "average the nats first, and take exp() once, of their mean",
    ),
    "evaluation.bits": (
        "the value is in bits, not in nats",
        "the loss is divided by ln 2",
        "return nats, and convert where it is printed",
    ),
    "evaluation.sign": (
        "the value is the mean log-probability: nats with the sign turned",
        "log-probabilities are averaged without the minus",
        "return minus the mean log-probability",
    ),
    "evaluation.sum": (
        "the value is a sum, not a mean over tokens",
        "the losses are added up and not divided",
        _WEIGH,
    ),
    "evaluation.divided_again": (
        "the mean is divided once more",
        "a mean over batches is divided by their number again, as for accumulation",
        "divide once, by the number of scored tokens",
    ),
    "evaluation.padding_counted": (
        "padding is scored like text",
        "the padded end of a short row is not ignored, or the mask that ignores it is off by one",
        "set the targets of padding to ignore_index, and count the others",
    ),
    "evaluation.not_shifted": (
        "each position is scored on the token it has just read",
        "logits and ids are compared without the shift by one",
        "compare logits[:, :-1] with ids[:, 1:]",
    ),
    "evaluation.shifted_twice": (
        "each position is scored on the token after the next",
        "the targets are shifted by the loop and once more by the model or the metric",
        "shift in one place only",
    ),
    "evaluation.value": (
        "the value is not the mean nats per token of what the model read",
        "",
        "recompute it by hand for one batch: cross_entropy of the logits with the next tokens",
    ),
}
