"""Parts of one text pass; each way in which validation text was trained on is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from diagnostics import Pipeline, Status, check_split, diagnose
from diagnostics._ngrams import find_runs, hash_runs, measure_overlap, power_of_two
from diagnostics._result import CheckResult
from diagnostics._split_rows import count_overlapping
from diagnostics._split_windows import measure_grid
from minigpt import CharTokenizer
from minigpt.corpus import data_path, read_text
from tests.diagnostics.tiny import Bigram

TEXT = read_text(data_path("guide.txt"))
TOKENIZER = CharTokenizer.from_text(TEXT)
IDS = torch.tensor(TOKENIZER.encode(TEXT))
CUT = len(IDS) * 9 // 10
LINES = [line for line in TEXT.splitlines(keepends=True) if line.strip()]
BLOCK = 32


def encode(lines: list[str]) -> Tensor:
    return torch.tensor(TOKENIZER.encode("".join(lines)))


def shuffled(lines: list[str], seed: int = 0) -> list[str]:
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed))
    return [lines[i] for i in order.tolist()]


def judge(train: Tensor, val: Tensor) -> tuple[Status, str]:
    result = check_split(train, val, block_size=BLOCK)
    return result.status, result.reason


def run_check(**parts: object) -> CheckResult:
    pipeline = Pipeline(Bigram(TOKENIZER.vocab_size), block_size=BLOCK, **parts)  # type: ignore[arg-type]
    return diagnose(pipeline, only=["split"])["split"]


def test_hashes_tell_runs_apart_and_know_equal_ones() -> None:
    """Of 1 2 1 2 3 the runs of two are 12, 21, 12, 23: the first and the third are equal."""
    hashes = hash_runs(np.array([1, 2, 1, 2, 3]), 2)
    assert hashes.shape == (4,)
    assert hashes[0] == hashes[2]
    assert len(set(hashes.tolist())) == 3
    assert hash_runs(np.arange(12).reshape(3, 4), 2).shape == (3, 3)
    with pytest.raises(ValueError, match="power of two"):
        hash_runs(np.arange(9), 3)
    assert [power_of_two(k) for k in (0, 1, 3, 4, 33)] == [0, 1, 2, 4, 32]


def test_runs_are_counted_and_placed_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """0..9 three times: the run 4 5 6 7 stands at 4, 14 and 24, whatever the pieces."""
    ids = np.tile(np.arange(10), 3)
    queries = np.concatenate([hash_runs(np.array(run), 4) for run in ([4, 5, 6, 7], [7, 5, 6, 4])])
    for length in (2**21, 6, 5):
        monkeypatch.setattr("diagnostics._ngrams.PIECE_LENGTH", length)
        found = find_runs(ids, queries, 4)
        assert found.counts.tolist() == [3, 0]
        assert found.places.tolist() == [4, -1]
        assert found.share == 1.0


def test_the_share_by_hand() -> None:
    """A quarter of the validation part is copied: a quarter of its runs, those at its seam not."""
    generator = torch.Generator().manual_seed(0)
    train, val = (torch.randint(50, (n,), generator=generator).numpy() for n in (4_000, 1_000))
    val[:250] = train[1_000:1_250]
    found = measure_overlap(train, val, length=32)
    assert found is not None
    assert found.share == pytest.approx((250 - 31) / (1_000 - 31))
    assert (found.natural, found.few, found.distances) == (0.0, found.share, (1_000,))


@pytest.mark.parametrize(
    ("train", "val"),
    [
        (IDS[:CUT], IDS[CUT:]),
        (IDS[len(IDS) - CUT :], IDS[: len(IDS) - CUT]),
        (IDS[:CUT], IDS[CUT - BLOCK :]),
        (encode(shuffled(LINES)[50:]), encode(shuffled(LINES)[:50])),
        (torch.randint(11, (4_000,)), torch.randint(11, (400,))),
        (torch.arange(3_000), torch.arange(3_000, 3_500)),
        (IDS[:CUT], IDS[CUT : CUT + BLOCK + 1]),
    ],
    ids=["last tenth", "first tenth", "a block of context", "lines", "random", "counting", "one"],
)
def test_two_parts_of_one_text_pass(train: Tensor, val: Tensor) -> None:
    assert judge(train, val) == (Status.PASS, "split.ok")


@pytest.mark.parametrize(
    ("train", "val", "reason"),
    [
        (IDS, IDS, "split.identical"),
        (IDS[:CUT], IDS[CUT - 5_000 : CUT - 100], "split.inside_train"),
        (IDS[CUT:], IDS, "split.inside_val"),
        (IDS[:CUT], IDS[CUT - 200 :], "split.ranges_overlap"),
        (IDS[5_000:], IDS[:6_000], "split.ranges_overlap"),
        (encode(shuffled(LINES)[50:]), encode(LINES[:50]), "split.overlap"),
        (encode(shuffled(LINES * 2)[100:]), encode(shuffled(LINES * 2)[:100]), "split.overlap"),
        (encode(shuffled(LINES * 9)[400:]), encode(shuffled(LINES * 9)[:400]), "split.overlap"),
        (IDS, IDS[:0], "split.empty"),
        (IDS[:0], IDS, "split.empty"),
        (IDS, IDS[:BLOCK], "split.too_short"),
        (IDS[:BLOCK], IDS, "split.too_short"),
    ],
)
def test_each_leak_has_its_reason(train: Tensor, val: Tensor, reason: str) -> None:
    assert judge(train, val) == (Status.FAIL, reason)


def test_the_range_that_both_parts_hold_is_named() -> None:
    """Train ends at 9000, validation begins at 8500."""
    result = check_split(IDS[:9_000], IDS[8_500:12_000])
    assert result.numbers == {"count": 500, "val_start": 0, "train_start": 8_500}
    assert "the end of train_ids" in result.claim


def test_a_toy_text_is_a_warning() -> None:
    """A sentence said 300 times has no new part, whoever splits it."""
    ids = torch.arange(300 * 27) % 27
    assert judge(ids[:7_000], ids[7_000:]) == (Status.WARN, "split.repetitive")


def test_some_common_documents_are_a_warning() -> None:
    """12 of 100 lines stand in both parts: quotations can look like this."""
    lines = shuffled(LINES)
    val, train = lines[:100], lines[100:]
    mixed = shuffled(train + val[:12])
    assert judge(encode(mixed), encode(val)) == (Status.WARN, "split.some_overlap")


@pytest.mark.parametrize(("shared", "reason"), [(24, "split.ok"), (33, "split.inside_train")])
def test_one_phrase_in_a_short_validation_part_is_no_leak(shared: int, reason: str) -> None:
    """Of 33 tokens 24 stand in train: 9 of 18 runs of 16, all of them from one phrase."""
    train = torch.randint(60, (4_000,), generator=torch.Generator().manual_seed(0))
    val = torch.randint(60, (33,), generator=torch.Generator().manual_seed(1))
    val[:shared] = train[2_000 : 2_000 + shared]
    result = check_split(train, val, block_size=BLOCK)
    assert result.reason == reason
    if shared == 24:
        assert result.status is Status.PASS


@pytest.mark.parametrize(("shared", "status"), [(46, Status.PASS), (50, Status.FAIL)])
def test_as_many_runs_as_a_run_is_long_are_more_than_a_phrase(shared: int, status: Status) -> None:
    """Of 129 runs of 32, two pieces of 46 tokens hold 30, and two of 50 hold 38, or 29 %."""
    train = torch.randint(60, (4_000,), generator=torch.Generator().manual_seed(0))
    val = torch.randint(60, (160,), generator=torch.Generator().manual_seed(1))
    val[:shared] = train[2_000 : 2_000 + shared]
    val[80 : 80 + shared] = train[1_000 : 1_000 + shared]
    assert check_split(train, val, block_size=BLOCK).status is status


def test_boilerplate_is_compared_with_what_the_training_text_repeats() -> None:
    """Half of each document is a licence of 200 tokens: half of all runs are common by nature."""
    generator = torch.Generator().manual_seed(0)
    licence = torch.randint(60, (200,), generator=generator)
    own = torch.randint(60, (120, 200), generator=generator)
    documents = torch.cat((licence.expand(120, 200), own), dim=1)
    result = check_split(documents[12:].flatten(), documents[:12].flatten())
    assert result.numbers["share"] > 0.3
    assert result.status is Status.PASS


def test_another_tokenizer_for_the_validation_part_is_a_warning() -> None:
    """Exchanged ids: the same size, the same range, and other counts."""
    order = torch.randperm(TOKENIZER.vocab_size, generator=torch.Generator().manual_seed(0))
    assert judge(IDS[:CUT], order[IDS[CUT:]]) == (Status.WARN, "split.other_counts")


# ---- rows of loaders -------------------------------------------------------------------------

Loader = Callable[[str], tuple[Tensor, Tensor]]


def loader_of(train: Tensor, val: Tensor) -> Loader:
    """Draw 8 of the rows (R, T + 1) of a part."""
    parts = {"train": train, "val": val}

    def batch(split: str) -> tuple[Tensor, Tensor]:
        rows = parts[split][torch.randint(len(parts[split]), (8,))]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return batch


def windows(ids: Tensor, stride: int) -> Tensor:
    return ids.unfold(0, BLOCK + 1, stride)


def random_split(rows: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    cut = len(rows) // 10
    return rows[order[cut:]], rows[order[:cut]]


@pytest.mark.parametrize("stride", [1, 8, 16])
def test_windows_that_overlap_and_are_split_at_random_are_found(stride: int) -> None:
    """No id is given twice to a part, and every validation row has a neighbour in training."""
    batch = loader_of(*random_split(windows(IDS[:40_000], stride)))
    result = run_check(batch=batch)
    assert (result.status, result.reason) == (Status.FAIL, "split.rows_overlap")


@pytest.mark.parametrize("stride", [1, BLOCK])
def test_windows_of_two_ranges_pass(stride: int) -> None:
    batch = loader_of(windows(IDS[:36_000], stride), windows(IDS[36_000:40_000], stride))
    result = run_check(batch=batch)
    assert (result.status, result.reason) == (Status.PASS, "split.ok")


def test_windows_side_by_side_may_be_split_at_random() -> None:
    """With a stride of the block, two windows share the one token that is a target in between."""
    assert run_check(batch=loader_of(*random_split(windows(IDS, BLOCK)))).status is Status.PASS


def parts_of(rows: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Nine tenths of shuffled rows, and the rest, each as one row of ids."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    n = len(rows) * 9 // 10
    return rows[order[:n]].flatten(), rows[order[n:]].flatten()


@pytest.mark.parametrize(
    ("width", "stride"), [(64, 32), (64, 40), (65, 32), (48, 24), (32, 16), (128, 64)]
)
def test_overlapping_windows_that_became_one_row_of_ids_are_found(width: int, stride: int) -> None:
    """Most places of val are covered, by stretches that begin at edges of windows."""
    result = check_split(*parts_of(IDS.unfold(0, width, stride)), block_size=BLOCK)
    assert (result.status, result.reason) == (Status.FAIL, "split.windows_overlap")
    assert result.numbers["covered"] > 0.7


@pytest.mark.parametrize("width", [32, 64, 65])
def test_windows_side_by_side_that_became_one_row_of_ids_pass(width: int) -> None:
    assert judge(*parts_of(IDS.unfold(0, width, width))) == (Status.PASS, "split.ok")


def test_records_and_prompts_of_one_width_are_no_windows() -> None:
    """Their common columns begin at edges too, and stand in the same place of a row in train."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(20, (800, 60), generator=generator)
    answers = torch.randint(20, (2400, 68), generator=generator)
    rows = torch.cat((prompts.repeat(3, 1), answers), 1)
    train, val = (part.numpy() for part in parts_of(rows))
    grid = measure_grid(train, val, 16)
    assert grid is not None
    assert grid.covered > 0.4  # prompts stand in both parts
    assert grid.aligned > 0.95
    assert grid.shifted < 0.8  # 2 / 3 in windows of three rows, and chance
    assert not grid.is_cut


