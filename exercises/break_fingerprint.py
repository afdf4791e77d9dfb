"""Break the fingerprint: tokenizers of equal size."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import CharTokenizer, MiniGPT, save_checkpoint


def break_order(lab: Lab) -> Pipeline:
    """Build the tokenizer again, with another idea of what sorted means."""
    chars = sorted(set(lab.text), key=str.swapcase)  # BROKEN: was chars = sorted(set(lab.text))
    return lab.pipeline(tokenizer=CharTokenizer(chars), files=())


def break_set(lab: Lab) -> Pipeline:
    """Number the characters in the order in which a set gives them."""
    chars = list(set(lab.text))  # BROKEN: was chars = sorted(set(lab.text))
    tokenizer = CharTokenizer(chars)
    ids = torch.tensor(tokenizer.encode(lab.text))
    return lab.pipeline(
        tokenizer=tokenizer, train_text=lab.text, train_ids=ids, val_ids=None, files=()
    )


def break_checkpoint(lab: Lab) -> Pipeline:
    """Use a checkpoint with a tokenizer, text and ids that fit each other, but not it."""
    path = lab.folder / "model.safetensors"
    with torch.random.fork_rng(devices=[]):
        save_checkpoint(path, MiniGPT(lab.config), lab.tokenizer)
    text = lab.train_text.swapcase()  # BROKEN: was text = lab.train_text
    chars = sorted(set(lab.text.swapcase()), key=lambda char: -text.count(char))
    tokenizer = lab.tokenizer if text == lab.train_text else CharTokenizer(chars)
    ids = torch.tensor(tokenizer.encode(text))
    return lab.pipeline(
        tokenizer=tokenizer, train_text=text, train_ids=ids, val_ids=None, files=(path,)
    )


def show_decoded(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show size and fingerprint of the tokenizer, and the text that it makes of known ids."""
    tokenizer = pipeline.tokenizer
    known = lab.train_ids[:60].tolist()
    return {
        "entries of the tokenizer": str(tokenizer.vocab_size),
        "its fingerprint": tokenizer.fingerprint[:16] + "...",
        "first ids of the first characters": str(tokenizer.encode(lab.text[:8])),
        "what it makes of the ids of the healthy run": repr(tokenizer.decode(known)),
    }


EXERCISE = Exercise(
    name="break_fingerprint",
    question=(
        "Two tokenizers know the same characters, and every id of one is an id of the other. What "
        "would a model that was trained with one write with the other?"
    ),
    bugs=(
        Bug(
            name="order",
            break_it=break_order,
            trips="fingerprint",
            reason="fingerprint.order_differs",
            note="Sizes are equal, the round trip is perfect, every id is in range.",
        ),
        Bug(
            name="set",
            break_it=break_set,
            trips="fingerprint",
            reason="fingerprint.order_from_set",
            level=2,
            note="All is well in this process. The next one will number the characters anew.",
        ),
        Bug(
            name="checkpoint",
            break_it=break_checkpoint,
            trips="fingerprint",
            reason="fingerprint.differs",
            level=2,
            note="Text, ids and tokenizer agree with each other; only the checkpoint knows better.",
        ),
    ),
    hint="Encode one line with both tokenizers, and compare the ids, not the sizes.",
    lesson=(
        "Equal size proves nothing. Hash the entries in id order, store the hash in every "
        "checkpoint, compare it on loading, and sort what comes out of a set."
    ),
    symptom=show_decoded,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
