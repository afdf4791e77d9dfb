"""What `gradients` says: parameters outside the model, without a gradient, or with a wrong one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from diagnostics._gradient_trial import (
    SECOND_LOOKS,
    TRUTH_GAP_MAX,
    Gradients,
    find_unregistered,
    measure_influence,
)
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

# Mean square of the step from one row or column to the next, as a share of the variance: 2 for
# independent draws (lowest of 3000 of 8 x 8: 1.06), 0.1 to 0.2 for sinusoids over positions.
RULE_STEP_MAX, RULE_ROWS_MIN = 0.5, 8
DEPTH_RATIO_MAX = 1e4  # fresh pre-norm models of 2 to 36 layers measured: at most 2.7


def all_frozen(count: int) -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.all_frozen",
        claim=say(
            "the one parameter is frozen: nothing can be learnt"
            if count == 1
            else "all {count} parameters are frozen: nothing can be learnt",
            count=count,
        ),
        measured=say("0 parameters with requires_grad"),
        expected=say("at least 1"),
        causes=(say("requires_grad_(False) on the whole model, or a loop that freezes too much"),),
        next_step=say("call requires_grad_(True) on what is to be trained"),
        numbers={"frozen": count},
    )


def no_graph() -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.no_graph",
        claim=say("the loss does not depend on any parameter in the graph: nothing can be learnt"),
        measured=say("loss.requires_grad is False"),
        expected=say("True"),
        causes=(
            say(
                "forward runs under torch.no_grad(), or its output went through .item(), "
                ".detach(), .data or numpy"
            ),
        ),
        next_step=say("print(loss.grad_fn), then the grad_fn of each tensor before it"),
        numbers={"parameters": 0},
    )


def not_finite(gradients: Gradients, numbers: dict[str, Any]) -> CheckResult:
    loss = float(gradients.loss)
    first = gradients.not_finite[0] if gradients.not_finite else ""
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.not_finite",
        claim=say(
            "{count:gradient holds|gradients hold} NaN or infinity; the loss is {loss}",
            count=len(gradients.not_finite),
            loss=loss,
        ),
        measured=say("loss {loss}", loss=loss),
        expected=say("finite gradients"),
        where=say("first is {name}", name=first) if first else "",
        causes=(say("the loss itself is not finite: see forward_hooks and loss"),)
        if not math.isfinite(loss)
        else (say("the derivative of sqrt or log at 0, or a division by 0 in a masked branch"),),
        next_step=say("run the step inside torch.autograd.detect_anomaly()"),
        numbers=numbers,
    )


def unregistered(probe: Probe, model: nn.Module, strangers: list[Tensor]) -> CheckResult | None:
    """Judge leaves that `model.parameters()` does not list; None when they are harmless."""
    with probe.seeded("gradients"):
        _, loss = probe.loss(model)
    again = {id(leaf) for leaf in find_unregistered(model, loss)}
    lasting = [leaf for leaf in strangers if id(leaf) in again]
    created = [
        leaf for leaf in strangers if isinstance(leaf, nn.Parameter) and id(leaf) not in again
    ]
    if not lasting and not created:
        return None  # plain tensors made anew in each call, such as inputs that ask for a gradient
    worst = lasting or created
    homes = _homes(model, lasting)
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in worst[:3])
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.unregistered" if lasting else "gradients.built_in_forward",
        claim=say(
            "the loss depends on {count:tensor|tensors} outside model.parameters(), which no "
            "optimizer gets",
            count=len(worst),
        )
        if lasting
        else say(
            "{count:parameter is|parameters are} created anew in every forward call, with new "
            "random values",
            count=len(worst),
        ),
        measured=say(
            "{numel:number|numbers} outside model.parameters(), in shapes {shapes}",
            numel=sum(leaf.numel() for leaf in worst),
            shapes=shapes,
        ),
        expected=say("every leaf of the graph in model.parameters()"),
        where=say("{homes}", homes=", ".join(homes)) if homes else "",
        causes=_UNREGISTERED if lasting else _CREATED,
        next_step=say("use nn.ModuleList, nn.ParameterList or nn.Parameter in __init__")
        if lasting
        else say("create the layer in __init__ and call it in forward"),
        numbers={"unregistered": len(lasting), "created_in_forward": len(created)},
    )


_UNREGISTERED = (
    say("modules are kept in a plain list, tuple or dict, which nn.Module does not look into"),
    say("a tensor with requires_grad is a plain attribute, not an nn.Parameter"),
)


_CREATED = (say("a layer such as nn.Linear is built inside forward"),)


def _homes(model: nn.Module, leaves: list[Tensor]) -> list[str]:
    """Return the attributes, such as "model.blocks[0]", under which unregistered leaves lie."""
    wanted = {id(leaf) for leaf in leaves}
    homes: list[str] = []

    def look(value: Any, path: str, depth: int) -> None:
        if isinstance(value, nn.Module):
            held = {id(parameter) for parameter in value.parameters()}
        elif isinstance(value, Tensor):
            held = {id(value)}
        else:
            parts: Any = ()
            if isinstance(value, Mapping):
                parts = value.items()
            elif isinstance(value, (list, tuple)):
                parts = enumerate(value)
            for key, part in parts:
                if depth < 3:
                    look(part, f"{path}[{key!r}]", depth + 1)
            return
        if held & wanted:
            homes.append(path)

    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not attribute.startswith(("_parameters", "_buffers", "_modules")):
                look(value, f"{name}.{attribute}" if name else attribute, 0)
    return homes[:3]


def absent_gradients(
    probe: Probe, gradients: Gradients, absent: set[str], numbers: dict[str, Any]
) -> CheckResult:
    """Missing or zero, whatever the weights and the batch; say whether the loss depends on it."""
    missing = [name for name in gradients.missing if name in absent]
    named = missing or [name for name in gradients.zero if name in absent]
    influence = measure_influence(probe, set(named[:8]))
    numbers |= {"absent": sorted(absent), "influence": influence}
    total = len(gradients.norms) + len(gradients.missing)
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.missing" if missing else "gradients.zero",
        claim=say(
            "{count} of {total:trainable parameter gets|trainable parameters get} {what}",
            count=len(named),
            total=total,
            what="no gradient (None)" if missing else "a gradient that is zero everywhere",
        ),
        measured=say(
            "{what} in each of {looks} trials with other weights and batches",
            what="None" if missing else "0",
            looks=1 + len(SECOND_LOOKS),
        ),
        expected=say("a gradient other than 0 in at least one of them"),
        where=say(
            "{count} of {total:parameter|parameters}; first is {name}",
            count=len(named),
            total=total,
            name=named[0],
        ),
        causes=_causes_of_absence(influence),
        next_step=say(
            "follow the output of {name} through forward to the loss; freeze it with "
            "requires_grad_(False) if it is not meant to be trained",
            name=named[0],
        ),
        numbers=numbers,
    )


def _causes_of_absence(influence: Mapping[str, float]) -> tuple[Text, ...]:
    """The loss moves with the parameter: cut; it does not: unused; unknown: no cause."""
    if not influence:
        return ()
    strongest = max(influence, key=lambda name: influence[name])
    if not influence[strongest] > 1e-9:
        return (say("the loss does not move with it either: its output is not used in forward"),)
    return (
        say(
            "the loss moves with {name} (slope {slope}), so its graph is cut: .detach(), .data, "
            ".item(), numpy, no_grad, or a reentrant checkpoint whose inputs need no gradient",
            name=strongest,
            slope=influence[strongest],
        ),
    )


def only_noise(
    noise: Mapping[str, tuple[float, float]], gradients: Gradients, numbers: dict[str, Any]
) -> CheckResult:
    """A gradient that is there in float32 and not in float64 is what rounding left of a zero."""
    first = next(iter(noise))
    rough, fine = noise[first]
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.only_noise",
        claim=say(
            "{count:gradient is|gradients are} nothing but rounding: that of {name} is {rough} "
            "in the model's own precision and {fine} in float64",
            count=len(noise),
            name=first,
            rough=rough,
            fine=fine,
        ),
        measured=say("smaller by a factor of {ratio}", ratio=rough / max(fine, 1e-300)),
        expected=say("the same size in float64, within rounding"),
        where=say(
            "{count} of {total:parameter|parameters}; first is {name}",
            count=len(noise),
            total=len(gradients.norms) + len(gradients.missing),
            name=first,
        ),
        causes=(
            say(
                "its effect on the loss cancels: a single weight divided by itself, as a top-1 "
                "gate that is normalised over the chosen experts; a softmax over one entry; a "
                "shift that a softmax or a norm takes out again"
            ),
        ),
        next_step=say(
            "follow the output of {name} through forward to where it cancels; an optimizer such "
            "as Adam makes full steps of this rounding",
            name=first,
        ),
        numbers={**numbers, "noise": {name: list(pair) for name, pair in noise.items()}},
    )


def stuck_at_zero(stuck: list[str], numbers: dict[str, Any]) -> CheckResult:
    """Zero tensors that get no gradient from one another."""
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.stuck_at_zero",
        claim=say(
            "{count:parameter starts|parameters start} at 0 and can never leave it: the gradient "
            "of each is multiplied by another zero",
            count=len(stuck),
        ),
        measured=say(
            "a gradient of 0 in {looks} rounds in which all that had one was moved",
            looks=len(SECOND_LOOKS),
        ),
        expected=say("a gradient once the layers around have moved, as below a zero head"),
        where=say("first is {name}", name=stuck[0]),
        causes=(say("both factors of a product are initialised with zeros, as A and B of LoRA"),),
        next_step=say("draw one of the two factors at random: nn.init.normal_(weight, std=0.02)"),
        numbers={**numbers, "stuck": stuck},
    )


def has_trained_sibling(gradients: Gradients, names: set[str]) -> bool:
    """Whether each name has a twin under another number that does get a gradient."""
    trained = {
        re.sub(r"\d+", "#", name)
        for name, norm in gradients.norms.items()
        if norm > 0 and name not in names
    }
    return all(re.sub(r"\d+", "#", name) in trained for name in names)


def unused_expert(names: list[str], numbers: dict[str, Any]) -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.WARN,
        reason="gradients.unused_expert",
        claim=say(
            "{count:parameter of experts was|parameters of experts were} never chosen by the "
            "router in {looks} batches",
            count=len(names),
            looks=1 + len(SECOND_LOOKS),
        ),
        measured=say("no gradient, while experts of the same kind get one"),
        where=say("first is {name}", name=names[0]),
        next_step=say("count how many tokens each expert gets; add a load-balancing term"),
        numbers=numbers,
    )


def wrong_value(wrong: dict[str, float], judged: int, numbers: dict[str, Any]) -> CheckResult:
    worst = max(wrong, key=lambda name: wrong[name] if math.isfinite(wrong[name]) else 0.0)
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.wrong_value",
        claim=say(
            "the gradient of {name} is not the derivative of the loss: it is off by a share of "
            "{gap}",
            name=worst,
            gap=wrong[worst],
        ),
        measured=say("relative difference {gap} to a finite difference", gap=wrong[worst]),
        expected=say("at most {limit}", limit=TRUTH_GAP_MAX),
        where=say(
            "{count} of {total:parameter|parameters}; worst is {name}",
            count=len(wrong),
            total=judged,
            name=worst,
        ),
        causes=(
            say("a branch of the graph is cut by .detach(), .data or no_grad, and another is not"),
            say(
                "a hand-written backward or a gradient hook is wrong, as when it overwrites the "
                "gradient of a repeated token in place of adding"
            ),
        ),
        next_step=say(
            "run torch.autograd.gradcheck on the custom function, or remove hooks and detach() "
            "from the path of {name} one by one; scaled or reversed on purpose: "
            'allow=("gradients.wrong_value",)',
            name=worst,
        ),
        numbers={**numbers, "wrong": wrong},
    )


def straight_through(flat: list[str], numbers: dict[str, Any]) -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.WARN,
        reason="gradients.straight_through",
        claim=say(
            "{name} gets a gradient, although the loss does not move when it moves a little",
            name=flat[0],
        ),
        measured=say("slope exactly 0 for {count:parameter|parameters}", count=len(flat)),
        expected=say("a slope that is the gradient"),
        where=say("first is {name}", name=flat[0]),
        causes=(say("weights are rounded (quantised) with a straight-through gradient"),),
        next_step=say("nothing to mend if the rounding is meant"),
        numbers={**numbers, "flat": flat},
    )


def rounded(wrong: Mapping[str, float], numbers: dict[str, Any]) -> CheckResult:
    """The same of a network whose scale moves a little with its weights, so that no slope is 0."""
    worst = max(wrong, key=lambda name: (wrong[name] < math.inf, wrong[name]))
    return CheckResult(
        check="gradients",
        status=Status.WARN,
        reason="gradients.straight_through",
        claim=say(
            "{name} gets a gradient that is not the slope of the loss, and numbers that need a "
            "gradient are rounded on the way",
            name=worst,
        ),
        measured=say("relative difference {gap} to a finite difference", gap=wrong[worst]),
        expected=say("a slope that is the gradient, unless the rounding is passed over on purpose"),
        where=say("{count:parameter|parameters}; worst is {name}", count=len(wrong), name=worst),
        causes=(say("weights are rounded (quantised) with a straight-through gradient"),),
        next_step=say("nothing to mend if the rounding is meant"),
        numbers={**numbers, "wrong": dict(wrong)},
    )


def by_design(probe: Probe, gradients: Gradients, numbers: dict[str, Any]) -> CheckResult:
    """Nothing is wrong; frozen parameters and uneven depth are for a person to judge."""
    depth = _depth_norms(gradients.norms)
    numbers["norm_by_layer"] = depth
    ratio = max(depth.values()) / min(depth.values()) if len(depth) > 1 else 1.0
    warn: dict[str, Any] = {}
    if gradients.frozen:
        warn = {
            "reason": "gradients.frozen",
            "claim": _frozen_claim(probe, gradients),
            "where": say("first is {name}", name=gradients.frozen[0]),
            "next_step": say(
                "nothing to mend when fine-tuning, or for a fixed table such as sinusoids; else "
                "call requires_grad_(True)"
            ),
        }
    elif not ratio <= DEPTH_RATIO_MAX:
        warn = {
            "reason": "gradients.uneven_depth",
            "claim": say(
                "gradient norms of the layers differ by a factor of {ratio} over the depth",
                ratio=ratio,
            ),
            "where": say("smallest in {name}", name=min(depth, key=lambda name: depth[name])),
            "next_step": say("look at norm placement and at the scale of the initial weights"),
        }
    return CheckResult(
        check="gradients",
        status=Status.WARN if warn else Status.PASS,
        **(
            {
                "reason": "gradients.ok",
                "claim": say(
                    "the one trainable parameter gets a gradient (L2 norm {norm})"
                    if len(gradients.norms) == 1
                    else "all {count} trainable parameters get a gradient (global L2 norm {norm})",
                    count=len(gradients.norms),
                    norm=gradients.norm,
                ),
            }
            | warn
        ),
        measured=say("global L2 norm {norm}", norm=gradients.norm),
        numbers=numbers,
    )


def _frozen_claim(probe: Probe, gradients: Gradients) -> Text:
    """Say how many parameters are frozen, and what share of the model's numbers is not."""
    sizes = [(p.numel(), p.requires_grad) for p in probe.pipeline.model.parameters()]
    random = [name for name in gradients.frozen if not _is_by_rule(probe, name)]
    return say(
        "{count} of {total:parameter is|parameters are} frozen (requires_grad=False){fresh}; "
        "{share:%} of the model's numbers are trained",
        count=len(gradients.frozen),
        total=len(gradients.frozen) + len(gradients.norms),
        fresh=", with values that a rule gives and no draw"
        if not random
        else f", and {len(random)} of them keep their random start"
        if probe.pipeline.fresh and len(random) < len(gradients.frozen)
        else ", and keep their random start"
        if probe.pipeline.fresh
        else "",
        share=sum(n for n, wanted in sizes if wanted) / max(1, sum(n for n, _ in sizes)),
    )


def _is_by_rule(probe: Probe, name: str) -> bool:
    """Whether a parameter holds a constant or a smooth table: neighbours follow one another."""
    values = dict(probe.pipeline.model.named_parameters())[name].detach().float()
    if values.ndim >= 2:
        values = values.flatten(0, -2)
    if values.ndim < 2 or min(values.shape) < RULE_ROWS_MIN:
        return bool((values == values.flatten()[:1]).all())
    centred = values - values.mean()
    size = float(centred.square().mean())
    steps = [float(centred.diff(dim=axis).square().mean()) for axis in (0, 1)]
    return min(steps) <= RULE_STEP_MAX * size


def _depth_norms(norms: Mapping[str, float]) -> dict[str, float]:
    """Return the gradient norm of each numbered layer, such as "blocks.0"; zeros left out."""
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        numbered = re.match(r"(.*?\.)?(\d+)\.", name)
        if numbered:
            layer = numbered.group(0)[:-1]
            squares[layer] = squares.get(layer, 0.0) + norm**2
    return {layer: math.sqrt(square) for layer, square in squares.items() if square > 0}
