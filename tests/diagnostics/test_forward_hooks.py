"""The first module that is not finite is named; norms norm; sizes stay sane; hooks go away."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, assert_finite_tensor, check_forward_hooks, diagnose
from diagnostics._probe import Probe
from diagnostics.forward_hooks import measure_norm, measure_rms, measure_spread
from minigpt import MiniGPT, MiniGPTConfig
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
)

V, C, BLOCK = 19, 16, 12


class Spoil(nn.Module):
    """A module that applies a function; `container` wraps what it returns."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Return function(x)."""
        return self.function(x)


def with_module(path: str, module: nn.Module, **parts: Any) -> TinyGPT:
    """Return a TinyGPT in which the module at `path` is replaced."""
    model = TinyGPT(V, C=C, block=BLOCK, **parts)
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
    return model


def poisoned(x: Tensor) -> Tensor:
    """Return a copy with one NaN."""
    y = x.clone()
    y.view(-1)[3] = math.nan
    return y


def overflowing(x: Tensor) -> Tensor:
    """Return exp of a thousand: infinite in float32."""
    return (x.abs() + 1000).exp()


# ---- assert_finite_tensor ------------------------------------------------------------------


def test_assert_finite_tensor_names_the_tensor_counts_and_first_place() -> None:
    """One NaN and one infinity of four, the first at (0, 1)."""
    with pytest.raises(FloatingPointError, match=r"blocks\.3 must be finite") as caught:
        assert_finite_tensor(torch.tensor([[1.0, math.nan], [-math.inf, 2.0]]), "blocks.3")
    assert "1 NaN and 1 infinite of 4" in str(caught.value)
    assert "the first at (0, 1)" in str(caught.value)


def test_assert_finite_tensor_lets_finite_and_whole_numbers_pass() -> None:
    """Large is finite; ids are finite; an empty tensor is finite."""
    for tensor in (torch.tensor([3e38]), torch.arange(3), torch.empty(0)):
        assert_finite_tensor(tensor, "x")


def test_assert_finite_tensor_takes_a_scalar() -> None:
    """A loss has no place: ()."""
    with pytest.raises(FloatingPointError, match=r"loss .* the first at \(\)"):
        assert_finite_tensor(torch.tensor(math.nan), "loss")


# ---- healthy designs -----------------------------------------------------------------------


def zero_head() -> nn.Module:
    """A head of zeros: every logit is 0, the loss exactly ln V."""
    model = TinyGPT()
    nn.init.zeros_(model.head.weight)
    return model


def times_ten() -> nn.Module:
    """All matrices ten times as large."""
    model = MiniGPT(MiniGPTConfig.debug(65, num_layers=6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.ndim > 1 else 1)
    return model


def with_sink() -> nn.Module:
    """One token that is a thousand times as large as all others, as attention sinks are."""
    model = TinyGPT(V, C=C, block=BLOCK)
    with torch.no_grad():
        model.tokens.weight[0] *= 1000
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: MiniGPT(MiniGPTConfig.debug(65)),
        lambda: MiniGPT(MiniGPTConfig.debug(65, dropout=0.2)),
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT(L=24),
        lambda: TinyGPT().bfloat16(),
        Bigram,
        Recurrent,
        Convolution,
        HFStyle,
        lambda: MixtureOfExperts(shut=True),
        lambda: with_module("norm", nn.RMSNorm(C)),
        zero_head,
        times_ten,
        with_sink,
    ],
)
def test_healthy_designs_pass(make: Callable[[], nn.Module]) -> None:
    """Deep, bf16, tied, recurrent, experts, zero head, weights times 10, a sink: PASS."""
    result = check_forward_hooks(make())
    assert (result.status, result.reason) == (Status.PASS, "forward_hooks.ok"), str(result)


def test_pass_gives_numbers_for_every_module_call() -> None:
    """TinyGPT with 2 layers: 5 outer modules and 2 times 10 inner ones, 25 calls in all."""
    result = check_forward_hooks(TinyGPT(L=2))
    assert result.numbers["calls"] == 25
    assert len(result.numbers["rms"]) == 25
    assert "blocks.0.attention.qkv" in result.numbers["rms"]
    assert result.numbers["growth"] < 3


