"""Eval mode repeats itself; train mode differs from it by dropout only; nothing else moves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_modes, diagnose
from diagnostics.modes import relative_distance
from minigpt import MiniGPT, MiniGPTConfig
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
)

V, C, P = 17, 12, 0.25


class Core(nn.Module):
    """Embedding, a part that a test chooses, head; returns (logits, loss or None)."""

    def __init__(self, middle: Callable[[nn.Module, Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.head = nn.Linear(C, V)
        self.middle = middle
        self.memory: dict[str, object] = {}
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        logits = self.head(self.middle(self, self.embedding(ids)))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def unchanged(model: nn.Module, x: Tensor) -> Tensor:
    """Give the embedding to the head."""
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: MiniGPT(MiniGPTConfig.debug(65)),
        lambda: MiniGPT(MiniGPTConfig.debug(65, dropout=0.2)),
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT(positions=False),
        lambda: TinyGPT().bfloat16(),
        lambda: TinyGPT(std=0.0),
        Bigram,
        Recurrent,
        Convolution,
        HFStyle,
        lambda: MixtureOfExperts(shut=True),
        lambda: Core(lambda m, x: m.attention(x, x, x, need_weights=False)[0],
                     attention=nn.MultiheadAttention(C, 2, dropout=P, batch_first=True)),
        lambda: Core(lambda m, x: m.layer(x), layer=nn.TransformerEncoderLayer(
            C, 2, 24, dropout=P, batch_first=True)),
        lambda: Core(lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(C, C, 2, dropout=P, batch_first=True)),
        lambda: Core(lambda m, x: functional.dropout(x, P, m.training)),
    ],
)  # fmt: skip
def test_healthy_designs_pass(make: Callable[[], nn.Module]) -> None:
    """Dropout of every kind, tied, bf16, zero weights, recurrent, convolution, experts: PASS."""
    result = check_modes(make())
    assert (result.status, result.reason) == (Status.PASS, "modes.ok"), str(result)


def test_pass_counts_the_dropout_calls() -> None:
    """A debug MiniGPT drops at the embedding and three times in each of its two blocks: 7."""
    result = check_modes(MiniGPT(MiniGPTConfig.debug(65, dropout=0.2)))
    assert result.numbers["dropout_calls"] == 7
    assert result.numbers["train_difference"] == 0.0


def always_on(model: nn.Module, x: Tensor) -> Tensor:
    """Functional dropout without the training flag."""
    return functional.dropout(x, P)


def made_anew(model: nn.Module, x: Tensor) -> Tensor:
    """A dropout module that is made at each call is always in train mode."""
    return nn.Dropout(P)(x)


def in_a_list(model: nn.Module, x: Tensor) -> Tensor:
    """A dropout module that eval() cannot reach."""
    return model.drops[0](x)  # type: ignore[index,operator,union-attr]


def in_attention(model: nn.Module, x: Tensor) -> Tensor:
    """The fused kernel's probability, not gated."""
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=P, is_causal=True)


@pytest.mark.parametrize(
    ("middle", "named"),
    [
        (always_on, "in always_on"),
        (made_anew, "in made_anew"),
        (in_a_list, "drops keeps dropout in a plain list"),
        (in_attention, "in in_attention"),
    ],
)
def test_dropout_in_eval_mode_is_named(middle: Callable[..., Tensor], named: str) -> None:
    """Four ways to keep dropout on in eval mode; the cause names the place or the list."""
    result = check_modes(Core(middle, drops=[nn.Dropout(P)]))
    assert (result.status, result.reason) == (Status.FAIL, "modes.eval_random")
    assert "eval mode" in result.claim
    assert any(named in cause for cause in result.causes)


def test_hand_written_noise_in_eval_names_the_module_and_no_dropout() -> None:
    """Noise that is no dropout has no cause to offer, but a place."""

    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn_like(x)

    result = check_modes(Core(lambda m, x: m.noise(x), noise=Noise()))  # type: ignore[operator]
    assert result.reason == "modes.eval_random"
    assert result.causes == ()
    assert "noise (Noise)" in result.where


def test_a_layer_that_is_built_inside_forward_is_the_cause_of_random_logits() -> None:
    result = check_modes(Core(lambda m, x: x + nn.Linear(x.shape[-1], x.shape[-1])(x)))
    assert result.reason == "modes.eval_random"
    assert "a layer (Linear) is built inside forward" in result.causes[0]
    assert "__init__" in result.next_step


def keep_last(model: nn.Module, x: Tensor) -> Tensor:
    """Add the mean of the last call."""
    last = model.memory.get("mean", 0.0)
    model.memory["mean"] = x.mean((0, 1))  # type: ignore[index,operator]
    return x + last


