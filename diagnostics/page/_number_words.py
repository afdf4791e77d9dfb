"""What the numbers of a check are, in words, for a reader who has not read its source.

Most meanings stand in `report.schema.json`, for programs; here are those of names that may still
change. A name without a meaning is shown as it is: a guess would be worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).parent.parent / "report.schema.json"
LENGTH_MAX = 150  # characters; of a longer text the first sentence

_OWN: Mapping[str, Mapping[str, str]] = {
    "roundtrip": {
        "characters": "Characters of all samples.",
        "samples": "Texts that were encoded and decoded.",
    },
    "split": {
        "distinct": "Different runs of `length` tokens in the text.",
        "length": "Tokens in a run.",
        "share": "Share of the validation runs that stand in the training text.",
        "natural": "Share of the training runs that occur twice in the training text.",
        "few": "Share of the validation runs that stand in the training text, 16 times at most.",
    },
    "modes": {
        "dropout_calls": "Places where dropout is at work in train mode.",
        "train_difference": "Distance of the logits in train mode, dropout aside, from eval mode.",
    },
    "forward_hooks": {
        "dead_share": "Share of the units before a linear layer that are 0 for every token.",
        "growth": "Largest size of a block's output over the first block's.",
        "spread": "How far outputs differ between positions, over their size.",
    },
    "initial_loss": {
        "concentration": "How unevenly the pairs of input and target occur: 1 if all are equal.",
    },
    "loss": {
        "gradient_gap": "Difference between the gradient of the loss and the right one, relative.",
        "cases": "The batches that were tried, with the reported and the recomputed loss.",
    },
    "positions": {
        "repeated_token_spread": "How far logits differ over positions for one token repeated.",
        "tables": "Tables with a row for each position.",
    },
    "context": {"reach": "Tokens back that a prediction reads at most."},
    "gradients": {
        "frozen": "Parameters with requires_grad=False.",
        "truth_gap": "Largest relative distance from the slope that two losses nearby give.",
        "zero_at_first": "Parameters without a gradient at first, which have one after all.",
    },
    "optimizer": {
        "adam_first_step": "Size of the first step over the learning rate; 1 for Adam.",
        "decayed_matrices": "Parameters of two and more axes that decay.",
        "decayed_vectors": "Biases and gains of norms that decay.",
        "foreign": "Parameters of the optimizer that the model does not have.",
        "learning_rates": "Learning rate of each group.",
        "losses": "Loss before each of five steps on one batch and after them, in nats.",
        "moved_share": "Share of the elements with a gradient that five steps move.",
        "rule_gaps": "Relative distance of the updates from the optimizer's formula.",
        "trainable": "Parameters that are to be trained.",
    },
    "training_step": {
        "norms_own": "Norm of the gradient of each call's own batch.",
        "norms_used": "Norm of the gradient that each call stepped with.",
        "scales": "The gradient that was used over the batch's own: below 1 it was clipped.",
        "own_losses": "Loss of each call's batch, computed by the check, in nats.",
        "losses": "What each call returned.",
        "steps": "Optimizer steps of each call.",
    },
    "distributed": {
        "processes": "Processes that trained side by side.",
        "drift": "Distance of a process's weights from those of process 0, over their change.",
        "first_rows": "How the first row of each process begins.",
    },
    "checkpoint": {
        "logit_difference": "Largest difference of a logit after saving and loading.",
        "tensors": "Tensors that came back.",
    },
    "sampling": {
        "settings": "Combinations of temperature, top_k and the like that were compared.",
        "kept_of_ties": "Tokens that top_k=2 keeps where all are equally likely.",
    },
    "schedule": {
        "rates_in_use": "Rates that the optimizer's groups held in each call of train_step.",
    },
    "overfit": {
        "reported_loss": "The loss as the model reports it, over the steps, in nats.",
        "batch_source": "The part of the pipeline that gave the batch.",
    },
}


def meaning(check: str, path: tuple[str, ...]) -> str:
    """Return what a number is, by its name or by the names that lead to it; "" if not known."""
    known = _described().get(check, {})
    told = known.get(path) or (_OWN.get(check, {}).get(path[0], "") if len(path) == 1 else "")
    return told if len(told) <= LENGTH_MAX else f"{told.partition('. ')[0].rstrip('.')}."


@cache
def _described() -> Mapping[str, Mapping[tuple[str, ...], str]]:
    """Return check -> path of names -> description, as the schema has them."""
    try:
        results = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]["result"]["allOf"]
        return {
            part["if"]["properties"]["check"]["const"]: dict(
                _walk(part["then"]["properties"]["numbers"], ())
            )
            for part in results
        }
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # a page is not lost for its words


def _walk(schema: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    found = [(path, str(schema["description"]))] if path and "description" in schema else []
    for name, part in schema.get("properties", {}).items():
        found += _walk(part, (*path, name))
    return found
