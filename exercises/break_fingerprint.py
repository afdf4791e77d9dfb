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
            question=(
                "The tokenizer is built from the same text once more, and the size is 87 again. "
                "What will it make of the ids of the healthy run: the same text, noise, or "
                "something that you can still read?"
            ),
            hints=(
                (
                    "Compare the first eight ids that both tokenizers give for the start of the "
                    "text. Which characters keep their id, and which do not?"
                ),
                (
                    "Print chars beside lab.tokenizer.chars and count the places that differ. "
                    "Healthy is 0 of 87; a sort by code point puts 'A' before 'a'."
                ),
                (
                    "The characters must be sorted as they are, by code point, as they were on "
                    "the day on which the ids were made."
                ),
            ),
            lesson=(
                "Sorting is not one thing: letter case, locale and a key each give another order. "
                "The order is part of the tokenizer, so store the list and do not build it twice."
            ),
            guide="The tokenizer that was born twice",
        ),
        Bug(
            name="set",
            break_it=break_set,
            trips="fingerprint",
            reason="fingerprint.order_from_set",
            level=2,
            note="All is well in this process. The next one will number the characters anew.",
            question=(
                "Text, ids and tokenizer are made together here, and they agree. What will you "
                "find when you start the same script a second time and compare the fingerprints "
                "of both runs?"
            ),
            hints=(
                (
                    "Run the exercise twice and compare the ids of the first characters. Healthy "
                    "is that no run differs from another."
                ),
                (
                    "Look at the order of the list: print chars[:10] and check whether chars == "
                    "sorted(chars). In a healthy tokenizer that is True."
                ),
                (
                    "What comes out of a set has no order that lasts. It must be put in order "
                    "before it is numbered."
                ),
            ),
            lesson=(
                "The order of a set of strings changes from process to process, so whatever is "
                "numbered from it works until the program is started again. Sort before you "
                "count."
            ),
            guide="The tokenizer that was born twice",
        ),
        Bug(
            name="checkpoint",
            break_it=break_checkpoint,
            trips="fingerprint",
            reason="fingerprint.differs",
            level=2,
            note="Text, ids and tokenizer agree with each other; only the checkpoint knows better.",
            question=(
                "Text, ids and tokenizer fit each other without a fault. Which file on the disk "
                "can still contradict them, and what would a model that is loaded from it write?"
            ),
            hints=(
                (
                    "Nothing is wrong among text, ids and tokenizer. Compare the tokenizer with "
                    "the one that the checkpoint was saved with."
                ),
                (
                    "Print lab.tokenizer.fingerprint[:12], which the checkpoint holds, beside "
                    "that of the tokenizer in use. They should be equal."
                ),
                (
                    "The text must be the one of the lab, letter case included; then the "
                    "tokenizer of the checkpoint can be used as it is."
                ),
            ),
            lesson=(
                "Parts that agree with each other can all be from another day. Compare each of "
                "them with what the checkpoint itself says that it was trained with."
            ),
            guide="The tokenizer that was born twice",
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
