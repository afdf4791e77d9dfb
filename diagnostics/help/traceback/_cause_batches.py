"""Causes of rows of different lengths, and of loader processes."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule


def _worker(clues: Clues) -> Explanation | None:
    match = re.search(
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) is killed by signal: ([A-Z][\w ]+)",
        clues.message,
    )
    if "DataLoader worker" not in clues.message:
        return None
    bus = re.search(
        r"insufficient shared memory \(shm\)|bus error encountered in worker", clues.text
    )
    if match is None and bus is None:
        return None
    signal = match[1].strip() if match else "Bus error"
    if "Bus" in signal or bus:
        cause = say(
            "a loader process ran out of shared memory (/dev/shm), which containers keep small"
        )
        step = say("docker run --shm-size=2g (or num_workers=0, which needs none)")
    elif signal.startswith("Killed"):
        cause = say(
            "a loader process was killed, most often by the kernel when the machine's "
            "memory is full"
        )
        step = say("fewer loader processes: DataLoader(..., num_workers=0)")
    else:
        cause = say("a loader process ended with {signal}", signal=signal)
        step = say("run with num_workers=0, where the error shows in this process")
    evidence = match.group() if match else bus.group() if bus else ""
    return Explanation(name="loader.killed", cause=cause, evidence=quoted(evidence), next_step=step)


def _ragged(clues: Clues) -> Explanation | None:
    """Rows of several lengths; a slice data[i:i + n] on the line ends with the data."""
    match = re.search(
        r"stack expects each tensor to be equal size, but got (\[[\d, ]*\]) at "
        r"entry (\d+) and (\[[\d, ]*\]) at entry (\d+)",
        clues.message,
    )
    if match is None:
        return None
    a, i, b, j = match.groups()
    cause = say(
        "row {i} has shape {a} and row {j} {b}: rows of one batch must have one length",
        i=i, a=a, j=j, b=b,
    )  # fmt: skip
    step = say("cut or pad all rows to one length in collate_fn, and mask what is padded")
    if clues.own and re.search(r"\[ ?(\w+) ?: ?\1 ?\+", clues.own.code):
        cause = say(
            "{cause}; a slice near the end of the data is shorter than the others", cause=cause
        )
        step = say("draw the starts below len(data) - block_size")
    return Explanation(
        name="batch.ragged", cause=cause, evidence=quoted(match.group()), next_step=step
    )


def _pickle(clues: Clues) -> Explanation | None:
    """What cannot be sent to a process that is started anew, or cannot be saved."""
    match = re.search(
        r"Can't pickle (?:local object )?<function ([\w.<>]+)|Can't (?:get|pickle) "
        r"local object '?([\w.<>]+)"
        r"|cannot pickle '([\w.]+)' object",
        clues.message,
    )
    if match is None:
        return None
    name = next(group for group in match.groups() if group)
    if clues.has_file("/multiprocessing/"):
        cause = say(
            "a process that is started anew gets its parts as pickles, and {name} "
            "cannot be pickled",
            name=name,
        )
        step = say(
            "use a function or class at the top level of a file in the place of "
            "{name}, or num_workers=0",
            name=name,
        )
    elif clues.has_file("torch/serialization.py"):
        cause = say(
            "what is saved holds {name}, which cannot be pickled: a whole model or a "
            "configuration with code in it",
            name=name,
        )
        step = say("save weights and plain values: torch.save(model.state_dict(), path)")
    else:
        return None
    return Explanation(
        name="loader.pickle", cause=cause, evidence=quoted(match.group()), next_step=step
    )


def _empty_draw(clues: Clues) -> Explanation | None:
    match = re.search(
        r"random_ expects 'from' to be less than 'to', but got from=(-?\d+) >= to=(-?\d+)",
        clues.message,
    )
    if match is None:
        return None
    cause = say("a random number was drawn from an empty range, {a} to {b}", a=match[1], b=match[2])
    step = say("print the bounds that randint gets, on the line before")
    if clues.own and re.search(
        r"(?:len\(|\.size\(|\.shape).*- ?\w*(?:block|context|seq|length|T\b)", clues.own.code
    ):
        cause = say("{cause}: the data is not longer than the block", cause=cause)
        step = say("python -m diagnostics --only split batches")
    return Explanation(
        name="batch.short_data", cause=cause, evidence=quoted(match.group()), next_step=step
    )


RULES: tuple[Rule, ...] = (
    _worker,
    _ragged,
    rule(
        "batch.ragged_list",
        "ValueError",
        r"expected sequence of length (?P<a>\d+) at dim (?P<at>\d+) \(got (?P<b>\d+)\)",
        "one row has {a} entries and another {b}: rows of one tensor must have one length",
        "cut or pad all rows to one length before torch.tensor, and mask what is padded",
    ),
    rule(
        "batch.ragged_array",
        "ValueError",
        r"setting an array element with a sequence\. The requested array has an "
        r"inhomogeneous shape",
        "the rows have different lengths, which no array can hold",
        "cut or pad all rows to one length first",
    ),
    rule(
        "batch.ragged_features",
        "ValueError",
        r"Unable to create tensor, you should probably activate truncation and/or "
        r"padding.*?features \(`(?P<key>\w+)`",
        "the rows of `{key}` have different lengths, and nothing pads that column",
        "tokenizer(..., padding=True, truncation=True); labels need a collator "
        "that pads them too, such as DataCollatorForTokenClassification",
    ),
    rule(
        "batch.pad_token",
        "ValueError",
        r"Asking to pad but the tokenizer does not have a padding token|Cannot "
        r"handle batch sizes > 1 if no padding token is defined",
        "rows are to be padded, and no token is set for that",
        "tokenizer.pad_token = tokenizer.eos_token; model.config.pad_token_id = "
        "tokenizer.pad_token_id",
    ),
    rule(
        "loader.exited",
        "RuntimeError",
        r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        "a loader process ended without saying why",
        "run with num_workers=0, where the error shows in this process",
        is_vague=True,
    ),
    _pickle,
    rule(
        "loader.bootstrap",
        "RuntimeError",
        r"An attempt has been made to start a new process before the\s+current "
        r"process has finished its bootstrapping phase",
        "a new process runs the script from its first line, and the script starts "
        "processes outside of a main guard",
        "put what runs as a script under if __name__ == '__main__':",
    ),
    rule(
        "loader.sample",
        "ValueError",
        r"num_samples should be a positive integer value, but got num_samples=0",
        "the data set is empty",
        "print(len(dataset)) before the DataLoader is made",
    ),
    _empty_draw,
)
