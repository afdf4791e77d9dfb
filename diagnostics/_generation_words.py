"""What is said of generated text that differs from the model's own.

Shapes: T0 prompt tokens, n new tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnostics._greedy import Follower, Step
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

_CROP = "feed ids[:, -block_size:] and take logits[:, -1]"
_LAST = "take logits[:, -1], the prediction after the newest token"
_CACHE = "compare generation with and without the cache, token by token, for one prompt"

# reason: (claim, cause, next step)
READINGS = {
    "generation.other_model": (
        "the text is that of another model than the one that was passed",
        "generate uses a model from its surroundings, not its argument",
        "call the argument: generate(model, ids, n) must read `model`",
    ),
    "generation.not_finite": (
        "the logits from which new tokens are chosen hold NaN, and full forward calls give none",
        "slots of the cache that were never written hold NaN: a weight of 0 times NaN is NaN",
        "make the cache with torch.zeros, or read only the slots that are filled",
    ),
    "generation.argmin": (
        "the least probable token is chosen at every step",
        "argmin, or argmax of the negative logits",
        "take argmax of the logits",
    ),
    "generation.first_position": (
        "tokens are chosen by the logits of position 0, not of the last position",
        "logits[:, 0] in place of logits[:, -1]",
        _LAST,
    ),
    "generation.position_before": (
        "tokens are chosen by the logits before the last: the newest token is not read",
        "logits[:, -2], or the text is cut by one before it is fed",
        _LAST,
    ),
    "generation.newest_token_only": (
        "each token is chosen from the newest token alone: all before it is forgotten",
        "single tokens are fed as with a cache, but no cache is passed or kept",
        _CACHE,
    ),
    "generation.prompt_not_read": (
        "the prompt is not read beyond its last token",
        "only new tokens are fed, and no cache holds the prompt",
        "feed the whole text, or fill the cache with the prompt first",
    ),
    "generation.not_fed_back": (
        "every token is chosen from the prompt alone: new tokens are not read",
        "the prompt is fed at each step in place of the growing text",
        "feed the text with the new tokens: ids = torch.cat([ids, new], dim=1)",
    ),
    "generation.second_best": (
        "the second most probable token is chosen at every step",
        "topk(2) or a sorted list is read at index 1",
        "take argmax of the logits",
    ),
    "generation.repetition_penalty": (
        "greedy tokens avoid repetition: a penalty such as {penalty} on {seen} gives this",
        "the repetition penalty, or a ban of repeated tokens, is left on",
        "set repetition_penalty to 1.0 in the greedy part",
    ),
    "generation.keeps_first_block": (
        "no more than the first {length:token is|tokens are} read: what is written later stops "
        "mattering",
        "ids[:, :block_size] in place of ids[:, -block_size:]",
        _CROP,
    ),
    "generation.past_block": (
        "the text is fed whole, beyond the block of {block:token|tokens}",
        "there is no crop; the model takes longer texts, and was not trained on them",
        _CROP,
    ),
    "generation.low_precision": (
        "tokens differ from those of full forward calls where two logits lie within 3 % only",
        "keys, values or logits are kept in half precision while text is written",
        _CACHE,
    ),
    "generation.longer_context": (
        "beyond the block {length} tokens are read, one more than the block of {block} holds",
        "the cache is trimmed before the newest key is appended, or the crop is off by one",
        "append first, then trim to the last block: keys[:, :, -block_size:]",
    ),
    "generation.shorter_context": (
        "beyond the block fewer tokens are read than it holds (about {length} of {block})",
        "the window is cut shorter on purpose, or the crop is off by one",
        _CROP,
    ),
    "generation.context_too_short": (
        "only the last {length:token is|tokens are} read, where the block holds {block}",
        "the crop uses another number than block_size",
        _CROP,
    ),
    "generation.past_block_unknown": (
        "beyond the block the text differs from a forward call on the last {block:token|tokens}",
        "a rolling cache keeps keys that were computed with tokens that have left the block",
        _CACHE,
    ),
    "generation.past_block_wrong": (
        "beyond the block the text is not what the model says of its last {block:token|tokens}",
        "old keys keep their old positions when the window slides, or the trim is off by one",
        "recompute the whole window once the text is longer than the block",
    ),
    "generation.cache": (
        "the first new token is right, and later ones are not what the model says",
        "keys, values or positions after the prompt are wrong: a cache that starts its positions "
        "again, adds the prompt's length twice, misses a token or has them in another order",
        _CACHE,
    ),
    "generation.wrong_token": (
        "new tokens are not those that the model's own logits say",
        "",
        "print argmax of model(ids)[:, -1] beside the generated token, step by step",
    ),
    "generation.rows_mixed": (
        "two prompts in one batch are continued otherwise than each alone",
        "a token of one row is written to every row, or rows are mixed by a reshape",
        "choose per row: logits[:, -1].argmax(-1, keepdim=True)",
    ),
    "generation.impossible_id": (
        "an id that no token has was generated",
        "the vocabulary is padded, and generate looks at every column of the logits",
        "cut the logits to [:, :V] before choosing",
    ),
}

# A deliberate design can look like these.
_WARNINGS = {
    "generation.past_block",
    "generation.shorter_context",
    "generation.past_block_unknown",
    "generation.low_precision",
}

# Where nothing in the model sets a limit there is no block to speak of.
_FREE = {
    "generation.shorter_context": (
        "at most the last {length:token|tokens} of the text are read; the model itself sets no "
        "limit",
        "the context is cropped on purpose, or to a number that belongs to another model",
        "feed the whole text once, and compare the first token that differs",
    ),
}


def misfit(
    reason: str, wrong: list[Step], total: int, follower: Follower, facts: dict[str, Any]
) -> CheckResult:
    """Say which tokens differ, and what gives them."""
    table = _FREE if follower.sets_no_limit and reason in _FREE else READINGS
    told, cause, cure = table[reason]
    step = wrong[0]
    scores = follower.right(step.so_far)
    told_facts = {"block": follower.block, **facts}
    return verdict(
        Status.WARN if reason in _WARNINGS else Status.FAIL,
        reason,
        say(told, **told_facts),
        measured=say(
            "token {came} came, argmax is {best}", came=step.token, best=int(scores.argmax())
        ),
        expected=say("argmax of the last logits of a full forward call, at every step"),
        where=say(
            "{count} of {total:new token|new tokens}; first after {length:token|tokens} of text "
            "(prompt {T0})",
            count=len(wrong),
            total=total,
            length=step.length,
            T0=len(step.case.prompt),
        ),
        causes=(say(cause),) if cause else (),
        next_step=say(cure),
        numbers={"wrong": len(wrong), "tokens": total, **facts},
    )


def format_fault(raw: Any, text: Tensor | None, prompt: Tensor, count: int) -> CheckResult | None:
    """Judge shape, prompt and count of one returned text; None where they are right."""
    T0 = len(prompt)
    wanted = say("shape (1, {T}): the prompt of {T0} and {n} more", T=T0 + count, T0=T0, n=count)
    shape = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
    if text is None:
        grown = isinstance(raw, Tensor) and raw.ndim == 2 and raw.shape[0] > 1
        return verdict(
            Status.FAIL,
            "generation.wrong_axis" if grown else "generation.not_ids",
            say("new tokens are put under the prompt as new rows, not behind it")
            if grown
            else say("generate returns {came}, not token ids", came=str(shape)),
            measured=say("{shape}", shape=str(shape)),
            expected=wanted,
            causes=(say("torch.cat along dim=0"),) if grown else (),
            next_step=say("append along time: torch.cat([ids, new], dim=1)")
            if grown
            else say("return int64 ids of shape (1, T0 + n)"),
        )
    if len(text) < T0 or not torch.equal(text[:T0].to(prompt.device), prompt):
        return verdict(
            Status.FAIL,
            "generation.prompt_lost",
            say("the text does not begin with the prompt"),
            measured=say("{T:token|tokens}", T=len(text)),
            expected=wanted,
            causes=(
                (say("only the new tokens are returned"),)
                if len(text) == count
                else (say("the cropped text is returned in place of the whole one"),)
            ),
            next_step=say("return torch.cat([prompt, new], dim=1)"),
        )
    if len(text) > T0 + count:
        return verdict(
            Status.FAIL,
            "generation.too_many_tokens",
            say(
                "{came:new token comes|new tokens come} where {n} were asked for",
                came=len(text) - T0,
                n=count,
            ),
            measured=say("{T} tokens", T=len(text)),
            expected=wanted,
            causes=(say("the loop runs to another limit than n"),),
            next_step=say("loop `for _ in range(n)`"),
        )
    return None
