"""Ids that say the text pass in every style of tokenizer; each way to say another one is named."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from diagnostics import Pipeline, Status, check_text, diagnose
from diagnostics._stored_text import StoredText
from diagnostics._text_form import longest_run, measure_dependence, measure_flatness
from diagnostics._text_readings import find_text_fault, measure_distance
from diagnostics._tokenizer import TokenizerReader
from minigpt import CharTokenizer
from minigpt.corpus import data_path, read_text
from tests.diagnostics.tiny import Bigram

TEXT = read_text(data_path("guide.txt"))[:30_000]
CHARS = CharTokenizer.from_text(TEXT)
IDS = torch.tensor(CHARS.encode(TEXT))
PIECES = (
    *("the ", "and ", "ing ", "of a ", " is ", "that ", "er "),
    *("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te"),
)


class Subwords:
    """A greedy tokenizer of a few long pieces and all characters; may lowercase, marks documents.

    Ids 0 and 1 are special: the end of a document and the start of every encoded text.
    """

    def __init__(self, *, lower: bool = False, start: bool = False, text: str = TEXT) -> None:
        self.lower, self.start = lower, start
        known = text.lower() if lower else text
        self.vocab = ["<|end|>", "<s>", *PIECES, *sorted(set(known))]
        self.id_of = {entry: i for i, entry in enumerate(self.vocab)}
        self.eos_token_id, self.bos_token_id, self.vocab_size = 0, 1, len(self.vocab)

    def encode(self, text: str) -> list[int]:
        text = text.lower() if self.lower else text
        ids = [1] if self.start else []
        place = 0
        while place < len(text):
            found = next((p for p in PIECES if text.startswith(p, place)), text[place])
            ids.append(self.id_of[found])
            place += len(found)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.vocab[i] for i in ids)


def documents(text: str = TEXT) -> list[str]:
    return [part for part in text.split("\n\n") if part.strip()]


def judge(ids: Tensor, text: str | None = TEXT, **parts: object) -> tuple[Status, str]:
    result = check_text(CHARS, ids, text, **parts)  # type: ignore[arg-type]
    return result.status, result.reason


def shuffled(values: Sequence[str], seed: int = 0) -> list[str]:
    return random.Random(seed).sample(values, len(values))


def test_the_ids_of_the_text_pass_and_the_words_are_shown() -> None:
    result = check_text(CHARS, IDS, TEXT)
    assert (result.status, result.reason) == (Status.PASS, "text.ok")
    assert "Debugging a small GPT" in result.measured


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (IDS.flip(0), "text.reversed"),
        (IDS[::2], "text.tokens_lost"),
        (IDS[1::3], "text.tokens_lost"),
        (IDS.repeat_interleave(2), "text.tokens_doubled"),
        (torch.cat((IDS[:9_000], IDS[9_400:])), "text.piece_missing"),
        (torch.cat((IDS[:9_000], IDS[9_000:9_400] * 0, IDS[9_400:])), "text.part_differs"),
        (IDS[torch.randperm(len(IDS), generator=torch.Generator().manual_seed(0))],
         "text.scrambled"),
        (torch.tensor(CHARS.encode(TEXT.lower())), "text.changed"),
        (torch.tensor(CHARS.encode(TEXT.replace("e", ""))), "text.characters_lost"),
        (torch.tensor(CHARS.encode(" ".join(shuffled(TEXT.split(" "))))), "text.scrambled"),
        ((IDS + 1) % CHARS.vocab_size, "text.other_tokenizer"),
        (torch.randint(CHARS.vocab_size, (30_000,), generator=torch.Generator().manual_seed(0)),
         "text.ids_differ"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_fault_has_its_reason(ids: Tensor, reason: str) -> None:
    assert judge(ids) == (Status.FAIL, reason)


def test_another_text_of_the_same_tokenizer_is_not_another_tokenizer() -> None:
    """The second half of the text beside the ids of the first: the letters are as common."""
    half = len(TEXT) // 2
    assert judge(IDS[:half], TEXT[half:]) == (Status.FAIL, "text.other_text")


@pytest.mark.parametrize("limit", [40, 100, 256])
@pytest.mark.parametrize("ended", [False, True])
def test_lines_that_were_cut_at_a_maximum_length_are_named(limit: int, ended: bool) -> None:
    """The remedy is another length, not the same encoder again."""

    def cut(line: str) -> str:
        if len(line) <= limit:
            return line
        return line[: limit - 1] + "\n" if ended else line[:limit]

    lines = TEXT.splitlines(keepends=True)
    result = check_text(CHARS, torch.tensor(CHARS.encode("".join(map(cut, lines)))), TEXT)
    assert (result.status, result.reason) == (Status.FAIL, "text.pieces_cut")
    assert result.numbers["limit"] == limit
    assert result.numbers["cut"] == sum(len(line) > limit for line in lines)
    assert "truncation" in result.next_step


def test_paragraphs_of_subwords_that_were_cut_are_named() -> None:
    tokenizer = Subwords()
    ids = [i for part in documents() for i in tokenizer.encode(part)[:64]]
    result = check_text(tokenizer, torch.tensor(ids), TEXT)
    assert (result.status, result.reason) == (Status.FAIL, "text.pieces_cut")
    assert result.numbers["limit"] == 64


def test_the_place_and_the_size_of_what_is_missing_are_named() -> None:
    """1234 characters were inserted at 7000; the ids know nothing of them."""
    result = check_text(CHARS, IDS, TEXT[:7_000] + "z" * 1_234 + TEXT[7_000:])
    assert result.reason == "text.piece_missing"
    assert result.numbers["text_characters"] == 1_234
    assert "from character 7000" in result.where


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (torch.tensor(CHARS.encode("\n".join(shuffled(TEXT.split("\n"))))), "text.reordered"),
        (IDS.repeat(2), "text.repeated"),
        (torch.tensor(CHARS.encode(" ".join(TEXT.split()))), "text.spaces_differ"),
        (IDS[:20_000], "text.tail_missing"),
        (IDS[10_000:], "text.head_missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_healthy_preparation_may_do_is_a_warning(ids: Tensor, reason: str) -> None:
    assert judge(ids) == (Status.WARN, reason)


@pytest.mark.parametrize("share", [0.002, 0.05, 0.15])
def test_single_ids_that_changed_all_over_are_no_other_text(share: float) -> None:
    """As many places as were drawn, and no cause that the numbers do not show."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(len(IDS), generator=generator) < share
    ids = torch.where(drawn, (IDS + 7) % 50, IDS)
    result = check_text(CHARS, ids, TEXT)
    assert (result.status, result.reason, result.causes) == (Status.FAIL, "text.part_differs", ())
    assert result.numbers["places"] == int((ids != IDS).sum())


