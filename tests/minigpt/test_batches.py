"""Batches: every window is real, every target is the next id."""

from pathlib import Path

import numpy as np
import pytest
import torch

from minigpt.batches import get_batch, get_update_batch


@pytest.mark.parametrize("kind", ["tensor", "array", "uint16", "mapped"])
def test_targets_are_the_next_ids(kind: str, tmp_path: Path) -> None:
    """With data that counts, a window counts too and every target is its input plus one."""
    data: torch.Tensor | np.ndarray = torch.arange(1000)  # type: ignore[type-arg]
    if kind != "tensor":
        data = np.arange(1000, dtype=np.uint16 if kind == "uint16" else np.int64)
    if kind == "mapped":
        np.save(tmp_path / "ids.npy", data)
        data = np.load(tmp_path / "ids.npy", mmap_mode="r")
    inputs, targets = get_batch(data, 16, 8)
    assert inputs.shape == targets.shape == (16, 8)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    torch.testing.assert_close(inputs, inputs[:, :1] + torch.arange(8), rtol=0, atol=0)
    torch.testing.assert_close(targets, inputs + 1, rtol=0, atol=0)


@pytest.mark.parametrize("as_array", [False, True])
def test_every_start_occurs_including_the_last(as_array: bool) -> None:
    """Ten ids and blocks of 4 leave the starts 0 to 5; the last id is a target."""
    data = np.arange(10) if as_array else torch.arange(10)
    inputs, targets = get_batch(data, 2000, 4, generator=torch.Generator().manual_seed(0))
    assert inputs[:, 0].unique().tolist() == [0, 1, 2, 3, 4, 5]
    assert targets.max().item() == 9


def test_shortest_data_has_one_window() -> None:
    """T + 1 ids are enough, for exactly one window."""
    inputs, targets = get_batch(torch.tensor([5, 6, 7]), 2, 2)
    assert inputs.tolist() == [[5, 6], [5, 6]]
    assert targets.tolist() == [[6, 7], [6, 7]]


def test_generator_decides_and_global_state_stays() -> None:
    """Equal generators give equal batches; torch's global generator is not touched by them."""
    data = torch.arange(10_000)
    before = torch.get_rng_state()
    first = get_batch(data, 8, 4, generator=torch.Generator().manual_seed(7))
    second = get_batch(data, 8, 4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(first[0], second[0])
    assert torch.equal(torch.get_rng_state(), before)
    array = get_batch(data.numpy(), 8, 4, generator=torch.Generator().manual_seed(7))
    assert torch.equal(first[0], array[0])
    assert not torch.equal(get_batch(data, 8, 4)[0], get_batch(data, 8, 4)[0])


def test_batch_is_a_copy() -> None:
    """Writing into a batch leaves the data as it was."""
    data = torch.arange(100)
    inputs, targets = get_batch(data, 4, 8)
    inputs.zero_()
    targets.zero_()
    assert torch.equal(data, torch.arange(100))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.arange(8), r"block_size \+ 1 = 9 ids, got 8"),
        (np.arange(0), r"got 0"),
        (torch.zeros(2, 50, dtype=torch.int64), r"\(N,\), got \(2, 50\)"),
        (torch.zeros(50), r"int64 ids, got torch.float32"),
        (torch.zeros(50, dtype=torch.int32), r"int64 ids, got torch.int32"),
        (np.zeros(50), r"got float64"),
        ([1, 2, 3], r"got list"),
    ],
)
def test_unusable_data_is_described(data: torch.Tensor, message: str) -> None:
    """Too short, wrong shape and wrong type are `ValueError`s that give the numbers."""
    with pytest.raises(ValueError, match=message):
        get_batch(data, 4, 8)


def test_sizes_below_one_are_refused() -> None:
    """A batch has at least one row and one column."""
    for batch_size, block_size in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match=f"got {batch_size} and {block_size}"):
            get_batch(torch.arange(50), batch_size, block_size)


def test_a_batch_of_an_update_depends_on_seed_step_and_part_alone() -> None:
    """The same numbers give the same rows, whatever was drawn before; any other gives others."""
    data = torch.arange(10_000)
    places = [(7, 0, 0), (7, 0, 1), (7, 1, 0), (8, 0, 0)]

    def draw(seed: int, step: int, part: int) -> torch.Tensor:
        torch.rand(3)
        inputs, targets = get_update_batch(data, 4, 8, seed=seed, step=step, part=part)
        assert torch.equal(targets, inputs + 1)
        return inputs

    once, again = [draw(*place) for place in places], [draw(*place) for place in places]
    assert all(map(torch.equal, once, again))
    assert len({tuple(rows[:, 0].tolist()) for rows in once}) == len(places)


def test_a_batch_of_an_update_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    get_update_batch(torch.arange(100), 4, 8, seed=1, step=2, part=3)
    assert torch.equal(torch.get_rng_state(), state)