def test_masks_of_minus_infinity_inside_are_a_design() -> None:
    """A module that returns -inf scores is a mask as long as the logits are finite."""

    class Masking(TinyGPT):
        def __init__(self) -> None:
            super().__init__(V, C=C, block=BLOCK)
            self.mask = Spoil(lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, -math.inf))

        def hidden(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            return self.norm(x + self.mask(x @ x.transpose(1, 2)).softmax(-1) @ x)

    assert check_forward_hooks(Masking()).status is Status.PASS


# ---- not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["blocks.1.mlp.1", "blocks.0.attention.output", "blocks.1.norm2", "norm"]
)
def test_first_bad_module_is_named_by_its_full_path(path: str) -> None:
    """One NaN out of B*T*C values, made by a module whose own input was finite."""
    result = check_forward_hooks(with_module(path, Spoil(poisoned)))
    assert (result.status, result.reason) == (Status.FAIL, "forward_hooks.non_finite")
    assert result.claim.startswith(f"{path} (Spoil) is the first module")
    assert result.numbers["path"] == path
    assert (result.numbers["nan"], result.numbers["inf"]) == (1, 0)
    assert result.numbers["input_finite"] is True
    assert result.numbers["paths"][0] == path


@pytest.mark.parametrize("container", [tuple, list, dict])
def test_outputs_in_containers_are_seen(container: type) -> None:
    """Tuple, list and dict outputs are read like tensors."""

    def wrapped(x: Tensor) -> Any:
        bad = poisoned(x)
        return {"hidden": bad} if container is dict else container([bad])

    class Unwrapping(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            out = self.spoil(self.tokens(ids))
            return self.norm(out["hidden"] if isinstance(out, dict) else out[0])

    model = Unwrapping(V, C=C, block=BLOCK)
    model.spoil = Spoil(wrapped)
    assert check_forward_hooks(model).numbers["path"] == "spoil"


def test_overflow_counts_infinities() -> None:
    """exp(1000) is infinite in every one of B*T*C places: 8 x 12 x 16."""
    result = check_forward_hooks(with_module("blocks.0.attention.output", Spoil(overflowing)))
    assert result.numbers["path"] == "blocks.0.attention.output"
    assert result.numbers["inf"] == 8 * BLOCK * C


def test_nan_between_modules_is_placed_in_the_module_around() -> None:
    """A softmax over a fully masked row: the output layer reads NaN, made in its attention."""

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(0)  # the diagonal too: row 0 sees nothing
        return (q @ k.transpose(2, 3)).masked_fill(hidden, -math.inf).softmax(-1) @ v

    result = check_forward_hooks(TinyGPT(V, mix=mix, block=BLOCK))
    assert result.numbers["path"] == "blocks.0.attention.output"
    assert result.numbers["input_finite"] is False
    assert "made in blocks.0.attention before it" in result.measured
    # position 0 of each of the 8 rows sees nothing
    assert f"at 8 of {8 * BLOCK} positions everything is masked" in result.causes[0]


def test_infinity_between_modules_is_an_overflow() -> None:
    """The second linear layer reads what exp made of its parent's hidden values."""

    class Exponential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand, self.output = nn.Linear(C, C), nn.Linear(C, C)

        def forward(self, x: Tensor) -> Tensor:
            return self.output((self.expand(x) + 100).exp())

    result = check_forward_hooks(with_module("blocks.0.mlp", Exponential()))
    assert result.numbers["path"] == "blocks.0.mlp.output"
    assert "larger than float32 can hold" in result.causes[0]


def test_float16_overflow_names_the_limit() -> None:
    """In float16 a product beyond 65504 is infinite."""
    model = TinyGPT(V, C=C, block=BLOCK)
    with torch.no_grad():
        # over all 16 columns a normed row sums to 0; over the first 8 it does not
        model.blocks[1].mlp[0].weight[:, :8] = 6e4
    result = check_forward_hooks(model.half())
    assert result.numbers["path"] == "blocks.1.mlp.0"
    assert result.numbers["input_finite"] is True
    assert "float16 ends at 65504" in result.causes[0]


def test_bad_weight_comes_before_any_output() -> None:
    """A NaN in blocks.1.mlp.2.bias is named as the cause, not the module that reads it."""
    model = TinyGPT()
    with torch.no_grad():
        model.blocks[1].mlp[2].bias[0] = math.nan
    result = check_forward_hooks(model)
    assert (result.status, result.reason) == (Status.FAIL, "forward_hooks.bad_weight")
    assert result.numbers["paths"] == ["blocks.1.mlp.2.bias"]
    assert "1 NaN and 0 infinite of 16" in result.measured


def test_buffer_with_minus_infinity_is_a_mask_and_with_nan_is_not() -> None:
    """A registered mask holds -inf on purpose."""
    model = TinyGPT()
    model.register_buffer("mask", torch.full((3, 3), -math.inf))
    assert check_forward_hooks(model).status is Status.PASS
    model.mask[0, 0] = math.nan
    assert check_forward_hooks(model).numbers["path"] == "mask"


def test_shared_module_gives_the_number_of_the_call() -> None:
    """One activation serves both layers; only its second call is at fault."""

    class SecondTime(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return poisoned(x) if self.count % 2 == 0 else x.relu()

    model = TinyGPT(V, C=C, block=BLOCK)
    shared = SecondTime()
    for block in model.blocks:
        block.mlp[1] = shared
    shared.count = 0
    result = check_forward_hooks(model, forward=counted_from_zero(model))
    assert result.claim.startswith("blocks.0.mlp.1 (call 2) (SecondTime)")
    assert result.numbers["call"] == 2


def counted_from_zero(model: nn.Module) -> Callable[..., Any]:
    """Return a forward that resets the counter of the shared module first."""

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
        model.blocks[0].mlp[1].count = 0  # type: ignore[index,union-attr]
        return model(inputs, targets)

    return forward


def test_loss_alone_is_not_finite() -> None:
    """Finite logits and a mean over no target: 0 / 0."""
    ids = torch.randint(V, (4, BLOCK))
    result = check_forward_hooks(TinyGPT(V, block=BLOCK), ids, torch.full_like(ids, -100))
    assert (result.status, result.reason) == (Status.FAIL, "forward_hooks.loss_not_finite")
    assert result.numbers["scored"] == 0
    assert "all targets are ignored" in result.causes[0]


def test_log_of_softmax_by_hand() -> None:
    """exp(1000) / exp(1000) is NaN; the logits are finite, the largest is far above 88."""

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        odds = (1000 * logits).exp()
        odds = odds / odds.sum(-1, keepdim=True)
        return -odds.gather(-1, targets[..., None]).log().mean()

    class Large(TinyGPT):
        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            logits = 1000 * self.head(self.hidden(ids))
            return logits, None if targets is None else loss_of(logits / 1000, targets)

    result = check_forward_hooks(Large(V, block=BLOCK))
    assert result.reason == "forward_hooks.loss_not_finite"
    assert "exp overflows" in result.causes[0]


# ---- norms ---------------------------------------------------------------------------------


class LayerNorm(nn.Module):
    """Written by hand: `divide(x - mean, var)`."""

    def __init__(self, divide: Callable[[Tensor, Tensor], Tensor], dim: int = -1) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))
        self.divide, self.dim = divide, dim

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        centred = x - x.mean(self.dim, keepdim=True)
        var = centred.square().mean(self.dim, keepdim=True)
        return self.divide(centred, var) * self.weight + self.bias


