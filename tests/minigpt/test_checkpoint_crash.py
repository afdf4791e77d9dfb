"""Whatever stops a save, the last good checkpoint is still there, whole."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minigpt.checkpoint import load_checkpoint, save_checkpoint
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.tokenizer import CharTokenizer

CONFIG = MiniGPTConfig(vocab_size=5, block_size=4, embedding_dim=4, num_heads=2, num_layers=1)
TOKENIZER = CharTokenizer("abcd\n")
SUFFIXES = [".safetensors", ".pt"]
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)

# Each child saves step 1, 2, 3 ... over one another until it is killed. All weights of a file are
# its step. Children are forked, because importing torch takes longer than the whole test.
SAVE_AND_KILL = """
import os, signal, sys, time
import torch
from minigpt import CharTokenizer, MiniGPT, MiniGPTConfig, save_checkpoint
torch.set_num_threads(1)
model = MiniGPT(MiniGPTConfig(100, 32, 128, 4, 4))
tokenizer = CharTokenizer("abc")

def save_forever(path):
    step = 0
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        save_checkpoint(path, model, tokenizer, step=step)

for attempt, path in enumerate(sys.argv[1:]):
    child = os.fork()
    if child == 0:
        save_forever(path)
    while not os.path.exists(path):
        time.sleep(0.001)
    time.sleep(0.011 * attempt)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@both_formats
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, call: str
) -> None:
    """ENOSPC while the bytes are forced out, or while the name changes: nothing is lost."""
    path = tmp_path / f"a{suffix}"
    save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, step=1)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, step=2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    """A real limit of the system: no file of that process may grow beyond 3,000 bytes."""
    pytest.importorskip("resource")
    paths = [tmp_path / f"a{suffix}" for suffix in SUFFIXES]
    for path in paths:
        save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, step=1)
    before = [path.read_bytes() for path in paths]
    assert min(map(len, before)) > 3000
    program = (
        "import resource, signal, sys\n"
        "from minigpt import CharTokenizer, load_checkpoint, save_checkpoint\n"
        "model = load_checkpoint(sys.argv[1]).model\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "for path in sys.argv[1:]:\n"
        "    try: save_checkpoint(path, model, CharTokenizer('abcd'), step=2)\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    command = [sys.executable, "-c", program, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "File too large\n" * 2, result.stderr
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@both_formats
def test_a_folder_that_cannot_be_made(tmp_path: Path, suffix: str) -> None:
    """Where a file stands in the way of the folder the error is an OSError that names it."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        save_checkpoint(tmp_path / f"file/a{suffix}", MiniGPT(CONFIG), TOKENIZER)
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(OSError, match="folder"):
        save_checkpoint(tmp_path / f"folder{suffix}", MiniGPT(CONFIG), TOKENIZER)
    with pytest.raises(OSError, match="folder"):
        load_checkpoint(tmp_path / f"folder{suffix}")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    """PermissionError, and the old file is as it was."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, step=1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            save_checkpoint(path, MiniGPT(CONFIG), TOKENIZER, step=2)
    finally:
        tmp_path.chmod(0o700)
    assert load_checkpoint(path).step == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_while_saving(tmp_path: Path) -> None:
    """Killed at eight moments, each file is whole: all its weights are those of its step."""
    paths = [tmp_path / f"{n}/a{SUFFIXES[n % 2]}" for n in range(8)]
    subprocess.run([sys.executable, "-c", SAVE_AND_KILL, *map(str, paths)], check=True)
    for path in paths:
        loaded = load_checkpoint(path)
        assert loaded.step >= 1
        for parameter in loaded.model.parameters():
            assert torch.equal(parameter, torch.full_like(parameter, loaded.step))
