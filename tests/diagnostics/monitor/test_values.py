"""One reading for all: numbers come back in order, to whom they belong."""

from __future__ import annotations

import torch

from diagnostics.monitor.values import Values


def test_one_flush_reads_everything_once() -> None:
    values, told = Values(), []
    values.ask([torch.tensor(1.0), torch.tensor(2, dtype=torch.int64)], told.append)
    values.ask(torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16), told.append)
    values.ask([torch.tensor(True)], told.append)
    assert told == []
    values.flush()
    values.flush()
    assert told == [[1.0, 2.0], [3.0, 4.0], [1.0]]
    assert values.reads == 1


def test_nothing_asked_is_told_at_once() -> None:
    values, told = Values(), []
    values.ask([], told.append)
    assert (told, values.waiting) == ([[]], [])


def test_who_is_told_may_ask_again() -> None:
    values, told = Values(), []
    values.ask([torch.tensor(1.0)], lambda _: values.ask([torch.tensor(5.0)], told.append))
    values.flush()
    assert told == []
    values.flush()
    assert told == [[5.0]]


def test_a_device_of_shapes_alone_tells_nothing() -> None:
    values, told = Values(), []
    values.ask([torch.ones((), device="meta")], told.append)
    values.flush()
    assert (told, values.waiting) == ([], [])
