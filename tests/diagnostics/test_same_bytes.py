"""Equal reports of two processes: other hash seeds and folders, other addresses, equal bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGET = """
import copy
from pathlib import Path

import torch

from tests.diagnostics.tiny import TinyGPT
from tests.diagnostics.whole import BLOCK, TOKENIZER, Whole


class Tied(TinyGPT):
    def __init__(self):
        super().__init__(V=TOKENIZER.vocab_size, block=BLOCK, tied=True)
        self.blocks[1].norm1, self.blocks[1].norm2 = self.blocks[0].norm1, self.blocks[0].norm2


def load_state(path):
    model, optimizer, step = Whole(Tied).load_state(path)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    model.blocks[1].norm1 = copy.deepcopy(model.blocks[1].norm1)
    model.blocks[1].norm2 = copy.deepcopy(model.blocks[1].norm2)
    return model, optimizer, step


def evaluate(model, ids):
    raise RuntimeError(f"cannot read {object()!r}, {{1, 2}}, {evaluate}")


def load(path):
    raise FileNotFoundError(2, "No such file", str(path))


def build():
    return Whole(Tied).pipeline(Path(), load_state=load_state, evaluate=evaluate, load=load)
"""
CHECKS = (
    *("files", "roundtrip", "fingerprint", "range", "text", "split", "shift", "batches", "modes"),
    *("shapes", "forward_hooks", "initial_loss", "causal_independence", "gradients", "optimizer"),
    *("training_step", "evaluation", "checkpoint", "resume"),
)


def _report(folder: Path, hash_seed: int) -> bytes:
    folder.mkdir()
    (folder / "target.py").write_text(TARGET, encoding="utf-8")
    command = [sys.executable, "-m", "diagnostics", "--target", "target.py:build"]
    done = subprocess.run(
        [*command, "--only", *CHECKS, "--json", "r.json"],
        cwd=folder,
        env=os.environ
        | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return (folder / "r.json").read_bytes()


def _results(raw: bytes) -> dict[str, Any]:
    return {result["check"]: result for result in json.loads(raw)["results"]}


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """What user code raises quotes addresses and folders; of several lost ties one is named."""
    one = _report(tmp_path / "here", 3)
    other = _report(tmp_path / "another folder", 5)
    assert one == other
    digests = [value for name, value in json.loads(one)["subject"].items() if "sha256" in name]
    assert len(digests) == 3
    assert None not in digests
    results = _results(one)
    assert "<object object at 0x...>" in results["evaluation"]["claim"]
    assert "'<temporary>/" in results["checkpoint"]["claim"]
    assert results["resume"]["reason"] == "resume.untied"