@pytest.mark.parametrize(
    ("norm", "cause"),
    [
        (lambda: LayerNorm(lambda x, v: x / (v + 1e-5) ** 2), "(var + eps)**2"),
        (lambda: LayerNorm(lambda x, v: x / (v + 1e-5)), "without a root"),
        (lambda: LayerNorm(lambda x, v: x), "not divided"),
        (lambda: LayerNorm(lambda x, v: x / (v + 1e-5).sqrt(), dim=1), "another axis"),
    ],
)
def test_norms_that_do_not_norm(norm: Callable[[], nn.Module], cause: str) -> None:
    """Four mistakes, four causes, told apart by how the size that comes out follows the input's."""
    result = check_forward_hooks(with_module("blocks.1.norm1", norm()))
    assert (result.status, result.reason) == (Status.FAIL, "forward_hooks.norm_scale")
    assert "blocks.1.norm1 (LayerNorm)" in result.claim
    assert cause in result.causes[0]


@pytest.mark.parametrize(
    "norm",
    [
        lambda: LayerNorm(lambda x, v: x / (v + 1e-5).sqrt()),
        lambda: LayerNorm(lambda x, v: x / (v.sqrt() + 1e-6)),
        lambda: LayerNorm(lambda x, v: x / (v * C / (C - 1)).sqrt()),
        lambda: nn.LayerNorm(C, bias=False),
        lambda: nn.RMSNorm(C),
    ],
)
def test_norms_that_do(norm: Callable[[], nn.Module]) -> None:
    """An epsilon elsewhere, n - 1, no bias, RMS: all healthy."""
    assert check_forward_hooks(with_module("blocks.1.norm1", norm())).status is Status.PASS


