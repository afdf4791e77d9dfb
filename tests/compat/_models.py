"""Whole models that are healthy and look odd: other designs, other outputs, other wrappings.

Shapes: B batch, T time, C width, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from minigpt import MiniGPT, MiniGPTConfig
from tests.compat._blocks import LowRank, with_blocks
from tests.diagnostics.tiny import Block, TinyGPT, causal_mix, cross_entropy

C = 16


# ---- other designs -------------------------------------------------------------------------


class LSTM(nn.Module):
    """Two layers with dropout between them, one initial state that is learned."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.lstm = nn.LSTM(C, C, num_layers=2, dropout=0.1, batch_first=True)
        self.start = nn.Parameter(torch.zeros(2, 1, C))
        self.head = nn.Linear(C, V)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        start = self.start.expand(-1, ids.shape[0], -1).contiguous()
        logits = self.head(self.lstm(self.embedding(ids), (start, torch.zeros_like(start)))[0])
        return logits, None if targets is None else cross_entropy(logits, targets)


class WaveNet(nn.Module):
    """Gated dilated convolutions, padded on the left: 1 + 1 + 2 + 4 tokens are seen."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.layers = nn.ModuleList(nn.Conv1d(C, 2 * C, 2, dilation=d) for d in (1, 2, 4))
        self.head = nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x = self.embedding(ids).transpose(1, 2)  # (B, C, T)
        for layer, dilation in zip(self.layers, (1, 2, 4), strict=True):
            signal, gate = layer(functional.pad(x, (dilation, 0))).chunk(2, 1)
            x = x + signal.tanh() * gate.sigmoid()
        return self.head(x.transpose(1, 2))


class FixedWindow(nn.Module):
    """The last three embeddings side by side, and one hidden layer (Bengio et al. 2003)."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V + 1, C)  # the last one stands before the first token
        self.hidden, self.head = nn.Linear(3 * C, 2 * C), nn.Linear(2 * C, V)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        padded = functional.pad(ids, (2, 0), value=self.vocab_size)
        x = self.embedding(padded.unfold(1, 3, 1)).flatten(2)  # (B, T, 3 C)
        logits = self.head(torch.tanh(self.hidden(x)))
        return logits, None if targets is None else cross_entropy(logits, targets)


