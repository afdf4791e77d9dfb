"""A reference Mini-GPT: character tokenizer, model, training, checkpoints, generation.

Names load on first use, so that `python -m minigpt.train --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigpt.batches import get_batch
    from minigpt.checkpoint import (
        Checkpoint,
        CheckpointConfigError,
        CheckpointCorruptError,
        CheckpointError,
        CheckpointTokenizerError,
        load_checkpoint,
        save_checkpoint,
    )
    from minigpt.device import get_device
    from minigpt.fingerprint import tokenizer_fingerprint
    from minigpt.generate import generate
    from minigpt.model import MiniGPT, MiniGPTConfig
    from minigpt.optimizer import make_optimizer, move_optimizer_to_device
    from minigpt.seed import set_seed
    from minigpt.tokenizer import CharTokenizer

_HOMES = {
    "CharTokenizer": "tokenizer",
    "Checkpoint": "checkpoint",
    "CheckpointConfigError": "checkpoint",
    "CheckpointCorruptError": "checkpoint",
    "CheckpointError": "checkpoint",
    "CheckpointTokenizerError": "checkpoint",
    "MiniGPT": "model",
    "MiniGPTConfig": "model",
    "generate": "generate",
    "get_batch": "batches",
    "get_device": "device",
    "load_checkpoint": "checkpoint",
    "make_optimizer": "optimizer",
    "move_optimizer_to_device": "optimizer",
    "save_checkpoint": "checkpoint",
    "set_seed": "seed",
    "tokenizer_fingerprint": "fingerprint",
}

__all__ = [
    "CharTokenizer",
    "Checkpoint",
    "CheckpointConfigError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointTokenizerError",
    "MiniGPT",
    "MiniGPTConfig",
    "generate",
    "get_batch",
    "get_device",
    "load_checkpoint",
    "make_optimizer",
    "move_optimizer_to_device",
    "save_checkpoint",
    "set_seed",
    "tokenizer_fingerprint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"minigpt.{_HOMES[name]}"), name)
    globals()[name] = value  # also puts the function `generate` over the submodule of that name
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
