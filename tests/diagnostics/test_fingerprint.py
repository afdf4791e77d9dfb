"""The very tokenizer passes; one of equal size with another order does not."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diagnostics import Pipeline, Status, check_fingerprint, diagnose
from diagnostics._result import CheckResult
from diagnostics._tokenizer import TokenizerReader, fingerprint_of, ids_of
from diagnostics.fingerprint import measure_agreement, stored_fingerprints
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, save_checkpoint
from minigpt.fingerprint import tokenizer_fingerprint
from tests.diagnostics.tiny import Bigram, TinyGPT

TEXT = "the quick brown fox jumps over the lazy dog, and runs away.\n" * 30
CHARS = sorted(set(TEXT))


class _Chars:
    """A character tokenizer of any order."""

    def __init__(self, chars: Sequence[str] = CHARS) -> None:
        self.chars = list(chars)
        self.vocab_size = len(self.chars)

    def encode(self, text: str) -> list[int]:
        return [self.chars.index(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.chars[int(i)] for i in ids)


IDS = torch.tensor(_Chars().encode(TEXT))


def _exchanged(a: int, b: int) -> list[str]:
    chars = list(CHARS)
    chars[a], chars[b] = chars[b], chars[a]
    return chars


def _judge(tokenizer: Any = None, V: int = len(CHARS), **parts: Any) -> CheckResult:
    pipeline = Pipeline(Bigram(V), tokenizer=tokenizer or _Chars(), **parts)
    return diagnose(pipeline, only=["fingerprint"])["fingerprint"]


def test_the_formula_by_hand() -> None:
    """SHA-256 of ["a","b"] without blanks, in UTF-8; the same as the reference model's."""
    assert fingerprint_of(["a", "b"]) == hashlib.sha256(b'["a","b"]').hexdigest()
    chars = ["\n", '"', "\u00e9", "\U0001f600"]
    assert fingerprint_of(chars) == tokenizer_fingerprint(chars)


def test_an_expected_fingerprint_is_compared() -> None:
    """Equal passes, another order of the same characters fails, for a list and a tokenizer."""
    expected = fingerprint_of(CHARS)
    for tokenizer in (CHARS, tuple(CHARS), _Chars()):
        assert check_fingerprint(tokenizer, expected).status is Status.PASS
    result = check_fingerprint(CHARS[::-1], expected)
    assert (result.status, result.reason) == (Status.FAIL, "fingerprint.differs")
    assert expected[:12] in result.claim
    assert fingerprint_of(CHARS[::-1])[:12] in result.claim


def test_nothing_to_compare_with_is_an_error() -> None:
    """A check that compares nothing would pass vacuously."""
    with pytest.raises(ValueError, match="nothing to compare"):
        check_fingerprint(CHARS)


def test_agreement_of_two_rows_of_ids() -> None:
    """1, 2, 1 against 2, 1, 2: every id exchanged; against 2, 3, 2: moved by one."""
    assert measure_agreement([1, 2, 1], [2, 1, 2]) == {
        "share": 0.0,
        "first": 0,
        "distance": None,
        "exchanged": 2,
    }
    moved = measure_agreement([1, 2, 1], [2, 3, 2])
    assert (moved["distance"], moved["exchanged"]) == (1, 2)
    same = measure_agreement([1, 2], [1, 2])
    assert (same["share"], same["first"], same["exchanged"]) == (1.0, None, 0)
    assert measure_agreement([1, 2, 1], [2, 1, 3])["exchanged"] is None
    assert measure_agreement([1, 2], [3, 3])["exchanged"] is None  # two became one


def test_text_and_ids_of_one_tokenizer_pass() -> None:
    """Every compared id agrees, and the claim counts them."""
    result = _judge(train_text=TEXT, train_ids=IDS)
    assert (result.status, result.reason) == (Status.PASS, "fingerprint.ok")
    assert "ids agree" in result.claim


