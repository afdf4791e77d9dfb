"""Many processes: what the ranks hold, read and step with, in real processes and by hand."""

from __future__ import annotations

import importlib
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diagnostics import CheckResult, Status, _rank_group, check_distributed, distributed
from diagnostics._rank_group import in_workers
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig
from minigpt._parts import describe_run
from minigpt._training_state import TrainSettings
from tests.diagnostics.tiny import TinyGPT, cross_entropy

V, T = 17, 12
IDS = torch.randint(V, (3000,), generator=torch.Generator().manual_seed(1))
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks")
Pair = tuple[Tensor, Tensor]


def forward(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    output = model(x)
    logits = output[0] if isinstance(output, tuple) else output
    return logits, cross_entropy(logits, y)


def step(
    model: nn.Module,
    optimizer: Any,
    x: Tensor,
    y: Tensor,
    reduce: Callable[[nn.Module], object] = lambda model: None,
    clip: float | None = None,
) -> Tensor:
    """One step; `reduce` stands between backward and clipping."""
    optimizer.zero_grad()
    loss = forward(model, x, y)[1]
    loss.backward()
    reduce(model)
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


def step_in_bfloat16(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = forward(model, x, y)[1]
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


def step_by_closure(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = forward(model, x, y)[1]
        loss.backward()
        return loss

    loss: Tensor = optimizer.step(closure)
    return loss.detach()


def step_and_average(model: nn.Module, *given: Any) -> Tensor:
    loss = step(model, *given)
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    return loss


def step_on_rank_0(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = forward(model, x, y)[1]
    loss.backward()
    average(model)
    if dist.get_rank() == 0:
        optimizer.step()
    return loss.detach()


def average(model: nn.Module, *, only: Callable[[str], bool] = lambda name: True) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and only(name):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def broadcast(model: nn.Module, ndim_min: int = 0) -> nn.Module:
    for parameter in model.parameters():
        if parameter.ndim >= ndim_min:
            dist.broadcast(parameter.data, 0)
    return model


def accumulate(
    model: nn.Module, optimizer: Any, batches: list[Pair], sends: Callable[[int, int], bool]
) -> Tensor:
    optimizer.zero_grad()
    loss = torch.zeros(())
    for number, (x, y) in enumerate(batches):
        with nullcontext() if sends(number, len(batches)) else model.no_sync():  # type: ignore[operator]
            loss = forward(model, x, y)[1] / len(batches)
            loss.backward()
    optimizer.step()
    return loss.detach()


def rows(starts: list[int]) -> Pair:
    return (
        torch.stack([IDS[start : start + T] for start in starts]),
        torch.stack([IDS[start + 1 : start + T + 1] for start in starts]),
    )


def drawn(rank: int, processes: int, *, seeded_by_rank: bool = True) -> Iterator[Pair]:
    for number in itertools.count():
        seed = number * processes + rank if seeded_by_rank else number
        starts = torch.randint(2900, (4,), generator=torch.Generator().manual_seed(seed))
        yield rows(starts.tolist())


def sampled(rank: int, processes: int, *, set_epoch: bool, samples: int = 37) -> Iterator[Pair]:
    data = TensorDataset(*rows(list(range(0, samples * T, T))))
    sampler = DistributedSampler(data, processes, rank)  # type: ignore[var-annotated]
    for epoch in itertools.count():
        if set_epoch:
            sampler.set_epoch(epoch)
        yield from ((x, y) for x, y in DataLoader(data, 4, sampler=sampler))


class Normed(nn.Module):
    """A model with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(V, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, V)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(x).transpose(1, 2)).transpose(1, 2))  # type: ignore[no-any-return]


class HalfUsed(nn.Module):
    """A model with a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.spare, self.head = nn.Embedding(V, 8), nn.Linear(3, 3), nn.Linear(8, V)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))  # type: ignore[no-any-return]


def tied_and_frozen() -> nn.Module:
    model = TinyGPT(V, tied=True)
    next(model.blocks.parameters()).requires_grad_(False)
    return model


def seeded_model() -> nn.Module:
    torch.manual_seed(7)
    return TinyGPT(V)


def adamw(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), rate)


def check(model: nn.Module | None = None, **parts: Any) -> CheckResult:
    described: dict[str, Any] = {
        "replicate": DistributedDataParallel,
        "make_optimizer": adamw,
        "train_step": step,
        "forward": forward,
        "vocab_size": V,
        "block_size": T,
    } | parts
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TinyGPT(V) if model is None else model
    return check_distributed(model, **described)


BY_HAND = {"replicate": broadcast, "train_step": partial(step, reduce=average)}
HEALTHY: dict[str, dict[str, Any]] = {
    "wrapper, tied, frozen, clipped": {
        "model": tied_and_frozen(),
        "replicate": partial(DistributedDataParallel, gradient_as_bucket_view=True),
        "train_step": partial(step, clip=0.5),
        "rank_batches": drawn,
    },
    "by hand, clipped after": {**BY_HAND, "train_step": partial(step, reduce=average, clip=0.5)},
    "equal seeds and no broadcast": {
        **BY_HAND,
        "replicate": lambda model: model,
        "make_model": seeded_model,
    },
    "unused and found": {
        "model": HalfUsed(),
        "replicate": partial(DistributedDataParallel, find_unused_parameters=True),
    },
    "bfloat16": {"model": TinyGPT(V).bfloat16(), "train_step": partial(step, clip=0.5)},
    "autocast, clipped": {"train_step": step_in_bfloat16},
    "a closure": {
        "make_optimizer": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=2),
        "train_step": step_by_closure,
    },
    "sent at the last micro-batch, statistics": {
        "model": Normed(),
        "accumulate": partial(accumulate, sends=lambda number, count: number == count - 1),
    },
    "sampler, evaluated on rank 0": {
        "train_step": None,
        "rank_batches": partial(sampled, set_epoch=True),
        "evaluate": lambda model, ids: 2.0 if dist.get_rank() == 0 else None,
        "val_ids": IDS,
    },
    "shards in order": {
        "train_step": None,
        "rank_batches": lambda rank, processes: (
            rows([1400 * rank + 48 * number + 12 * row for row in range(4)]) for number in range(25)
        ),
    },
}


