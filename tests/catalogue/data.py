"""Rows of the table: splits, samplers and packing.

Shapes: B batch, T time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from diagnostics import Pipeline
from exercises._lab import BATCH_SIZE, IGNORE_INDEX, Lab
from tests.catalogue._row import Caught, Row, Unseen

Pair = tuple[Tensor, Tensor]
Switch = Callable[[Lab, bool], Pipeline]  # the same code with and without its one fault


def switched(id: str, check: str, reason: str, build: Switch, only_warns: str = "") -> Caught:
    """One row whose healthy pipeline is the same code with the switch off."""
    return Caught(
        id,
        check,
        reason,
        lambda lab: build(lab, True),
        lambda lab: build(lab, False),
        only_warns,
    )


# ---- splits ----------------------------------------------------------------------------------


def documents_of(lab: Lab) -> list[str]:
    """The paragraphs of the text."""
    return [line for line in lab.text.splitlines(keepends=True) if line.strip()]


def drawn(count: int, seed: int = 0) -> list[int]:
    """A random order of `count` things."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def of_documents(lab: Lab, train: Sequence[str], val: Sequence[str]) -> Pipeline:
    """A pipeline whose parts are these documents."""
    text = "".join(train)
    ids = torch.tensor(lab.tokenizer.encode(text))
    val_ids = torch.tensor(lab.tokenizer.encode("".join(val)))
    return lab.pipeline(
        train_text=text, train_ids=ids, val_ids=val_ids, files=(), batches_from=None
    )


def two_orders(lab: Lab, broken: bool) -> Pipeline:
    """Train is cut from the shuffled documents, validation from those before shuffling."""
    documents = documents_of(lab)
    shuffled = [documents[i] for i in drawn(len(documents))]
    n = len(documents) * 9 // 10
    return of_documents(lab, shuffled[:n], documents[n:] if broken else shuffled[n:])


def two_constants(lab: Lab, broken: bool) -> Pipeline:
    """One script trains from document 10 on, the other validates on the first 50."""
    documents = documents_of(lab)
    return of_documents(lab, documents[10:], documents[: 50 if broken else 10])


def oversampled(lab: Lab, broken: bool) -> Pipeline:
    """Rows are repeated ten times, and split at random after that."""
    rows = documents_of(lab) * (10 if broken else 1)
    shuffled = [rows[i] for i in drawn(len(rows))]
    n = len(rows) * 9 // 10
    return of_documents(lab, shuffled[:n], shuffled[n:])


def window_split(lab: Lab, broken: bool) -> Pipeline:
    """Windows that start at every token are split at random: neighbours share tokens."""
    ids, T = torch.cat((lab.train_ids, lab.val_ids)), lab.config.block_size
    windows = ids.unfold(0, T + 1, 1 if broken else T)
    order, n = torch.tensor(drawn(len(windows))), len(windows) * 9 // 10
    parts = {"train": windows[order[:n]], "val": windows[order[n:]]}

    def batch(split: str) -> Pair:
        rows = parts[split][torch.randint(len(parts[split]), (BATCH_SIZE,))]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return lab.pipeline(
        batch=batch, get_batch=None, train_ids=None, val_ids=None, batches_from=None
    )


def val_is_train(lab: Lab) -> Pipeline:
    """The validation path names the training file."""
    ids = torch.from_numpy(np.load(lab.train_path).astype(np.int64))
    return lab.pipeline(val_ids=ids)