def test_one_token_for_all_that_is_unknown_is_named() -> None:
    """q, x and z became a question mark."""
    plain = "".join(char for char in TEXT if char != "?")
    marked = "".join("?" if char in "qxz" else char for char in plain)
    result = check_text(CHARS, torch.tensor(CHARS.encode(marked)), plain)
    assert (result.status, result.reason) == (Status.FAIL, "text.characters_lost")
    assert "'q', 'x', 'z'" in result.claim


def test_a_lost_tail_fails_where_the_validation_part_shows_that_it_was_no_split() -> None:
    """val_ids that stand in the text are the rest of it; others prove that the rest is lost."""
    rest, other = IDS[27_000:], IDS[:3_000].flip(0)
    assert judge(IDS[:27_000], val_ids=rest) == (Status.PASS, "text.ok")
    assert judge(IDS[:27_000], val_ids=other) == (Status.FAIL, "text.tail_missing")


@pytest.mark.parametrize("text", [TEXT[:5_000], TEXT[9_000:15_000]])
def test_a_sample_of_the_text_is_enough(text: str) -> None:
    """Users hand over a part of a large text; ids that say more are no fault."""
    assert judge(IDS, text) == (Status.PASS, "text.ok")


def test_a_tail_that_fills_no_row_is_cut_off_by_design() -> None:
    assert judge(IDS[: len(IDS) // 256 * 256])[0] is Status.PASS


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("start", [False, True])
def test_subwords_pass_encoded_at_once_in_lines_and_in_documents(lower: bool, start: bool) -> None:
    """Start tokens of each call, ends of documents and lost white space between them are fine."""
    tokenizer = Subwords(lower=lower, start=start)
    text = TEXT[:8_000]
    for ids in (
        tokenizer.encode(text),
        [i for line in text.splitlines(keepends=True) for i in tokenizer.encode(line)],
        [i for k in range(0, len(text), 997) for i in tokenizer.encode(text[k : k + 997])],
        [i for document in documents(text) for i in [*tokenizer.encode(document), 0]],
    ):
        result = check_text(tokenizer, torch.tensor(ids), text)
        assert (result.status, result.reason) == (Status.PASS, "text.ok"), result.claim


class Words:
    """The commonest words; every other one is <unk>."""

    def __init__(self) -> None:
        common = Counter(TEXT.split()).most_common(300)
        self.itos = ["<unk>", *(word for word, _ in common)]
        self.stoi = {word: i for i, word in enumerate(self.itos)}
        self.vocab_size = len(self.itos)

    def encode(self, text: str) -> list[int]:
        return [self.stoi.get(word, 0) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.itos[i] for i in ids)


def test_words_that_a_tokenizer_does_not_know_are_no_fault_of_the_ids() -> None:
    """The ids are what encode makes of the text; what it cannot tell is for `roundtrip`."""
    tokenizer = Words()
    ids = torch.tensor(tokenizer.encode(TEXT))
    assert check_text(tokenizer, ids, TEXT).reason == "text.ok"
    assert check_text(tokenizer, ids.flip(0), TEXT).reason == "text.reversed"


@pytest.mark.parametrize(("kept", "status"), [(True, Status.PASS), (False, Status.FAIL)])
def test_documents_that_the_text_marks_are_marked_in_the_ids(kept: bool, status: Status) -> None:
    """<|end|> stands 60 times in the text: the id 0 must stand there 60 times, too."""
    tokenizer = Subwords()
    end = [0] if kept else []
    ids = [i for text in documents() for i in [*tokenizer.encode(text), *end]]
    text = "".join(part + "<|end|>" for part in documents())
    result = check_text(tokenizer, torch.tensor(ids), text)
    assert result.status is status
    assert result.reason == ("text.ok" if kept else "text.terminator_missing")


def test_other_merges_of_the_same_text_are_a_warning() -> None:
    """Character by character the text is the same, and a prompt would be split otherwise."""
    tokenizer = Subwords()
    ids = [i for char in TEXT for i in tokenizer.encode(char)]
    result = check_text(tokenizer, torch.tensor(ids), TEXT)
    assert (result.status, result.reason) == (Status.WARN, "text.split_differs")


@pytest.mark.parametrize("fault", ["reversed", "tokens_lost", "scrambled", "piece_missing"])
def test_faults_of_subword_ids_are_named_too(fault: str) -> None:
    ids = torch.tensor(Subwords().encode(TEXT))
    broken = {
        "reversed": ids.flip(0),
        "tokens_lost": ids[::2],
        "scrambled": ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))],
        "piece_missing": torch.cat((ids[:5_000], ids[5_500:])),
    }[fault]
    result = check_text(Subwords(), broken, TEXT)
    assert (result.status, result.reason) == (Status.FAIL, f"text.{fault}")


