"""What runs inside a job: a student's file is loaded here, and nothing is decided here.

Every job first says ("ready", measures). A job that asks or answers afterwards uses `channel`.
The student's code can do in this process as it likes: all that leaves it are values of the wire.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diagnostics._catalog import CATALOG
from exercises.isolation.channel import Channel, PeerGoneError, RemoteError, serve

Job = Callable[..., None]


def load_everything() -> None:
    """Import what jobs need, once, before the first fork."""
    import torch

    for check in CATALOG:
        importlib.import_module(f"exercises.contracts.{check}")
    importlib.import_module("exercises._lab")
    importlib.import_module("exercises.isolation.pipeline_server")
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer loads torch's compiler, for seconds


def run(
    name: str, arguments: tuple[Any, ...], channel: Channel, measures: Mapping[str, bool]
) -> None:
    """Run one job to its end; its last word is on the channel, not in the exit code."""
    channel.send(("ready", dict(measures)))
    try:
        JOBS[name](channel, *arguments)
    except PeerGoneError:  # nobody wants to know any more
        pass
    except BaseException:
        traceback.print_exc()  # the beginning of what a job prints is kept
        _flush()
    finally:
        os._exit(0)  # runs neither `atexit` nor threads that the file has left behind


def run_check(channel: Channel, file: str) -> None:
    """Run a student's `check` on an implementation that answers from elsewhere."""
    check = _function(channel, file, "check")
    if check is None:
        return
    try:
        returned = check(_remote_implementation(channel))
    except Exception as error:
        verdict = ("rejected", *_described(error, file))
    except BaseException as error:  # SystemExit, or what a test framework skips with
        verdict = ("ended", *_described(error, file))
    else:
        verdict = ("accepted", "" if returned is None else type(returned).__name__, "", None)
    _flush()
    channel.send(verdict)


def serve_fix(channel: Channel, file: str) -> None:
    """Serve a student's `implementation`; what it printed is handed over before each answer."""
    implementation = _function(channel, file, "implementation")
    if implementation is None:
        return

    def call(*arguments: Any) -> Any:
        try:
            return implementation(*arguments)
        finally:
            _flush()

    channel.send(("loaded",))
    serve(channel, {"call": call})


def serve_implementation(channel: Channel, check: str, name: str, private: str | None) -> None:
    """Serve one right or wrong implementation of a contract, ours or an instructor's."""
    from exercises.contracts import _private

    channel.send(("loaded",))
    serve(channel, {"call": _private.implementation_of(check, name, private)})


def serve_pipeline(channel: Channel, file: str) -> None:
    """Serve the pipeline of a student's `build_pipeline`."""
    from exercises.isolation import pipeline_server

    build = _function(channel, file, "build_pipeline")
    if build is not None:
        channel.send(("loaded",))
        serve(channel, pipeline_server.answers(build, channel))


JOBS: Mapping[str, Job] = {
    "check": run_check,
    "fix": serve_fix,
    "implementation": serve_implementation,
    "pipeline": serve_pipeline,
}


def _function(channel: Channel, file: str, name: str) -> Callable[..., Any] | None:
    """Load a function from a file; say ("unusable", error, message, line) when there is none.

    The source is compiled here and now: no file with bytecode is looked at.
    """
    _forget_answers()
    module = types.ModuleType(Path(file).stem)
    module.__file__ = file
    sys.modules[module.__name__] = module
    sys.path.append(str(Path.cwd()))  # behind everything: a file of the student's shadows nothing
    try:
        source = Path(file).read_bytes()
        exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 - what a job is for
        function = module.__dict__.get(name)
        if not callable(function):
            raise NameError(f"the file defines no function {name!r}")
    except BaseException as error:
        _flush()
        channel.send(("unusable", *_described(error, file)))
        return None
    return function


def _forget_answers() -> None:
    """Unload right and wrong implementations: handing in one of ours is nobody's own work."""
    for name in [name for name in sys.modules if name.startswith("exercises.contracts")]:
        del sys.modules[name]


def _remote_implementation(channel: Channel) -> Callable[..., Any]:
    def implementation(*arguments: Any) -> Any:
        try:
            return channel.ask("call", *arguments)
        except RemoteError as error:
            kind = getattr(builtins, error.name, RuntimeError)
            fits = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if fits else RuntimeError)(error.message) from None

    return implementation


def _flush() -> None:
    """Hand over what was printed: the process may be killed as soon as it has spoken."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _described(error: BaseException, file: str) -> tuple[str, str, int | None]:
    """Return the error's name, its message, and the last line of the file that it went through."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        message = str(error)
    except Exception:
        message = ""
    return type(error).__name__, message[:2000], line
