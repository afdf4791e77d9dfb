"""Rows of the table: positions, learned, sinusoidal and rotary, and the positions of pads.

Shapes: B batch, T time, C width, H heads, D head size, S keys (cached ones first), V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._lab import Lab, retype
from exercises.break_causal_independence import WrittenOutAttention
from exercises.break_padding import PaddedAttention, PaddedGPT
from minigpt import MiniGPT, MiniGPTConfig
from minigpt.model import CausalSelfAttention, KeyValueCache
from tests.catalogue._row import Build, Caught, Row, Unseen
from tests.catalogue.attention import generate_without_cache
from tests.diagnostics.architectures import Llama, SineGPT

PAD = 0  # in rows that are padded; no token of theirs


def with_positions(table: type[nn.Embedding]) -> Build:
    """Return a build of the lab's model with another class of position embedding."""

    def edit(model: MiniGPT) -> nn.Module:
        model.position_embedding.__class__ = table
        return model

    return lambda lab: lab.pipeline(edit_model=edit)


class NotAdded(MiniGPT):
    """The position embedding is computed and not added."""

    def forward(
        self,
        token_ids: Tensor,
        targets: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) and the loss, or None without targets."""
        self.position_embedding(torch.arange(token_ids.shape[1], device=token_ids.device))
        x = self.token_embedding(token_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class FromTwo(nn.Embedding):
    """Positions start at 2, as in a library that keeps two rows for padding."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up rows (T, C)."""
        return super().forward(input + 2)


def mask_of(size_of: Callable[[MiniGPTConfig], int]) -> Build:
    """A buffer of the causal mask whose size comes from a field of the configuration."""

    class Buffered(WrittenOutAttention):
        tril: Tensor

        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            T = queries.shape[2]
            scores = queries @ keys.transpose(2, 3) * queries.shape[3] ** -0.5
            scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
            return scores.softmax(-1) @ values

    def build(lab: Lab) -> Pipeline:
        config = MiniGPTConfig.debug(lab.tokenizer.vocab_size, embedding_dim=16)

        def make_model() -> nn.Module:
            model = MiniGPT(config)
            for block in model.blocks:
                size = size_of(config)
                attention: Any = block.attention
                attention.register_buffer("tril", torch.ones(size, size).tril())
            return retype(model, CausalSelfAttention, Buffered)

        return lab.pipeline(model=make_model(), make_model=make_model)

    return build


def sines(divisor: float | None) -> Build:
    """A fixed table of sines; `divisor` takes the place of the width in the exponent."""
    return lambda lab: Pipeline(SineGPT(exponent_divisor=divisor))


def sine_generation(*, crop: bool) -> Build:
    """Greedy text from a model with a table of sines that goes beyond the trained block."""

    def generate(model: Any, prompt: Tensor, count: int) -> Tensor:
        ids, block = prompt, model.config.block_size
        with torch.no_grad():
            for _ in range(count):
                read = ids[:, -block:] if crop else ids
                ids = torch.cat([ids, model(read)[0][:, -1:].argmax(-1)], 1)
        return ids

    return lambda lab: Pipeline(SineGPT(), generate=generate)


def rotary_bfloat16(*, frequencies: torch.dtype) -> Build:
    """The whole model is cast to bfloat16, and with it the buffer of rotary frequencies."""

    def build(lab: Lab) -> Pipeline:
        model = Llama(C=128, H=2).bfloat16()
        exact = Llama(C=128, H=2).inv_freq
        model.inv_freq = exact.to(frequencies)
        return Pipeline(model, block_size=2048)

    return build


