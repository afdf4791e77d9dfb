"""One seed for all generators, and their states for an exact resume."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minigpt.seed import mix_seed, random_states, restore_random_states, set_seed


def draw() -> tuple[float, ...]:
    """Draw from every generator; the normal ones keep a second value in their state."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        *torch.rand(3).tolist(),
        *torch.randn(3).tolist(),
    )


def test_equal_seeds_give_equal_numbers() -> None:
    """All generators start again, and another seed moves every one of them."""
    set_seed(42)
    first = draw()
    set_seed(42)
    assert draw() == first
    set_seed(43)
    assert all(a != b for a, b in zip(first, draw(), strict=True))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_outside_the_range_is_refused(seed: int) -> None:
    """NumPy takes 32 bits; the message gives the range."""
    with pytest.raises(ValueError, match=rf"0\.\.4294967295, got {seed}"):
        set_seed(seed)


def test_states_survive_a_safetensors_file(tmp_path: Path) -> None:
    """The states are uint8 tensors and continue exactly, through a file too."""
    set_seed(1)
    draw()
    save_file(random_states(), tmp_path / "states.safetensors")
    expected = [draw() for _ in range(3)]
    set_seed(2)
    restore_random_states(load_file(tmp_path / "states.safetensors"))
    assert [draw() for _ in range(3)] == expected
    assert all(state.dtype == torch.uint8 for state in random_states().values())


def test_reading_the_states_draws_nothing() -> None:
    """Looking is free: the next numbers are the same as without it."""
    set_seed(3)
    expected = draw()
    set_seed(3)
    random_states()
    assert draw() == expected


@pytest.mark.parametrize("name", ["python", "numpy", "torch_cpu"])
@pytest.mark.parametrize("damage", ["missing", "short", "text"])
def test_damaged_states_change_nothing(name: str, damage: str) -> None:
    """A missing or damaged state is a `ValueError`, and all generators stay where they were."""
    set_seed(4)
    states = random_states()
    draw()
    before = random_states()
    if damage == "missing":
        del states[name]
    else:
        states[name] = states[name][:7] if damage == "short" else torch.zeros(7, dtype=torch.uint8)
    with pytest.raises(ValueError, match="random states must be"):
        restore_random_states(states)
    after = random_states()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_mixed_seed_never_changes() -> None:
    """NumPy promises these numbers, so a run that goes on in years still reads its batches."""
    assert [mix_seed(42, 0, 0), mix_seed(42, 0, 1), mix_seed(0, 42, 0), mix_seed(1, 2, 0, 2)] == [
        3444837047,
        1896493428,
        355231105,
        1395766291,
    ]
