"""Gradients: every trainable parameter gets a finite gradient, not zero, and the right one.

Why it matters
    A parameter without a gradient stays at its random start and the loss falls all the same,
    only less far. Nothing complains about a detached branch, a layer kept in a plain list, or a
    hand-written backward that is right for most tokens.

How it is measured
    One backward pass on a copy, in train mode. Leaves of the loss's graph that are not parameters
    of the model are found by walking the graph. A parameter without gradient (None), or with one
    that is zero everywhere, is looked at again with jittered weights and other random batches, so
    that zero-initialised heads and unchosen experts do not count. Last, the directional
    derivative of each parameter is compared, in float64, with a central finite difference.

What it cannot see
    Gradients that the training loop changes afterwards (clipping, zero_grad): that is for
    `training_step`. Values of gradients where the model cannot run in float64. Parameters of a
    layer that is not registered and runs under no_grad or inside a reentrant checkpoint. Frozen
    parameters are counted, not judged.

Break it
    python -m exercises.break_gradients
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Batch, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

# Jitters for the second look: the larger ones make other experts win and wake dead ReLUs.
SECOND_LOOKS = (JITTER_STD, 0.1, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0)
TRUTH_GAP_MAX = 1e-3  # relative, of one parameter; a wrong backward is off by 0.01 to 1
# Step, rounding and noise, both as shares of the slope. 1e-5 is about eps ** (1/3), the best step
# of a central difference; smooth models stay below it, and ReLU's kinks may not (3e-4 measured).
# The second is for models that cast to float32 inside.
STEPS = ((1e-5, 1e-5, 1e-5), (1e-2, 1e-3, 0.1))
DEPTH_RATIO_MAX = 1e4  # fresh pre-norm models of 2 to 36 layers measured: at most 2.7


@dataclass
class Gradients:
    """What one backward pass left behind. Names are those of `model.named_parameters()`."""

    loss: Tensor
    norms: dict[str, float] = field(default_factory=dict)  # L2, of parameters with a gradient
    missing: list[str] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)

    @property
    def norm(self) -> float:
        """The L2 norm of all gradients together."""
        return math.sqrt(sum(norm**2 for norm in self.norms.values()))


def check_gradients(
    model: nn.Module,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check the gradient of every trainable parameter of a loss.

    inputs, targets: (B, T) int64; None: random tokens.    parts: other fields of Pipeline, such
    as forward. A model without a loss of its own is given the cross-entropy of its logits.
    """
    if inputs is not None and targets is not None:
        parts["batch"] = (inputs, targets)
    return run(Probe(Pipeline(model, vocab_size=vocab_size, **parts)))  # type: ignore[arg-type]


def run(probe: Probe) -> CheckResult:
    """Look at the graph, then at missing, bad and zero gradients, then at their values."""
    with probe.model(train=True) as model:
        if not any(p.requires_grad for p in model.parameters()):
            return _all_frozen(len(list(model.parameters())))
        with probe.seeded("gradients"):
            _, loss = probe.loss(model)
        if not loss.requires_grad:
            return _no_graph()
        strangers = find_unregistered(model, loss)
        outside = _unregistered(probe, model, strangers) if strangers else None
        if outside is not None:
            return outside
        gradients = measure_gradients(model, loss)
    numbers = _numbers(gradients)
    if not math.isfinite(float(gradients.loss)) or gradients.not_finite:
        return _not_finite(gradients, numbers)
    absent = second_look(probe, {*gradients.missing, *gradients.zero})
    numbers["zero_at_first"] = len(gradients.zero) + len(gradients.missing) - len(absent)
    unchosen = {name for name in absent if "expert" in name}
    if absent and absent == unchosen and _has_trained_sibling(gradients, unchosen):
        return _unused_expert(sorted(unchosen), numbers)
    if absent:
        return _absent(probe, gradients, absent, numbers)
    gaps = measure_truth(probe)
    numbers["truth_gap"] = None if gaps is None else max(gaps.values(), default=0.0)
    wrong = {name: gap for name, gap in (gaps or {}).items() if not gap <= TRUTH_GAP_MAX}
    flat = sorted(name for name, gap in wrong.items() if gap == math.inf)
    if len(wrong) > len(flat):
        return _wrong_value(wrong, len(gaps or {}), numbers)
    if flat:
        return _straight_through(flat, numbers)
    return _by_design(probe, gradients, numbers)


