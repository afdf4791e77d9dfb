"""A pipeline in another process, examined from here: every part is a stand-in that sends bytes.

`diagnose_remote` runs the unchanged checks on it. The other process only computes: no verdict is
made there, nothing that it sends is code, and once it has ended, overrun its time or sent nonsense
no check can pass any more.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from diagnostics import CheckResult, Pipeline, Report, diagnose
from diagnostics._result import Status
from diagnostics._text import say
from exercises.isolation._blueprint import signature_from
from exercises.isolation._remote_model import build_model, wanted_events
from exercises.isolation._remote_optimizer import build_optimizer, weights_of
from exercises.isolation._session import LostError, LostQuietlyError, Session
from exercises.isolation._twin import Twin
from exercises.isolation.channel import Channel
from exercises.isolation.wire import DTYPES, WireError

_FLAT = ("forward", "get_batch", "batch", "learning_rate", "next_token_probabilities")


def diagnose_remote(channel: Channel, *, allow: Iterable[str] = (), **how: Any) -> Report:
    """Examine the pipeline that the other process serves; how: as `diagnose` takes it.

    allow: reasons that the instructor allows; what the pipeline itself allows does not count.
    Where the process is lost, the check that ran then and all later ones say ERROR.
    Raises RemoteError for an error in build_pipeline, LostError where no pipeline came at all.
    """
    session = Session(channel, quiet=True)
    lost_at: list[str] = []
    told = how.pop("progress", None)

    def progress(check: str, index: int, total: int) -> None:
        if not session.lost:
            lost_at[:] = [check]
        if told is not None:
            told(check, index, total)

    try:
        described = _described(session)
        pipeline = _pipeline(session, described)
        pipeline.allow = tuple(allow)
        with _entry(described["entry"]):
            report = diagnose(pipeline, progress=progress, **how)
    except LostQuietlyError as error:
        raise LostError(session.lost) from error.__cause__
    if not session.lost:
        return report
    names = [result.check for result in report.results]
    first = names.index(lost_at[0])
    kept = report.results[:first]
    lost = [_lost(result.check, session) for result in report.results[first:]]
    return dataclasses.replace(report, results=(*kept, *lost))


def remote_pipeline(channel: Channel) -> Pipeline:
    """Return a Pipeline whose parts are those that the other process serves.

    Once the process is lost, every part raises LostError, which is no Exception.
    """
    session = Session(channel)
    return _pipeline(session, _described(session))


def _described(session: Session) -> Any:
    """Ask for the description; what building it switched off is not switched off here."""
    grads = torch.is_grad_enabled()
    try:
        return session.ask("describe")
    finally:
        torch.set_grad_enabled(grads)


def _pipeline(session: Session, described: Any) -> Pipeline:
    session.build_model = lambda handle, blueprint: build_model(session, handle, blueprint)
    session.build_optimizer = lambda number, told: build_optimizer(session, number, told)
    with session._guarded():
        constants = session.opened(described["constants"]["value"])
        parts: dict[str, Any] = {
            name: _part(session, name, signature) for name, signature in described["parts"].items()
        }
        if described["tokenizer"] is not None:
            parts["tokenizer"] = _tokenizer(session, described["tokenizer"])
        if described["batch"] is not None and "batch" not in parts:
            parts["batch"] = session.opened(described["batch"]["value"])
        model = session.opened(described["model"]["value"])
        if not isinstance(model, nn.Module):
            raise WireError("a pipeline came without a model")
    if files := _files(session):
        parts["files"] = files
    if "learning_rate" in parts:
        session.schedule_ran = parts["learning_rate"].ran
    pipeline = Pipeline(model, **_checked(constants), **parts)
    session.original = vars(model)["_link"].twin
    return pipeline


def _checked(constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants that have the type they must have; what has not is left away."""
    kinds: dict[str, tuple[type, ...]] = {
        "vocab_size": (int,), "block_size": (int,), "labels": (str,), "ignore_index": (int,),
        "pad_id": (int,), "max_steps": (int,), "micro_batches": (int,), "causal": (bool,),
        "fresh": (bool,), "train_ids": (torch.Tensor,), "val_ids": (torch.Tensor,),
        "train_text": (str,),
    }  # fmt: skip
    return {n: v for n, v in constants.items() if n in kinds and type(v) in kinds[n]}


def _part(session: Session, name: str, signature: Any) -> Callable[..., Any]:
    if name == "learning_rate":
        return _Schedule(session)

    def part(*arguments: Any, **named: Any) -> Any:
        return _ask_part(session, name, arguments, named)

    known = signature_from(signature)
    if known is not None:
        part.__signature__ = known  # type: ignore[attr-defined]
    return part


