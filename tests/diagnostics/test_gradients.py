"""Gradients: missing, zero, wrong and unregistered are told apart; frozen ones are a design."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diagnostics import Pipeline, Status, check_gradients
from diagnostics._probe import Probe
from diagnostics.gradients import find_unregistered, measure_gradients, measure_truth
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    random_pair,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _frozen_blocks() -> TinyGPT:
    model = TinyGPT()
    model.blocks.requires_grad_(False)
    return model


def _zero_head() -> TinyGPT:
    model = TinyGPT()
    nn.init.zeros_(model.head.weight)
    return model


class _Adapted(TinyGPT):
    """A frozen model with a low-rank adapter (LoRA), whose second matrix starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(16, 2))
        self.up = nn.Parameter(torch.zeros(2, 16))

    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        return x + x @ self.down @ self.up


class _Dropped(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        return nn.functional.dropout(super().hidden(ids), 0.2, self.training)


def _padding_index() -> TinyGPT:
    model = TinyGPT()
    model.tokens = nn.Embedding(19, 16, padding_idx=0)
    return model


def _sparse() -> TinyGPT:
    model = TinyGPT()
    model.tokens = nn.Embedding(19, 16, sparse=True)
    return model


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "gpt": TinyGPT,
    "tied": lambda: TinyGPT(tied=True),
    "small weights": lambda: TinyGPT(std=0.02),
    "deep": lambda: TinyGPT(L=8),
    "zero head": _zero_head,
    "padding_idx": _padding_index,
    "sparse embedding": _sparse,
    "dropout": _Dropped,
    "bfloat16": lambda: TinyGPT().bfloat16(),
    "table": Bigram,
    "gru, logits only": Recurrent,
    "convolution": Convolution,
    "experts": MixtureOfExperts,
    "experts, one hardly chosen": lambda: MixtureOfExperts(shut=True, aux=0.01),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_pass(name: str) -> None:
    """Zero at the start, unseen rows and unchosen experts are not missing gradients."""
    result = check_gradients(HEALTHY[name]())
    assert (result.status, result.reason) == (Status.PASS, "gradients.ok")
    assert result.numbers["gradient_norm"] > 0
    assert result.numbers["truth_gap"] in (0.0, None)


def test_hugging_face_contract_passes() -> None:
    """labels="same": the model shifts inside."""
    assert check_gradients(HFStyle(), labels="same").reason == "gradients.ok"


def test_norm_by_hand() -> None:
    """L = w . (3, 4): the gradient is (3, 4) and its norm 5."""
    model = nn.Linear(2, 1, bias=False)
    found = measure_gradients(model, (model.weight @ torch.tensor([3.0, 4.0])).sum())
    assert found.norms == {"weight": 5.0}
    assert found.norm == 5.0
    assert not found.missing + found.zero + found.not_finite


def test_sorting_by_hand() -> None:
    """Of four weights one is unused, one multiplies 0, one is infinite, one is right."""
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(1)) for name in "abcd"})
    loss = model["b"] * 0.0 + model["c"].sub(1).sqrt() + 2 * model["d"]
    found = measure_gradients(model, loss.sum())
    assert found.missing == ["a"]
    assert found.zero == ["b"]
    assert found.not_finite == ["c"]
    assert found.norms["d"] == 2.0


def test_leaves_outside_the_model_are_found() -> None:
    """A tensor with requires_grad that is no parameter is a leaf of its own."""
    model = nn.Linear(2, 1)
    stranger = torch.ones(1, requires_grad=True)
    loss = (model(torch.ones(1, 2)) * stranger).sum()
    assert [id(leaf) for leaf in find_unregistered(model, loss)] == [id(stranger)]


