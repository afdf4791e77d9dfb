"""Mini-GPT: a decoder-only transformer small enough to read in one sitting.

The architecture is GPT-2's: learned token and position embeddings, pre-norm blocks of causal
self-attention and a GELU feed-forward layer, a final norm and a linear head. The head is not
tied to the token embedding, so that every parameter has one job and one gradient.

Shapes: B batch, T time, C embedding_dim, H num_heads, D = C // H head size, V vocab_size.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from minigpt.attention import attend

INIT_STD = 0.02  # GPT-2 (Radford et al. 2019) and its released code: N(0, 0.02)
IGNORE_INDEX = -100  # torch's own default in cross_entropy: a target that is not scored


@dataclass(frozen=True)
class MiniGPTConfig:
    """The numbers that fix the architecture; stored in every checkpoint.

    vocab_size: number of token ids V; ids run from 0 to V - 1.
    block_size: the longest context T, in tokens.
    embedding_dim: width C of the residual stream; a multiple of num_heads.
    expansion_factor: the feed-forward layer is expansion_factor * C wide.
    dropout: probability in [0, 1), active in train mode only.

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
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "dropout":
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise ValueError(f"dropout must be a number, got {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} must be a whole number >= 1, got {value!r}")
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                f"embedding_dim must be a multiple of num_heads, "
                f"got {self.embedding_dim} and {self.num_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @classmethod
    def debug(cls, vocab_size: int, **changes: Any) -> MiniGPTConfig:
        """Return the debug size: block 32, dim 64, 4 heads, 2 layers; every check takes ms."""
        sizes: dict[str, Any] = {
            "block_size": 32,
            "embedding_dim": 64,
            "num_heads": 4,
            "num_layers": 2,
        }
        return cls(vocab_size=vocab_size, **(sizes | changes))

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dictionary that JSON can hold and `MiniGPTConfig(**d)` takes back."""
        return dataclasses.asdict(self)


class KeyValueCache:
    """Keys and values of the tokens already read, so that generation reads each token once.

    The buffers are allocated once at full length; `length` says how much of them is filled.
    Zeroed on purpose: memory that was never written may hold NaN, and NaN times a masked
    weight of 0 is still NaN.
    """

    def __init__(
        self, config: MiniGPTConfig, batch_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        head_size = config.embedding_dim // config.num_heads
        shape = (config.num_layers, batch_size, config.num_heads, config.block_size, head_size)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # (layers, B, H, block, D)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, H, T, D) after what is there; return all keys and values so far."""
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which position t reads positions 0..t and nothing later."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.embedding_dim, 3 * config.embedding_dim)
        self.output = nn.Linear(config.embedding_dim, config.embedding_dim)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        B, T, C = x.shape
        queries, keys, values = (
            part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)  # (B, H, T, D)
            for part in self.query_key_value(x).split(C, dim=2)
        )
        if cache is not None:
            keys, values = cache.extend(layer, keys, values)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(queries, keys, values, dropout=dropout)  # (B, H, T, D)
        merged = mixed.transpose(1, 2).reshape(B, T, C)
        return self.output_dropout(self.output(merged))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, applied to each position alone."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        hidden_dim = config.expansion_factor * config.embedding_dim
        self.expand = nn.Linear(config.embedding_dim, hidden_dim)
        self.output = nn.Linear(hidden_dim, config.embedding_dim)
        self.output_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        return self.output_dropout(self.output(functional.gelu(self.expand(x))))


class Block(nn.Module):
    """Attention, then feed-forward; each reads a normed copy and adds to the residual stream."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.embedding_dim)
        self.attention = CausalSelfAttention(config)
        self.feed_forward_norm = nn.LayerNorm(config.embedding_dim)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.attention(self.attention_norm(x), cache, layer)
        return x + self.feed_forward(self.feed_forward_norm(x))


class MiniGPT(nn.Module):
    """A causal language model over token ids.

    model(token_ids) -> (logits, None); model(token_ids, targets) -> (logits, mean loss in nats).
    """

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.position_embedding = nn.Embedding(config.block_size, config.embedding_dim)
        self.embedding_dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.embedding_dim)
        self.head = nn.Linear(config.embedding_dim, config.vocab_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights as GPT-2 does: N(0, 0.02), zero biases, scaled residual outputs."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 1:  # the gain of a norm
                nn.init.ones_(parameter)
            elif name.endswith("output.weight"):
                # GPT-2 paper, section 2.3: 2 * num_layers branches add to the residual stream, so
                # each is scaled by 1 / sqrt of their number to keep its variance at the output.
                nn.init.normal_(parameter, std=INIT_STD / math.sqrt(2 * self.config.num_layers))
            else:
                nn.init.normal_(parameter, std=INIT_STD)

    def forward(
        self,
        token_ids: Tensor,
        targets: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Score the next token at every position.

        token_ids: (B, T) int64 with 0 <= id < V and T <= block_size (less what the cache holds).
        targets: (B, T) int64, the token after each input token; -100 is not scored.
        Returns logits (B, T, V) and the mean cross-entropy in nats per scored target, or None.
        Raises ValueError when the shapes do not fit, IndexError (from torch) for an id >= V.
        """
        start = 0 if cache is None else cache.length
        self._require_shapes(token_ids, targets, start)
        positions = torch.arange(start, start + token_ids.shape[1], device=token_ids.device)
        x = self.token_embedding(token_ids) + self.position_embedding(positions)  # (B, T, C)
        x = self.embedding_dropout(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, cache, layer)
        if cache is not None:
            cache.length += token_ids.shape[1]
        logits = self.head(self.final_norm(x))  # (B, T, V)
        if targets is None:
            return logits, None
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX
        )
        return logits, loss

    def parameter_count(self) -> int:
        """Return the number of trainable numbers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _require_shapes(self, token_ids: Tensor, targets: Tensor | None, start: int) -> None:
        if token_ids.ndim != 2 or token_ids.shape[1] < 1:
            raise ValueError(
                f"token_ids must have shape (B, T) with T >= 1, got {tuple(token_ids.shape)}"
            )
        if start + token_ids.shape[1] > self.config.block_size:
            raise ValueError(
                f"at most block_size = {self.config.block_size} tokens fit, got "
                f"{token_ids.shape[1]} after {start} cached; crop the context to the last block"
            )
        if targets is not None and targets.shape != token_ids.shape:
            raise ValueError(
                f"targets must have the shape of token_ids, {tuple(token_ids.shape)}, "
                f"got {tuple(targets.shape)}"
            )
