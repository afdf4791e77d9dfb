"""Batches are well formed, vary, reach all of the data, and come from their own split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diagnostics import CheckResult, Pipeline, Status, check_batches, diagnose
from diagnostics._batch_draws import Draws, calls_for, unit_steps
from diagnostics._probe import Probe
from diagnostics.batches import run
from minigpt import get_batch as minigpt_get_batch
from tests.diagnostics.tiny import Bigram, HFStyle, TinyGPT

V, B, T, N = 19, 5, 12, 3000
Pair = tuple[Tensor, Tensor]


def judge(**parts: Any) -> CheckResult:
    """Run the check on a pipeline with a tiny model."""
    return run(Probe(Pipeline(parts.pop("model", None) or TinyGPT(V, block=T), **parts)))


def ids(seed: int = 0, n: int = N, vocab: int = V) -> Tensor:
    """Return random ids (n,)."""
    return torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(seed))


def cut(data: Tensor, starts: Tensor) -> Pair:
    """Return windows (B, T) and the windows one later."""
    places = starts[:, None] + torch.arange(T)
    return data[places], data[places + 1]


def healthy(data: Tensor) -> Pair:
    """Draw every window with equal probability."""
    return cut(data, torch.randint(len(data) - T, (B,)))


# ---- one batch -----------------------------------------------------------------------------


def pair() -> Pair:
    """Return a healthy batch."""
    return cut(ids(), torch.arange(B) * 7)


def test_a_healthy_batch_passes_and_tells_its_shape() -> None:
    """5 rows of 12 int64 ids."""
    result = check_batches(*pair(), vocab_size=V, block_size=T, device="cpu")
    assert (result.status, result.reason) == (Status.PASS, "batches.ok")
    assert result.measured == "inputs int64 (5, 12), targets int64 (5, 12)"
    assert result.numbers == {"B": B, "T": T}


X, Y = cut(ids(), torch.arange(B) * 7)


@pytest.mark.parametrize(
    ("inputs", "targets", "options", "reason", "words"),
    [
        (X, Y[:, 0], {}, "shape", "another column"),
        (X[0], Y[0], {}, "shape", "not a batch"),
        (X, Y.flatten(), {}, "shape", "flattened"),
        (X, Y[:, 1:], {}, "shape", "differ by one"),
        (X[:0], Y[:0], {}, "empty", None),
        (X, Y.to(torch.int16), {}, "dtype", "small type"),
        (X.float(), Y, {}, "dtype", None),
        (X, Y, {"block_size": T - 1}, "too_long", None),
        (X, Y, {"vocab_size": int(X.max())}, "ids", None),
        (X, Y, {"attention_mask": torch.ones(B, T + 1)}, "mask", None),
        ([[1, 2, 3], [4]], [[2, 3, 4], [5]], {}, "ragged", None),
        ([[1, 2]], [[2, 3]], {}, "not_tensors", None),
        (X.to("meta"), Y, {}, "device", None),
        (X.to("meta"), Y.to("meta"), {"device": "cpu"}, "device", None),
    ],
)
def test_faults_of_one_batch(
    inputs: Any, targets: Any, options: dict[str, Any], reason: str, words: str | None
) -> None:
    """Each fault has a name of its own; a cause only where the shapes point to one."""
    result = check_batches(inputs, targets, **options)
    assert (result.status, result.reason) == (Status.FAIL, f"batches.{reason}")
    assert result.causes == () if words is None else words in result.causes[0]


def test_one_label_a_row_shows_both_shapes() -> None:
    """[4, 67] where [4] was expected, and the other way round: both shapes are in the claim."""
    result = check_batches(torch.zeros(4, 67).long(), torch.zeros(4).long())
    assert "inputs (4, 67) and targets (4,)" in result.claim


def test_left_padding_needs_a_mask_and_right_padding_does_not() -> None:
    """Pads before the tokens are read by all of them; pads after them are in their future."""
    left, right = X.clone(), X.clone()
    left[2, :3] = 0
    left[:, -1] = right[:, 0] = 5
    right[2, -3:] = 0
    assert check_batches(left, Y, pad_id=0).reason == "batches.pads_unmasked"
    assert check_batches(right, Y, pad_id=0).status is Status.PASS
    mask = (left != 0).long()
    assert check_batches(left, Y, pad_id=0, attention_mask=mask).status is Status.PASS


# ---- healthy loaders -----------------------------------------------------------------------


class Sequential:
    """Rows one after the other, start over at the end."""

    def __init__(self, stride: int = T) -> None:
        self.stride, self.position = stride, 0

    def __call__(self, data: Tensor) -> Pair:
        """Return the next B windows."""
        if self.position + B * self.stride + T >= len(data):
            self.position = 0
        starts = self.position + self.stride * torch.arange(B)
        self.position += B * self.stride
        return cut(data, starts)


class Streams:
    """Each row reads a stream of its own, as truncated backpropagation through time does."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, data: Tensor) -> Pair:
        """Return the next window of each stream."""
        length = (len(data) - 1) // B
        start = (self.step * T) % (length - T)
        self.step += 1
        return cut(data, torch.arange(B) * length + start)


