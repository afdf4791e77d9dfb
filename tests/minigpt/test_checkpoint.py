"""What is saved comes back, bit for bit, in both formats; what does not belong is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from minigpt.checkpoint import (
    Checkpoint,
    CheckpointConfigError,
    CheckpointError,
    CheckpointTokenizerError,
    load_checkpoint,
    save_checkpoint,
)
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import make_optimizer
from minigpt.seed import random_states
from minigpt.tokenizer import CharTokenizer

CONFIG = MiniGPTConfig(
    vocab_size=11, block_size=7, embedding_dim=6, num_heads=2, num_layers=2, expansion_factor=5
)
TOKENIZER = CharTokenizer("\n abcdef\u00e9\u4e2d\U0001f600")
SUFFIXES = [".safetensors", ".pt"]
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)


def train_a_step(model: MiniGPT, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """Make one update on random ids of that seed."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab_size, (2, 8), generator=generator)
    optimizer.zero_grad()
    loss = model(ids[:, : model.config.block_size], ids[:, 1 : 1 + model.config.block_size])[1]
    assert loss is not None
    loss.backward()
    optimizer.step()


def trained(**changes: Any) -> tuple[MiniGPT, torch.optim.AdamW]:
    """Return a model after one update, and its optimizer."""
    torch.manual_seed(1)
    model = MiniGPT(MiniGPTConfig(**(CONFIG.to_dict() | changes)))
    optimizer = make_optimizer(model, learning_rate=0.01)
    train_a_step(model, optimizer)
    return model, optimizer


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    """Compare names, their order, dtypes and every bit."""
    ours, theirs = found.state_dict(), expected.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor)


