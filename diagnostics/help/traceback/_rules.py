"""What every rule about causes shares: the clues that it reads and the explanation that it gives.

A rule returns None wherever the text does not fit: no explanation is better than a wrong one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from diagnostics._text import say
from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._trace import Trace

MESSAGE_LINES_MOST, LINE_MOST = 200, 1_000  # what rules search
EVIDENCE_MOST = 150  # characters of the text that are quoted
_COMMAND = re.compile(
    r"^(?:[^\n]*?[$#%>] ?)((?:\w+=\S* )*(?:python[\d.]*|py|torchrun|accelerate launch)"
    r"(?:\.exe)? [^\n]+?)\s*$",
    re.MULTILINE,
)
_SHELL_SIGNS = re.compile(r"[;&|`$<>(){}\\\n\x00-\x1f\x7f]")  # not to be handed on to be copied
_OWN_MODULE = re.compile(r"/(minigpt|exercises|diagnostics)/((?:\w+/)*\w+)\.py$")


@dataclass(frozen=True)
class Clues:
    """What a rule may look at: one traceback, and the whole text around it."""

    trace: Trace
    text: str

    @property
    def kind(self) -> str:
        """The exception's class without its module."""
        return self.trace.short_kind

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The class, and for a wrapper of torch.compile those that its message names."""
        inner = re.findall(r"\b(\w+Error)\b", self.message) if "_dynamo" in self.trace.kind else ()
        return frozenset({self.kind, *inner})

    @cached_property
    def message(self) -> str:
        """The message; of a very long one the first lines, and of a long line its beginning.

        So that no pattern has to search a text without end: see `trace.message` for all of it.
        """
        lines = self.trace.message.split("\n")[:MESSAGE_LINES_MOST]
        return "\n".join(line[:LINE_MOST] for line in lines)

    @property
    def own(self) -> Frame | None:
        """The last frame that is a person's own code."""
        return next((f for f in reversed(self.trace.frames) if f.is_own), None)

    @property
    def is_notebook(self) -> bool:
        """Whether cells are run again and not a command."""
        return self.trace.form == "notebook"

    @property
    def is_windows(self) -> bool:
        """Whether paths look like those of Windows."""
        return any(re.match(r"[A-Za-z]:\\", frame.file) for frame in self.trace.frames)

    @property
    def is_course(self) -> bool:
        """Whether minigpt's own code ran, or nothing says whose did."""
        files = [frame.file.replace("\\", "/") for frame in self.trace.frames]
        has_own = any(frame.is_own for frame in self.trace.frames)
        return not has_own or any(_OWN_MODULE.search(file) for file in files)

    def has_call(self, *functions: str) -> bool:
        """Whether a frame is in one of these functions."""
        return any(frame.function.rpartition(".")[2] in functions for frame in self.trace.frames)

    def code_near_end(self) -> str:
        """The code, or its marked part, of the last frame that is not torch's."""
        for frame in reversed(self.trace.frames):
            if frame.is_own or frame.library != "torch":
                return frame.marked or frame.code
        return ""

    def has_file(self, *parts: str) -> bool:
        """Whether a frame's path holds one of these parts, spelled with /."""
        paths = [frame.file.replace("\\", "/") for frame in self.trace.frames]
        return any(part in path for path in paths for part in parts)

    def command(self) -> str | None:
        """The command of the run, from a prompt in the text or from the script; None: unknown."""
        typed = [match.group(1) for match in _COMMAND.finditer(self.text)]
        if typed:
            return None if _SHELL_SIGNS.search(typed[-1]) else typed[-1]
        frames = [frame for frame in self.trace.frames if frame.is_own]
        if self.is_notebook or not frames or frames[0].function != "<module>":
            return None
        path = frames[0].file.replace("\\", "/")
        module = _OWN_MODULE.search(path)
        if module:
            name = f"{module[1]}.{module[2].replace('/', '.')}".removesuffix(".__main__")
            return f"python -m {name}"
        if not path.endswith(".py") or not path.isprintable():
            return None
        return f'python "{path}"' if self.is_windows else f"python {shlex.quote(path)}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A likely cause. evidence: what in the text it rests on, quoted.

    others: causes that the text cannot tell apart from the first, or what else others_are.
    is_vague: it says little, and the exception that this one was raised from may say more.
    """

    name: str
    cause: str
    evidence: str
    next_step: str
    others: tuple[str, ...] = ()
    others_are: str = ""
    is_vague: bool = False


Rule = Callable[[Clues], Explanation | None]


def rule(
    name: str, kinds: str, pattern: str, cause: str, next_step: str, *, is_vague: bool = False
) -> Rule:
    """Return the rule of one message.

    kinds: classes, separated by blanks, "" for any. pattern: searched in the message; its named
    groups fill the templates.
    """
    compiled = re.compile(pattern, re.DOTALL)
    wanted = frozenset(kinds.split())

    def read(clues: Clues) -> Explanation | None:
        if wanted and not wanted & clues.kinds:
            return None
        match = compiled.search(clues.message)
        if match is None:
            return None
        facts = {key: short(value or "", 60) for key, value in match.groupdict().items()}
        return Explanation(
            name=name,
            cause=say(cause, **facts),
            evidence=quoted(match.group() or clues.kind),
            next_step=say(next_step, **facts),
            is_vague=is_vague,
        )

    return read


def quoted(text: str) -> str:
    """Return a piece of the text as evidence: one line, in double quotes."""
    return f'"{short(text, EVIDENCE_MOST)}"'


def short(text: str, most: int) -> str:
    """Return the text on one line, with its middle left out where it is longer."""
    line = " ".join(text[: 20 * most].split())
    if len(line) <= most:
        return line
    half = (most - 5) // 2
    return f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"


def numbers(text: str) -> list[int]:
    """Return the whole numbers of a text such as "[8, 32]" or "torch.Size([61, 8])"."""
    return [int(digits[:18]) for digits in re.findall(r"-?\d+", text)]
