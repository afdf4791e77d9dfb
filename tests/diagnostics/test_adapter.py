"""Calling models that somebody else wrote, and reading what they return."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, diagnose
from diagnostics._adapter import Adapter, UnreadableOutputError, next_tokens, read_output
from diagnostics._probe import Probe
from tests.diagnostics.tiny import Bigram, HFStyle, Recurrent, cross_entropy

V, B, T = 11, 3, 5


class Core(nn.Module):
    """A bigram table that subclasses wrap in their own kind of call."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = V
        self.table = nn.Embedding(V, V)

    def scores(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.table(ids)


class MaskSecond(Core):
    """The second argument is a mask, the targets come third and by name."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return a dictionary."""
        logits = self.scores(input_ids)
        if attention_mask is not None:
            logits = logits * attention_mask.unsqueeze(-1)
        out = {"logits": logits}
        if labels is not None:
            out["loss"] = cross_entropy(logits, labels)
        return out


class UnnamedTargets(Core):
    """The targets have a name that nobody would guess."""

    def forward(self, a: Tensor, b: Tensor | None = None) -> Any:
        """Return logits, or (loss, logits) in that order."""
        logits = self.scores(a)
        return logits if b is None else (cross_entropy(logits, b), logits)


class TargetsRequired(Core):
    """Cannot be called without targets."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, loss)."""
        logits = self.scores(x)
        return logits, cross_entropy(logits, y)


class LastOnly(Core):
    """Without targets only the last position is computed, as nanoGPT does."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, 1, V) without targets, (B, T, V) with them."""
        logits = self.scores(idx)
        if targets is None:
            return logits[:, [-1]], None
        return logits, functional.cross_entropy(logits.view(-1, V), targets.view(-1))


class StateSecond(Core):
    """A recurrent model: the second argument and result are its state."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (logits, state (1, B, 4))."""
        if state is not None and state.shape != (1, x.shape[0], 4):
            raise ValueError("not a state")
        return self.scores(x), torch.zeros(1, x.shape[0], 4)


def learn(model: nn.Module, **parts: Any) -> Adapter:
    """Learn how to call a model."""
    return Probe(Pipeline(model, vocab_size=V, **parts)).adapter


@pytest.mark.parametrize(
    "model",
    [
        Bigram(V),
        Recurrent(V),
        MaskSecond(),
        UnnamedTargets(),
        TargetsRequired(),
        LastOnly(),
        StateSecond(),
        HFStyle(V=V),
    ],
    ids=lambda model: type(model).__name__,
)
def test_logits_of_every_position_come_back(model: nn.Module) -> None:
    """Whatever the call looks like, (B, T, V) comes out, and a loss where there is one."""
    adapter = learn(model)
    tokens = torch.arange(B * T).reshape(B, T) % V
    assert adapter.logits(model, tokens).shape == (B, T, V)
    logits, loss = adapter.loss(model, tokens, next_tokens(tokens, "next"))
    assert logits.shape == (B, T, V)
    assert loss.ndim == 0
    assert adapter.has_loss is not isinstance(model, (Recurrent, StateSecond))


def test_names_are_read_before_positions() -> None:
    """Targets never land in the attention mask."""
    adapter = learn(MaskSecond())
    assert (adapter.target_name, adapter.mask_name) == ("labels", "attention_mask")
    model, tokens = MaskSecond(), torch.ones(B, T, dtype=torch.long)
    mask = torch.zeros(B, T)
    assert torch.equal(adapter.logits(model, tokens, mask), torch.zeros(B, T, V))


def test_unnamed_second_argument_is_tried_and_believed_only_with_a_loss() -> None:
    """A recurrent state is not mistaken for targets."""
    assert learn(UnnamedTargets()).target_position
    assert not learn(StateSecond()).target_position
    assert learn(LastOnly()).always_targets
    assert learn(TargetsRequired()).always_targets


def test_a_wrapped_model_is_read_through_its_wrapper() -> None:
    """DataParallel's forward takes anything; the module inside has the names."""
    assert learn(nn.DataParallel(MaskSecond())).target_name == "labels"


def test_own_forward_overrules_recognition() -> None:
    """It is called with targets even when only logits are wanted."""
    seen: list[Tensor] = []

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(targets)
        return model(inputs)[0], torch.tensor(7.0)

    model = Bigram(V)
    adapter = learn(model, forward=forward)
    tokens = torch.tensor([[1, 2, 3]])
    adapter.logits(model, tokens)
    assert torch.equal(seen[-1], torch.tensor([[2, 3, 1]]))
    assert adapter.loss(model, tokens, tokens)[1] == 7.0


def test_arguments_are_contiguous_copies() -> None:
    """Models that .view() their targets run, and those that write into them do no harm."""

    class Rude(Core):
        def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.scores(idx)
            loss = functional.cross_entropy(logits.view(-1, V), targets.view(-1))
            idx.zero_()
            targets.zero_()
            return logits, loss

    inputs = (torch.arange(12) % V).reshape(3, 4).T  # (4, 3), not contiguous
    targets = inputs.roll(-1, 1).T.contiguous().T
    expected = inputs.clone(), targets.clone()
    model = Rude()
    learn(model).loss(model, inputs, targets)
    assert torch.equal(inputs, expected[0])
    assert torch.equal(targets, expected[1])


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((B, T, V), "BTV"),
        ((B, T, V + 5), "BTV"),  # a vocabulary padded to a multiple
        ((B, V, T), "BVT"),
        ((T, B, V), "TBV"),
        ((B * T, V), "flat"),
        ((B, 1, V), "last"),
        ((B, V), "last"),
    ],
)
def test_layouts_are_recognised(shape: tuple[int, ...], layout: str) -> None:
    """Logits come back as (B, T, W), with the element at (b, t, v) where it belongs."""
    output = read_output(torch.zeros(shape), B, T, V)
    assert output.layout == layout
    assert output.raw_shape == shape
    assert output.logits.shape[0] == B
    assert output.logits.shape[1] == (1 if layout == "last" else T)