def measure_gradients(model: nn.Module, loss: Tensor) -> Gradients:
    """Run backward and sort the parameters; one norm call for all of them."""
    loss.backward()
    found = Gradients(loss.detach())
    with_gradient: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            found.frozen.append(name)
        elif parameter.grad is None:
            found.missing.append(name)
        else:
            with_gradient[name] = _values(parameter.grad)
    if not with_gradient:
        return found
    norms = torch.stack([n.float() for n in torch._foreach_norm(list(with_gradient.values()))])
    for (name, grad), norm in zip(with_gradient.items(), norms.tolist(), strict=True):
        found.norms[name] = norm
        if not math.isfinite(norm):
            found.not_finite.append(name)
        elif norm == 0.0 and not grad.any():  # tiny squares may underflow
            found.zero.append(name)
    return found


def find_unregistered(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """Return the leaves of the loss's graph that are not parameters of the model."""
    registered = {id(parameter) for parameter in model.parameters()}
    return [
        leaf for leaf in _leaves(loss) if id(leaf) not in registered and leaf.is_floating_point()
    ]


def second_look(probe: Probe, names: set[str]) -> set[str]:
    """Return the names that stay without gradient for any weights and any random batch."""
    for number, jitter in enumerate(SECOND_LOOKS):
        if not names:
            break
        tokens = probe.tokens(8, probe.probe_length + 1, f"gradients {number}")
        with probe.model(train=True) as model, probe.seeded("gradients"):
            _shake(model, jitter, probe.generator(f"look {number}"))
            _, loss = probe.loss(model, _pair(probe, tokens))
            if not loss.requires_grad:
                continue
            loss.backward()
            names = {
                name
                for name, parameter in model.named_parameters()
                if name in names and (parameter.grad is None or not _values(parameter.grad).any())
            }
    return names


def measure_truth(probe: Probe) -> dict[str, float] | None:
    """Return how far each parameter's derivative is from a finite difference, relative.

    A disagreement has to appear on three sets of tokens: a ReLU that stands on its kink says
    nothing, and does not stand there again. Infinite where the loss does not move at all although
    there is a gradient, as behind a rounding. None where the model has no float64, does not give
    the same loss twice, or rounds too much inside.
    """
    gaps = _measure_truth_once(probe, "truth 0")
    for number in (1, 2):
        if gaps is None or not any(gaps.values()):
            break
        again = _measure_truth_once(probe, f"truth {number}") or {}
        gaps = {name: min(gap, again.get(name, 0.0)) for name, gap in gaps.items()}
    return gaps


def _measure_truth_once(probe: Probe, name: str) -> dict[str, float] | None:
    """Step along a random direction in all parameters; only if that disagrees, one by one."""
    with _truth_model(probe, name) as (model, loss_now):
        if loss_now is None:
            return None
        loss_now().backward()
        trained = {n: p for n, p in model.named_parameters() if p.grad is not None}
        directions = _directions(probe, model, trained)
        told = {name: _along(p, directions[name]) for name, p in trained.items()}
        size = math.sqrt(sum(value**2 for value in told.values()))
        for step, rounding, noise in STEPS:
            floor = rounding * size + 1e-10
            fine, rough = _slopes(trained, directions, loss_now, step)
            if abs(fine - sum(told.values())) <= floor:
                return dict.fromkeys(trained, 0.0)
            # two steps that disagree, or see nothing at all, stand on rounding
            if fine != 0.0 and abs(fine - rough) <= noise * size:
                return {
                    name: _gap(told[name], *_slopes({name: p}, directions, loss_now, step), floor)
                    for name, p in trained.items()
                }
    return None


def _gap(told: float, fine: float, rough: float, floor: float) -> float:
    gap = abs(fine - told)
    # a slope that depends on the step stands on a kink, and says nothing
    if not gap > floor or not gap > 10 * abs(fine - rough):
        return 0.0
    return math.inf if fine == rough == 0.0 else gap / max(abs(fine), abs(told))


def measure_influence(probe: Probe, names: set[str]) -> dict[str, float]:
    """Return how fast the loss moves with each named parameter, gradient or not; {} if unknown."""
    with _truth_model(probe, "truth 0") as (model, loss_now):
        if loss_now is None:
            return {}
        wanted = {n: p for n, p in model.named_parameters() if n in names}
        directions = _directions(probe, model, wanted)
        return {
            n: abs(_slopes({n: p}, directions, loss_now, STEPS[0][0])[0]) for n, p in wanted.items()
        }


@contextmanager
def _truth_model(
    probe: Probe, name: str
) -> Iterator[tuple[nn.Module, Callable[[], Tensor] | None]]:
    """Lend a float64 model in train mode and its loss as a function of its weights."""
    tokens = probe.tokens(3, min(8, probe.probe_length) + 1, name)
    tokens[:, 1::2] = tokens[:1, :1]  # repeated ids: their gradients must add up
    batch = _pair(probe, tokens)
    with probe.model(train=True, exact=True, jitter=JITTER_STD) as model, probe.seeded("truth"):
        state = torch.get_rng_state()

        def loss_now() -> Tensor:
            torch.set_rng_state(state)  # the same dropout in every call
            return probe.loss(model, batch)[1]

        with torch.no_grad():
            repeats = probe.runs_in_float64 and float(loss_now()) == float(loss_now())
        yield model, loss_now if repeats else None


def _directions(
    probe: Probe, model: nn.Module, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a random direction of length 1 for each parameter; padding rows are held still."""
    padding = {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    generator = probe.generator("directions")
    directions = {}
    for name, parameter in parameters.items():
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
        if id(parameter) in padding:
            drawn[padding[id(parameter)]] = 0.0
        directions[name] = drawn / drawn.norm()
    return directions


def _along(parameter: Tensor, direction: Tensor) -> float:
    assert parameter.grad is not None
    return float((parameter.grad.to_dense() * direction).sum())


@torch.no_grad()
def _slopes(
    parameters: Mapping[str, Tensor],
    directions: Mapping[str, Tensor],
    loss_now: Callable[[], Tensor],
    step: float,
) -> tuple[float, float]:
    """Return central differences along the directions, with a step and one four times larger."""
    originals = {name: parameter.clone() for name, parameter in parameters.items()}
    slopes = []
    for length in (step, 4 * step):
        losses = []
        for signed in (length, -length):
            for name, parameter in parameters.items():
                parameter.copy_(originals[name]).add_(directions[name], alpha=signed)
            losses.append(float(loss_now()))
        slopes.append((losses[0] - losses[1]) / (2 * length))
    for name, parameter in parameters.items():
        parameter.copy_(originals[name])
    return slopes[0], slopes[1]


def _pair(probe: Probe, tokens: Tensor) -> Batch:
    """Make a batch of (B, T + 1) tokens as the contract of the labels wants it."""
    inputs = tokens[:, :-1].contiguous()
    same = probe.pipeline.labels == "same"
    return Batch(inputs, inputs.clone() if same else tokens[:, 1:].contiguous(), source="random")


def _shake(model: nn.Module, std: float, generator: torch.Generator) -> None:
    """Add other noise at each look: one router or ReLU must not stay on the same side."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(std * noise.to(parameter))


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _leaves(loss: Tensor) -> list[Tensor]:
    """Walk the graph of a loss to the tensors in which gradients would be accumulated."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    leaves = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves


# ---- verdicts ------------------------------------------------------------------------------


def _unregistered(probe: Probe, model: nn.Module, strangers: list[Tensor]) -> CheckResult | None:
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
            "{numel} numbers outside model.parameters(), in shapes {shapes}",
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


def _absent(
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
            "{count} of {total} trainable parameters get {what}",
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
            "{count} of {total} parameters; first is {name}",
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


def _has_trained_sibling(gradients: Gradients, names: set[str]) -> bool:
    """Whether each name has a twin under another number that does get a gradient."""
    trained = {
        re.sub(r"\d+", "#", name)
        for name, norm in gradients.norms.items()
        if norm > 0 and name not in names
    }
    return all(re.sub(r"\d+", "#", name) in trained for name in names)


def _unused_expert(names: list[str], numbers: dict[str, Any]) -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.WARN,
        reason="gradients.unused_expert",
        claim=say(
            "{count} parameters of experts were never chosen by the router in {looks} batches",
            count=len(names),
            looks=1 + len(SECOND_LOOKS),
        ),
        measured=say("no gradient, while experts of the same kind get one"),
        where=say("first is {name}", name=names[0]),
        next_step=say("count how many tokens each expert gets; add a load-balancing term"),
        numbers=numbers,
    )


def _wrong_value(wrong: dict[str, float], judged: int, numbers: dict[str, Any]) -> CheckResult:
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
            "{count} of {total} parameters; worst is {name}",
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
            "from the path of {name} one by one",
            name=worst,
        ),
        numbers={**numbers, "wrong": wrong},
    )


def _straight_through(flat: list[str], numbers: dict[str, Any]) -> CheckResult:
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


def _by_design(probe: Probe, gradients: Gradients, numbers: dict[str, Any]) -> CheckResult:
    """Nothing is wrong; frozen parameters and uneven depth are for a person to judge."""
    depth = _depth_norms(gradients.norms)
    numbers["norm_by_layer"] = depth
    ratio = max(depth.values()) / min(depth.values()) if len(depth) > 1 else 1.0
    warn: dict[str, Any] = {}
    if gradients.frozen:
        warn = {
            "reason": "gradients.frozen",
            "claim": say(
                "{count} of {total} parameters are frozen (requires_grad=False){fresh}",
                count=len(gradients.frozen),
                total=len(gradients.frozen) + len(gradients.norms),
                fresh=", and keep their random start" if probe.pipeline.fresh else "",
            ),
            "where": say("first is {name}", name=gradients.frozen[0]),
            "next_step": say("nothing to mend when fine-tuning; else call requires_grad_(True)"),
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
                    "all {count} trainable parameters get a gradient (global L2 norm {norm})",
                    count=len(gradients.norms),
                    norm=gradients.norm,
                ),
            }
            | warn
        ),
        measured=say("global L2 norm {norm}", norm=gradients.norm),
        numbers=numbers,
    )


def _depth_norms(norms: Mapping[str, float]) -> dict[str, float]:
    """Return the gradient norm of each numbered layer, such as "blocks.0"; zeros left out."""
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        numbered = re.match(r"(.*?\.)?(\d+)\.", name)
        if numbered:
            layer = numbered.group(0)[:-1]
            squares[layer] = squares.get(layer, 0.0) + norm**2
    return {layer: math.sqrt(square) for layer, square in squares.items() if square > 0}


def _not_finite(gradients: Gradients, numbers: dict[str, Any]) -> CheckResult:
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


def _no_graph() -> CheckResult:
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


def _all_frozen(count: int) -> CheckResult:
    return CheckResult(
        check="gradients",
        status=Status.FAIL,
        reason="gradients.all_frozen",
        claim=say("all {count} parameters are frozen: nothing can be learnt", count=count),
        measured=say("0 parameters with requires_grad"),
        expected=say("at least 1"),
        causes=(say("requires_grad_(False) on the whole model, or a loop that freezes too much"),),
        next_step=say("call requires_grad_(True) on what is to be trained"),
        numbers={"frozen": count},
    )


def _numbers(gradients: Gradients) -> dict[str, Any]:
    return {
        "gradient_norm": gradients.norm,
        "missing": list(gradients.missing),
        "zero": list(gradients.zero),
        "frozen": len(gradients.frozen),
        "norms": dict(gradients.norms),
    }