def test_overlapping_rows_by_hand() -> None:
    """3 4 5 6 7 8 begins inside 1..6; 5 6 9 9 9 9 has two tokens of it and goes on differently."""
    train = np.array([[1, 2, 3, 4, 5, 6]])
    val = np.array([[3, 4, 5, 6, 7, 8], [9, 2, 3, 9, 9, 9], [7, 7, 7, 7, 7, 7]])
    assert count_overlapping(train, val, 2) == (1, 1)


@pytest.mark.parametrize(("redrawn", "status"), [(True, Status.FAIL), (False, Status.PASS)])
def test_a_split_that_is_drawn_anew_after_a_restart(redrawn: bool, status: Status) -> None:
    rows = IDS[:39_600].view(-1, BLOCK + 1)
    train, val = random_split(rows)

    def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        now, _ = random_split(rows, step if redrawn else 0)
        batch = loader_of(now, val)
        while True:
            yield batch("train")

    result = run_check(train_ids=train.flatten(), val_ids=val.flatten(), batches_from=batches_from)
    assert result.status is status
    assert result.reason == ("split.redrawn" if redrawn else "split.ok")


def test_a_loader_that_reads_some_validation_rows_is_found() -> None:
    """A tenth of the rows come from the validation part; all of them would be for `batches`."""
    batch = loader_of(windows(IDS[:40_000], 1), windows(IDS[36_000:40_000], 1))
    result = run_check(train_ids=IDS[:36_000], val_ids=IDS[36_000:40_000], batch=batch)
    assert (result.status, result.reason) == (Status.FAIL, "split.train_reads_val")


def test_missing_parts_are_named() -> None:
    result = run_check(train_ids=IDS)
    assert (result.status, result.numbers["missing"]) == (Status.SKIP, ["val_ids"])


def test_a_loader_that_makes_do_with_short_rows_is_a_warning() -> None:
    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = min(BLOCK, len(data) - 1)
        return data[None, :T], data[None, 1 : T + 1]

    result = run_check(train_ids=IDS, val_ids=IDS[:20], get_batch=get_batch)
    assert (result.status, result.reason) == (Status.WARN, "split.too_short")


def test_rows_of_ids_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(N,\)"):
        check_split(IDS[:64].view(2, 32), IDS)
