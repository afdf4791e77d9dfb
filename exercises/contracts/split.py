"""The contract of the split: windows of documents, none of which stands in both parts.

Shapes: N tokens of a document, R rows, T time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_parts,
    as_tensor,
    count_unequal,
)

T = 7  # the window has T + 1 tokens
DOCUMENTS, COPIES = 30, 6
APART = 1000  # between the tokens of two documents
CALLS = 3
VAL_SHARE_MAX = 1 / 3


def right_last_documents(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keep the last documents for validation, and cut every window."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]  # each (R, T + 1)
    cut = len(windows) - len(windows) // 5
    return torch.cat(windows[:cut]).clone(), torch.cat(windows[cut:]).clone()


def right_every_sixth(documents: list[Tensor]) -> list[Tensor]:
    """Sort the documents by what they hold, and keep every sixth; windows lie side by side."""
    texts = sorted(
        {tuple(document.tolist()) for document in documents}, key=lambda text: text[::-1]
    )
    parts: list[list[list[int]]] = [[], []]
    for number, text in enumerate(texts):
        starts = range(0, len(text) - 7, 8)
        parts[number % 6 == 0] += [list(text[start : start + 8]) for start in starts]
    return [torch.tensor(rows) for rows in parts]


def right_seeded(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Shuffle with a seed of its own, split, and gather windows at every second place."""
    kept: list[Tensor] = []
    for document in documents:
        if not any(torch.equal(document, other) for other in kept):
            kept.append(document)
    generator = torch.Generator().manual_seed(99)
    order = torch.randperm(len(kept), generator=generator).tolist()
    rows = [
        kept[i][torch.arange(0, len(kept[i]) - 7, 2)[:, None] + torch.arange(8)]  # (R, T + 1)
        for i in order
    ]
    cut = max(1, len(kept) // 10)
    return torch.cat(rows[cut:]), torch.cat(rows[:cut])


def wrong_train_on_all(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keep a part for validation, and train on everything."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    cut = len(windows) // 10
    train = torch.cat(windows)  # BROKEN: was train = torch.cat(windows[cut:])
    return train, torch.cat(windows[:cut])


def wrong_windows_first(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Cut windows that overlap, shuffle them, and split after that."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    pieces = torch.cat(windows).split(1)  # BROKEN: was pieces = tuple(windows)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pieces), generator=generator).tolist()
    cut = len(pieces) // 10
    train, val = order[cut:], order[:cut]
    return torch.cat([pieces[i] for i in train]), torch.cat([pieces[i] for i in val])


def wrong_redrawn(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Split at random, without a seed of its own."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    generator = None  # BROKEN: was generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(windows), generator=generator).tolist()
    cut = len(windows) // 10
    train, val = order[cut:], order[:cut]
    return torch.cat([windows[i] for i in train]), torch.cat([windows[i] for i in val])


def wrong_copies(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Split without looking for copies first."""
    distinct = {tuple(document.tolist()): document for document in documents}
    chosen = list(documents)  # BROKEN: was chosen = list(distinct.values())
    windows = [document.unfold(0, 8, 1) for document in chosen]
    cut = len(distinct) // 10
    return torch.cat(windows[cut:]), torch.cat(windows[:cut])


def wrong_two_orders(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Take one part after shuffling, and the other before."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    generator = torch.Generator().manual_seed(0)
    shuffled = [windows[i] for i in torch.randperm(len(windows), generator=generator).tolist()]
    cut = len(windows) // 10
    val = windows[:cut]  # BROKEN: was val = shuffled[:cut]
    return torch.cat(shuffled[cut:]), torch.cat(val)


def wrong_shared_document(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Cut the two parts one document apart, so that both hold it."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    cut = len(windows) // 10
    train = torch.cat(windows[cut - 1 :])  # BROKEN: was train = torch.cat(windows[cut:])
    return train, torch.cat(windows[:cut])


def wrong_across(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Join the documents before windows are cut, which then reach from one into the next."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    cut = len(distinct) // 10
    train, val = distinct[cut:], distinct[:cut]
    sources = [torch.cat(train)]  # BROKEN: was sources = train
    return (
        torch.cat([document.unfold(0, 8, 1) for document in sources]),
        torch.cat([document.unfold(0, 8, 1) for document in val]),
    )


def wrong_empty(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keep one row in two hundred, which is none of a short text."""
    distinct = list({tuple(document.tolist()): document for document in documents}.values())
    windows = [document.unfold(0, 8, 1) for document in distinct]
    cut = len(windows) // 10
    train, val = torch.cat(windows[cut:]), torch.cat(windows[:cut])
    kept = len(val) // 200  # BROKEN: was kept = len(val)
    return train, val[:kept]


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Give documents whose tokens tell document and place, some of them twice; compare parts."""
    for copies in (0, COPIES):
        documents = _documents(copies)
        splits: list[frozenset[int]] = []
        while len(splits) < CALLS:
            parts = as_parts(implementation([d.clone() for d in documents]), "train", "val")
            train = as_tensor(parts[0], "train", dtype=torch.int64)
            val = as_tensor(parts[1], "val", dtype=torch.int64)
            for name, rows in (("train", train), ("val", val)):
                if rows.ndim != 2 or rows.shape[1] != T + 1:
                    told = f"{name} has shape {tuple(rows.shape)}, wanted (rows, {T + 1})"
                    yield Finding(float("inf"), told)
                    return
            yield from _judge_rows(documents, train, val)
            splits.append(frozenset((val[:, 0] // APART).tolist()))
        moved = len(splits[0].symmetric_difference(splits[-1]))
        yield Finding(
            float(moved),
            f"call 1 and call {CALLS} split the same {DOCUMENTS} documents in two ways: "
            f"{moved} of them are in val in one and not in the other",
        )


def _documents(copies: int) -> list[Tensor]:
    """Make documents of several lengths; copies of the last, others and the first follow."""
    lengths = torch.randint(T + 1, 4 * T, (DOCUMENTS,)).tolist()
    documents = [torch.arange(n) + APART * (i + 1) for i, n in enumerate(lengths)]
    copied = [DOCUMENTS - 1, *torch.randperm(DOCUMENTS)[2:copies].tolist(), 0][:copies]
    return [*documents, *(documents[i].clone() for i in copied)]


def _judge_rows(documents: list[Tensor], train: Tensor, val: Tensor) -> Iterator[Finding]:
    """Look for rows that are no windows, for documents that both parts or none of them hold."""
    firsts = [int(document[0]) // APART for document in documents]
    known = set(firsts)
    for name, rows in (("train", train), ("val", val)):
        yield Finding(0.0 if len(rows) else 1.0, f"{name} holds no row, from {DOCUMENTS} documents")
        wrong = count_unequal(rows, rows[:, :1] + torch.arange(T + 1))
        yield Finding(
            float(wrong),
            f"{wrong} of {rows.numel()} tokens of {name} are not the next ones of their row's "
            "document: rows must be windows of one document each",
        )
    trained, kept = (set((rows[:, 0] // APART).tolist()) for rows in (train, val))
    both = trained & kept
    same = int(torch.isin(val, train).all(dim=1).sum())
    told = (
        f"documents in both parts: {len(both)} of {len(known)}; {same} of {len(val)} rows of val "
        "hold nothing but tokens that train holds too"
    )
    if all(firsts.count(first) > 1 for first in both):
        told += "; all these documents have copies"
    yield Finding(float(len(both)), told)
    lost = known - trained - kept
    yield Finding(float(len(lost)), f"{len(lost)} of {len(known)} documents are in neither part")
    foreign = (trained | kept) - known
    yield Finding(float(len(foreign)), f"{len(foreign)} rows begin with tokens of no document")
    share = len(kept) / len(known)
    large = 0.0 if share <= VAL_SHARE_MAX else share
    yield Finding(
        large, f"{len(kept)} of {len(known)} documents are in val, wanted a third at most"
    )


CONTRACT = Contract(
    check="split",
    signature="implementation(documents: list[Tensor]) -> tuple[Tensor, Tensor]",
    promise=(
        "documents are tensors (N_i,), int64, N_i >= 8; at least 20 of them differ, and some may "
        "be copies of others. It returns (train, val), both (rows, 8), int64, with at least one "
        "row: windows of 8 tokens in a row, each of one document. Every document gives windows to "
        "one of the parts and none to the other, its copies included; at most a third of the "
        "different ones are in val. The same documents are split in the same way at every call."
    ),
    rights=(
        Right(name="last", implementation=right_last_documents, note="the last documents"),
        Right(name="every_sixth", implementation=right_every_sixth, note="every sixth by content"),
        Right(name="seeded", implementation=right_seeded, note="shuffled with a fixed seed"),
    ),
    wrongs=(
        Wrong(
            name="train_on_all",
            implementation=wrong_train_on_all,
            note="validation documents are trained on as well",
        ),
        Wrong(
            name="windows_first",
            implementation=wrong_windows_first,
            note="windows that overlap are shuffled into two parts",
        ),
        Wrong(
            name="redrawn",
            implementation=wrong_redrawn,
            note="each call splits in another way",
        ),
        Wrong(
            name="empty",
            implementation=wrong_empty,
            note="so few rows are kept for validation that there are none",
        ),
        Wrong(
            name="copies",
            implementation=wrong_copies,
            note="a document is in one part and its copy in the other",
            held_out=True,
        ),
        Wrong(
            name="two_orders",
            implementation=wrong_two_orders,
            note="one part is taken after shuffling, the other before",
            held_out=True,
        ),
        Wrong(
            name="shared_document",
            implementation=wrong_shared_document,
            note="one document is in both parts",
            held_out=True,
        ),
        Wrong(
            name="across",
            implementation=wrong_across,
            note="windows reach from one document into the next",
            held_out=True,
        ),
    ),
    examine=examine,
)