def own_generator(model: nn.Module, x: Tensor) -> Tensor:
    """Draw from a generator that lives in the model."""
    g = model.memory.setdefault("g", torch.Generator().manual_seed(0))  # type: ignore[operator]
    return x + torch.randn(x.shape, generator=g)


@pytest.mark.parametrize("middle", [keep_last, own_generator])
def test_state_between_calls_is_not_called_dropout(middle: Callable[..., Tensor]) -> None:
    """Equal seeds, other logits: the model remembers the last call."""
    result = check_modes(Core(middle))
    assert (result.status, result.reason) == (Status.FAIL, "modes.stateful")


def test_train_override_that_forgets_the_children() -> None:
    """train() that only sets its own flag leaves both children in train mode."""

    class Forgetful(Core):
        def train(self, mode: bool = True) -> Forgetful:
            self.training = mode
            return self

    result = check_modes(Forgetful(unchanged))
    assert result.reason == "modes.eval_incomplete"
    assert result.numbers["stuck"] == ["embedding", "head"]


def seeded(model: nn.Module, x: Tensor) -> Tensor:
    """Reproducible masks, at the price of everybody else's randomness."""
    torch.manual_seed(0)
    return functional.dropout(x, P, model.training)


def seeded_in_train(model: nn.Module, x: Tensor) -> Tensor:
    """The same in train mode only."""
    return seeded(model, x) if model.training else x


@pytest.mark.parametrize(("middle", "mode"), [(seeded, "eval"), (seeded_in_train, "train")])
def test_a_seed_inside_forward(middle: Callable[..., Tensor], mode: str) -> None:
    """manual_seed inside forward leaves one random state whatever the run was seeded with."""
    result = check_modes(Core(middle))
    assert result.failed
    # masks that never change are seen first in train mode: both describe the fault
    assert result.reason in ("modes.resets_random_state", "modes.same_mask")
    if mode == "eval":
        assert result.reason == "modes.resets_random_state"


def test_a_mask_from_a_generator_seeded_at_each_call() -> None:
    """The mask is the same for ever; the global random state is innocent."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        if not model.training:
            return x
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return functional.dropout(x, P)

    assert check_modes(Core(middle)).reason == "modes.same_mask"


def no_mask_in_train(model: nn.Module, x: Tensor) -> Tensor:
    """Causal in eval mode only."""
    return functional.scaled_dot_product_attention(x, x, x, is_causal=not model.training)


def scaled_in_train(model: nn.Module, x: Tensor) -> Tensor:
    """One per cent larger in train mode."""
    return x * (1.01 if model.training else 1.0)


@pytest.mark.parametrize("middle", [no_mask_in_train, scaled_in_train])
def test_other_code_in_train_mode(middle: Callable[..., Tensor]) -> None:
    """A mask or a scale that depends on the mode differs with dropout off."""
    result = check_modes(Core(middle))
    assert (result.status, result.reason) == (Status.FAIL, "modes.train_differs")
    assert result.numbers["distance"] > 1e-3


def test_other_code_hidden_behind_dropout_is_still_seen() -> None:
    """Dropout 0.5 scatters far more than a mask moves the logits; silenced, the mask shows."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        return functional.dropout(no_mask_in_train(model, x), 0.5, model.training)

    assert check_modes(Core(middle)).reason == "modes.train_differs"


