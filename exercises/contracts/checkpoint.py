"""The contract of a checkpoint: what is loaded is what was saved, whatever happened in between.

A state is a dictionary of tensors, as state_dict gives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from exercises.contracts._contract import (
    BrokenPromiseError,
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_parts,
    as_tensor,
    largest_difference,
)

State = dict[str, Tensor]

ROUNDS = 3
CHANGE = 0.5  # exact in every floating type, so that no rounding differs between two ways to add
LARGE = 2**60  # integers of a random state: a float64 holds them to 53 bits only
NAMED = 3  # how many names a claim lists


def right_clones(state: State, fresh: State, change: float) -> tuple[State, State]:
    """Keep a clone of every tensor in memory."""
    saved = {name: value.detach().clone() for name, value in state.items()}
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    return {name: saved[name] for name in fresh}, state


def right_bytes(state: State, fresh: State, change: float) -> tuple[State, State]:
    """Write all tensors into one row of bytes, with a table of what lies where."""
    rows, table, start = [], {}, 0
    for name, value in state.items():
        rows.append(value.reshape(-1).view(torch.uint8))
        table[name] = (start, start + len(rows[-1]), value.dtype, value.shape)
        start += len(rows[-1])
    written = torch.cat(rows)  # (bytes,), a copy
    live = {
        name: value + change if value.is_floating_point() else value
        for name, value in state.items()
    }
    loaded = {
        name: written[start:end].clone().view(dtype).view(shape)
        for name, (start, end, dtype, shape) in table.items()
    }
    return loaded, live


def right_lists(state: State, fresh: State, change: float) -> list[State]:
    """Write plain numbers, which hold every type used here exactly."""
    written = {name: value.tolist() for name, value in state.items()}
    for name, value in list(state.items()):
        if value.is_floating_point():
            state[name] = value.add(change)
    loaded = {name: torch.tensor(written[name], dtype=value.dtype) for name, value in fresh.items()}
    return [loaded, state]


def right_copied_into_fresh(state: State, fresh: State, change: float) -> tuple[State, State]:
    """Copy each saved value into the tensor of the fresh model, in random order."""
    names = list(state)
    saved = [(names[i], torch.empty_like(state[names[i]])) for i in torch.randperm(len(names))]
    for name, value in saved:
        value.copy_(state[name])
    live = {name: value.clone() for name, value in state.items()}
    for value in live.values():
        if value.dtype.is_floating_point:
            value += change
    for name, value in saved:
        fresh[name].copy_(value)
    return fresh, live


def wrong_saved_by_reference(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Take detach() and cpu() for a copy: on the CPU both give the same memory."""
    saved = {}
    for name, value in state.items():
        saved[name] = value.detach().cpu()  # BROKEN: was saved[name] = value.detach().clone()
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    return {name: saved[name] for name in fresh}, state


