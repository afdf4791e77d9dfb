"""Tracebacks to read: written as the interpreter, a GPU, torchrun print them; and live ones."""

from __future__ import annotations

import traceback
from pathlib import Path

from diagnostics.help.traceback import TracebackReading

SITE = "/opt/course/lib/python3.11/site-packages"
HEADER = "Traceback (most recent call last):\n"
TRAIN = ("train.py", 12, "<module>", "loss = step(batch)")
STEP = ("train.py", 7, "step", "logits = model(ids)")
CALL = (f"{SITE}/torch/nn/modules/module.py", 1778, "_call_impl", "return forward_call(*args)")
EMBEDDING = (f"{SITE}/torch/nn/functional.py", 2615, "embedding", "return torch.embedding(weight)")

Row = tuple[str, int, str, str]


def python(last: str, *rows: Row, header: str = HEADER) -> str:
    """A traceback of the interpreter with these frames and this last line."""
    frames = "".join(
        f'  File "{file}", line {line}, in {function}\n    {code}\n'
        for file, line, function, code in (rows or (TRAIN, STEP, CALL))
    )
    return f"{header}{frames}{last}\n"


def prefixed(text: str, prefix: str) -> str:
    """The text with a prefix before each line."""
    return "".join(f"{prefix}{line}\n" for line in text.rstrip("\n").split("\n"))


def asserted(condition: str, *, file: str = "Indexing.cu", times: int = 3) -> str:
    """What a GPU kernel prints when a condition does not hold, once for each thread."""
    return "".join(
        f"/pytorch/aten/src/ATen/native/cuda/{file}:1422: kernel: block: [5,0,0], thread: "
        f"[{thread},0,0] Assertion `{condition}` failed.\n"
        for thread in range(times)
    )


def run(folder: Path, code: str, name: str = "train.py") -> str:
    """Run code as a file of its own, and return the traceback that it raises."""
    path = folder / name
    path.write_text(code, encoding="utf-8")
    try:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    except BaseException as error:
        frames = error.__traceback__
        error.__traceback__ = frames.tb_next if frames else None  # without this function
        return "".join(traceback.format_exception(error))
    raise AssertionError("the code was meant to raise")


def place_of(reading: TracebackReading) -> tuple[str, int | None, str] | None:
    """File, line and function of where it happened; None where no code is own."""
    frame = reading.where
    return None if frame is None else (frame.file, frame.line, frame.function)


def told_of(reading: TracebackReading) -> tuple[str, str, str]:
    """Name, cause and next step of the explanation, which has to be there."""
    told = reading.explanation
    assert told is not None, f"nothing explains {reading.kind}: {reading.message}"
    assert told.evidence, told.name
    assert told.next_step, told.name
    return told.name, told.cause, told.next_step