def test_place_of_the_difference() -> None:
    """The module that takes the other path is named by its full path."""

    class Twofold(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x if self.training else x

    model = Core(lambda m, x: m.inner(x), inner=nn.Sequential(nn.Linear(C, C), Twofold()))  # type: ignore[operator]
    result = check_modes(model)
    assert result.numbers["path"] == "inner.1"
    assert "inner.1 (Twofold)" in result.where


def test_noise_of_the_design_in_train_mode_passes() -> None:
    """Jitter in train mode only (as routers have it) scatters around the eval logits."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if model.training else x

    assert check_modes(Core(middle)).status is Status.PASS


def test_batch_norm_is_a_warning() -> None:
    """Batch statistics explain the difference completely: WARN, not FAIL."""
    model = Core(lambda m, x: m.norm(x.transpose(1, 2)).transpose(1, 2), norm=nn.BatchNorm1d(C))  # type: ignore[operator]
    result = check_modes(model)
    assert (result.status, result.reason) == (Status.WARN, "modes.batch_norm")


def test_dropout_that_is_declared_and_never_called() -> None:
    """A dropout module that forward does not call is a warning with its path."""
    result = check_modes(Core(unchanged, drop=nn.Dropout(P)))
    assert (result.status, result.reason) == (Status.WARN, "modes.dropout_never_fires")
    assert result.numbers["declared"] == {"drop": P}


def cached_once(model: nn.Module, x: Tensor) -> Tensor:
    """Emulate a compiled graph that is kept from the first mode it ran in."""
    training = model.memory.setdefault("flag", model.training)  # type: ignore[operator]
    return functional.dropout(x, P, bool(training))


def test_stale_graph() -> None:
    """A kept function ignores train() after eval(), or eval() after train()."""
    assert check_modes(Core(cached_once)).reason == "modes.mode_remembered"


def test_weights_written_by_forward() -> None:
    """An addition in place reaches the head's bias: 'head.bias' is named."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            model.head.bias += 0.0 * x.sum() + 1e-3 * (1 if model.training else 0)  # type: ignore[operator,union-attr]
        return x

    result = check_modes(Core(middle))
    assert result.reason == "modes.weights_changed"
    assert "head.bias" in result.claim


def test_forward_that_switches_the_mode() -> None:
    """eval() inside forward is found in train mode."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        model.eval()
        return x

    result = check_modes(Core(middle))
    assert result.reason == "modes.forward_switches_mode"
    assert "train mode" in result.claim


def test_counting_buffer_is_a_warning() -> None:
    """A buffer that counts calls may be meant: WARN with its path."""

    class Counting(Core):
        def __init__(self) -> None:
            super().__init__(unchanged)
            self.register_buffer("calls", torch.zeros(()))

        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            self.calls += 1
            return super().forward(ids, targets)

    result = check_modes(Counting())
    assert (result.status, result.reason) == (Status.WARN, "modes.buffers_changed")
    assert "calls" in result.claim


class TwoPaths(TinyGPT):
    """Attention is causal with targets and reads everything without."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits, loss or None)."""
        logits, loss = super().forward(ids, targets)
        return (logits if targets is None else logits + logits.mean(1, keepdim=True)), loss


def test_two_code_paths_with_and_without_targets() -> None:
    """The logits of the loss are not the logits of generation."""
    result = check_modes(TwoPaths())
    assert (result.status, result.reason) == (Status.FAIL, "modes.targets_change_logits")


def test_targets_that_are_read() -> None:
    """Logits that move with the targets contain the answer."""

    class Reading(TinyGPT):
        def forward(
            self, ids: Tensor, targets: Tensor | None = None
        ) -> tuple[Tensor, Tensor | None]:
            logits, loss = super().forward(ids, targets)
            if targets is not None:
                logits = logits + 0.1 * functional.one_hot(targets, logits.shape[2])
            return logits, loss

    assert check_modes(Reading()).reason == "modes.targets_leak"


def test_grad_mode_changes_logits() -> None:
    """A fast path under no_grad that forgets a scale."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        return x if torch.is_grad_enabled() else 0.9 * x

    assert check_modes(Core(middle)).reason == "modes.grad_changes_logits"


def test_grad_left_off() -> None:
    """set_grad_enabled(False) called as a function outlives the call."""

    def middle(model: nn.Module, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x

    assert check_modes(Core(middle)).reason == "modes.grad_left_off"
    assert torch.is_grad_enabled()


def test_nan_never_passes() -> None:
    """Logits that are not finite cannot be compared: SKIP, for `forward_hooks` to name."""
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[3, 3] = float("nan")
    result = check_modes(model)
    assert (result.status, result.reason) == (Status.SKIP, "modes.not_finite")


def test_relative_distance_by_hand() -> None:
    """|4 - 3| / 4 = 0.25; equal infinities count as equal; NaN stays NaN."""
    a = torch.tensor([[[4.0, -float("inf")]]])
    assert relative_distance(a, torch.tensor([[[3.0, -float("inf")]]])) == 0.25
    nan = relative_distance(a, torch.full((1, 1, 2), float("nan")))
    assert nan != nan


def test_the_users_model_comes_back_untouched() -> None:
    """Weights, modes, random state: as before, also with a model that tampers."""
    model = Core(in_a_list, drops=[nn.Dropout(P)])
    model.head.eval()
    weights = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    check_modes(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_diagnose_runs_it_and_allow_declares_a_design() -> None:
    """The same verdict from diagnose; a declared reason becomes a warning."""
    pipeline = Pipeline(Core(scaled_in_train))
    assert diagnose(pipeline, only=["modes"])["modes"].reason == "modes.train_differs"
    allowed = replace(pipeline, allow=("modes.train_differs",))
    assert diagnose(allowed, only=["modes"])["modes"].status is Status.WARN


def test_tokens_of_another_shape_are_refused() -> None:
    """Tokens must be (B, T)."""
    with pytest.raises(ValueError, match=r"got \(4,\)"):
        check_modes(Bigram(), torch.zeros(4, dtype=torch.long))
