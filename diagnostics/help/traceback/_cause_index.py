"""Causes of indices that are too large: token ids, positions, labels, and indices in general."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

# Names of the tables that are called, as models write them: wpe, pos_emb; wte, token_embedding.
_POSITION_TABLE = re.compile(r"\b(?:\w*_)?(?:pos(?:ition)?s?(?:_\w*|[Ee]mb\w*|al\w*)?|wpe)\(")
_TOKEN_TABLE = re.compile(
    r"\b(?:\w*_)?(?:tok(?:en)?s?(?:_\w*|[Ee]mb\w*)?|wte|vocab\w*|words?_\w*|chars?_\w*)\("
)
_RANGE = "python -m diagnostics --only range"


def _embedding(clues: Clues) -> Explanation | None:
    """A lookup beyond the table; the code of the calling line tells ids from positions."""
    if "IndexError" not in clues.kinds or "index out of range in self" not in clues.message:
        return None
    is_embedding = clues.has_call("embedding") or clues.has_file("torch/nn/modules/sparse.py")
    if clues.trace.frames and not is_embedding:
        return None  # index_select and others say the same
    code = clues.code_near_end()
    positions, tokens = bool(_POSITION_TABLE.search(code)), bool(_TOKEN_TABLE.search(code))
    too_long = say(
        "a position is not below the rows of the position table: a row of tokens "
        "is longer than the block"
    )
    too_large = say(
        "a token id is not below the rows of the embedding, or is negative: ids of "
        "a larger vocabulary than the model's, or a mark for padding such as -100"
    )
    evidence = quoted("index out of range in self") + (f" from {quoted(code)}" if code else "")
    if positions and not tokens:
        return Explanation(
            name="index.position",
            cause=too_long,
            evidence=evidence,
            next_step=say(
                "ask generate for fewer tokens: prompt and max_new_tokens must fit the block"
                if clues.has_file("transformers/generation/")
                else "crop the row before the call: ids = ids[:, -block_size:]"
            ),
        )
    if tokens and not positions:
        return Explanation(
            name="index.token_id", cause=too_large, evidence=evidence, next_step=say(_RANGE)
        )
    elsewhere = () if clues.trace.frames else (say("another lookup, such as index_select"),)
    return Explanation(
        name="index.embedding",
        cause=too_large,
        others=(too_long, *elsewhere),
        evidence=evidence,
        next_step=say(
            "print(ids.min(), ids.max(), ids.shape, table.num_embeddings) on the line before"
        ),
    )


def _label(clues: Clues) -> Explanation | None:
    match = re.search(r"Target (-?\d{1,12}) is out of bounds", clues.message)
    if match is None or "IndexError" not in clues.kinds:
        return None
    label = int(match[1])
    if label < 0:
        cause = say(
            "the label {label} is negative, and cross_entropy skips only the label "
            "that its ignore_index names (-100 unless given)",
            label=label,
        )
        step = say(
            "pass ignore_index={label} to cross_entropy, if {label} marks padding", label=label
        )
    else:
        cause = say(
            "the label {label} needs logits that are at least {width} wide, and these "
            "are narrower: the number of classes (the vocabulary) of the model is too "
            "small, or the label is wrong",
            label=label,
            width=label + 1,
        )
        step = say(_RANGE)
    return Explanation(
        name="index.label", cause=cause, evidence=quoted(match.group()), next_step=step
    )


def _beyond_dimension(clues: Clues) -> Explanation | None:
    match = re.search(
        r"index (-?\d{1,12}) is out of bounds for (dimension|axis) (\d+) with size (\d{1,12})",
        clues.message,
    )
    if match is None or not {"IndexError", "RuntimeError"} & clues.kinds:
        return None  # gather and scatter raise the second
    index, size = int(match[1]), int(match[4])
    if size == 0:
        cause = say(
            "{axis} {number} is empty, so that it has no index {index}",
            axis=match[2],
            number=match[3],
            index=index,
        )
    else:
        cause = say(
            "{axis} {number} has {size:entry|entries}, so that its last index is "
            "{last}; {index} was asked for",
            axis=match[2],
            number=match[3],
            size=size,
            last=size - 1,
            index=index,
        )
    return Explanation(
        name="index.beyond_dimension",
        cause=cause,
        evidence=quoted(match.group()),
        next_step=say("print the shape of what is indexed on the line before the one above"),
    )


RULES: tuple[Rule, ...] = (
    _embedding,
    _label,
    _beyond_dimension,
    rule(
        "index.list",
        "IndexError",
        r"^(?:list|tuple|string|deque) index out of range",
        "a Python sequence is shorter than the code expects; this is no index into a tensor",
        "print the length of the sequence and the index on the line before the one above",
    ),
    rule(
        "index.too_many",
        "IndexError",
        r"too many indices for (?:tensor of dimension (?P<has>\d+)|array: array is "
        r"(?P<array>\d+)-dimensional)",
        "the tensor has fewer dimensions ({has}{array}) than indices stand in the "
        "brackets: the batch or the time dimension may have been dropped",
        "print the shape of what is indexed on the line before the one above",
    ),
    rule(
        "index.dimension",
        "IndexError",
        r"Dimension out of range \(expected to be in range of \[(?P<low>-?\d+), "
        r"(?P<high>-?\d+)\], but got (?P<got>-?\d+)\)",
        "dimension {got} was named, and the tensor's last one is {high}: it has "
        "fewer dimensions than expected",
        "print the tensor's shape on the line before the one above",
    ),
    rule(
        "index.dtype",
        "IndexError RuntimeError",
        r"tensors used as indices must be long, int, byte or bool tensors"
        r"|Expected dtype int(?:32/|32 or |)(?:int)?64 for index"
        r"|one_hot is only applicable to index tensor of type LongTensor",
        "the index is a tensor of a number type that no index here may have: floating "
        "point, or a small type such as int16 or uint16",
        "index with int64 numbers: index.long()",
    ),
    rule(
        "index.top_k",
        "RuntimeError",
        r"selected index k out of range",
        "topk was asked for more entries than the dimension has: top_k must not "
        "exceed the vocabulary",
        "limit it: k = min(top_k, logits.size(-1))",
    ),
)
