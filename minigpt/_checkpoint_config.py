"""The configuration in a checkpoint: read, and explained where it does not fit.

It is believed only where the file is large enough for what it claims. A made-up vocabulary
of 10**12 ids must end in an error message, not in a machine without memory.

Shapes: C embedding_dim.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields

from minigpt._checkpoint_contents import Contents
from minigpt._checkpoint_errors import CheckpointConfigError, corrupt
from minigpt.model import MiniGPTConfig

OTHER_SPELLINGS = {  # what other projects call the numbers of MiniGPTConfig
    "n_embd": "embedding_dim",
    "d_model": "embedding_dim",
    "hidden_size": "embedding_dim",
    "n_head": "num_heads",
    "n_layer": "num_layers",
    "context_length": "block_size",
    "max_seq_len": "block_size",
}
LAYER_LIMIT = 256  # layers that may be built, even if only to say that the file has fewer
NUMBER_LIMIT = 10**15  # in a configuration; what is beyond would not even fit into a message
CLAIM_LIMIT = 1000  # a configuration may ask for this many times the weights that are there


def make_config(contents: Contents, path: str | os.PathLike[str]) -> MiniGPTConfig:
    """Return the configuration in the file, if the file can hold what it claims."""
    numbers = contents.config
    known = {f.name: f.default is MISSING for f in fields(MiniGPTConfig)}
    unknown = [str(name) for name in numbers if name not in known]
    missing = [name for name, required in known.items() if required and name not in numbers]
    where = f"{os.fspath(path)}: its configuration"
    if unknown or missing:
        hints = [f"{name[:40]}{_suggest(name, known)}" for name in unknown[:8]]
        raise CheckpointConfigError(
            f"{where} must have the names of MiniGPTConfig, got unknown ones "
            f"({', '.join(hints) or 'none'}) and not {', '.join(missing) or 'any other'}"
        )
    if not all(isinstance(number, (int, float)) for number in numbers.values()):
        raise CheckpointConfigError(f"{where} must hold numbers only")
    for name, number in numbers.items():
        if abs(number) > NUMBER_LIMIT:
            raise corrupt(path, wanted=f"{name} <= {NUMBER_LIMIT:.0e}", found="a larger number")
    try:
        config = MiniGPTConfig(**numbers)
    except ValueError as error:
        raise CheckpointConfigError(f"{where} is none: {error}") from None
    _require_possible(config, contents, path)
    return config


def _suggest(name: str, known: Mapping[str, bool]) -> str:
    close = difflib.get_close_matches(name[:40], known, n=1)
    meant = OTHER_SPELLINGS.get(name) or (close[0] if close else None)
    return f": {meant} is meant?" if meant else ""


def _require_possible(
    config: MiniGPTConfig, contents: Contents, path: str | os.PathLike[str]
) -> None:
    """Refuse numbers far beyond the file's weights before a model of that size is built."""
    there = sum(tensor.numel() for tensor in contents.weights.values())
    C, expansion = config.embedding_dim, config.expansion_factor
    claimed = (2 * config.vocab_size + config.block_size) * C
    claimed += config.num_layers * (4 + 2 * expansion) * C * C  # the matrices only
    layer_limit = max(LAYER_LIMIT, len(contents.weights))
    if claimed > CLAIM_LIMIT * max(there, 1) or config.num_layers > layer_limit:
        raise corrupt(
            path,
            wanted=f"{claimed:.3g} weights in {config.num_layers:.3g} layers, as it claims",
            found=f"{there:,} in {len(contents.weights):,} tensors",
        )