@pytest.mark.parametrize("pair", [(5, 6), (0, 20)])
def test_two_exchanged_characters_are_found(pair: tuple[int, int]) -> None:
    """The size is equal, all ids are in range, and two characters changed places."""
    result = _judge(_Chars(_exchanged(*pair)), train_text=TEXT, train_ids=IDS)
    assert (result.status, result.reason) == (Status.FAIL, "fingerprint.order_differs")
    assert result.numbers["exchanged"] == 2


def test_a_tokenizer_with_an_entry_more_at_the_start_is_found() -> None:
    """<pad> was put first after the ids were made: every id moved by one."""
    result = _judge(_Chars(["<pad>", *CHARS]), V=64, train_text=TEXT, train_ids=IDS)
    assert result.reason == "fingerprint.offset_ids"
    assert "missing" in result.causes[0] or "without" in result.causes[0]


def test_ids_of_lowercased_text_are_found() -> None:
    """The ids were made from text.lower(), the text kept its capitals."""
    text = TEXT.title()
    tokenizer = _Chars(sorted(set(text) | set(text.lower())))
    ids = torch.tensor(tokenizer.encode(text.lower()))
    result = _judge(tokenizer, V=64, train_text=text, train_ids=ids)
    assert result.reason == "fingerprint.other_text"
    assert "text.lower()" in result.causes[0]


def test_unrelated_ids_get_no_cause() -> None:
    """Random ids fit nothing: no evidence, no cause."""
    ids = torch.randint(len(CHARS), (len(TEXT),), generator=torch.Generator().manual_seed(0))
    result = _judge(train_text=TEXT, train_ids=ids)
    assert (result.reason, result.causes) == ("fingerprint.ids_differ", ())


def test_one_changed_stretch_in_the_tail_is_found() -> None:
    """The head agrees; the last tenth was made with another tokenizer."""
    text = TEXT * 8
    ids = torch.tensor(_Chars().encode(text))
    cut = len(ids) * 9 // 10
    ids[cut:] = torch.tensor(_Chars(_exchanged(3, 9)).encode(text[cut:]))
    assert _judge(train_text=text, train_ids=ids).reason.startswith("fingerprint.")
    assert _judge(train_text=text, train_ids=ids).failed


@pytest.mark.parametrize(
    "ids",
    [
        IDS % 8,  # nothing to do with a storage type
    ],
)
def test_ids_folded_by_another_number_fail_here(ids: Tensor) -> None:
    """Modulo 8 is no storage type: the ids are not those of the text."""
    assert _judge(train_text=TEXT, train_ids=ids).failed


def test_what_belongs_to_range_is_left_to_it() -> None:
    """One id of V, ids modulo 256, zeros in every second place: other checks name them."""
    broken = IDS.clone()
    broken[7] = len(CHARS)
    assert not _judge(train_text=TEXT, train_ids=broken).failed
    chars = [chr(0x4E00 + i) for i in range(400)]
    text = "".join(random.Random(0).choices(chars, k=2000))
    true = torch.tensor(_Chars(chars).encode(text))
    assert not _judge(_Chars(chars), V=400, train_text=text, train_ids=true % 256).failed
    zeros = torch.stack([IDS, torch.zeros_like(IDS)], 1).flatten()
    assert not _judge(train_text=TEXT, train_ids=zeros).failed


def test_a_start_token_before_the_ids_is_fine() -> None:
    """The same ids, one place later."""
    tokenizer = _Chars([*CHARS, "<bos>"])
    ids = torch.cat([torch.tensor([len(CHARS)]), IDS])
    assert not _judge(tokenizer, V=64, train_text=TEXT, train_ids=ids).failed