def left_padded(*, count_pads: bool) -> Callable[[Lab], Pipeline]:
    """Positions are column numbers in a model that takes an attention_mask."""

    class Columns(PaddedGPT):
        def forward(  # type: ignore[override]
            self,
            token_ids: Tensor,
            targets: Tensor | None = None,
            attention_mask: Tensor | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            keep = torch.ones_like(token_ids) if attention_mask is None else attention_mask
            columns = torch.arange(token_ids.shape[1], device=token_ids.device)
            x = self.token_embedding(token_ids) + self.position_embedding(columns)
            for block in self.blocks:
                block.attention.keep = keep.bool()  # type: ignore[union-attr]
                x = block(x)
            logits = self.head(self.final_norm(x))
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def edit(model: MiniGPT) -> nn.Module:
        retype(model, MiniGPT, Columns if count_pads else PaddedGPT)
        return retype(model, CausalSelfAttention, PaddedAttention)

    return lambda lab: lab.pipeline(edit_model=edit, generate=generate_without_cache)


def left_padded_batch(*, pass_mask: bool) -> Build:
    """The tokenizer pads on the left and gives a mask; the loop calls model(ids) without it."""

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        mask = (inputs != PAD).long() if pass_mask else None
        logits, loss = model(inputs, targets, attention_mask=mask)
        return logits, loss

    def build(lab: Lab) -> Pipeline:
        ids = lab.train_ids[: 4 * 16].view(4, 16).clone()
        ids[ids == PAD] = PAD + 1
        mask = torch.ones_like(ids)
        mask[1, :5], mask[3, :9] = 0, 0
        ids = ids.where(mask == 1, PAD)
        labels = functional.pad(ids[:, 1:], (0, 1), value=-100).where(mask == 1, -100)
        batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        healthy = left_padded(count_pads=False)(lab)
        return dataclasses.replace(
            healthy, batch=batch, get_batch=None, forward=forward, pad_id=PAD
        )

    return build


class RotaryDecoder(nn.Module):
    """One layer of attention with rotary positions, and a cache that the caller keeps."""

    def __init__(self, vocab_size: int = 19, C: int = 16) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.tokens = nn.Embedding(vocab_size, C)
        self.query_key_value = nn.Linear(C, 3 * C)
        self.head = nn.Linear(C, vocab_size)

    def forward(self, ids: Tensor, *, offset: int = 0, cache: list[Tensor] | None = None) -> Tensor:
        """Return logits (B, T, V) of tokens that stand at offset, offset + 1 and so on."""
        x = self.tokens(ids)
        T = ids.shape[1]
        queries, keys, values = self.query_key_value(x).chunk(3, -1)
        queries, keys = (_rotated(part, offset) for part in (queries, keys))
        if cache is not None:
            keys, values = (
                torch.cat([*old, new], 1)
                for old, new in zip(
                    ([cache[0]], [cache[1]]) if cache else ([], []), (keys, values), strict=True
                )
            )
            cache[:] = [keys, values]
        visible = torch.ones(T, keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - T)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        return self.head(x + mixed)


def _rotated(x: Tensor, offset: int) -> Tensor:
    """Rotate (B, T, C) by the positions from offset on."""
    half = x.shape[-1] // 2
    places = torch.arange(offset, offset + x.shape[1], device=x.device)
    angles = places[:, None] * 100.0 ** (-torch.arange(half) / half)  # (T, C / 2)
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def cached_decoding(*, prompt_twice: bool) -> Build:
    """The offset of the next token grows by the prompt's length at every step."""

    def generate(model: Any, prompt: Tensor, count: int) -> Tensor:
        ids, read, offset = prompt, prompt, 0
        cache: list[Tensor] = []
        with torch.no_grad():
            for _ in range(count):
                logits = model(read, offset=offset, cache=cache)
                offset += prompt.shape[1] if prompt_twice else read.shape[1]
                read = logits[:, -1:].argmax(-1)
                ids = torch.cat([ids, read], 1)
        return ids

    return lambda lab: Pipeline(RotaryDecoder(), generate=generate)


ROWS: tuple[Row, ...] = (
    Caught(
        "positions-missing",
        "positions",
        "positions.unused_table",
        lambda lab: lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, NotAdded)),
    ),
    Caught(
        "position-table-offset",
        "positions",
        "positions.table_too_small",
        with_positions(FromTwo),
    ),
    Caught(
        "position-table-size-from-wrong-field",
        "shapes",
        "shapes.raises",
        mask_of(lambda config: config.embedding_dim),
        healthy=mask_of(lambda config: config.block_size),
    ),
    Caught(
        "sinusoid-odd-even-slip",
        "positions",
        "positions.still_columns",
        sines(1.0),
        healthy=sines(None),
    ),
    Caught(
        "context-overrun-silent",
        "generation",
        "generation.past_block",
        sine_generation(crop=False),
        healthy=sine_generation(crop=True),
        only_warns="a model whose positions go on may be read beyond its block on purpose",
    ),
    Caught(
        "rope-low-precision",
        "positions",
        "positions.rounded_frequencies",
        rotary_bfloat16(frequencies=torch.bfloat16),
        healthy=rotary_bfloat16(frequencies=torch.float32),
    ),
    Caught(
        "left-pad-positions-shifted",
        "padding",
        "padding.left_positions",
        left_padded(count_pads=True),
        healthy=left_padded(count_pads=False),
        only_warns="callers that pad on the right, or give positions themselves, look the same",
    ),
    Caught(
        "decode-offset-advances-by-prompt",
        "generation",
        "generation.cache",
        cached_decoding(prompt_twice=True),
        healthy=cached_decoding(prompt_twice=False),
    ),
    Caught(
        "pads-attended",
        "padding",
        "padding.mask_not_passed",
        left_padded_batch(pass_mask=False),
        healthy=left_padded_batch(pass_mask=True),
    ),
    Unseen(
        "right-pad-last-column",
        "`generate` is called with prompts of one length, so that no row is padded: nothing says "
        "how a loop tells it the lengths of a padded batch",
    ),
    Unseen(
        "rope-convention-vs-checkpoint",
        "pairing neighbours or halves is the same model with features renamed: only the weights' "
        "own implementation can tell which one they were trained with",
    ),
)