def test_gain_and_bias_are_taken_out() -> None:
    """A trained gain of 5 with bias 3 is still a norm; Gemma's gain is stored minus 1."""
    probe = Probe(Pipeline(TinyGPT()))
    trained = nn.LayerNorm(C)
    nn.init.constant_(trained.weight, 5.0)
    nn.init.constant_(trained.bias, 3.0)
    rms = measure_norm(probe, trained)
    assert rms is not None
    assert torch.allclose(rms, torch.ones(6), atol=1e-3)

    class GemmaRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((C,), 0.25))

        def forward(self, x: Tensor) -> Tensor:
            return functional.rms_norm(x, (C,)) * (1 + self.weight)

    rms = measure_norm(probe, GemmaRMSNorm())
    assert rms is not None
    assert torch.allclose(rms, torch.ones(6), atol=1e-3)
    assert measure_norm(probe, nn.BatchNorm1d(C)) is None
    assert measure_norm(probe, nn.Linear(C, C)) is None


# ---- sizes ---------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    """RMS of (3, 4) is sqrt(12.5); the median ignores the sink; equal rows have spread 0."""
    assert measure_rms(torch.tensor([[3.0, 4.0]])) == pytest.approx(math.sqrt(12.5))
    assert measure_rms(torch.tensor([[1.0], [1.0], [1e6]])) == 1.0
    assert measure_spread(torch.ones(2, 3, 4)) == 0.0
    assert measure_spread(torch.tensor([[[1.0], [-1.0]]])) == 1.0


@pytest.mark.parametrize(("factor", "status"), [(20.0, Status.WARN), (200.0, Status.FAIL)])
def test_growth_over_depth(factor: float, status: Status) -> None:
    """Blocks that multiply by 20 (200) grow 20**3 = 8e3 (200**3 = 8e6) over four blocks."""

    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return factor * self.inner(x)

    model = TinyGPT(V, C=C, block=BLOCK, L=4)
    model.blocks = nn.ModuleList(Growing() for _ in range(4))
    result = check_forward_hooks(model)
    assert (result.status, result.reason) == (status, "forward_hooks.explodes")
    assert result.numbers["growth"] == pytest.approx(factor**3, rel=1e-4)


def test_collapsed_outputs() -> None:
    """A mean over batch and time leaves the same row everywhere, whatever the weights are."""
    result = check_forward_hooks(
        with_module("norm", Spoil(lambda x: x.mean((0, 1), keepdim=True).expand_as(x)))
    )
    assert (result.status, result.reason) == (Status.FAIL, "forward_hooks.collapsed")
    assert "same for every token" in result.claim


def test_weights_of_zero_are_a_warning() -> None:
    """Embeddings of zero make all tokens equal; noise on the weights tells them apart."""
    model = TinyGPT(positions=False)
    nn.init.zeros_(model.tokens.weight)
    result = check_forward_hooks(model)
    assert (result.status, result.reason) == (Status.WARN, "forward_hooks.collapsed")


def test_dead_units() -> None:
    """Biases of -100 keep every rectified unit at 0: share 1."""
    model = TinyGPT(V, C=C, block=BLOCK)
    with torch.no_grad():
        model.blocks[0].mlp[0].bias[:30] = -100.0
    result = check_forward_hooks(model)
    assert (result.status, result.reason) == (Status.WARN, "forward_hooks.dead_units")
    assert result.numbers["dead_share"]["blocks.0.mlp.2"] >= 30 / 32


# ---- manners -------------------------------------------------------------------------------


def test_hooks_are_gone_and_the_users_stay_also_after_an_exception() -> None:
    """One hook of the user's before, one after; none of ours, even when forward raises."""
    model = with_module("norm", Spoil(lambda x: x))
    seen: list[int] = []
    model.head.register_forward_hook(lambda *_: seen.append(1))
    weights = copy.deepcopy(model.state_dict())
    check_forward_hooks(model)
    model.norm.function = lambda x: x[:, :, :3]
    with pytest.raises(RuntimeError):
        check_forward_hooks(model)
    hooks = {path: len(module._forward_hooks) for path, module in model.named_modules()}
    assert {path: count for path, count in hooks.items() if count} == {"head": 1}
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())


def test_diagnose_leaves_the_headline_to_the_module() -> None:
    """Modes and shapes step back for NaN: the first failure names the module."""
    model = with_module("blocks.1.mlp.1", Spoil(poisoned))
    report = diagnose(Pipeline(model), only=["modes", "shapes", "forward_hooks"])
    assert report.first_failure is not None
    assert report.first_failure.check == "forward_hooks"
    assert "blocks.1.mlp.1" in report.first_failure.claim


def test_inputs_of_another_shape_are_refused() -> None:
    """Inputs must be (B, T)."""
    with pytest.raises(ValueError, match=r"got \(4,\)"):
        check_forward_hooks(Bigram(), torch.zeros(4, dtype=torch.long))
