"""Our own exceptions, whose messages already say what to do: the cause is theirs."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule, short

# what is wrapped goes on below, further to the right than the name of a field
_FAILED = re.compile(r"\[(?:FAIL|ERROR|SKIP)\] (\w+): ([^\n]+(?:\n {3,}\S[^\n]*)*)")
_NEXT = re.compile(r"^ *next +(\S[^\n]*(?:\n {3,}\S[^\n]*)*)", re.MULTILINE)


def _check(clues: Clues) -> Explanation | None:
    """A check that was required; its rendered result is the message."""
    match = _FAILED.search(clues.message)
    if clues.kind != "CheckFailedError" or match is None:
        return None
    step = _NEXT.search(clues.message)
    return Explanation(
        name=f"check.{match[1]}",
        cause=say("the check {check} failed: {claim}", check=match[1], claim=_joined(match[2])),
        evidence=quoted(" ".join(match.group().split())),
        next_step=say("{step}", step=_joined(step[1]))
        if step
        else say("python -m diagnostics --explain {check}", check=match[1]),
    )


def _joined(wrapped: str) -> str:
    return short(" ".join(wrapped.split()), 200)


def _command_line(clues: Clues) -> Explanation | None:
    """`error: ...`, the one line with which our commands end."""
    if clues.kind != "error":
        return None
    command = re.search(r"`(python -m (?:minigpt|diagnostics|exercises)[\w. -]*)`", clues.message)
    if command is None:
        return None
    return Explanation(
        name="command.says",
        cause=say("the command says it itself"),
        evidence=quoted(clues.message),
        next_step=command[1],
    )


RULES: tuple[Rule, ...] = (
    _check,
    _command_line,
    rule(
        "command.options",
        "error",
        r"unrecognized arguments: (?P<given>[^\n]{1,80})",
        "the command has no such option or argument: {given}",
        "run the command with --help in the place of its options",
    ),
    rule(
        "tokenizer.unknown",
        "UnknownCharacterError",
        r"unknown character (?P<char>'[^\n]{1,12}?'|\"'\") \((?P<point>U\+\w+)\) at "
        r"position (?P<at>\d+)",
        "the text holds {char} ({point}) at position {at}, which the tokenizer was not built from",
        "python -m diagnostics --only roundtrip fingerprint",
    ),
    rule(
        "checkpoint.tokenizer",
        "CheckpointTokenizerError",
        r"was trained with[^\n]{0,80}|tokenizer must not have more characters",
        "the tokenizer is not the one that the checkpoint was trained with",
        "python -m diagnostics --only fingerprint",
    ),
    rule(
        "checkpoint.configuration",
        "CheckpointConfigError",
        r"^[^\n]{1,200}",
        "the checkpoint belongs to another architecture or optimizer than the one given",
        "build the model from the file: load_checkpoint(path).model",
    ),
    rule(
        "checkpoint.damaged",
        "CheckpointCorruptError",
        r"wanted [^;\n]{1,160}, found [^;\n]{1,160}",
        "the file is truncated, damaged or of another kind; nothing in it was executed",
        "python -m diagnostics --only files",
    ),
    rule(
        "checkpoint.other",
        "CheckpointError",
        r"^[^\n]{1,200}",
        "the checkpoint cannot be used for this",
        "python -m diagnostics --only files checkpoint",
    ),
    rule(
        "run.folder_busy",
        "FolderBusyError",
        r"^[^\n]{1,200}",
        "another run writes into the same folder",
        "end that run, or give this one a folder of its own",
    ),
    rule(
        "run.not_saved",
        "SaveError",
        r"^[^\n]{1,200}",
        "the run could not write its checkpoint",
        "df -h .",
    ),
)