def test_rows_too_long_to_decode_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of 2000 ids the head and 64 pieces speak for 20,000 subwords."""
    monkeypatch.setattr("diagnostics._stored_text.FULL_MAX", 2_000)
    monkeypatch.setattr("diagnostics._stored_text.ENDS_LENGTH", 1_000)
    tokenizer = Subwords()
    ids = torch.tensor(tokenizer.encode(TEXT))

    def reason_of(stored: Tensor) -> str:
        fault = find_text_fault(StoredText(TokenizerReader(tokenizer), stored, TEXT))
        return "text.ok" if fault is None else fault.reason

    assert reason_of(ids) == "text.ok"
    assert reason_of(ids[:12_000]) == "text.tail_missing"
    assert reason_of(ids.flip(0)) == "text.reversed"
    zeroed = ids.clone()
    zeroed[9_000:15_000] = 2
    assert reason_of(zeroed) == "text.part_differs"


# ---- marks of documents ------------------------------------------------------------------


def marked(*, start: bool = False) -> tuple[Subwords, list[list[int]]]:
    """The tokenizer, and the ids of each document."""
    tokenizer = Subwords(start=start)
    return tokenizer, [tokenizer.encode(document) for document in documents()]


def joined(parts: list[list[int]], before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    return torch.tensor([i for part in parts for i in (*before, *part, *after)])


def test_a_marker_that_is_spelled_out_is_no_terminator() -> None:
    """<|end|> letter by letter: the id that ends a document never occurs."""
    text = "".join(part + "\n<|end|>" for part in documents())
    tokenizer = Subwords(text=text)
    result = check_text(tokenizer, torch.tensor(tokenizer.encode(text)), text)
    assert (result.status, result.reason) == (Status.FAIL, "text.marker_spelled")


def test_a_text_that_mentions_a_marker_is_no_stream_of_documents() -> None:
    """Inside a sentence it is a word like any other."""
    text = TEXT[:5_000] + "one <|end|> here, and <|end|> and <|end|> there " + TEXT[5_000:]
    tokenizer = Subwords(text=text)
    assert check_text(tokenizer, torch.tensor(tokenizer.encode(text)), text).passed


def test_documents_cut_at_a_length_lose_their_terminator() -> None:
    text = "".join(part + "<|end|>" for part in documents())
    tokenizer, parts = marked()
    ids = torch.tensor([i for part in parts for i in [*part, 0][:150]])
    result = check_text(tokenizer, ids, text)
    assert (result.status, result.reason) == (Status.FAIL, "text.terminator_missing")
    assert "cut at a length" in result.causes[0]


@pytest.mark.parametrize(
    ("before", "reason"),
    [((1,), "text.ok"), ((1, 1), "text.doubled_start"), ((), "text.ok"), ((0, 0), "text.ok")],
    ids=["one", "two", "none", "padding"],
)
def test_the_start_token_stands_once(before: tuple[int, ...], reason: str) -> None:
    """Id 1 is the start; id 0 ends documents and may stand in a row, as padding does."""
    tokenizer, parts = marked()
    assert check_text(tokenizer, joined(parts, before, (0,))).reason == reason


def test_a_start_token_that_encode_adds_and_the_data_lacks_is_a_warning() -> None:
    tokenizer, parts = marked(start=True)
    ids = joined([part[1:] for part in parts], (), (0,))
    result = check_text(tokenizer, ids)
    assert (result.status, result.reason) == (Status.WARN, "text.start_missing")


@pytest.mark.parametrize(
    ("stop_ids", "reason"),
    [([0], "text.ok"), ([1], "text.other_terminator"), ([1, 0], "text.ok"), ([], "text.ok")],
)
def test_the_id_to_stop_at_must_end_documents(stop_ids: list[int], reason: str) -> None:
    """Documents end with 0; a generator that waits for 1 runs on."""
    tokenizer, parts = marked()
    assert check_text(tokenizer, joined(parts, (), (0,)), stop_ids=stop_ids).reason == reason


# ---- without a text --------------------------------------------------------------------------


@cache
def random_ids(distinct: int, count: int = 30_000) -> Tensor:
    return torch.randint(distinct, (count,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("ids", "status", "reason"),
    [
        (IDS, Status.PASS, "text.ok"),
        (IDS[torch.randperm(len(IDS))], Status.FAIL, "text.scrambled"),
        (random_ids(CHARS.vocab_size), Status.WARN, "text.noise"),
        (random_ids(4), Status.PASS, "text.ok"),
        (CHARS.vocab_size - 1 - IDS, Status.WARN, "text.no_words"),
        (torch.cat((IDS, torch.zeros(2_000, dtype=torch.int64), IDS)), Status.WARN,
         "text.one_token"),
        (torch.arange(30_000) * 7 % 61, Status.PASS, "text.ok"),
    ],
    ids=["text", "shuffled", "noise", "few letters", "other order", "empty page", "toy"],
)  # fmt: skip
def test_statistics_speak_without_a_text(ids: Tensor, status: Status, reason: str) -> None:
    assert judge(ids, None) == (status, reason)


def test_numbers_by_hand() -> None:
    """Four ids in equal parts are flat; 0, 1, 0, 1 tells all about its next id: ln 2 nats."""
    assert measure_flatness(np.array([0, 1, 2, 3])) == pytest.approx(1.0)
    assert measure_flatness(np.array([5, 5, 5])) == 0.0
    assert measure_dependence(np.arange(20_000) % 2) == pytest.approx(np.log(2), abs=1e-3)
    assert longest_run(np.array([1, 2, 2, 2, 3, 3])) == (3, 1)
    assert measure_distance(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])) == 0.25
    assert measure_distance(np.array([0]), np.array([3])) == 1.0


# ---- in a pipeline ---------------------------------------------------------------------------


def test_missing_parts_are_named() -> None:
    result = diagnose(Pipeline(Bigram(11), train_ids=IDS), only=["text"])["text"]
    assert (result.status, result.numbers["missing"]) == (Status.SKIP, ["tokenizer"])
    result = diagnose(Pipeline(Bigram(11), tokenizer=CHARS), only=["text"])["text"]
    assert (result.status, result.numbers["missing"]) == (Status.SKIP, ["train_ids"])


def test_ids_that_decode_refuses_are_a_fault_that_range_explains() -> None:
    ids = IDS.clone()
    ids[5] = CHARS.vocab_size + 4
    pipeline = Pipeline(Bigram(CHARS.vocab_size), tokenizer=CHARS, train_ids=ids, train_text=TEXT)
    report = diagnose(pipeline, only=["range", "text"])
    assert report["text"].reason == "text.undecodable"
    assert report["text"].consequence_of == "range"


@pytest.mark.parametrize("broken", [IDS.flip(0), IDS[::2], IDS[9_000:], IDS[:15_000].repeat(2)])
def test_fingerprint_leaves_another_text_to_this_check(broken: Tensor) -> None:
    """The tokenizer is the right one; to blame it would send a person to the wrong place."""
    pipeline = Pipeline(
        Bigram(CHARS.vocab_size), tokenizer=CHARS, train_ids=broken, train_text=TEXT
    )
    report = diagnose(pipeline, only=["fingerprint", "text"])
    assert not report["fingerprint"].failed
    assert report["text"].reason != "text.ok"


def test_an_empty_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one id"):
        check_text(CHARS, IDS[:0])
