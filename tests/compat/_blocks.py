"""Blocks of transformers that are built in another way than the textbook's, and healthy.

Shapes: B batch, T time, C width, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.diagnostics.tiny import Attention, Block, TinyGPT, causal_mix

C, H, L = 16, 2, 2


def with_blocks(V: int, make_block: Callable[[], nn.Module], **options: Any) -> TinyGPT:
    """Build a TinyGPT whose blocks are of another kind."""
    model = TinyGPT(V, **options)
    model.blocks = nn.ModuleList(make_block() for _ in range(L))
    return model


def mlp(hidden: int = 2 * C) -> nn.Module:
    """Build a feed-forward layer."""
    return nn.Sequential(nn.Linear(C, hidden), nn.GELU(), nn.Linear(hidden, C))


class PostNorm(Block):
    """The original order: the norm comes after the sum, as in Vaswani et al. 2017."""

    def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__(C, H, causal_mix)
        self.alpha = alpha
        with torch.no_grad():
            for layer in (self.attention.output, *self.mlp):
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(beta)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = self.norm1(self.alpha * x + self.attention(x))
        return self.norm2(self.alpha * x + self.mlp(x))


def deep_norm() -> nn.Module:
    """DeepNorm: a larger residual and smaller branches (Wang et al. 2022)."""
    return PostNorm(alpha=(2 * L) ** 0.25, beta=(8 * L) ** -0.25)


class Parallel(nn.Module):
    """Attention and feed-forward side by side after one norm, as in GPT-J."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(C), Attention(C, H, causal_mix), mlp()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        h = self.norm(x)
        return x + self.attention(h) + self.mlp(h)


class Sandwich(Block):
    """A norm before and after each branch, as in Gemma 2."""

    def __init__(self) -> None:
        super().__init__(C, H, causal_mix)
        self.after1, self.after2 = nn.LayerNorm(C), nn.LayerNorm(C)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.after1(self.attention(self.norm1(x)))
        return x + self.after2(self.mlp(self.norm2(x)))


class ReZero(nn.Module):
    """Branches that start at exactly zero (Bachlechner et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(C, H, causal_mix), mlp()
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.alpha * self.attention(x)
        return x + self.alpha * self.mlp(x)


class LayerScale(Block):
    """A small learned factor for each channel of a branch (Touvron et al. 2021)."""

    def __init__(self) -> None:
        super().__init__(C, H, causal_mix)
        self.gamma1 = nn.Parameter(torch.full((C,), 1e-4))
        self.gamma2 = nn.Parameter(torch.full((C,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.gamma1 * self.attention(self.norm1(x))
        return x + self.gamma2 * self.mlp(self.norm2(x))


class StochasticDepth(Block):
    """Whole branches are left out for some rows in train mode (Huang et al. 2016)."""

    def __init__(self, rate: float = 0.2) -> None:
        super().__init__(C, H, causal_mix)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self._drop(self.attention(self.norm1(x)))
        return x + self._drop(self.mlp(self.norm2(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.training:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * kept / (1 - self.rate)


class Checkpointed(Block):
    """Activations are computed anew in the backward pass instead of being kept."""

    def __init__(self) -> None:
        super().__init__(C, H, causal_mix)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        if self.training:
            return checkpoint(super().forward, x, use_reentrant=False)
        return super().forward(x)


class UnitOffsetNorm(nn.Module):
    """RMS norm whose weight is kept as its distance from one, as in Gemma."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1.0 + self.weight)


