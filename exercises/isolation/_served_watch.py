"""The watchers of the checks, at work where the model computes.

A check looks into a forward pass with a mode of torch's that sees every call of a function. What it
would see here is seen there, by the same class; its findings go back into the check's own object.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch.overrides import TorchFunctionMode

from diagnostics._attention import AttentionCall, AttentionWatch
from diagnostics._gradient_trial import _RoundingWatch
from diagnostics._structure import _PrecisionWatch
from diagnostics._trace import DropoutWatch

# class -> (what it is told, what it finds)
KINDS: dict[type[TorchFunctionMode], tuple[tuple[str, ...], tuple[str, ...]]] = {
    DropoutWatch: (("silence",), ("fired", "passive")),
    AttentionWatch: (("T", "C", "silent"), ("calls",)),
    _RoundingWatch: ((), ("found",)),
    _PrecisionWatch: ((), ("bytes_min",)),
}
_BY_NAME = {kind.__name__: kind for kind in KINDS}


def told(mode: TorchFunctionMode) -> tuple[str, dict[str, Any]] | None:
    """Return what the other side needs for the same watcher; None for one that it does not know."""
    known = KINDS.get(type(mode))
    if known is None:
        return None
    return type(mode).__name__, {name: getattr(mode, name) for name in known[0]}


def take_findings(mode: TorchFunctionMode, findings: dict[str, Any]) -> None:
    """Write what the watcher over there has found into this one."""
    for name in KINDS[type(mode)][1]:
        found = findings[name]
        if name == "calls":
            mode.calls += [_call_from(each) for each in found]  # type: ignore[attr-defined]
        elif name in ("fired", "passive"):
            held: list[Any] = getattr(mode, name)
            held += found
        elif name == "bytes_min":
            mode.bytes_min = min(mode.bytes_min, int(found))  # type: ignore[attr-defined]
        else:
            setattr(mode, name, getattr(mode, name) or bool(found))


class Watchers:
    """The watchers of one question, on the side that computes."""

    def __init__(self, asked: list[Any]) -> None:
        self._modes: list[TorchFunctionMode] = []
        for name, settings in asked:
            kind = _BY_NAME[name]
            self._modes.append(kind(**settings))
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for mode in self._modes:
            self._stack.enter_context(mode)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def findings(self) -> list[dict[str, Any]]:
        """Return what each has found, as plain data."""
        return [
            {name: _plain(getattr(mode, name)) for name in KINDS[type(mode)][1]}
            for mode in self._modes
        ]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [
            dataclasses.asdict(each)
            if dataclasses.is_dataclass(each) and not isinstance(each, type)
            else each
            for each in value
        ]
    return value


def _call_from(fields: dict[str, Any]) -> AttentionCall:
    return AttentionCall(**fields)
