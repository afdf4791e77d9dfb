"""Break the files: cut, lost, misread, or outdated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import CharTokenizer

FRENCH = "D\u00e9j\u00e0 vu : un caf\u00e9 cr\u00e8me, s\u2019il vous pla\u00eet.\n"


def break_truncated(lab: Lab) -> Pipeline:
    """Stop writing in the middle, as a full disk does."""
    content = lab.train_path.read_bytes()
    written = content[: len(content) // 2]  # BROKEN: was written = content
    lab.train_path.write_bytes(written)
    return lab.pipeline()


def break_missing(lab: Lab) -> Pipeline:
    """Mistype a path."""
    path = lab.folder / "train_id.npy"  # BROKEN: was path = lab.folder / "train_ids.npy"
    return lab.pipeline(files=(lab.tokenizer_path, path))


def break_encoding(lab: Lab) -> Pipeline:
    """Read UTF-8 with the code page of another system."""
    path = lab.folder / "corpus.txt"
    path.write_bytes((lab.text + FRENCH * 20).encode("utf-8"))
    encoding = "cp1252"  # BROKEN: was encoding = "utf-8"
    text = path.read_text(encoding=encoding, errors="replace")
    tokenizer = CharTokenizer.from_text(text)
    ids = torch.tensor(tokenizer.encode(text))
    return lab.pipeline(files=(path,), tokenizer=tokenizer, train_text=text, train_ids=ids)


def break_stale(lab: Lab) -> Pipeline:
    """Build the tokenizer again from a longer text, and keep the ids of the old one."""
    _write_card(lab)
    text = lab.text + "\u20ac"  # BROKEN: was text = lab.text
    tokenizer = CharTokenizer.from_text(text)
    tokenizer.save(lab.tokenizer_path)
    return lab.pipeline()


def _write_card(lab: Lab) -> None:
    """Say beside the ids what they were made from, as `minigpt.prepare` does."""
    card = {
        "tokenizer_fingerprint": lab.tokenizer.fingerprint,
        "corpus_fingerprint": hashlib.sha256(lab.text.encode()).hexdigest(),
        "source": "guide",
        "counts": {"train": len(lab.train_ids), "val": len(lab.val_ids)},
    }
    (lab.folder / "meta.json").write_text(json.dumps(card), encoding="utf-8")


def show_files(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the size of each file, and the end of the text as the pipeline has it."""
    paths = [Path(path) for path in pipeline.files]
    sizes = [f"{p.name} {p.stat().st_size:,}" if p.exists() else f"{p.name} -" for p in paths]
    return {
        "files, in bytes": ", ".join(sizes),
        "end of the text": ascii((pipeline.train_text or "")[-48:]),
        "entries of the tokenizer file": str(
            CharTokenizer.from_file(lab.tokenizer_path).vocab_size
        ),
    }


EXERCISE = Exercise(
    name="break_files",
    question=(
        "A program reads half a file without an error, and a whole one with the wrong encoding "
        "without an error too. What would you compare to notice either?"
    ),
    bugs=(
        Bug(
            name="truncated",
            break_it=break_truncated,
            trips="files",
            reason="files.truncated",
            note="The header still promises every id; the size of the file says otherwise.",
        ),
        Bug(
            name="missing",
            break_it=break_missing,
            trips="files",
            reason="files.missing",
            note="One letter of a path.",
        ),
        Bug(
            name="encoding",
            break_it=break_encoding,
            trips="files",
            reason="files.wrong_encoding",
            level=2,
            note="The file is healthy. What was read from it is not, and it trains well.",
        ),
        Bug(
            name="stale",
            break_it=break_stale,
            trips="files",
            reason="files.stale",
            level=2,
            note="Each file is whole by itself; they are of two different runs.",
        ),
    ),
    hint="Compare what a header or a card promises with what is there; decode the bytes yourself.",
    lesson=(
        "Store sizes and fingerprints beside the data, name the encoding wherever text is opened, "
        "and compare before training: no loss curve shows that the data are half or wrong."
    ),
    symptom=show_files,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
