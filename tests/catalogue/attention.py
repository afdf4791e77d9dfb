"""Rows of the table: attention, from the causal mask to norms and residual streams.

Shapes: B batch, T time, C width, H heads, D head size, S keys (cached ones first), V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._lab import Lab, retype
from exercises.break_causal_independence import WrittenOutAttention
from exercises.break_padding import PaddedAttention, PaddedGPT
from minigpt import MiniGPT, generate
from minigpt.model import Block, CausalSelfAttention, KeyValueCache
from tests.catalogue._row import Build, Caught, Row, Unseen

Make = Callable[[Lab], Pipeline]
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries, keys, values (B, H, T, D) -> same
WINDOW = 8  # keys that a position reads, itself included


def with_attention(attention: type[nn.Module]) -> Make:
    """Return a build of the lab's model with another class of attention."""
    return lambda lab: lab.pipeline(
        edit_model=lambda model: retype(model, CausalSelfAttention, attention)
    )


def with_mix(mix: Mix) -> Make:
    """Return a build of the lab's model whose attention mixes values in another way."""

    class Mixed(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return mix(queries, keys, values)

    def build(lab: Lab) -> Pipeline:
        pipeline = with_attention(Mixed)(lab)
        return dataclasses.replace(pipeline, generate=generate_without_cache)

    return build


def generate_without_cache(model: Any, prompt: Tensor, count: int) -> Tensor:
    """Greedy text of a model whose attention takes no cache."""
    return generate(model, prompt, count, greedy=True, use_cache=False)


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """Return scores (B, H, T, T), scaled as they should be."""
    return queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])


def ones_like(queries: Tensor) -> Tensor:
    """Return (T, T) of True."""
    T = queries.shape[2]
    return torch.ones(T, T, dtype=torch.bool, device=queries.device)


# ---- the causal mask -----------------------------------------------------------------------


