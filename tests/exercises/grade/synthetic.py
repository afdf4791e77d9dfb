"""A class of made-up submissions: good, bad, crashing, looping, cheating, empty, and archives."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

CHECK = """
import torch
def check(implementation):
    data = torch.arange(300) * 3
    for _ in range(2):
        inputs, targets = implementation(data)
        assert torch.equal(targets, inputs + 3), "targets are not one token ahead"
"""
TEXTBOOK = """
import torch
def check(implementation):
    inputs, targets = implementation(torch.arange(300))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
"""
TOO_STRICT = """
import torch
def check(implementation):
    inputs, targets = implementation(torch.arange(300))
    assert torch.equal(targets, inputs + 1)
    assert inputs[0, 0] == 0, "the first row starts at 0"
"""
CALLING = "import os, sys, time, torch\ndef check(implementation):\n"
CALLING += "    implementation(torch.arange(300))\n"
FIX = """
import torch
def implementation(data):
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)
    return data[places], data[places + 1]
"""
MODEL = """
import torch
from torch import nn
from diagnostics import Pipeline

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 20)

    def forward(self, ids, targets=None):
        logits = self.table(ids)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

def get_batch(data):
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)
    return data[places], data[places + 1]

def build_pipeline():
    ids = torch.randint(20, (2000,), generator=torch.Generator().manual_seed(1))
    return Pipeline(Bigram(), make_model=Bigram, train_ids=ids, get_batch=get_batch, fresh=True,
                    vocab_size=20, block_size=16)
"""

RUBRIC = """
[check.shift]
points = 2
[fix.shift]
points = 1
[answers.curve]
accept = ["overfitting"]
[limits]
cpu_seconds = 2
wall_seconds = 15
memory_mb = 400
file_mb = 8
[grading]
seeds = 2
"""


def files(**contents: str) -> Callable[[Path], None]:
    """Return what writes a folder with these files; `check` is check_shift.py, and so on."""
    names = {"check": "check_shift.py", "fix": "fix_shift.py", "answers": "answers.json"}

    def write(path: Path) -> None:
        path.mkdir()
        for key, content in contents.items():
            (path / names.get(key, f"{key}.py")).write_text(content, encoding="utf-8")

    return write


def packed(contents: dict[str, str | bytes]) -> Callable[[Path], None]:
    """Return what writes a zip file with these members."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)

    return write


def raw(content: bytes) -> Callable[[Path], None]:
    """Return what writes a .zip file with these bytes."""
    return lambda path: path.with_suffix(".zip").write_bytes(content) and None


def _half_a_zip() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("check_shift.py", CHECK)
    return held.getvalue()[:-30]


RIGHT_ANSWER = json.dumps({"curve": "Overfitting"})

# name -> (what writes the submission, the score that it deserves of 4)
KINDS: dict[str, tuple[Callable[[Path], None], float]] = {
    "good": (files(check=CHECK, fix=FIX, answers=RIGHT_ANSWER), 4.0),
    "zipped": (packed({"ada/check_shift.py": CHECK, "ada/fix_shift.py": FIX}), 3.0),
    "notepad": (packed({"check_shift.py": b"\xef\xbb\xbf" + CHECK.encode()}), 2.0),
    "textbook": (files(check=TEXTBOOK, fix=FIX), 1.0 + 2.0 * 5 / 6),
    "too_strict": (files(check=TOO_STRICT, fix=FIX), 1.0),
    "wrong_fix": (files(fix=FIX.replace("places + 1", "places + 2")), 0.0),
    "empty": (files(), 0.0),
    "syntax_error": (files(check="def check(:", fix="x ="), 0.0),
    "raises": (files(check="1 / 0", fix="raise MemoryError"), 0.0),
    "exits": (files(check=CALLING + "    os._exit(0)", fix="import os; os._exit(0)"), 0.0),
    "loops": (files(check=CALLING + "    while True: pass", answers=RIGHT_ANSWER), 1.0),
    "sleeps": (files(check=CALLING + "    time.sleep(1e6)"), 0.0),
    "memory_bomb": (files(check=CALLING + "    x = [bytearray(2**26) for _ in range(99)]"), 0.0),
    "floods": (files(check=CALLING + "    while True: print('x' * 9999)"), 0.0),
    "forges": (
        files(
            check=CALLING + "    print('accepted'); os.write(3, b'accepted'); os._exit(0)",
            fix="import torch\nclass T(torch.Tensor): pass\n"
            "def implementation(data): return T(data), T(data)",
        ),
        0.0,
    ),
    "daemon": (
        files(check=CHECK + "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(1000)\n"),
        2.0,
    ),
    "escapes": (
        files(check=CALLING + "    raise ValueError('\\x1b[2J<script>=1+1')", answers="[NaN]"),
        0.0,
    ),
    "zip_bomb": (packed({"check_shift.py": b" " * 60_000_000}), 0.0),
    "zip_slip": (packed({"../../check_shift.py": CHECK, "fix_shift.py": FIX}), 1.0),
    "half_a_zip": (raw(_half_a_zip()), 0.0),
    "no_zip": (raw(b"PK\x03\x04 and nothing else"), 0.0),
}


def write_class(folder: Path, count: int) -> dict[str, float]:
    """Write `count` submissions; return the score that each student deserves."""
    folder.mkdir(parents=True)
    deserved = {}
    kinds = list(KINDS.items())
    for number in range(count):
        kind, (write, score) = kinds[number % len(kinds)]
        student = f"{kind}_{number:03d}"
        write(folder / student)
        deserved[student] = score
    return deserved
