"""Encoding and decoding against a dictionary look-up for every character.

Run by hand: `python tests/benchmarks/bench_tokenizer.py [TEXT_FILE]`; without a file the topics of
Python's own documentation are used.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import torch
from _timing import Comparison, compare, print_comparisons

from minigpt.corpus import python_docs, read_text
from minigpt.tokenizer import CharTokenizer


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print_comparisons(comparisons(path=sys.argv[1] if len(sys.argv) > 1 else None))


def comparisons(*, quick: bool = False, path: str | None = None) -> list[Comparison]:
    """Compare on a corpus, on one with an astral character and on a prompt."""
    text = read_text(path) if path else python_docs()
    rounds = 3 if quick else 15
    rows = []
    for name, corpus in (("corpus", text), ("with an emoji", text + "\N{GRINNING FACE}")):
        rows += compare_corpus(name, corpus, rounds=rounds)
    prompt, rounds = make_sides(text[:20]), 201 if quick else 2001
    rows += [
        compare("encode a prompt of 20 / loop", *prompt["encode"], rounds=rounds, goal=1.0),
        compare("decode 20 ids / join", *prompt["decode list"], rounds=rounds, goal=1.0),
    ]
    return [*rows, *compare_library(text, rounds=3)]


def compare_corpus(name: str, text: str, *, rounds: int) -> list[Comparison]:
    """Return the comparisons for one long text, both directions."""
    sides = make_sides(text)
    some = max(3, rounds // 5)
    rows = []
    for figure, side, repeats, goal in (
        (f"encode {name} / loop", "encode tensor", 30, 0.08),
        (f"encode {name} / loop + tensor", "tensors", 200, None),
        (f"encode {name} to a list / loop", "encode", 5, None),
        (f"decode {name} / join", "decode", 30, 0.05),
        (f"decode {name}, list / join", "decode list", 5, 0.05),
    ):
        count = some if side == "tensors" else rounds
        rows.append(compare(figure, *sides[side], rounds=count, repeats=repeats, goal=goal))
    return rows


def make_sides(text: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return name -> (ours, the loop or join that most tutorials write)."""
    tokenizer = CharTokenizer.from_text(text)
    id_of = {char: index for index, char in enumerate(tokenizer.chars)}
    char_of = dict(enumerate(tokenizer.chars))
    ids = tokenizer.encode(text)
    tensor = torch.tensor(ids)

    def look_up(text: str) -> list[int]:
        return [id_of[char] for char in text]

    def join(ids: list[int]) -> str:
        return "".join(char_of[index] for index in ids)

    return {
        "encode tensor": (lambda: tokenizer.encode_tensor(text), lambda: look_up(text)),
        "tensors": (lambda: tokenizer.encode_tensor(text), lambda: torch.tensor(look_up(text))),
        "encode": (lambda: tokenizer.encode(text), lambda: look_up(text)),
        "decode": (lambda: tokenizer.decode(tensor), lambda: join(ids)),
        "decode list": (lambda: tokenizer.decode(ids), lambda: join(ids)),
    }


def compare_library(text: str, *, rounds: int) -> list[Comparison]:
    """Compare with Hugging Face's `tokenizers` at character level, where it is installed."""
    if importlib.util.find_spec("tokenizers") is None:
        return []
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    ours = CharTokenizer.from_text(text)
    vocabulary = {char: index for index, char in enumerate(ours.chars)}
    theirs = Tokenizer(models.WordLevel(vocabulary, unk_token=ours.chars[0]))
    theirs.pre_tokenizer = pre_tokenizers.Split(Regex("(?s)."), "isolated")
    assert theirs.encode(text[:1000]).ids == ours.encode(text[:1000])
    return [
        compare(
            "encode corpus / tokenizers",
            lambda: ours.encode_tensor(text),
            lambda: theirs.encode(text).ids,
            rounds=rounds,
        )
    ]


if __name__ == "__main__":
    main()
