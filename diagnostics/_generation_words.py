"""What is said of generated text that differs from the model's own.

Shapes: T0 prompt tokens, n new tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnostics._greedy import Follower, Step
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say

_CROP = "feed ids[:, -block_size:] and take logits[:, -1]"
_LAST = "take logits[:, -1], the prediction after the newest token"
_CACHE = "compare generation with and without the cache, token by token, for one prompt"

# reason: (claim, cause, next step)
READINGS = {
    "other_model": (
        "the text is that of another model than the one that was passed",
        "generate uses a model from its surroundings, not its argument",
        "call the argument: generate(model, ids, n) must read `model`",
    ),
    "argmin": (
        "the least probable token is chosen at every step",
        "argmin, or argmax of the negative logits",
        "take argmax of the logits",
    ),
    "first_position": (
        "tokens are chosen by the logits of position 0, not of the last position",
        "logits[:, 0] in place of logits[:, -1]",
        _LAST,
    ),
    "position_before": (
        "tokens are chosen by the logits before the last: the newest token is not read",
        "logits[:, -2], or the text is cut by one before it is fed",
        _LAST,
    ),
    "newest_token_only": (
        "each token is chosen from the newest token alone: all before it is forgotten",
        "single tokens are fed as with a cache, but no cache is passed or kept",
        _CACHE,
    ),
    "prompt_not_read": (
        "the prompt is not read beyond its last token",
        "only new tokens are fed, and no cache holds the prompt",
        "feed the whole text, or fill the cache with the prompt first",
    ),
    "not_fed_back": (
        "every token is chosen from the prompt alone: new tokens are not read",
        "the prompt is fed at each step in place of the growing text",
        "feed the text with the new tokens: ids = torch.cat([ids, new], dim=1)",
    ),
    "second_best": (
        "the second most probable token is chosen at every step",
        "topk(2) or a sorted list is read at index 1",
        "take argmax of the logits",
    ),
    "repetition_penalty": (
        "greedy tokens avoid repetition: a penalty such as {penalty} on {seen} gives this",
        "the repetition penalty, or a ban of repeated tokens, is left on",
        "set repetition_penalty to 1.0 in the greedy part",
    ),
    "keeps_first_block": (
        "beyond the block the first tokens are read, not the last: the text stops mattering",
        "ids[:, :block_size] in place of ids[:, -block_size:]",
        _CROP,
    ),
    "past_block": (
        "the text is fed whole, beyond the block of {block} tokens",
        "there is no crop; the model takes longer texts, and was not trained on them",
        _CROP,
    ),
    "shorter_context": (
        "beyond the block fewer tokens are read than it holds (about {length} of {block})",
        "the window is cut shorter on purpose, or the crop is off by one",
        _CROP,
    ),
    "context_too_short": (
        "beyond the block only the last {length} of {block} tokens are read",
        "the crop uses another number than block_size",
        _CROP,
    ),
    "past_block_unknown": (
        "beyond the block the text differs from a forward call on the last {block} tokens",
        "a rolling cache keeps keys that were computed with tokens that have left the block",
        _CACHE,
    ),
    "past_block_wrong": (
        "beyond the block the text is not what the model says of its last {block} tokens",
        "old keys keep their old positions when the window slides, or the trim is off by one",
        "recompute the whole window once the text is longer than the block",
    ),
    "cache": (
        "the first new token is right, and later ones are not what the model says",
        "keys, values or positions after the prompt are wrong: a cache that starts its positions "
        "again, adds the prompt's length twice, misses a token or has them in another order",
        _CACHE,
    ),
    "wrong_token": (
        "new tokens are not those that the model's own logits say",
        "",
        "print argmax of model(ids)[:, -1] beside the generated token, step by step",
    ),
    "rows_mixed": (
        "two prompts in one batch are continued otherwise than each alone",
        "a token of one row is written to every row, or rows are mixed by a reshape",
        "choose per row: logits[:, -1].argmax(-1, keepdim=True)",
    ),
    "impossible_id": (
        "an id that no token has was generated",
        "the vocabulary is padded, and generate looks at every column of the logits",
        "cut the logits to [:, :V] before choosing",
    ),
}

# A deliberate design can look like these.
_WARNINGS = {"past_block", "shorter_context", "past_block_unknown"}


def misfit(
    reason: str, wrong: list[Step], total: int, follower: Follower, facts: dict[str, Any]
) -> CheckResult:
    """Say which tokens differ, and what gives them."""
    told, cause, cure = READINGS[reason]
    step = wrong[0]
    scores = follower.right(step.so_far, len(step.case.prompt))
    told_facts = {"block": follower.block, **facts}
    return result(
        Status.WARN if reason in _WARNINGS else Status.FAIL,
        reason,
        say(told, **told_facts),
        measured=say(
            "token {came} came, argmax is {best}", came=step.token, best=int(scores.argmax())
        ),
        expected=say("argmax of the last logits, at every step"),
        where=say(
            "{count} of {total} new tokens; first after {length} tokens of text (prompt {T0})",
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
        return result(
            Status.FAIL,
            "wrong_axis" if grown else "not_ids",
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
        return result(
            Status.FAIL,
            "prompt_lost",
            say("the text does not begin with the prompt"),
            measured=say("{T} tokens", T=len(text)),
            expected=wanted,
            causes=(
                (say("only the new tokens are returned"),)
                if len(text) == count
                else (say("the cropped text is returned in place of the whole one"),)
            ),
            next_step=say("return torch.cat([prompt, new], dim=1)"),
        )
    if len(text) > T0 + count:
        return result(
            Status.FAIL,
            "too_many_tokens",
            say("{came} new tokens come where {n} were asked for", came=len(text) - T0, n=count),
            measured=say("{T} tokens", T=len(text)),
            expected=wanted,
            causes=(say("the loop runs to another limit than n"),),
            next_step=say("loop `for _ in range(n)`"),
        )
    return None


def result(status: Status, word: str, claim: Text, **fields: Any) -> CheckResult:
    """Return a verdict of this check; `word` is what its reason id ends with."""
    return verdict(status, f"generation.{word}", claim, **fields)