def assert_same_state(found: Any, expected: Any) -> None:
    """Compare nested dictionaries of tensors and values, types included."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same_state(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_state(one, other)
    else:
        assert found == expected


@both_formats
def test_everything_comes_back(tmp_path: Path, suffix: str) -> None:
    """Weights, optimizer, counters, losses and random states are equal after a round trip."""
    path = tmp_path / f"new folder/model{suffix}"
    model, optimizer = trained(dropout=0.25)
    states = random_states() | {"batches": torch.Generator().manual_seed(3).get_state()}
    expected = copy.deepcopy(optimizer.state_dict())
    save_checkpoint(
        path,
        model,
        TOKENIZER,
        optimizer=optimizer,
        step=123,
        train_loss=2.5,
        validation_loss=0.1,
        best_validation_loss=float("inf"),
        corpus_fingerprint="ab" * 32,
        trainer_state={"list": [1, 2.5, None, True], "text": "\u4e2d", "nested": {"a": {}}},
        random_states=states,
    )
    loaded = load_checkpoint(path, tokenizer=TOKENIZER)
    assert_same_weights(loaded.model, model)
    assert_same_state(loaded.optimizer_state, expected)
    assert_same_state(loaded.random_states, states)
    assert loaded.config == loaded.model.config == model.config
    assert (loaded.step, loaded.train_loss, loaded.validation_loss) == (123, 2.5, 0.1)
    assert loaded.best_validation_loss == float("inf")
    assert loaded.corpus_fingerprint == "ab" * 32
    assert loaded.tokenizer_fingerprint == TOKENIZER.fingerprint
    assert loaded.trainer_state == {
        "list": [1, 2.5, None, True],
        "text": "\u4e2d",
        "nested": {"a": {}},
    }
    assert loaded.versions["torch"] == torch.__version__
    assert loaded.path == path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@both_formats
def test_the_least_that_can_be_saved(tmp_path: Path, suffix: str) -> None:
    """Without the optional parts they come back as None, not as something empty."""
    model, _ = trained()
    save_checkpoint(tmp_path / f"a{suffix}", model, TOKENIZER)
    loaded = load_checkpoint(tmp_path / f"a{suffix}")
    assert loaded.step == 0
    parts = ["optimizer_state", "trainer_state", "random_states", "train_loss", "validation_loss"]
    assert [getattr(loaded, part) for part in parts] == [None] * 5
    assert loaded.tokenizer == (TOKENIZER if suffix == ".safetensors" else None)
    with pytest.raises(CheckpointError, match="saved without an optimizer"):
        loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=1.0))


@both_formats
def test_saving_changes_nothing_and_loading_gives_eval_mode(tmp_path: Path, suffix: str) -> None:
    """Mode, gradients, weights and random state of the saved model stay; the loaded one is eval."""
    model, optimizer = trained()
    model.train()
    weights, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    save_checkpoint(tmp_path / f"a{suffix}", model, TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(tmp_path / f"a{suffix}").model
    assert model.training
    assert not any(module.training for module in loaded.modules())
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(torch.get_rng_state(), rng)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


@both_formats
def test_resumed_training_is_exact(tmp_path: Path, suffix: str) -> None:
    """One step, save, load, two steps equals three steps, bit for bit."""
    model, optimizer = trained()
    path = tmp_path / f"a{suffix}"
    save_checkpoint(path, model, TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(path)
    fresh = make_optimizer(loaded.model, learning_rate=99.0)
    loaded.restore_optimizer(fresh)
    assert fresh.param_groups[0]["lr"] == 0.01
    for seed in (1, 2):
        train_a_step(model, optimizer, seed)
        train_a_step(loaded.model, fresh, seed)
    assert_same_weights(loaded.model, model)


@both_formats
def test_the_loaded_model_does_not_depend_on_the_file(tmp_path: Path, suffix: str) -> None:
    """The file may be overwritten in place, and training does not write into it."""
    model, optimizer = trained()
    path = tmp_path / f"a{suffix}"
    save_checkpoint(path, model, TOKENIZER, optimizer=optimizer)
    before = path.read_bytes()
    loaded = load_checkpoint(path)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter += 1
    assert path.read_bytes() == before
    path.write_bytes(b"\0" * len(before))
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor + 1)


def test_large_tensors_have_storages_of_their_own(tmp_path: Path) -> None:
    """They are aligned to 64 bytes, as torch's own are; no storage is larger than its tensor."""
    torch.manual_seed(0)
    model = MiniGPT(
        MiniGPTConfig(vocab_size=13, block_size=5, embedding_dim=510, num_heads=2, num_layers=1)
    )
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, model, CharTokenizer("abc"))
    loaded = load_checkpoint(path).model
    assert_same_weights(loaded, model)
    for parameter in loaded.parameters():
        size = parameter.numel() * parameter.element_size()
        assert parameter.untyped_storage().nbytes() == size
        assert parameter.data_ptr() % 64 == 0


