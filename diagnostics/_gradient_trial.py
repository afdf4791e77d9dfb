"""What one backward pass leaves behind, and whether it is the derivative of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diagnostics._optimizer_step import graph_leaves
from diagnostics._probe import JITTER_STD, Batch, Probe

# Jitters for the second look: the larger ones make other experts win and wake dead ReLUs.
SECOND_LOOKS = (JITTER_STD, 0.1, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0)
TRUTH_GAP_MAX = 1e-3  # relative, of one parameter; a wrong backward is off by 0.01 to 1
# Step, rounding and noise, both as shares of the slope. 1e-5 is about eps ** (1/3), the best step
# of a central difference; smooth models stay below it, and ReLU's kinks may not (3e-4 measured).
# The second is for models that cast to float32 inside.
STEPS = ((1e-5, 1e-5, 1e-5), (1e-2, 1e-3, 0.1))
# A gradient that is 0 but for rounding: from float32 to float64 it shrinks by about 1e-9, and a
# healthy one, however small, by nothing. The square root of eps is far above such a gradient.
NOISE_SHRINKS = 1e-5
NOISE_LOOKS = 4
ROUNDING = {"round", "floor", "ceil", "trunc", "fix", "sign", "sgn"}  # functions of torch


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
    # a scripted module makes a new object for the same parameter whenever it is asked
    scripted = {
        parameter.data_ptr()
        for module in model.modules()
        if isinstance(module, torch.jit.ScriptModule)
        for parameter in module.parameters()
    }
    return [
        leaf
        for leaf in graph_leaves(loss)
        if leaf.is_floating_point()
        and id(leaf) not in registered
        and leaf.data_ptr() not in scripted
    ]


def second_look(probe: Probe, names: set[str]) -> set[str]:
    """Return the names that stay without gradient for any weights and any random batch."""
    for number, jitter in enumerate(SECOND_LOOKS):
        if not names:
            break
        tokens = probe.tokens(8, probe.probe_length + 1, f"gradients {number}")
        with probe.model(train=True) as model, probe.seeded("gradients"):
            _shake(model.parameters(), jitter, probe.generator(f"look {number}"))
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


def find_stuck(probe: Probe, names: set[str]) -> list[str]:
    """Return the zero tensors of `names` that no training wakes, because zero multiplies zero.

    Whatever has a gradient is moved, again and again, and nothing else: a zero-initialised head
    wakes the layers below it in this way, and two factors that are both zero never wake.
    """
    with probe.model(train=True) as model:
        parameters = dict(model.named_parameters())
        for number, jitter in enumerate(SECOND_LOOKS):
            if not names:
                break
            tokens = probe.tokens(8, probe.probe_length + 1, f"gradients {number}")
            model.zero_grad()
            with probe.seeded("gradients"):
                _, loss = probe.loss(model, _pair(probe, tokens))
            if not loss.requires_grad:
                return []
            loss.backward()
            awake = {
                n for n, p in parameters.items() if p.grad is not None and _values(p.grad).any()
            }
            names = names - awake
            _shake(
                [p for n, p in parameters.items() if n in awake],
                jitter,
                probe.generator(f"look {number}"),
            )
        return sorted(name for name in names if not parameters[name].any())


def find_noise(probe: Probe, norms: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the norms in the own precision and in float64 of matrices whose gradient is rounding.

    Under other weights and batches, too: a saturated softmax wakes there. Vectors and biases are
    left out: that of the keys has no gradient by mathematics, as softmax does not see a shift.
    """
    suspects = {
        name
        for name, parameter in probe.pipeline.model.named_parameters()
        if sum(size > 1 for size in parameter.shape) >= 2
        and "bias" not in name.rpartition(".")[2].lower()
        and 0.0
        < norms.get(name, 0.0)
        < math.sqrt(torch.finfo(parameter.dtype).eps) * math.hypot(*norms.values())
    }
    found: dict[str, tuple[float, float]] = {}
    for number, jitter in enumerate((0.0, *SECOND_LOOKS)[:NOISE_LOOKS]):
        if not suspects or not probe.runs_in_float64:
            return {}
        rough = _norms_under(probe, suspects, number, jitter, exact=False)
        fine = _norms_under(probe, suspects, number, jitter, exact=True)
        suspects = {n for n in suspects if fine[n] <= NOISE_SHRINKS * rough[n]}
        for name in sorted(suspects):
            found.setdefault(name, (rough[name], fine[name]))
    return {name: pair for name, pair in found.items() if name in suspects}


def _norms_under(
    probe: Probe, names: set[str], number: int, jitter: float, *, exact: bool
) -> dict[str, float]:
    """Return the L2 norms of the named gradients, infinite where one is missing or not finite."""
    tokens = probe.tokens(8, probe.probe_length + 1, f"gradients {number}")
    with probe.model(train=True, exact=exact) as model, probe.seeded("gradients"):
        _shake(model.parameters(), jitter, probe.generator(f"look {number}"))
        _, loss = probe.loss(model, _pair(probe, tokens))
        if loss.requires_grad:
            loss.backward()
        norms = {
            name: math.inf if p.grad is None else float(_values(p.grad).double().norm())
            for name, p in model.named_parameters()
            if name in names
        }
    return {name: norm if math.isfinite(norm) else math.inf for name, norm in norms.items()}


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


def rounds(probe: Probe) -> bool:
    """Whether forward rounds something that needs a gradient, as quantised training does."""
    watch = _RoundingWatch()
    with probe.model(train=True) as model, probe.seeded("rounding"), watch:
        probe.loss(model)
    return watch.found


class _RoundingWatch(TorchFunctionMode):
    """Notice the rounding of a tensor that needs a gradient."""

    found = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the argument, and run the function as it is."""
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.requires_grad:
            self.found |= getattr(function, "__name__", "") in ROUNDING
        return function(*args, **(kwargs or {}))


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


def _shake(parameters: Iterable[Tensor], std: float, generator: torch.Generator) -> None:
    """Add other noise at each look: one router or ReLU must not stay on the same side."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(std * noise.to(parameter))


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad
