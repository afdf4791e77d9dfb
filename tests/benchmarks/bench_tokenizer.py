"""Encoding and decoding against a dictionary look-up for every character.

Run by hand: `python tests/benchmarks/bench_tokenizer.py [TEXT_FILE]`; without a file the topics of
Python's own documentation are used.
"""

from __future__ import annotations

import sys

import torch
from _timing import Comparison, compare, print_comparisons

from minigpt.corpus import python_docs, read_text
from minigpt.tokenizer import CharTokenizer


def main() -> None:
    """Compare on a corpus, on one with an astral character and on a prompt."""
    torch.set_num_threads(1)
    text = read_text(sys.argv[1]) if len(sys.argv) > 1 else python_docs()
    astral = text + "\N{GRINNING FACE}"
    print(f"{len(text):,} characters, {len(set(text))} different ones")
    print_comparisons(
        [
            *compare_all("corpus", text, rounds=15),
            *compare_all("corpus with an emoji", astral, rounds=15),
            *compare_all("20 characters", text[:20], rounds=2001),
        ]
    )


def compare_all(name: str, text: str, *, rounds: int) -> list[Comparison]:
    """Return the comparisons for one text, both directions."""
    tokenizer = CharTokenizer.from_text(text)
    id_of = {char: index for index, char in enumerate(tokenizer.chars)}
    char_of = dict(enumerate(tokenizer.chars))
    ids = tokenizer.encode(text)
    tensor = torch.tensor(ids)

    def look_up() -> list[int]:
        return [id_of[char] for char in text]

    def join() -> str:
        return "".join(char_of[index] for index in ids)

    return [
        compare(
            f"{name}: encode_tensor", lambda: tokenizer.encode_tensor(text), look_up, rounds=rounds
        ),
        compare(
            f"{name}: encode_tensor / list, then tensor",
            lambda: tokenizer.encode_tensor(text),
            lambda: torch.tensor(look_up()),
            rounds=max(3, rounds // 5),
        ),
        compare(f"{name}: encode", lambda: tokenizer.encode(text), look_up, rounds=rounds),
        compare(f"{name}: decode a tensor", lambda: tokenizer.decode(tensor), join, rounds=rounds),
        compare(f"{name}: decode a list", lambda: tokenizer.decode(ids), join, rounds=rounds),
    ]


if __name__ == "__main__":
    main()