@both_formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_kinds_of_numbers(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    """The dtype of the weights is kept, and the bits with it."""
    model = trained()[0].to(dtype)
    optimizer = make_optimizer(model, learning_rate=0.01)
    train_a_step(model, optimizer)
    expected = copy.deepcopy(optimizer.state_dict())
    save_checkpoint(tmp_path / f"a{suffix}", model, TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(tmp_path / f"a{suffix}")
    assert_same_weights(loaded.model, model)
    assert_same_state(loaded.optimizer_state, expected)


@both_formats
def test_tied_weights_stay_tied(tmp_path: Path, suffix: str) -> None:
    """Two names of one parameter are one parameter again, and the optimizer counts it once."""
    model = trained()[0]
    model.head.weight = model.token_embedding.weight
    optimizer = make_optimizer(model, learning_rate=0.01)
    train_a_step(model, optimizer)
    save_checkpoint(tmp_path / f"a{suffix}", model, TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(tmp_path / f"a{suffix}")
    assert loaded.model.head.weight is loaded.model.token_embedding.weight
    loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=0.01))
    assert_same_weights(loaded.model, model)


@both_formats
def test_states_that_share_memory(tmp_path: Path, suffix: str) -> None:
    """One tensor under two names, and an empty one, are equal afterwards, each by itself."""
    state = torch.arange(7, dtype=torch.uint8)
    states = {"a": state, "b": state, "seven": state.view(7, 1), "empty": torch.zeros(0, 3)}
    save_checkpoint(tmp_path / f"a{suffix}", trained()[0], TOKENIZER, random_states=states)
    loaded = load_checkpoint(tmp_path / f"a{suffix}").random_states
    assert loaded is not None
    assert_same_state(loaded, states)
    loaded["a"].zero_()
    assert torch.equal(loaded["b"], state)


@both_formats
def test_transposed_and_sliced_weights(tmp_path: Path, suffix: str) -> None:
    """Weights that are views in an odd layout come back with the same numbers."""
    model = trained()[0]
    transposed = torch.randn(6, 11).t()
    sliced = torch.randn(100, 6)[40:47]
    model.head.weight = nn.Parameter(transposed)
    model.position_embedding.weight = nn.Parameter(sliced)
    save_checkpoint(tmp_path / f"a{suffix}", model, TOKENIZER)
    loaded = load_checkpoint(tmp_path / f"a{suffix}").model
    assert torch.equal(loaded.head.weight, transposed)
    assert torch.equal(loaded.position_embedding.weight, sliced)


class Wrapper(nn.Module):
    """Holds a model under the name that data parallelism or torch.compile uses."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        self.add_module(name, model)


@both_formats
def test_wrappers_leave_no_trace(tmp_path: Path, suffix: str) -> None:
    """A compiled, data-parallel model gives the names of the plain one."""
    model, optimizer = trained()
    wrapped = Wrapper("_orig_mod", Wrapper("module", model))
    save_checkpoint(tmp_path / f"a{suffix}", wrapped, TOKENIZER, optimizer=optimizer)
    assert_same_weights(load_checkpoint(tmp_path / f"a{suffix}").model, model)


@both_formats
def test_a_really_compiled_model_and_block(tmp_path: Path, suffix: str) -> None:
    """torch.compile around the model and around one block alone leaves no prefix in the file."""
    model, optimizer = trained()
    names = list(model.state_dict())
    model.blocks[1] = torch.compile(model.blocks[1])  # type: ignore[assignment]
    save_checkpoint(tmp_path / f"a{suffix}", torch.compile(model), TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(tmp_path / f"a{suffix}")
    assert list(loaded.model.state_dict()) == names
    loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=0.01))


def test_sgd_with_state_that_is_no_tensor(tmp_path: Path) -> None:
    """An optimizer other than AdamW comes back as well, None in its state included."""
    model = trained()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_a_step(model, optimizer)
    optimizer.state[model.head.weight] = {"momentum_buffer": None}
    expected = copy.deepcopy(optimizer.state_dict())
    save_checkpoint(tmp_path / "a.safetensors", model, TOKENIZER, optimizer=optimizer)
    loaded = load_checkpoint(tmp_path / "a.safetensors")
    assert_same_state(loaded.optimizer_state, expected)


def saved_with_optimizer(tmp_path: Path) -> Checkpoint:
    """Return a loaded checkpoint that has an optimizer's state."""
    model, optimizer = trained()
    save_checkpoint(tmp_path / "a.safetensors", model, TOKENIZER, optimizer=optimizer)
    return load_checkpoint(tmp_path / "a.safetensors")


def test_optimizer_state_is_given_away_once(tmp_path: Path) -> None:
    """A second optimizer would share the moments of the first, so it is refused."""
    loaded = saved_with_optimizer(tmp_path)
    loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=0.01))
    with pytest.raises(CheckpointError, match="given its optimizer state away"):
        loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=0.01))


def test_parameters_in_another_order_are_noticed(tmp_path: Path) -> None:
    """By itself torch puts the state of one parameter on another of equal shape."""
    loaded = saved_with_optimizer(tmp_path)
    optimizer = make_optimizer(loaded.model, learning_rate=0.01)
    optimizer.param_groups[0]["params"].reverse()
    with pytest.raises(CheckpointConfigError, match=r"number 0 was token_embedding\.weight and is"):
        loaded.restore_optimizer(optimizer)


