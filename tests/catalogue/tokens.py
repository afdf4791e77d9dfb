"""Rows of the table: tokenizers, special tokens and fingerprints."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._lab import Lab
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, save_checkpoint
from tests.catalogue._row import Row, Unseen
from tests.catalogue.data import documents_of, switched

# ---- tokenizers ------------------------------------------------------------------------------


class Characters:
    """A character table with special entries, as courses write it."""

    def __init__(self, text: str, specials: Sequence[str] = (), *, start: bool = False) -> None:
        self.chars = [*specials, *sorted(set(text))]
        self.id_of = {char: index for index, char in enumerate(self.chars)}
        self.vocab_size = len(self.chars)
        self.eos_token_id = self.id_of.get("<|end|>")
        self.bos_token_id = self.id_of.get("<s>")
        self.start = start  # whether encode begins every text with <s>
        self._pattern = re.compile("|".join([*map(re.escape, specials), "."]), re.DOTALL)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Read special entries that stand in the text as one id each."""
        begin = [self.id_of["<s>"]] if self.start and add_special_tokens else []
        return [*begin, *(self.id_of[piece] for piece in self._pattern.findall(text))]

    def decode(self, ids: Sequence[int]) -> str:
        """Join the entries."""
        return "".join(self.chars[int(i)] for i in ids)


class Merges:
    """Byte-pair encoding: merges are learnt and applied inside the pieces of a pattern."""

    def __init__(self, text: str, count: int, learn_on: str, apply_on: str = r"\s?\S+|\s+") -> None:
        self.apply_on = re.compile(apply_on, re.DOTALL)
        words = Counter(tuple(piece) for piece in re.findall(learn_on, text, re.DOTALL))
        self.ranks: dict[tuple[str, str], int] = {}
        for rank in range(count):
            pairs: Counter[tuple[str, str]] = Counter()
            for word, times in words.items():
                for pair in itertools.pairwise(word):
                    pairs[pair] += times
            if not pairs:
                break
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.ranks[best] = rank
            merged: Counter[tuple[str, ...]] = Counter()
            for word, times in words.items():
                merged[self._merge(word, best)] += times
            words = merged
        self.vocab = list(dict.fromkeys([*sorted(set(text)), *("".join(p) for p in self.ranks)]))
        self.id_of = {entry: index for index, entry in enumerate(self.vocab)}
        self.vocab_size = len(self.vocab)
        self._piece = cache(self._encode_piece)

    @staticmethod
    def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
        merged: list[str] = []
        for part in word:
            if merged and (merged[-1], part) == pair:
                merged[-1] += part
            else:
                merged.append(part)
        return tuple(merged)

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        word = tuple(piece)
        while len(word) > 1:
            pairs = itertools.pairwise(word)
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 10**9))
            if best not in self.ranks:
                break
            word = self._merge(word, best)
        return tuple(self.id_of[part] for part in word)

    def encode(self, text: str) -> list[int]:
        """Encode piece by piece."""
        return [i for piece in self.apply_on.findall(text) for i in self._piece(piece)]

    def decode(self, ids: Sequence[int]) -> str:
        """Join the entries."""
        return "".join(self.vocab[int(i)] for i in ids)