class Shuffled:
    """Windows that do not overlap, in a random order without replacement."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.n = 0

    def __call__(self, data: Tensor) -> Pair:
        """Return the next B windows of the epoch."""
        if len(self.left) < B or self.n != len(data):
            self.n = len(data)
            self.left = (T * torch.randperm((len(data) - 1) // T)).tolist()
        starts, self.left = self.left[:B], self.left[B:]
        return cut(data, torch.tensor(starts))


class OwnGenerator:
    """Random starts from a generator that lives in the loader."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, data: Tensor) -> Pair:
        """Return B random windows."""
        return cut(data, torch.randint(len(data) - T, (B,), generator=self.generator))


def numpy_style(data: Any) -> Pair:
    """Read a mapped array, as nanoGPT does."""
    starts = torch.randint(len(data) - T, (B,))
    x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
    return x, y


def small_type(data: Tensor) -> Pair:
    """Keep ids in 8 bits, which is enough for 19 of them."""
    x, y = healthy(data.to(torch.uint8))
    return x.long(), y.long()


def with_marker(data: Tensor) -> Pair:
    """Begin each row with token 0."""
    x, y = healthy(data)
    x[:, 0] = 0
    return x, y


def as_dict(data: Tensor) -> Any:
    """Labels equal the inputs; the model shifts."""
    starts = torch.randint(len(data) - T, (B,))
    x = cut(data, starts)[0]
    return {"input_ids": x, "labels": x.clone(), "attention_mask": torch.ones_like(x)}


def last_target_masked(data: Tensor) -> Pair:
    """Rows of T ids without the one after them: the last target is not scored."""
    rows = data[torch.randint(len(data) - T + 1, (B, 1)) + torch.arange(T)]
    targets = rows.roll(-1, dims=1)
    targets[:, -1] = -100
    return rows, targets


@pytest.mark.parametrize(
    "get_batch",
    [
        healthy,
        last_target_masked,
        lambda data: minigpt_get_batch(data, B, T),
        lambda data: minigpt_get_batch(data, 1, T),
        lambda data: minigpt_get_batch(data, 64, T),
        Sequential(),
        Streams(),
        Shuffled(),
        OwnGenerator(),
        numpy_style,
        small_type,
        with_marker,
    ],
)
def test_healthy_loaders_pass(get_batch: Callable[[Tensor], Any]) -> None:
    """Random, sequential, streams, shuffled, own generator, NumPy, 8-bit, markers: PASS."""
    result = judge(get_batch=get_batch, train_ids=ids())
    assert (result.status, result.reason) == (Status.PASS, "batches.ok"), str(result)


def test_a_dict_batch_with_labels_equal_to_inputs_passes() -> None:
    """With labels="same" the last start may lie one further."""
    result = judge(model=HFStyle(), get_batch=as_dict, train_ids=ids(), labels="same")
    assert (result.status, result.reason) == (Status.PASS, "batches.ok"), str(result)