def _safetensors(path: Path, metadata: dict[str, str]) -> Path:
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def _files(folder: Path, fingerprint: str | None) -> list[Path]:
    """Write the fingerprint into one file of each kind."""
    content = {"step": 3} if fingerprint is None else {"tokenizer_fingerprint": fingerprint}
    torch.save(content, folder / "a.pt")
    (folder / "a.json").write_text(json.dumps(content))
    return [
        _safetensors(folder / "a.safetensors", {"card": json.dumps(content)}),
        folder / "a.pt",
        folder / "a.json",
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_recorded_fingerprint_is_found_in_each_kind_of_file(tmp_path: Path, place: int) -> None:
    """A .safetensors card, a .pt dictionary, a JSON card: equal passes, another fails."""
    path = _files(tmp_path, fingerprint_of(CHARS))[place]
    assert stored_fingerprints(path) == [fingerprint_of(CHARS)]
    assert _judge(files=[path]).status is Status.PASS
    result = _judge(_Chars(_exchanged(0, 1)), files=[path])
    assert (result.status, result.reason) == (Status.FAIL, "fingerprint.differs")
    assert path.name in result.claim


def test_a_tokenizer_file_is_compared(tmp_path: Path) -> None:
    """{"chars": [...]} holds the entries themselves."""
    path = tmp_path / "char_tokenizer.json"
    path.write_text(json.dumps({"chars": CHARS}))
    assert _judge(files=[path]).status is Status.PASS
    assert _judge(_Chars(_exchanged(2, 3)), files=[path]).reason == "fingerprint.differs"


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_checkpoints_of_the_reference_model_are_read(tmp_path: Path, suffix: str) -> None:
    """Both formats carry the fingerprint."""
    tokenizer = CharTokenizer(CHARS)
    config = MiniGPTConfig(len(CHARS), 8, 8, 2, 1)
    path = tmp_path / f"model{suffix}"
    save_checkpoint(path, MiniGPT(config), tokenizer)
    assert stored_fingerprints(path)[0] == tokenizer.fingerprint
    assert _judge(tokenizer, files=[path]).status is Status.PASS
    other = CharTokenizer(_exchanged(4, 5))
    assert _judge(other, files=[path]).reason == "fingerprint.differs"


@pytest.mark.parametrize("place", [0, 1])
def test_a_checkpoint_without_a_fingerprint_warns(tmp_path: Path, place: int) -> None:
    """Old checkpoints carry none: nothing can be proved."""
    result = _judge(files=[_files(tmp_path, None)[place]])
    assert (result.status, result.reason) == (Status.WARN, "fingerprint.missing")


def test_damaged_files_are_left_to_files(tmp_path: Path) -> None:
    """No exception; nothing found."""
    for name in ("a.pt", "a.safetensors", "a.json", "a.txt", "missing.pt"):
        if name != "missing.pt":
            (tmp_path / name).write_bytes(b"not what it says")
        assert stored_fingerprints(tmp_path / name) == []


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    """weights_only refuses it; the marker file is never made."""
    marker = tmp_path / "executed"

    class _Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path(str(marker)).touch, ())  # type: ignore[return-value]

    torch.save({"tokenizer_fingerprint": "x", "evil": _Evil()}, tmp_path / "a.pt")
    assert stored_fingerprints(tmp_path / "a.pt") == []
    assert not marker.exists()


def test_a_tokenizer_larger_than_the_model_fails() -> None:
    """19 rows for 20 entries."""
    chars = [chr(97 + i) for i in range(20)]
    pipeline = Pipeline(TinyGPT(19), tokenizer=_Chars(chars))
    result = diagnose(pipeline, only=["fingerprint"])["fingerprint"]
    assert (result.status, result.reason) == (Status.FAIL, "fingerprint.model_too_small")
    assert "20 entries" in result.claim
    assert "19" in result.claim


def test_a_padded_embedding_is_fine() -> None:
    """28 characters in a model of 64 rows."""
    assert _judge(V=64, train_text=TEXT, train_ids=IDS).status is Status.PASS