@linux
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_designs_pass(name: str) -> None:
    result = check(**HEALTHY[name])
    assert (result.status, result.reason) == (Status.PASS, "distributed.ok"), str(result)
    assert all(misfit < 2e-2 for misfit in result.numbers.get("misfits", []))
    assert ("gradient of one process" in result.claim) is bool(result.numbers.get("weights"))


BUGS: dict[str, dict[str, Any]] = {
    "weights": {**BY_HAND, "replicate": lambda model: model, "make_model": lambda: TinyGPT(V)},
    "no_broadcast": {**BY_HAND, "replicate": lambda model: model},
    "weights_partly": {**BY_HAND, "replicate": partial(broadcast, ndim_min=2)},
    "local_gradient": {"train_step": lambda model, *rest: step(model.module, *rest)},
    "one_rank": {
        **BY_HAND,
        "train_step": partial(
            step, reduce=lambda model: [dist.broadcast(p.grad, 0) for p in model.parameters()]
        ),
    },
    "partial": {
        **BY_HAND,
        "train_step": partial(step, reduce=partial(average, only=lambda name: "bias" not in name)),
    },
    "clipped_apart": {
        **BY_HAND,
        "train_step": partial(
            step,
            reduce=lambda model: (
                nn.utils.clip_grad_norm_(model.parameters(), 0.5),
                average(model),
            ),
        ),
    },
    "partly_synchronised": {
        "train_step": None,
        "accumulate": partial(accumulate, sends=lambda number, count: number == 0),
    },
    "drift": {"make_optimizer": lambda model: adamw(model, 1e-3 * (1 + dist.get_rank()))},
    "buffers": {**BY_HAND, "model": Normed()},
    "evaluation": {
        "train_step": None,
        "evaluate": lambda model, ids: 2.0 + dist.get_rank(),
        "val_ids": IDS,
    },
    "unused_parameters": {"model": HalfUsed()},
    "same_samples": {"replicate": None, "rank_batches": partial(drawn, seeded_by_rank=False)},
    "seeded_alike": {
        "replicate": None,
        "rank_batches": lambda rank, processes: (
            rows(torch.randint(2900, (4,)).tolist()) for _ in range(30)
        ),
    },
    "same_epoch": {"replicate": None, "rank_batches": partial(sampled, set_epoch=False)},
    "overlap": {
        "replicate": None,
        "rank_batches": lambda rank, processes: DataLoader(
            TensorDataset(*rows(list(range(0, 960, T)))),
            4,
            shuffle=True,
            generator=torch.Generator().manual_seed(rank),
        ),
    },
    "uneven": {
        "replicate": None,
        "rank_batches": lambda rank, processes: itertools.islice(drawn(rank, 2), 25 + rank),
    },
    "shapes": {
        "replicate": None,
        "rank_batches": lambda rank, processes: (
            (x[rank:], y[rank:]) for x, y in itertools.islice(drawn(rank, 2), 5)
        ),
    },
}
BUGS |= {
    "averaged_weights": {**BY_HAND, "train_step": lambda *given: step_and_average(*given)},
    "steps": {**BY_HAND, "train_step": lambda *given: step_on_rank_0(*given)},
    "not_finite": {
        **BY_HAND,
        "train_step": partial(
            step, reduce=lambda model: [p.grad.mul_(float("nan")) for p in model.parameters()]
        ),
    },
}
CLAIMS = {
    "averaged_weights": (
        "each rank steps with the gradient of its own data, and the weights of all ranks are "
        "equal again after 1 call: weights are brought together in place of gradients"
    ),
    "steps": (
        "in a call of train_step the optimizer steps 0 times on rank 1 and 1 time on rank 0"
    ),
    "not_finite": (
        "the gradient with which rank 0 steps is not finite: it holds NaN or infinity"
    ),
    "local_gradient": (
        "each rank steps with the gradient of its own data alone: nothing of the other ranks "
        "reaches it"
    ),
    "one_rank": (
        "the gradient of rank 0 alone is used on every rank: the data of the others are never "
        "learnt"
    ),
    "partly_synchronised": (
        "of 2 micro-batches of the other ranks, 1 does not reach rank 0: number 1"
    ),
    "evaluation": "evaluate gives 2 on rank 0 and 3 on rank 1 for the same weights and ids",
    "uneven": (
        "rank 0 has 25 batches and rank 1 has 26: the ranks with more wait for ever"
    ),
    "overlap": "80 of 80 rows of rank 1 are also given to rank 0",
    "same_epoch": "after 5 batches every rank goes through the same shuffled order again",
    "shapes": (
        "batch 0 has shape (4, 12) on rank 0 and (3, 12) on rank 1: a mean over ranks gives the "
        "rows of the smaller one more weight"
    ),
}  # fmt: skip
WARNINGS = {
    *(
        "averaged_weights",
        "no_broadcast",
        "buffers",
        "evaluation",
        "seeded_alike",
        "same_epoch",
        "shapes",
    ),
}


