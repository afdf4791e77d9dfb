"""Rows of the table: ids, their types, and the files that they come from."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._lab import Lab
from minigpt import CharTokenizer, MiniGPT
from tests.catalogue._row import Row
from tests.catalogue.data import documents_of, switched
from tests.catalogue.tokens import Characters, fresh, with_tokenizer

# ---- ids -------------------------------------------------------------------------------------


def small_type(lab: Lab, broken: bool) -> Pipeline:
    """Ids of a vocabulary of 400 are stored in 8 bits."""
    text = "".join(
        chr(0x4E00 + number) for number in np.random.RandomState(0).randint(400, size=4_000)
    )
    tokenizer = Characters(text)
    stored = np.array(tokenizer.encode(text)).astype(np.uint8 if broken else np.uint16)
    return with_tokenizer(lab, tokenizer, torch.from_numpy(stored.astype(np.int64)), text)


def other_width(lab: Lab, broken: bool) -> Pipeline:
    """The file is written with 32-bit ids and mapped as 16-bit ones."""
    path = lab.folder / "train.bin"
    lab.train_ids.numpy().astype(np.uint32).tofile(path)
    mapped = np.memmap(path, dtype=np.uint16 if broken else np.uint32, mode="r")
    return lab.pipeline(
        train_ids=torch.from_numpy(np.array(mapped).astype(np.int64)), files=(path,)
    )


def token_added(lab: Lab, broken: bool) -> Pipeline:
    """A special token is added to the tokenizer, and the embedding keeps its rows."""
    tokenizer = Characters(lab.text)
    end = tokenizer.vocab_size
    tokenizer.chars.append("<|end|>")
    tokenizer.eos_token_id, tokenizer.vocab_size = end, end + 1
    ids = [*tokenizer.encode(lab.train_text), end]
    V = end if broken else end + 1
    config = dataclasses.replace(lab.config, vocab_size=V)
    return with_tokenizer(
        lab,
        tokenizer,
        ids,
        None,
        vocab_size=V,
        model=fresh(config),
        make_model=lambda: MiniGPT(config),
    )


class ByHand(nn.Module):
    """An embedding that indexes its table itself, so that -1 is the last row."""

    def __init__(self, old: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.num_embeddings = old.weight, old.num_embeddings

    def forward(self, ids: Tensor) -> Tensor:
        """Look the rows up."""
        return self.weight[ids]


def negative_pad(lab: Lab, broken: bool) -> Pipeline:
    """Short rows are filled with -1 in the inputs too, and the table reads its last row."""

    def batch(split: str) -> tuple[Tensor, Tensor]:
        inputs, targets = lab.get_batch(lab.train_ids if split == "train" else lab.val_ids)
        targets[0, -4:] = -100
        if broken:
            inputs[0, -4:] = -1
        return inputs, targets

    def edit_model(model: nn.Module) -> nn.Module:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if (
                    isinstance(child, nn.Embedding)
                    and child.num_embeddings == lab.config.vocab_size
                ):
                    setattr(module, name, ByHand(child))
        return model

    return lab.pipeline(batch=batch, get_batch=None, edit_model=edit_model)


def padded_head(lab: Lab, broken: bool) -> Pipeline:
    """V is rounded up to 128 for speed, and the sampler draws from all of the rows."""
    config = dataclasses.replace(lab.config, vocab_size=128)
    real = lab.tokenizer.vocab_size
    known = lab.pipeline().next_token_probabilities
    assert known is not None

    def probabilities(logits: Tensor, *settings: Any) -> Tensor:
        logits = logits.clone()
        if not broken:
            logits[real:] = -torch.inf
        return known(logits, *settings)

    return lab.pipeline(
        model=fresh(config),
        make_model=lambda: MiniGPT(config),
        vocab_size=128,
        next_token_probabilities=probabilities,
        save=None, load=None, save_state=None, load_state=None,
    )  # fmt: skip


def short_lengths(lab: Lab, broken: bool) -> Pipeline:
    """The lengths of documents are stored in 8 bits: of 300 ids 44 are read back."""
    documents = [lab.tokenizer.encode(document) for document in documents_of(lab)]
    flat = [i for document in documents for i in document]
    lengths = np.array([len(document) for document in documents])
    stored = lengths.astype(np.uint8 if broken else np.uint32).astype(int)
    starts = np.cumsum(lengths) - lengths
    ids = [i for a, n in zip(starts, stored, strict=True) for i in flat[a : a + n]]
    return lab.pipeline(
        train_ids=torch.tensor(ids), train_text="".join(documents_of(lab)), val_ids=None, files=()
    )


# ---- files -----------------------------------------------------------------------------------


def read_as(lab: Lab, content: bytes, **how: Any) -> Pipeline:
    """Write a corpus, read it as `open` is told to, and make ids of it."""
    path = lab.folder / "corpus.txt"
    path.write_bytes(content)
    with path.open(**how) as file:
        text = file.read()
    tokenizer = CharTokenizer.from_text(text)
    return with_tokenizer(lab, tokenizer, tokenizer.encode(text), text, files=(path,))


def default_encoding(lab: Lab, broken: bool) -> Pipeline:
    """open(path) takes the code page of the system."""
    return read_as(
        lab, lab.text.encode(), encoding="cp1252" if broken else "utf-8", errors="replace"
    )


def line_ends(lab: Lab, broken: bool) -> Pipeline:
    """Text mode turns CR LF into LF."""
    content = lab.text.replace("\n", "\r\n").encode()
    return read_as(lab, content, encoding="utf-8", newline=None if broken else "")


def bytes_dropped(lab: Lab, broken: bool) -> Pipeline:
    """A file in latin-1 is read as UTF-8 with errors="ignore"."""
    content = re.sub(r"[^\x00-\xff]", "?", lab.text).encode("latin-1")
    if broken:
        return read_as(lab, content, encoding="utf-8", errors="ignore")
    return read_as(lab, content, encoding="latin-1")


def stale_ids(lab: Lab, broken: bool) -> Pipeline:
    """The corpus grew, and the prepared ids are those of the day before."""
    text = lab.train_text + lab.text[len(lab.train_text) :]
    text = lab.train_text[:15_000] + text[-2_000:] + lab.train_text[15_000:]
    ids = lab.train_ids if broken else torch.tensor(lab.tokenizer.encode(text))
    return lab.pipeline(train_text=text, train_ids=ids, files=())


def step_before_increment(lab: Lab, broken: bool) -> Pipeline:
    """The counter is saved before it is increased: the last step is made again."""

    def save_state(model: nn.Module, optimizer: Any, step: int, path: Path) -> None:
        lab.save_state(model, optimizer, step - 1 if broken else step, path)

    return lab.pipeline(save_state=save_state)


ROWS: tuple[Row, ...] = (
    switched("ids-wrap-uint16", "range", "range.wrapped", small_type),
    switched("memmap-wrong-dtype", "range", "range.wrong_dtype", other_width),
    switched("id-equals-vocab-size", "range", "range.equals_vocab_size", token_added),
    switched("negative-id-wraps", "range", "range.negative", negative_pad),
    switched(
        "padded-vocab-sampled",
        "range",
        "range.padding_sampled",
        padded_head,
        only_warns="Rows that only fill up the vocabulary are hardly ever drawn after training.",
    ),
    switched("lengths-overflow", "text", "text.part_differs", short_lengths),
    switched("default-encoding", "files", "files.wrong_encoding", default_encoding),
    switched(
        "newline-translation",
        "files",
        "files.newlines_read",
        line_ends,
        only_warns="Many preparations translate line ends on purpose.",
    ),
    switched("errors-ignore-drops-text", "files", "files.text_lost", bytes_dropped),
    switched("stale-binary-after-new-text", "text", "text.piece_missing", stale_ids),
    switched("checkpoint-counter-off-by-one", "resume", "resume.step", step_before_increment),
)
