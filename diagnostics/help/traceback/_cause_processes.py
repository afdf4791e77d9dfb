"""Causes of failures between processes: unused parameters, silence, ports."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._cause_memory import measure
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|connection was closed"
    r"|lost the others"
    r"|remote process exited or there was a network error|Socket closed|recvValue failed"
    r"|Process \d+ (?:exited|terminated)|DataLoader worker \(pid\(s\) [\d, ]+\) exited"
)


def is_echo(kind: str, message: str) -> bool:
    """Whether an exception only tells that another process has failed."""
    name = kind.rpartition(".")[2]
    if name in {
        "ChildFailedError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "PeerError",
    }:
        return True
    return name in {"SignalException"} or bool(_LOST.search(message[:2000]))


_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(\w+)"
    r"[^\n]{0,200}?ran for (\d{1,12}) milliseconds"
)
_START = re.compile(
    r"Timed out after \d{1,9} seconds waiting for clients\. (\d{1,6})/(\d{1,6}) clients joined"
)
_SILENCE = re.compile(
    r"Timed out waiting \d{1,12}ms for \w+ operation|wait timeout after \d{1,12}ms|Socket Timeout"
)
_SILENCE_CAUSES = (
    "a call that all processes must make stands in a branch that only some take: if rank == 0: ...",
    "the processes have different numbers of batches",
    "one process has failed before, with an error of its own further up in the log",
)


def _timeout(clues: Clues) -> Explanation | None:
    """One process waited for the others until it gave up."""
    watchdog, start = _WATCHDOG.search(clues.message), _START.search(clues.message)
    silence = _SILENCE.search(clues.message)
    said = watchdog or start or silence
    if said is None:
        return None
    if watchdog:
        cause = say(
            "one process waited {seconds:second|seconds} for the others in {operation}: not all "
            "of them made this call",
            seconds=int(watchdog[2]) // 1000,
            operation=watchdog[1].lower(),
        )
    elif start:
        cause = say(
            "{joined} of {wanted} processes came to the start: the others did not run, or use "
            "another address or port",
            joined=start[1],
            wanted=start[2],
        )
    else:
        cause = say("one process waited for another one in vain")
    return Explanation(
        name="process.timeout",
        cause=cause,
        evidence=quoted(said.group()),
        others=() if start else tuple(say(one) for one in _SILENCE_CAUSES),
        others_are=say("usual reasons"),
        next_step=say("python -m diagnostics --only distributed"),
    )


def _lost(clues: Clues) -> Explanation | None:
    if not is_echo(clues.kind, clues.message):
        return None
    signal = re.search(r"exitcode\s+: -(?:9|11)\b[^\n]*", clues.text)
    if signal and "-9" in signal.group():
        return Explanation(
            name="process.killed",
            cause=say(
                "a process was killed (signal 9), most often by the kernel when the "
                "machine's memory is full"
            ),
            evidence=quoted(signal.group()),
            next_step=measure(clues),
        )
    return Explanation(
        name="process.echo",
        cause=say(
            "this only says that another process has ended; its own error is not in this text"
        ),
        evidence=quoted((clues.message or clues.kind).strip()),
        next_step=say("torchrun --redirects 3 --log-dir logs ... keeps each process's own output"),
        is_vague=True,
    )


RULES: tuple[Rule, ...] = (
    _timeout,
    rule(
        "process.unused_parameters",
        "RuntimeError",
        r"Expected to have finished reduction in the prior iteration.*?Parameter "
        r"indices which did not receive grad for rank \d+: (?P<indices>[\d ]{1,60})",
        "some parameters took no part in the loss, and DistributedDataParallel "
        "waits for their gradients; by number in model.parameters(): {indices}",
        "python -m diagnostics --only gradients",
    ),
    rule(
        "process.unused_parameters",
        "RuntimeError",
        r"Expected to have finished reduction in the prior iteration",
        "some parameters took no part in the loss, and DistributedDataParallel "
        "waits for their gradients",
        "python -m diagnostics --only gradients",
    ),
    rule(
        "process.no_group",
        "ValueError RuntimeError",
        r"Default process group has not been initialized",
        "torch.distributed is used before init_process_group has run in this process",
        'call it first: torch.distributed.init_process_group("gloo")',
    ),
    rule(
        "process.environment",
        "ValueError KeyError",
        r"environment variable \w+ expected, but not set|^'(?:LOCAL_)?RANK'$|^'WORLD_SIZE'$",
        "the script takes its place among several processes from the environment, which only a "
        "launcher sets, and was started without one",
        "torchrun --standalone --nproc-per-node 2 train.py",
    ),
    rule(
        "process.port",
        "RuntimeError DistNetworkError OSError",
        r"(?:EADDRINUSE|Address already in use|address already in use)",
        "another process on this machine holds the port",
        "torchrun --standalone --nproc-per-node 2 train.py",
    ),
    rule(
        "process.one_gpu",
        "DistBackendError RuntimeError ValueError",
        r"Duplicate GPU detected[^\n]{0,80}",
        "two processes use one GPU",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
    ),
    rule(
        "process.nccl",
        "DistBackendError RuntimeError",
        r"NCCL error in: [^\n]{0,200}",
        "NCCL, which connects the GPUs, failed and does not say why",
        "set NCCL_DEBUG=INFO before the same command, and read what it prints first",
    ),
    _lost,
)
