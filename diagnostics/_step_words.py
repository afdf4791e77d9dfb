"""The words of `training_step` and `accumulation`: each fault, with its cause and remedy.

The name of the check is put before each reason by `verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diagnostics._optimizer_faults import Fault
from diagnostics._result import CheckResult, Status
from diagnostics._text import say

WARN = Status.WARN
_CLEAR = "call optimizer.zero_grad() once per step: before backward(), or after step()"
_ORDER = "order the lines: zero_grad(), backward(), clip, step()"


def verdict(
    check: str,
    fault: Fault,
    measured: str,
    numbers: dict[str, Any],
    *,
    names: Sequence[str] = (),
    **facts: Any,
) -> CheckResult:
    """Return the result of a fault, its {facts} filled in; names: of parameters or modules."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    facts = {"count": len(names), **facts}
    return CheckResult(
        check=check,
        status=fault.status,
        reason=f"{check}.{fault.reason}",
        claim=say(fault.claim, **facts),
        measured=measured,
        expected=say(fault.expected, **facts),
        where=say("{names}", names=shown) if names else "",
        causes=tuple(say(cause, **facts) for cause in fault.causes),
        next_step=say(fault.next_step, **facts),
        numbers=numbers,
    )


EVAL_MODE = Fault(
    "eval_mode",
    "the step trains the model in eval mode: {count} module(s) ran with training off",
    "train mode in every forward call that is trained on",
    "call model.train() at the start of the step, and after every evaluation",
    ("model.eval() is called before the forward pass, or train() does not reach all modules",),
)
EVAL_MODE_HARMLESS = Fault(
    EVAL_MODE.reason,
    EVAL_MODE.claim,
    "train mode; this model has no dropout, so that nothing differs yet",
    EVAL_MODE.next_step,
    EVAL_MODE.causes,
    status=WARN,
)
EVAL_MODE_PARTLY = Fault(
    "partly_eval",
    "{count} module(s) are trained in eval mode, and the model as a whole in train mode",
    "train mode everywhere, unless these modules are frozen on purpose",
    EVAL_MODE.next_step,
    ("the step calls eval() on these modules, as is usual for frozen ones",),
    status=WARN,
)
NO_STEP = Fault(
    "no_step",
    "the optimizer is never stepped: {calls} calls leave every weight where it was",
    "one optimizer.step() per call",
    "call optimizer.step() after backward()",
)
OTHER_OPTIMIZER = Fault(
    "other_optimizer",
    "the step steps an optimizer that holds none of this model's parameters",
    "the optimizer of the model that is trained",
    "use the optimizer that the step is given, built after the model is final",
    ("the optimizer was built for an earlier model, a copy, or a wrapped one",),
)
OWN_UPDATE = Fault(
    "own_update",
    "the step moves the weights without any optimizer.step(), so its gradient is not seen",
    "optimizer.step(), for the gradient at that moment to be compared",
    "step through an optimizer, or compare the update with -rate * gradient by hand",
    status=WARN,
)
CLOSURE = Fault(
    "closure",
    "the optimizer computes its gradient itself, in step(closure), where it cannot be compared",
    "the gradient of the batch at step()",
    "nothing to mend if this is LBFGS or another optimizer that needs a closure",
    status=WARN,
)
STEPS_TWICE = Fault(
    "steps_twice",
    "one call steps the same parameters {times} times",
    "exactly once",
    "search the step for further calls of step(), scaler.step() or hooks that step",
    ("step() is called inside a loop, or by a scaler and by hand",),
)
NEW_OPTIMIZER = Fault(
    "new_optimizer",
    "every call steps another optimizer object: its moments start again at each step",
    "one optimizer for the whole run",
    "build the optimizer once, before the loop",
    ("the optimizer is built inside the step",),
)
ACCUMULATES = Fault(
    "accumulates",
    "the optimizer is stepped in every {calls}th call only",
    "one step per call; micro-batches belong in Pipeline accumulate",
    "give the accumulating step as Pipeline(accumulate=...), where its mean is checked",
    ("the step accumulates gradients over {calls} calls",),
    status=WARN,
)
OTHER_MODEL = Fault(
    "other_model",
    "the step never runs the model it is given: its gradient stays empty",
    "forward and backward on the model of the optimizer",
    "use the model that the step is given",
    ("the step closes over another model, such as an earlier instance or a copy",),
)
CLEARED = Fault(
    "cleared_gradient",
    "the gradient is empty when the optimizer steps: what backward() wrote is gone",
    "the gradient of the batch",
    _ORDER,
    ("zero_grad() stands between backward() and step()",),
)
NO_GRADIENT = Fault(
    "no_gradient",
    "the gradient is empty when the optimizer steps, although the model's loss has one",
    "the gradient of the batch",
    "print loss.requires_grad before backward(), and one p.grad after it",
    ("no_grad, detach or item cuts the loss off, or backward() is never called",),
)
NOT_FINITE = Fault(
    "not_finite",
    "the optimizer steps with a gradient that holds NaN or infinity",
    "a finite gradient; the model's own is finite on this batch",
    "check torch.isfinite(norm) of clip_grad_norm_'s result, and skip the step otherwise",
    ("a loss scale overflows, or the gradient is divided by 0",),
)
BEFORE_BACKWARD = Fault(
    "step_before_backward",
    "the gradient is empty when the optimizer steps: it is written after the step",
    "the gradient of the batch",
    _ORDER,
    ("step() stands before backward(), and zero_grad() clears what that wrote",),
)
REFUSED = Fault(
    "step_before_backward",
    "the weights change between forward and backward(), so that the gradient is of neither",
    "backward() right after the forward pass, step() after it",
    _ORDER,
    ("step() stands before backward()",),
)
STALE = Fault(
    "step_before_backward",
    "the optimizer uses the gradient of the batch before, not of this one",
    "the gradient of the batch that the step was given",
    _ORDER,
    ("step() stands before backward()",),
)
NOT_CLEARED = Fault(
    "not_cleared",
    "the optimizer uses this gradient plus {stale} times what the last step left behind",
    "this batch's gradient alone",
    _CLEAR,
    ("zero_grad() is missing, or reaches other parameters",),
)
UPHILL = Fault(
    "uphill",
    "the optimizer is given the gradient with the wrong sign: each step raises the loss",
    "the gradient of the loss (factor 1)",
    "remove the minus sign, or the maximize=True, that is one too many",
    ("the loss is negated before backward(), or maximize=True is set without need",),
)
PARTIAL = Fault(
    "partial_gradient",
    "{count} parameters have a gradient in the model, and none when the optimizer steps",
    "the gradient of every parameter",
    "print the names with p.grad is None right before step()",
    ("part of the gradient is cleared, or part of the model is frozen during the step",),
)
CLIP_BEFORE_UNSCALE = Fault(
    "clip_before_unscale",
    "the gradient is cut to a norm of {limit}: that is {nice} divided by {factor}",
    "a limit near 1 on the gradient that the optimizer uses",
    "call scaler.unscale_(optimizer) before clip_grad_norm_",
    ("the scaled gradient is clipped to {nice} first and divided by {factor} afterwards",),
)
CLIP_TINY = Fault(
    "clip_tiny",
    "the gradient is cut to a norm of {limit}",
    "a limit of about 0.1 to 10, which cuts rare outbursts only",
    "raise the limit to 1.0, or clip after all scaling",
    ("the limit is mistyped, or clipping happens before unscaling or dividing",),
)
CLIP_LOW = Fault(
    CLIP_TINY.reason,
    CLIP_TINY.claim,
    CLIP_TINY.expected,
    CLIP_TINY.next_step,
    CLIP_TINY.causes,
    status=WARN,
)
CLIP_AFTER = Fault(
    "clip_after_step",
    "the gradient is cut to norm {limit} after the optimizer has used it with norm {norm}",
    "clipping before step(); after it nothing is protected",
    _ORDER,
    ("clip_grad_norm_ stands after step()",),
)
CLIP_PARAMETERS = Fault(
    "clip_per_parameter",
    "each parameter's gradient is cut on its own, which turns the direction of the step",
    "one factor for all: the norm over all parameters is clipped",
    "call clip_grad_norm_(model.parameters(), limit) once, not per parameter",
    ("clip_grad_norm_ is called in a loop over parameters",),
)
RESCALED_PARAMETERS = Fault(
    "rescaled_per_parameter",
    "each parameter's gradient has a factor of its own, which turns the direction of the step",
    "one factor for all, unless the method is adaptive clipping",
    "nothing to mend if this is intended; otherwise look for loops over parameters",
    status=WARN,
)
SUM = Fault(
    "sum",
    "the gradient is {scale} times the model's own: as many as the batch has scored targets",
    "the mean over targets (factor 1)",
    'use reduction="mean"',
    ("the loss of the step is a sum over tokens",),
)
NOT_UNSCALED = Fault(
    "not_unscaled",
    "the gradient that the optimizer uses is {scale} times the model's own",
    "factor 1",
    "step through the scaler, scaler.step(optimizer), which divides by the scale",
    ("the loss is scaled for mixed precision, and the gradient is never divided again",),
)
SCALED = Fault(
    "scaled",
    "the gradient that the optimizer uses is {scale} times the model's own",
    "factor 1, or clipping to a norm",
    "look for a factor on the loss: a division for accumulation, or a weight",
    ("the loss is divided for accumulation, although the step has one batch",),
    status=WARN,
)
CHANGES = Fault(
    "rescaled",
    "the gradient is rescaled by {low} to {high} times, by no rule that clipping follows",
    "factor 1, or clipping to a norm",
    "print the norm of the gradient before and after each line between backward and step",
    status=WARN,
)
EXTRA = Fault(
    "extra_terms",
    "the gradient is the model's own plus {decay} times the weights",
    "the gradient of the model's own loss",
    "nothing to mend if a penalty is intended; AdamW's weight_decay is the usual place",
    ("the step adds an L2 penalty to the loss",),
    status=WARN,
)
OTHER = Fault(
    "other_gradient",
    "the gradient is not the one of the model's own loss on this batch (cosine {cosine})",
    "the same direction (cosine 1)",
    "print the loss of the step next to the model's own on one batch, term by term",
    ("the step adds a further loss or changes the gradient, which may be intended",),
    status=WARN,
)
UNRELATED = Fault(
    "unrelated_gradient",
    "the gradient has nothing to do with the model's loss on this batch (cosine {cosine})",
    "the same direction (cosine 1)",
    OTHER.next_step,
)
# by the hypothesis whose gradient fits
HYPOTHESES = {
    "same_batch": Fault(
        "same_batch",
        "the step trains on the first batch it was ever given, again and again",
        "the batch of the call",
        "use the inputs and targets that the step is given",
        ("next(iter(loader)) inside the step, or a batch kept from outside",),
    ),
    "last_batch": Fault(
        "last_batch",
        "the step trains on the batch of the call before",
        "the batch of the call",
        "use the inputs and targets that the step is given",
        ("a prefetched batch is used one step late",),
    ),
    "shifted_again": Fault(
        "shifted_again",
        "the step shifts targets that are shifted already: position t learns token t + 2",
        "logits at t against the targets at t",
        "drop the slices [:-1] and [1:] from the loss of the step",
        ("logits[:, :-1] is compared with targets[:, 1:] in the step",),
    ),
    "copy": Fault(
        "copies",
        "the step trains the model to predict its own input",
        "logits at t against the token after t",
        "give the loss the targets, not the inputs",
        ("the step computes its loss against the inputs",),
    ),
    "last_position": Fault(
        "last_position",
        "the step learns from the last position of each row only",
        "all scored positions",
        "use all logits (B, T, V) and all targets (B, T) in the loss",
        ("logits[:, -1] is compared with targets[:, -1], as in generation",),
    ),
    "half": Fault(
        "part_of_batch",
        "the step learns from the first half of the rows only",
        "all rows of the batch",
        "look for a slice of inputs and targets in the step",
        ("the batch is split, and only the first part is used",),
    ),
    "row": Fault(
        "part_of_batch",
        "the step learns from the first row only",
        "all rows of the batch",
        "look for an index [0] on inputs and targets in the step",
        ("the batch is indexed by [0]",),
    ),
}
LOSS_AFTER = Fault(
    "loss_after_step",
    "the returned loss is that of the weights after the step, not of those it was taken with",
    "the loss that backward() was called on",
    "return the loss of the forward pass that backward() used",
    ("the loss is computed once more after step()",),
    status=WARN,
)
LOSS_BEFORE = Fault(
    "stale_loss",
    "the returned loss is that of the batch before",
    "the loss of this batch",
    "return the loss of the forward pass of this call",
    ("the loss is read before it is computed anew",),
)
LOSS_SMOOTHED = Fault(
    "smoothed_loss",
    "the returned loss is a running mean over calls, in which a spike is hidden",
    "the loss of this batch",
    "return the plain loss too, and smooth it where it is drawn",
    ("the step keeps a moving average of its loss",),
    status=WARN,
)
LOSS_SCALED = Fault(
    "loss_scaled",
    "the returned loss is {factor} times the loss of the batch",
    "factor 1: mean nats per token",
    "return the loss as it was before dividing or scaling",
    ("the divided (accumulation), summed or scaled (mixed precision) loss is returned",),
)
LOSS_OTHER = Fault(
    "other_loss",
    "the returned loss is {returned} where the trained batch has {wanted}",
    "the loss that backward() was called on",
    "return loss.detach() of the forward pass of this call",
)
NO_LOSS = Fault(
    "no_loss",
    "the step returns no loss, so nobody can see a spike",
    "the loss of the batch as a number or a tensor",
    "return loss.detach()",
    status=WARN,
)
KEEPS_GRAPH = Fault(
    "keeps_graph",
    "the returned loss still holds its graph: a list of losses keeps that memory",
    "a detached loss",
    "return loss.detach(), or loss.item() where waiting for the number is fine",
    ("the loss is returned without detach() or item()",),
    status=WARN,
)

