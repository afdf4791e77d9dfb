"""The contract of resuming: a run that was stopped ends where one without a stop would have.

Shapes: C weights, B rows of a batch, M batches of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    largest_difference,
)

C, B = 5, 6
CASES = ((4, 11, 3), (3, 10, 7), (4, 10, 8))  # (M, steps, stop_after); the last at an epoch's end
FITS = 1e-9  # how near the weights of a known mistake count as that mistake


def right_dictionary(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Keep everything that a step reads in a dictionary, and go on from that alone."""
    zeros = torch.zeros_like(weights)
    state = {"w": weights, "m": zeros, "v": zeros, "step": torch.tensor(0)}
    for end in (stop_after, steps):
        w, m, v, first = (state[key].clone() for key in ("w", "m", "v", "step"))
        for step in range(int(first), end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        state = {"w": w, "m": m, "v": v, "step": torch.tensor(end)}
    return state["w"]


def right_autograd(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Let autograd find the gradient, change tensors in place, and keep one row of numbers."""
    kept = torch.cat([weights, torch.zeros(2 * len(weights), dtype=weights.dtype)])  # (3 C,)
    for start, end in ((0, stop_after), (stop_after, steps)):
        w, m, v = kept.clone().view(3, -1)
        for step in range(start, end):
            leaf = w.clone().requires_grad_()
            loss = functional.mse_loss(
                inputs[step % len(inputs)] @ leaf, targets[step % len(inputs)]
            )
            (gradient,) = torch.autograd.grad(loss, [leaf])
            m.mul_(0.9).add_(gradient, alpha=0.1)
            v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            size = v.sqrt().div_(math.sqrt(1 - 0.99 ** (step + 1))).add_(1e-8)
            rate = 0.1 * (steps - step) / steps
            w.addcdiv_(m, size, value=-rate / (1 - 0.9 ** (step + 1)))
        kept = torch.cat([w, m, v])
    return w


def right_without_a_stop(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Never stop at all, and read the rows of each batch in random order."""
    w, m, v = weights, torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(steps):
        rows = torch.randperm(inputs.shape[1])
        x, y = inputs[step % len(inputs), rows], targets[step % len(inputs), rows]
        errors = (x * w).sum(dim=1) - y  # (B,)
        gradient = (2 * errors[:, None] * x).mean(dim=0)
        m = m.lerp(gradient, 0.1)
        v = v.lerp(gradient.square(), 0.01)
        scale = math.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        floor = 1e-8 * math.sqrt(1 - 0.99 ** (step + 1))
        w = w - 0.1 * (1 - step / steps) * scale * m / (v.sqrt() + floor)
    return w


def right_replayed(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Keep nothing but the step, and come back to it by making all steps again."""
    result = weights.tolist()
    for end in (stop_after, steps):
        w, m, v = weights.tolist(), [0.0] * len(weights), [0.0] * len(weights)
        for step in range(end):
            x, y = inputs[step % len(inputs)].tolist(), targets[step % len(inputs)].tolist()
            errors = [
                math.fsum(a * b for a, b in zip(row, w, strict=True)) - goal
                for row, goal in zip(x, y, strict=True)
            ]
            for i in range(len(w)):
                slope = 2 * math.fsum(e * row[i] for e, row in zip(errors, x, strict=True)) / len(y)
                m[i] += 0.1 * (slope - m[i])
                v[i] += 0.01 * (slope**2 - v[i])
                size = math.sqrt(v[i] / (1 - 0.99 ** (step + 1))) + 1e-8
                w[i] -= 0.1 * (1 - step / steps) * m[i] / (1 - 0.9 ** (step + 1)) / size
        result = w
    return torch.tensor(result, dtype=torch.float64)


def wrong_moments_lost(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Load the weights and start a new optimizer: its moments are zero."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        m, v = 0 * m, 0 * v  # BROKEN: was m, v = m.clone(), v.clone()
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        done = end
    return w


def wrong_data_replayed(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Begin with the first batch after every start; right at the end of an epoch."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        first = done  # BROKEN: was first = 0
        for step in range(done, end):
            x, y = inputs[(step - first) % len(inputs)], targets[(step - first) % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        done = end
    return w


def wrong_rate_restarts(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Count the steps of the schedule from the start of the program."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        first = done  # BROKEN: was first = 0
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - (step - first) / steps) * best / (size.sqrt() + 1e-8)
        done = end
    return w


def wrong_second_moment_lost(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Keep the momentum only: the squares of the gradients begin at zero."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        v = torch.zeros_like(w)  # BROKEN: was v = v.clone()
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        done = end
    return w


def wrong_correction_restarts(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Keep both moments, and correct them as if they had just begun."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        first = done  # BROKEN: was first = 0
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step - first + 1)), v / (1 - 0.99 ** (step - first + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        done = end
    return w


def wrong_step_repeated(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Save the number of the last step as the number of steps: it is made twice."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        done = end - 1  # BROKEN: was done = end
    return w


def wrong_weights_rounded(
    weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, stop_after: int
) -> Tensor:
    """Store the weights in float32, to save space."""
    w, m, v, done = weights, torch.zeros_like(weights), torch.zeros_like(weights), 0
    for end in (stop_after, steps):
        for step in range(done, end):
            x, y = inputs[step % len(inputs)], targets[step % len(inputs)]
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            m = 0.9 * m + 0.1 * gradient
            v = 0.99 * v + 0.01 * gradient**2
            best, size = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            w = w - 0.1 * (1 - step / steps) * best / (size.sqrt() + 1e-8)
        stored = w.float()  # BROKEN: was stored = w.clone()
        w, done = stored.double(), end
    return w


@dataclass(frozen=True)
class Case:
    """One run: C weights, M batches of B rows, and where it is stopped."""

    weights: Tensor
    inputs: Tensor
    targets: Tensor
    steps: int
    stop_after: int

    def train(self, *restarts: str) -> Tensor:
        """Return the weights (C,) at the end; what is named in `restarts` begins anew at the stop.

        restarts: any of w, m, v, batches, rate, correction.
        """
        w, m, v = self.weights, torch.zeros(C).double(), torch.zeros(C).double()
        since = dict.fromkeys(("batches", "rate", "correction"), 0)
        for step in range(self.steps):
            if step == self.stop_after:
                w = self.weights if "w" in restarts else w
                m, v = (0 * x if key in restarts else x for key, x in (("m", m), ("v", v)))
                since |= {key: step for key in restarts if key in since}
            place = (step - since["batches"]) % len(self.inputs)
            x, y = self.inputs[place], self.targets[place]
            gradient = 2 * x.T @ (x @ w - y) / B
            m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
            t = step - since["correction"] + 1
            rate = 0.1 * (1 - (step - since["rate"]) / self.steps)
            w = w - rate * m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
        return w


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Stop in the middle of an epoch and at its end, and compare with a run that never stops."""
    for _ in range(2):
        for M, steps, stop_after in CASES:
            inputs = torch.randn(M, B, C, dtype=torch.float64)
            targets = torch.randn(M, B, dtype=torch.float64)
            weights = torch.randn(C, dtype=torch.float64)
            case = Case(weights, inputs, targets, steps, stop_after)
            came = implementation(weights.clone(), inputs, targets, steps, stop_after)
            got = as_tensor(came, "the result", shape=(C,), dtype=torch.float64)
            distance = largest_difference(got, case.train())
            yield Finding(distance, _claim(got, distance, case))


def _claim(got: Tensor, distance: float, case: Case) -> str:
    """Name what begins anew after the stop, where that gives these weights."""
    claim = (
        f"stopped after {case.stop_after} of {case.steps} steps, with {len(case.inputs)} batches "
        f"in an epoch, the weights end {distance:.3g} from those of a run without a stop"
    )
    if distance <= FITS:
        return claim
    stories = {
        "both moments are zero after it": ("m", "v"),
        "the second moment is zero after it": ("v",),
        "the first moment is zero after it": ("m",),
        "moments and their correction begin anew": ("m", "v", "correction"),
        "the correction of the moments begins anew": ("correction",),
        "the batches begin anew": ("batches",),
        "the learning rate begins anew": ("rate",),
        "batches and rate begin anew": ("batches", "rate"),
        "the weights of before it are lost": ("w",),
        "all begins anew": ("w", "m", "v", "batches", "rate", "correction"),
    }
    for told, restarts in stories.items():
        if largest_difference(got, case.train(*restarts)) <= FITS:
            return f"{claim}: {told}"
    return claim


CONTRACT = Contract(
    check="resume",
    signature=(
        "implementation(weights: Tensor, inputs: Tensor, targets: Tensor, steps: int, "
        "stop_after: int) -> Tensor"
    ),
    promise=(
        "weights is (C,), inputs (M, B, C), targets (M, B), all float64; 0 < stop_after < steps. "
        "It trains with Adam, is stopped after stop_after steps, goes on from what it kept, and "
        "returns the weights (C,) after all steps, which no stop may change. Step s = 0, 1, ... "
        "reads batch s % M; its loss is the mean of (x @ w - y) ** 2 over the B rows, and g its "
        "gradient. Then m = 0.9 m + 0.1 g and v = 0.99 v + 0.01 g ** 2, both from 0; with t = s + "
        "1 and rate = 0.1 (1 - s / steps), w falls by rate * (m / (1 - 0.9 ** t)) / (sqrt(v / (1 "
        "- 0.99 ** t)) + 1e-8)."
    ),
    rights=(
        Right(name="dictionary", implementation=right_dictionary, note="a dictionary of the state"),
        Right(name="autograd", implementation=right_autograd, note="autograd, in place"),
        Right(name="without_a_stop", implementation=right_without_a_stop, note="never stops"),
        Right(name="replayed", implementation=right_replayed, note="makes all steps again"),
    ),
    wrongs=(
        Wrong(
            name="moments_lost",
            implementation=wrong_moments_lost,
            note="the moments of the optimizer are zero after the stop",
        ),
        Wrong(
            name="data_replayed",
            implementation=wrong_data_replayed,
            note="the first batches are read again after the stop",
        ),
        Wrong(
            name="rate_restarts",
            implementation=wrong_rate_restarts,
            note="the learning rate begins anew after the stop",
        ),
        Wrong(
            name="second_moment_lost",
            implementation=wrong_second_moment_lost,
            note="the second moment alone is zero after the stop",
            held_out=True,
        ),
        Wrong(
            name="correction_restarts",
            implementation=wrong_correction_restarts,
            note="the moments are corrected as if they had just begun",
            held_out=True,
        ),
        Wrong(
            name="step_repeated",
            implementation=wrong_step_repeated,
            note="the last step before the stop is made twice",
            held_out=True,
        ),
        Wrong(
            name="weights_rounded",
            implementation=wrong_weights_rounded,
            note="the weights are kept in float32",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-11,  # right ones are within 2e-15; weights kept in float32 are off by 3e-8
)