class TokenShift(nn.Module):
    """A recurrence with decay over keys and values, and inputs mixed with the token before."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.vocab_size = V
        self.embedding = nn.Embedding(V, C)
        self.mix = nn.Parameter(torch.full((C,), 0.5))
        self.key, self.value, self.gate = (nn.Linear(C, C, bias=False) for _ in range(3))
        self.decay = nn.Parameter(torch.linspace(-3.0, 1.0, C))
        self.head = nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x = self.embedding(ids)
        before = functional.pad(x, (0, 0, 1, -1))
        mixed = before + self.mix * (x - before)
        weight = self.key(mixed).clamp(max=10.0).exp()
        kept = torch.exp(-self.decay.exp())
        top, bottom, outputs = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            top = kept * top + weight[:, t] * self.value(mixed)[:, t]
            bottom = kept * bottom + weight[:, t]
            outputs.append(top / bottom)
        return self.head(x + self.gate(mixed).sigmoid() * torch.stack(outputs, 1))


class TopTwoExperts(nn.Module):
    """A feed-forward layer of four experts, of which each token uses two, mixed by the router."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(C)
        self.router = nn.Linear(C, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        h = self.norm(x)
        best, chosen = self.router(h).topk(2, dim=-1)
        weights = torch.zeros_like(self.router(h)).scatter(-1, chosen, best.softmax(-1))
        outputs = torch.stack([expert(h).tanh() for expert in self.experts], -1)  # (B, T, C, 4)
        return x + (outputs * weights[:, :, None]).sum(-1)


class Shared(TinyGPT):
    """One block, used three times, and embeddings in two factors, as in ALBERT."""

    def __init__(self, V: int) -> None:
        super().__init__(V, L=1)
        self.tokens = nn.Embedding(V, 6)
        self.widen = nn.Linear(6, C, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        assert self.positions is not None
        x = self.widen(self.tokens(ids)) + self.positions(
            torch.arange(ids.shape[1], device=ids.device)
        )
        for _ in range(3):
            x = self.blocks[0](x)
        return self.norm(x)


class StockEncoder(nn.Module):
    """torch's own encoder with a causal mask and its default dropout."""

    def __init__(self, V: int, *, norm_first: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=V, block_size=12)
        self.embedding, self.positions = nn.Embedding(V, C), nn.Embedding(12, C)
        layer = nn.TransformerEncoderLayer(C, 2, 2 * C, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(C, V)

    def forward(self, src: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        T = src.shape[1]
        x = self.embedding(src) * math.sqrt(C) + self.positions(torch.arange(T, device=src.device))
        mask = nn.Transformer.generate_square_subsequent_mask(T, src.device, x.dtype)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


class Prefix(TinyGPT):
    """Prefix tuning: three trained vectors stand before the text of a frozen model."""

    def __init__(self, V: int) -> None:
        super().__init__(V, positions=False)
        self.requires_grad_(False)
        self.prefix = nn.Parameter(torch.randn(1, 3, C))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        x = torch.cat([self.prefix.expand(len(ids), -1, -1), self.tokens(ids)], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 3:]


class NoisyEmbeddings(TinyGPT):
    """Noise on the embeddings in train mode (NEFTune, Jain et al. 2023)."""

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        assert self.positions is not None
        x = self.tokens(ids)
        if self.training:
            x = x + (torch.rand_like(x) * 2 - 1) * 5.0 / math.sqrt(ids.shape[1] * C)
        x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Autocast(TinyGPT):
    """The forward pass runs in bfloat16 by autocast; the logits come back in float32."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.head(self.hidden(ids))
        logits = logits.float()
        return logits, None if targets is None else self.loss_of(logits, targets)


class Capped(TinyGPT):
    """Logits between -30 and 30, as in Gemma 2."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        logits = 30.0 * torch.tanh(self.head(self.hidden(ids)) / 30.0)
        return logits, None if targets is None else self.loss_of(logits, targets)


class MuP(TinyGPT):
    """A zero-initialised readout that is divided by the width (Yang et al. 2022)."""

    def __init__(self, V: int, **options: Any) -> None:
        super().__init__(V, **options)
        nn.init.zeros_(self.head.weight)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the head (B, T, C)."""
        return super().hidden(ids) * (4.0 / C)


class MultiToken(TinyGPT):
    """A second head that predicts the token after the next; its loss is added with weight 0.3."""

    def __init__(self, V: int) -> None:
        super().__init__(V)
        self.second = nn.Linear(C, V, bias=False)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        hidden = self.hidden(ids)
        logits = self.head(hidden)
        if targets is None:
            return logits, None
        further = cross_entropy(self.second(hidden)[:, :-1], targets[:, 1:])
        return logits, cross_entropy(logits, targets) + 0.3 * further


# ---- other outputs -------------------------------------------------------------------------


class LastOnly(TinyGPT):
    """Without targets only the last position comes back, as in nanoGPT."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss), or (logits (B, 1, V), None)."""
        hidden = self.hidden(ids)
        if targets is None:
            return self.head(hidden[:, [-1]]), None
        logits = self.head(hidden)
        return logits, self.loss_of(logits, targets)


class DictOutput(TinyGPT):
    """Returns a dictionary."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        """Return {"loss": scalar or None, "logits": (B, T, V)}."""
        logits, loss = super().forward(ids, labels)
        return {"loss": loss, "logits": logits}


class ObjectOutput(TinyGPT):
    """Returns an object, and takes an attention mask in second place."""

    def forward(  # type: ignore[override]
        self, ids: Tensor, attention_mask: Tensor | None = None, targets: Tensor | None = None
    ) -> Any:
        """Return an object with .logits and .loss."""
        logits, loss = super().forward(ids, targets)
        return SimpleNamespace(logits=logits, loss=loss, past_key_values=None)


class LossFirst(TinyGPT):
    """Returns (loss, logits), and the logits of a padded vocabulary shut with -inf."""

    def __init__(self, V: int, W: int) -> None:
        super().__init__(W)
        self.V = V

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        """Return (loss or None, logits (B, T, W))."""
        logits, _ = super().forward(ids)
        extra = torch.arange(logits.shape[-1], device=ids.device) >= self.V
        logits = logits.masked_fill(extra, -math.inf)
        return (None if targets is None else cross_entropy(logits, targets)), logits


class Asserting(TinyGPT):
    """Refuses rows that are longer than the block, in words."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits (B, T, V), loss or None)."""
        T, block = ids.shape[1], self.config.block_size
        assert block >= T, f"cannot read {T} tokens, the block is {block}"
        return super().forward(ids, targets)


# ---- other wrappings -----------------------------------------------------------------------


def zero_head(V: int) -> nn.Module:
    """Build a model whose loss is exactly ln V at first."""
    model = TinyGPT(V)
    nn.init.zeros_(model.head.weight)
    return model


def low_rank(V: int) -> nn.Module:
    """Build a frozen model with trainable LoRA matrices in attention and feed-forward layers."""
    model = TinyGPT(V).requires_grad_(False)
    block: Any
    for block in model.blocks:
        block.attention.qkv = LowRank(block.attention.qkv)
        block.mlp[0] = LowRank(block.mlp[0])
    return model


def half_frozen(V: int) -> nn.Module:
    """Build a model whose embeddings and first block are frozen."""
    model = TinyGPT(V)
    assert model.positions is not None
    for module in (model.tokens, model.positions, model.blocks[0]):
        module.requires_grad_(False)
    return model


def with_padding_row(V: int) -> nn.Module:
    """Build a model one row of whose embedding is zero and stays so."""
    model = TinyGPT(V)
    model.tokens = nn.Embedding(V, C, padding_idx=0)
    return model


def with_average(V: int) -> nn.Module:
    """Build a model that carries a frozen moving average of its own weights."""
    model = TinyGPT(V)
    model.average = copy.deepcopy(model).requires_grad_(False)
    return model


def materialised(V: int) -> nn.Module:
    """Build on the meta device, then give every tensor its memory and its first values."""
    with torch.device("meta"):
        model = TinyGPT(V)
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm)):
            module.reset_parameters()
    return model


def with_dropout(V: int) -> nn.Module:
    """Build the course's own model with dropout."""
    return MiniGPT(MiniGPTConfig(V, 12, C, 2, 2, dropout=0.2))


def top_two(V: int) -> nn.Module:
    """Build a transformer with mixtures of experts after its attention."""
    return with_blocks(V, lambda: nn.Sequential(Block(C, 2, causal_mix), TopTwoExperts()))
