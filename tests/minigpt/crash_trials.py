"""Kill the trainer again and again: what is left must load, and going on must change no bit.

    python -m tests.minigpt.crash_trials --kills 200

A chain is one run of the real command that is killed several times, resumed after each, and left
alone at last. It must end with the files of a run that nobody stopped: both checkpoints byte for
byte, the log row for row but for its speed, and nothing else in the folder. Three kinds of kills:

line     SIGKILL at a line of the code that writes, chosen evenly from all lines that a run visits
write    the system ends the process inside of a write, at a byte chosen at random (a limit on the
         size of files whose signal nobody catches)
time     SIGKILL from outside, after a random time

Every other chain starts in a folder that holds a finished run. Killed before its first save, the
folder's checkpoint is still that run's, and resuming must give that one back, with its log.

Children are forked from a process that has loaded torch, which takes longer than a whole run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import minigpt
from minigpt import prepare, train, trainer
from minigpt._cli import run_command
from minigpt._lock import LOCK_NAME
from minigpt._training_log import OLD_SUFFIX, TrainingLog
from minigpt._training_state import BEST_NAME, LAST_NAME, LOG_NAME
from minigpt.checkpoint import Checkpoint, load_checkpoint

FLAGS = [
    "--block-size=8",
    "--embedding-dim=16",
    "--num-heads=2",
    "--num-layers=1",
    "--dropout=0.1",
    "--batch-size=4",
    "--accumulation-steps=2",
    "--learning-rate=0.3",
    "--max-steps=8",
    "--evaluate-every=2",
    "--log-every=1",
    "--patience=9",
    "--evaluation-windows=8",
    "--threads=1",
    "--device=cpu",
    "--save-wait=0",
]
WRITING = {
    "_files.py",
    "_lock.py",
    "_run_files.py",
    "_saving.py",
    "_training_log.py",
    "_native_checkpoint.py",
    "checkpoint.py",
    "trainer.py",
}
KILLS_IN_A_CHAIN = 6
SHARES = {"line": 3, "write": 1, "time": 1}  # of all kills
Place = tuple[str, int]  # file, line


@dataclass
class Figures:
    """What a series of trials has counted."""

    kills: Counter[str] = field(default_factory=Counter)  # by kind
    left: Counter[str] = field(default_factory=Counter)  # by what the kill left behind
    places: set[Place] = field(default_factory=set)  # lines at which a process was killed
    place_count: int = 0
    chains: int = 0
    chains_after_another_run: int = 0
    given_back: int = 0  # times the finished run was resumed because nothing newer was saved
    faults: list[str] = field(default_factory=list)


def run_trials(kill_count: int, seed: int) -> Figures:
    """Kill `kill_count` times, in as many chains as it takes. Changes the working folder."""
    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1)])  # loads torch's compiler front end, once for all children
    Path("text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 60)
    in_child(lambda: prepare.main(["--text", "text.txt"]), Path("prepare"))
    trials = Trials(random.Random(seed))
    while trials.killed < kill_count and not trials.figures.faults:
        trials.run_chain(kill_count)
    return trials.figures


class Trials:
    """Chains of kills, all compared with the same two runs that nobody stopped."""

    def __init__(self, choose: random.Random) -> None:
        self.choose, self.figures = choose, Figures()
        start = time.monotonic()
        self.whole = self._finish(Path("whole"), 1)
        self.seconds = time.monotonic() - start
        self.other = self._finish(Path("other"), 2)
        visits = Path("visits.json")
        in_child(lambda: count_visits(visits, lambda: run_train("traced", 1)), Path("traced"))
        self.visits = {(name, line): n for name, line, n in json.loads(visits.read_text())}
        self.unseen = sorted(self.visits)
        self.choose.shuffle(self.unseen)
        self.figures.place_count = len(self.visits)

    @property
    def killed(self) -> int:
        """How many kills there were so far."""
        return self.figures.kills.total()

    def run_chain(self, kill_limit: int) -> None:
        """Kill one run up to six times, let it end, and compare."""
        figures, number = self.figures, self.figures.chains
        folder, step = Path(f"chain{number}"), 0
        if number % 2:
            folder.mkdir()
            for name, content in self.other.items():
                (folder / name).write_bytes(content)
            figures.chains_after_another_run += 1
        for _ in range(self.choose.randint(1, KILLS_IN_A_CHAIN)):
            resumed = seed_of(folder) == 1
            if self.killed >= kill_limit or not self._kill(folder, resumed):
                break
            step = self._examine(folder, step)
            if seed_of(folder) == 2 and self.choose.random() < 0.5:
                figures.given_back += 1
                self._require_same(folder, self._finish(folder, 2, resumed=True), self.other)
        resumed = seed_of(folder) == 1
        self._require_same(folder, self._finish(folder, 1, resumed=resumed), self.whole)
        figures.chains += 1

    def _kill(self, folder: Path, resumed: bool) -> bool:
        """Start or resume the run and kill it; False when it ended before that."""
        # The kind that is furthest behind: not every try kills, and none may be left out.
        kind = min(SHARES, key=lambda kind: self.figures.kills[kind] / SHARES[kind])
        seconds, place = None, None
        if kind == "line":
            place = self.unseen.pop() if self.unseen else self.choose.choice([*self.visits])
            visit = self.choose.randint(1, self.visits[place])
            arm: Callable[[], None] = lambda: kill_at(place, visit)  # noqa: E731
        elif kind == "write":
            call, share = self.choose.randint(1, 4), self.choose.random()
            arm = lambda: kill_inside_a_write(call, share)  # noqa: E731
        else:
            seconds, arm = self.choose.uniform(0, self.seconds), lambda: None

        def run() -> int:
            arm()
            return run_train(str(folder), 1, resumed=resumed)

        code = in_child(run, folder, kill_after=seconds)
        if code == 0:
            return False
        if code not in (-signal.SIGKILL, -signal.SIGXFSZ):
            said = Path(f"{folder}.txt").read_text()
            self.figures.faults.append(f"{folder}: {kind} {place} ended with {code}: {said}")
            return False
        self.figures.kills[kind] += 1
        if place is not None:
            self.figures.places.add(place)
        return True

    def _examine(self, folder: Path, step: int) -> int:
        """Look at what a kill left; return the step of its last checkpoint."""
        try:
            last, best = (load(folder / name) for name in (LAST_NAME, BEST_NAME))
            half_row = has_half_a_row(folder / LOG_NAME)
        except (OSError, ValueError) as error:
            self.figures.faults.append(f"{folder}: after the kill, {error}")
            return step
        ours = last is not None and seed_of(folder) == 1
        now = last.step if last is not None and ours else 0
        if now < step:
            self.figures.faults.append(f"{folder}: step {step} was saved, now there is {now}")
        rest = describe_rest(folder, last, best, half_row)
        self.figures.left[rest] += 1
        if rest.startswith("FAULT"):
            self.figures.faults.append(f"{folder}: {rest}")
        return now

    def _finish(self, folder: Path, seed: int, *, resumed: bool = False) -> dict[str, bytes]:
        """Run to the end; return the files of the folder by name."""
        code = in_child(lambda: run_train(str(folder), seed, resumed=resumed), folder)
        said = Path(f"{folder}.txt").read_text()
        if code or said:
            self.figures.faults.append(f"{folder}: the run ended with {code}: {said}")
        return {path.name: path.read_bytes() for path in folder.iterdir()}  # hidden ones too

    def _require_same(self, folder: Path, ours: dict[str, bytes], theirs: dict[str, bytes]) -> None:
        for name in sorted(ours.keys() | theirs.keys()):
            pair = [files.get(name) for files in (ours, theirs)]
            if name == LOG_NAME:
                same = rows_without_speed(pair[0]) == rows_without_speed(pair[1])
            else:
                same = pair[0] == pair[1]
            if not same:
                self.figures.faults.append(f"{folder}: {name} is not that of the whole run")


def run_train(folder: str, seed: int, *, resumed: bool = False) -> int:
    """Run the command as a user does; returns its exit code."""
    flags = ["--resume", *FLAGS] if resumed else FLAGS
    return run_command(lambda: train.main([*flags, f"--seed={seed}", f"--checkpoints={folder}"]))


def in_child(run: Callable[[], Any], folder: Path, *, kill_after: float | None = None) -> int:
    """Call `run` in a forked process, errors into FOLDER.txt; returns its exit code or -signal."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            errors, nothing = Path(f"{folder}.txt"), Path(os.devnull)
            with errors.open("w") as errors_file, nothing.open("w") as nowhere:
                os.dup2(errors_file.fileno(), 2)
                os.dup2(nowhere.fileno(), 1)
            code = run() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_visits(path: Path, run: Callable[[], int]) -> int:
    """Run and write how often each line of the code that writes was come by."""
    visits: Counter[Place] = Counter()
    trace_lines(lambda place: visits.update([place]))
    code = run()
    sys.settrace(None)
    path.write_text(json.dumps([[*place, count] for place, count in visits.items()]))
    return code


