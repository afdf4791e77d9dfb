"""Calling a model as its loop does, and without its wrappers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics.monitor.calls import call, hooks_set_aside, loss_of, rows_of, unwrapped

IDS = torch.tensor([[1, 2], [3, 4]])


class Echo(nn.Module):
    def forward(self, ids: Tensor, attention_mask: Any = None, labels: Any = None) -> Any:
        return ids, attention_mask, labels


def test_targets_go_by_name_and_dicts_by_their_keys() -> None:
    """The second position of many models is a mask."""
    assert call(Echo(), IDS, IDS + 1, None)[1] is None
    assert torch.equal(call(Echo(), IDS, IDS + 1, None)[2], IDS + 1)
    assert call(Echo(), {"ids": IDS, "labels": 5}, None, None) == (IDS, None, 5)
    assert call(Echo(), (IDS, 7), None, None) == (IDS, 7, None)
    assert call(Echo(), IDS, 3, lambda model, x, y: (type(model).__name__, y)) == ("Echo", 3)


def test_losses_of_all_kinds() -> None:
    loss, logits = torch.tensor(2.0), torch.zeros(2, 2, 5)
    assert loss_of(loss, None) is loss
    assert loss_of((logits, loss), None) == 2.0
    assert loss_of({"loss": torch.tensor([1.0, 3.0])}, None) == 2.0
    assert loss_of(SimpleNamespace(loss=loss, logits=logits), None) == 2.0
    assert loss_of(logits, IDS) == pytest.approx(1.6094, abs=1e-4)  # ln 5
    assert loss_of(logits, None) is None


def test_wrappers_are_taken_off() -> None:
    inner = nn.Linear(2, 2)
    assert unwrapped(nn.DataParallel(inner)) is inner
    compiled = nn.Module()
    compiled._orig_mod = nn.DataParallel(inner)
    assert unwrapped(compiled) is inner
    holder = nn.Module()  # a model of its own that calls a part "module"
    holder.module = inner
    assert unwrapped(holder) is holder


def test_rows_of_any_batch() -> None:
    batch = {"ids": IDS, "lengths": torch.tensor([2, 2]), "pair": (IDS, "text")}
    cut = rows_of(batch, 1)
    assert cut["ids"].tolist() == [[1, 2]]
    assert cut["lengths"].tolist() == [2, 2]
    assert cut["pair"][0].tolist() == [[1, 2]]
    assert cut["pair"][1] == "text"


def test_hooks_of_libraries_compute_and_stay() -> None:
    """Weight norm makes its weight in a hook; a counter of the user's is set aside."""
    model = nn.utils.spectral_norm(nn.Linear(2, 2))
    counted: list[int] = []
    model.register_forward_hook(lambda *args: counted.append(1))
    with hooks_set_aside(model):
        assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == (0, 1)
        model(torch.ones(1, 2))
    assert counted == []
    model(torch.ones(1, 2))
    assert counted == [1]
