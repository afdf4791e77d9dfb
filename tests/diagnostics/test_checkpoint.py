"""The checkpoint check: each way of losing something by saving and loading has its own name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_checkpoint, diagnose
from diagnostics.checkpoint import compare_state_dicts
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, load_checkpoint, save_checkpoint
from tests.diagnostics.tiny import Bigram, MixtureOfExperts, Recurrent, TinyGPT

Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class WithStatistics(nn.Module):
    """An embedding, a batch norm over channels and a head: the norm keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 7)."""
        x = self.norm(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def save(model: nn.Module, path: Path) -> None:
    """Write as most tutorials do."""
    torch.save(model.state_dict(), path)


def loader(
    make: Callable[[], nn.Module], edit: Edit = dict, *, strict: bool = True, assign: bool = False
) -> Callable[[Path], nn.Module]:
    """Return a load function that edits what it read."""

    def load(path: Path) -> nn.Module:
        model = make()
        state = edit(torch.load(path, weights_only=True))
        model.load_state_dict(state, strict=strict, assign=assign)
        return model

    return load


def reasons(result: Any) -> tuple[str, Status]:
    """The reason id and the status."""
    return result.reason, result.status


def test_healthy_round_trip_passes_with_the_count_of_tensors() -> None:
    """TinyGPT with 2 layers: 2 embeddings, 12 per block, a norm (2) and a head = 29 tensors."""
    result = check_checkpoint(TinyGPT(), save, loader(TinyGPT))
    assert reasons(result) == ("checkpoint.ok", Status.PASS)
    assert result.numbers["tensors"] == 2 + 2 * 12 + 2 + 1
    assert result.numbers["logit_difference"] == 0.0
    assert "29 tensors bit for bit" in result.claim


@pytest.mark.parametrize(
    "make",
    [
        Bigram,
        Recurrent,
        MixtureOfExperts,
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT().bfloat16(),
        lambda: TinyGPT(positions=False),
        WithStatistics,
    ],
    ids=["bigram", "gru", "experts", "tied", "bfloat16", "nope", "batchnorm"],
)
def test_healthy_designs_pass(make: Callable[[], nn.Module]) -> None:
    """Ties, buffers, half precision and odd architectures survive a state_dict."""
    result = check_checkpoint(make(), save, loader(make))
    assert reasons(result) == ("checkpoint.ok", Status.PASS), str(result)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_native_checkpoints_pass(suffix: str) -> None:
    """The reference's own format, whichever suffix its functions accept."""
    tokenizer = CharTokenizer("abcdefg")
    model = MiniGPT(MiniGPTConfig.debug(7, dropout=0.2))

    def native(model: nn.Module, path: Path) -> None:
        if path.suffix != suffix:
            raise ValueError("not this suffix")
        save_checkpoint(path, model, tokenizer)

    result = check_checkpoint(model, native, lambda path: load_checkpoint(path).model)
    assert reasons(result) == ("checkpoint.ok", Status.PASS), str(result)
    assert result.numbers["file_name"] == "model" + suffix


def test_functions_that_write_a_folder_pass() -> None:
    """A saver that makes the path a folder must find nothing there."""

    def save_folder(model: nn.Module, path: Path) -> None:
        path.mkdir()
        save(model, path / "weights.pt")

    load = loader(TinyGPT)
    result = check_checkpoint(TinyGPT(), save_folder, lambda path: load(path / "weights.pt"))
    assert result.reason == "checkpoint.ok"


def test_the_model_comes_back_untouched() -> None:
    """Weights, mode, gradients and the global random state are the user's."""
    model = TinyGPT().train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()
    check_checkpoint(model, save, loader(TinyGPT))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_prefix_and_strict_false_load_nothing() -> None:
    """Every name gets a wrapper's prefix and strict=False hides it."""
    load = loader(TinyGPT, lambda s: {f"wrapped.{k}": v for k, v in s.items()}, strict=False)
    result = check_checkpoint(TinyGPT(), save, load)
    assert reasons(result) == ("checkpoint.nothing_loaded", Status.FAIL)
    assert "none of the 29 tensors" in result.claim
    assert "strict=False" in result.causes[0]


def test_missing_head_is_named_as_random() -> None:
    """Two loads of one file differ in what the file does not hold."""
    load = loader(
        TinyGPT, lambda s: {k: v for k, v in s.items() if k != "head.weight"}, strict=False
    )
    result = check_checkpoint(TinyGPT(), save, load)
    assert reasons(result) == ("checkpoint.random_after_load", Status.FAIL)
    assert result.numbers["names"] == ["head.weight"]
    assert "head.weight" in result.where


def test_missing_zero_initialised_tensor_is_named() -> None:
    """A fresh zero head is the same at every load; jittered saving shows it all the same."""

    def make() -> nn.Module:
        model = TinyGPT()
        nn.init.zeros_(model.head.weight)
        return model

    load = loader(make, lambda s: {k: v for k, v in s.items() if k != "head.weight"}, strict=False)
    result = check_checkpoint(make(), save, load)
    assert reasons(result) == ("checkpoint.partly_loaded", Status.FAIL)
    assert result.numbers["names"] == ["head.weight"]