class _Detached(TinyGPT):
    """The first block's branch is cut from the graph."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + self.blocks[0](x).detach()
        return self.norm(self.blocks[1](x + self.positions(torch.arange(ids.shape[1]))))  # type: ignore[misc]


def test_detached_branch_is_missing_and_the_loss_moves_with_it() -> None:
    """All 12 parameters of the block get None, although the loss depends on them."""
    result = check_gradients(_Detached())
    assert (result.status, result.reason) == (Status.FAIL, "gradients.missing")
    assert "12 of 29" in result.claim
    assert "blocks.0." in result.where
    assert "the loss moves with blocks.0." in result.causes[0]


def test_unused_parameter_is_missing_and_the_loss_does_not_move() -> None:
    """A layer that forward forgets."""
    model = TinyGPT()
    model.forgotten = nn.Linear(4, 4)
    result = check_gradients(model)
    assert result.reason == "gradients.missing"
    assert result.where == "2 of 31 parameters; first is forgotten.weight"
    assert "the loss does not move with it either" in result.causes[0]


def test_two_zero_factors_never_wake() -> None:
    """One zero factor of an adapter is its design; noise on both would hide that both are zero."""
    model = _Adapted()
    assert check_gradients(model).reason == "gradients.frozen"
    nn.init.zeros_(model.down)
    result = check_gradients(model)
    assert (result.status, result.reason) == (Status.FAIL, "gradients.stuck_at_zero")
    assert result.numbers["stuck"] == ["down", "up"]


def test_zero_gates_and_zero_heads_wake_what_is_behind_them() -> None:
    """The head gets a gradient, then the gate behind it, then the layers behind the gate."""

    class Gated(TinyGPT):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(16))
            self.branch = nn.Linear(16, 16)
            nn.init.zeros_(self.head.weight)

        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x + self.gate * self.branch(x)

    model = Gated()
    assert check_gradients(model).reason == "gradients.ok"
    nn.init.zeros_(model.branch.weight)
    nn.init.zeros_(model.branch.bias)
    stuck = check_gradients(model)
    assert stuck.reason == "gradients.stuck_at_zero"
    assert stuck.numbers["stuck"] == ["branch.bias", "branch.weight", "gate"]


def test_zero_everywhere_is_told_from_missing() -> None:
    """Multiplied by 0: in the graph, and without any effect."""

    class Silenced(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            return super().hidden(ids) + 0 * self.extra

    model = Silenced()
    model.extra = nn.Parameter(torch.ones(16))
    result = check_gradients(model)
    assert (result.status, result.reason) == (Status.FAIL, "gradients.zero")
    assert result.where == "1 of 30 parameters; first is extra"


def test_loss_through_item_is_zero_or_without_graph() -> None:
    """torch.tensor(loss.item()) has no graph; with + 0 * aux it has one that carries nothing."""

    def cut(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(
            nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        )

    assert check_gradients(TinyGPT(loss_of=cut)).reason == "gradients.no_graph"
    aux = TinyGPT(loss_of=lambda z, y: cut(z, y) + 0 * z.square().mean())
    assert check_gradients(aux).reason == "gradients.zero"


def test_reentrant_checkpoint_over_frozen_embeddings_is_missing() -> None:
    """The reentrant variant records nothing when no input asks for a gradient."""

    class Checkpointed(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)  # type: ignore[assignment]
            return self.norm(x)

    model = Checkpointed(positions=False)
    model.tokens.requires_grad_(False)
    result = check_gradients(model)
    assert result.reason == "gradients.missing"
    assert "checkpoint" in result.causes[0]


class _Overwriting(torch.autograd.Function):
    """An embedding whose backward overwrites the gradient of a repeated id."""

    @staticmethod
    def forward(context: Any, table: Tensor, ids: Tensor) -> Tensor:
        context.save_for_backward(ids, table)
        return table[ids]

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ids, table = context.saved_tensors
        total = torch.zeros_like(table)
        total[ids.flatten()] = grads[0].flatten(0, 1)
        return total, None


class _OverwritingModel(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        x = _Overwriting.apply(self.tokens.weight, ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def test_overwritten_embedding_gradient_is_a_wrong_value() -> None:
    """Only the table is wrong; everything above it is right."""
    result = check_gradients(_OverwritingModel(positions=False))
    assert (result.status, result.reason) == (Status.FAIL, "gradients.wrong_value")
    assert set(result.numbers["wrong"]) == {"tokens.weight"}


def test_half_detached_path_is_off_by_half() -> None:
    """X / 2 + x.detach() / 2 has half the gradient of x."""

    class Half(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            x = x / 2 + x.detach() / 2
            return self.norm(self.blocks[1](self.blocks[0](x)))

    result = check_gradients(Half(positions=False))
    assert result.reason == "gradients.wrong_value"
    assert result.numbers["wrong"] == {"tokens.weight": pytest.approx(0.5, abs=1e-3)}


class _CastInside(TinyGPT):
    """The residual stream is cast to float32 and back, as many norms do; half of it is cut."""

    cut = False

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = (x / 2 + x.detach() / 2) if self.cut else x
        x = x.float().to(x.dtype)
        return self.norm(self.blocks[1](self.blocks[0](x)))


def test_models_that_round_inside_are_measured_with_a_larger_step() -> None:
    """Rounding to float32 is no wrong value, and does not hide one of a half."""
    model = _CastInside(positions=False)
    assert check_gradients(model).reason == "gradients.ok"
    model.cut = True
    result = check_gradients(model)
    assert result.reason == "gradients.wrong_value"
    assert set(result.numbers["wrong"]) == {"tokens.weight"}


def test_models_that_round_too_much_are_not_judged() -> None:
    """In bfloat16 a finite difference says nothing; None is not 0."""

    def rounded(logits: Tensor, targets: Tensor) -> Tensor:
        width = logits.shape[-1]
        return nn.functional.cross_entropy(logits.bfloat16().view(-1, width), targets.view(-1))

    result = check_gradients(TinyGPT(loss_of=rounded))
    assert result.reason == "gradients.ok"
    assert result.numbers["truth_gap"] is None


def test_straight_through_rounding_warns() -> None:
    """Quantised weights: the loss is flat, and the gradient is meant to ignore that."""

    class Quantised(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            weight = self.head.weight
            rounded = weight + ((8 * weight).round() / 8 - weight).detach()
            logits = self.hidden(ids) @ rounded.T
            return logits, None if targets is None else self.loss_of(logits, targets)

    result = check_gradients(Quantised())
    assert (result.status, result.reason) == (Status.WARN, "gradients.straight_through")
    assert result.numbers["flat"] == ["head.weight"]


def test_hook_that_scales_a_gradient_is_a_wrong_value() -> None:
    """A forgotten hook times 3 is off by 2 / 3 of what it gives."""

    class Hooked(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            if x.requires_grad:
                x.register_hook(lambda grad: 3 * grad)
            return x

    result = check_gradients(Hooked())
    assert result.reason == "gradients.wrong_value"
    assert "head.weight" not in result.numbers["wrong"]
    assert result.numbers["wrong"]["tokens.weight"] == pytest.approx(2 / 3, abs=1e-3)


def test_kinks_are_not_wrong_values() -> None:
    """ReLU and routing: over five seeds no parameter is blamed."""
    for seed in range(5):
        torch.manual_seed(seed)
        for model in (TinyGPT(), TinyGPT(L=16), MixtureOfExperts()):
            gaps = measure_truth(Probe(Pipeline(model), seed=seed))
            assert gaps is not None
            assert max(gaps.values()) == 0.0


def test_modules_in_a_plain_list_are_unregistered() -> None:
    """nn.Module does not look into lists; 16 * 16 + 16 numbers are never trained."""

    class Listed(TinyGPT):
        def __init__(self) -> None:
            super().__init__()
            self.extra = [nn.Linear(16, 16)]

        def hidden(self, ids: Tensor) -> Tensor:
            return self.extra[0](super().hidden(ids))

    result = check_gradients(Listed())
    assert (result.status, result.reason) == (Status.FAIL, "gradients.unregistered")
    assert result.where == "extra[0]"
    assert "272 numbers" in result.measured


def test_layer_in_a_closure_is_unregistered() -> None:
    """No attribute leads to it, but the graph does."""
    layer = nn.Linear(16, 16)

    class Closed(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return layer.to(x.dtype)(x)

    assert check_gradients(Closed()).reason == "gradients.unregistered"
    assert layer.weight.grad is None


def test_plain_list_that_shares_registered_modules_is_fine() -> None:
    """A list beside nn.ModuleList is only another way to the same parameters."""

    class Both(TinyGPT):
        def __init__(self) -> None:
            super().__init__()
            self.order = list(self.blocks)

    assert check_gradients(Both()).reason == "gradients.ok"


def test_layer_built_in_forward() -> None:
    """New random parameters in every call belong to no one."""

    class Built(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return nn.Linear(16, 16).to(x.dtype)(x)

    result = check_gradients(Built())
    assert (result.status, result.reason) == (Status.FAIL, "gradients.built_in_forward")
    assert result.numbers["created_in_forward"] == 2


def test_frozen_parts_warn_and_all_frozen_fails() -> None:
    """24 of the 29 parameters lie in the two blocks."""
    result = check_gradients(_frozen_blocks())
    assert (result.status, result.reason) == (Status.WARN, "gradients.frozen")
    assert "24 of 29" in result.claim
    assert "random start" in check_gradients(_frozen_blocks(), fresh=True).claim
    assert check_gradients(_Adapted()).reason == "gradients.frozen"
    result = check_gradients(TinyGPT().requires_grad_(False))
    assert (result.status, result.reason) == (Status.FAIL, "gradients.all_frozen")


def test_no_grad_in_forward_has_no_graph() -> None:
    """The whole model runs under no_grad."""

    class Quiet(TinyGPT):
        @torch.no_grad()
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            return super().forward(ids, targets)

    assert check_gradients(Quiet()).reason == "gradients.no_graph"


def test_infinite_gradient_of_a_finite_loss() -> None:
    """The derivative of sqrt at 0 is infinite; the loss itself is fine."""

    class Root(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            return super().hidden(ids) + self.root.abs().sqrt()

    model = Root()
    model.root = nn.Parameter(torch.zeros(16))
    result = check_gradients(model)
    assert (result.status, result.reason) == (Status.FAIL, "gradients.not_finite")
    assert result.where == "first is root"
    assert math.isfinite(float(result.numbers["norms"]["head.weight"]))


def test_expert_that_is_never_chosen_warns() -> None:
    """Its twins get a gradient, so that the router is to be looked at, not the graph."""

    class Closed(MixtureOfExperts):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            with torch.no_grad():
                self.router.bias[3] = -1e9
            return super().forward(ids, targets)

    result = check_gradients(Closed())
    assert (result.status, result.reason) == (Status.WARN, "gradients.unused_expert")
    assert "experts.3" in result.where


def test_uneven_depth_warns() -> None:
    """A first block whose output is scaled by 1e-6 learns a million times slower."""

    class Faint(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            x = x + 1e-6 * self.blocks[0](x)
            return self.norm(self.blocks[1](x))

    result = check_gradients(Faint(positions=False))
    assert (result.status, result.reason) == (Status.WARN, "gradients.uneven_depth")
    assert result.where == "smallest in blocks.0"


def test_model_comes_back_untouched() -> None:
    """Weights, mode, gradients and random state are as before."""
    model = TinyGPT().eval()
    before = copy.deepcopy(model.state_dict())
    inputs, targets = random_pair(19)
    state = torch.get_rng_state()
    check_gradients(model, inputs, targets)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_straight_through_rounding_with_a_scale_of_its_own_warns() -> None:
    """Ternary weights times their mean size: the loss moves a little, so that no slope is 0."""

    class Ternary(TinyGPT):
        def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
            weight = self.head.weight
            scale = weight.abs().mean()
            rounded = weight + ((weight / scale).round().clamp(-1, 1) * scale - weight).detach()
            logits = self.hidden(ids) @ rounded.T
            return logits, None if targets is None else self.loss_of(logits, targets)

    result = check_gradients(Ternary())
    assert (result.status, result.reason) == (Status.WARN, "gradients.straight_through")
    assert set(result.numbers["wrong"]) == {"head.weight"}


class _Top1(nn.Module):
    """Top-1 experts over a projection; the gate is normalised over those that were chosen."""

    def __init__(self, *, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised
        self.embedding = nn.Embedding(13, 8)
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 13)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        x = self.embedding(ids)
        gate, chosen = self.router(x).softmax(-1).topk(1, -1)
        if self.normalised:
            gate = gate / gate.sum(-1, keepdim=True)
        every = torch.stack([expert(x) for expert in self.experts], -1)  # (B, T, C, 4)
        mixed = every.gather(-1, chosen[:, :, None].expand(*x.shape, 1))[..., 0]
        logits = self.head(x + gate * mixed)
        return logits, None if targets is None else nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        )


def test_a_gate_that_is_divided_by_itself_gives_its_router_rounding() -> None:
    """A gate of p / p is 1 whatever the router says; without the division the router learns."""
    result = check_gradients(_Top1(normalised=True), vocab_size=13)
    assert (result.status, result.reason) == (Status.FAIL, "gradients.only_noise")
    assert list(result.numbers["noise"]) == ["router.weight"]
    assert check_gradients(_Top1(normalised=False), vocab_size=13).reason == "gradients.ok"


class _KeyBias(TinyGPT):
    """Attention with a bias of the keys, which a softmax does not see."""

    def __init__(self) -> None:
        super().__init__(L=1)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        q, k, v = self.query(x)[:, None], self.key(x)[:, None], x[:, None]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + mixed[:, 0]


@pytest.mark.parametrize("tiny", [1.0, 1e-4, 1e-7])
def test_gradients_that_are_small_and_real_pass(tiny: float) -> None:
    """Small weights have as small gradients in float64; the bias of the keys has none at all."""
    model = _KeyBias()
    with torch.no_grad():
        model.query.weight.mul_(tiny)
        model.blocks[0].mlp[2].weight.mul_(tiny)  # type: ignore[index, union-attr, operator]
    assert check_gradients(model).status in (Status.PASS, Status.WARN)


def test_frozen_tables_that_a_rule_fills_are_not_called_random() -> None:
    """Sinusoids follow one another from position to position; draws do not."""
    model = TinyGPT()
    model.table = nn.Parameter(torch.randn(12, 16), requires_grad=False)
    drawn = check_gradients(model, fresh=True)
    assert drawn.reason == "gradients.frozen"
    assert "keep their random start" in drawn.claim
    angle = torch.arange(12.0)[:, None] / 10_000 ** (torch.arange(0, 16, 2) / 16)
    model.table.data = torch.cat([angle.sin(), angle.cos()], 1)
    ruled = check_gradients(model, fresh=True)
    assert ruled.reason == "gradients.frozen"
    assert "random start" not in ruled.claim
    assert "a rule gives" in ruled.claim


def test_one_parameter_is_told_in_the_singular() -> None:
    torch.manual_seed(0)
    table = Bigram()
    assert len(list(table.parameters())) == 1
    assert check_gradients(table).claim.startswith("the one trainable parameter gets a gradient")
    frozen = check_gradients(table.requires_grad_(False))
    assert frozen.claim == "the one parameter is frozen: nothing can be learnt"