def redrawn(lab: Lab, broken: bool) -> Pipeline:
    """random_split without a generator: each start of the program has parts of its own."""
    ids, T = torch.cat((lab.train_ids, lab.val_ids)), lab.config.block_size
    rows = ids[: len(ids) // (T + 1) * (T + 1)].view(-1, T + 1)
    n = len(rows) * 9 // 10

    def split(start: int) -> tuple[Tensor, Tensor]:
        order = torch.tensor(drawn(len(rows), start if broken else 0))
        return rows[order[:n]], rows[order[n:]]

    def batches_from(step: int) -> Iterator[Pair]:
        train, _ = split(step)
        for number in itertools.count(step):
            generator = torch.Generator().manual_seed(number)
            chosen = train[torch.randint(n, (BATCH_SIZE,), generator=generator)]
            yield chosen[:, :-1], chosen[:, 1:]

    train, val = (part.flatten() for part in split(0))
    return lab.pipeline(
        train_ids=train, val_ids=val, train_text=None, files=(), batches_from=batches_from
    )


# ---- samplers --------------------------------------------------------------------------------


def length_off_by_one(lab: Lab, broken: bool) -> Pipeline:
    """A map-style data set whose __len__ leaves out the last window."""
    T = lab.config.block_size

    class Windows(torch.utils.data.Dataset[Pair]):
        def __init__(self, data: Tensor) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data) - T - (1 if broken else 0)

        def __getitem__(self, index: int) -> Pair:
            window = self.data[index : index + T + 1]
            return window[:-1], window[1:]

    def get_batch(data: Tensor) -> Pair:
        windows = Windows(data)
        rows = [windows[i] for i in torch.randint(len(windows), (BATCH_SIZE,)).tolist()]
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    return lab.pipeline(get_batch=get_batch)


def workers_share_a_state(lab: Lab, broken: bool) -> Pipeline:
    """Two workers are forked with a copy of one NumPy state, and take turns."""
    T = lab.config.block_size
    states = [np.random.RandomState(0 if broken else worker) for worker in range(2)]
    turns = itertools.cycle(states)
    data = {"train": lab.train_ids, "val": lab.val_ids}

    def batch(split: str) -> Pair:
        ids = data[split]
        starts = torch.from_numpy(next(turns).randint(len(ids) - T, size=(BATCH_SIZE, 1)))
        places = starts + torch.arange(T)
        return ids[places], ids[places + 1]

    return lab.pipeline(batch=batch, get_batch=None)


def train_only(stream: Iterator[Pair]) -> Callable[[str], Pair]:
    """A loader that has no validation part."""

    def batch(split: str) -> Pair:
        if split != "train":
            raise KeyError(split)
        return next(stream)

    return batch


def padded_rows(lab: Lab, rows: list[list[int]]) -> Pair:
    """Lay rows of at most T + 1 ids into a batch; what is left over is not scored."""
    T, pad = lab.config.block_size, 0
    inputs = torch.full((len(rows), T), pad)
    targets = torch.full((len(rows), T), IGNORE_INDEX)
    for number, row in enumerate(rows):
        inputs[number, : len(row) - 1] = torch.tensor(row[:-1])
        targets[number, : len(row) - 1] = torch.tensor(row[1:])
    return inputs, targets


def clogged_buffer(lab: Lab, broken: bool) -> Pipeline:
    """Best fit from a buffer of four: documents longer than a row are never taken out of it."""
    T = lab.config.block_size
    generator = np.random.RandomState(0)
    ids = lab.train_ids.tolist()

    def documents() -> Iterator[list[int]]:
        while True:
            start, length = generator.randint(len(ids) - 60), generator.randint(5, 60)
            found = ids[start : start + length]
            yield found if broken else found[: T + 1]

    def batches() -> Iterator[Pair]:
        source = documents()
        buffer = list(itertools.islice(source, 4))
        while True:
            rows = []
            for _ in range(BATCH_SIZE):
                fitting = [document for document in buffer if len(document) <= T + 1]
                row = max(fitting, key=len, default=[0])
                if row in buffer:
                    buffer[buffer.index(row)] = next(source)
                rows.append(row)
            yield padded_rows(lab, rows)

    stream = batches()
    return lab.pipeline(
        batch=train_only(stream), get_batch=None, train_ids=None, train_text=None,
        val_ids=None, batches_from=None, files=(),
    )  # fmt: skip


