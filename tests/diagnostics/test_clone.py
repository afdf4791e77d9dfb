"""`clone` gives what `copy.deepcopy` gives: same values, same sharing, nothing in common."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from diagnostics._clone import clone
from tests.diagnostics.architectures import Llama, StateSpace
from tests.diagnostics.tiny import Bigram, MixtureOfExperts, Recurrent, TinyGPT


class Sharing(nn.Module):
    """Two children that share a parameter, a still empty list, and a reference to their parent."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.a.log = self.b.log = []
        object.__setattr__(self.a, "parent", self)
        self.a.register_forward_hook(self.note)

    def note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Write into the shared list."""
        self.b.log.append(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3) to (B, 3)."""
        return self.b(self.a(x))


class OwnWay(nn.Linear):
    """A module that says how it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnWay:
        copied = OwnWay(self.in_features, self.out_features)
        copied.said = "my own way"  # type: ignore[assignment]
        return copied


class Refusing(nn.Linear):
    """A module that cannot be copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("not to be copied")


MODELS: dict[str, Any] = {
    "gpt": TinyGPT,
    "llama": Llama,
    "state space": StateSpace,
    "recurrent": Recurrent,
    "experts": MixtureOfExperts,
    "bigram": Bigram,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval(),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_and_modes_are_those_of_a_deep_copy(name: str) -> None:
    """Names, bytes, modes, and requires_grad; no tensor in common with the original."""
    model = MODELS[name]()
    next(model.parameters()).requires_grad_(False)
    ours, theirs = clone(model), copy.deepcopy(model)
    assert str(ours) == str(theirs)
    for mine, other in zip(ours.modules(), theirs.modules(), strict=True):
        assert type(mine) is type(other)
        assert vars(mine).keys() == vars(other).keys()
        assert mine.training == other.training
    own = {t.data_ptr() for t in [*model.parameters(), *model.buffers()]}
    for (key, mine), (_, other) in zip(
        [*ours.named_parameters(), *ours.named_buffers()],
        [*theirs.named_parameters(), *theirs.named_buffers()],
        strict=True,
    ):
        assert torch.equal(mine, other), key
        assert mine.requires_grad == other.requires_grad
        assert mine.data_ptr() not in own


def test_what_is_shared_stays_shared_inside_the_copy() -> None:
    """A tied weight, an empty list of two children, and references back to the parent."""
    model = Sharing()
    copied = clone(model)
    assert copied.a.weight is copied.b.weight
    assert copied.a.log is copied.b.log
    assert copied.a.parent is copied
    copied(torch.zeros(1, 3))
    assert (len(copied.a.log), len(model.a.log)) == (1, 0)  # type: ignore[arg-type]


def test_a_class_with_its_own_way_is_asked() -> None:
    copied = clone(nn.Sequential(nn.Linear(2, 2), OwnWay(2, 2)))
    assert copied[1].said == "my own way"  # type: ignore[comparison-overlap]
    assert clone(OwnWay(2, 2)).said == "my own way"


def test_a_class_that_refuses_raises() -> None:
    with pytest.raises(TypeError, match="not to be copied"):
        clone(nn.Sequential(Refusing(2, 2)))


def test_two_parameters_over_the_same_numbers_stay_together() -> None:
    """Deepcopy parts them; their copy shares one memory of its own, and other ones share none."""
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight.data = model["table"].weight.data
    copied = clone(model)
    table, head = copied["table"].weight, copied["head"].weight
    assert table is not head
    assert table.data_ptr() == head.data_ptr() != model["table"].weight.data_ptr()
    assert torch.equal(table, model["table"].weight)
    assert isinstance(table, nn.Parameter)
    assert table.is_leaf
    assert table.requires_grad

    buffer = torch.randn(2, 3, 4)
    parts = clone(nn.ParameterList(nn.Parameter(part) for part in buffer))
    assert parts[0].untyped_storage().data_ptr() != parts[1].untyped_storage().data_ptr()
