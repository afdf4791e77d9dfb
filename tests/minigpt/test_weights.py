"""Weights fit or are explained; nothing is loaded in part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minigpt.checkpoint import CheckpointConfigError
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.weights import (
    build_without_memory,
    explain_state_dict_mismatch,
    infer_config_numbers,
    load_weights,
)

# All numbers differ, so that none can be taken for another.
CONFIG = MiniGPTConfig(
    vocab_size=11, block_size=7, embedding_dim=6, num_heads=2, num_layers=3, expansion_factor=5
)


def weights_of(**changes: int) -> dict[str, Tensor]:
    """Return the weights of a model of CONFIG with changes."""
    return dict(MiniGPT(MiniGPTConfig(**(CONFIG.to_dict() | changes))).state_dict())


def test_fitting_weights_give_no_lines_and_are_copied() -> None:
    """The same configuration fits, and the model then holds equal numbers of its own."""
    model, state = MiniGPT(CONFIG), weights_of()
    assert load_weights(model, state) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
        assert tensor.data_ptr() != state[name].data_ptr()


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("vocab_size", 12),
        ("block_size", 8),
        ("embedding_dim", 8),
        ("num_layers", 2),
        ("num_layers", 4),
        ("expansion_factor", 4),
    ],
)
def test_another_architecture_is_named_with_both_numbers(field: str, number: int) -> None:
    """One changed number of the configuration is the one that the explanation names."""
    model = MiniGPT(CONFIG)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointConfigError) as caught:
        load_weights(model, weights_of(**{field: number}))
    ours = CONFIG.to_dict()[field]
    wanted = f"the model has {field} = {ours}, the weights were made with {field} = {number}"
    assert wanted in str(caught.value)
    assert str(caught.value).count("the weights were made with") == 1
    assert f"{field}={number}" in str(caught.value).rpartition("these weights fit")[2]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_missing_and_unexpected_names_are_counted() -> None:
    """One layer less misses 12 names; one more has 12 unexpected ones."""
    fewer = explain_state_dict_mismatch(MiniGPT(CONFIG), weights_of(num_layers=2))
    more = explain_state_dict_mismatch(MiniGPT(CONFIG), weights_of(num_layers=4))
    assert fewer[0] == "missing: 12 of the model's 41 names"
    assert more[0] == "unexpected: 12 names that it does not have"
    assert "  and 8 more" in fewer


def test_a_wrapper_prefix_is_named_with_its_cure() -> None:
    """Names that all start with `_orig_mod.module.` are recognised; nothing else is blamed."""
    state = {f"_orig_mod.module.{name}": tensor for name, tensor in weights_of().items()}
    lines = explain_state_dict_mismatch(MiniGPT(CONFIG), state)
    assert any("all names start with '_orig_mod.module.'" in line for line in lines)
    assert not any("made with" in line for line in lines)


def test_whole_numbers_are_no_weights() -> None:
    """A tensor of the right shape and the wrong kind of number does not fit."""
    state = weights_of()
    state["head.weight"] = torch.zeros(11, 6, dtype=torch.int64)
    lines = explain_state_dict_mismatch(MiniGPT(CONFIG), state)
    assert lines[1] == "  head.weight: model float32 (11, 6), weights int64 (11, 6)"


def test_another_model_class_is_said_to_be_one() -> None:
    """Names of another library fit nothing, and no configuration is made up for them."""
    lines = explain_state_dict_mismatch(MiniGPT(CONFIG), {"transformer.wte.weight": torch.ones(2)})
    assert lines[-1] == (
        "the names are not those of a MiniGPT: the weights belong to another model class"
    )


def test_not_strict_loads_what_fits_and_tells_the_rest() -> None:
    """Diagnosis: the fitting names are loaded, the others keep their numbers."""
    model, state = MiniGPT(CONFIG), weights_of(vocab_size=12)
    head = model.head.weight.detach().clone()
    assert load_weights(model, state, strict=False) != []
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.position_embedding.weight, state["position_embedding.weight"])


def test_shapes_reveal_the_configuration() -> None:
    """All numbers but the heads and the dropout can be read from the shapes."""
    expected = {
        name: number
        for name, number in CONFIG.to_dict().items()
        if name not in {"num_heads", "dropout"}
    }
    assert infer_config_numbers(weights_of()) == expected


def test_a_model_without_memory_has_the_same_names_and_shapes_and_draws_nothing() -> None:
    """Building on the meta device moves no random state and gives the usual structure."""
    before = torch.get_rng_state()
    empty = build_without_memory(CONFIG).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert {n: t.shape for n, t in empty.items()} == {n: t.shape for n, t in weights_of().items()}
    assert all(tensor.is_meta for tensor in empty.values())