def test_another_optimizer_class_and_another_model_are_noticed(tmp_path: Path) -> None:
    """State of AdamW does not go into SGD, nor into an optimizer of another model."""
    loaded = saved_with_optimizer(tmp_path)
    with pytest.raises(CheckpointConfigError, match="holds the state of AdamW, got a SGD"):
        loaded.restore_optimizer(torch.optim.SGD(loaded.model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="must hold parameters of this model"):
        loaded.restore_optimizer(make_optimizer(MiniGPT(CONFIG), learning_rate=0.1))


@both_formats
def test_another_tokenizer_of_equal_size_is_refused(tmp_path: Path, suffix: str) -> None:
    """The same characters in another order are another tokenizer; both fingerprints are shown."""
    save_checkpoint(tmp_path / f"a{suffix}", trained()[0], TOKENIZER)
    other = CharTokenizer(reversed(TOKENIZER.chars))
    with pytest.raises(CheckpointTokenizerError) as caught:
        load_checkpoint(tmp_path / f"a{suffix}", tokenizer=other)
    assert isinstance(caught.value, ValueError)
    for part in (TOKENIZER.fingerprint, other.fingerprint, f"a{suffix}", "Trust the checkpoint"):
        assert part in str(caught.value)


def guide_dictionary(model: MiniGPT, **changes: Any) -> dict[str, Any]:
    """Return what the guide saves; a change to None leaves the entry out."""
    content = {
        "config": model.config.to_dict(),
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": torch.optim.AdamW(model.parameters(), lr=1e-3).state_dict(),
        "step": 40,
        "tokenizer_fingerprint": TOKENIZER.fingerprint,
    }
    return {k: v for k, v in (content | changes).items() if v is not None}


def test_a_dictionary_written_by_plain_torch_loads(tmp_path: Path) -> None:
    """The guide's own file gives model, step, tokenizer and an optimizer that goes on."""
    model = trained()[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_a_step(model, optimizer)
    content = guide_dictionary(model, optimizer_state_dict=optimizer.state_dict())
    torch.save(content, tmp_path / "a.pt")
    loaded = load_checkpoint(tmp_path / "a.pt", tokenizer=TOKENIZER)
    assert (loaded.step, loaded.tokenizer) == (40, TOKENIZER)
    fresh = torch.optim.AdamW(loaded.model.parameters(), lr=1.0)
    loaded.restore_optimizer(fresh)
    for seed in (1, 2):
        train_a_step(model, optimizer, seed)
        train_a_step(loaded.model, fresh, seed)
    assert_same_weights(loaded.model, model)


def test_plain_torch_reads_our_dictionary(tmp_path: Path) -> None:
    """`torch.load(weights_only=True)` gives the five entries of the guide, on the CPU."""
    model, optimizer = trained()
    save_checkpoint(tmp_path / "a.pt", model, TOKENIZER, optimizer=optimizer, step=7)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert content["config"] == CONFIG.to_dict()
    assert content["step"] == 7
    assert content["tokenizer_fingerprint"] == TOKENIZER.fingerprint
    other = MiniGPT(MiniGPTConfig(**content["config"]))
    other.load_state_dict(content["model_state_dict"])
    make_optimizer(other, learning_rate=1.0).load_state_dict(content["optimizer_state_dict"])
    assert_same_weights(other, model)


def test_the_safetensors_library_reads_our_file(tmp_path: Path) -> None:
    """Another reader gets the same weights, and the card without reading them."""
    model = trained()[0]
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, model, TOKENIZER, step=7)
    tensors = safetensors.torch.load_file(path)
    assert tensors.keys() == {f"model.{name}" for name in model.state_dict()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[f"model.{name}"], tensor)
    with safetensors.safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["card"])
    assert card["config"] == CONFIG.to_dict()
    assert card["chars"] == TOKENIZER.chars
    assert card["tokenizer_fingerprint"] == TOKENIZER.fingerprint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_safe_open_reads_single_tensors_of_our_file(tmp_path: Path, dtype: torch.dtype) -> None:
    """Names, and each tensor: of the model, of the optimizer and the random states."""
    model = trained()[0].to(dtype)
    optimizer = make_optimizer(model, learning_rate=0.01)
    train_a_step(model, optimizer)
    states, path = random_states(), tmp_path / "a.safetensors"
    save_checkpoint(path, model, TOKENIZER, optimizer=optimizer, random_states=states)
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    expected |= {f"random.{name}": tensor for name, tensor in states.items()}
    for index, state in optimizer.state_dict()["state"].items():
        expected |= {f"optimizer.{index}.{key}": tensor for key, tensor in state.items()}
    with safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == expected.keys()
        assert file.metadata().keys() == {"card"}
        for name, tensor in expected.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


