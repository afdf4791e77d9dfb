"""The words of `training_step`: each fault, with its cause and remedy."""

from __future__ import annotations

from diagnostics._fault import Fault
from diagnostics._result import Status

WARN = Status.WARN
CLEAR = "call optimizer.zero_grad() once per step: before backward(), or after step()"
ORDER = "order the lines: zero_grad(), backward(), clip, step()"

EVAL_MODE = Fault(
    "training_step.eval_mode",
    "the step trains in eval mode: {count:module runs|modules run} with training off",
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
    "training_step.partly_eval",
    "{count:module is|modules are} trained in eval mode, the model as a whole in train mode",
    "train mode everywhere, unless these modules are frozen on purpose",
    EVAL_MODE.next_step,
    ("the step calls eval() on these modules, as is usual for frozen ones",),
    status=WARN,
)
NO_STEP = Fault(
    "training_step.no_step",
    "the optimizer is never stepped: {calls} calls leave every weight where it was",
    "one optimizer.step() per call",
    "call optimizer.step() after backward()",
)
OTHER_OPTIMIZER = Fault(
    "training_step.other_optimizer",
    "the optimizer that is stepped holds none of this model's parameters",
    "the optimizer of the model that is trained",
    "use the optimizer that the step is given, built after the model is final",
    ("the optimizer was built for an earlier model, a copy, or a wrapped one",),
)
OWN_UPDATE = Fault(
    "training_step.own_update",
    "the step moves the weights without any optimizer.step(), so its gradient is not seen",
    "optimizer.step(), for the gradient at that moment to be compared",
    "step through an optimizer, or compare the update with -rate * gradient by hand",
    status=WARN,
)
CLOSURE = Fault(
    "training_step.closure",
    "the optimizer computes its gradient itself, in step(closure), where it cannot be compared",
    "the gradient of the batch at step()",
    "nothing to mend if this is LBFGS or another optimizer that needs a closure",
    status=WARN,
)
STEPS_TWICE = Fault(
    "training_step.steps_twice",
    "one call steps the same parameters {times} times",
    "exactly once",
    "search the step for further calls of step(), scaler.step() or hooks that step",
    ("step() is called inside a loop, or by a scaler and by hand",),
)
NEW_OPTIMIZER = Fault(
    "training_step.new_optimizer",
    "every call steps another optimizer object: its moments start again at each step",
    "one optimizer for the whole run",
    "build the optimizer once, before the loop",
    ("the optimizer is built inside the step",),
)
ACCUMULATES = Fault(
    "training_step.accumulates",
    "the optimizer is stepped once in {calls} calls",
    "one step per call; micro-batches belong in Pipeline accumulate",
    "give the accumulating step as Pipeline(accumulate=...), where its mean is checked",
    ("the step accumulates gradients over {calls} calls",),
    status=WARN,
)
SKIPS = Fault(
    "training_step.skips",
    "{skipped} of {calls} calls make no step, on ordinary batches",
    "a step in every call, but for rare outbursts",
    "log how many steps are skipped in a run, and raise the limit if they are not rare",
    ("{why}",),
    status=WARN,
)
SKIP_KEEPS_GRADIENT = Fault(
    "training_step.skip_keeps_gradient",
    "a skipped step leaves its gradient, which the next step adds: it uses its own gradient plus "
    "{stale} times what was left",
    "this batch's gradient alone, whatever the call before did",
    "call optimizer.zero_grad() also where the step is skipped, before it returns",
    ("the call returns before zero_grad() where the gradient or the loss is too large",),
)
SKIPS_ALL = Fault(
    NO_STEP.reason,
    "none of {calls} calls steps, as their gradients are too large for the step; a tiny one does",
    "a step in every call, but for rare outbursts",
    "raise the limit above the norms of ordinary batches",
    ("a limit on the norm of the gradient is lower than that of ordinary batches",),
)
SKIPS_PILE_UP = Fault(
    SKIP_KEEPS_GRADIENT.reason,
    "a skipped step leaves its gradient, which the next call adds, so that none of {calls} calls "
    "steps; with a tiny gradient alone a call does",
    SKIP_KEEPS_GRADIENT.expected,
    SKIP_KEEPS_GRADIENT.next_step,
    SKIP_KEEPS_GRADIENT.causes,
)
OTHER_MODEL = Fault(
    "training_step.other_model",
    "the step never runs the model it is given: its gradient stays empty",
    "forward and backward on the model of the optimizer",
    "use the model that the step is given",
    ("the step closes over another model, such as an earlier instance or a copy",),
)
CLEARED = Fault(
    "training_step.cleared_gradient",
    "the gradient is empty when the optimizer steps: what backward() wrote is gone",
    "the gradient of the batch",
    ORDER,
    ("zero_grad() stands between backward() and step()",),
)
CLAMPED_LOSS = Fault(
    "training_step.clamped_loss",
    "the loss is cut to {value} before backward(): a batch whose loss is larger has no gradient",
    "a gradient from every batch, the largest from the worst",
    "remove the clamp on the loss; clip the norm of the gradient instead",
    ("loss.clamp(max={value}), or a minimum of the two: its slope is 0 beyond the limit",),
)
ZERO_GRADIENT = Fault(
    "training_step.zero_gradient",
    "backward() writes zeros only, although the model's own loss has a gradient of norm {own}",
    "the gradient of the batch",
    "print the loss and loss.grad_fn at each line between the model and backward()",
    ("the loss is multiplied by 0, or passes a function that is flat there, such as a clamp",),
)
NO_GRADIENT = Fault(
    "training_step.no_gradient",
    "the gradient is empty when the optimizer steps, although the model's loss has one",
    "the gradient of the batch",
    "print loss.requires_grad before backward(), and one p.grad after it",
    ("no_grad, detach or item cuts the loss off, or backward() is never called",),
)
NOT_FINITE = Fault(
    "training_step.not_finite",
    "the optimizer steps with a gradient that holds NaN or infinity",
    "a finite gradient; the model's own is finite on this batch",
    "check torch.isfinite(norm) of clip_grad_norm_'s result, and skip the step otherwise",
    ("a loss scale overflows, or the gradient is divided by 0",),
)
BEFORE_BACKWARD = Fault(
    "training_step.step_before_backward",
    "the gradient is empty when the optimizer steps: it is written after the step",
    "the gradient of the batch",
    ORDER,
    ("step() stands before backward(), and zero_grad() clears what that wrote",),
)
REFUSED = Fault(
    "training_step.step_before_backward",
    "the weights change between forward and backward(), so that the gradient is of neither",
    "backward() right after the forward pass, step() after it",
    ORDER,
    ("step() stands before backward()",),
)
STALE = Fault(
    "training_step.step_before_backward",
    "the optimizer uses the gradient of the batch before, not of this one",
    "the gradient of the batch that the step was given",
    ORDER,
    ("step() stands before backward()",),
)
NOT_CLEARED = Fault(
    "training_step.not_cleared",
    "the optimizer uses this gradient plus {stale} times what the last step left behind",
    "this batch's gradient alone",
    CLEAR,
    ("zero_grad() is missing, or reaches other parameters",),
)
UPHILL = Fault(
    "training_step.uphill",
    "the optimizer is given the gradient with the wrong sign: each step raises the loss",
    "the gradient of the loss (factor 1)",
    "remove the minus sign, or the maximize=True, that is one too many",
    ("the loss is negated before backward(), or maximize=True is set without need",),
)
PARTIAL = Fault(
    "training_step.partial_gradient",
    "{count:parameter has|parameters have} a gradient in the model, and none when the optimizer "
    "steps",
    "the gradient of every parameter",
    "print the names with p.grad is None right before step()",
    ("part of the gradient is cleared, or part of the model is frozen during the step",),
)
CLIP_BEFORE_UNSCALE = Fault(
    "training_step.clip_before_unscale",
    "the gradient is cut to a norm of {limit}: that is {nice} divided by {factor}",
    "a limit near 1 on the gradient that the optimizer uses",
    "call scaler.unscale_(optimizer) before clip_grad_norm_",
    ("the scaled gradient is clipped to {nice} first and divided by {factor} afterwards",),
)
CLIP_TINY = Fault(
    "training_step.clip_tiny",
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
    "training_step.clip_after_step",
    "the gradient is cut to norm {limit} after the optimizer has used it with norm {norm}",
    "clipping before step(); after it nothing is protected",
    ORDER,
    ("clip_grad_norm_ stands after step()",),
)
CLIP_NOTHING = Fault(
    "training_step.clip_of_nothing",
    "clip_grad_norm_ is given {given} parameters and finds no gradient to cut",
    "clipping between backward() and step(), where gradients are",
    "clip before the optimizer steps, and print what clip_grad_norm_ returns: it must not be 0",
    ("{why}",),
)
CLIP_EARLY = Fault(
    "training_step.clip_before_backward",
    "clip_grad_norm_ is called before backward(): it cuts what the last step left, and the new "
    "gradient is used as it is",
    "clipping between backward() and step()",
    ORDER,
    ("clip_grad_norm_ stands before backward()",),
)
CLIP_PARAMETERS = Fault(
    "training_step.clip_per_parameter",
    "each parameter's gradient is cut on its own, which turns the direction of the step",
    "one factor for all: the norm over all parameters is clipped",
    "call clip_grad_norm_(model.parameters(), limit) once, not per parameter",
    ("clip_grad_norm_ is called in a loop over parameters",),
)
RESCALED_PARAMETERS = Fault(
    "training_step.rescaled_per_parameter",
    "each parameter's gradient has a factor of its own, which turns the direction of the step",
    "one factor for all, unless the method is adaptive clipping",
    "nothing to mend if this is intended; otherwise look for loops over parameters",
    status=WARN,
)
SUM = Fault(
    "training_step.sum",
    "the gradient is {scale} times the model's own, once for each scored target of the batch",
    "the mean over targets (factor 1)",
    'use reduction="mean"',
    ("the loss of the step is a sum over tokens",),
)
NOT_UNSCALED = Fault(
    "training_step.not_unscaled",
    "the gradient that the optimizer uses is {scale} times the model's own",
    "factor 1",
    "step through the scaler, scaler.step(optimizer), which divides by the scale",
    ("the loss is scaled for mixed precision, and the gradient is never divided again",),
)
SCALE_CHANGES = Fault(
    "training_step.scale_changes",
    "in {share} of the calls the gradient is {factor} times the model's own, a power of two, and "
    "otherwise not",
    "factor 1 in every call",
    "divide by the scale that backward() was called with, and change the scale after step()",
    ("the loss scale is raised or lowered between backward() and the division by it",),
)
SCALED = Fault(
    "training_step.scaled",
    "the gradient that the optimizer uses is {scale} times the model's own",
    "factor 1, or clipping to a norm",
    "look for a factor on the loss: a division for accumulation, or a weight",
    (
        "the loss is divided for accumulation, although the step has one batch",
        "a loss scale is raised between backward() and the division by it",
    ),
    status=WARN,
)
SCALED_UP = Fault(
    SCALED.reason,
    SCALED.claim,
    SCALED.expected,
    "look for a second backward() on the same loss, and for a factor on the loss",
    ("backward() is called more than once, or the loss is multiplied by a weight",),
    status=WARN,
)
CHANGES = Fault(
    "training_step.rescaled",
    "from call to call the gradient is {low} to {high} times the model's own, and clipping to one "
    "norm does not explain it",
    "factor 1, or clipping to a norm",
    "print the norm of the gradient before and after each line between backward and step",
    status=WARN,
)
EXTRA = Fault(
    "training_step.extra_terms",
    "the gradient is the model's own plus {decay} times the weights",
    "the gradient of the model's own loss",
    "nothing to mend if a penalty is intended; AdamW's weight_decay is the usual place",
    ("the step adds an L2 penalty to the loss",),
    status=WARN,
)
OTHER = Fault(
    "training_step.other_gradient",
    "the gradient is not the one of the model's own loss on this batch (cosine {cosine})",
    "the same direction (cosine 1)",
    "print the loss of the step next to the model's own on one batch, term by term",
    ("the step adds a further loss or changes the gradient, which may be intended",),
    status=WARN,
)
UNRELATED = Fault(
    "training_step.unrelated_gradient",
    "the gradient has nothing to do with the model's loss on this batch (cosine {cosine})",
    "the same direction (cosine 1)",
    OTHER.next_step,
)
# by the hypothesis whose gradient fits
HYPOTHESES = {
    "same_batch": Fault(
        "training_step.same_batch",
        "the step trains on the first batch it was ever given, again and again",
        "the batch of the call",
        "use the inputs and targets that the step is given",
        ("next(iter(loader)) inside the step, or a batch kept from outside",),
    ),
    "last_batch": Fault(
        "training_step.last_batch",
        "the step trains on the batch of the call before",
        "the batch of the call",
        "use the inputs and targets that the step is given",
        ("a prefetched batch is used one step late",),
    ),
    "shifted_again": Fault(
        "training_step.shifted_again",
        "the step shifts targets that are shifted already: position t learns token t + 2",
        "logits at t against the targets at t",
        "drop the slices [:-1] and [1:] from the loss of the step",
        ("logits[:, :-1] is compared with targets[:, 1:] in the step",),
    ),
    "copy": Fault(
        "training_step.copies",
        "the step trains the model to predict its own input",
        "logits at t against the token after t",
        "give the loss the targets, not the inputs",
        ("the step computes its loss against the inputs",),
    ),
    "last_position": Fault(
        "training_step.last_position",
        "the step learns from the last position of each row only",
        "all scored positions",
        "use all logits (B, T, V) and all targets (B, T) in the loss",
        ("logits[:, -1] is compared with targets[:, -1], as in generation",),
    ),
    "half": Fault(
        "training_step.part_of_batch",
        "the step learns from the first half of the rows only",
        "all rows of the batch",
        "look for a slice of inputs and targets in the step",
        ("the batch is split, and only the first part is used",),
    ),
    "row": Fault(
        "training_step.part_of_batch",
        "the step learns from the first row only",
        "all rows of the batch",
        "look for an index [0] on inputs and targets in the step",
        ("the batch is indexed by [0]",),
    ),
}
AUTOCAST = Fault(
    "training_step.autocast_at_step",
    "the optimizer steps inside an autocast region, where products are rounded to low precision",
    "autocast around forward and loss only",
    "end the with block of autocast before backward()",
    ("the with block of autocast holds the whole step",),
    status=WARN,  # the updates of torch's own optimizers have no products that it would round
)
LOSS_AFTER = Fault(
    "training_step.loss_after_step",
    "the returned loss belongs to the weights after the step, not to those that made the gradient",
    "the loss that backward() was called on",
    "return the loss of the forward pass that backward() used",
    ("the loss is computed once more after step()",),
    status=WARN,
)
LOSS_BEFORE = Fault(
    "training_step.stale_loss",
    "the returned loss is that of the batch before",
    "the loss of this batch",
    "return the loss of the forward pass of this call",
    ("the loss is read before it is computed anew",),
)
LOSS_SMOOTHED = Fault(
    "training_step.smoothed_loss",
    "the returned loss is a running mean over calls, in which a spike is hidden",
    "the loss of this batch",
    "return the plain loss too, and smooth it where it is drawn",
    ("the step keeps a moving average of its loss",),
    status=WARN,
)
LOSS_SCALED = Fault(
    "training_step.loss_scaled",
    "the returned loss is {factor} times the loss of the batch",
    "factor 1: mean nats per token",
    "return the loss as it was before dividing or scaling",
    ("the divided (accumulation), summed or scaled (mixed precision) loss is returned",),
)
LOSS_OTHER = Fault(
    "training_step.other_loss",
    "the returned loss is {returned} nats, the loss of the batch {wanted} nats",
    "the loss that backward() was called on",
    "return loss.detach() of the forward pass of this call",
)
NO_LOSS = Fault(
    "training_step.no_loss",
    "the step returns no loss, so nobody can see a spike",
    "the loss of the batch as a number or a tensor",
    "return loss.detach()",
    status=WARN,
)
GRAPHS_PILE_UP = Fault(
    "training_step.keeps_graph",
    "after {count} calls the graph of every one of them is still in memory",
    "no graph left once the optimizer has stepped",
    "append loss.item() or loss.detach() wherever the step keeps losses, logits or states",
    ("a list or a running sum takes the loss itself, and with it the graph",),
    status=WARN,
)
KEEPS_GRAPH = Fault(
    "training_step.keeps_graph",
    "the returned loss still holds its graph: a list of losses keeps that memory",
    "a detached loss",
    "return loss.detach(), or loss.item() where waiting for the number is fine",
    ("the loss is returned without detach() or item()",),
    status=WARN,
)
