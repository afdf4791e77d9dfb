"""What the sizes of weights that do not fit say: vocabulary, block, width, outputs (G26)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics._text import say
from diagnostics.help.traceback._rules import Explanation

# Names of tables and layers at the top of a model, with at most one module around them.
_TOKENS = re.compile(
    r"^(?:\w+\.)?(?:tok\w*|wte|embed_tokens|\w*token_emb\w*|word_emb\w*|embed"
    r"|embedding)\.weight$"
)
_OUTPUT = re.compile(
    r"^(?:\w+\.)?(?:lm_head|head|output|out|decoder|unembed\w*|classifier"
    r"|score)\.(?:weight|bias)$"
)
_POSITION = re.compile(r"(?:^|[._])(?:pos|wpe)", re.IGNORECASE)
_MASK = re.compile(r"mask|tril|causal|attn\.bias$", re.IGNORECASE)
_PADDING = 64  # to which vocabularies are padded for speed, as nanoGPT does
_CHECK = "python -m diagnostics --only fingerprint checkpoint"
CONFIGURATION = "build the model from the configuration that is stored beside these weights"


@dataclass(frozen=True)
class Mismatch:
    """One weight: its name, its shape in the file and in the model."""

    name: str
    stored: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def differing(self) -> tuple[int, ...]:
        """The dimensions whose sizes differ; () where the number of dimensions does."""
        if len(self.stored) != len(self.wanted):
            return ()
        pairs = zip(self.stored, self.wanted, strict=True)
        return tuple(at for at, (a, b) in enumerate(pairs) if a != b)


def explain_sizes(mismatches: Sequence[Mismatch]) -> Explanation | None:
    """Which part of the configuration differs: the names and the dimensions say it together."""
    if not mismatches:
        return None
    first = mismatches[0]
    evidence = say(
        "{name} is {stored} in the file and {wanted} in the model, one of "
        "{count:mismatch|mismatches}",
        name=first.name,
        stored=str(list(first.stored)),
        wanted=str(list(first.wanted)),
        count=len(mismatches),
    )
    name, cause = _vocabulary(mismatches) or _block(mismatches) or _width(mismatches) or (
        "size",
        say("the weights are of a model with other sizes than this one"),
    )  # fmt: skip
    return Explanation(
        name=f"state.{name}",
        cause=cause,
        evidence=evidence,
        next_step=say(_CHECK if name == "vocabulary" else CONFIGURATION),
    )


def _vocabulary(mismatches: Sequence[Mismatch]) -> tuple[str, str] | None:
    """Only rows of the token table and of the output layer differ, all by the same numbers."""
    if not all(_OUTPUT.search(m.name) or _TOKENS.search(m.name) for m in mismatches):
        return None
    pairs = {(m.stored[0], m.wanted[0]) for m in mismatches if m.differing == (0,)}
    if len(pairs) != 1 or any(m.differing != (0,) for m in mismatches):
        return None
    stored, wanted = pairs.pop()
    if not any(_TOKENS.search(m.name) for m in mismatches):
        return "outputs", say(
            "the last layer has {a:output|outputs} in the file and {b} in the model",
            a=stored,
            b=wanted,
        )
    cause = say(
        "the weights are of a vocabulary of {a}, the model has one of {b}: another tokenizer",
        a=stored,
        b=wanted,
    )
    if max(stored, wanted) % _PADDING == 0 and abs(stored - wanted) < _PADDING:
        cause = say("{cause}, or one that was padded to a multiple of {n}", cause=cause, n=_PADDING)
    return "vocabulary", cause


def _block(mismatches: Sequence[Mismatch]) -> tuple[str, str] | None:
    """Only rows of position tables and the two sides of masks differ, by the same numbers."""
    pairs: set[tuple[int, int]] = set()
    for m in mismatches:
        is_table = bool(_POSITION.search(m.name)) and len(m.stored) == 2 and m.differing == (0,)
        sides = (len(m.stored) - 2, len(m.stored) - 1)
        is_mask = (
            bool(_MASK.search(m.name)) and m.differing == sides and m.stored[-1] == m.stored[-2]
        )
        if not is_table and not is_mask:
            return None
        pairs.add((m.stored[m.differing[0]], m.wanted[m.differing[0]]))
    if len(pairs) != 1:
        return None
    stored, wanted = pairs.pop()
    return "block", say(
        "the weights are of a block of {a} positions, the model has one of {b}", a=stored, b=wanted
    )


def _width(mismatches: Sequence[Mismatch]) -> tuple[str, str] | None:
    """A table's row length differs, and everything else that differs does so in proportion."""
    tables = [m for m in mismatches if _TOKENS.search(m.name) or _POSITION.search(m.name)]
    pairs = {
        (m.stored[1], m.wanted[1]) for m in tables if len(m.stored) == 2 and m.differing == (1,)
    }
    if len(pairs) != 1:
        return None
    stored, wanted = pairs.pop()
    for m in mismatches:
        if not m.differing or any(
            m.stored[at] * wanted != m.wanted[at] * stored for at in m.differing
        ):
            return None
    return "width", say(
        "the weights are of an embedding dimension of {a}, the model has one of {b}",
        a=stored,
        b=wanted,
    )
