"""Rows of the table: the loop that writes text, sampling filters, and the cache.

Shapes: B batch, T time, T0 prompt tokens, n new tokens, C width, H heads, D head size, S keys,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import CheckResult, Pipeline
from diagnostics.sampling import check_repetition_penalty
from exercises._lab import Lab
from minigpt import MiniGPT
from minigpt.evaluate import evaluation_mode
from minigpt.model import KeyValueCache
from tests.catalogue._row import Build, Caught, Row

Filter = Callable[[Tensor, float, "int | None", "float | None"], Tensor]
BLOCK = 32  # of the lab's model
STOP = 5  # the id that ends a text, where one does
PAD = 0


# ---- the loop --------------------------------------------------------------------------------


def loop(
    read: Callable[[Tensor], Tensor] = lambda ids: ids[:, -BLOCK:],
    last: Callable[[Tensor], Tensor] = lambda logits: logits[:, -1],
    join: Callable[[Tensor, Tensor], Tensor] = lambda ids, new: torch.cat([ids, new], dim=1),
) -> Build:
    """The textbook loop, of which one line can be written otherwise."""

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        with evaluation_mode(model):
            for _ in range(count):
                logits = model(read(ids))[0]
                ids = join(ids, last(logits).argmax(-1, keepdim=True))
        return ids

    return lambda lab: lab.pipeline(generate=generate)


def newest_but_one(logits: Tensor) -> Tensor:
    """Return the logits before the last, where there are two."""
    return logits[:, -2] if logits.shape[1] > 1 else logits[:, -1]


def stopping(ended: Callable[[Tensor, Tensor], bool], *, at_once: bool = False) -> Build:
    """A batch is continued until `ended(finished (B,), newest (B,))`; finished rows get pads.

    at_once: the test looks at the whole text, prompt included.
    """

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        finished = torch.zeros(len(ids), dtype=torch.bool)
        with evaluation_mode(model):
            for _ in range(count):
                if at_once and bool((ids == STOP).any()):
                    break
                new = model(ids[:, -BLOCK:])[0][:, -1].argmax(-1)  # (B,)
                new = torch.where(finished, PAD, new)
                finished |= new == STOP
                ids = torch.cat([ids, new[:, None]], dim=1)
                if ended(finished, new):
                    break
        return ids

    return lambda lab: lab.pipeline(generate=generate)


def counting(*, before_trimming: bool) -> Build:
    """The limit of the whole text is computed before or after the prompt is cut to the block."""

    @torch.no_grad()
    def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        ids = prompt[:, -BLOCK:]
        start = ids.shape[1]
        limit = count + (prompt if before_trimming else ids).shape[1]
        with evaluation_mode(model):
            while ids.shape[1] < limit:
                new = model(ids[:, -BLOCK:])[0][:, -1:].argmax(-1)
                ids = torch.cat([ids, new], dim=1)
        return torch.cat([prompt, ids[:, start:]], dim=1)

    return lambda lab: lab.pipeline(generate=generate)


# ---- filters ---------------------------------------------------------------------------------


def filters(
    *,
    fill: float = float("-inf"),
    extra: int = 0,
    removed: Callable[[Tensor, Tensor, float], Tensor] = lambda mass, p, top_p: mass - p >= top_p,
    scaled: Callable[[Tensor, float], Tensor] = lambda logits, t: logits / t,
    refuses_zero: bool = True,
    ending: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(-1),
) -> Build:
    """Temperature, top-k and nucleus as written by hand, one step of which can be wrong.

    removed: (running mass (V,), probabilities (V,), top_p) -> (V,) bool, best first.
    """

    def next_token_probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        if temperature <= 0 and refuses_zero:
            raise ValueError("temperature must be above 0")
        logits = scaled(logits, temperature)
        if top_k is not None:
            count = min(top_k + extra, len(logits))
            logits = logits.masked_fill(logits < logits.topk(count).values[-1], fill)
        if top_p is not None and top_p < 1.0:
            ordered, ids = logits.softmax(-1).sort(descending=True)
            lost = removed(ordered.cumsum(-1), ordered, top_p)
            logits = logits.index_fill(0, ids[lost], float("-inf"))
        return ending(logits)

    return lambda lab: lab.pipeline(next_token_probabilities=next_token_probabilities)


def shifted_without_guard(mass: Tensor, p: Tensor, top_p: float) -> Tensor:
    """Move the mask by one, so that the crossing token stays, and forget to keep the first."""
    removed = mass > top_p
    removed[1:] = removed[:-1].clone()
    return removed


def shifted_with_guard(mass: Tensor, p: Tensor, top_p: float) -> Tensor:
    """Move the mask by one, so that the crossing token stays, and keep the first."""
    removed = shifted_without_guard(mass, p, top_p)
    removed[0] = False
    return removed


def penalty(*, by_sign: bool) -> Callable[[Lab], CheckResult]:
    """Logits of tokens that were seen are divided, the negative ones too."""

    def apply(logits: Tensor, previous_ids: Tensor, strength: float) -> Tensor:
        seen = logits[previous_ids]
        lowered = seen / strength
        if by_sign:
            lowered = torch.where(seen > 0, seen / strength, seen * strength)
        return logits.index_put((previous_ids,), lowered)

    return lambda lab: check_repetition_penalty(apply)


# ---- the cache -------------------------------------------------------------------------------


def cached(cache_class: type[KeyValueCache] = KeyValueCache, *, kept: bool = False) -> Build:
    """The loop with a cache while everything fits into the block; `kept` from call to call."""

    def build(lab: Lab) -> Pipeline:
        return lab.pipeline(generate=cached_loop(lab, cache_class, kept=kept))

    return build


def cached_loop(
    lab: Lab, cache_class: type[KeyValueCache] = KeyValueCache, *, kept: bool = False
) -> Callable[[nn.Module, Tensor, int], Tensor]:
    """Return the loop that `cached` puts into a pipeline."""

    def empty(rows: int) -> KeyValueCache:
        return cache_class(lab.config, rows, device=torch.device("cpu"), dtype=torch.float32)

    first = empty(1)

    @torch.no_grad()
    def generate(model: nn.Module, ids: Tensor, count: int) -> Tensor:
        cache = first if kept else empty(len(ids))
        with evaluation_mode(model):
            for step in range(count):
                unread = ids[:, -1:] if step else ids
                if cache.length + unread.shape[1] <= BLOCK and ids.shape[1] <= BLOCK:
                    last = model(unread, cache=cache)[0][:, -1]
                else:
                    last = model(ids[:, -BLOCK:])[0][:, -1]
                ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
        return ids

    return generate


class Restarting(nn.Embedding):
    """Positions are counted from the tokens of this call, not from those in the cache."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up rows (T, C)."""
        return super().forward(input - input[0])