class GemmaBlock(nn.Module):
    """Norms of the kind above, and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = UnitOffsetNorm(), UnitOffsetNorm()
        self.attention = Attention(C, H, causal_mix)
        self.gate, self.up = (nn.Linear(C, 2 * C, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * C, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(functional.gelu(self.gate(h)) * self.up(h))


class NormedHeads(nn.Module):
    """A mix whose queries and keys are brought to length 1, with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((H, 1, 1), 8.0))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix (B, H, T, D)."""
        queries = functional.normalize(queries, dim=-1) * self.temperature
        return functional.scaled_dot_product_attention(
            queries, functional.normalize(keys, dim=-1), values, is_causal=True, scale=1.0
        )


class LearnedSinks(nn.Module):
    """A mix with one more score for each head that takes attention away, as in gpt-oss."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(H, 1, 1))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix (B, H, T, D)."""
        B, _, T, D = queries.shape
        scores = queries @ keys.transpose(2, 3) / math.sqrt(D)
        future = torch.ones(T, T, dtype=torch.bool, device=queries.device).triu(1)
        scores = torch.cat(
            [scores.masked_fill(future, -math.inf), self.sinks.expand(B, H, T, 1)], -1
        )
        return scores.softmax(-1)[..., :-1] @ values


class RelativeBias(nn.Module):
    """A mix with a learned bias for each distance and head, as in T5."""

    def __init__(self, distances: int = 12) -> None:
        super().__init__()
        self.bias = nn.Embedding(distances, H)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix (B, H, T, D)."""
        i = torch.arange(queries.shape[2], device=queries.device)
        distance = i[:, None] - i[None, :]
        bias = self.bias(distance.clamp(0, self.bias.num_embeddings - 1)).permute(2, 0, 1)
        bias = bias.masked_fill(distance < 0, -math.inf)[None]
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)


def retention_mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix without a softmax, fading with the distance, as in RetNet."""
    T, D = queries.shape[2:]
    i = torch.arange(T, device=queries.device)
    distance = (i[:, None] - i[None, :]).to(queries.dtype)
    fading = torch.where(distance >= 0, 0.9 ** distance.clamp(min=0), 0.0)  # (T, T)
    return (queries @ keys.transpose(2, 3) / math.sqrt(D) * fading) @ values


def sharp_mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix with scores over D instead of its root, as in muP."""
    return functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=1.0 / queries.shape[3]
    )


class Closures(nn.Module):
    """The feed-forward layer is a lambda over the block's own modules, as in minGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention = Attention(C, H, causal_mix)
        layers = nn.ModuleDict({"up": nn.Linear(C, 2 * C), "down": nn.Linear(2 * C, C)})
        self.mlp = layers
        self.mlp_forward = lambda x: layers["down"](functional.gelu(layers["up"](x)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp_forward(self.norm2(x))


class Quantized(nn.Linear):
    """Weights of -1, 0 and 1 in the forward pass, and a straight-through gradient (BitNet)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        scale = self.weight.abs().mean().clamp(min=1e-5)
        ternary = (self.weight / scale).round().clamp(-1, 1) * scale
        weight = self.weight + (ternary - self.weight).detach()
        return functional.linear(x, weight, self.bias)


class LowRank(nn.Module):
    """LoRA: a frozen layer and a trainable product of two thin matrices, one of them zero."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.base(x) + 2.0 * (x @ self.A.T) @ self.B.T


def quantized_block() -> nn.Module:
    """Build a block whose feed-forward layers are quantized."""
    block = Block(C, H, causal_mix)
    block.mlp[0], block.mlp[2] = Quantized(C, 2 * C), Quantized(2 * C, C)
    return block


def weight_normed_block() -> nn.Module:
    """Build a block whose layers are parametrized: weight norm, and an orthogonal projection."""
    block: Any = Block(C, H, causal_mix)
    block.mlp[0] = parametrizations.weight_norm(block.mlp[0])
    block.mlp[2] = parametrizations.weight_norm(block.mlp[2])
    block.attention.output = parametrizations.orthogonal(block.attention.output)
    return block


def spectral_block() -> nn.Module:
    """Build a block whose feed-forward layers have a largest singular value of 1."""
    block = Block(C, H, causal_mix)
    block.mlp[0] = parametrizations.spectral_norm(block.mlp[0])
    block.mlp[2] = parametrizations.spectral_norm(block.mlp[2])
    return block
