"""Real architectures in spirit, tiny: Llama with rotary positions, ALiBi, a state-space model.

Shapes: B batch, T time, C width, H heads, G key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.diagnostics.tiny import TinyGPT, causal_mix


class RMSNorm(nn.Module):
    """Llama's norm, computed in float32 at least."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        wide = x if x.dtype == torch.float64 else x.float()
        scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight


class Llama(nn.Module):
    """Rotary positions, grouped keys and values, SwiGLU, and on request Mistral's window."""

    inv_freq: Tensor

    def __init__(
        self,
        V: int = 19,
        C: int = 16,
        H: int = 4,
        G: int = 2,
        L: int = 2,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=V, max_position_embeddings=12, num_hidden_layers=L, sliding_window=window
        )
        self.H, self.G, self.D, self.window = H, G, C // H, window
        self.embed_tokens = nn.Embedding(V, C)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "input_norm": RMSNorm(C),
                    "q_proj": nn.Linear(C, C, bias=False),
                    "kv_proj": nn.Linear(C, 2 * G * self.D, bias=False),
                    "o_proj": nn.Linear(C, C, bias=False),
                    "mlp_norm": RMSNorm(C),
                    "up": nn.Linear(C, 2 * C, bias=False),
                    "gate": nn.Linear(C, 2 * C, bias=False),
                    "down": nn.Linear(2 * C, C, bias=False),
                }
            )
            for _ in range(L)
        )
        self.norm = RMSNorm(C)
        self.lm_head = nn.Linear(C, V, bias=False)
        frequencies = 10_000.0 ** (-torch.arange(0, self.D, 2) / self.D)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        """Return an object with .logits (B, T, V)."""
        T = input_ids.shape[1]
        angles = torch.arange(T, device=input_ids.device)[:, None] * self.inv_freq  # (T, D / 2)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = x + self._attend(layer, layer["input_norm"](x), angles)
            h = layer["mlp_norm"](x)
            x = x + layer["down"](functional.silu(layer["gate"](h)) * layer["up"](h))
        return SimpleNamespace(logits=self.lm_head(self.norm(x)))

    def _attend(self, layer: nn.ModuleDict, x: Tensor, angles: Tensor) -> Tensor:
        B, T, C = x.shape
        q = layer["q_proj"](x).view(B, T, self.H, self.D).transpose(1, 2)
        k, v = layer["kv_proj"](x).view(B, T, 2, self.G, self.D).unbind(2)  # (B, T, G, D)
        k, v = (part.transpose(1, 2).repeat_interleave(self.H // self.G, 1) for part in (k, v))
        i = torch.arange(T, device=x.device)
        visible = i[None, :] <= i[:, None]
        if self.window is not None:
            visible = visible & (i[None, :] > i[:, None] - self.window)
        mixed = functional.scaled_dot_product_attention(
            _rotate(q, angles), _rotate(k, angles), v, attn_mask=visible
        )
        return layer["o_proj"](mixed.transpose(1, 2).reshape(B, T, C))


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate (B, H, T, D) by angles (T, D / 2), half against half."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def alibi_mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix with a penalty for distance, a slope for each head (Press et al. 2022)."""
    H, T, D = queries.shape[1:]
    i = torch.arange(T, device=queries.device)
    distance = (i[:, None] - i[None, :]).to(queries.dtype)
    slopes = 2.0 ** -torch.arange(1, H + 1, device=queries.device, dtype=queries.dtype)
    scores = queries @ keys.transpose(2, 3) / math.sqrt(D) - slopes[:, None, None] * distance
    return scores.masked_fill(distance < 0, -math.inf).softmax(-1) @ values


class StateSpace(nn.Module):
    """A gated linear recurrence, as in Mamba: the state forgets at a rate that the token sets."""

    def __init__(self, V: int = 13, C: int = 8) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.rate = nn.Linear(C, C)
        self.head = nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x = self.embedding(ids)
        kept = self.rate(x).sigmoid()
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + (1 - kept[:, t]) * x[:, t]
            states.append(state)
        return self.head(torch.stack(states, 1))


class SineGPT(TinyGPT):
    """Fixed sines and cosines in a buffer (1, rows, C), as in Vaswani et al. 2017."""

    pe: Tensor

    def __init__(
        self, V: int = 19, *, exponent_divisor: float | None = None, rows: int = 64
    ) -> None:
        super().__init__(V, positions=False)
        C = self.tokens.embedding_dim
        even = torch.arange(0, C, 2)
        angles = torch.arange(rows)[:, None] * 10_000.0 ** (-even / (exponent_divisor or C))
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # (rows, C)
        self.register_buffer("pe", table[None])

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        x = self.tokens(ids) + self.pe[:, : ids.shape[1]].to(self.tokens.weight.dtype)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class OffsetGPT(TinyGPT):
    """OPT's position table: it starts at row 2 and is two rows longer than the block."""

    def __init__(self, V: int = 19, *, extra: int = 2) -> None:
        super().__init__(V)
        self.positions = nn.Embedding(12 + extra, self.tokens.embedding_dim)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]) + 2)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


__all__ = ["Llama", "OffsetGPT", "SineGPT", "StateSpace", "alibi_mix", "causal_mix"]
