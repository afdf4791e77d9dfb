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
            question=(
                "A file of ids is written to a disk that fills up. Will the next program that "
                "opens it raise an error, read fewer ids, or read all of them? What could it "
                "compare to know?"
            ),
            hints=(
                (
                    "Look at the size of the file on the disk beside the size that its header "
                    "promises."
                ),
                (
                    "36,000 ids of one byte and a header of 128 bytes make 36,128 bytes. Print "
                    "the size of lab.train_path."
                ),
                "All of the content must be written, not a slice of it.",
            ),
            lesson=(
                "A file that exists need not be whole. Write under another name and rename when "
                "it is complete, and store the size where the reader can compare it."
            ),
        ),
        Bug(
            name="missing",
            break_it=break_missing,
            trips="files",
            reason="files.missing",
            note="One letter of a path.",
            question=(
                "A path is wrong by one letter. What should a program say, so that a person finds "
                "the cause without opening the code?"
            ),
            hints=(
                (
                    "Print the path that is handed to the pipeline, and list the folder in which "
                    "it should be."
                ),
                (
                    "lab.folder holds char_tokenizer.json, train_ids.npy and val_ids.npy. Each "
                    "path of the pipeline should be one of them."
                ),
                (
                    "Compare the two names letter by letter. The ids that were written have a "
                    "plural in their name."
                ),
            ),
            lesson=(
                "Name a path in one place and import it everywhere else. A program that goes on "
                "without a file that it was given is worse than one that stops."
            ),
        ),
        Bug(
            name="encoding",
            break_it=break_encoding,
            trips="files",
            reason="files.wrong_encoding",
            level=2,
            note="The file is healthy. What was read from it is not, and it trains well.",
            question=(
                "The file on the disk is healthy, and the text is read without an error. Will the "
                "text have more characters than were written, fewer, or as many?"
            ),
            hints=(
                (
                    "Compare the text as it was read with the text as it was written, from the "
                    "end: the accents stand there."
                ),
                (
                    "Print len(text) and ascii(text[-48:]). In the text as it was written 'e' "
                    "with an accent is one character; here it is two."
                ),
                (
                    "The reader must name the encoding with which the bytes were written two "
                    "lines above."
                ),
            ),
            lesson=(
                "Bytes do not say in which encoding they are. Name it at every open, in writing "
                "and in reading, since the default belongs to the machine and not to the file."
            ),
            guide="Reading text without surprises",
        ),
        Bug(
            name="stale",
            break_it=break_stale,
            trips="files",
            reason="files.stale",
            level=2,
            note="Each file is whole by itself; they are of two different runs.",
            question=(
                "The tokenizer file is whole and the files of the ids are whole. Which of the ids "
                "mean another character now: none, those of one character, or most?"
            ),
            hints=(
                (
                    "Ask for each file when it was made and from what. The card beside the ids "
                    "tells for them."
                ),
                (
                    "Print the fingerprint of the tokenizer file and the one in meta.json. "
                    "Healthy is that they are equal, both of 87 entries."
                ),
                (
                    "The tokenizer must be built from the text of which the ids were made, "
                    "without anything added to it."
                ),
            ),
            lesson=(
                "Files that belong together must say so, by the fingerprint of what they were "
                "made from. That no id has moved here is luck: the new character happens to sort "
                "last."
            ),
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