def wrong_prefix(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Save under the names of a wrapper, and pass over every name that is not found."""
    saved = {"module." + name: value.clone() for name, value in state.items()}
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    for name in fresh:
        key = name  # BROKEN: was key = "module." + name
        if key in saved:
            fresh[name] = saved[key]
    return fresh, state


def wrong_single_precision(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Save everything in float32, and load it back into the types of the model."""
    saved = {}
    for name, value in state.items():
        saved[name] = value.float()  # BROKEN: was saved[name] = value
        saved[name] = saved[name].clone()
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    return {name: saved[name].to(value.dtype) for name, value in fresh.items()}, state


def wrong_matched_by_shape(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Fill each tensor with the first saved one that has its shape and type."""
    saved = {name: value.clone() for name, value in state.items()}
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    for name, value in fresh.items():
        for key, found in list(saved.items()):
            fits = found.shape == value.shape  # BROKEN: was fits = key == name
            if fits and found.dtype == value.dtype:
                fresh[name] = saved.pop(key)
                break
    return fresh, state


def wrong_buffers_lost(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Save what can be trained: counters and masks stay as a fresh model has them."""
    saved = {}
    for name, value in state.items():
        wanted = value.is_floating_point()  # BROKEN: was wanted = name in fresh
        if wanted:
            saved[name] = value.clone()
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    return {name: saved.get(name, value) for name, value in fresh.items()}, state


def wrong_through_float64(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Write one row of float64, which is wide enough for all but large integers."""
    saved = {}
    for name, value in state.items():
        saved[name] = value.double()  # BROKEN: was saved[name] = value
        saved[name] = saved[name].clone()
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    return {name: saved[name].to(value.dtype) for name, value in fresh.items()}, state


def wrong_scalars_widened(
    state: dict[str, Tensor], fresh: dict[str, Tensor], change: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Flatten to save: a tensor without any axis comes back with one."""
    rows = {name: value.clone().reshape(-1) for name, value in state.items()}
    for value in state.values():
        if value.is_floating_point():
            value.add_(change)
    loaded = {}
    for name, value in fresh.items():
        shape = value.shape or (1,)  # BROKEN: was shape = value.shape
        loaded[name] = rows[name].view(shape)
    return loaded, state


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Save, move the live weights, load into a fresh model; compare both, tensor by tensor."""
    for _ in range(ROUNDS):
        state, fresh = _draw_state(), _draw_state()
        came = implementation(
            {name: value.clone() for name, value in state.items()},
            {name: fresh[name].clone() for name in reversed(fresh)},
            CHANGE,
        )
        loaded, live = as_parts(came, "loaded", "live")
        moved = {
            name: value + CHANGE if value.is_floating_point() else value
            for name, value in state.items()
        }
        yield _compare(_as_state(live, "live", moved), moved, {}, "live")
        known = {
            "the live values after the change": moved,
            "the values of the fresh model": fresh,
        }
        yield _compare(_as_state(loaded, "loaded", state), state, known, "loaded")


def _draw_state() -> State:
    """Return tensors of several types; some agree in shape and type, and differ in name alone."""
    return {
        "embedding.weight": torch.randn(5, 4),
        "attention.weight": torch.randn(4, 4, dtype=torch.float64),
        "mlp.weight": torch.randn(4, 4, dtype=torch.float64),
        "head.weight": torch.randn(5, 4),
        "norm.bias": torch.randn(4, dtype=torch.float64),
        "norm.scale": torch.randn((), dtype=torch.float64),
        "mask": torch.cat([torch.rand(6) < 0.5, torch.tensor([True, False])]),
        "random_state": LARGE + torch.randint(2**40, (6,)),
        "step": torch.randint(10_000, ()),
    }


def _as_state(value: Any, part: str, wanted: State) -> State:
    """Return a dictionary with the wanted names, types and shapes. Raises BrokenPromiseError."""
    if not isinstance(value, dict):
        raise BrokenPromiseError(f"{part} is a {type(value).__name__}, wanted a dict of tensors")
    missing = [name for name in wanted if name not in value]
    if missing or len(value) != len(wanted):
        raise BrokenPromiseError(
            f"{part} lacks {len(missing)} of the {len(wanted)} saved names, and has "
            f"{len(value) - len(wanted) + len(missing)} others"
        )
    return {
        name: as_tensor(value[name], f"{part}[{name!r}]", shape=tuple(due.shape), dtype=due.dtype)
        for name, due in wanted.items()
    }


def _compare(got: State, wanted: State, known: dict[str, State], part: str) -> Finding:
    wrong = [name for name in wanted if not torch.equal(got[name], wanted[name])]
    named = ", ".join(wrong[:NAMED]) + (" and others" if len(wrong) > NAMED else "")
    claim = f"{len(wrong)} of the {len(wanted)} tensors of {part} have other values: {named}"
    for told, values in known.items():
        if wrong and all(torch.equal(got[name], values[name]) for name in wrong):
            return Finding(len(wrong), f"{claim}; they hold {told}")
    if not wrong:
        return Finding(0, f"all {len(wanted)} tensors of {part} have the wanted values")
    return Finding(len(wrong), f"{claim}; {_explained(got, wanted, wrong)}")


def _explained(got: State, wanted: State, wrong: list[str]) -> str:
    """Say what became of the first wrong tensor."""
    first = wrong[0]
    for name, value in wanted.items():
        if value.shape == got[first].shape and torch.equal(value, got[first]):
            return f"{first} holds what was saved as {name}"
    worst = _distance(got[first], wanted[first])
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        if all(torch.equal(wanted[n].to(dtype).to(wanted[n].dtype), got[n]) for n in wrong):
            return f"they are rounded to {str(dtype).removeprefix('torch.')}, off by {worst:.3g}"
    return f"{first} is off by up to {worst:.3g}" if math.isfinite(worst) else f"{first} has NaN"


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; of integers without the rounding of a float64."""
    return float((a - b).abs().amax()) if a.dtype == torch.int64 else largest_difference(a, b)


CONTRACT = Contract(
    check="checkpoint",
    signature=(
        "implementation(state: dict[str, Tensor], fresh: dict[str, Tensor], change: float)"
        " -> tuple[dict[str, Tensor], dict[str, Tensor]]"
    ),
    promise=(
        "state holds the live tensors of a model by name; fresh holds other values under the same "
        "names, with the same shapes and types (float32, float64, int64, bool), in another order. "
        "It saves state; then training goes on: every live tensor of a floating type grows by "
        "change, and the others stay; then it loads what was saved into the fresh model. It "
        "returns (loaded, live): the same names, shapes and types, loaded with the values at the "
        "moment of saving, bit for bit, and live with those of afterwards. The arguments may be "
        "changed."
    ),
    rights=(
        Right(name="clones", implementation=right_clones, note="clones in memory"),
        Right(name="bytes", implementation=right_bytes, note="one row of bytes and a table"),
        Right(name="lists", implementation=right_lists, note="plain numbers"),
        Right(
            name="copied_into_fresh",
            implementation=right_copied_into_fresh,
            note="copies into the fresh tensors, in random order",
        ),
    ),
    wrongs=(
        Wrong(
            name="saved_by_reference",
            implementation=wrong_saved_by_reference,
            note="what was saved moves along with the live weights",
        ),
        Wrong(
            name="prefix",
            implementation=wrong_prefix,
            note="no name is found, and nothing is loaded",
        ),
        Wrong(
            name="single_precision",
            implementation=wrong_single_precision,
            note="values are rounded to float32",
        ),
        Wrong(
            name="matched_by_shape",
            implementation=wrong_matched_by_shape,
            note="tensors of one shape and type are mixed up",
            held_out=True,
        ),
        Wrong(
            name="buffers_lost",
            implementation=wrong_buffers_lost,
            note="integers and masks are not saved",
            held_out=True,
        ),
        Wrong(
            name="through_float64",
            implementation=wrong_through_float64,
            note="large integers are rounded",
            held_out=True,
        ),
        Wrong(
            name="scalars_widened",
            implementation=wrong_scalars_widened,
            note="a tensor without axes comes back with one",
            held_out=True,
        ),
    ),
    examine=examine,
)
