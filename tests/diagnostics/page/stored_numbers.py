"""A stored report whose numbers fit on paper, with every number that a picture is made of."""

from __future__ import annotations

import copy
from typing import Any

NUMBERS: dict[str, dict[str, Any]] = {
    "range": {
        "histogram": {
            "vocab_size": 4,
            "bins": [[0, 0, 10], [1, 1, 30], [2, 2, 60], [3, 3, 0]],
            "unused": 1,
            "top": [[2, 60], [1, 30], [0, 10]],
            "pieces": {"2": " ", "1": "\n"},
            "name": "train_ids",
        }
    },
    "shift": {
        "wanted": 1,
        "sample": {
            "source": "batch",
            "rows": [0, 5],
            "first_column": 0,
            "inputs": [[0, 1, 2], [1, 2, 2]],
            "targets": [[1, 2, 3], [2, 2, 0]],
            "pieces": {"0": "a", "1": "\n", "2": " ", "3": "\t"},
        },
    },
    "forward_hooks": {
        "rms": {"head": 2.0, "blocks.10": 0.5, "blocks.2": 0.25, "token_embedding": 0.03}
    },
    "initial_loss": {
        "judged_as": "fresh",
        "loss_random": 1.4,
        "baseline": 1.386,
        "own_batch": {"loss": 1.41, "unigram": 0.9, "uniform": 1.386},
    },
    "causal_independence": {
        "influence": {"length": 3, "step": 1, "rows": [[1.0, 0, 0], [0.5, 1, 0], [0.1, 0.2, 1]]},
        "judged_pairs": 3,
        "leaking_pairs": 0,
        "worst_leak": 0.0,
        "length": 3,
        "limit": 1e-9,
        "weight_scale": 1.0,
    },
    "gradients": {
        "norms": {"head.weight": 0.5, "blocks.0.mlp.weight": 0.25, "blocks.0.mlp.bias": 0.125},
        "missing": [],
        "zero": [],
        "frozen": 0,
    },
    "optimizer": {"update_to_weight_by_name": {"head.weight": 0.02, "blocks.0.mlp.bias": 0.001}},
    "schedule": {
        "curve": {"step": [0, 4, 8, 12], "rate": [1e-4, 5e-4, 9e-4, 1e-4]},
        "peak": 1e-3,
        "peak_step": 9,
        "last": 1e-4,
        "max_steps": 13,
        "rates_in_use": [[1e-3, 1e-3], [1e-3, 1e-3]],
        "asked_inside": False,
    },
    "overfit": {
        "curve": {"step": [0, 5, 10], "loss": [1.4, 0.7, 0.05], "accuracy": [0.25, 0.5, 0.9]},
        "reported_loss": [1.4, 0.8, 0.06],
        "initial_loss": 1.4,
        "final_loss": 0.05,
        "final_accuracy": 0.9,
        "learning_rate": 0.003,
        "floor_loss": 0.04,
        "ceiling_accuracy": 0.9,
        "unigram_loss": 0.9,
        "uniform_loss": 1.386,
        "shape": [2, 10],
    },
    "honesty": {
        "uniform": {"entropy": 1.386, "recomputed": 1.39, "reported": 1.39, "honest": 1.39,
                    "steps": 3, "curve": [1.4, 1.4, 1.39]},
        "chain": {"entropy": 0.693, "recomputed": 0.7, "reported": 0.71, "honest": 0.7,
                  "steps": 3, "curve": [1.4, 0.9, 0.7]},
    },
}  # fmt: skip


def stored(check: str = "", *, status: str = "pass", reason: str = "", **numbers: Any) -> Any:
    """Return the report, with some numbers of one check changed; a value of ... takes one out."""
    content = copy.deepcopy(NUMBERS)
    for key, value in numbers.items():
        if value is ...:
            content[check].pop(key)
        else:
            content[check][key] = value
    return {
        "results": [
            {
                "check": name,
                "status": status if name == check else "pass",
                "reason": (reason if name == check else "") or f"{name}.ok",
                "numbers": entry,
            }
            for name, entry in content.items()
        ]
    }
