"""`python -m minigpt.prepare`: turn a text into a tokenizer and three files of ids.

Writes `tokenizer/char_tokenizer.json`, `data/encoded/{train,val,test}_ids.npy` and
`data/encoded/meta.json`. The vocabulary is built from the whole text, not only from its training
part: a character model cannot read a character without an id, and which characters exist tells it
nothing about what follows what. All files are complete on disk before the first one takes the
place of an old one, and are read back and compared with the text at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt._cli import EXIT_OK, CommandError, Parser, run_command

if TYPE_CHECKING:
    from minigpt.corpus import Corpus
    from minigpt.tokenizer import CharTokenizer

SAMPLE_LENGTH = 60


@dataclass(frozen=True)
class OutputPaths:
    """Where the files go, below one root folder."""

    root: Path

    @property
    def tokenizer(self) -> Path:
        """The characters and their ids."""
        return self.root / "tokenizer" / "char_tokenizer.json"

    @property
    def encoded(self) -> Path:
        """The folder of the encoded splits."""
        return self.root / "data" / "encoded"

    def ids(self, split: str) -> Path:
        """The ids of a split: train, val or test."""
        return self.encoded / f"{split}_ids.npy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare as the arguments say; returns the exit code, raises `CommandError`."""
    options = _parse(arguments)
    paths = OutputPaths(options.out_dir)
    try:
        corpus = _read_corpus(options)
        _require_usable(corpus, options.block_size)
        tokenizer = _write_files(corpus, paths)
    except ValueError as error:
        raise CommandError(str(error)) from error
    _verify(corpus, tokenizer, paths)
    _report(corpus, tokenizer, paths)
    return EXIT_OK


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m minigpt.prepare",
        description="Turn a text into a tokenizer and encoded train, validation and test ids.",
        epilog="Then: python -m minigpt.train",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--source", choices=("guide", "python-docs"), default="guide",
        help="a text that is already here: the built-in guide (default), or Python's own topics",
    )  # fmt: skip
    source.add_argument(
        "--text", nargs="+", type=Path, metavar="FILE", help="your own UTF-8 files, joined in order"
    )
    source.add_argument(
        "--wikitext", type=Path, metavar="DIR", help="a folder of WikiText files, usual names"
    )
    parser.add_argument(
        "--out-dir", type=Path, default=Path(), metavar="ROOT",
        help="write tokenizer/ and data/encoded/ below this folder (default: the current one)",
    )  # fmt: skip
    parser.add_argument(
        "--block-size", type=int, default=32, metavar="T",
        help="the shortest block that every split must fill (default: 32)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.block_size < 1:
        parser.error(f"--block-size must be at least 1, got {options.block_size}")
    return options


def _read_corpus(options: argparse.Namespace) -> Corpus:
    from minigpt import corpus

    if options.wikitext is not None:
        return corpus.wikitext(options.wikitext)
    if options.text is not None:
        texts = [corpus.read_text(path) for path in options.text]
        return corpus.cut_corpus(", ".join(map(str, options.text)), "".join(texts))
    if options.source == "python-docs":
        version = ".".join(map(str, sys.version_info[:3]))
        return corpus.cut_corpus(f"topics of the Python {version} docs", corpus.python_docs())
    return corpus.guide()


def _require_usable(corpus: Corpus, block_size: int) -> None:
    """Refuse a split that cannot give one block of inputs, and a text with nothing to learn."""
    parts = {"train": corpus.train, "validation": corpus.validation, "test": corpus.test}
    for name, part in parts.items():
        if len(part) < block_size + 1:
            raise CommandError(
                f"the {name} part must have at least {block_size + 1} characters (block size "
                f"{block_size} and one more), got {len(part)} of {len(corpus.text)} in "
                f"{corpus.name}; give a longer text or a smaller --block-size"
            )
    if len(set(corpus.text)) < 2:
        raise CommandError(
            f"{corpus.name} must hold two different characters or more, got {corpus.text[0]!r} "
            "only; give a text with something to predict"
        )


def _write_files(corpus: Corpus, paths: OutputPaths) -> CharTokenizer:
    from minigpt._files import atomic_write
    from minigpt.encoded import META_NAME, EncodedMeta, storage_dtype, write_ids
    from minigpt.fingerprint import text_fingerprint
    from minigpt.tokenizer import CharTokenizer

    tokenizer = CharTokenizer.from_text(corpus.text)
    ids = {split: tokenizer.encode_tensor(part) for split, part in _parts(corpus).items()}
    meta = EncodedMeta(
        tokenizer_fingerprint=tokenizer.fingerprint,
        corpus_fingerprint=text_fingerprint(corpus.text),
        vocab_size=tokenizer.vocab_size,
        source=corpus.name,
        dtype=str(storage_dtype(tokenizer.vocab_size)),
        counts={split: len(values) for split, values in ids.items()},
    )
    with ExitStack() as stack:  # leaves in reverse order, so the card appears last
        files = [stack.enter_context(atomic_write(paths.encoded / META_NAME))]
        files[0].write(meta.to_json().encode())
        for split, values in ids.items():
            files.append(stack.enter_context(atomic_write(paths.ids(split))))
            write_ids(files[-1], values, vocab_size=tokenizer.vocab_size)
        files.append(stack.enter_context(atomic_write(paths.tokenizer)))
        files[-1].write(tokenizer.to_json().encode())
        for file in files:  # a full disk has to show before the first old file is replaced
            file.flush()
            os.fsync(file.fileno())
    return tokenizer


def _verify(corpus: Corpus, tokenizer: CharTokenizer, paths: OutputPaths) -> None:
    """Read everything back: what is on the disk must decode to the text, character by character."""
    from minigpt.encoded import load_ids
    from minigpt.tokenizer import CharTokenizer

    stored = CharTokenizer.from_file(paths.tokenizer)
    if stored != tokenizer:
        raise RuntimeError(f"{paths.tokenizer} does not hold what was written")
    for split, part in _parts(corpus).items():
        if stored.decode(load_ids(paths.ids(split))) != part:
            raise RuntimeError(f"{paths.ids(split)} does not decode to the text it was made from")


def _report(corpus: Corpus, tokenizer: CharTokenizer, paths: OutputPaths) -> None:
    def row(label: str, *cells: object) -> None:
        print(f"{label:<11}", *cells)

    row("source", corpus.name)
    row("text", f"{len(corpus.text):,} characters")
    row("vocabulary", f"{tokenizer.vocab_size} characters")
    row("fingerprint", tokenizer.fingerprint)
    row("tokenizer", f"{paths.tokenizer} (which id each character has)")
    purposes = {
        "train": "learnt from",
        "val": "chooses the checkpoint",
        "test": "read once, at the end",
    }
    for split, part in _parts(corpus).items():
        path = paths.ids(split)
        size = path.stat().st_size
        row(split, f"{path} ({len(part):,} ids, {size:,} bytes; {purposes[split]})")
    row("card", f"{paths.encoded / 'meta.json'} (what the ids belong to)")
    row("sample", ascii(corpus.train[:SAMPLE_LENGTH]))
    for note in corpus.notes:
        print(textwrap.fill(f"{'note':<11} {note}", 88, subsequent_indent=" " * 12))
    row("next", "python -m minigpt.train")


def _parts(corpus: Corpus) -> dict[str, str]:
    return {"train": corpus.train, "val": corpus.validation, "test": corpus.test}


if __name__ == "__main__":
    raise SystemExit(run_command(main))
