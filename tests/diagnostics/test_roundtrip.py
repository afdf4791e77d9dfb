"""Whatever a tokenizer loses is found and named; what it does on purpose is a warning at most."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diagnostics import Pipeline, Status, check_roundtrip, diagnose
from diagnostics._lost_text import name_fault
from diagnostics.roundtrip import measure_roundtrip
from tests.diagnostics.tiny import Bigram

TEXT = "The quick  brown Fox\n\tjumps over\r\nthe lazy dog; caf\u00e9 cafe\u0301 \U0001f600!\n " * 4
CHARS = sorted(set(TEXT))


class _Chars:
    """A character tokenizer with places to break."""

    def __init__(
        self,
        chars: Sequence[str] = CHARS,
        *,
        before: Callable[[str], str] = lambda text: text,
        after: Callable[[list[str]], Any] = "".join,
        first_id: int = 0,
        skip: bool = False,
    ) -> None:
        self.chars = list(chars)
        self.vocab_size = len(self.chars)
        self.before, self.after = before, after
        self.first_id, self.skip = first_id, skip
        self.places = {char: index for index, char in enumerate(self.chars)}

    def encode(self, text: str) -> list[int]:
        text = self.before(text)
        if self.skip:
            text = "".join(c for c in text if c in self.places)
        return [self.places[c] + self.first_id for c in text]

    def decode(self, ids: Sequence[int]) -> Any:
        return self.after([self.chars[int(i)] for i in ids])


class _Hidden:
    """The same tokenizer without a readable table."""

    def __init__(self, inner: Any) -> None:
        self.encode, self.decode = inner.encode, inner.decode


def test_a_lossless_tokenizer_passes_with_its_numbers() -> None:
    """Every character comes back; the claim counts them."""
    result = check_roundtrip(_Chars(), TEXT)
    assert (result.status, result.reason) == (Status.PASS, "roundtrip.ok")
    assert result.numbers["vocab_size"] == len(CHARS)
    assert str(result.numbers["characters"]) in result.claim


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (str.lower, "lowercased"),
        (str.strip, "stripped"),
        (lambda text: " ".join(text.split()), "whitespace_collapsed"),
        (lambda text: re.sub(" +", " ", text), "whitespace_collapsed"),
        (lambda text: text.replace("\r\n", "\n"), "newline_changed"),
        (lambda text: text.replace("\t", " "), "tabs_changed"),
        (lambda text: text.replace(" ", ""), "spaces_lost"),
        (lambda text: unicodedata.normalize("NFC", text), "normalised"),
        (lambda text: unicodedata.normalize("NFD", text), "normalised"),
        (lambda text: text.encode("ascii", "ignore").decode(), "characters_dropped"),
        (lambda text: text.encode("ascii", "replace").decode(), "replaced_by_unknown"),
        (lambda text: text[:1000].replace("z", ""), "characters_dropped"),
        (lambda text: text.replace("q", "k"), "characters_merged"),
        (lambda text: text[::-1], "reversed"),
        (lambda text: text[:20], "truncated"),
    ],
)
@pytest.mark.parametrize("hidden", [False, True])
def test_each_loss_of_a_character_tokenizer_fails_by_its_name(
    before: Callable[[str], str], reason: str, hidden: bool
) -> None:
    """The fault is named whether or not the table of characters can be read."""
    chars = sorted(set(CHARS) | set(unicodedata.normalize("NFD", "".join(CHARS))) | set("?k"))
    tokenizer: Any = _Chars(chars, before=before)
    result = check_roundtrip(_Hidden(tokenizer) if hidden else tokenizer, TEXT)
    assert (result.status, result.reason) == (Status.FAIL, f"roundtrip.{reason}")
    assert "next" in str(result)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (" ".join, "spaces_added"),
        (list, "not_text"),
        (lambda pieces: "".join(pieces).replace("\n", "\r\n"), "newline_changed"),
        (lambda pieces: "<s>" + "".join(pieces), "text_added"),
        (lambda pieces: "".join(pieces) + "</s>", "text_added"),
        (
            lambda pieces: "".join(
                piece
                if len(piece.encode("utf-16-le")) == 2
                else "".join(chr(u) for u in memoryview(piece.encode("utf-16-le")).cast("H"))
                for piece in pieces
            ),
            "surrogates",
        ),
        (lambda pieces: "".join(pieces).encode().decode("latin-1"), "wrong_encoding"),
    ],
)
def test_each_fault_of_decode_has_its_name(after: Callable[[list[str]], Any], reason: str) -> None:
    """What decode does to the pieces is named too."""
    result = check_roundtrip(_Chars(after=after), TEXT)
    assert (result.status, result.reason) == (Status.FAIL, f"roundtrip.{reason}")


def test_faults_are_found_without_any_text() -> None:
    """Probes made of the table's own characters replace train_text."""
    assert check_roundtrip(_Chars(before=str.lower)).reason == "roundtrip.lowercased"
    assert check_roundtrip(_Chars(before=str.strip)).reason == "roundtrip.stripped"
    assert check_roundtrip(_Chars()).status is Status.PASS


