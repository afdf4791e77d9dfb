"""Models of the `transformers` library: healthy, so nothing fails, and a warning has a reason.

Tiny sizes, random weights, no network.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from diagnostics import Pipeline, diagnose
from tests.compat import _causal_lm as library
from tests.compat._parts import assert_healthy

LEARNING = ("overfit", "honesty")
# Positions are relative: the library reads the whole text beyond the declared block.
RELATIVE = ("generation.past_block",)
JUDGED: dict[str, tuple[str, ...]] = {
    # positions are counted over pads unless the caller passes position_ids
    "gpt2": ("padding.left_positions", "generation.stops_at_block"),
    "opt": ("generation.stops_at_block",),
    "bloom": (),  # alibi, and no block is declared
    "mamba": (),
} | dict.fromkeys(
    (
        "gpt-neox",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "falcon",
        "mixtral",
    ),
    RELATIVE,
)
# `model.generate` raises where a table of learned positions ends: loud, and the library's design.
ALLOWED: dict[str, tuple[str, ...]] = {
    "gpt2": ("generation.stops_at_block",),
    "opt": ("generation.stops_at_block",),
}
# Of the others, alone, only what a missing part changes: sizes are read, tokens are made up.
ALONE = ("gpt2", "llama", "gemma2", "bloom")
BRIEFLY = ("forward_hooks", "loss", "initial_loss", "prefix", "gradients")


@pytest.mark.parametrize("name", library.ARCHITECTURES)
def test_a_model_alone_is_healthy(name: str) -> None:
    torch.manual_seed(0)
    pipeline = Pipeline(library.make_model(name), labels="same")
    options: dict[str, Any] = {"skip": LEARNING} if name in ALONE else {"only": BRIEFLY}
    assert_healthy(pipeline, warnings=JUDGED[name], **options)


@pytest.mark.parametrize("name", library.ARCHITECTURES)
def test_a_whole_pipeline_is_healthy(name: str) -> None:
    """As users write it: a collator that pads, the library's generate, a folder of files."""
    tokenizer = library.character_tokenizer()
    pipeline = library.full_pipeline(name, tokenizer, allow=ALLOWED.get(name, ()))
    report = assert_healthy(pipeline, warnings=JUDGED[name], skip=LEARNING)
    skipped = {result.check for result in report.results if result.status == "skip"}
    # parts that are not described
    assert skipped == {"files", "accumulation", "distributed", "sampling"}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_two_processes_train_one_model(name: str) -> None:
    """`DistributedDataParallel` around a model that shifts its labels inside."""
    pipeline = library.full_pipeline(name, library.character_tokenizer())
    pipeline = dataclasses.replace(pipeline, replicate=DistributedDataParallel)
    report = assert_healthy(pipeline, warnings=(), only=["distributed"])
    assert [result.status for result in report.results] == ["pass"]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_byte_level_subwords_are_healthy(name: str) -> None:
    pipeline = library.full_pipeline(name, library.byte_tokenizer())
    only = ["tokenizer", "ids", "batches", "loss", "initial_loss", "evaluation"]
    assert_healthy(pipeline, warnings=JUDGED[name], only=only)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_models_learn_and_learn_nothing_from_noise(name: str) -> None:
    pipeline = library.full_pipeline(name, library.character_tokenizer())
    report = assert_healthy(pipeline, only=LEARNING)
    assert [result.status for result in report.results] == ["pass", "pass"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_way_attention_is_computed_does_not_matter(implementation: str) -> None:
    torch.manual_seed(0)
    model = library.make_model("llama", attn_implementation=implementation)
    pipeline = Pipeline(model, labels="same")
    assert_healthy(pipeline, warnings=RELATIVE, only=["causality", "shapes", "gradients"])


def test_half_precision_and_recomputed_activations_are_healthy() -> None:
    torch.manual_seed(0)
    model = library.make_model("llama", dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    pipeline = Pipeline(model, labels="same")
    assert_healthy(pipeline, warnings=RELATIVE, skip=["environment", *LEARNING])


def test_labels_that_are_shifted_by_the_loader_and_again_by_the_model_are_caught() -> None:
    """The healthy pipelines above are no proof that anything was looked at; this one is."""

    def shifted(data: torch.Tensor) -> dict[str, torch.Tensor]:
        batch = library.windows(data)
        return batch | {"labels": batch["input_ids"].roll(-1, 1)}

    pipeline = library.full_pipeline("gpt2", library.character_tokenizer())
    pipeline.get_batch, pipeline.batch = shifted, None
    assert diagnose(pipeline, only=["shift"])["shift"].status == "fail"