def mix_causally(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """No bug: scores of later keys are filled with minus infinity."""
    scores = scores_of(queries, keys)
    return scores.masked_fill(~ones_like(queries).tril(), -math.inf).softmax(-1) @ values


def mix_without_mask(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A softmax over all keys."""
    return scores_of(queries, keys).softmax(-1) @ values


def mix_inverted(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A mask for nn.MultiheadAttention, where True hides, is given to a call where True keeps."""
    hidden = ones_like(queries).triu(1)
    hidden[-1, -1] = True  # the last query keeps a key, so that the softmax is not 0 / 0
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=hidden)


def mix_one_ahead(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The lower triangle with one diagonal too many."""
    mask = ones_like(queries).tril(diagonal=1)
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def mix_without_self(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The strict lower triangle: position 0 has no key, and spreads over all of them."""
    hidden = ~ones_like(queries).tril(diagonal=-1)
    return scores_of(queries, keys).masked_fill(hidden, -1e9).softmax(-1) @ values


def mix_ones_added(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """A mask of 0 and 1 is added to the scores."""
    mask = ones_like(queries).tril().to(queries.dtype)
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def mix_filled_with_zero(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Hidden scores are set to 0, as if they were weights already."""
    hidden = ~ones_like(queries).tril()
    return scores_of(queries, keys).masked_fill(hidden, 0.0).softmax(-1) @ values


def two_branches(diagonal: int) -> Build:
    """A fused kernel for eval mode, and a branch by hand for train mode with a mask of its own."""

    class Branching(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if not self.training:
                return super().mix(queries, keys, values)
            visible = ones_like(queries).tril(diagonal=diagonal)
            scores = scores_of(queries, keys).masked_fill(~visible, -math.inf)
            return scores.softmax(-1) @ values

    return with_attention(Branching)


def window_of(keys_read: int) -> Build:
    """A declared window of WINDOW keys, and a mask that allows `keys_read`."""

    def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        ones = ones_like(queries)
        mask = ones.tril() & ones.triu(1 - keys_read)
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    def build(lab: Lab) -> Pipeline:
        pipeline = with_mix(mix)(lab)
        pipeline.model.sliding_window = WINDOW  # type: ignore[assignment]
        return pipeline

    return build


# ---- masks of padding and of caches ----------------------------------------------------------


def padded(visible: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Build:
    """Return a build of a model that takes an attention_mask, and joins its masks in `visible`."""

    class Joined(PaddedAttention):
        def visible(self, causal: Tensor, padding: Tensor, itself: Tensor) -> Tensor:
            return visible(causal, padding, itself)

    def edit(model: MiniGPT) -> nn.Module:
        retype(model, MiniGPT, PaddedGPT)
        return retype(model, CausalSelfAttention, Joined)

    return lambda lab: lab.pipeline(edit_model=edit)


def is_causal_without_mask(given: bool) -> Build:
    """`is_causal=attention_mask is None`: with a mask, the padding mask is used alone."""

    class Masked(MiniGPT):
        def forward(  # type: ignore[override]
            self,
            token_ids: Tensor,
            targets: Tensor | None = None,
            attention_mask: Tensor | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            for block in self.blocks:
                block.attention.keep = attention_mask  # type: ignore[union-attr]
            return super().forward(token_ids, targets)

    class Switching(WrittenOutAttention):
        keep: Tensor | None = None

        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if self.keep is None:
                return super().mix(queries, keys, values)
            mask = self.keep.bool()[:, None, None, :]
            if given:
                mask = mask & ones_like(queries).tril()
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    def edit(model: MiniGPT) -> nn.Module:
        retype(model, MiniGPT, Masked)
        return retype(model, CausalSelfAttention, Switching)

    return lambda lab: lab.pipeline(edit_model=edit)


def top_left(lab: Lab) -> Pipeline:
    """is_causal=True with cached keys aligns the triangle to the first key, not to the last."""

    class TopLeft(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, -1).transpose(1, 2)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            if cache is not None:
                keys, values = cache.extend(layer, keys, values)
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    return with_attention(TopLeft)(lab)


def static_cache(fill: float) -> Build:
    """Decoding reads the whole buffer of keys and hides unused slots; weight 0 times NaN is NaN."""

    class Static(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            if cache is None:
                return super().forward(x)
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, -1).transpose(1, 2)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            if cache.length == 0:  # memory as torch.empty may hand it out
                cache.keys[layer], cache.values[layer] = 0.0, fill
            cache.extend(layer, keys, values)
            slots = torch.arange(cache.keys.shape[3])
            visible = slots <= (cache.length + torch.arange(T))[:, None]  # (T, S)
            scores = queries @ cache.keys[layer].transpose(2, 3) / math.sqrt(queries.shape[3])
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            mixed = weights @ cache.values[layer]
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    def decode(model: Any, prompt: Tensor, count: int) -> Tensor:
        """Continue greedily, with a cache while all fits into the block."""
        block, ids = model.config.block_size, prompt
        cache = KeyValueCache(model.config, 1, device=ids.device, dtype=torch.float32)
        with torch.no_grad():
            for _ in range(count):
                if ids.shape[1] <= block:
                    logits, _ = model(ids[:, cache.length :], cache=cache)
                else:
                    logits, _ = model(ids[:, -block:])
                ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        return ids

    return lambda lab: lab.pipeline(
        edit_model=lambda model: retype(model, CausalSelfAttention, Static), generate=decode
    )


# ---- heads ---------------------------------------------------------------------------------


def merged_without_transpose(lab: Lab) -> Pipeline:
    """(B, H, T, D) is read as (B, T, C): a token is made of pieces of several."""

    class Merged(WrittenOutAttention):
        def merge(self, mixed: Tensor) -> Tensor:
            B, H, T, D = mixed.shape
            return mixed.reshape(B, T, H * D)

    return with_attention(Merged)(lab)


def split_by_view(lab: Lab) -> Pipeline:
    """(B, T, C) is cut as (B, H, T, D) in one step: time and features are mixed."""

    class Split(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.reshape(B, self.num_heads, T, C // self.num_heads)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    return with_attention(Split)(lab)


def torch_attention(*, batch_first: bool) -> Build:
    """nn.MultiheadAttention reads (T, B, C) unless it is told otherwise."""

    class Wrapped(CausalSelfAttention):
        inner: nn.MultiheadAttention

        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            T = x.shape[1] if batch_first else x.shape[0]
            hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            return self.inner(x, x, x, attn_mask=hidden, need_weights=False)[0]

    def edit(model: MiniGPT) -> nn.Module:
        for block in model.blocks:
            attention: Any = block.attention
            C, H = model.config.embedding_dim, model.config.num_heads
            attention.inner = nn.MultiheadAttention(C, H, batch_first=batch_first)
            del attention.query_key_value, attention.output
        return retype(model, CausalSelfAttention, Wrapped)

    return lambda lab: lab.pipeline(edit_model=edit)


def split_before_projection(*, shared: bool) -> Build:
    """A token is split into heads first, and one small projection then serves all heads."""

    class Shared(CausalSelfAttention):
        small: nn.ModuleList

        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            heads = x.view(B, T, self.num_heads, C // self.num_heads)  # (B, T, H, D)
            parts = [linear(heads) if shared else linear(x).view_as(heads) for linear in self.small]
            queries, keys, values = (part.transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    def edit(model: MiniGPT) -> nn.Module:
        C, H = model.config.embedding_dim, model.config.num_heads
        for block in model.blocks:
            attention: Any = block.attention
            size = C // H if shared else C
            attention.small = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
            del attention.query_key_value
        return retype(model, CausalSelfAttention, Shared)

    unsaved = dict.fromkeys(("save", "load", "save_state", "load_state"))  # knows MiniGPT's only
    return lambda lab: lab.pipeline(edit_model=edit, generate=generate_without_cache, **unsaved)


# ---- softmax -------------------------------------------------------------------------------


def mix_over_queries(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The softmax runs over the axis of the queries."""
    hidden = ~ones_like(queries).tril()
    return scores_of(queries, keys).masked_fill(hidden, -math.inf).softmax(-2) @ values


def mix_scaled_by_width(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Scores are divided by the root of the width C in place of the head size D."""
    C = queries.shape[1] * queries.shape[3]
    scores = queries @ keys.transpose(2, 3) * C**-0.5
    return scores.masked_fill(~ones_like(queries).tril(), -math.inf).softmax(-1) @ values


def mix_scaled_by_heads(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The fused kernel is given the number of heads in place of the head size."""
    return functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=queries.shape[1] ** -0.5
    )


# ---- norms and residuals -------------------------------------------------------------------


def hand_made_norms(power: float) -> Build:
    """LayerNorm by hand, which divides by (variance + eps) ** power."""

    class LayerNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.square().mean(-1, keepdim=True)
            return centred / (variance + self.eps) ** power * self.weight + self.bias

    return lambda lab: lab.pipeline(edit_model=lambda model: retype(model, nn.LayerNorm, LayerNorm))


def with_block(block: type[Block]) -> Build:
    """Return a build of the lab's model with another class of block."""
    return lambda lab: lab.pipeline(edit_model=lambda model: retype(model, Block, block))


class OverwrittenBlock(Block):
    """The stream is overwritten before the sum: what was read is added to itself."""

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        x = self.attention(self.attention_norm(x), cache, layer)
        x = x + x
        return x + self.feed_forward(self.feed_forward_norm(x))


class WrongTapBlock(Block):
    """The second sum starts from the block's input, so that attention reaches the MLP only."""

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        attended = x + self.attention(self.attention_norm(x), cache, layer)
        return x + self.feed_forward(self.feed_forward_norm(attended))


def inference_block(*, clone: bool) -> Build:
    """Without gradients a fused norm writes where it reads, into the tensor kept as residual."""

    class InPlaceBlock(Block):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            if torch.is_grad_enabled():
                return super().forward(x, cache, layer)
            residual = x.clone() if clone else x
            x.copy_(self.attention_norm(x))
            x = residual + self.attention(x, cache, layer)
            return x + self.feed_forward(self.feed_forward_norm(x))

    return with_block(InPlaceBlock)


ROWS: tuple[Row, ...] = (
    Caught(
        "causal-mask-missing",
        "causal_independence",
        "causal_independence.no_mask",
        with_mix(mix_without_mask),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "mask-polarity-inverted",
        "causal_independence",
        "causal_independence.mask_inverted",
        with_mix(mix_inverted),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "mask-diagonal-plus-one",
        "causal_independence",
        "causal_independence.mask_too_wide",
        with_mix(mix_one_ahead),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "mask-excludes-self",
        "causal_independence",
        "causal_independence.first_row",
        with_mix(mix_without_self),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "mask-additive-ones",
        "causal_independence",
        "causal_independence.no_mask",
        with_mix(mix_ones_added),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "mask-fill-zero-score",
        "causal_independence",
        "causal_independence.no_mask",
        with_mix(mix_filled_with_zero),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "manual-and-fused-attention-differ",
        "modes",
        "modes.train_differs",
        two_branches(1),
        healthy=two_branches(0),
    ),
    Caught(
        "sliding-window-off-by-one",
        "context",
        "context.window",
        window_of(WINDOW + 1),
        healthy=window_of(WINDOW),
    ),
    Caught(
        "padding-mask-replaces-causal",
        "causal_independence",
        "causal_independence.only_with_attention_mask",
        is_causal_without_mask(False),
        healthy=is_causal_without_mask(True),
    ),
    Caught(
        "causal-top-left-with-cache",
        "generation",
        "generation.cache",
        top_left,
    ),
    Caught(
        "fully-masked-row-nan",
        "padding",
        "padding.not_finite",
        padded(lambda causal, padding, itself: causal & padding),
        healthy=padded(lambda causal, padding, itself: causal & padding | itself),
    ),
    Caught(
        "nan-in-masked-slot-spreads",
        "generation",
        "generation.not_finite",
        static_cache(math.nan),
        healthy=static_cache(0.0),
    ),
    Caught(
        "merge-heads-without-transpose",
        "causal_independence",
        "causal_independence.heads_mixed",
        merged_without_transpose,
        healthy=with_attention(WrittenOutAttention),
    ),
    Caught(
        "split-heads-by-view",
        "causal_independence",
        "causal_independence.heads_mixed",
        split_by_view,
    ),
    Caught(
        "batch-first-confusion",
        "batch_independence",
        "batch_independence.batch_axis",
        torch_attention(batch_first=False),
        healthy=torch_attention(batch_first=True),
    ),
    Caught(
        "softmax-wrong-axis",
        "causal_independence",
        "causal_independence.normalised_over_future",
        with_mix(mix_over_queries),
        healthy=with_mix(mix_causally),
    ),
    Caught(
        "layernorm-power-typo",
        "forward_hooks",
        "forward_hooks.norm_scale",
        hand_made_norms(2.0),
        healthy=hand_made_norms(0.5),
    ),
    Caught(
        "residual-inplace-alias",
        "modes",
        "modes.grad_changes_logits",
        inference_block(clone=False),
        healthy=inference_block(clone=True),
    ),
    Caught(
        "heads-share-projection",
        "context",
        "context.shared_projection",
        split_before_projection(shared=True),
        healthy=split_before_projection(shared=False),
        only_warns="fewer weights by sharing them between heads is a design, as low rank is",
    ),
    Caught(
        "scale-by-model-width",
        "context",
        "context.score_scale",
        with_mix(mix_scaled_by_width),
        healthy=with_mix(mix_causally),
        only_warns="a design may choose any scale, and train its projections to it",
    ),
    Caught(
        "scale-by-number-of-heads",
        "context",
        "context.score_scale",
        with_mix(mix_scaled_by_heads),
        healthy=with_mix(mix_causally),
        only_warns="a design may choose any scale, and train its projections to it",
    ),
    Caught(
        "residual-doubled",
        "context",
        "context.no_residual",
        with_block(OverwrittenBlock),
        only_warns="a small model without residual paths is a design too",
    ),
    Caught(
        "residual-wrong-tap",
        "context",
        "context.attention_bypassed",
        with_block(WrongTapBlock),
        only_warns="attention that only feeds the layer after it can be meant",
    ),
    Unseen(
        "qkv-split-after-head-split",
        "cut in another order, the same weights belong to other names: from scratch it is the same "
        "model, and only the code that trained the weights can tell",
    ),
    Unseen(
        "gqa-tile-instead-of-interleave",
        "from scratch it only renames which query head reads which key head; whether it is the "
        "grouping of the loaded weights, only their own code can tell",
    ),
    Unseen(
        "scale-missing-or-twice",
        "no scale at all is T5's design and one over the head size is muP's, so that the numbers "
        "cannot tell a slip from a choice",
    ),
    Unseen(
        "layernorm-eps-or-bessel",
        "a variance with n - 1 or an epsilon outside the root is how some known models are "
        "written: only against the code that trained the weights is it a fault",
    ),
)