def test_transposed_square_matrix_is_named() -> None:
    """16 x 16 output projections fit both ways round."""
    load = loader(
        TinyGPT,
        lambda s: {k: v.T if k.endswith("attention.output.weight") else v for k, v in s.items()},
    )
    result = check_checkpoint(TinyGPT(), save, load)
    assert reasons(result) == ("checkpoint.transposed", Status.FAIL)
    assert result.numbers["names"] == [
        "blocks.0.attention.output.weight",
        "blocks.1.attention.output.weight",
    ]


def test_swapped_layers_are_named() -> None:
    """Equal shapes under each other's names."""

    def swap(state: dict[str, Tensor]) -> dict[str, Tensor]:
        a, b = "blocks.0.mlp.0.weight", "blocks.1.mlp.0.weight"
        return {**state, a: state[b], b: state[a]}

    result = check_checkpoint(TinyGPT(), save, loader(TinyGPT, swap))
    assert reasons(result) == ("checkpoint.mixed_up", Status.FAIL)
    assert "replaced by blocks.1.mlp.0.weight" in result.measured


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_rounding_names_the_dtype(half: torch.dtype) -> None:
    """float32 values that went through a half type have lost bits for good."""
    load = loader(TinyGPT, lambda s: {k: v.to(half).float() for k, v in s.items()})
    result = check_checkpoint(TinyGPT(), save, load)
    assert reasons(result) == ("checkpoint.precision_lost", Status.FAIL)
    assert str(half).removeprefix("torch.") in result.measured


def test_wider_dtype_with_equal_values_is_a_warning() -> None:
    """bfloat16 weights in a float32 model: nothing is lost."""
    result = check_checkpoint(TinyGPT().bfloat16(), save, loader(TinyGPT))
    assert reasons(result) == ("checkpoint.dtype_changed", Status.WARN)


def test_saving_by_reference_is_named() -> None:
    """A dictionary that keeps live tensors shows today's weights, not those of saving."""
    kept: dict[Path, dict[str, Tensor]] = {}

    def keep(model: nn.Module, path: Path) -> None:
        kept[path] = model.state_dict()

    def load(path: Path) -> nn.Module:
        model = TinyGPT()
        model.load_state_dict(kept[path])
        return model

    result = check_checkpoint(TinyGPT(), keep, load)
    assert reasons(result) == ("checkpoint.saved_by_reference", Status.FAIL)

    def keep_copies(model: nn.Module, path: Path) -> None:
        kept[path] = copy.deepcopy(model.state_dict())

    assert check_checkpoint(TinyGPT(), keep_copies, load).reason == "checkpoint.ok"


def test_loads_that_share_weights_are_named() -> None:
    """A cached model is one object for everybody."""
    cache: dict[Path, nn.Module] = {}
    load = loader(TinyGPT)

    def cached(path: Path) -> nn.Module:
        return cache.setdefault(path, load(path)) if path not in cache else cache[path]

    result = check_checkpoint(TinyGPT(), save, cached)
    assert reasons(result) == ("checkpoint.loads_share_weights", Status.FAIL)


def test_tie_broken_by_load_is_named() -> None:
    """A new Parameter holds equal values and goes its own way from then on."""

    def load(path: Path) -> nn.Module:
        model = loader(lambda: TinyGPT(tied=True))(path)
        model.head.weight = nn.Parameter(model.head.weight.clone())  # type: ignore[union-attr]
        return model

    result = check_checkpoint(TinyGPT(tied=True), save, load)
    assert reasons(result) == ("checkpoint.tie_broken", Status.FAIL)
    assert "head.weight and tokens.weight" in result.claim


def test_buffer_not_restored_is_felt_in_the_logits() -> None:
    """Running statistics that are not saved start again at 0 and 1."""
    load = loader(
        WithStatistics, lambda s: {k: v for k, v in s.items() if "running" not in k}, strict=False
    )
    result = check_checkpoint(WithStatistics(), save, load)
    assert reasons(result) == ("checkpoint.buffers_differ", Status.FAIL)
    assert result.numbers["names"] == ["norm.running_mean", "norm.running_var"]


def test_lost_setting_without_a_tensor_is_named() -> None:
    """Four heads instead of two: every shape is the same, no logit is."""
    result = check_checkpoint(TinyGPT(H=2), save, loader(lambda: TinyGPT(H=4)))
    assert reasons(result) == ("checkpoint.other_configuration", Status.FAIL)
    assert "every tensor comes back" in result.claim