def test_a_loader_that_cannot_read_foreign_data_is_not_at_fault() -> None:
    """It is judged on its own ids instead, and on those it passes."""
    own = ids()

    def bound(data: Tensor) -> Pair:
        return healthy(own)

    assert judge(get_batch=bound, train_ids=own).status is Status.PASS
    assert judge(get_batch=bound, train_ids=None, batch=pair()).status is Status.PASS


def test_no_false_alarm_in_many_seeds() -> None:
    """A healthy random sampler passes under 30 seeds: every bound is far from chance."""
    for seed in range(30):
        probe = Probe(Pipeline(TinyGPT(V, block=T), get_batch=healthy), seed=seed)
        assert run(probe).status is Status.PASS


def test_a_fixed_pair_is_judged_alone() -> None:
    """One batch given as a pair is meant to be fixed."""
    result = judge(batch=pair())
    assert (result.status, result.reason) == (Status.PASS, "batches.ok")
    assert "(5, 12)" in result.claim


# ---- loaders with faults -------------------------------------------------------------------


def seeded_inside(data: Tensor) -> Pair:
    """Seed at each call."""
    torch.manual_seed(0)
    return healthy(data)


def first_batch_again(data: Tensor) -> Pair:
    """Build a new iterator at each step."""
    return next(iter([cut(data, torch.arange(B) * T), cut(data, (torch.arange(B) + B) * T)]))


def new_generator(data: Tensor) -> Pair:
    """Make the generator anew at each call."""
    generator = torch.Generator().manual_seed(3)
    return cut(data, torch.randint(len(data) - T, (B,), generator=generator))


@pytest.mark.parametrize(
    ("get_batch", "cause"),
    [
        (seeded_inside, "manual_seed"),
        (first_batch_again, "next(iter(loader))"),
        (new_generator, "generator made anew"),
    ],
)
def test_always_the_same(get_batch: Callable[[Tensor], Pair], cause: str) -> None:
    """Three ways to the same batch, each told by its own evidence."""
    result = judge(get_batch=get_batch)
    assert (result.status, result.reason) == (Status.FAIL, "batches.always_the_same")
    assert len(result.causes) == 1
    assert cause in result.causes[0]


def one_start(data: Tensor) -> Pair:
    """Draw one start for the whole batch."""
    return cut(data, torch.randint(len(data) - T, (1,)).expand(B))


class InPairs:
    """Give every batch twice, as two workers with one random state do."""

    def __init__(self) -> None:
        self.kept: Pair | None = None

    def __call__(self, data: Tensor) -> Pair:
        """Return a new batch, then the same again."""
        if self.kept is not None and self.kept[0].max() < len(data):
            again, self.kept = self.kept, None
            return again
        self.kept = healthy(data)
        return self.kept


