"""The words of the optimizer check: each fault that it can name, with its cause and remedy."""

from __future__ import annotations

from dataclasses import dataclass

from diagnostics._result import Status


@dataclass(frozen=True)
class Fault:
    """A reason and its words; {names} are filled in by the check."""

    reason: str
    claim: str
    expected: str
    next_step: str
    causes: tuple[str, ...] = ()
    status: Status = Status.FAIL


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
    "{count} of {total} trainable parameters are in no group: no step ever moves them",
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
NOT_FINITE = Fault(
    "optimizer.not_finite",
    "one step turns {count} of {total} parameters into NaN or infinity",
    "finite weights",
    "print the learning rate, then the state of the first of these parameters",
)
DOES_NOT_MOVE = Fault(
    "optimizer.does_not_move",
    "one step moves none of the {total} parameters that have a gradient",
    "every one of them moves",
    "print [group['lr'] for group in optimizer.param_groups]",
)
STILL = Fault(
    "optimizer.some_do_not_move",
    "one step leaves {count} of {total} parameters that have a gradient where they are",
    "every one of them moves, by more than weight decay alone",
    "print the group and the state of the first of these parameters",
)
PARTLY = Fault(
    "optimizer.partly_moved",
    "one step moves only some elements of {count} of {total} parameters",
    "every element with a gradient moves",
    "compare the parameter before and after one step, element by element",
    ("the update is written to a part or a copy of the tensor (is it contiguous?)",),
)
UPHILL = Fault(
    "optimizer.uphill",
    "one step goes uphill for {count} of {total} parameters: along the gradient, not against it",
    "motion against the gradient, which lowers the loss",
    "print the sign of (after - before) * gradient for one weight: it must be negative",
    ("maximize=True, a negative learning rate, or a sign lost in the update",),
)
DECAY_SIGN = Fault(
    "optimizer.decay_sign",
    "without a gradient, one step makes the weights of {count} of {total} parameters grow",
    "weight decay pulls weights toward 0",
    "subtract the decay: weight -= rate * decay * weight",
    ("the decay is added where it should be subtracted",),
)
COUPLED = Fault(
    "optimizer.coupled_decay",
    "weight decay goes through Adam's scaling in {count} of {total} parameters: its strength no "
    "longer depends on the size of a weight",
    "decay proportional to the weight, as in AdamW",
    "use torch.optim.AdamW, where weight_decay means what recipes mean by it",
    ("torch.optim.Adam with weight_decay adds the decay to the gradient",),
    status=Status.WARN,
)
NO_CORRECTION = Fault(
    "optimizer.no_bias_correction",
    "Adam's first step is {ratio} learning rates instead of 1 in {count} of {total} parameters",
    "1: divided by 1 - beta ** step, both averages cancel in the first step",
    "divide the averages by 1 - beta1 ** step and 1 - beta2 ** step",
    ("the averages are used without bias correction",),
)
STEP_COUNTER = Fault(
    "optimizer.step_counter",
    "Adam's first step is taken as a later one ({ratio} learning rates instead of 1) in {count} "
    "of {total} parameters",
    "every parameter's first step counts as step 1",
    "count steps once per call of step(), not once per parameter",
    ("the step counter is raised inside the loop over parameters, or starts too high",),
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
    "about 1e-3 while training from scratch, at least 1e-7",
    "multiply the learning rate ({rate}) by 100 and compare the losses of 100 steps",
    ("the learning rate is far too low",),
    status=Status.WARN,
)
