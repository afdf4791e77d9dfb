"""Healthy designs that look odd: `diagnose` must not fail on any, nor warn without a reason.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._lab import Lab
from tests.compat import _blocks as blocks
from tests.compat import _models as models
from tests.compat._parts import Call, assert_healthy, call_logits, call_pair, describe
from tests.diagnostics.architectures import Llama, SineGPT, StateSpace, alibi_mix
from tests.diagnostics.tiny import (
    Bigram,
    Block,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
    masked_mix,
)

PARTS = ("accumulation", "evaluation")
NO_BLOCK: dict[str, Any] = {"block_size": None}


@dataclass(frozen=True)
class Oddity:
    """One design: how it is built for V tokens, called, and what may be said of it."""

    build: Callable[[int], nn.Module]
    call: Call = call_pair
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)


def with_z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets) + 1e-3 * logits.logsumexp(-1).square().mean()


def log_softmax_first(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.log_softmax(-1), targets)


def call_same(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    output: Any = model(inputs, labels=targets)
    return output.logits, output.loss


def call_named(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    output: Any = model(inputs, targets=targets)
    return output.logits, output.loss


def call_loss_first(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    loss, logits = model(inputs, targets)
    return logits, loss


@torch.no_grad()
def evaluate_same(model: nn.Module, ids: Tensor) -> float:
    """Overlapping windows, for the model leaves the first label of each row out."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, 11):
        row = ids[None, start : start + 12]
        total += float(call_same(model, row, row)[1]) * (row.shape[1] - 1)
        count += row.shape[1] - 1
    return total / count


def same_windows(data: Tensor) -> tuple[Tensor, Tensor]:
    rows = data[torch.randint(len(data) - 12, (8, 1)) + torch.arange(12)]
    return rows, rows.clone()


def block(
    make: Callable[[], nn.Module], *, warnings: tuple[str, ...] = (), **options: Any
) -> Oddity:
    return Oddity(lambda V: blocks.with_blocks(V, make, **options), warnings=warnings)


def head_of(mix: Any) -> nn.Module:
    return Block(blocks.C, blocks.H, mix)


def mix(made: Any, **options: Any) -> Oddity:
    return Oddity(lambda V: TinyGPT(V, mix=made, **options))


# What is computed in forward differs; how it is trained and generated with does not.
FORWARD: dict[str, Oddity] = {
    # positions and attention
    "tied weights": Oddity(lambda V: TinyGPT(V, tied=True, std=0.02)),
    "rotary, grouped queries": Oddity(Llama, call_logits),
    "rotary, one key head": Oddity(lambda V: Llama(V, G=1), call_logits),
    "sliding window": Oddity(lambda V: Llama(V, window=4), call_logits),
    "alibi": mix(alibi_mix, positions=False),
    "no positions": Oddity(lambda V: TinyGPT(V, positions=False)),
    "no positions, one layer": Oddity(
        lambda V: TinyGPT(V, positions=False, L=1), warnings=("positions.order_unused",)
    ),
    "sines": Oddity(SineGPT),
    "relative bias": block(lambda: head_of(blocks.RelativeBias()), positions=False),
    "learned sinks": block(lambda: head_of(blocks.LearnedSinks())),
    "first tokens kept": mix(masked_mix(lambda i, j: (j <= i) & ((j > i - 4) | (j < 2)))),
    "finite mask": mix(masked_mix(lambda i, j: j <= i, -1e4)),
    "normed queries and keys": block(lambda: head_of(blocks.NormedHeads())),
    "retention": mix(blocks.retention_mix),
    # other architectures
    "gru": Oddity(Recurrent, call_logits, parts=NO_BLOCK),
    "convolution": Oddity(Convolution, call_logits, ("context.short",), NO_BLOCK),
    "wavenet": Oddity(models.WaveNet, call_logits, ("context.short",), NO_BLOCK),
    "state space": Oddity(StateSpace, call_logits, parts=NO_BLOCK),
    "token shift": Oddity(models.TokenShift, call_logits, parts=NO_BLOCK),
    "bigram": Oddity(lambda V: Bigram(V, std=0.1), warnings=("context.bigram",)),
    "fixed window": Oddity(models.FixedWindow, warnings=("context.short",)),
    # blocks
    "post-norm": block(blocks.PostNorm),
    "deep norm": block(blocks.deep_norm),
    "parallel": block(blocks.Parallel),
    "sandwich": block(blocks.Sandwich),
    "layer scale": block(blocks.LayerScale),
    "gemma": block(blocks.GemmaBlock),
    "shared layers": Oddity(models.Shared),
    "capped logits": Oddity(models.Capped),
    "log-softmax first": Oddity(lambda V: TinyGPT(V, loss_of=log_softmax_first)),
}