def positions_restart(lab: Lab) -> Pipeline:
    """Every token that is read with the cache is at position 0."""

    def edit(model: MiniGPT) -> nn.Module:
        model.position_embedding.__class__ = Restarting
        return model

    return lab.pipeline(edit_model=edit, generate=cached_loop(lab))


class SkipsFirst(KeyValueCache):
    """The length grows by the prompt, and its first token is never written."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values so far; what is stored lacks the first token."""
        found = tuple(part.clone() for part in super().extend(layer, keys, values))
        if self.length == 0:
            self.keys[layer, :, :, 0] = 0.0
            self.values[layer, :, :, 0] = 0.0
        return found[0], found[1]


class Rolling(nn.Module):
    """One layer of attention without positions: its cache may drop what has left the block."""

    def __init__(self, V: int, kept: int, C: int = 32, H: int = 2) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=V, block_size=12)
        self.H, self.kept = H, kept  # heads; keys that are kept, the newest included
        self.tokens = nn.Embedding(V, C)
        self.queries_keys_values = nn.Linear(C, 3 * C)
        self.head = nn.Linear(C, V)

    def forward(self, ids: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        """Return logits (B, T, V); `cache` holds keys and values (B, H, S, D), or nothing yet."""
        B, T = ids.shape
        q, k, v = (
            part.view(B, T, self.H, -1).transpose(1, 2)
            for part in self.queries_keys_values(self.tokens(ids)).chunk(3, -1)
        )
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            k, v = k[:, :, -self.kept :], v[:, :, -self.kept :]
            cache[:] = [k, v]
        S = k.shape[2]
        visible = torch.arange(S) <= torch.arange(S - T, S)[:, None]  # (T, S)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        logits: Tensor = self.head(mixed.transpose(1, 2).flatten(2))
        return logits


def rolling(*, extra: int) -> Build:
    """The cache is trimmed to the block, or to one key more."""

    @torch.no_grad()
    def generate(model: Any, ids: Tensor, count: int) -> Tensor:
        cache: list[Tensor] = []
        unread = ids[:, -model.config.block_size :]
        for _ in range(count):
            new = model(unread, cache)[:, -1:].argmax(-1)
            ids, unread = torch.cat([ids, new], dim=1), new
        return ids

    def build(lab: Lab) -> Pipeline:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            return Pipeline(Rolling(23, kept=12 + extra), generate=generate)

    return build


ROWS: tuple[Row, ...] = (
    Caught(
        "context-crop-wrong-side",
        "generation",
        "generation.keeps_first_block",
        loop(read=lambda ids: ids[:, :BLOCK]),
        healthy=loop(),
    ),
    Caught(
        "logits-from-wrong-position",
        "generation",
        "generation.position_before",
        loop(last=newest_but_one),
        healthy=loop(),
    ),
    Caught(
        "appended-to-wrong-axis-or-prompt-lost",
        "generation",
        "generation.wrong_axis",
        loop(join=lambda ids, new: torch.cat([ids, new], dim=0)),
        healthy=loop(),
    ),
    Caught(
        "finished-rows-keep-sampling",
        "generation",
        "generation.rows_cut",
        stopping(lambda finished, new: bool((new == STOP).any())),
        healthy=stopping(lambda finished, new: bool(finished.all())),
    ),
    Caught(
        "max-new-tokens-miscounted",
        "generation",
        "generation.too_many_tokens",
        counting(before_trimming=True),
        healthy=counting(before_trimming=False),
    ),
    Caught(
        "prompt-eos-stops-at-once",
        "generation",
        "generation.prompt_ends_text",
        stopping(lambda finished, new: bool(finished.all()), at_once=True),
        healthy=stopping(lambda finished, new: bool(finished.all())),
    ),
    Caught(
        "topk-fill-value-too-small",
        "sampling",
        "sampling.top_k_fill",
        filters(fill=-1e-10),
        healthy=filters(),
    ),
    Caught(
        "topk-off-by-one",
        "sampling",
        "sampling.top_k_off_by_one",
        filters(extra=1),
        healthy=filters(),
    ),
    Caught(
        "topp-drops-crossing-token",
        "sampling",
        "sampling.top_p_drops_crossing",
        filters(removed=lambda mass, p, top_p: mass > top_p),
        healthy=filters(),
    ),
    Caught(
        "topp-empty-set",
        "sampling",
        "sampling.top_p_empty",
        filters(removed=shifted_without_guard),
        healthy=filters(removed=shifted_with_guard),
    ),
    Caught(
        "repetition-penalty-sign",
        "sampling",
        "sampling.penalty_rewards",
        penalty(by_sign=False),
        healthy=penalty(by_sign=True),
    ),
    Caught(
        "temperature-compounds",
        "sampling",
        "sampling.changes_input",
        filters(scaled=lambda logits, t: logits.div_(t)),
        healthy=filters(),
    ),
    Caught(
        "temperature-ignored",
        "sampling",
        "sampling.temperature_ignored",
        filters(scaled=lambda logits, t: logits),
        healthy=filters(),
    ),
    Caught(
        "temperature-zero",
        "sampling",
        "sampling.temperature_zero",
        filters(refuses_zero=False),
        healthy=filters(),
        only_warns="a design may ask for a temperature above 0, and nothing can be drawn from NaN",
    ),
    Caught(
        "multinomial-on-logits",
        "sampling",
        "sampling.logits",
        filters(ending=lambda logits: logits),
        healthy=filters(),
    ),
    Caught(
        "cache-parity-broken",
        "generation",
        "generation.cache",
        positions_restart,
        healthy=cached(),
    ),
    Caught(
        "first-token-not-cached",
        "generation",
        "generation.cache",
        cached(SkipsFirst),
        healthy=cached(),
    ),
    Caught(
        "cache-not-reset",
        "generation",
        "generation.remembers",
        cached(kept=True),
        healthy=cached(),
    ),
    Caught(
        "cache-trim-off-by-one",
        "generation",
        "generation.longer_context",
        rolling(extra=1),
        healthy=rolling(extra=0),
    ),
)
