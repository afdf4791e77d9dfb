"""The contract of the schedule: a curve of the step alone, and a rate for every group.

Shapes: S steps that are asked for, G parameter groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    largest_difference,
)

PEAK, FLOOR = 3.0, 0.6  # large numbers, so that differences are read at a glance
RUNS = ((40, 8), (101, 1), (25, 12))  # max_steps, warmup


def right_step_by_step(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Ask where each step lies, one after the other."""
    rows = []
    for step in steps:
        if step < warmup:
            rate = 3.0 * (step + 1) / warmup
        elif step < max_steps - 1:
            progress = (step - warmup + 1) / (max_steps - warmup)
            rate = 0.6 + 2.4 * (1 + math.cos(math.pi * progress)) / 2
        else:
            rate = 0.6
        rows.append([rate * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def right_vectors(steps: list[int], max_steps: int, warmup: int, factors: list[float]) -> Tensor:
    """Compute both branches for all steps at once, and take the lower one."""
    places = torch.tensor(steps, dtype=torch.float64)  # (S,)
    rise = 3.0 * (places + 1) / warmup
    progress = ((places - (warmup - 1)) / (max_steps - warmup)).clamp(0, 1)
    fall = 0.6 + 1.2 * (1 + torch.cos(progress * math.pi))
    return torch.outer(torch.minimum(rise, fall), torch.tensor(factors, dtype=torch.float64))


def right_table(steps: list[int], max_steps: int, warmup: int, factors: list[float]) -> Tensor:
    """Write the whole run into a table, and read it; its last entry holds from then on."""
    halves = torch.linspace(0, math.pi / 2, max_steps - warmup + 1, dtype=torch.float64)
    fall = 0.6 + 2.4 * halves.cos() ** 2
    rise = torch.arange(1, warmup, dtype=torch.float64) * (3.0 / warmup)
    table = torch.cat([rise, fall])  # (max_steps,)
    rates = table[[min(step, len(table) - 1) for step in steps]]
    return torch.stack([rates * factor for factor in factors], dim=1)


def wrong_starts_at_zero(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Begin the warm-up at 0: the first step is wasted, and the peak comes one step late."""
    rows = []
    for step in steps:
        rise = 3.0 * step / warmup  # BROKEN: was rise = 3.0 * (step + 1) / warmup
        progress = min(max((step - warmup + 1) / (max_steps - warmup), 0.0), 1.0)
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * progress))
        rows.append([min(rise, fall) * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def wrong_rises_again(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Let the cosine go on beyond the end, where it rises again."""
    rows = []
    for step in steps:
        rise = 3.0 * (step + 1) / warmup
        progress = max((step - warmup + 1) / (max_steps - warmup), 0.0)
        last = math.inf  # BROKEN: was last = 1.0
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * min(progress, last)))
        rows.append([min(rise, fall) * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def wrong_first_group_only(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Write the rate into the first group; the others stay at the peak."""
    rows = []
    for step in steps:
        rise = 3.0 * (step + 1) / warmup
        progress = min(max((step - warmup + 1) / (max_steps - warmup), 0.0), 1.0)
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * progress))
        groups = [3.0 * factor for factor in factors]
        count = 1  # BROKEN: was count = len(groups)
        for group in range(count):
            groups[group] = min(rise, fall) * factors[group]
        rows.append(groups)
    return torch.tensor(rows, dtype=torch.float64)


def wrong_counts_calls(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Count the rates that were asked for: right as long as nobody resumes or skips."""
    rows = []
    for asked, step in enumerate(steps):
        place = asked  # BROKEN: was place = step
        rise = 3.0 * (place + 1) / warmup
        progress = min(max((place - warmup + 1) / (max_steps - warmup), 0.0), 1.0)
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * progress))
        rate = min(rise, fall) if step >= 0 else 0.0
        rows.append([rate * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def wrong_warmup_not_subtracted(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Start the decay at step 0, so that it is under way when the warm-up ends."""
    rows = []
    for step in steps:
        rise = 3.0 * (step + 1) / warmup
        first = 0  # BROKEN: was first = warmup - 1
        progress = min(max((step - first) / (max_steps - 1 - first), 0.0), 1.0)
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * progress))
        rate = rise if step < warmup - 1 else fall
        rows.append([rate * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def wrong_floor_added(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Add the floor to a decay from the full peak: the curve begins above the peak."""
    rows = []
    for step in steps:
        rise = 3.0 * (step + 1) / warmup
        progress = min(max((step - warmup + 1) / (max_steps - warmup), 0.0), 1.0)
        height = 3.0  # BROKEN: was height = 3.0 - 0.6
        fall = 0.6 + height * (1 + math.cos(math.pi * progress)) / 2
        rate = rise if step < warmup - 1 else fall
        rows.append([rate * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def wrong_last_step_missed(
    steps: list[int], max_steps: int, warmup: int, factors: list[float]
) -> Tensor:
    """Reach the floor at step max_steps, which is never made."""
    rows = []
    for step in steps:
        rise = 3.0 * (step + 1) / warmup
        last = max_steps  # BROKEN: was last = max_steps - 1
        progress = min(max((step - warmup + 1) / (last - warmup + 1), 0.0), 1.0)
        fall = 0.6 + 1.2 * (1 + math.cos(math.pi * progress))
        rows.append([min(rise, fall) * factor for factor in factors])
    return torch.tensor(rows, dtype=torch.float64)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Ask for every step of a run and beyond its end, then for the same out of order."""
    for max_steps, warmup in RUNS:
        factors = [1.0, *(0.2 + torch.rand(2, dtype=torch.float64)).tolist()]
        steps = list(range(2 * max_steps))
        run = f"in a run of {max_steps} steps, {warmup} of them warm-up,"
        rates = _rates(implementation, steps, max_steps, warmup, factors)  # (S, G)
        wanted = right_step_by_step(steps, max_steps, warmup, factors)
        yield from _judge_curve(rates[:, 0], wanted[:, 0], max_steps, run)
        for group in (1, 2):
            worst = int((rates[:, group] - wanted[:, group]).abs().argmax())
            yield Finding(
                largest_difference(rates[:, group], wanted[:, group]),
                f"{run} group {group} has rate {float(rates[worst, group]):.4g} at step {worst}, "
                f"expected {float(wanted[worst, group]):.4g}, the first group's times its factor",
            )
        order = torch.randperm(len(steps)).tolist()[: max_steps // 2]
        mixed = _rates(implementation, order, max_steps, warmup, factors)
        first = order[0]
        yield Finding(
            largest_difference(mixed, wanted[order]),
            f"{run} the rate of step {first} is {float(mixed[0, 0]):.4g} where it is asked for "
            f"first, and {float(wanted[first, 0]):.4g} in the order of the run, expected the same",
        )


def _judge_curve(rates: Tensor, wanted: Tensor, max_steps: int, run: str) -> Iterator[Finding]:
    """Compare the first group's rates at the start, within the run, and beyond its end."""
    yield Finding(
        abs(float(rates[0] - wanted[0])),
        f"{run} step 0 has rate {float(rates[0]):.4g}, expected {float(wanted[0]):.4g}",
    )
    worst = int((rates - wanted)[:max_steps].abs().argmax())
    yield Finding(
        largest_difference(rates[:max_steps], wanted[:max_steps]),
        f"{run} step {worst} has rate {float(rates[worst]):.4g}, expected "
        f"{float(wanted[worst]):.4g}; the highest rate is {float(rates[:max_steps].amax()):.4g}, "
        f"expected {PEAK}, and the last one {float(rates[max_steps - 1]):.4g}, expected {FLOOR}",
    )
    worst = max_steps + int((rates - wanted)[max_steps:].abs().argmax())
    yield Finding(
        largest_difference(rates[max_steps:], wanted[max_steps:]),
        f"{run} step {worst}, beyond the end, has rate {float(rates[worst]):.4g}, expected the "
        f"floor, {FLOOR}",
    )


def _rates(
    implementation: Implementation,
    steps: Sequence[int],
    max_steps: int,
    warmup: int,
    factors: list[float],
) -> Tensor:
    return as_tensor(
        implementation(list(steps), max_steps, warmup, list(factors)),
        "the rates",
        shape=(len(steps), len(factors)),
        dtype=torch.float64,
    )


CONTRACT = Contract(
    check="schedule",
    signature=(
        "implementation(steps: list[int], max_steps: int, warmup: int, factors: list[float]) "
        "-> Tensor"
    ),
    promise=(
        "It returns the rates (S, G), float64, of the S steps that are asked for, in any order, "
        "and of G parameter groups: the rate of the step times factors[g]. Steps count from 0, and "
        "1 <= warmup < max_steps. Step s of the first `warmup` steps has the rate "
        f"{PEAK} * (s + 1) / warmup, so the last of them has {PEAK}; from there half a cosine "
        f"falls to {FLOOR}, which step max_steps - 1 reaches; later steps keep {FLOOR}."
    ),
    rights=(
        Right(name="step_by_step", implementation=right_step_by_step, note="one step at a time"),
        Right(name="vectors", implementation=right_vectors, note="the lower of two curves"),
        Right(name="table", implementation=right_table, note="a table of the whole run"),
    ),
    wrongs=(
        Wrong(
            name="starts_at_zero",
            implementation=wrong_starts_at_zero,
            note="the warm-up begins at a rate of 0",
        ),
        Wrong(
            name="rises_again",
            implementation=wrong_rises_again,
            note="the rate rises again beyond the end of the run",
        ),
        Wrong(
            name="first_group_only",
            implementation=wrong_first_group_only,
            note="only the first group follows the schedule",
        ),
        Wrong(
            name="counts_calls",
            implementation=wrong_counts_calls,
            note="the rate depends on how many were asked for, not on the step",
            held_out=True,
        ),
        Wrong(
            name="warmup_not_subtracted",
            implementation=wrong_warmup_not_subtracted,
            note="the decay begins at step 0",
            held_out=True,
        ),
        Wrong(
            name="floor_added",
            implementation=wrong_floor_added,
            note="the floor is added to the peak",
            held_out=True,
        ),
        Wrong(
            name="last_step_missed",
            implementation=wrong_last_step_missed,
            note="the floor is reached one step after the end",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # float64 rounds at 1e-15; the nearest bug differs by 1e-2
)