def test_a_fault_that_no_text_shows_is_found_by_the_probes() -> None:
    """A text without leading space cannot show that strip() is called."""
    result = check_roundtrip(_Chars(sorted(set("ab c")), before=str.strip), "ab c")
    assert result.reason == "roundtrip.stripped"


def test_counting_from_one_is_named() -> None:
    """Encode counts from 1, decode from 0: each character comes back as the next one."""
    text = "".join(CHARS[:-1])  # the last one would leave the table
    result = check_roundtrip(_Chars(first_id=1), text)
    assert result.reason == "roundtrip.off_by_one"
    assert result.status is Status.FAIL


def test_decode_that_raises_on_the_ids_of_encode_is_named() -> None:
    """The last character gets the id V, which decode's table does not have."""
    result = check_roundtrip(_Chars(first_id=1), CHARS[-1])
    assert result.reason == "roundtrip.decode_raised"
    assert "1" in result.causes[0]


def test_two_tables_of_different_order_are_named() -> None:
    """A one-for-one exchange: what a set built twice gives."""
    tokenizer = _Chars("abcdef")
    tokenizer.places = {char: index for index, char in enumerate("fbadec")}
    result = check_roundtrip(tokenizer, "abcdeffed")
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.order_differs")


def test_a_listed_table_that_neither_side_uses_is_named() -> None:
    """Encode and decode agree with each other, but not with the list that is stored."""
    tokenizer = _Chars("abcdef")
    tokenizer.chars = list("fedcba")
    inner = _Chars("abcdef")
    tokenizer.decode = inner.decode  # type: ignore[method-assign]
    result = check_roundtrip(tokenizer, "abc")
    assert result.reason == "roundtrip.order_differs"
    assert "id 0" in result.claim


def test_a_character_listed_twice_is_named_with_both_ids() -> None:
    """'b' is id 1 and id 3."""
    result = check_roundtrip(_Chars("abcb"), "abc")
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.duplicate_characters")
    assert "'b' twice, as id 1 and as id 3" in result.claim


def test_an_unknown_character_of_the_text_is_named_with_its_code_point() -> None:
    """The vocabulary was built from another text."""
    result = check_roundtrip(_Chars("abc"), "abcz")
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.unknown_character")
    assert "'z' (U+007A)" in result.claim


def test_a_rare_character_in_the_middle_of_a_long_text_is_looked_at() -> None:
    """Head, middle and tail miss position 3,500 of 20,000; the distinct characters do not."""
    text = "ab" * 1750 + "z" + "ab" * 8250
    result = check_roundtrip(_Chars("abz", before=lambda t: t.replace("z", "a")), text)
    assert result.failed


def test_skipping_unknown_characters_warns_when_the_text_itself_is_whole() -> None:
    """Nothing of this text is lost, but a prompt could lose something."""
    result = check_roundtrip(_Chars("abc", skip=True), "abcabc")
    assert (result.status, result.reason) == (Status.WARN, "roundtrip.unknown_skipped")
    assert (
        check_roundtrip(_Chars("abc", skip=True), "abzc").reason == "roundtrip.characters_dropped"
    )


def test_stored_ids_must_come_back_as_the_same_ids() -> None:
    """The tokenizer has two ids for 'a'; the stored ids use the one that encode never gives."""
    tokenizer = _Hidden(_Chars("aba"))
    result = check_roundtrip(tokenizer, "ab", torch.tensor([0, 1, 2, 1]))
    assert result.reason == "roundtrip.stored_ids_differ"
    assert "place 0" in result.measured or "place 2" in result.measured
    assert check_roundtrip(_Chars("ab"), "ab", torch.tensor([0, 1, 1])).status is Status.PASS


def test_stored_ids_out_of_range_are_left_to_range() -> None:
    """Id 9 of 2: not a fault of the tokenizer."""
    assert check_roundtrip(_Chars("ab"), "ab", torch.tensor([0, 9])).status is Status.PASS


