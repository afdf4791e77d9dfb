"""Models of the `x-transformers` library: healthy, so nothing fails, and a warning has a reason.

`TransformerWrapper` returns logits, so that a model alone is enough. `AutoregressiveWrapper`
returns its loss only: there `forward` has to be given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("x_transformers")

import x_transformers

from diagnostics import Pipeline, diagnose
from exercises._lab import Lab
from tests.compat._parts import assert_healthy, describe

V, BLOCK, DIM = 61, 12, 16
LEARNING = ("overfit", "honesty")


def wrapper(V: int = V, **options: Any) -> nn.Module:
    """Build a decoder; positions=False: learned positions are left out."""
    positions = options.pop("positions", True)
    tied = options.pop("tie_embedding", False)
    return x_transformers.TransformerWrapper(
        num_tokens=V,
        max_seq_len=BLOCK,
        use_abs_pos_emb=positions,
        tie_embedding=tied,
        attn_layers=x_transformers.Decoder(dim=DIM, depth=2, heads=2, attn_dim_head=8, **options),
    )


DECODERS: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "rotary": {"positions": False, "rotary_pos_emb": True},
    "alibi": {"positions": False, "alibi_pos_bias": True},
    "relative bias": {"positions": False, "rel_pos_bias": True},
    "no positions": {"positions": False},
    "llama-like": {
        "positions": False,
        "rotary_pos_emb": True,
        "use_rmsnorm": True,
        "ff_glu": True,
        "ff_swish": True,
        "attn_kv_heads": 1,
    },
    "normed queries and keys": {"attn_qk_norm": True},
    "sandwich": {"sandwich_norm": True},
    "post-norm": {"pre_norm": False},
    "memory keys": {"attn_num_mem_kv": 2},
    "tied": {"tie_embedding": True},
    "shifted tokens": {"shift_tokens": 1},
    "gated values": {"attn_gate_values": True},
    "soft-clamped scores": {"attn_softclamp_logits": True},
    "talking heads": {"attn_pre_talking_heads": True},
    "dropout": {"attn_dropout": 0.1, "ff_dropout": 0.1},
    "zero branches": {"zero_init_branch_output": True},
    "flash": {"attn_flash": True},
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_alone_is_healthy(name: str) -> None:
    torch.manual_seed(0)
    pipeline = Pipeline(wrapper(**DECODERS[name]), vocab_size=V)
    only = ["modes", "shapes", "forward_hooks", "initial_loss", "causality", "gradients"]
    assert_healthy(pipeline, only=only)


def forward_shifted_inside(model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (logits, loss) under labels="same": the wrapper shifts the ids that it is given."""
    return model.net(inputs), model(targets)


def forward_one_more(model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (logits, loss) under labels="next": rows of T + 1 ids are put together again."""
    return model.net(inputs), model(torch.cat([inputs, targets[:, -1:]], 1))


def rows_of(data: Tensor) -> tuple[Tensor, Tensor]:
    rows = data[torch.randint(len(data) - BLOCK, (8, 1)) + torch.arange(BLOCK)]
    return rows, rows.clone()


@torch.no_grad()
def evaluate(model: Any, ids: Tensor) -> float:
    """Mean nats over rows that share one id with the next row, and the rest."""
    mode = model.training
    model.eval()
    whole = ids.unfold(0, BLOCK, BLOCK - 1)
    total, count = 0.0, 0
    for rows in (whole, ids[None, len(whole) * (BLOCK - 1) :]):
        if rows.shape[1] > 1:
            total += float(model(rows)) * rows[:, 1:].numel()
            count += rows[:, 1:].numel()
    model.train(mode)
    return total / count


def generate(model: Any, prompt: Tensor, count: int) -> Tensor:
    """The wrapper's own greedy generation returns the new tokens alone."""
    mode = model.training
    absolute = model.net.pos_emb is not None and hasattr(model.net.pos_emb, "emb")
    # absolute positions move when the text outgrows the block: the library refuses a cache there
    new = model.generate(prompt, count, temperature=0.0, cache_kv=not absolute)
    model.train(mode)
    return torch.cat([prompt, new], 1)


WRAPPED: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "rotary": (
        forward_one_more,
        {"positions": False, "rotary_pos_emb": True},
        {"evaluate": evaluate},
    ),
    "alibi": (
        forward_shifted_inside,
        {"positions": False, "alibi_pos_bias": True},
        {"labels": "same", "get_batch": rows_of, "evaluate": evaluate},
    ),
    "learned positions": (
        forward_shifted_inside,
        {},
        {"labels": "same", "get_batch": rows_of, "evaluate": evaluate},
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_whole_pipeline_around_the_wrapper_is_healthy(name: str) -> None:
    forward, options, parts = WRAPPED[name]
    with Lab() as lab:

        def make() -> nn.Module:
            inner = wrapper(lab.tokenizer.vocab_size, **options)
            return x_transformers.AutoregressiveWrapper(inner)

        pipeline = describe(
            lab, make, call=forward, forward=forward, generate=generate, accumulate=None, **parts
        )
        # A cache that drops its oldest keys still holds what they told the layers above; rows
        # that are put together again from their ids cannot say that a target is ignored.
        judged = ("generation.past_block_unknown", "loss.ignored_counted")
        assert_healthy(pipeline, warnings=judged, skip=["environment", *LEARNING])


def test_the_wrapper_without_forward_names_what_is_missing() -> None:
    """Only a loss comes back, which nobody can take for logits."""
    model = x_transformers.AutoregressiveWrapper(wrapper())
    report = diagnose(Pipeline(model, vocab_size=V, block_size=BLOCK), only=["prefix"])
    assert report["prefix"].status == "error"
    assert "pass forward=" in report["prefix"].claim


def test_decoders_learn_and_learn_nothing_from_noise() -> None:
    with Lab() as lab:

        def make() -> nn.Module:
            return wrapper(lab.tokenizer.vocab_size, positions=False, rotary_pos_emb=True)

        pipeline = describe(lab, make, train_step=None, accumulate=None)
        report = assert_healthy(pipeline, only=LEARNING)
    assert [result.status for result in report.results] == ["pass", "pass"]