def test_only_a_model_to_compare_with_skips() -> None:
    """Equal size proves nothing."""
    result = _judge()
    assert result.status is Status.SKIP
    assert "train_text and train_ids" in result.numbers["missing"]


def test_the_order_of_a_set_fails() -> None:
    """Chars = list(set(text)): other ids in the next process."""
    text = TEXT.upper() + TEXT + "0123456789"
    chars = list(set(text))
    assert chars != sorted(chars)
    ids = torch.tensor(_Chars(chars).encode(text))
    result = _judge(_Chars(chars), V=128, train_text=text, train_ids=ids)
    assert (result.status, result.reason) == (Status.FAIL, "fingerprint.order_from_set")


@pytest.mark.parametrize("order", ["sorted", "first", "frequency"])
def test_orders_that_come_back_pass(order: str) -> None:
    """By code point, by first appearance, by frequency."""
    chars = {
        "sorted": CHARS,
        "first": list(dict.fromkeys(TEXT)),
        "frequency": sorted(CHARS, key=lambda char: -TEXT.count(char)),
    }[order]
    ids = torch.tensor(_Chars(chars).encode(TEXT))
    assert _judge(_Chars(chars), train_text=TEXT, train_ids=ids).status is Status.PASS


def test_an_order_without_a_rule_warns() -> None:
    """A shuffled table that is stored with the checkpoint is fine; one that is not is a trap."""
    chars = random.Random(1).sample(CHARS, len(CHARS))
    ids = torch.tensor(_Chars(chars).encode(TEXT))
    result = _judge(_Chars(chars), train_text=TEXT, train_ids=ids)
    assert (result.status, result.reason) == (Status.WARN, "fingerprint.unknown_order")


class _Words:
    """Words and single spaces: a tokenizer without a readable table."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        return [self._words.index(word) for word in text.split(" ")]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._words[i] for i in ids)


def test_a_word_tokenizer_is_compared_by_ids() -> None:
    """No table, no fingerprint: text and ids decide."""
    words = ["the", "fox", "dog", "runs", "sleeps", "and"]
    text = " ".join(random.Random(2).choices(words, k=200))
    ids = torch.tensor(_Words(words).encode(text))
    assert _judge(_Words(words), train_text=text, train_ids=ids).status is Status.PASS
    other = _Words(["fox", "the", *words[2:]])
    result = _judge(other, train_text=text, train_ids=ids)
    assert result.reason == "fingerprint.order_differs"


@pytest.mark.parametrize(
    "table",
    [
        {"stoi": {"a": 0, "b": 1, "c": 2}},
        {"stoi": {"c": 2, "b": 1, "a": 0}},
        {"itos": {0: "a", 1: "b", 2: "c"}},
        {"itos": ["a", "b", "c"]},
        {"chars": "abc"},
        {"vocab": {"a": 0, "b": 1, "c": 2}},
        {"get_vocab": lambda: {"b": 1, "a": 0, "c": 2}},
        {"vocab": {0: b"a", 1: b"b", 2: b"c"}},
    ],
)
def test_entries_are_read_in_the_order_of_their_ids(table: dict[str, Any]) -> None:
    """Under every usual name, in either direction."""
    inner = _Chars("abc")
    holder = type("Holder", (), {"encode": inner.encode, "decode": inner.decode})()
    for name, value in table.items():
        setattr(holder, name, value)
    holder.encode, holder.decode = inner.encode, inner.decode
    reader = TokenizerReader(holder)
    assert reader.entries == ["a", "b", "c"]
    assert reader.fingerprint == fingerprint_of("abc")
    assert reader.size == 3


@pytest.mark.parametrize("raw", ["abc", 5, [1.5], ["a"], None, [True]])
def test_what_is_no_row_of_ids_is_refused(raw: Any) -> None:
    """The message says what came."""
    with pytest.raises(TypeError, match="whole numbers"):
        ids_of(raw)