def test_turned_layouts_keep_their_values() -> None:
    """(B, V, T) and (T, B, V) are transposed, not reshaped."""
    logits = torch.arange(B * T * V).reshape(B, T, V).float()
    assert torch.equal(read_output(logits.transpose(1, 2), B, T, V).logits, logits)
    assert torch.equal(read_output(logits.transpose(0, 1), B, T, V).logits, logits)
    assert torch.equal(read_output(logits.flatten(0, 1), B, T, V).logits, logits)


@pytest.mark.parametrize(
    "raw",
    [
        (torch.zeros(B, T, V), torch.tensor(1.5)),
        (torch.tensor(1.5), torch.zeros(B, T, V)),
        [torch.zeros(B, T, V), torch.tensor(1.5), None],
        {"logits": torch.zeros(B, T, V), "loss": torch.tensor(1.5)},
        SimpleNamespace(logits=torch.zeros(B, T, V), loss=torch.tensor(1.5)),
    ],
    ids=["pair", "swapped", "list", "dict", "object"],
)
def test_containers_are_recognised(raw: Any) -> None:
    """The loss is the scalar, the logits the larger tensor."""
    output = read_output(raw, B, T, V)
    assert output.logits.shape == (B, T, V)
    assert output.loss == 1.5


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "NoneType"),
        ({"scores": torch.zeros(B, T, V)}, r"keys \['scores'\]"),
        (torch.tensor(1.0), r"a tensor of shape \(\)"),
        ((torch.zeros(B, T, dtype=torch.long),), "tuple of 1"),
        (
            torch.zeros(4, 4, 4),
            r"logits must have shape \(B, T, V\) = \(3, 5, 11\), got \(4, 4, 4\)",
        ),
    ],
)
def test_unreadable_outputs_say_what_came(raw: Any, words: str) -> None:
    """And what to pass instead."""
    with pytest.raises(UnreadableOutputError, match=words) as caught:
        read_output(raw, B, T, V)
    assert "pass forward=" in str(caught.value)


def test_cross_entropy_follows_the_declared_labels() -> None:
    """With labels "same" the last logits and the first label have no partner."""
    logits, ids = torch.randn(2, 4, V), torch.randint(V, (2, 4))
    ids[0, 2] = -100
    same = Adapter(None, "same", -100, V).cross_entropy(logits, ids)
    expected = functional.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))
    assert same == expected
    halves = Adapter(None, "next", -100, V).cross_entropy(logits.bfloat16(), ids)
    assert halves.dtype == torch.float32


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_models_are_measured_and_not_accused(how: str) -> None:
    """Their calls have a schema instead of a signature, and new objects for the same weights."""
    core = nn.Sequential(nn.Embedding(V, 8), nn.Linear(8, V))
    scripted: Any = (
        torch.jit.script(core)
        if how == "script"
        else torch.jit.trace(core, torch.zeros(2, 4, dtype=torch.long))
    )
    report = diagnose(Pipeline(scripted, vocab_size=V, block_size=8), fast=True)
    assert [(r.reason, r.claim) for r in report.results if r.failed] == []
    assert report["gradients"].status is Status.PASS
