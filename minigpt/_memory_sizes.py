"""What memory depends on: the sizes of the model, and what is done with it. Imports no torch.

Shapes: B batch, T time, C embedding_dim, H num_heads, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from minigpt._training_state import MATMUL_PRECISIONS

if TYPE_CHECKING:
    from minigpt.model import MiniGPTConfig

MODES = ("train", "inference", "generation")
COUNT_LIMIT = 10**9  # of anything; larger numbers are slips of the finger
DTYPES = ("float32", "bfloat16")
DEVICES = ("cpu", "cuda", "mps")
OPTIMIZER_STATES = {  # numbers kept per parameter
    "adamw": 2,  # both moments
    "sgd-momentum": 1,  # the momentum buffer
    "sgd": 0,
}


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The numbers of a MiniGPTConfig, for a program that does not wait for torch.

    Raises ValueError naming the field that does not fit.
    """

    vocab_size: int
    block_size: int
    embedding_dim: int
    num_heads: int
    num_layers: int
    expansion_factor: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "embedding_dim", "num_heads", "num_layers"):
            _require_count(name, getattr(self, name))
        _require_count("expansion_factor", self.expansion_factor)
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                "embedding_dim must be a multiple of num_heads, "
                f"got {self.embedding_dim} and {self.num_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


Sizes: TypeAlias = "MiniGPTConfig | ModelSizes"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is done with the model.

    mode: "train" is the trainer with its evaluations, "inference" one scored batch without
        gradients, "generation" a full block with the cache of keys and values.
    batch_size: rows B on each process and in each of the accumulation_steps.
    dtype: "bfloat16" is autocast in training (the weights stay float32), and weights of that type
        otherwise.
    matmul_precision: as in `TrainSettings`; with "medium" short blocks may be computed otherwise.
    evaluation_windows: as in `TrainSettings`; 0 is all of them, -1 leaves the evaluation out.
    checkpointed: each block keeps its input only and is computed once more in the backward pass.
    Raises ValueError naming the field that does not fit.
    """

    batch_size: int
    mode: str = "train"
    accumulation_steps: int = 1
    dtype: str = "float32"
    matmul_precision: str = "highest"
    optimizer: str = "adamw"
    processes: int = 1
    device: str = "cpu"
    evaluation_windows: int = 240
    checkpointed: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulation_steps", "processes"):
            _require_count(name, getattr(self, name))
        choices = {
            "mode": MODES,
            "dtype": DTYPES,
            "matmul_precision": MATMUL_PRECISIONS,
            "optimizer": tuple(OPTIMIZER_STATES),
            "device": DEVICES,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {_either(known)}, got {getattr(self, name)!r}")
        if self.evaluation_windows < -1:
            raise ValueError(f"evaluation_windows must be >= -1, got {self.evaluation_windows}")

    @property
    def effective_batch(self) -> int:
        """Rows whose gradients make one update: per process x processes x accumulation."""
        return self.batch_size * self.processes * self.accumulation_steps


def parameter_counts(sizes: Sizes) -> dict[str, int]:
    """Return how many parameters each part of a MiniGPT has; the sum is all of them."""
    V, T, C = sizes.vocab_size, sizes.block_size, sizes.embedding_dim
    hidden = sizes.expansion_factor * C
    attention = 2 * C + (C + 1) * 3 * C + (C + 1) * C  # its norm, one matrix for q k v, the output
    feed_forward = 2 * C + (C + 1) * hidden + (hidden + 1) * C
    return {
        "token embedding": V * C,
        "position embedding": T * C,
        "attention": sizes.num_layers * attention,
        "feed-forward": sizes.num_layers * feed_forward,
        "final norm": 2 * C,
        "head": V * C,
    }


def parameter_count(sizes: Sizes) -> int:
    """Return the number of parameters, all trainable; exactly `MiniGPT.parameter_count()`."""
    return sum(parameter_counts(sizes).values())


def tensor_count(sizes: Sizes) -> int:
    """Return how many parameter tensors there are; the optimizer counts its steps for each."""
    return 2 + 12 * sizes.num_layers + 2 + 1  # embeddings; a block's 6 modules; final norm; head


def matrix_count(sizes: Sizes) -> int:
    """Return the numbers in the matrices of the linear layers, which autocast copies."""
    C = sizes.embedding_dim
    blocks = sizes.num_layers * (4 + 2 * sizes.expansion_factor) * C * C
    return blocks + sizes.vocab_size * C


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_LIMIT:
        raise ValueError(f"{name} must be a whole number in 1..{COUNT_LIMIT}, got {value!r}")


def _either(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1]
