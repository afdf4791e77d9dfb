"""Break the padding: let short rows feel the company of long ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT, generate
from minigpt.model import CausalSelfAttention, KeyValueCache

ROW_LENGTH, PADS = 8, 4  # of the rows that the symptom table compares


class PaddedGPT(MiniGPT):
    """A MiniGPT that takes an attention_mask (B, T): 1 is a token, 0 a pad. It is healthy."""

    def forward(  # type: ignore[override]
        self,
        token_ids: Tensor,
        targets: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) and the mean loss, or None without targets."""
        keep = torch.ones_like(token_ids) if attention_mask is None else attention_mask
        positions = (keep.cumsum(dim=1) - 1).clamp(min=0)  # (B, T), pads are not counted
        x = self.token_embedding(token_ids) + self.position_embedding(positions)
        for block in self.blocks:
            attention = block.attention
            if not isinstance(attention, PaddedAttention):
                raise TypeError(f"wanted PaddedAttention, got {type(attention).__name__}")
            attention.keep = keep.bool()
            x = block(x)
        logits = self.head(self.final_norm(x))  # (B, T, V)
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class PaddedAttention(CausalSelfAttention):
    """Attention that reads earlier tokens which are no pads."""

    keep: Tensor  # (B, T), True where a token is

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        B, T, C = x.shape
        queries, keys, values = (
            part.view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, D)
            for part in self.query_key_value(x).split(C, dim=2)
        )
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        itself = torch.eye(T, dtype=torch.bool, device=x.device)
        visible = self.visible(causal, self.keep[:, None, None, :], itself)
        scores = queries @ keys.transpose(2, 3) * keys.shape[3] ** -0.5  # (B, H, T, T)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return self.output((weights @ values).transpose(1, 2).reshape(B, T, C))

    def visible(self, causal: Tensor, padding: Tensor, itself: Tensor) -> Tensor:
        """Join the masks (T, T), (B, 1, 1, T) and (T, T): True where a key may be read."""
        return causal & padding | itself


def break_replaced(lab: Lab) -> Pipeline:
    """Use the padding mask when there is one, and the causal mask otherwise."""

    class Replaced(PaddedAttention):
        def visible(self, causal: Tensor, padding: Tensor, itself: Tensor) -> Tensor:
            if bool(padding.all()):
                return causal
            return padding | itself  # BROKEN: was return causal & padding | itself

    return _padded(lab, Replaced)


def break_blind_pads(lab: Lab) -> Pipeline:
    """Leave a pad at the start nothing to read: its softmax is 0 / 0."""

    class Blind(PaddedAttention):
        def visible(self, causal: Tensor, padding: Tensor, itself: Tensor) -> Tensor:
            return causal & padding  # BROKEN: was return causal & padding | itself

    return _padded(lab, Blind)


def _padded(lab: Lab, attention: type[PaddedAttention]) -> Pipeline:
    def edit(model: MiniGPT) -> nn.Module:
        retype(model, MiniGPT, PaddedGPT)
        return retype(model, CausalSelfAttention, attention)

    return lab.pipeline(edit_model=edit, generate=_generate_without_cache)


def _generate_without_cache(model: Any, prompt: Tensor, count: int) -> Tensor:
    """Generate greedily: the model with padding takes no cache."""
    return generate(model, prompt, count, greedy=True, use_cache=False)


def padding_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Compare what a row says alone, and padded on either side."""
    model = pipeline.model
    if not isinstance(model, PaddedGPT):  # the lab's own model takes no mask
        model = _padded(lab, PaddedAttention).model
    row = lab.val_ids[:ROW_LENGTH].unsqueeze(0)  # (1, T)
    alone = _logits(model, row, None)
    pads = torch.zeros(1, PADS, dtype=torch.long)
    figures = {}
    for side in ("right", "left"):
        parts = (row, pads) if side == "right" else (pads, row)
        mask = torch.cat([torch.ones_like(part) * (part is row) for part in parts], dim=1)
        start = 0 if side == "right" else PADS
        padded = _logits(model, torch.cat(parts, dim=1), mask)[:, start : start + ROW_LENGTH]
        change = float((padded - alone).abs().max())
        figures[f"largest change of a logit, padded on the {side}"] = f"{change:.6f}"
    return figures


def _logits(model: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids, attention_mask=mask)[0]
    return logits


EXERCISE = Exercise(
    name="break_padding",
    question=(
        "Rows of different lengths share a batch by padding. Which numbers of a short row may "
        "change when a long one joins the batch?"
    ),
    bugs=(
        Bug(
            name="replaced",
            break_it=break_replaced,
            trips="padding",
            reason="padding.causal_mask_lost",
            note=(
                "Without a mask the model is causal, so every check that gives none passes. The "
                "future leaks in padded batches only."
            ),
            question=(
                "The model passes the causal test when it is called without a mask. Which "
                "tokens can position 2 of a padded row read, when the row has 8 tokens and 4 "
                "pads?"
            ),
            hints=(
                "Look at how the two masks are joined, for a batch that holds a pad and for one "
                "that holds none.",
                "Print the result for one row of two tokens and two pads as a 4 by 4 table. "
                "Healthy has nothing above the diagonal; here the first row reads the second "
                "token.",
                "A key may be read if it is not in the future and not a pad: both conditions "
                "have to hold at once, with the position itself as the only exception.",
            ),
            lesson=(
                "A branch for padded batches is code of its own that an unpadded test never "
                "runs. Repeat the causal test with every argument that changes the mask."
            ),
            guide="The check causal_independence",
        ),
        Bug(
            name="blind_pads",
            break_it=break_blind_pads,
            trips="padding",
            reason="padding.not_finite",
            level=2,
            note=(
                "Padded on the right all is well. On the left the first pad sees nothing, and NaN "
                "spreads from there to the tokens, through 0 times NaN."
            ),
            question=(
                "The same row is padded on the right, then on the left. In which of the two "
                "does a position have nothing at all to read, and what is a softmax over "
                "nothing?"
            ),
            hints=(
                "Look at the first position of a row that begins with pads: which keys are "
                "visible to it?",
                "Count the visible keys of each position, visible.sum(-1). Healthy is at least "
                "1 everywhere; here it is 0 at the pads on the left.",
                "A position that may read no other should still be able to read itself, so that "
                "its softmax has one entry. Nobody uses what comes out there, but it has to be "
                "a number.",
            ),
            lesson=(
                "Not used is not the same as harmless: NaN times 0 is NaN, and it spreads "
                "through sums and gradients. Give every softmax at least one entry, and look "
                "for NaN at the pads too."
            ),
            guide="NaN: stop, name, go back",
        ),
    ),
    hint="Write visible as a table for one row of two pads and two tokens; read it row by row.",
    lesson=(
        "A row alone is the reference. Pad it on both sides, change what is behind the mask, and "
        "repeat the causal test with the mask given."
    ),
    symptom=padding_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
