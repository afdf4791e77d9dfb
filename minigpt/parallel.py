"""Many processes train one model: each on rows of its own, all of them with the same update.

Every process (a rank, 0 to N - 1) holds a whole copy of the model. After its backward pass the
gradients are averaged over the ranks, so all copies make the same step and stay equal; nothing
else needs to be sent. `update.py` weights the average by tokens, `trainer.py` gives each rank its
own batches. A run of one process uses `ALONE`, which sends nothing and wraps nothing.

Two rules keep ranks from waiting for one another for ever. Whatever decides about going on
(a request to stop, an evaluation, a failed write) is agreed first; and a rank that is gone ends
the others: at once where its connection closes, after `TIMEOUT` where it stays silent.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minigpt._launch import Launch
from minigpt.device import find_device
from minigpt.seed import mix_seed

TIMEOUT = timedelta(minutes=30)  # longer than an evaluation or a checkpoint takes; gloo's own
MESSAGE_BYTES = 1000
# Words of the errors that torch raises when a message cannot reach another rank; most of them
# have no class of their own.
LOST = ("gloo", "nccl", "closed by peer", "connection reset", "broken pipe", "processgroup")


class PeerError(RuntimeError):
    """Another process failed; this one ends too. `told`: that process prints its own error."""

    def __init__(self, message: str, *, told: bool) -> None:
        super().__init__(message)
        self.told = told


@dataclass(frozen=True)
class Team:
    """The processes of a run as one of them sees it: it has number `rank` of `size`."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this is the one that prints and writes; true of a process alone."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model whose backward averages gradients over all ranks; alone, the model.

        The wrapper shares its parameters with `model`, which stays the one to save and evaluate.
        All ranks start from the weights of rank 0.
        """
        if self.size == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,  # gradients live in the memory that is sent: no copy
        )

    def total(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks; a NaN of one rank is everyone's. Every rank must call."""
        if self.size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(value) for value in sums.tolist()]

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensor of every rank, in order, on the CPU; all have the same shape."""
        if self.size == 1:
            return [values.cpu()]
        parts = [torch.empty_like(values, device=self.device) for _ in range(self.size)]
        dist.all_gather(parts, values.to(self.device))
        return [part.cpu() for part in parts]

    @contextmanager
    def united(self) -> Iterator[None]:
        """Leave the block together: where it raised on one rank, it ends on all of them.

        The lowest rank that failed raises its own error, the others PeerError with its words.
        Every rank must come by, and the block must not hold messages that a failed rank would miss.
        """
        if self.size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        said = self._tell("" if failure is None else f"{type(failure).__name__}: {failure}")
        first = next((rank for rank, message in enumerate(said) if message), None)
        if failure is not None and first == self.rank:
            raise failure
        if first is not None:
            message = f"process {first} ended with {said[first]}"
            raise PeerError(message, told=True) from failure

    def require_same(self, what: str, facts: Any) -> None:
        """Raise ValueError on every rank unless all have the same facts, which JSON can hold."""
        if self.size == 1:
            return
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
        ours = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        theirs = self.gather(ours)
        differing = [r for r, their in enumerate(theirs) if not torch.equal(their, theirs[0])]
        if differing:
            raise ValueError(
                f"{what} must be the same in all processes; process {differing[0]} has others "
                "than process 0. Give all machines the same files and flags"
            )

    def reseed(self, seed: int, step: int) -> None:
        """Give torch's generators a state that depends on seed, step and rank only; alone, none.

        Each rank draws dropout masks of its own, and a resumed rank draws them again although
        the checkpoint holds the random states of rank 0 alone.
        """
        if self.size > 1:
            # The fourth number keeps these draws apart from those of the batches, which mix three.
            torch.manual_seed(mix_seed(seed, step, self.rank, self.size))

    def _tell(self, message: str) -> list[str]:
        """Exchange a short text with all ranks."""
        content = message.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
        texts = self.gather(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return [bytes(text.tolist()).rstrip(b"\0").decode(errors="replace") for text in texts]


ALONE = Team()


@contextmanager
def team_of(
    launch: Launch, device: torch.device, *, timeout: timedelta = TIMEOUT
) -> Iterator[Team]:
    """Connect the processes that were launched together; nothing happens for one alone.

    Yields the team; an error about a lost rank leaves the block as PeerError. A process that leaves
    the block with any error is to end: until then the others wait for it.
    timeout: how long a rank waits for another one's message.
    Raises ConnectionError when they do not find one another.
    """
    if launch.size == 1:
        yield Team(device=device)
        return
    on_cuda = device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if on_cuda and dist.is_nccl_available() else "gloo",
            rank=launch.rank,
            world_size=launch.size,
            timeout=timeout,
            device_id=device if on_cuda else None,
        )
    except (AttributeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ConnectionError(
            f"process {launch.rank} of {launch.size} found no connection: {reason}; "
            "start them with torchrun"
        ) from error
    try:
        yield Team(launch.rank, launch.size, device)
    except RuntimeError as error:
        if isinstance(error, PeerError) or not _tells_of_a_lost_rank(error):
            raise
        raise PeerError(
            f"process {launch.rank} of {launch.size} lost the others and ended "
            f"({_first_sentence(error)}); the one that failed first says why, or was killed",
            told=False,
        ) from error
    # After an error the process ends without this: to close a connection may mean to wait for
    # messages that will never come.
    dist.destroy_process_group()


def choose_device(launch: Launch, name: str | None) -> torch.device:
    """Return the device of this process, as `find_device` does for one alone.

    name: cpu, or cuda, where each process of a machine takes the device of its local rank and
    makes it torch's default; None takes cuda where there is one.
    Raises ValueError for too few devices, or one that several processes cannot share.
    """
    if launch.size == 1:
        return find_device(name)
    count = torch.cuda.device_count()
    name = name or ("cuda" if count else "cpu")
    if name == "cuda" and count:
        if launch.local_size > count:
            raise ValueError(
                f"device cuda is there {count} times for {launch.local_size} processes; "
                f"start at most {count}, or try cpu"
            )
        torch.cuda.set_device(launch.local_rank)  # first, or each would take memory on number 0
        name = f"cuda:{launch.local_rank}"
    elif name not in ("cpu", "cuda"):
        raise ValueError(f"device {name} cannot serve {launch.size} processes; try cpu or cuda")
    return find_device(name)


def _tells_of_a_lost_rank(error: RuntimeError) -> bool:
    said = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in said for word in LOST)


def _first_sentence(error: RuntimeError) -> str:
    """Return what torch said, without the place in its source that leads each line."""
    line = str(error).strip().splitlines()[0]
    return line.rpartition("] ")[2].partition(". ")[0][:120]