def kill_at(place: Place, visit: int) -> None:
    """End this process when it comes by a line for the `visit`-th time."""
    visits = 0

    def look(here: Place) -> None:
        nonlocal visits
        visits += here == place
        if visits == visit:
            os.kill(os.getpid(), signal.SIGKILL)

    trace_lines(look)


def trace_lines(look: Callable[[Place], None]) -> None:
    """Call `look` before every line of the code that writes."""
    root = str(Path(minigpt.__file__).parent)

    def in_function(frame: FrameType, event: str, argument: object) -> Any:
        name = Path(frame.f_code.co_filename)
        if name.name in WRITING and str(name.parent) == root:
            return in_line
        return None

    def in_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            look((Path(frame.f_code.co_filename).name, frame.f_lineno))
        return in_line

    sys.settrace(in_function)


def kill_inside_a_write(call: int, share: float) -> None:
    """Let the system end this process inside of a checkpoint, or of a row of the log."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls = 0

    def armed(write: Callable[..., Any], size: Callable[[], int]) -> Callable[..., Any]:
        def write_or_die(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size(), resource.RLIM_INFINITY))
            return write(*arguments, **options)

        return write_or_die

    if share < 0.7:  # of a file that has 40,000 bytes
        trainer.save_checkpoint = armed(trainer.save_checkpoint, lambda: int(share * 50_000))
    else:
        log = Path(os.devnull)
        append = TrainingLog.append

        def noted(self: TrainingLog, row: dict[str, Any]) -> None:
            nonlocal log
            log = self.path
            armed_append(self, row)

        armed_append = armed(append, lambda: log.stat().st_size + int(share * 100))
        TrainingLog.append = noted  # type: ignore[method-assign]


def seed_of(folder: Path) -> int | None:
    """Return the seed of the run that the folder's last checkpoint belongs to."""
    checkpoint = load(folder / LAST_NAME)
    return None if checkpoint is None else int((checkpoint.trainer_state or {})["settings"]["seed"])