class _Subwords:
    """Words and single characters, longest match first; the vocabulary is small letters."""

    WORDS = ("the", "quick", " ", "fox", ".", *"abcdefghijklmnopqrstuvwxyz", "<unk>")

    def __init__(
        self, *, prefix: str = "", lower: bool = False, words: Sequence[str] = WORDS
    ) -> None:
        self.words, self.prefix, self.lower = list(words), prefix, lower

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        text = self.prefix + (text.lower() if self.lower else text)
        ids = [0] if add_special_tokens else []
        while text:
            word = next((w for w in self.words if text.startswith(w)), None)
            ids.append(self.words.index(word or "<unk>"))
            text = text[len(word or "?") :]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.words[i] for i in ids)


def test_an_uncased_subword_tokenizer_warns() -> None:
    """Its vocabulary has no capitals at all: lowercasing is its design."""
    result = check_roundtrip(_Subwords(lower=True), "The Quick fox.")
    assert (result.status, result.reason) == (Status.WARN, "roundtrip.lowercased")


def test_a_subword_tokenizer_that_lowercases_in_spite_of_capitals_fails() -> None:
    """Its vocabulary has T and Q, and encode never reaches them."""
    words = (*_Subwords.WORDS, "T", "Q")
    result = check_roundtrip(_Subwords(lower=True, words=words), "The Quick fox.")
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.lowercased")


def test_a_prefix_space_warns() -> None:
    """As tokenizers of the SentencePiece kind have it."""
    result = check_roundtrip(_Subwords(prefix=" "), "the fox")
    assert (result.status, result.reason) == (Status.WARN, "roundtrip.spaces_added")


class _Bytes:
    """UTF-8 bytes: 256 ids, nothing can be lost."""

    n_vocab = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


class _BytesThatStrip(_Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.strip())


def test_a_byte_tokenizer_passes_and_has_no_excuse_for_losing() -> None:
    """Tabs, emoji and combining marks come back; a byte tokenizer that strips fails."""
    assert check_roundtrip(_Bytes(), TEXT).status is Status.PASS
    result = check_roundtrip(_BytesThatStrip(), TEXT)
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.stripped")


class _Wrapped(_Chars):
    """Gives its ids in the form that other libraries give them."""

    form: Callable[[list[int]], Any] = list

    def encode(self, text: str) -> Any:
        return type(self).form(super().encode(text))


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        torch.tensor,
        lambda ids: torch.tensor([ids]),
        lambda ids: torch.tensor(ids).numpy(),
        lambda ids: SimpleNamespace(ids=ids),
        lambda ids: {"input_ids": ids},
        lambda ids: {"input_ids": torch.tensor([ids])},
    ],
)
def test_ids_are_read_in_every_usual_form(form: Callable[[list[int]], Any]) -> None:
    """Tensor, array, object with .ids, mapping with input_ids."""
    kind = type("Kind", (_Wrapped,), {"form": staticmethod(form)})
    assert check_roundtrip(kind(), TEXT).status is Status.PASS


class _TensorOnly(_Chars):
    def decode(self, ids: Any) -> str:
        return super().decode(ids.tolist())


def test_a_decode_that_wants_a_tensor_is_served() -> None:
    """A list has no tolist()."""
    assert check_roundtrip(_TensorOnly(), TEXT).status is Status.PASS


class _WithStart(_Chars):
    """Adds start tokens that decode leaves out."""

    starts = 1

    def encode(self, text: str) -> list[int]:
        return [self.vocab_size] * self.starts + super().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i for i in ids if i < self.vocab_size])


def test_a_start_token_in_every_text_warns_and_two_of_them_fail() -> None:
    """One may be meant; two are added by two layers that do not know each other."""
    result = check_roundtrip(_Hidden(_WithStart()), TEXT)
    assert (result.status, result.reason) == (Status.WARN, "roundtrip.tokens_added")
    twice = _WithStart()
    twice.starts = 2
    result = check_roundtrip(_Hidden(twice), TEXT)
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.doubled_start")


@pytest.mark.parametrize("tokenizer", [object(), SimpleNamespace(encode=ord), None])
def test_something_that_is_no_tokenizer_is_named(tokenizer: Any) -> None:
    """Both encode and decode are needed."""
    with pytest.raises(TypeError, match="encode"):
        check_roundtrip(tokenizer, "a")


def test_a_fault_is_named_only_where_it_explains_everything() -> None:
    """Lowercased and one letter wrong besides is not called lowercased."""
    assert name_fault("ABC DEF", "abc def").reason == "roundtrip.lowercased"
    assert name_fault("ABC DEF", "abx def").reason != "roundtrip.lowercased"
    assert name_fault("abcabc", "axcabc").reason == "roundtrip.changed"


def test_measure_says_where_the_first_difference_is() -> None:
    """'ab' comes back as 'aa': they differ at 1."""
    numbers = measure_roundtrip(_Chars("ab", before=lambda t: t.replace("b", "a")), "ab")
    assert numbers == {"ids": [0, 0], "back": "aa", "lossless": False, "first_difference": 1}


