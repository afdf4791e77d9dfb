"""What `padding` says of each fault; {names} are filled in where the fault is found."""

from __future__ import annotations

from diagnostics._fault import Fault
from diagnostics._result import Status

MASK_OF_ONES = Fault(
    "padding.mask_of_ones",
    "an attention_mask of ones, which hides nothing, changes the predictions",
    "at most {limit}",
    "print the mask that reaches the softmax for attention_mask = ones",
    (
        "the mask is read the other way round: 1 must keep a token, 0 hide it",
        "1 and 0 are added to the scores in place of 0 and -inf",
    ),
)
NOT_FINITE = Fault(
    "padding.not_finite",
    "row {b}, padded on the {side}, gives NaN at position {t}, a {kind}",
    "finite logits; NaN at pads alone makes every gradient NaN",
    "let a pad see itself, or fill with torch.finfo(dtype).min",
    ("a row of scores is hidden whole, and the softmax of -inf only is 0 / 0",),
)
CAUSAL_MASK_LOST = Fault(
    "padding.causal_mask_lost",
    "given an attention_mask, positions 0 to {last} read tokens after them",
    "at most {limit}: only tokens from {j} on were replaced",
    "combine them: visible = causal & padding[:, None, None, :]",
    (
        "the padding mask takes the place of the causal one: is_causal=mask is None",
        "the two masks are joined by or, where and is needed",
    ),
)
RIGHT = Fault(
    "padding.right",
    "a row predicts otherwise when it is padded on the right",
    "at most {limit}: pads come after every real token",
    "compare model(row) with the same row and one pad more, layer by layer",
    (
        "the mask hides real tokens: it is shifted, inverted or of another row",
        "positions are counted from the padded end",
        "a mean, a norm or a length in forward counts pads",
    ),
)
PADS_READ = Fault(
    "padding.pads_read",
    "real tokens read the pads on their {side}, although the mask hides them",
    "at most {limit}: what is hidden cannot matter",
    "follow attention_mask through forward to the softmax",
    (
        "hidden scores get a number that is too small to hide them, such as 0 or -10",
        "only some of the layers are given the mask",
    ),
)
MASK_IGNORED = Fault(
    "padding.mask_ignored",
    "the model takes an attention_mask and makes no use of it: pads on the left are read",
    "at most {limit}, unless rows are padded on the right only",
    "pad on the right, or follow attention_mask through forward to the softmax",
    ("attention_mask is not handed on to the layers",),
    Status.WARN,
)
LEFT_POSITIONS = Fault(
    "padding.left_positions",
    "a row predicts otherwise when it is padded on the left: pads are counted",
    "at most {limit}, unless the caller gives positions or never pads on the left",
    "positions = (attention_mask.cumsum(1) - 1).clamp(min=0)",
    ("positions are column numbers: arange(T) in place of cumsum(mask) - 1",),
    Status.WARN,
)
MASK_NOT_PASSED = Fault(
    "padding.mask_not_passed",
    "{rows} of {B} rows of the batch begin with pads, and the call that trains on them is given "
    "no mask: real tokens read the pads",
    "at most {limit}: the batch holds a mask that hides these pads",
    "pass the batch's attention_mask to the model, or pad on the right",
    (
        "the tokenizer's attention_mask is dropped on the way: model(ids) in place of "
        "model(ids, attention_mask=mask)",
    ),
)
LEFT_WITHOUT_MASK = Fault(
    "padding.left_without_mask",
    "{rows} of {B} rows of the batch begin with pads, and nothing tells the model so: real tokens "
    "read the pads",
    "at most {limit}, unless pads are meant to be read",
    "give the batch an attention_mask, or pad on the right",
    ("rows are padded on the left, and no mask goes with them",),
    Status.WARN,
)