def hard_coded_limit(lab: Lab, broken: bool) -> Pipeline:
    """Examples are cut to max_tokens=2048, whatever the block."""
    limit = 2048 if broken else lab.config.block_size + 1

    def batch(split: str) -> Pair:
        ids = lab.train_ids if split == "train" else lab.val_ids
        starts = torch.randint(len(ids) - 3_000, (BATCH_SIZE,)).tolist()
        rows = torch.stack([ids[s : s + 3_000][:limit] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    return lab.pipeline(batch=batch, get_batch=None)


def padded_short_corpus(lab: Lab, broken: bool) -> Pipeline:
    """A corpus shorter than a window is filled up with token 0, and trained on."""
    T = lab.config.block_size

    def get_batch(data: Tensor) -> Pair:
        if len(data) < T + 1 and broken:
            data = torch.cat((data, torch.zeros(T + 1 - len(data), dtype=data.dtype)))
        places = torch.randint(len(data) - T, (BATCH_SIZE, 1)) + torch.arange(T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def one_order(lab: Lab, broken: bool) -> Pipeline:
    """The sampler shuffles with (seed + epoch), and nobody tells it the epoch."""
    T = lab.config.block_size
    ids = lab.train_ids[: 40 * BATCH_SIZE * T + 1]
    starts = torch.arange(0, len(ids) - T, T)

    def batches() -> Iterator[Pair]:
        for epoch in itertools.count():
            order = drawn(len(starts), 0 if broken else epoch)
            for rows in starts[order].split(BATCH_SIZE):
                places = rows[:, None] + torch.arange(T)
                yield ids[places], ids[places + 1]

    stream = batches()
    return lab.pipeline(
        batch=train_only(stream), get_batch=None, train_ids=ids, train_text=None,
        val_ids=None, files=(),
    )  # fmt: skip


def shard_end_of_one_rank(lab: Lab, broken: bool) -> Pipeline:
    """Each rank asks whether its own next rows fit into the shard, and not those of all ranks."""
    T = lab.config.block_size
    size = BATCH_SIZE * T
    ids = lab.train_ids[: 9 * size + 1]

    def rank_batches(rank: int, processes: int) -> Iterator[Pair]:
        for start in range(0, len(ids), processes * size):
            own = start + rank * size
            end = own + size if broken else start + processes * size
            if end + 1 > len(ids):
                return
            yield ids[own : own + size].view(-1, T), ids[own + 1 : own + size + 1].view(-1, T)

    return lab.pipeline(rank_batches=rank_batches)


ROWS: tuple[Row, ...] = (
    switched("split-after-shuffle-overlap", "split", "split.overlap", two_orders),
    switched("val-range-overlaps-default", "split", "split.ranges_overlap", two_constants),
    switched("oversampling-before-split", "split", "split.overlap", oversampled),
    switched("overlapping-windows-random-split", "split", "split.rows_overlap", window_split),
    Caught("val-loader-reads-train", "split", "split.identical", val_is_train),
    switched("split-changes-on-reload", "split", "split.redrawn", redrawn),
    switched(
        "dataset-len-off-by-one",
        "batches",
        "batches.start_never_drawn",
        length_off_by_one,
    ),
    switched("worker-rng-duplicated", "batches", "batches.repeats", workers_share_a_state),
    switched(
        "set-epoch-missing",
        "batches",
        "batches.same_order",
        one_order,
        only_warns="Rows that were shuffled once, and are read in that order, look the same.",
    ),
    switched("shard-boundary-check", "distributed", "distributed.uneven", shard_end_of_one_rank),
    Unseen(
        "document-order-periodicity",
        "Reading a corpus from its first token to its last is a healthy design; what its author "
        "meant the order of documents to be stands nowhere in the pipeline.",
    ),
    switched("packing-buffer-clogged", "batches", "batches.only_padding", clogged_buffer),
    switched("truncation-limit-hard-coded", "batches", "batches.too_long", hard_coded_limit),
    switched("short-corpus-negative-range", "batches", "batches.short_data", padded_short_corpus),
    Unseen(
        "packed-cross-document-attention",
        "Documents that see each other inside a row are a design that GPT-2 and GPT-3 have; only "
        "a declaration that they must not, which a pipeline cannot make, would turn it into a bug.",
    ),
    Unseen(
        "packed-positions-not-reset",
        "Positions that run on over the documents of a row are a design as common as restarted "
        "ones; which of the two is meant stands nowhere in the pipeline.",
    ),
)
