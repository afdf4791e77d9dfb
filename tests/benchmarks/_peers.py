"""Other people's GPTs at the sizes of ours, where they are installed.

transformers is used when it can be imported; nanoGPT when the environment variable NANOGPT_DIR
names a folder that holds its `model.py`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from minigpt.model import MiniGPTConfig

SHAPES = {
    "debug": (8, MiniGPTConfig(100, 32, 64, 4, 2)),
    "cpu": (12, MiniGPTConfig(65, 64, 128, 4, 4)),
    "small": (8, MiniGPTConfig(65, 256, 384, 6, 6)),
}


def make_nanogpt(config: MiniGPTConfig) -> Any | None:
    """Return nanoGPT's model in the shape of `config`, or None where it is not to be had."""
    folder = os.environ.get("NANOGPT_DIR")
    if folder is None:
        return None
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(folder) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    return module.GPT(
        module.GPTConfig(
            block_size=config.block_size,
            vocab_size=config.vocab_size,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_embd=config.embedding_dim,
            dropout=config.dropout,
            bias=True,
        )
    )


def make_transformers_gpt2(config: MiniGPTConfig) -> Any | None:
    """Return the GPT-2 of transformers in the shape of `config`, or None without transformers."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            n_embd=config.embedding_dim,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