@linux
@pytest.mark.parametrize("name", BUGS)
def test_bugs_are_named(name: str) -> None:
    result = check(**BUGS[name])
    expected = Status.WARN if name in WARNINGS else Status.FAIL
    assert (result.status, result.reason) == (expected, f"distributed.{name}"), str(result)
    assert result.claim == CLAIMS.get(name, result.claim)
    assert result.expected
    assert result.next_step


@linux
def test_a_rank_alone_is_named_under_autocast_too() -> None:
    """What rounding leaves looks like the gradient of the own rank in no parameter by itself."""
    result = check(train_step=lambda model, *rest: step_in_bfloat16(model.module, *rest))
    assert result.reason == "distributed.local_gradient"


@linux
def test_weights_of_the_mixture_are_measured() -> None:
    """Two ranks that add up: each gradient counts twice what it counts in the mean."""

    def add(model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    result = check(replicate=broadcast, train_step=partial(step, reduce=add, clip=0.5))
    assert result.reason == "distributed.gradient_scale"
    assert result.claim == (
        "with 2 processes the gradient is 2 times that of one process on all their data"
    )
    assert result.numbers["weights"][0] == [[2.0, 2.0], [2.0, 2.0]]
    assert result.measured == (
        "weights of the ranks' gradients in train_step: 2, 2 on rank 0; 2, 2 on rank 1"
    )


@linux
def test_three_processes_of_which_one_is_left_out() -> None:
    """Ranks 0 and 1 average, rank 2 is alone."""

    def pair(model: nn.Module) -> None:
        group = dist.new_group([0, 1])
        for parameter in model.parameters() if dist.get_rank() < 2 else ():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= 2  # type: ignore[operator]

    result = check(replicate=broadcast, train_step=partial(step, reduce=pair), processes=3)
    assert result.reason == "distributed.local_gradient"
    assert result.claim.startswith("rank 2 steps with the gradient of its own data alone")
    assert result.numbers["weights"][0] == [[1.5, 1.5, 0.0], [1.5, 1.5, 0.0], [0.0, 0.0, 3.0]]


# ---- what goes wrong on a rank -------------------------------------------------------------------


def raise_on_one(model: nn.Module, *rest: Any) -> Tensor:
    if dist.get_rank() == 1:
        raise ValueError("no such thing")
    return step(model, *rest)


def wait_on_one(model: nn.Module, *rest: Any) -> Tensor:
    if dist.get_rank() == 0:
        dist.barrier()
    return step(model, *rest)


def leave_on_one(model: nn.Module, *rest: Any) -> Tensor:
    if dist.get_rank() == 1:
        os._exit(3)
    return step(model, *rest)


@linux
def test_an_error_on_one_rank_is_the_users_with_its_line() -> None:
    result = check(train_step=raise_on_one)
    assert (result.status, result.reason) == (Status.ERROR, "distributed.raised")
    assert result.claim == "rank 1 could not finish: ValueError: no such thing"
    assert result.where.startswith("rank 1: test_distributed.py:")
    assert result.where.endswith('in raise_on_one: raise ValueError("no such thing")')


@linux
def test_a_rank_that_ends_is_noticed() -> None:
    result = check(train_step=leave_on_one)
    assert result.claim == "rank 1 could not finish: its process ended in the middle"
    assert result.next_step == (
        "look for an exit, a crash, or a collective call with other shapes on some ranks"
    )


@linux
def test_a_rank_that_stops_for_another_does_not_hide_the_error() -> None:
    """Rank 0 has drawn its batches, learns of the error and ends: that is no fault of its own."""

    def missing(rank: int, processes: int) -> Iterator[Pair]:
        if rank == 1:
            raise FileNotFoundError("no such shard")
        return drawn(rank, processes)

    result = check(replicate=None, rank_batches=missing)
    assert result.claim == "rank 1 could not finish: FileNotFoundError: no such shard"


@linux
def test_a_rank_that_leaves_its_step_early_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is through and waits outside of the user's code: rank 0's line is the one to see."""
    monkeypatch.setattr(_rank_group, "PATIENCE", 1.0)

    def leave(model: nn.Module, *given: Any) -> Tensor:
        return torch.zeros(()) if dist.get_rank() == 1 else step(model, *given)

    result = check(train_step=leave)
    assert (result.status, result.reason) == (Status.FAIL, "distributed.hang")


@pytest.mark.parametrize("processes", [0, 1])
def test_fewer_than_two_processes_are_refused(processes: int) -> None:
    with pytest.raises(ValueError, match=f"processes must be 2 or more, got {processes}"):
        check(processes=processes)


@linux
def test_without_a_temporary_folder_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(_rank_group.tempfile, "TemporaryDirectory", refuse)
    result = check(train_step=None)
    assert (result.status, result.claim) == (
        Status.SKIP,
        "not measured: no temporary folder can be made: No usable temporary directory found",
    )


@linux
def test_closed_standard_streams_do_not_cost_the_way_back() -> None:
    """The pipe of a worker then has the file number of a standard stream."""
    saved = [os.dup(number) for number in (0, 1)]
    try:
        os.close(0)
        os.close(1)
        found = in_workers(lambda group: group.size, 2)
    finally:
        for number, copy in enumerate(saved):
            os.dup2(copy, number)
            os.close(copy)
    assert found == 2


@linux
def test_ranks_that_wait_for_one_another_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rank_group, "PATIENCE", 1.0)
    result = check(train_step=wait_on_one)
    assert (result.status, result.reason) == (Status.FAIL, "distributed.hang")
    assert "in wait_on_one: dist.barrier()" in result.where


@linux
def test_workers_leave_nothing_behind_and_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("torch._dynamo")  # it sets a variable, whoever imports it first
    before = dict(os.environ), torch.get_rng_state()

    def loud(model: nn.Module, *rest: Any) -> Tensor:
        print("loud")
        os.write(2, b"louder")
        return step(model, *rest)

    assert check(train_step=loud).status is Status.PASS
    assert capfd.readouterr() == ("", "")
    assert os.environ == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@linux
def test_a_system_without_room_for_a_process_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    result = check(train_step=None)
    assert (result.status, result.claim) == (
        Status.SKIP,
        "not measured: no process can be started: Resource temporarily unavailable",
    )


@linux
def test_a_worker_that_never_ends_is_ended() -> None:
    def endless(group: _rank_group.Group) -> None:
        while True:
            pass

    with pytest.raises(_rank_group.RanksFailedError, match=r"no end after 1 seconds on rank 0, 1"):
        in_workers(endless, 2, limit=1.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# ---- in a job ------------------------------------------------------------------------------------


def in_a_job(**parts: Any) -> list[CheckResult]:
    """Call the check on both ranks of a job; return what each of them got."""
    return in_workers(lambda group: group.meet(lambda: check(**parts)), 2)


@linux
def test_every_rank_of_a_job_gets_the_same_result() -> None:
    """The ranks made equal models themselves, so that no broadcast is missed."""
    first, second = in_a_job(**BY_HAND | {"replicate": lambda model: model}, rank_batches=drawn)
    assert first == second
    assert first.reason == "distributed.ok"
    assert first.claim == (
        "2 processes hold equal weights, step with the gradient of one process on all their data, "
        f"learn from rows of their own ({beginning(0)}, {beginning(1)})"
    )


def beginning(rank: int) -> str:
    """The first six ids that a rank reads."""
    return str(next(drawn(rank, 2))[0][0, :6].tolist())


@linux
def test_the_reference_weighs_every_token_alike() -> None:
    """Rank 0 scores all its tokens and rank 1 half of them: 2 to 1, after clipping as well."""
    config = MiniGPTConfig.debug(V, block_size=T)
    tokenizer = CharTokenizer.from_text("".join(map(chr, range(97, 97 + V))))
    parts = describe_run(config, tokenizer, IDS[:2500], IDS[2500:], TrainSettings())
    result = check_distributed(MiniGPT(config), **parts)
    assert result.reason == "distributed.ok", str(result)
    step, unequal, window = result.numbers["weights"]
    assert step == [[1.0, 1.0]] * 2
    assert unequal[0] == unequal[1]
    assert unequal[0][0] == pytest.approx(2 * unequal[0][1], rel=1e-2)
    assert window == [[1.0] * 4] * 2


@linux
def test_an_error_on_one_rank_of_a_job_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits inside its step, for as long as the job's time-out is shortened to."""
    monkeypatch.setattr(_rank_group, "PATIENCE", 1.0)
    first, second = in_a_job(train_step=raise_on_one)
    assert first == second
    assert first.claim == "rank 1 could not finish: ValueError: no such thing"


# ---- what cannot be measured ---------------------------------------------------------------------


def test_without_processes_to_describe_it_is_skipped() -> None:
    from diagnostics import Pipeline, diagnose

    result = diagnose(Pipeline(TinyGPT(V)), only=["distributed"]).results[0]
    assert (result.status, result.reason) == (Status.SKIP, "distributed.missing_part")
    assert result.next_step == "to unlock it, give Pipeline replicate or rank_batches"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("meta", "not measured: the model is on meta, not on the CPU"),
        ("large", "not measured: copies of 20,000 parameters in each worker need too much memory"),
        ("win32", "not measured: processes can be forked safely on Linux only"),
    ],
)
def test_where_nothing_can_be_forked_the_command_is_named(
    where: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: nn.Module = TinyGPT(V)
    if where == "meta":
        model = model.to("meta")
    elif where == "large":
        model = nn.Embedding(1000, 20)
        monkeypatch.setattr(distributed, "SIZE_MAX", 19_999)
    else:
        monkeypatch.setattr(sys, "platform", where)
    result = check(model, train_step=None)
    assert (result.status, result.reason, result.claim) == (
        Status.SKIP,
        "distributed.no_workers",
        why,
    )
    assert result.next_step == (
        "call check_distributed in a script, after init_process_group, and run "
        "`torchrun --nproc-per-node 2 your_script.py`"
    )


class Inner(nn.Module):
    """A wrapper that gives all parameters other names."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = DistributedDataParallel(model)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


@linux
def test_a_wrapper_that_renames_parameters_is_told_what_to_change() -> None:
    result = check(replicate=Inner)
    assert (result.status, result.next_step) == (
        Status.SKIP,
        "keep the model of a wrapper of your own in self.module; FSDP cannot be measured",
    )


@linux
def test_workers_end_with_the_process_that_forked_them() -> None:
    """A killed process cleans up nothing, so its workers have to end by themselves."""
    reader, writer = os.pipe()  # at its end once nobody holds the other side
    forker = os.fork()
    if forker == 0:
        os.close(reader)

        def killed(group: _rank_group.Group) -> None:
            dist.barrier(group=group.own)
            if group.rank == 0:
                os.kill(forking, signal.SIGKILL)
            time.sleep(60)

        forking = os.getpid()
        in_workers(killed, 2)
        os._exit(0)
    os.close(writer)
    os.waitpid(forker, 0)
    ready, _, _ = select.select([reader], [], [], 20)
    os.close(reader)
    assert ready