def test_an_old_file_without_a_fingerprint_warns(tmp_path: Path) -> None:
    """It loads, with a warning that names the file and what is not known."""
    torch.save(guide_dictionary(trained()[0], tokenizer_fingerprint=None), tmp_path / "a.pt")
    with pytest.warns(UserWarning, match=r"a\.pt has no tokenizer fingerprint") as caught:
        loaded = load_checkpoint(tmp_path / "a.pt", tokenizer=TOKENIZER)
    assert loaded.tokenizer == TOKENIZER
    assert caught[0].filename == __file__
    small = CharTokenizer("abc")
    with pytest.warns(match="fingerprint"), pytest.raises(CheckpointTokenizerError, match="got a"):
        load_checkpoint(tmp_path / "a.pt", tokenizer=small)


@pytest.mark.parametrize(
    ("field", "number"), [("vocab_size", 12), ("embedding_dim", 8), ("num_layers", 3)]
)
def test_a_configuration_of_another_architecture(tmp_path: Path, field: str, number: int) -> None:
    """The configuration says one thing, the weights another: both numbers are named."""
    config = CONFIG.to_dict() | {field: number}
    torch.save(guide_dictionary(trained()[0], config=config), tmp_path / "a.pt")
    with pytest.raises(CheckpointConfigError) as caught:
        load_checkpoint(tmp_path / "a.pt")
    ours = CONFIG.to_dict()[field]
    assert f"{field} = {number}, the weights were made with {field} = {ours}" in str(caught.value)
    assert str(tmp_path / "a.pt") in str(caught.value)


def test_other_spellings_in_the_configuration(tmp_path: Path) -> None:
    """Another project's names are answered with ours."""
    config = {"vocab_size": 11, "n_embd": 6, "block_sise": 7, "num_heads": 2, "num_layers": 2}
    torch.save(guide_dictionary(trained()[0], config=config), tmp_path / "a.pt")
    with pytest.raises(CheckpointConfigError) as caught:
        load_checkpoint(tmp_path / "a.pt")
    assert "n_embd: embedding_dim is meant?" in str(caught.value)
    assert "block_sise: block_size is meant?" in str(caught.value)


