"""The contract of distributed data: every rank gets a share of its own, of the same size.

Shapes: N indices of one rank.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    count_unequal,
)

CASES = ((40, 2), (41, 2), (50, 3), (67, 4), (23, 1))  # (samples, processes)
EPOCHS = 3
SORTED_MAX = 0.8  # share of neighbours in rising order; half in a shuffled share


def right_strided(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Shuffle all indices alike on every rank, and deal them out one by one."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    usable = count // processes * processes
    return order[rank:usable:processes].clone()


def right_blocks(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Cut a shuffled list into blocks, with the standard library's generator."""
    order = list(range(count))
    random.Random(f"{epoch}").shuffle(order)
    size = count // processes
    return torch.tensor(order[rank * size :][:size])


def right_sorted_keys(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Sort the indices by random keys; the ones left over are those with the smallest keys."""
    keys = torch.rand(count, generator=torch.Generator().manual_seed(1000 + epoch))
    kept = keys.argsort()[count % processes :]
    return kept.view(-1, processes)[:, processes - 1 - rank].contiguous()


def wrong_rank_unused(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Give every rank the share of rank 0."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    usable = count // processes * processes
    first = 0  # BROKEN: was first = rank
    return order[first:usable:processes].clone()


def wrong_own_shuffle(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Shuffle on each rank with a seed of its own, then take the share of the rank."""
    seed = 100 * epoch + rank  # BROKEN: was seed = epoch
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = count // processes
    return order[rank * size : (rank + 1) * size].clone()


def wrong_uneven(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Deal out the remainder as well, so that some ranks get one more."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    usable = count  # BROKEN: was usable = count // processes * processes
    return order[rank:usable:processes].clone()


def wrong_same_epoch(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Shuffle with one seed for all epochs."""
    seed = 0  # BROKEN: was seed = epoch
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    usable = count // processes * processes
    return order[rank:usable:processes].clone()


def wrong_global_state(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Shuffle with the global random state, which differs from process to process."""
    generator = None  # BROKEN: was generator = torch.Generator().manual_seed(epoch)
    order = torch.randperm(count, generator=generator)
    usable = count // processes * processes
    return order[rank:usable:processes].clone()


def wrong_two_expected(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Deal out as if there were two processes, and cut to size."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    stride = min(processes, 2)  # BROKEN: was stride = processes
    return order[rank::stride][: count // processes].clone()


def wrong_neighbours_overlap(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Begin each block one index too early, from the second rank on."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    size = count // processes
    start = max(0, rank * size - 1)  # BROKEN: was start = rank * size
    return order[start : start + size].clone()


def wrong_in_order(count: int, rank: int, processes: int, epoch: int) -> Tensor:
    """Turn the data by some places in each epoch, and shuffle nothing."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    order = torch.arange(count).roll(epoch)  # BROKEN: was order = order.clone()
    usable = count // processes * processes
    return order[rank:usable:processes].clone()


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Ask for the shares of all ranks in some epochs; no two may meet, and none may be longer."""
    for count, processes in CASES:
        size, before = count // processes, torch.empty(0)
        for epoch in range(EPOCHS):
            shares = []
            for rank in range(processes):
                where = f"rank {rank} of {processes}, epoch {epoch}, {count} samples"
                share = as_tensor(
                    implementation(count, rank, processes, epoch),
                    f"the share of {where}",
                    shape=(size,),
                    dtype=torch.int64,
                )
                again = implementation(count, rank, processes, epoch)
                again = as_tensor(again, "the second answer", shape=(size,), dtype=torch.int64)
                moved = count_unequal(share, again)
                yield Finding(
                    float(moved), f"a second call for {where} differs in {moved} of {size} indices"
                )
                shares.append(share)
            whole = torch.stack(shares)  # (processes, N)
            yield from _judge_shares(whole, count, epoch)
            if epoch:
                same = bool(torch.equal(whole, before))
                told = f"epochs {epoch - 1} and {epoch} have the same order, {count} samples"
                yield Finding(float(same), told)
            before = whole


def _judge_shares(whole: Tensor, count: int, epoch: int) -> Iterator[Finding]:
    """Judge the shares (processes, N) of one epoch."""
    processes = len(whole)
    where = f"epoch {epoch}, {count} samples, {processes} processes"
    outside = int(((whole < 0) | (whole >= count)).sum())
    yield Finding(
        float(outside), f"{outside} of {whole.numel()} indices are not in 0..{count - 1}, {where}"
    )
    double = whole.numel() - len(whole.unique())
    yield Finding(
        float(double), f"{double} of {whole.numel()} indices are given out a second time, {where}"
    )
    rising = float((whole.diff() > 0).double().mean())
    unshuffled = rising if rising > SORTED_MAX else 0.0
    told = f"{rising:.0%} of neighbouring indices rise, about half when shuffled, {where}"
    yield Finding(unshuffled, told)


CONTRACT = Contract(
    check="distributed",
    signature="implementation(count: int, rank: int, processes: int, epoch: int) -> Tensor",
    promise=(
        "count samples, at least 10 for each process, are dealt out to ranks 0 to processes - 1. "
        "It returns the indices (N,), int64, from which one rank learns in an epoch, in order; N = "
        "count // processes on every rank. No index is given to two ranks, or to one rank twice; "
        "the count % processes that are left over may be any. The order is shuffled, and another "
        "one in each epoch. The same arguments always give the same indices: every rank asks in a "
        "process of its own, with a random state of its own."
    ),
    rights=(
        Right(name="strided", implementation=right_strided, note="dealt out one by one"),
        Right(name="blocks", implementation=right_blocks, note="blocks of a shuffled list"),
        Right(name="sorted_keys", implementation=right_sorted_keys, note="sorted by random keys"),
    ),
    wrongs=(
        Wrong(
            name="rank_unused",
            implementation=wrong_rank_unused,
            note="every rank gets the same share",
        ),
        Wrong(
            name="uneven",
            implementation=wrong_uneven,
            note="some ranks get one sample more than others",
        ),
        Wrong(
            name="same_epoch",
            implementation=wrong_same_epoch,
            note="every epoch has the same order",
        ),
        Wrong(
            name="own_shuffle",
            implementation=wrong_own_shuffle,
            note="each rank cuts its share from an order of its own",
        ),
        Wrong(
            name="global_state",
            implementation=wrong_global_state,
            note="the order depends on the random state of the process",
            held_out=True,
        ),
        Wrong(
            name="two_expected",
            implementation=wrong_two_expected,
            note="more than two processes share samples",
            held_out=True,
        ),
        Wrong(
            name="neighbours_overlap",
            implementation=wrong_neighbours_overlap,
            note="neighbouring shares have one sample in common",
            held_out=True,
        ),
        Wrong(
            name="in_order",
            implementation=wrong_in_order,
            note="the data are read in order, from another place in each epoch",
            held_out=True,
        ),
    ),
    examine=examine,
)