# ---- accumulation ---------------------------------------------------------------------------

NOT_DIVIDED = Fault(
    "not_divided",
    "the gradients of {parts} micro-batches are added, not averaged: {parts} times too large",
    "the mean over all scored tokens",
    "divide each loss by the scored tokens of the whole window before backward()",
    ("backward() is called on each mean loss without a division",),
)
MEAN_OF_MEANS = Fault(
    "mean_of_means",
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
    "only_last",
    "only the last of {parts} micro-batches counts",
    "all micro-batches of the window",
    "call zero_grad() once, before the first micro-batch",
    ("zero_grad() stands inside the loop over micro-batches",),
)
DROPPED = Fault(
    "dropped",
    "micro-batch(es) {dropped} of {parts} leave no trace in the gradient",
    "all micro-batches of the window",
    "print the norm of one p.grad after each backward()",
    ("the loop ends too early or starts too late, or skips what it should not",),
)
DIVIDED_TWICE = Fault(
    "divided_twice",
    "the gradient is {factor} times that of one large batch: divided by {parts} once too often",
    "factor 1",
    "divide once: the loss, or the gradient",
    ("both the loss and the gradient, or the learning rate's batch, are divided",),
)
ACCUMULATED_SUM = Fault(
    "sum",
    "the gradient is {factor} times that of one large batch: a sum over {tokens} tokens",
    "the mean over tokens",
    "divide by the number of scored tokens in the window",
    ("the losses are sums, and nothing divides them",),
)
FIXED_DIVISOR = Fault(
    "fixed_divisor",
    "the divisor stays {divisor} when the window holds {parts} micro-batches",
    "the number of micro-batches that there are",
    "divide by len(batches), not by a constant",
    ("the number of micro-batches is a constant of the loop",),
    status=WARN,  # right as long as every window is full
)
WRONG_SCALE = Fault(
    "scaled",
    "the gradient is {factor} times that of one large batch",
    "factor 1, or clipping to a norm",
    "print the factor on each loss, and the norm before and after every line up to step()",
)
UNEVEN = Fault(
    "uneven",
    "the micro-batches do not count by their tokens: a token weighs from {low} to {high}",
    "weight 1 for every token",
    "print the factor with which each loss is multiplied before backward()",
)
PARTIAL_WINDOW = Fault(
    "partial_window_dropped",
    "a window of {parts} instead of {full} micro-batches is not stepped: its gradient is lost",
    "one step per window, also for the last one of an epoch",
    "step when the window is full or the data end",
    ("step() waits for a count that the last window does not reach",),
)
SKIPPED_COUNTED = Fault(
    "skipped_counted",
    "a micro-batch without a scored token is left out, and still counts in the divisor",
    "the mean over the micro-batches that contribute",
    "divide by the scored tokens, where such a micro-batch counts 0",
    ("the loop goes on after a NaN loss, and divides by the number of all micro-batches",),
)
NAN_ON_EMPTY = Fault(
    "nan_on_empty",
    "a micro-batch without a scored token turns the whole gradient into NaN",
    "a finite gradient from the others",
    "sum the losses and divide by the scored tokens of the window, or skip such a micro-batch",
    ("the mean over 0 tokens is 0 / 0",),
    status=WARN,
)
LOSS_LAST = Fault(
    "loss_of_last",
    "the returned loss is that of the last micro-batch alone",
    "the mean over the window",
    "add up the losses of the window, weighted as in the gradient",
    ("the variable of the loop is returned",),
    status=WARN,
)
