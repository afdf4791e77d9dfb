"""Bugs in files, in the tokenizer, and in the ids that are stored.

Shapes: N ids, M validation ids, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    replaced,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._text import say
from diagnostics._tokenizer import ids_of


def _first_file(spoil: Callable[[Path], Path]) -> Inject:
    """Put a spoilt copy in the place of the first file; it goes away with the pipeline."""

    def inject(pipeline: Pipeline) -> Pipeline:
        first = next((path for path in map(Path, pipeline.files) if path.is_file()), None)
        if first is None:
            raise CannotInject(say("no file of the pipeline is there"))
        folder = Path(tempfile.mkdtemp(prefix="diagnostics-"))
        copied = Path(shutil.copy2(first, folder))
        others = [path for path in map(Path, pipeline.files) if path != first]
        changed = dataclasses.replace(pipeline, files=(spoil(copied), *others))
        weakref.finalize(changed, shutil.rmtree, folder, ignore_errors=True)
        return changed

    return inject


def _removed(path: Path) -> Path:
    path.unlink()
    return path


def _emptied(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def _of_folder(path: Path) -> Path:
    return path.parent


def _tokenizer(
    *,
    text: Callable[[str], str] = lambda text: text,
    ids: Callable[[list[int]], list[int]] = lambda ids: ids,
    decoded: Callable[[list[int]], list[int]] = lambda ids: ids,
) -> Inject:
    """Change the text before it is encoded, the ids after, or the ids before they are decoded."""

    def inject(pipeline: Pipeline) -> Pipeline:
        inner: Any = pipeline.tokenizer

        class Changed(type(inner)):  # type: ignore[misc]
            def encode(self, *args: Any, **options: Any) -> list[int]:
                return ids(ids_of(inner.encode(text(args[0]), *args[1:], **options)))

            def decode(self, given: Any, *args: Any, **options: Any) -> Any:
                return inner.decode(decoded([int(i) for i in given]), *args, **options)

        changed = copy.copy(inner)
        try:
            changed.__class__ = Changed
        except TypeError as error:  # slots, or a class written in another language
            raise CannotInject(say("the tokenizer's methods cannot be wrapped")) from error
        return dataclasses.replace(pipeline, tokenizer=changed)

    return inject


def _one_for_another(pipeline: Pipeline) -> Pipeline:
    """Read one letter as another one; spaces and signs have names of their own."""
    try:
        ids = [ids_of(pipeline.tokenizer.encode(letter)) for letter in "et"]
    except Exception as error:  # any: letters that the tokenizer does not know
        raise CannotInject(say("the tokenizer does not know the letters e and t")) from error
    if ids[0] == ids[1] or len(ids[0]) != 1 or len(ids[1]) != 1:
        raise CannotInject(say("the tokenizer has no id of its own for the letters e and t"))
    (wrong,), (right,) = ids
    return _tokenizer(decoded=lambda row: [wrong if i == right else i for i in row])(pipeline)


def _ids(change: Callable[[Tensor, int], Tensor]) -> Inject:
    """Change train_ids (N,): change(ids, V) -> ids."""

    def make(pipeline: Pipeline) -> Tensor:
        ids = torch.as_tensor(pipeline.train_ids)
        return change(ids.clone(), Probe(pipeline).usable_vocab_size)

    return replaced(train_ids=make)


def _one_id(value: Callable[[int], int]) -> Callable[[Tensor, int], Tensor]:
    def change(ids: Tensor, V: int) -> Tensor:
        wide = ids.long()
        wide[len(ids) // 2] = value(V)
        return wide

    return change


def _val(change: Callable[[Tensor, Tensor], Tensor]) -> Inject:
    """Change val_ids (M,): change(train_ids, val_ids) -> val_ids."""

    def make(pipeline: Pipeline) -> Tensor:
        train, val = torch.as_tensor(pipeline.train_ids), torch.as_tensor(pipeline.val_ids)
        return change(train, val).clone()

    return replaced(val_ids=make)


def _middle_lost(ids: Tensor, V: int) -> Tensor:
    ids[len(ids) // 3 : len(ids) // 2] = ids[0]
    return ids


def _exchanged(ids: Tensor, V: int) -> Tensor:
    """Exchange the two most frequent ids."""
    a, b = (int(i) for i in ids.long().bincount().topk(2).indices)
    return torch.where(ids == a, b, torch.where(ids == b, a, ids))


TOKENIZER, IDS = ("tokenizer",), ("train_ids",)


SPLIT = ("train_ids", "val_ids")


STORED = ("tokenizer", "train_text", "train_ids")


INJECTIONS = (
    Injection("files.missing", "a file is not there", _first_file(_removed), ("files",)),
    Injection("files.empty", "a file is empty", _first_file(_emptied), ("files",)),
    Injection("files.folder", "a folder is named as a file", _first_file(_of_folder), ("files",)),
    Injection(
        "roundtrip.lowercased",
        "text is lower-cased before it is encoded",
        _tokenizer(text=str.lower),
        TOKENIZER,
    ),
    Injection(
        "roundtrip.newline_dropped",
        "newlines are dropped before text is encoded",
        _tokenizer(text=lambda text: text.replace("\n", "")),
        TOKENIZER,
        ("roundtrip.newline_changed", "roundtrip.characters_dropped"),
    ),
    Injection(
        "roundtrip.stripped",
        "text is stripped before it is encoded",
        _tokenizer(text=str.strip),
        TOKENIZER,
    ),
    Injection(
        "roundtrip.one_for_another",
        "the letter t is decoded as e",
        _one_for_another,
        TOKENIZER,
        ("roundtrip.changed", "roundtrip.characters_merged"),
    ),
    Injection(
        "roundtrip.reversed",
        "ids are decoded backwards",
        _tokenizer(decoded=lambda i: i[::-1]),
        TOKENIZER,
    ),
    Injection(
        "fingerprint.offset_ids",
        "every stored id is one too large, the largest becomes 0",
        _ids(lambda ids, V: (ids + 1) % V),
        STORED,
        ("fingerprint.offset_ids", "fingerprint.order_differs"),
    ),
    Injection(
        "fingerprint.order_differs",
        "two ids are exchanged in the stored ids",
        _ids(_exchanged),
        STORED,
    ),
    Injection("range.equals_vocab_size", "one train id is V", _ids(_one_id(lambda V: V)), IDS),
    Injection("range.negative", "one train id is -1", _ids(_one_id(lambda V: -1)), IDS),
    Injection("range.too_large", "one train id is V + 5", _ids(_one_id(lambda V: V + 5)), IDS),
    Injection(
        "range.not_integer",
        "train ids are kept as floating point numbers",
        _ids(lambda ids, V: ids.float()),
        IDS,
        ("range.not_integer", "range.wrong_dtype"),
    ),
    Injection(
        "text.reversed", "the stored ids run backwards", _ids(lambda ids, V: ids.flip(0)), STORED
    ),
    Injection(
        "text.tokens_lost",
        "every second id is missing in the stored ids",
        _ids(lambda ids, V: ids[::2]),
        STORED,
    ),
    Injection(
        "text.head_missing",
        "the first quarter of the stored ids is missing",
        _ids(lambda ids, V: ids[len(ids) // 4 :]),
        STORED,
    ),
    Injection(
        "text.one_token",
        "the middle of the stored ids holds one id only",
        _ids(_middle_lost),
        STORED,
        ("text.one_token", "text.part_differs"),
    ),
    Injection(
        "text.piece_missing",
        "a tenth of the stored ids is missing in the middle",
        _ids(lambda ids, V: torch.cat([ids[: len(ids) // 2], ids[len(ids) * 3 // 5 :]])),
        STORED,
    ),
    Injection(
        "split.identical",
        "validation ids are the training ids",
        _val(lambda train, val: train),
        SPLIT,
    ),
    Injection(
        "split.inside_train",
        "validation ids are a part of the training ids",
        _val(lambda train, val: train[len(train) // 2 :][: len(val)]),
        SPLIT,
    ),
    Injection(
        "split.ranges_overlap",
        "the validation ids begin inside the training ids",
        _val(lambda train, val: torch.cat([train[-(len(val) // 2) :], val])),
        SPLIT,
        ("split.ranges_overlap", "split.overlap"),
    ),
    Injection(
        "split.too_short",
        "only three validation ids are left",
        _val(lambda train, val: val[:3]),
        SPLIT,
    ),
    Injection(
        "split.empty", "there are no validation ids", _val(lambda train, val: val[:0]), SPLIT
    ),
)