def test_a_bare_state_dict_is_explained(tmp_path: Path) -> None:
    """Without a configuration no model is guessed."""
    torch.save(trained()[0].state_dict(), tmp_path / "a.pt")
    with pytest.raises(CheckpointConfigError, match="`config` and `model_state_dict`"):
        load_checkpoint(tmp_path / "a.pt")


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    """Each refusal leaves no file; the messages say what was wanted."""
    path = tmp_path / "a.safetensors"
    model, optimizer = trained()
    with pytest.raises(ValueError, match=r"\.safetensors or \.pt, got .*a\.bin"):
        save_checkpoint(tmp_path / "a.bin", model, TOKENIZER)
    with pytest.raises(TypeError, match=r"must be a MiniGPT.*got Linear"):
        save_checkpoint(path, nn.Linear(2, 2), TOKENIZER)
    with pytest.raises(TypeError, match="trainer_state must hold only what JSON can hold"):
        save_checkpoint(path, model, TOKENIZER, trainer_state={"a": object()})
    with pytest.raises(ValueError, match="step must be a whole number >= 0, got -1"):
        save_checkpoint(path, model, TOKENIZER, step=-1)
    with pytest.raises(CheckpointTokenizerError, match="got 12 and 11"):
        save_checkpoint(path, model, CharTokenizer([*TOKENIZER.chars, "x"]))
    with pytest.raises(ValueError, match="must hold parameters of this model"):
        save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, optimizer=optimizer)
    states = {"odd": torch.zeros(2, dtype=torch.complex128)}
    with pytest.raises(TypeError, match=r"dtype of the format, got torch\.complex128"):
        save_checkpoint(path, model, TOKENIZER, random_states=states)
    model.head = nn.Linear(6, 20, bias=False)
    with pytest.raises(TypeError, match="of its own configuration"):
        save_checkpoint(path, model, TOKENIZER)
    assert list(tmp_path.iterdir()) == []


@both_formats
def test_a_missing_file_names_the_command(tmp_path: Path, suffix: str) -> None:
    """The error has the path, and what creates a checkpoint."""
    with pytest.raises(FileNotFoundError) as caught:
        load_checkpoint(tmp_path / f"a{suffix}")
    assert caught.value.filename == str(tmp_path / f"a{suffix}")
    assert "python -m minigpt.train" in str(caught.value)
    with pytest.raises(ValueError, match="must end in"):
        load_checkpoint(tmp_path / "a.bin")


def test_losses_may_be_any_kind_of_number(tmp_path: Path) -> None:
    """Tensors and NumPy numbers are stored as plain ones."""
    path = tmp_path / "a.safetensors"
    losses: dict[str, Any] = {"train_loss": torch.tensor(1.5), "validation_loss": np.float64(2.5)}
    save_checkpoint(path, trained()[0], TOKENIZER, **losses)
    loaded = load_checkpoint(path)
    assert (loaded.train_loss, loaded.validation_loss) == (1.5, 2.5)
    assert type(loaded.validation_loss) is float


@st.composite
def configurations(draw: st.DrawFn) -> MiniGPTConfig:
    """Draw a small configuration, sizes of 1 included."""
    heads = draw(st.integers(1, 3))
    return MiniGPTConfig(
        vocab_size=draw(st.integers(1, 20)),
        block_size=draw(st.integers(1, 9)),
        embedding_dim=heads * draw(st.integers(1, 5)),
        num_heads=heads,
        num_layers=draw(st.integers(1, 3)),
        expansion_factor=draw(st.integers(1, 5)),
        dropout=draw(st.floats(0.0, 1.0, exclude_max=True)),
    )


@given(
    config=configurations(),
    chars=st.lists(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20, unique=True),
    step=st.integers(0, 2**63),
    loss=st.none() | st.floats(allow_nan=False),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    suffix=st.sampled_from(SUFFIXES),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_configuration_and_tokenizer_round_trips(
    tmp_path_factory: pytest.TempPathFactory,
    config: MiniGPTConfig,
    chars: list[str],
    step: int,
    loss: float | None,
    dtype: torch.dtype,
    suffix: str,
) -> None:
    """Whatever can be saved comes back equal, odd characters and sizes of 1 included."""
    tokenizer = CharTokenizer(chars[: config.vocab_size])
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    model = MiniGPT(config).to(dtype)
    save_checkpoint(path, model, tokenizer, step=step, validation_loss=loss)
    loaded = load_checkpoint(path, tokenizer=tokenizer)
    assert_same_weights(loaded.model, model)
    assert (loaded.config, loaded.step, loaded.validation_loss) == (config, step, loss)
    assert loaded.tokenizer == tokenizer
