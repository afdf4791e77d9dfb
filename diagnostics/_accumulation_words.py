"""The words of `accumulation`: each fault, with its cause and remedy."""

from __future__ import annotations

from dataclasses import replace

from diagnostics import _step_words as step
from diagnostics._fault import Fault

WARN = step.WARN

# what a step over micro-batches can do wrong as any other step can
EVAL_MODE = replace(step.EVAL_MODE, reason="accumulation.eval_mode")
EVAL_MODE_HARMLESS = replace(step.EVAL_MODE_HARMLESS, reason="accumulation.eval_mode")
EVAL_MODE_PARTLY = replace(step.EVAL_MODE_PARTLY, reason="accumulation.partly_eval")
NO_STEP = replace(step.NO_STEP, reason="accumulation.no_step")
OTHER_OPTIMIZER = replace(step.OTHER_OPTIMIZER, reason="accumulation.other_optimizer")
OWN_UPDATE = replace(step.OWN_UPDATE, reason="accumulation.own_update")
CLOSURE = replace(step.CLOSURE, reason="accumulation.closure")
STEPS_TWICE = replace(step.STEPS_TWICE, reason="accumulation.steps_twice")
CLEARED = replace(step.CLEARED, reason="accumulation.cleared_gradient")
NOT_FINITE = replace(step.NOT_FINITE, reason="accumulation.not_finite")
NOT_CLEARED = replace(step.NOT_CLEARED, reason="accumulation.not_cleared")
OTHER = replace(step.OTHER, reason="accumulation.other_gradient")
LOSS_SCALED = replace(step.LOSS_SCALED, reason="accumulation.loss_scaled")
LOSS_OTHER = replace(step.LOSS_OTHER, reason="accumulation.other_loss")
NO_LOSS = replace(step.NO_LOSS, reason="accumulation.no_loss")
KEEPS_GRAPH = replace(step.KEEPS_GRAPH, reason="accumulation.keeps_graph")

NOT_DIVIDED = Fault(
    "accumulation.not_divided",
    "the gradients of {parts} micro-batches are added, not averaged: {parts} times too large",
    "the mean over all scored tokens",
    "divide each loss by the scored tokens of the whole window before backward()",
    ("backward() is called on each mean loss without a division",),
)
MEAN_OF_MEANS = Fault(
    "accumulation.mean_of_means",
    "every micro-batch counts the same, whether it scores {few} or {many} tokens",
    "every token counts the same, as in one large batch",
    "weight each loss with its scored tokens over those of the whole window",
    ("each mean loss is divided by the number of micro-batches",),
)
MEAN_OF_MEANS_HARMLESS = Fault(
    MEAN_OF_MEANS.reason,
    MEAN_OF_MEANS.claim,
    "every token counts the same; your batches score all targets, where both are equal",
    MEAN_OF_MEANS.next_step,
    MEAN_OF_MEANS.causes,
    status=WARN,
)
ONLY_LAST = Fault(
    "accumulation.only_last",
    "only the last of {parts} micro-batches counts",
    "all micro-batches of the window",
    "call zero_grad() once, before the first micro-batch",
    ("zero_grad() stands inside the loop over micro-batches",),
)
DROPPED = Fault(
    "accumulation.dropped",
    "{count:micro-batch leaves|micro-batches leave} no trace in the gradient: {dropped} of {parts}",
    "all micro-batches of the window",
    "print the norm of one p.grad after each backward()",
    ("the loop ends too early or starts too late, or skips what it should not",),
)
DIVIDED_TWICE = Fault(
    "accumulation.divided_twice",
    "the gradient is {factor} times that of one large batch: divided by {parts} once too often",
    "factor 1",
    "divide once: the loss, or the gradient",
    ("the loss is divided, and the gradient once more",),
)
ACCUMULATED_SUM = Fault(
    "accumulation.sum",
    "the gradient is {factor} times that of one large batch: a sum over {tokens} tokens",
    "the mean over tokens",
    "divide by the number of scored tokens in the window",
    ("the losses are sums, and nothing divides them",),
)
FIXED_DIVISOR = Fault(
    "accumulation.fixed_divisor",
    "the divisor stays {divisor} when the window holds {parts} micro-batches",
    "the number of micro-batches that there are",
    "divide by len(batches), not by a constant",
    ("the number of micro-batches is a constant of the loop",),
    status=WARN,  # right as long as every window is full
)
WRONG_SCALE = Fault(
    "accumulation.scaled",
    "the gradient is {factor} times that of one large batch",
    "factor 1, or clipping to a norm",
    "print the factor on each loss, and the norm before and after every line up to step()",
)
UNEVEN = Fault(
    "accumulation.uneven",
    "the micro-batches do not count by their tokens: a token weighs from {low} to {high}",
    "weight 1 for every token",
    "print the factor with which each loss is multiplied before backward()",
)
CLIPPED_INSIDE = Fault(
    "accumulation.clipped_inside",
    "the gradient is cut to a norm of {limit} after each micro-batch: a token of the first weighs "
    "{first}, one of the last {last}",
    "weight 1 for every token, and one cut of the whole gradient",
    "clip once, after the last backward() and before step()",
    ("clip_grad_norm_ stands inside the loop over micro-batches and cuts the running sum",),
)
PARTIAL_WINDOW = Fault(
    "accumulation.partial_window_dropped",
    "a window of {parts} instead of {full} micro-batches is not stepped: its gradient is lost",
    "one step per window, also for the last one of an epoch",
    "step when the window is full, and when the data ends",
    ("step() waits for a count that the last window does not reach",),
)
SKIPPED_COUNTED = Fault(
    "accumulation.skipped_counted",
    "a micro-batch without a scored token is left out, and still counts in the divisor",
    "the mean over the micro-batches that contribute",
    "divide by the scored tokens, where such a micro-batch counts 0",
    ("the loop goes on after a NaN loss, and divides by the number of all micro-batches",),
)
SPOILED_COUNTED = Fault(
    "accumulation.skipped_counted",
    "a micro-batch whose loss is NaN is left out, and still counts in the divisor: the step is "
    "{factor} of what it should be",
    "the mean over the micro-batches that contribute",
    "count micro-batches, or their scored tokens, after the NaN is found, and divide by that",
    SKIPPED_COUNTED.causes,
)
NAN_ON_EMPTY = Fault(
    "accumulation.nan_on_empty",
    "a micro-batch without a scored token turns the whole gradient into NaN",
    "a finite gradient from the others",
    "sum the losses and divide by the scored tokens of the window, or skip such a micro-batch",
    ("the mean over 0 tokens is 0 / 0",),
    status=WARN,
)
NAN_LOSS_ON_EMPTY = Fault(
    "accumulation.nan_loss_on_empty",
    "a micro-batch without a scored token turns the returned loss into NaN; the gradient is finite",
    "the mean over the micro-batches that score something",
    "leave such a micro-batch out, or sum losses and divide by the scored tokens of the window",
    NAN_ON_EMPTY.causes,
    status=WARN,
)
LOSS_LAST = Fault(
    "accumulation.loss_of_last",
    "the returned loss is that of the last micro-batch alone",
    "the mean over the window",
    "add up the losses of the window, weighted as in the gradient",
    ("the variable of the loop is returned",),
    status=WARN,
)
