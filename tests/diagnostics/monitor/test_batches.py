"""The same batch again, on the CPU by its hash and elsewhere by comparing."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from diagnostics.monitor.batches import BatchWatch, first_tensor, hash_of
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.values import Values
from tests.diagnostics.monitor.loops import batches, said, text, train


def feed(inputs: list[Tensor]) -> Speaker:
    speaker = Speaker(None)
    watch = BatchWatch(speaker, Values())
    for step, ids in enumerate(inputs, 1):
        watch.see(step, ids, due=False)
    return speaker


def test_three_equal_batches_in_a_row() -> None:
    a, b = torch.tensor([[1, 2]]), torch.tensor([[1, 3]])
    assert feed([a, a, b, a, a, b]).events == []
    events = feed([b, a, a.clone(), a, a]).events
    assert [(e.reason, e.step, e.count) for e in events] == [("monitor.same_batch", 4, 2)]


def test_learning_one_batch_by_heart_is_said_once() -> None:
    first = next(batches(text()))
    monitor = train(30, data=itertools.repeat(first))
    assert said(monitor) == [("same_batch", 3)]
    assert monitor.events[0].count == 28


def test_a_short_cycle_is_a_note() -> None:
    """Two epochs over four batches may be all the data there is."""
    speaker = feed([torch.tensor([[step % 4]]) for step in range(40)])
    assert speaker.events == []
    assert [(n.reason, n.measured) for n in speaker.notes] == [("monitor.batches_cycle", 4.0)]


def test_elsewhere_neighbours_are_compared_from_time_to_time() -> None:
    speaker, values = Speaker(None), Values()
    watch = BatchWatch(speaker, values)
    ids = torch.tensor([[1, 2]])
    watch._see_device(1, ids)
    assert values.waiting == []
    for step in (2, 3):
        watch._see_device(step, ids.clone())
        values.flush()
    assert [(e.reason, e.step) for e in speaker.events] == [("monitor.same_batch", 3)]
    watch._see_device(4, ids + 1)
    values.flush()
    assert watch._previous is None  # nothing is kept until the next look


def test_ids_are_found_in_any_batch() -> None:
    ids, mask = torch.tensor([[1]]), torch.tensor([[0]])
    assert first_tensor(ids) is ids
    assert first_tensor((ids, mask)) is ids
    assert first_tensor({"attention_mask": mask, "input_ids": ids}) is ids
    assert first_tensor({"x": "text", "y": ids}) is ids
    assert first_tensor("text") is None


def test_shape_and_contents_make_the_hash() -> None:
    ids = torch.arange(6)
    assert hash_of(ids) == hash_of(ids.clone())
    assert hash_of(ids.view(2, 3)) != hash_of(ids.view(3, 2))
    assert hash_of(ids) != hash_of(ids.flip(0))
    assert hash_of(torch.ones(2, dtype=torch.bfloat16)) != hash_of(torch.zeros(2))


def test_what_has_no_plain_numbers_is_left_alone() -> None:
    """Empty, sparse and meta batches can be compared with nothing, and end no training."""
    for ids in (
        torch.zeros(0, 4),
        torch.eye(3).to_sparse(),
        torch.zeros(2, 3, device="meta"),
    ):
        assert feed([ids] * 5).events == []
