"""Every bad id is named with its position and count; ids that only look odd are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_range, diagnose
from diagnostics._result import CheckResult
from diagnostics.range import explains_wrap, has_zero_places, measure_range
from tests.diagnostics.tiny import Bigram, TinyGPT


def tokens(count: int, V: int, seed: int = 0) -> Tensor:
    """Random ids below V, none of them 0."""
    return torch.randint(1, V, (count,), generator=torch.Generator().manual_seed(seed))


def _judge(model: nn.Module | None = None, **parts: object) -> CheckResult:
    pipeline = Pipeline(model or Bigram(11), **parts)  # type: ignore[arg-type]
    return diagnose(pipeline, only=["range"])["range"]


def test_numbers_of_four_ids() -> None:
    """0, 3, 7, 5 for V = 6: one bad id, 7, at position 2."""
    assert measure_range(torch.tensor([0, 3, 7, 5]), 6) == {
        "count": 4,
        "min": 0,
        "max": 7,
        "bad_count": 1,
        "first_position": 2,
        "first_id": 7,
    }


def test_ignore_index_is_left_out_of_every_number() -> None:
    """-100 counts neither as an id nor as the minimum."""
    numbers = measure_range(torch.tensor([[-100, 4], [2, -100]]), 5, ignore_index=-100)
    assert (numbers["count"], numbers["min"], numbers["max"]) == (2, 2, 4)
    assert numbers["bad_count"] == 0


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_ids_inside_pass_with_their_numbers(shape: tuple[int, ...]) -> None:
    """0 to 5 with V = 6 is the whole range."""
    result = check_range(torch.arange(6).reshape(shape), 6)
    assert (result.status, result.reason) == (Status.PASS, "range.ok")
    assert str(result.claim) == "all 6 ids lie between 0 and 5, inside 0 to 5"


@pytest.mark.parametrize(
    ("ids", "V", "reason"),
    [
        ([0, 5, 6, 2], 6, "range.equals_vocab_size"),
        ([0, 5, 9, 6], 6, "range.too_large"),
        ([0, 5, -1, 2], 6, "range.negative"),
        ([0, 5, -100, 2], 6, "range.negative"),
        ([[0, 1], [5, 6]], 6, "range.equals_vocab_size"),
        ([0.0, 1.0], 6, "range.not_integer"),
        ([0.5, 1.0], 6, "range.not_integer"),
        ([True, False], 6, "range.not_integer"),
        ([], 6, "range.empty"),
    ],
)
def test_reason_of_each_fault(ids: list[object], V: int, reason: str) -> None:
    """Each kind of bad id has a reason of its own."""
    content = torch.tensor(ids) if ids else torch.zeros(0, dtype=torch.int64)
    result = check_range(content, V)
    assert (result.status, result.reason) == (Status.FAIL, reason)


def test_the_first_bad_id_is_named_with_row_position_and_count() -> None:
    """Two of six ids are 4 with V = 4; the first stands in row 0, position 2."""
    result = check_range(torch.tensor([[0, 3, 4], [4, 1, 2]]), 4, name="batch inputs")
    assert str(result.claim) == ("batch inputs hold the id 4 at row 0, position 2, outside 0 to 3")
    assert str(result.where) == "2 of 6 ids; first is row 0, position 2"
    assert result.numbers["bad_count"] == 2


def test_a_nan_is_no_id() -> None:
    """A float tensor fails by its type, whatever it holds."""
    assert check_range(torch.tensor([float("nan"), 1.0]), 6).reason == "range.not_integer"


def test_ignore_index_is_allowed_in_targets_only_when_it_is_named() -> None:
    """-100 passes as ignore_index=-100 and fails without it; -1 fails in both."""
    targets = torch.tensor([[1, -100], [-100, 2]])
    assert check_range(targets, 6, ignore_index=-100).status is Status.PASS
    assert check_range(targets, 6).reason == "range.negative"
    assert check_range(torch.tensor([1, -1]), 6, ignore_index=-100).reason == "range.negative"


@pytest.mark.parametrize(
    ("dtype", "V", "fits"),
    [
        (torch.uint8, 256, True),
        (torch.uint8, 257, False),
        (torch.int8, 128, True),
        (torch.int8, 200, False),
        (torch.int16, 32_768, True),
        (torch.int16, 50_257, False),
        (torch.uint16, 50_257, True),
        (torch.uint16, 100_000, False),
        (torch.int32, 100_000, True),
    ],
)
def test_a_type_must_hold_the_vocabulary(dtype: torch.dtype, V: int, fits: bool) -> None:
    """The largest value of the type must reach V - 1."""
    result = check_range(torch.tensor([1, 2, 3]).to(dtype), V)
    assert result.reason == ("range.ok" if fits else "range.dtype_too_small")


def test_numpy_arrays_are_read() -> None:
    """A mapped array of 16-bit ids is what nanoGPT users have."""
    assert check_range(np.array([0, 4], dtype=np.uint16), 5).status is Status.PASS  # type: ignore[arg-type]
    result = check_range(np.array([0, 5], dtype=np.uint16), 5)  # type: ignore[arg-type]
    assert result.reason == "range.equals_vocab_size"


@pytest.mark.parametrize(("written", "read", "k"), [("<u4", "<u2", 2), ("<i8", "<u2", 4)])
def test_wide_ids_read_as_narrow_ones_are_recognised(written: str, read: str, k: int) -> None:
    """32-bit ids read as 16-bit ones leave a zero in every second place, all of them in range."""
    stored = tokens(64, 300).numpy().astype(written).tobytes()
    ids = torch.from_numpy(np.frombuffer(stored, dtype=read).astype(np.int64))
    assert has_zero_places(ids) == k
    result = check_range(ids, 300)
    assert (result.status, result.reason) == (Status.FAIL, "range.wrong_dtype")


@pytest.mark.parametrize(
    ("written", "read", "words"),
    [
        ("<u2", "<i4", "several 16-bit ids were read as one wider number"),
        ("<u2", "<i8", "several 16-bit ids were read as one wider number"),
        (">u2", "<u2", "swapped"),
        ("<f4", "<i4", "32-bit floats"),
    ],
)
def test_ids_read_as_another_type_are_recognised(written: str, read: str, words: str) -> None:
    """Out of range as they stand, in range when read as what they were written as."""
    stored = tokens(256, 300).numpy().astype(written).tobytes()
    ids = torch.from_numpy(np.frombuffer(stored, dtype=read).astype(np.int64))
    result = check_range(ids, 300)
    assert result.reason == "range.wrong_dtype"
    assert words in result.causes[0]


def test_bytes_read_as_sixteen_bits_are_recognised() -> None:
    """Two 8-bit ids in one number, for a vocabulary of 65."""
    ids = torch.from_numpy(
        np.frombuffer(tokens(64, 65).numpy().astype("u1").tobytes(), "<u2").astype(np.int64)
    )
    result = check_range(ids, 65)
    assert result.reason == "range.wrong_dtype"
    assert "8-bit" in result.causes[0]


def test_random_large_ids_get_no_cause() -> None:
    """Ids up to a million for V = 300 fit none of the mistakes: no evidence, no cause."""
    result = check_range(torch.randint(10**6, (64,)), 300)
    assert (result.reason, result.causes) == ("range.too_large", ())


def test_signed_overflow_is_named_as_the_cause_of_negative_ids() -> None:
    """40,000 as a signed 16-bit number is -25,536."""
    ids = torch.tensor([1, 40_000, 50_000]).to(torch.int16).long()
    result = check_range(ids, 50_257)
    assert result.reason == "range.negative"
    assert "signed 16-bit" in result.causes[0]


@pytest.mark.parametrize("period", [[1, 0], [0, 1], [1, 0, 0, 0]])
def test_a_toy_stream_of_ones_and_zeros_is_no_wrong_type(period: list[int]) -> None:
    """1, 0, 1, 0 is a legal text of two tokens."""
    assert check_range(torch.tensor(period * 64), 2).status is Status.PASS


def test_a_long_constant_stream_warns_and_a_short_one_does_not() -> None:
    """32 equal ids are suspicious; 8 can be a row of spaces."""
    assert check_range(torch.full((32,), 3), 11).reason == "range.constant"
    assert check_range(torch.full((32,), 3), 11).status is Status.WARN
    assert check_range(torch.full((8,), 3), 11).status is Status.PASS


def test_a_full_byte_range_in_a_large_vocabulary_warns() -> None:
    """0..255 all used and nothing above, for V = 50,257: stored in 8 bits."""
    result = check_range(torch.arange(256).repeat(4), 50_257)
    assert (result.status, result.reason) == (Status.WARN, "range.wrapped")
    assert check_range(torch.arange(256).repeat(4), 512).status is Status.PASS  # padded bytes


def test_wrap_is_explained_by_the_modulus() -> None:
    """300 becomes 44 in eight bits."""
    assert explains_wrap(torch.tensor([1, 300]), torch.tensor([1, 44])) == 256
    assert explains_wrap(torch.tensor([1, 70_000]), torch.tensor([1, 4464])) == 65_536
    assert explains_wrap(torch.tensor([1, 300]), torch.tensor([1, 300])) is None
    assert explains_wrap(torch.tensor([1, 300]), torch.tensor([1, 45])) is None


class _Alphabet:
    """A character tokenizer of V characters from U+4E00 on."""

    def __init__(self, V: int) -> None:
        self.chars = [chr(0x4E00 + i) for i in range(V)]
        self.vocab_size = V

    def encode(self, text: str) -> list[int]:
        return [ord(char) - 0x4E00 for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.chars[i] for i in ids)


def test_wrapped_train_ids_fail_against_text_and_tokenizer() -> None:
    """All ids in range, and those of 256 and more became other tokens."""
    tokenizer = _Alphabet(400)
    true = tokens(500, 400)
    text = tokenizer.decode(true.tolist())
    parts = {"tokenizer": tokenizer, "train_text": text, "vocab_size": 400}
    result = _judge(Bigram(400), train_ids=true % 256, **parts)
    assert (result.status, result.reason) == (Status.FAIL, "range.wrapped")
    assert _judge(Bigram(400), train_ids=true, **parts).status is Status.PASS


def test_every_row_of_ids_in_the_pipeline_is_judged() -> None:
    """The same bad id is found in each part, and the claim says in which."""
    good, bad = torch.arange(11), torch.tensor([3, 11])
    pair = (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64))
    wrong = (pair[0], torch.tensor([[1, 2, 11], [0, 0, 0]]))
    assert "train_ids" in _judge(train_ids=bad).claim
    assert "val_ids" in _judge(train_ids=good, val_ids=bad).claim
    assert "batch inputs" in _judge(batch=wrong[::-1]).claim
    assert "batch targets" in _judge(batch=wrong).claim
    assert "pad_id" in _judge(train_ids=good, pad_id=11).claim
    assert _judge(train_ids=good, val_ids=good, batch=pair, pad_id=0).status is Status.PASS


def test_ignored_targets_pass_and_ignored_inputs_fail() -> None:
    """-100 belongs into targets only."""
    labelled = torch.tensor([[1, -100], [2, 3]])
    plain = torch.tensor([[1, 2], [2, 3]])
    assert _judge(batch=(plain, labelled)).status is Status.PASS
    result = _judge(batch=(labelled, plain))
    assert result.reason == "range.negative"
    assert "batch inputs" in result.claim


def test_the_embedding_limits_the_ids_where_it_is_smaller() -> None:
    """V = 20 declared, 19 rows: id 19 is out of range, and the cause says why."""
    result = _judge(TinyGPT(19), vocab_size=20, train_ids=torch.arange(20))
    assert result.reason == "range.equals_vocab_size"
    assert "19 rows for a vocabulary of 20" in result.causes[0]


class _Hashed(nn.Module):
    """A table of 7 rows for 20 tokens, and another table whose name speaks of tokens too."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 20
        self.token_type_embeddings = nn.Embedding(2, 8)
        self.token_table = nn.Embedding(7, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        kind = self.token_type_embeddings(torch.zeros_like(ids))
        return self.head(self.token_table(ids % 7) + kind)


def test_a_hashed_table_takes_every_id() -> None:
    """Seven rows, and the model runs on id 19 all the same."""
    assert _judge(_Hashed(), train_ids=torch.arange(20)).status is Status.PASS


def test_a_padded_vocabulary_is_fine() -> None:
    """65 characters in a model of 128 rows."""
    assert _judge(TinyGPT(128), vocab_size=65, train_ids=torch.arange(65)).status is Status.PASS


def test_special_ids_must_have_a_row_too() -> None:
    """A pad token added to the tokenizer, and no row for it."""
    tokenizer = _Alphabet(11)
    tokenizer.pad_token_id = 11  # type: ignore[attr-defined]
    result = _judge(train_ids=torch.arange(11), tokenizer=tokenizer)
    assert result.reason == "range.equals_vocab_size"
    assert "special ids" in result.claim


def test_without_any_ids_it_skips_and_names_what_unlocks_it() -> None:
    """A model alone has no ids."""
    result = _judge()
    assert result.status is Status.SKIP
    assert result.numbers["missing"] == ["train_ids", "batch", "tokenizer"]


def test_given_ids_are_left_as_they_were() -> None:
    """Types and values stay."""
    ids = torch.tensor([1, 2, 300], dtype=torch.int32)
    before = ids.clone()
    _judge(train_ids=ids)
    assert torch.equal(ids, before)
    assert ids.dtype is torch.int32


@pytest.mark.parametrize(
    ("ids", "V"), [(torch.zeros(2, 3, 4).long(), 5), (torch.zeros(3).long(), 0)]
)
def test_unusable_arguments_are_named(ids: Tensor, V: int) -> None:
    """Three dimensions, or no vocabulary at all."""
    with pytest.raises(ValueError, match="must"):
        check_range(ids, V)


class _Sized:
    """A tokenizer of the ten digits."""

    vocab_size = 10

    def encode(self, text: str) -> list[int]:
        return [int(char) for char in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(str, ids))


@pytest.mark.parametrize(
    ("masked", "reason"), [(True, "range.ok"), (False, "range.padding_sampled")]
)
def test_rows_that_only_fill_up_the_vocabulary_are_not_drawn(masked: bool, reason: str) -> None:
    """16 rows for 10 entries: 6 of 16 draws from equal logits would be no text."""

    def probabilities(logits: Tensor, *settings: object) -> Tensor:
        if masked:
            logits = logits.masked_fill(torch.arange(len(logits)) >= 10, -torch.inf)
        return logits.softmax(-1)

    result = _judge(
        Bigram(16),
        tokenizer=_Sized(),
        train_ids=torch.arange(40) % 10,
        next_token_probabilities=probabilities,
    )
    assert result.reason == reason
    if not masked:
        assert result.status is Status.WARN
        assert result.numbers["mass"] == pytest.approx(6 / 16)