def load(path: Path) -> Checkpoint | None:
    """Return the checkpoint, None where there is no file; raises ValueError for a damaged one."""
    return load_checkpoint(path) if path.exists() else None


def has_half_a_row(path: Path) -> bool:
    """Tell whether half a row follows the whole ones; raises ValueError for any other log."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    half = bool(lines) and not lines[-1].endswith(b"\n")
    steps = [json.loads(line)["step"] for line in lines[: len(lines) - half]]
    if steps != sorted(set(steps)):
        raise ValueError(f"{path} has the steps {steps}")
    return half


def rows_without_speed(content: bytes | None) -> list[dict[str, Any]]:
    """Return the rows of a log without the one number that depends on the machine."""
    rows = [json.loads(line) for line in (content or b"").splitlines()]
    return [{key: row[key] for key in row if key != "tokens_per_second"} for row in rows]


def describe_rest(
    folder: Path, last: Checkpoint | None, best: Checkpoint | None, half_row: bool
) -> str:
    """Say in one phrase how far the killed process had come."""
    known = {LAST_NAME, BEST_NAME, LOG_NAME, LOG_NAME + OLD_SUFFIX, LOCK_NAME}
    hidden = [path for path in folder.glob("*") if path.name not in known]
    if len(hidden) > 1 or not all(path.name.endswith(".tmp") for path in hidden):
        return f"FAULT {sorted(path.name for path in hidden)}"
    if hidden:
        whole = last.path.stat().st_size if last is not None else 0
        size = hidden[0].stat().st_size
        name = "log" if LOG_NAME in hidden[0].name else "checkpoint"
        part = "an empty" if not size else "a whole" if size == whole else "a part of a"
        return f"{part} new {name}, hidden"
    if half_row:
        return "half a row of the log"
    if last is not None and last.trainer_state and last.trainer_state["state"]["best_step"]:
        state = last.trainer_state["state"]
        if state["best_step"] == last.step and (best is None or best.step != last.step):
            return "last saved, best not yet"
    if (folder / (LOG_NAME + OLD_SUFFIX)).exists():
        return "a new log beside that of the run before"
    return "whole files only"


def report(figures: Figures, seconds: float) -> str:
    """Return the figures as a person reads them."""
    kinds = ", ".join(f"{figures.kills[kind]} by {kind}" for kind in ("line", "write", "time"))
    lines = [
        f"kills     {figures.kills.total()}: {kinds}; {len(figures.places)} of "
        f"{figures.place_count} lines",
        *(f"  left    {count:>4}  {what}" for what, count in figures.left.most_common()),
        f"chains    {figures.chains}, {figures.chains_after_another_run} of them in the folder of "
        f"another run, which was given back {figures.given_back} times",
        f"identical {figures.chains - len(figures.faults)} of {figures.chains} ended with the "
        "bytes of a run that nobody stopped",
        *(f"FAULT     {fault}" for fault in figures.faults),
        f"time      {seconds:.0f} s",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the trials in a folder of their own; 0 when nothing was lost, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.minigpt.crash_trials",
        description="Kill the trainer again and again, resume it, and compare every bit of what "
        "it ends with. Exit code 1 when something was lost.",
    )
    parser.add_argument("--kills", type=int, default=200, help="default 200, some minutes")
    parser.add_argument("--seed", type=int, default=0, help="another one kills elsewhere")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            figures = run_trials(options.kills, options.seed)
        finally:
            os.chdir("/")
    print(report(figures, time.monotonic() - start))
    return 1 if figures.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