def fresh(config: MiniGPTConfig) -> MiniGPT:
    """A model with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MiniGPT(config)


def with_tokenizer(
    lab: Lab, tokenizer: Any, ids: Sequence[int] | Tensor, text: str | None, **parts: Any
) -> Pipeline:
    """A pipeline around another tokenizer, with a model of its size."""
    V = tokenizer.vocab_size
    config = dataclasses.replace(lab.config, vocab_size=V)
    healthy: dict[str, Any] = {
        "make_model": lambda: MiniGPT(config), "model": fresh(config), "vocab_size": V,
        "tokenizer": tokenizer,
        "train_ids": torch.as_tensor(ids), "train_text": text, "val_ids": None, "pad_id": None,
        "files": (), "save": None, "load": None, "save_state": None, "load_state": None,
        "batches_from": None,
    }  # fmt: skip
    return lab.pipeline(**(healthy | parts))


def order_of_a_set(lab: Lab, broken: bool) -> Pipeline:
    """The vocabulary is list(set(text)): another order in each process."""
    chars = list(set(lab.text)) if broken else sorted(set(lab.text))
    tokenizer = CharTokenizer(chars)
    return with_tokenizer(lab, tokenizer, tokenizer.encode(lab.text), lab.text)


def merges_across_words(lab: Lab, broken: bool) -> Pipeline:
    """Merges are learnt on raw lines, and applied to single words: many are never used."""
    words = r"\s?\S+|\s+"
    text = lab.text[:12_000]
    tokenizer = Merges(text, 200, learn_on=r"[^\n]+|\n+" if broken else words)
    return with_tokenizer(lab, tokenizer, tokenizer.encode(text), text)


def normalised(lab: Lab, broken: bool) -> Pipeline:
    """A normaliser in front of encode strips and lowercases."""

    class Normalising(Characters):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return super().encode(text.strip().lower() if broken else text)

    tokenizer = Normalising(lab.text)
    return with_tokenizer(lab, tokenizer, tokenizer.encode(lab.train_text), lab.train_text)


def lines_of_entries(lab: Lab, broken: bool) -> Pipeline:
    """The vocabulary is saved one entry a line: the line end cannot be read back."""
    path = lab.folder / "vocab.txt"
    chars = sorted(set(lab.text))
    if broken:
        path.write_text("\n".join(chars), encoding="utf-8")
        entries = path.read_text(encoding="utf-8").split("\n")
    else:
        path.write_text("\n".join(map(ascii, chars)), encoding="utf-8")
        entries = [line[1:-1].encode().decode("unicode_escape") for line in
                   path.read_text(encoding="utf-8").split("\n")]  # fmt: skip
    tokenizer = Characters("".join(entries))
    ids = Characters(lab.text).encode(lab.train_text)
    return with_tokenizer(lab, tokenizer, ids, lab.train_text)


# ---- special tokens --------------------------------------------------------------------------

MARKS = ("<|end|>", "<s>")


def marked_text(lab: Lab) -> str:
    """The documents with a marker after each of them."""
    return "".join(document + "<|end|>" for document in documents_of(lab))


def two_starts(lab: Lab, broken: bool) -> Pipeline:
    """The template writes <s> in front of each document, and encode adds one more."""
    tokenizer = Characters(lab.text, MARKS, start=True)
    template = "<s>{}<|end|>" if broken else "{}<|end|>"
    documents = documents_of(lab)
    ids = [i for document in documents for i in tokenizer.encode(template.format(document))]
    return with_tokenizer(lab, tokenizer, ids, None)


def no_start(lab: Lab, broken: bool) -> Pipeline:
    """add_special_tokens=False everywhere, also where no template writes a start token."""
    tokenizer = Characters(lab.text, MARKS, start=True)
    documents = documents_of(lab)
    ids = [i for document in documents for i in tokenizer.encode(document, not broken)]
    return with_tokenizer(lab, tokenizer, ids, None)


def no_terminator(lab: Lab, broken: bool) -> Pipeline:
    """Documents are split at the marker, encoded, and joined without its id."""
    tokenizer, text = Characters(lab.text, MARKS), marked_text(lab)
    end = [] if broken else [tokenizer.id_of["<|end|>"]]
    documents = text.split("<|end|>")[:-1]
    ids = [i for document in documents for i in [*tokenizer.encode(document), *end]]
    return with_tokenizer(lab, tokenizer, ids, text)


def seams_trained(lab: Lab, broken: bool) -> Pipeline:
    """Packed rows: the last token of a document has the first of the next one as its target."""
    pipeline = no_terminator(lab, broken)
    ids, T = pipeline.train_ids, lab.config.block_size
    assert ids is not None
    rows = ids[: (len(ids) - 1) // T * T + 1].unfold(0, T + 1, T)

    def batch(split: str) -> tuple[Tensor, Tensor]:
        if split != "train":
            raise KeyError(split)
        chosen = rows[torch.randint(len(rows), (8,))]
        return chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()

    pipeline.batch, pipeline.get_batch = batch, None
    return pipeline


def marker_spelled_out(lab: Lab, broken: bool) -> Pipeline:
    """The marker of the text is encoded letter by letter, as any other text."""
    tokenizer, text = Characters(marked_text(lab), MARKS), marked_text(lab)
    ids = [tokenizer.id_of[char] for char in text] if broken else tokenizer.encode(text)
    return with_tokenizer(lab, tokenizer, ids, text)


def other_terminator(lab: Lab, broken: bool) -> Pipeline:
    """A generator stops at the id of the configuration, which no document ends with."""
    tokenizer, text = Characters(lab.text, MARKS), marked_text(lab)
    pipeline = with_tokenizer(lab, tokenizer, tokenizer.encode(text), text)
    stop = tokenizer.id_of["<s>"] if broken else tokenizer.id_of["<|end|>"]
    pipeline.model.eos_token_id = stop  # type: ignore[assignment]
    return pipeline


def cut_documents(lab: Lab, broken: bool) -> Pipeline:
    """Documents are cut at a length after the terminator was appended."""
    tokenizer, text = Characters(lab.text, MARKS), marked_text(lab)
    limit = 300 if broken else 10**6
    documents = [document + "<|end|>" for document in text.split("<|end|>")[:-1]]
    ids = [i for document in documents for i in tokenizer.encode(document)[:limit]]
    return with_tokenizer(lab, tokenizer, ids, text)


# ---- fingerprints -----------------------------------------------------------------------


def other_tokenizer(lab: Lab, broken: bool) -> Pipeline:
    """The checkpoint is used with a tokenizer of equal size, sorted in another way."""
    path = lab.folder / "model.safetensors"
    save_checkpoint(path, MiniGPT(lab.config), lab.tokenizer)
    chars = sorted(set(lab.text), key=(lambda c: (c.lower(), c)) if broken else None)
    tokenizer = CharTokenizer(chars)
    return with_tokenizer(lab, tokenizer, tokenizer.encode(lab.text), lab.text, files=(path,))


def resized_at_load(lab: Lab, broken: bool) -> Pipeline:
    """Loading pads the embedding with new random rows up to the size of a larger tokenizer."""

    def load(path: Path) -> nn.Module:
        small = lab.pipeline().load
        assert small is not None
        model = small(path)
        if not broken:
            return model
        config = dataclasses.replace(lab.config, vocab_size=lab.config.vocab_size + 5)
        larger = MiniGPT(config)
        with torch.no_grad():
            for name, parameter in larger.named_parameters():
                old = dict(model.named_parameters())[name]
                parameter[tuple(slice(n) for n in old.shape)] = old
        return larger

    return lab.pipeline(load=load)


ROWS: tuple[Row, ...] = (
    switched(
        "vocab-from-unsorted-set",
        "fingerprint",
        "fingerprint.order_from_set",
        order_of_a_set,
    ),
    switched(
        "bpe-train-encode-mismatch",
        "roundtrip",
        "roundtrip.merges_unused",
        merges_across_words,
    ),
    switched("lossy-normaliser", "roundtrip", "roundtrip.lowercased", normalised),
    switched(
        "newline-token-unrepresentable",
        "roundtrip",
        "roundtrip.unknown_character",
        lines_of_entries,
    ),
    Unseen(
        "unicode-bytes-split-in-stream",
        "The pipeline hands over ids and whole texts; a program that prints token by token is no "
        "part of it, and decode alone is right.",
    ),
    switched("double-bos", "text", "text.doubled_start", two_starts),
    switched(
        "bos-lost-by-dedup",
        "text",
        "text.start_missing",
        no_start,
        only_warns="Many models are trained without the start token that their tokenizer adds.",
    ),
    switched("eos-not-appended", "text", "text.terminator_missing", no_terminator),
    switched("boundary-target-trained", "text", "text.terminator_missing", seams_trained),
    switched("special-text-parsed-or-not", "text", "text.marker_spelled", marker_spelled_out),
    switched(
        "eos-only-stop-on-exact-id",
        "text",
        "text.other_terminator",
        other_terminator,
        only_warns="A program may hand its own list of stop ids to a generator.",
    ),
    switched("truncation-drops-eos", "text", "text.terminator_missing", cut_documents),
    switched("tokenizer-not-bundled", "fingerprint", "fingerprint.differs", other_tokenizer),
    switched("embedding-resized-at-load", "checkpoint", "checkpoint.resized", resized_at_load),
)