def test_resized_embedding_is_named() -> None:
    """Padding a vocabulary from 19 to 24 while loading changes two shapes."""

    def pad(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            k: torch.cat([v, v.new_zeros(5, 16)]) if k in ("tokens.weight", "head.weight") else v
            for k, v in state.items()
        }

    result = check_checkpoint(TinyGPT(), save, loader(lambda: TinyGPT(V=24), pad))
    assert reasons(result) == ("checkpoint.resized", Status.FAIL)
    assert result.measured == "shape (24, 16)"
    assert result.expected == "shape (19, 16)"


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda model: model.eval(), "the mode"),
        (lambda model: model.half(), "dtype"),
        (lambda model: model.zero_grad(), "gradients"),
        (lambda model: model.requires_grad_(False), "requires_grad"),
    ],
)
def test_saver_that_changes_the_model_is_named(
    spoil: Callable[[nn.Module], Any], word: str
) -> None:
    """Saving only reads; whatever else it does is named."""

    def save_and_spoil(model: nn.Module, path: Path) -> None:
        save(model, path)
        spoil(model)

    result = check_checkpoint(TinyGPT(), save_and_spoil, loader(TinyGPT))
    assert reasons(result) == ("checkpoint.saver_changes_model", Status.FAIL)
    assert word in result.claim


def test_frozen_layers_that_come_back_trainable_are_a_warning() -> None:
    """A state_dict does not hold requires_grad."""
    model = TinyGPT()
    model.head.requires_grad_(False)
    result = check_checkpoint(model, save, loader(TinyGPT))
    assert reasons(result) == ("checkpoint.trainable_changed", Status.WARN)


def test_loader_that_refuses_its_own_file_fails() -> None:
    """A width of 8 does not take what a width of 16 saved."""
    result = check_checkpoint(TinyGPT(), save, loader(lambda: TinyGPT(C=8)))
    assert reasons(result) == ("checkpoint.load_raises", Status.FAIL)
    assert "RuntimeError" in result.claim


def test_without_load_the_check_is_skipped() -> None:
    """The skip names both arguments."""
    report = diagnose(Pipeline(TinyGPT(), save=save), only=["checkpoint"])
    assert report["checkpoint"].status is Status.SKIP
    assert "save and load" in report["checkpoint"].next_step


def sizes(**changes: int) -> dict[str, Tensor]:
    """The state of a small model with some sizes changed."""
    config = MiniGPTConfig(**{**SIZES, **changes})
    return MiniGPT(config).state_dict()


SIZES = {"vocab_size": 11, "block_size": 6, "embedding_dim": 8, "num_heads": 2, "num_layers": 2}


def test_equal_architectures_have_no_difference() -> None:
    """Two models of one configuration differ in values only."""
    difference = compare_state_dicts(sizes(), sizes())
    assert difference.is_empty
    assert str(difference) == "names and shapes agree"


def test_other_vocabulary_is_explained() -> None:
    """Embedding and head change, nothing else does."""
    difference = compare_state_dicts(sizes(), sizes(vocab_size=13))
    assert set(difference.mismatched) == {"token_embedding.weight", "head.weight"}
    assert difference.mismatched["head.weight"] == ((11, 8), (13, 8))
    assert (
        difference.sentences[0]
        == "vocabulary or block size: the model wants 11, the checkpoint has 13"
    )


def test_other_width_is_explained() -> None:
    """Nearly every shape changes, and one sentence says why."""
    difference = compare_state_dicts(sizes(), sizes(embedding_dim=16))
    assert (
        difference.sentences[0] == "embedding dimension: the model wants 8, the checkpoint has 16"
    )
    assert not difference.missing


def test_other_depth_is_explained() -> None:
    """Layer 2 has 12 tensors too many."""
    difference = compare_state_dicts(sizes(), sizes(num_layers=3))
    assert difference.sentences[0] == "the model has 2 layers, the checkpoint 3"
    assert len(difference.unexpected) == 12
    assert not difference.missing
    assert compare_state_dicts(sizes(num_layers=3), sizes()).missing == difference.unexpected


def test_wrapper_prefix_is_explained() -> None:
    """torch.compile puts a prefix before every name."""
    wrapped = {f"_orig_mod.{name}": tensor for name, tensor in sizes().items()}
    difference = compare_state_dicts(sizes(), wrapped)
    assert "the names differ by a wrapper's prefix only" in difference.sentences


def test_columns_that_are_shut_with_minus_infinity_hide_no_difference_and_are_none() -> None:
    """-inf minus -inf is no number, and the largest logit is no scale for the others."""

    class Shut(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            logits = super().forward(ids)[0] * self.scale
            return logits.masked_fill(torch.arange(logits.shape[-1]) >= 16, -torch.inf), None

        scale = 1.0

    def rescaled() -> nn.Module:
        model = Shut()
        model.scale = 1.01
        return model

    healthy = check_checkpoint(Shut(), save, loader(Shut), vocab_size=16)
    assert reasons(healthy) == ("checkpoint.ok", Status.PASS)
    assert healthy.numbers["logit_difference"] == 0
    other = check_checkpoint(Shut(), save, loader(rescaled), vocab_size=16)
    assert other.reason == "checkpoint.other_configuration"
