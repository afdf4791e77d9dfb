"""The words of the optimizer check: each fault that it can name, with its cause and remedy."""

from __future__ import annotations

from diagnostics._fault import Fault
from diagnostics._result import Status

FOREIGN = Fault(
    "optimizer.foreign_parameters",
    "the optimizer holds {count:parameter that is|parameters that are} not this model's",
    "only parameters of the model that is trained",
    "build the optimizer from the model, after the model is final",
    (
        "the model was built anew, copied or wrapped after the optimizer was made",
        "layers were replaced after the optimizer was made",
    ),
)
IGNORED_ARGUMENT = Fault(
    "optimizer.foreign_parameters",
    "make_optimizer, asked for a copy's optimizer, returns one over "
    "{count:other parameter|other parameters}",
    "the parameters of the model that make_optimizer is given",
    "build it from the argument: lambda model: AdamW(model.parameters(), ...)",
    ("make_optimizer ignores its argument and uses a model from outside",),
)
MISSING = Fault(
    "optimizer.missing_parameters",
    "{count} of {total:trainable parameter is|trainable parameters are} in no group: no step "
    "ever moves them",
    "0: every trainable parameter is in exactly one group",
    "add what is left over to a group, or freeze it with requires_grad_(False)",
    ("the filter that sorts names or shapes into groups leaves these out",),
)
REPEATED = Fault(
    "optimizer.repeated_parameters",
    "a parameter is in the optimizer more than once, and is stepped as often",
    "0: every trainable parameter is in exactly one group",
    "build groups from model.named_parameters(), which lists a tied tensor once",
    ("a tied tensor was listed under both of its names",),
)
UNREGISTERED = Fault(
    "optimizer.unregistered_parameters",
    "the loss trains {count:tensor|tensors} that model.parameters() does not list",
    "every tensor that gets a gradient is a parameter of the model and of the optimizer",
    "keep layers in nn.ModuleList or nn.ModuleDict, and build none inside forward",
    (
        "layers are kept in a plain list or dict, which registers nothing",
        "a layer is built inside forward, with new weights at every call",
    ),
)
NEEDS_CLOSURE = Fault(
    "optimizer.needs_closure",
    "{kind} computes its gradients itself, in step(closure): only its groups were looked at",
    "a step() that uses the gradients that are there",
    "nothing to mend if this is LBFGS or another optimizer that needs a closure",
    status=Status.WARN,
)
NOT_FINITE = Fault(
    "optimizer.not_finite",
    "one step turns {count} of {total:parameter|parameters} into NaN or infinity",
    "finite weights",
    "print the learning rate, then the state of the first of these parameters",
)
NO_LOSS = Fault(
    NOT_FINITE.reason,
    "the loss of the batch is {first} before the first step, so that no step can be judged by it",
    "a finite loss",
    "python -m diagnostics --only forward_hooks,loss",
)
ZERO_DIVISION = Fault(
    NOT_FINITE.reason,
    NOT_FINITE.claim,
    NOT_FINITE.expected,
    "raise the step counter before it is used, so that the first step is step 1",
    ("the step counter is 0 in the first step: 1 - beta ** 0 divides by 0",),
)
DOES_NOT_MOVE = Fault(
    "optimizer.does_not_move",
    "one step moves none of the {total:parameter|parameters} that have a gradient",
    "every one of them moves",
    "print [group['lr'] for group in optimizer.param_groups]",
)
STILL = Fault(
    "optimizer.some_do_not_move",
    "one step leaves {count} of {total:parameter|parameters} that have a gradient where they are",
    "every one of them moves, by more than weight decay alone",
    "print the group and the state of the first of these parameters",
)
PARTLY = Fault(
    "optimizer.partly_moved",
    "one step moves only some elements of {count} of {total:parameter|parameters}",
    "every element with a gradient moves",
    "compare the parameter before and after one step, element by element",
    ("the update is written to a part or a copy of the tensor (is it contiguous?)",),
)
UPHILL = Fault(
    "optimizer.uphill",
    "one step goes uphill for {count} of {total:parameter|parameters}: along the gradient, not "
    "against it",
    "motion against the gradient, which lowers the loss",
    "print the sign of (after - before) * gradient for one weight: it must be negative",
    ("maximize=True, a negative learning rate, or a sign lost in the update",),
)
DECAY_SIGN = Fault(
    "optimizer.decay_sign",
    "without a gradient, one step makes the weights of {count} of {total:parameter|parameters} "
    "grow",
    "weight decay pulls weights toward 0",
    "subtract the decay: weight -= rate * decay * weight",
    ("the decay is added where it should be subtracted",),
)
COUPLED = Fault(
    "optimizer.coupled_decay",
    "weight decay goes through the scaling by gradient size in {count} of "
    "{total:parameter|parameters}: a weight that is twice as large is not pulled twice as hard",
    "decay proportional to the weight, as in AdamW",
    "use torch.optim.AdamW, where weight_decay means what recipes mean by it",
    ("the decay is added to the gradient, as torch.optim.Adam does with weight_decay",),
    status=Status.WARN,
)
COUPLED_ADAMW = Fault(
    COUPLED.reason,
    "{kind} adds weight decay to the gradient, before the averages, in {count} of {total} "
    "parameters: that is Adam with an L2 penalty, and not AdamW",
    "the weights shrink by rate * weight_decay apart from the update, as AdamW says",
    "multiply the weight by 1 - rate * weight_decay, and leave the gradient as it is",
    ("grad + weight_decay * weight enters the averages",),
)
DECAY_IGNORED = Fault(
    "optimizer.decay_ignored",
    "the groups say weight_decay {decay}, and no matrix shrinks without a gradient",
    "weights that shrink by rate * weight_decay",
    "search step() for the place where group['weight_decay'] is read",
    ("the setting is not read, or is read under another name",),
    status=Status.WARN,  # a rule of its own may decay by other means
)
DECAY_STRONG = Fault(
    "optimizer.decay_too_strong",
    "weight decay alone takes {share:%} of a weight in one step, in {count} of "
    "{total:parameter|parameters}",
    "rate * weight_decay, which is 0.01 % for a rate of 1e-3 and a decay of 0.1",
    "multiply the decay by the learning rate before it is subtracted",
    ("the decay is not multiplied by the learning rate",),
)
DECAY_SAID = Fault(
    DECAY_STRONG.reason,
    DECAY_STRONG.claim,
    DECAY_STRONG.expected,
    "make weight_decay smaller: its product with the rate is taken from a weight at every step",
    ("rate * weight_decay of the groups is that large",),
)
DECAY_AFTER = Fault(
    "optimizer.decay_after_update",
    "weight decay is taken from the weights that are already updated in {count} of {total} "
    "parameters",
    "decay of the weights that the gradient was computed at",
    "put the line of the decay before the line of the update",
    ("weight *= 1 - rate * decay stands after the update: a share rate * decay of it is lost",),
    status=Status.WARN,  # a published variant, and too small a change to matter
)
DECAY_UNSCALED = Fault(
    "optimizer.decay_without_rate",
    "weight decay is not multiplied by the learning rate in {count} of "
    "{total:parameter|parameters}",
    "rate * weight_decay * weight per step",
    "multiply the decay by group['lr'], or say that this is intended",
    ("the decay is subtracted as weight_decay * weight",),
    status=Status.WARN,  # the AdamW paper allows a decay apart from the rate
)
DECAY_TWICE = Fault(
    "optimizer.decay_twice",
    "weight decay is applied twice per step in {count} of {total:parameter|parameters}",
    "once per step",
    "keep one of the two lines that decay",
    ("the decay is added to the gradient and taken from the weight, or two loops apply it",),
)
NO_CORRECTION = Fault(
    "optimizer.no_bias_correction",
    "Adam's first step is {ratio} learning rates instead of 1 in {count} of "
    "{total:parameter|parameters}",
    "1: divided by 1 - beta ** step, both averages cancel in the first step",
    "divide the averages by 1 - beta1 ** step and 1 - beta2 ** step",
    ("{how}",),
)
STEP_COUNTER = Fault(
    "optimizer.step_counter",
    "Adam's bias correction counts its steps in another way in {count} of "
    "{total:parameter|parameters}",
    "step 1, 2, 3 ... for every parameter, one more at each call of step()",
    "count steps once per call of step(), beginning with 1",
    ("{how}",),
)
AVERAGES = Fault(
    "optimizer.wrong_averages",
    "{kind} does not average gradients as Adam does in {count} of {total:parameter|parameters}",
    "beta1 * first + (1 - beta1) * grad, beta2 * second + (1 - beta2) * grad ** 2, and its root",
    "compare the lines of the two averages with the formulas of Adam, one by one",
    ("{how}",),
)
EPS = Fault(
    "optimizer.eps_placement",
    "eps stands in another place than in torch in {count} of {total:parameter|parameters}, which "
    "changes the updates where gradients are as small as eps",
    "root(second / (1 - beta2 ** step)) + eps",
    "nothing to mend if this is intended; otherwise add eps last, after root and correction",
    ("{how}",),
    status=Status.WARN,  # libraries differ here by design
)
MOMENTUM_IGNORED = Fault(
    "optimizer.momentum_ignored",
    "{kind} has a momentum of {momentum} in its settings and uses none in {count} of {total} "
    "parameters",
    "a buffer that keeps momentum times its last value",
    "search step() for the buffer: is it kept in self.state from one call to the next?",
    ("the buffer is made anew at every step, or momentum is not read",),
)
OTHER_RULE = Fault(
    "optimizer.other_rule",
    "{kind} is named like a rule that its updates do not follow in {count} of "
    "{total:parameter|parameters}",
    "the updates of torch's {kind} with the same settings and gradients",
    "compare five updates with torch.optim.{known}, parameter by parameter",
    status=Status.WARN,  # a variant of one's own may have kept the name
)
GROUP_EMPTY = Fault(
    "optimizer.no_decay_group_empty",
    "the group without weight decay is empty, so that {count:bias|biases} and gains of norms decay",
    "a group that holds the parameters it was made for",
    "choose by shape: decay for parameters with ndim >= 2, none for the others",
    ("the list of names to leave out holds names that this model does not have",),
)
DECAY_SWAPPED = Fault(
    "optimizer.decay_swapped",
    "weight decay pulls {count:bias or gain|biases and gains} of this model and none of its "
    "matrices",
    "decay on matrices; biases and gains of norms are what recipes leave out",
    "exchange the two groups: decay for parameters with ndim >= 2, none for the others",
    ("the two lists of parameters are exchanged",),
)
DECAY_UNEVEN = Fault(
    "optimizer.decay_uneven",
    "{count} of {total:parameter|parameters} of one kind, {kind}, decay, and the others do not",
    "all parameters of a kind in one group",
    "choose by shape: decay for parameters with ndim >= 2, none for the others",
    ("the list of names to leave out matches some of them only",),
)
GAINS_DECAY = Fault(
    "optimizer.gains_decay",
    "biases are left out of weight decay, and {count:gain of a norm is|gains of norms are} not",
    "no decay for parameters with ndim < 2: it pulls the gains from 1 to 0",
    "choose by shape: decay for parameters with ndim >= 2, none for the others",
    ("the list of names to leave out does not match the norms of this model",),
    status=Status.WARN,  # leaving out the biases alone is a recipe of its own
)
TOO_LARGE = Fault(
    "optimizer.update_too_large",
    "five steps on one batch drive the loss from {first} to {last} nats",
    "a loss of at most {limit} nats, about what knowing nothing costs",
    "divide the learning rate ({rate}) by 10 and run this check again",
    ("the learning rate is far too high: the second update is {ratio} of the weights' size",),
)
RISES = Fault(
    "optimizer.loss_rises",
    TOO_LARGE.claim,
    TOO_LARGE.expected,
    "begin with a warm-up of 100 steps, or halve the learning rate ({rate})",
    ("without a warm-up, the first steps are too long",),
    status=Status.WARN,
)
STUCK_AT_ZERO = Fault(
    "optimizer.stuck_at_zero",
    "{count:parameter begins|parameters begin} at 0 and {count:has|have} a gradient, and no step "
    "moves {count:it|them}",
    "every parameter with a gradient moves, also from 0",
    "take a factor of 1 where the norm of a parameter is 0",
    ("the update is multiplied by the size of the weights, as a trust ratio is",),
)
ROUNDING = Fault(
    "optimizer.lost_to_rounding",
    "only {share:%} of the elements that have a gradient move in five steps: updates are lost to "
    "rounding",
    "at least half; in float64 all of them move",
    "keep a float32 copy of the weights for the optimizer, or raise the learning rate",
    ("an update below half a rounding step of its weight changes nothing, as in bfloat16",),
)
ROUNDING_SOME = Fault(
    "optimizer.some_lost_to_rounding",
    "{count:parameter moves|parameters move} in float64, but not at all in the dtype of the model",
    "updates larger than half a rounding step of the weights",
    "keep the gains of norms in float32, or a float32 copy of the weights for the optimizer",
    ROUNDING.causes,
    status=Status.WARN,  # usual for the gains of norms in bfloat16, which begin at 1
)
TOO_SMALL = Fault(
    "optimizer.update_too_small",
    "one update is {ratio} times the size of the weights",
    "at least 1e-7; Adam's first steps at a rate of 1e-3 measure 0.003 to 0.06",
    "multiply the learning rate ({rate}) by 100 and compare the losses of 100 steps",
    ("the learning rate is far too low",),
    status=Status.WARN,
)