def first_tenth(data: Tensor) -> Pair:
    """Take the bound from a tenth of the data."""
    return cut(data, torch.randint(len(data) // 10 - T, (B,)))


def last_half(data: Tensor) -> Pair:
    """Never read the first half."""
    return cut(data, torch.randint(len(data) // 2, len(data) - T, (B,)))


def fixed_bound(data: Tensor) -> Pair:
    """A bound that was right for another file."""
    return cut(data, torch.randint(max(1, min(1000, len(data) - T)), (B,)))


def eight_bits(data: Tensor) -> Pair:
    """Keep ids in 8 bits although there are 300."""
    return small_type(data)


def columns(data: Tensor) -> Pair:
    """Fill the batch column by column."""
    start = int(torch.randint(len(data) - B * T - 1, ()))
    return (
        data[start : start + B * T].view(T, B).T.contiguous(),
        data[start + 1 : start + B * T + 1].view(T, B).T.contiguous(),
    )


def backwards(data: Tensor) -> Pair:
    """Flip every row."""
    x, y = healthy(data)
    return x.flip(1), y.flip(1)


def scattered(data: Tensor) -> Pair:
    """Draw each token alone."""
    places = torch.randint(len(data) - 1, (B, T))
    return data[places], data[places + 1]


def one_too_few(data: Tensor) -> Pair:
    """The last window is never drawn."""
    return cut(data, torch.randint(len(data) - T - 1, (B,)))


def never_first(data: Tensor) -> Pair:
    """The first window is never drawn."""
    return cut(data, torch.randint(1, len(data) - T, (B,)))


def past_the_end(data: Tensor) -> Pair:
    """The largest start has no target left: an index error, once in three thousand draws."""
    return cut(data, torch.randint(len(data) - T + 1, (B,)))


def padded_end(data: Tensor) -> Pair:
    """The same, hidden by a zero at the end."""
    return past_the_end(torch.cat([data, data.new_zeros(1)]))


def clamped(data: Tensor) -> Pair:
    """Make up a window of data that is too short."""
    starts = torch.randint(max(1, len(data) - T), (B,))
    places = (starts[:, None] + torch.arange(T + 1)).clamp(max=len(data) - 1)
    return data[places[:, :-1]], data[places[:, 1:]]


@pytest.mark.parametrize(
    ("get_batch", "reason"),
    [
        (one_start, "same_rows"),
        (InPairs(), "repeats"),
        (first_tenth, "part_of_data"),
        (last_half, "part_of_data"),
        (fixed_bound, "part_of_data"),
        (columns, "not_contiguous"),
        (backwards, "not_contiguous"),
        (scattered, "not_contiguous"),
        (one_too_few, "start_never_drawn"),
        (never_first, "start_never_drawn"),
        (past_the_end, "past_the_end"),
        (padded_end, "past_the_end"),
        (clamped, "short_data"),
    ],
)
def test_faulty_loaders(get_batch: Callable[[Tensor], Pair], reason: str) -> None:
    """Each fault is named; one batch alone shows none of them."""
    result = judge(get_batch=get_batch)
    assert (result.status, result.reason) == (Status.FAIL, f"batches.{reason}"), str(result)


def drawn_as(kind: torch.dtype, *, late: bool = False) -> Callable[[Tensor], Pair]:
    """Starts from random floats of a type, multiplied in it or, late, in float64."""

    def get_batch(data: Tensor) -> Pair:
        if len(data) <= T:
            raise ValueError(f"{len(data)} ids hold no window of {T}")
        part = torch.rand(B, dtype=kind)
        part = part.double() if late else part
        return cut(data, (part * (len(data) - T)).long().clamp(max=len(data) - T - 1))

    return get_batch


@pytest.mark.parametrize(
    ("get_batch", "words"),
    [
        (drawn_as(torch.bfloat16), "bfloat16"),
        (drawn_as(torch.bfloat16, late=True), "few bits"),
        (drawn_as(torch.float16, late=True), "few bits"),
    ],
)
def test_starts_of_few_bits_come_again_too_often(
    get_batch: Callable[[Tensor], Pair], words: str
) -> None:
    """In each octave a float has 128 or 1024 values; on 10,000 ids that does not show."""
    result = judge(get_batch=get_batch, train_ids=ids(n=120_000))
    assert (result.status, result.reason) == (Status.FAIL, "batches.few_starts")
    assert result.numbers["distinct"] < 3000 < 4000 < result.numbers["expected"]
    assert words in result.causes[0]
    assert judge(get_batch=get_batch).reason in ("batches.ok", "batches.past_the_end")


@pytest.mark.parametrize(
    "get_batch",
    [healthy, drawn_as(torch.float32), Sequential(), Sequential(1), Streams(), Shuffled()],
)
def test_samplers_and_readers_know_all_places_of_long_data(
    get_batch: Callable[[Tensor], Pair],
) -> None:
    """Readers in passes, whose passes have 10,000 rows, draw no place twice in half of one."""
    assert judge(get_batch=get_batch, train_ids=ids(n=120_000)).passed


def test_numbers_and_causes_of_some() -> None:
    """The numbers say where the data ends for the loader, and which window is missing."""
    tenth = judge(get_batch=first_tenth)
    assert 0.05 < tenth.numbers["last"] < 0.1
    assert judge(get_batch=one_too_few).numbers["missing"] == [2]
    assert judge(get_batch=never_first).numbers["missing"] == [0]
    assert "(T, B)" in judge(get_batch=columns).causes[0]
    assert "backwards" in judge(get_batch=backwards).causes[0]
    assert judge(get_batch=scattered).causes == ()


def test_small_type_matters_only_for_a_large_vocabulary() -> None:
    """8 bits hold 19 ids and not 300."""
    assert judge(get_batch=eight_bits).status is Status.PASS
    result = judge(model=Bigram(300), get_batch=eight_bits)
    assert (result.status, result.reason) == (Status.FAIL, "batches.wrapped_ids")


def test_windows_with_gaps_are_a_warning() -> None:
    """A stride of T + 1 with T inputs leaves one token in 13 without a prediction."""

    class Gaps(Shuffled):
        def __call__(self, data: Tensor) -> Pair:
            count = (len(data) - 1) // (T + 1)
            return cut(data, (T + 1) * torch.randint(count, (B,)))

    result = judge(get_batch=Gaps())
    assert (result.status, result.reason) == (Status.WARN, "batches.gaps")
    assert result.numbers["stride"] == T + 1


# ---- loaders bound to their data ---------------------------------------------------------


def bound(train: Tensor, val: Tensor) -> Callable[[str], Pair]:
    """Return a loader of two splits."""
    return lambda split: healthy({"train": train, "val": val}[split])


def test_each_split_from_its_own_data() -> None:
    """Healthy; both from train; swapped; the split argument ignored."""
    train, val = ids(1), ids(2, 900)
    both = {"train_ids": train, "val_ids": val}
    assert judge(batch=bound(train, val), **both).status is Status.PASS
    assert judge(batch=bound(train, train), **both).reason == "batches.val_reads_train"
    assert judge(batch=bound(val, train), **both).reason == "batches.val_reads_train"
    assert judge(batch=bound(val, val), **both).reason == "batches.train_reads_val"
    assert judge(batch=lambda split: healthy(train)).reason == "batches.split_ignored"


def test_a_loader_without_validation_split_is_judged_on_train() -> None:
    """An unknown split may raise."""
    train = ids(1)
    assert judge(batch=lambda split: healthy({"train": train}[split]), train_ids=train).passed


def test_bound_loader_that_repeats_or_reads_a_part() -> None:
    """The same batch at each call, and the first tenth only, found by looking rows up."""
    train = ids(1)
    same = judge(batch=lambda split: cut(train, torch.arange(B)), train_ids=train)
    assert same.reason == "batches.always_the_same"
    part = judge(batch=lambda split: first_tenth(train), train_ids=train)
    assert part.reason == "batches.part_of_data"


def test_one_batch_that_is_the_whole_data_repeats_by_nature() -> None:
    """Five windows in all, five rows a batch: nothing is said about repeats."""
    tiny = ids(1, T + 6)
    result = judge(batch=lambda split: cut(tiny, torch.arange(B)), train_ids=tiny)
    assert result.status is Status.PASS, str(result)


def test_fixed_validation_subset_is_a_design() -> None:
    """Only the training batches are asked to vary."""
    train, val = ids(1), ids(2, 900)

    def loader(split: str) -> Pair:
        return healthy(train) if split == "train" else cut(val, torch.arange(B) * T)

    assert judge(batch=loader, train_ids=train, val_ids=val).status is Status.PASS


def test_views_of_one_memory_are_a_warning() -> None:
    """Masking targets in place would change the inputs of the next column."""
    chunk = ids(1, B * (T + 1)).view(B, T + 1)
    result = judge(batch=(chunk[:, :-1], chunk[:, 1:]))
    assert (result.status, result.reason) == (Status.WARN, "batches.aliased")
    apart = (chunk[:, :-1].clone(), chunk[:, 1:].clone())
    assert judge(batch=apart).status is Status.PASS


def test_what_is_no_batch_is_named() -> None:
    """A list of strings is reported with what came, not raised."""
    result = judge(batch=lambda split: ["text"])
    assert (result.status, result.reason) == (Status.FAIL, "batches.not_tensors")
    assert "got list" in result.measured


def test_without_any_loader_it_is_skipped() -> None:
    """The arguments that unlock it are named."""
    result = diagnose(Pipeline(TinyGPT(V)), only=["batches"])["batches"]
    assert result.status is Status.SKIP
    assert "batch" in result.next_step


# ---- measures ------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    """0 1 2 / 5 5 6: three of four steps are one; 256 rows need 52 calls of 5."""
    assert unit_steps(torch.tensor([[0, 1, 2], [5, 5, 6]])) == 0.75
    assert (calls_for(5), calls_for(64), calls_for(1)) == (52, 8, 256)
    draws = Draws([], [[0, 24], [36, None]], N=100, T=12)
    assert draws.known == [0, 24, 36]
    assert draws.stride == 12
    assert draws.windows == 88


def test_the_users_data_and_random_state_stay() -> None:
    """A loader that writes into its data gets copies; the global random state is put back."""
    train = ids(1)
    model = TinyGPT(V, block=T)
    before, state = train.clone(), torch.get_rng_state()

    def writing(data: Tensor) -> Pair:
        x, y = healthy(data)
        data.zero_()
        return x, y

    judge(model=model, get_batch=writing, train_ids=train)
    assert torch.equal(train, before)
    assert torch.equal(torch.get_rng_state(), state)


# ---- whole passes --------------------------------------------------------------------------


def loader_in_order(order_of: Callable[[int], Tensor]) -> Callable[[str], Pair]:
    """Read windows side by side, pass after pass, each in the order that is asked for."""
    data = ids(n=1_201)

    def stream() -> Iterator[Pair]:
        for epoch in itertools.count():
            for starts in (order_of(epoch) * T).split(B):
                yield cut(data, starts)

    batches = stream()

    def batch(split: str) -> Pair:
        if split != "train":
            raise KeyError(split)
        return next(batches)

    return batch


def shuffled_windows(seed: int) -> Tensor:
    return torch.randperm(100, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("order_of", "status", "reason"),
    [
        (lambda epoch: torch.arange(100), Status.PASS, "batches.ok"),
        (lambda epoch: shuffled_windows(epoch), Status.PASS, "batches.ok"),
        (lambda epoch: shuffled_windows(7), Status.WARN, "batches.same_order"),
    ],
    ids=["sequential", "shuffled", "shuffled once"],
)
def test_the_order_of_two_passes(
    order_of: Callable[[int], Tensor], status: Status, reason: str
) -> None:
    """20 batches a pass: set_epoch was forgotten where the second one is the first again."""
    result = judge(batch=loader_in_order(order_of), train_ids=ids(n=1_201))
    assert (result.status, result.reason) == (status, reason)


@pytest.mark.parametrize(("workers", "found"), [(1, False), (2, True), (4, True)])
def test_workers_with_one_random_state_repeat_each_batch(workers: int, found: bool) -> None:
    """Each of them draws the same starts, and they take turns."""
    states = [np.random.RandomState(3) for _ in range(workers)]
    turns = itertools.cycle(states)

    def batch(split: str) -> Pair:
        starts = next(turns).randint(N - T, size=B)
        return cut(ids(), torch.from_numpy(starts))

    result = judge(batch=batch, train_ids=ids())
    assert (result.reason == "batches.repeats") is found


@pytest.mark.parametrize("first", [0, 1, 5])
def test_batches_without_a_target_are_found(first: int) -> None:
    """From some batch on the loader gives padding only."""
    count = itertools.count()

    def batch(split: str) -> Pair:
        inputs, targets = healthy(ids())
        return (inputs, targets) if next(count) < first else (inputs * 0, targets * 0 - 100)

    result = judge(batch=batch, train_ids=ids())
    assert (result.status, result.reason) == (Status.FAIL, "batches.only_padding")