# Here training, files or generation are touched as well.
WHOLE: dict[str, Oddity] = {
    # gradients and noise
    "lstm": Oddity(models.LSTM, parts=NO_BLOCK),
    # its experts mix no positions; the balance of their use is a term of the loss
    "experts": Oddity(
        lambda V: MixtureOfExperts(V, aux=0.01),
        warnings=("loss.extra_term", "context.bigram"),
    ),
    "two experts a token": Oddity(models.top_two),
    "stock encoder": Oddity(models.StockEncoder, call_logits, ("initial_loss.identical_layers",)),
    "stock encoder, post-norm": Oddity(
        lambda V: models.StockEncoder(V, norm_first=False),
        call_logits,
        ("initial_loss.identical_layers",),
    ),
    "re-zero": block(blocks.ReZero),
    "stochastic depth": block(blocks.StochasticDepth),
    "checkpointed": block(blocks.Checkpointed),
    "closures": block(blocks.Closures),
    "quantized": block(blocks.quantized_block, warnings=("gradients.straight_through",)),
    "weight norm": block(blocks.weight_normed_block),
    "spectral norm": block(blocks.spectral_block),
    "dropout": Oddity(models.with_dropout),
    "noisy embeddings": Oddity(models.NoisyEmbeddings),
    # heads, losses and numbers
    "mup": Oddity(lambda V: models.MuP(V, mix=blocks.sharp_mix), warnings=("context.score_scale",)),
    "zero head": Oddity(models.zero_head),
    "padded vocabulary": Oddity(
        lambda V: TinyGPT(-(-V // 64) * 64),
        warnings=("generation.padding_chosen",),
        parts={"vocab_size": "V"},
    ),
    "padded vocabulary, shut": Oddity(
        lambda V: models.LossFirst(V, -(-V // 64) * 64),
        call_loss_first,
        parts={"vocab_size": "V"},
    ),
    "padding row": Oddity(models.with_padding_row),
    "label smoothing": Oddity(
        lambda V: TinyGPT(V, loss_of=smoothed), warnings=("loss.label_smoothing",)
    ),
    "z-loss": Oddity(lambda V: TinyGPT(V, loss_of=with_z_loss), warnings=("loss.z_loss",)),
    # the documentation of `loss` asks for this declaration
    "multi-token": Oddity(
        models.MultiToken, warnings=("loss.mismatch",), parts={"allow": ("loss.mismatch",)}
    ),
    "bfloat16": Oddity(lambda V: TinyGPT(V).bfloat16()),
    "float64": Oddity(lambda V: TinyGPT(V).double()),
    "autocast": Oddity(models.Autocast),
    # fine-tuning
    "lora": Oddity(models.low_rank, warnings=("gradients.frozen",)),
    "frozen layers": Oddity(models.half_frozen, warnings=("gradients.frozen",)),
    "prefix tuning": Oddity(models.Prefix, warnings=("gradients.frozen",)),
    "moving average": Oddity(models.with_average, warnings=("gradients.frozen",)),
    # outputs and wrappings
    "labels are inputs": Oddity(
        lambda V: HFStyle(TinyGPT(V), V),
        call_same,
        ("padding.mask_ignored",),
        {"labels": "same", "get_batch": same_windows, "evaluate": evaluate_same},
    ),
    "last position only": Oddity(models.LastOnly),
    "dictionary": Oddity(models.DictOutput),
    "object": Oddity(models.ObjectOutput, call_named, ("padding.mask_ignored",)),
    "asserting": Oddity(models.Asserting),
    "data parallel": Oddity(lambda V: nn.DataParallel(TinyGPT(V))),
    "from the meta device": Oddity(models.materialised),
}
ODDITIES = FORWARD | WHOLE


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def described(name: str, lab: Lab) -> Pipeline:
    oddity = ODDITIES[name]
    V = lab.tokenizer.vocab_size
    parts = {part: V if value == "V" else value for part, value in oddity.parts.items()}
    block = parts.pop("block_size", 12)
    return describe(lab, lambda: oddity.build(V), call=oddity.call, block=block, **parts)


@pytest.mark.parametrize("name", FORWARD)
def test_a_forward_pass_that_looks_odd_does_not_fail(name: str, lab: Lab) -> None:
    """No FAIL and no ERROR; warnings only where a person has to judge."""
    only = ["shapes", "loss", "initial_loss", "causality", "gradients"]
    assert_healthy(described(name, lab), warnings=ODDITIES[name].warnings, only=only)


@pytest.mark.parametrize("name", WHOLE)
def test_an_odd_design_does_not_fail(name: str, lab: Lab) -> None:
    """No FAIL and no ERROR from any check that looks at the model."""
    skip = ["environment", "files", "tokenizer", "ids", "batches", "shift", "schedule", "overfit"]
    skip += ["honesty", "positions", "batch_independence", *PARTS]
    assert_healthy(described(name, lab), warnings=ODDITIES[name].warnings, skip=skip)


@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "noisy embeddings",
        "stochastic depth",
        "label smoothing",
        "padded vocabulary, shut",
        "labels are inputs",
        "bfloat16",
    ],
)
def test_parts_around_an_odd_design_do_not_fail(name: str, lab: Lab) -> None:
    """A step over micro-batches and an evaluation, where noise, losses or numbers are odd."""
    assert_healthy(described(name, lab), warnings=ODDITIES[name].warnings, only=PARTS)


@pytest.mark.parametrize(
    "name", ["alibi", "lstm", "two experts a token", "deep norm", "quantized", "mup", "bfloat16"]
)
def test_odd_designs_learn_and_learn_nothing_from_noise(name: str, lab: Lab) -> None:
    report = assert_healthy(described(name, lab), only=["overfit", "honesty"])
    assert [result.status for result in report.results] == ["pass", "pass"]


def test_a_compiled_model_is_healthy(lab: Lab) -> None:
    """Compiled without code generation, which would need a compiler of C++."""
    V = lab.tokenizer.vocab_size

    def make() -> Any:
        return torch.compile(TinyGPT(V), backend="eager", dynamic=True)

    only = ["loss", "prefix"]
    assert_healthy(describe(lab, make), only=only)
