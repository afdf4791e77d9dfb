"""Tiny language models for tests: small enough to predict by hand, odd enough to matter.

Shapes: B batch, T time, C width, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LossOf = Callable[[Tensor, Tensor], Tensor]  # (logits (B, T, V), targets (B, T)) -> loss
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys, values (B, H, T, D) -> same


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats; -100 is not scored."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bigram(nn.Module):
    """A table: the logits of the next token depend on the last token only."""

    def __init__(self, V: int = 11, loss_of: LossOf = cross_entropy, std: float = 1.0) -> None:
        super().__init__()
        self.vocab_size = V
        self.table = nn.Embedding(V, V)
        self.loss_of = loss_of
        with torch.no_grad():
            self.table.weight.mul_(std)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        logits = self.table(ids)
        return logits, None if targets is None else self.loss_of(logits, targets)


def causal_mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix values as a causal head does."""
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def masked_mix(allowed: Callable[[Tensor, Tensor], Tensor], fill: float = -math.inf) -> Mix:
    """Return a mix in which query i reads key j where allowed(i, j); else the score is `fill`."""

    def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        T = queries.shape[2]
        i = torch.arange(T, device=queries.device)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, T)
        scores = scores.masked_fill(~allowed(i[:, None], i[None, :]), fill)
        return scores.softmax(-1) @ values

    return mix


class Attention(nn.Module):
    """Multi-head self-attention whose mixing is given."""

    def __init__(self, C: int, H: int, mix: Mix) -> None:
        super().__init__()
        self.H, self.mix = H, mix
        self.qkv = nn.Linear(C, 3 * C)
        self.output = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        B, T, C = x.shape
        q, k, v = (
            p.view(B, T, self.H, C // self.H).transpose(1, 2) for p in self.qkv(x).split(C, 2)
        )
        return self.output(self.mix(q, k, v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, C: int, H: int, mix: Mix) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention = Attention(C, H, mix)
        self.mlp = nn.Sequential(nn.Linear(C, 2 * C), nn.ReLU(), nn.Linear(2 * C, C))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    """A GPT with PyTorch's default initialisation and parts that can be swapped."""

    def __init__(
        self,
        V: int = 19,
        *,
        C: int = 16,
        H: int = 2,
        L: int = 2,
        block: int = 12,
        mix: Mix = causal_mix,
        loss_of: LossOf = cross_entropy,
        std: float | None = None,
        positions: bool = True,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=V, block_size=block)
        self.loss_of = loss_of
        self.tokens = nn.Embedding(V, C)
        self.positions = nn.Embedding(block, C) if positions else None
        self.blocks = nn.ModuleList(Block(C, H, mix) for _ in range(L))
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        if std is not None:
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=std)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        logits = self.head(self.hidden(ids))
        return logits, None if targets is None else self.loss_of(logits, targets)


class Recurrent(nn.Module):
    """A GRU language model that returns logits only."""

    def __init__(self, V: int = 13, C: int = 8, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.rnn = nn.GRU(C, C, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(C * (1 + bidirectional), V)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.head(self.rnn(self.embedding(x))[0])


class Convolution(nn.Module):
    """One convolution over time: causal with left padding, leaking with padding on both sides."""

    def __init__(self, V: int = 13, C: int = 8, *, width: int = 3, left: int | None = None) -> None:
        super().__init__()
        self.vocab_size, self.width = V, width
        self.left = width - 1 if left is None else left
        self.embedding = nn.Embedding(V, C)
        self.conv = nn.Conv1d(C, C, width)
        self.head = nn.Linear(C, V)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        padding = (self.left, self.width - 1 - self.left)
        h = functional.pad(self.embedding(x).transpose(1, 2), padding)
        return self.head(torch.tanh(self.conv(h)).transpose(1, 2))


class HFStyle(nn.Module):
    """A model called as Hugging Face's: labels equal the inputs, the shift is inside."""

    def __init__(self, core: nn.Module | None = None, V: int = 19) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=V, n_positions=12)
        self.core = core or TinyGPT(V)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        """Return an object with .logits and .loss."""
        logits = self.core(input_ids)[0]
        loss = None if labels is None else cross_entropy(logits[:, :-1], labels[:, 1:])
        return SimpleNamespace(logits=logits, loss=loss)


class MixtureOfExperts(nn.Module):
    """Top-1 routing over four experts with a load-balancing term; the last one may be shut."""

    def __init__(self, V: int = 13, C: int = 8, *, shut: bool = False, aux: float = 0.0) -> None:
        super().__init__()
        self.vocab_size, self.aux = V, aux
        self.embedding = nn.Embedding(V, C)
        self.router = nn.Linear(C, 4)
        self.experts = nn.ModuleList(nn.Linear(C, C) for _ in range(4))
        self.head = nn.Linear(C, V)
        if shut:
            with torch.no_grad():
                self.router.bias[3] = -5.0

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        x = self.embedding(ids)
        weights = self.router(x).softmax(-1)  # (B, T, 4)
        chosen = weights.argmax(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number
            if here.any():
                mixed[here] = weights[here][:, number : number + 1] * expert(x[here])
        logits = self.head(x + mixed)
        if targets is None:
            return logits, None
        balance = (
            4 * (weights.mean((0, 1)) * functional.one_hot(chosen, 4).double().mean((0, 1))).sum()
        )
        return logits, cross_entropy(logits, targets) + self.aux * balance.to(logits.dtype)


def random_pair(V: int, B: int = 5, T: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets) cut from random ids, shifted by one."""
    ids = torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