def test_in_a_pipeline() -> None:
    """Without a tokenizer it skips; with one it uses train_text and train_ids."""
    ids: Tensor = torch.tensor(_Chars().encode(TEXT))
    skipped = diagnose(Pipeline(Bigram(11)), only=["roundtrip"])["roundtrip"]
    assert (skipped.status, skipped.numbers["missing"]) == (Status.SKIP, ["tokenizer"])
    pipeline = Pipeline(Bigram(99), tokenizer=_Chars(), train_text=TEXT, train_ids=ids)
    assert diagnose(pipeline, only=["roundtrip"])["roundtrip"].status is Status.PASS


class _Alternating(_Chars):
    """Two ids for each character, taken in turn, that decode to the same character."""

    turn = 0

    def encode(self, text: str) -> list[int]:
        self.turn += 1
        return [i + self.vocab_size * (self.turn % 2) for i in super().encode(text)]

    def decode(self, ids: Sequence[int]) -> Any:
        return super().decode([i % self.vocab_size for i in ids])


def test_other_ids_the_second_time_fail() -> None:
    """The text comes back each time, and no two epochs see the same ids."""
    result = check_roundtrip(_Hidden(_Alternating("abc")), "abcabc")
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.not_repeatable")


class _InBlocks(_Chars):
    """Encodes long texts in blocks, and loses the character at each border."""

    def encode(self, text: str) -> list[int]:
        block = 65_536
        pieces = [text[start : start + block - 1] for start in range(0, len(text), block)]
        return super().encode(text if len(text) < block else "".join(pieces))


def test_a_loss_at_the_border_of_two_blocks_is_found() -> None:
    """Only texts beyond 65,536 characters take that path."""
    text = "abcdefgh" * 10_000
    assert check_roundtrip(_Chars("abcdefgh"), text).status is Status.PASS
    result = check_roundtrip(_InBlocks("abcdefgh"), text)
    assert (result.status, result.reason) == (Status.FAIL, "roundtrip.characters_dropped")
    assert result.numbers["first_difference"] == 65_535


class _Learnt:
    """Subwords of a list; encode takes the longest that fits inside a word and its space."""

    def __init__(self, learnt: Sequence[str], *, splits: bool = True) -> None:
        self.vocab = [*sorted(set(PROSE)), *learnt]
        self.vocab_size, self.splits = len(self.vocab), splits
        self.longest = sorted(self.vocab, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in re.findall(r"\s?\S+|\s+", text) if self.splits else [text]:
            place = 0
            while place < len(piece):
                found = next(e for e in self.longest if piece.startswith(e, place))
                ids.append(self.vocab.index(found))
                place += len(found)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.vocab[i] for i in ids)


PROSE = "the sun and the sea and the end of the day in the east of the land "
INSIDE = ["the", " the", "and", " and", " of", "an", "th", "nd"]
ACROSS = ["e s", "d t", "nd the", "of the ", "e e", "n t", "f the", "the "]


@pytest.mark.parametrize(
    ("learnt", "splits", "reason"),
    [
        (INSIDE, True, "roundtrip.ok"),
        (INSIDE + ACROSS, True, "roundtrip.merges_unused"),
        (INSIDE + ACROSS, False, "roundtrip.ok"),
        (INSIDE + ACROSS[:2], True, "roundtrip.ok"),
    ],
    ids=["inside words", "across words", "encode crosses too", "two phrases"],
)
def test_subwords_that_encode_never_gives_were_learnt_in_vain(
    learnt: list[str], splits: bool, reason: str
) -> None:
    """Merges that reach over a space are right where encode makes them, and dead elsewhere."""
    assert check_roundtrip(_Learnt(learnt, splits=splits), PROSE * 20).reason == reason


class _Marked(_Chars):
    """A table of characters with an end-of-document entry that encode reads as one id."""

    def __init__(self, text: str) -> None:
        super().__init__(["<|end|>", *sorted(set(text))])

    def encode(self, text: str) -> list[int]:
        return [self.chars.index(p) for p in re.findall(r"<\|end\|>|.", text, re.DOTALL)]


def test_markers_in_the_text_are_not_cut_in_half() -> None:
    """Samples begin anywhere; half of a marker would be characters that nobody promised."""
    text = "a short document\n<|end|>" * 400
    tokenizer = _Marked("a short document\n")
    stored = torch.tensor(tokenizer.encode(text))
    assert check_roundtrip(tokenizer, text, stored).reason != "roundtrip.unknown_character"