class _Schedule:
    """The learning rate. Its code is its own, so that a profile can tell when it runs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, step: int) -> Any:
        """Return the rate of a step."""
        self.ran()
        profile = sys.getprofile()
        if callable(profile):
            sys.setprofile(None)  # before anything is called: it would count as the schedule's
        try:
            return _ask_part(self._session, "learning_rate", (step,), {})
        finally:
            if callable(profile):
                sys.setprofile(profile)

    def ran(self) -> None:
        """Show a profile that the schedule has been asked."""


def _ask_part(session: Session, name: str, arguments: Any, named: Any) -> Any:
    given: list[torch.Tensor] = []
    lent: list[Any] = []
    packed = session.pack(arguments, given, lent), session.pack(named, given, lent)
    touched = _models_of(session, [*arguments, *named.values()])
    deep = name not in _FLAT
    if deep:
        original = session.original
        if original is not None and not any(original is twin for twin in touched):
            touched.append(original)
    events: dict[str, Any] | None = None
    if touched:
        steps = _global_optimizer_pre_hooks or _global_optimizer_post_hooks
        events = {
            "models": wanted_events(touched),
            "steps": bool(steps),
            "profile": sys.getprofile() is not None and name in ("train_step", "accumulate"),
        }
    answer = session.ask(
        "part", name, *packed, touched=touched, deep=deep, events=events, lent=lent
    )
    return session.open(answer, given)


def _models_of(session: Session, values: Iterable[Any]) -> list[Twin]:
    found: list[Twin] = []
    for value in values:
        twins: list[Twin] = []
        if isinstance(value, nn.Module) and "_link" in vars(value):
            twins = [vars(value)["_link"].twin]
        elif "_twin" in getattr(value, "__dict__", {}):
            twins = weights_of(value)
        elif isinstance(value, (list, tuple)):
            twins = _models_of(session, value)
        found += [twin for twin in twins if not any(twin is known for known in found)]
    return found


def _tokenizer(session: Session, described: Any) -> Any:
    methods: dict[str, Any] = {}

    def get(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in methods:
            return methods[name]
        kind, value = session.ask("tokenizer_get", name)
        if kind == "value":
            return session.open(value)

        def method(*arguments: Any, **named: Any) -> Any:
            lent: list[Any] = []
            packed = session.pack(arguments, None, lent), session.pack(named, None, lent)
            return session.open(session.ask("tokenizer_call", name, *packed, lent=lent))

        known = signature_from(value)
        if known is not None:
            method.__signature__ = known  # type: ignore[attr-defined]
        methods[name] = method
        return method

    def length(self: Any) -> Any:
        return session.open(session.ask("tokenizer_call", "__len__", *map(session.pack, ((), {}))))

    members: dict[str, Any] = {"__getattr__": get}
    if described["has_length"]:
        members["__len__"] = length
    return type(str(described["kind"])[:100], (), members)()


def _files(session: Session) -> list[Path]:
    """Write the files that the pipeline reads into a folder that goes away with the session."""
    answer = session.ask("files")
    if not answer:
        return []
    top = Path(tempfile.mkdtemp(prefix="examined-"))
    weakref.finalize(session, shutil.rmtree, top, ignore_errors=True)
    listed = []
    with session._guarded():
        for folder, name, content, changed_at, is_listed in answer:
            base = Path(str(name)).name
            path = top / str(int(folder)) / (base if base.strip(".") else "file")
            path.parent.mkdir(exist_ok=True)
            if content is not None:
                path.write_bytes(content.numpy().tobytes())
                os.utime(path, (float(changed_at), float(changed_at)))
            if is_listed:
                listed.append(path)
    return listed


@contextmanager
def _entry(told: Any) -> Iterator[None]:
    """Set torch's switches as the student's program left them, for `environment` to see."""
    before = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_anomaly_enabled()
    with ExitStack() as stack:
        try:
            stack.enter_context(torch.inference_mode(told["inference"] is True))
            stack.enter_context(torch.autocast("cpu", enabled=told["autocast"] is True))
            torch.set_grad_enabled(told["grad"] is True)
            torch.set_default_dtype(DTYPES[told["default_dtype"]])
            torch.autograd.set_detect_anomaly(told["anomaly"] is True)
            yield
        finally:
            torch.set_grad_enabled(before[0])
            torch.set_default_dtype(before[1])
            torch.autograd.set_detect_anomaly(before[2])


def _lost(check: str, session: Session) -> CheckResult:
    return CheckResult(
        check=check,
        status=Status.ERROR,
        reason=f"{check}.raised",
        claim=say("not measured: {why}", why=session.lost),
        next_step=say("run this check by itself; look for what ends the process, or never ends"),
        numbers={"exception": session.lost_by},
    )
