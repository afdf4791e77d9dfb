"""The contract of the range: documents joined into one row of ids that the embedding has rows for.

Shapes: N ids of a row, V vocabulary of the documents.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_number,
    as_parts,
    as_tensor,
    count_unequal,
)

# on both sides of what 8, 15 and 16 bits can number
VOCAB_SIZES = (10, 200, 255, 256, 300, 32_767, 40_000, 65_536, 70_000)
MODULI = (256, 65_536)


def right_list(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Collect plain numbers, and make a tensor of them at the end."""
    ids: list[int] = []
    for document in documents:
        ids += [*document.tolist(), vocab_size]
    return torch.tensor(ids), vocab_size + 1


def right_filled(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Fill the row with the end token, and write the documents over it."""
    length = sum(len(document) + 1 for document in documents)
    row = torch.full((length,), vocab_size, dtype=torch.int32)  # 32 bits hold every id
    start = 0
    for document in documents:
        row[start : start + len(document)] = document
        start += len(document) + 1
    return row.long(), vocab_size + 1


def right_padded(documents: list[Tensor], vocab_size: int) -> list[Tensor]:
    """Add an end to each document on its own, join them, and count the rows as a tensor."""
    ended = [nn.functional.pad(document, (0, 1), value=vocab_size) for document in documents]
    ids = torch.cat(ended)
    return [ids, ids.amax() + 1]


def wrong_no_row_for_end(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Add a token, and leave the embedding as it was."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    rows = vocab_size  # BROKEN: was rows = vocab_size + 1
    return ids, rows


def wrong_negative_end(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Mark the end by a number that stands for no token."""
    end = torch.tensor([-1])  # BROKEN: was end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    return ids, vocab_size + 1


def wrong_one_byte(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Store the ids of a large vocabulary in one byte each."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    stored = ids.to(torch.uint8)  # BROKEN: was stored = ids.to(torch.int32)
    return stored.long(), vocab_size + 1


def wrong_ordinary_end(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Silence an index error by clamping, which turns the end into an ordinary token."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    last = vocab_size - 1  # BROKEN: was last = vocab_size
    return ids.clamp(0, last), vocab_size + 1


def wrong_byte_too_far(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Choose the width by the old vocabulary: 256 tokens and an end do not fit into a byte."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    narrow = vocab_size <= 256  # BROKEN: was narrow = vocab_size + 1 <= 256
    stored = ids.to(torch.uint8 if narrow else torch.int32)
    return stored.long(), vocab_size + 1


def wrong_signed(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Store 16 bits with a sign: they hold nothing above 32,767."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    kind = torch.int16 if vocab_size < 60_000 else torch.int32
    stored = ids.to(kind)  # BROKEN: was stored = ids.to(torch.int32)
    return stored.long(), vocab_size + 1


def wrong_rounded(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]:
    """Send the ids through the number type of the weights, which has 8 significant bits."""
    end = torch.tensor([vocab_size])
    ids = torch.cat([part for document in documents for part in (document, end)])
    moved = ids.to(torch.bfloat16)  # BROKEN: was moved = ids.to(torch.float64)
    return moved.long(), vocab_size + 1


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Use every id of the ends of vocabularies of many sizes, and compare the whole row."""
    for V in VOCAB_SIZES:
        documents = _documents(V)
        wanted = torch.cat([torch.cat((document, torch.tensor([V]))) for document in documents])
        parts = as_parts(implementation(documents, V), "ids", "rows")
        ids = as_tensor(parts[0], "ids", shape=tuple(wanted.shape), dtype=torch.int64)
        rows = as_number(parts[1], "rows")
        yield Finding(
            float(count_unequal(ids, wanted)),
            f"with a vocabulary of {V} and the end token {V}, {_describe(ids, wanted)}",
        )
        yield Finding(
            abs(rows - (V + 1)),
            f"rows is {rows:.0f}, and the end token {V} needs an embedding of {V + 1} rows",
        )


def _documents(V: int) -> list[Tensor]:
    """Make documents of several lengths; the lowest and the highest ids are among theirs."""
    documents = [torch.randint(V, (length,)) for length in (7, 1, 12, 30)]
    documents[0][:3] = torch.tensor([0, V - 1, V // 2])
    documents[2] = torch.arange(V - 10, V).repeat(2)[:12]
    return documents


def _describe(ids: Tensor, wanted: Tensor) -> str:
    """Say how many ids differ, show the first, and name the pattern when it is a known one."""
    wrong = ids != wanted
    if not wrong.any():
        return "all ids are right"
    position = int(wrong.nonzero()[0])
    told = (
        f"{int(wrong.sum())} of {len(wanted)} ids differ; the first is {int(ids[position])} at "
        f"position {position}, expected {int(wanted[position])}"
    )
    ends = wanted == wanted.max()
    modulus = next((m for m in MODULI if torch.equal(ids, wanted % m)), None)
    if modulus is not None:
        return f"{told}: all are right modulo {modulus}"
    if torch.equal(wrong, ends):
        return f"{told}: the ends are wrong, and nothing else is"
    if int(ids.min()) < 0:
        return f"{told}: {int((ids < 0).sum())} are negative"
    return told


CONTRACT = Contract(
    check="range",
    signature="implementation(documents: list[Tensor], vocab_size: int) -> tuple[Tensor, int]",
    promise=(
        "documents are one or more tensors (N_i,), int64, N_i >= 1, of ids from 0 to "
        "vocab_size - 1; vocab_size is at most 100000. It joins them in their order into one row "
        "of ids (N,), int64, and puts an end token after each document, the last one too. The "
        "end token is a new one: its id is vocab_size. It returns (ids, rows); rows is the number "
        "of rows that an embedding for these ids must have: vocab_size + 1."
    ),
    rights=(
        Right(name="list", implementation=right_list, note="a list of numbers"),
        Right(name="filled", implementation=right_filled, note="a row that is written over"),
        Right(name="padded", implementation=right_padded, note="an end padded to each document"),
    ),
    wrongs=(
        Wrong(
            name="no_row_for_end",
            implementation=wrong_no_row_for_end,
            note="the embedding has no row for the end token",
        ),
        Wrong(
            name="negative_end",
            implementation=wrong_negative_end,
            note="the end token is -1",
        ),
        Wrong(
            name="one_byte",
            implementation=wrong_one_byte,
            note="ids are stored in 8 bits, and larger ones wrap round",
        ),
        Wrong(
            name="ordinary_end",
            implementation=wrong_ordinary_end,
            note="ids are clamped, and the end becomes the last ordinary token",
        ),
        Wrong(
            name="byte_too_far",
            implementation=wrong_byte_too_far,
            note="a vocabulary of 256 and an end token are stored in one byte",
            held_out=True,
        ),
        Wrong(
            name="signed",
            implementation=wrong_signed,
            note="ids above 32767 become negative",
            held_out=True,
        ),
        Wrong(
            name="rounded",
            implementation=wrong_rounded,
            note="ids above 256 are rounded to 8 significant bits",
            held_out=True,
        ),
    ),
    examine=examine,
)
