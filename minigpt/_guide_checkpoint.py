"""The `.pt` format of the course guide: a dictionary written by torch.save.

`config`, `model_state_dict`, `optimizer_state_dict`, `step` and `tokenizer_fingerprint` are always
there; files of ours add the losses and what an exact resume needs. Plain torch reads them with
`torch.load(path, weights_only=True)`.

A `.pt` file is a zip archive with a pickle in it, and a pickle is a program: it can call any
function, and an archive can unpack to any size. So a file is looked at before it is loaded: no
compression, checksums right, and no call but those that rebuild tensors. The tensors are then
copied out of the file, as far as their sizes are possible ones.
"""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from minigpt._checkpoint_contents import LOSSES, Contents, check_types, find_tied
from minigpt._checkpoint_errors import CheckpointConfigError, CheckpointError, corrupt

PICKLE_LIMIT = 64_000_000  # bytes; the program of a checkpoint with 10,000 tensors takes about 2 MB
NODE_LIMIT = 300_000  # plain values; walking them takes about a second
STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
REBUILDERS = frozenset(
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        *(f"torch {kind}Storage" for kind in STORAGES),
    }
)
OPTIONAL = (
    *LOSSES,
    "corpus_fingerprint",
    "optimizer_class",
    "optimizer_parameters",
    "trainer_state",
    "random_states",
    "versions",
)


def write_guide(file: BinaryIO, contents: Contents) -> None:
    """Write the guide's dictionary to a new file.

    Raises ValueError for a trainer state of more values than `read_guide` would read.
    """
    _Copier(0).plain(contents.trainer_state)
    content: dict[str, Any] = {
        "config": contents.config,
        "model_state_dict": contents.weights,
        "optimizer_state_dict": contents.optimizer_state,
        "step": contents.step,
        "tokenizer_fingerprint": contents.tokenizer_fingerprint,
    }
    optional = {name: getattr(contents, name) for name in OPTIONAL}
    content |= {name: value for name, value in optional.items() if value is not None}
    # Through memory: torch turns a full disk into a RuntimeError that does not say so.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    file.write(buffer.getbuffer())


def read_guide(path: str | os.PathLike[str]) -> Contents:
    """Read a dictionary of the guide's form. Errors as load_checkpoint; executes nothing."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            _inspect(file, path, size)
        except (CheckpointError, OSError):
            raise
        except Exception as error:  # zipfile and pickletools raise many kinds on damaged bytes
            raise _unreadable(path, error) from None
    try:
        # mmap: with it, a tensor larger than its bytes is an error in every version of torch.
        content = torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # so does torch's reader
        raise _unreadable(path, error) from None
    if not isinstance(content, dict) or not {"config", "model_state_dict"} <= content.keys():
        raise _not_the_guide(path, content)
    try:
        contents = _to_contents(content, byte_limit=2 * size)  # 2: tied weights are copied twice
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise _unreadable(path, error) from None
    check_types(contents, path)
    return contents


def _inspect(file: BinaryIO, path: str | os.PathLike[str], size: int) -> None:
    """Raise CheckpointCorruptError unless the archive is whole and its program harmless."""
    wanted = "a .pt file of torch.save"
    if size == 0:
        raise corrupt(path, wanted=wanted, found="an empty file")
    start = file.read(2)
    if not zipfile.is_zipfile(file):
        found = "no zip archive: the file is truncated, damaged or of another kind"
        if start[:1] == b"\x80":
            found = "a bare pickle (pickle.dump, or torch before 1.6), which could run any code"
        raise corrupt(path, wanted=wanted, found=found)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if compressed or unpacked > size:
            found = f"an archive of {size:,} bytes that would unpack to {unpacked:,}"
            raise corrupt(path, wanted=f"{wanted}, which is never compressed", found=found)
        programs = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(programs) != 1 or programs[0].file_size > PICKLE_LIMIT:
            found = "an archive without a usable data.pkl"
            raise corrupt(path, wanted=wanted, found=found)
        damaged = archive.testzip()
        if damaged is not None:
            raise corrupt(path, wanted="right checksums", found=f"a wrong one for {damaged[:80]}")
        for operation, argument, _ in pickletools.genops(archive.read(programs[0])):
            calls = operation.name in {"STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
            if calls or (operation.name == "GLOBAL" and argument not in REBUILDERS):
                name = str(argument).replace(" ", ".")[:80] if argument else operation.name
                raise corrupt(
                    path,
                    wanted="tensors and plain values only",
                    found=f"a pickle that calls {name}; it was refused and not executed",
                    remedy="have its author save plain values: numbers with .item(), the "
                    "configuration as a dict, the model as model.state_dict()",
                )


def _to_contents(content: Mapping[str, Any], *, byte_limit: int) -> Contents:
    """Copy everything out of the mapped file, at most `byte_limit` bytes of tensors."""
    copy = _Copier(byte_limit)
    weights = dict(content["model_state_dict"])
    optimizer_state = content.get("optimizer_state_dict")
    if optimizer_state is not None:
        optimizer_state = {
            "state": {i: copy.mixed(values) for i, values in optimizer_state["state"].items()},
            "param_groups": copy.plain(optimizer_state["param_groups"]),
        }
    random_states = content.get("random_states")
    optional = {
        name: copy.plain(content[name])
        for name in OPTIONAL
        if content.get(name) is not None and name != "random_states"
    }
    return Contents(
        config=copy.plain(content["config"]),
        weights={str(name): copy.tensor(tensor) for name, tensor in weights.items()},
        tied=find_tied(weights),
        tokenizer_fingerprint=copy.plain(content.get("tokenizer_fingerprint")),
        step=copy.plain(content.get("step", 0)),
        optimizer_state=optimizer_state,
        random_states=None if random_states is None else copy.mixed(random_states),
        **optional,
    )


class _Copier:
    """Copies values out of a file, within limits: one small tensor can claim any shape."""

    def __init__(self, byte_limit: int) -> None:
        self._bytes_left = byte_limit
        self._nodes_left = NODE_LIMIT

    def tensor(self, value: Any) -> Tensor:
        """Return a contiguous copy in memory of its own."""
        if not isinstance(value, Tensor):
            raise TypeError(f"wanted a tensor, got {type(value).__name__}")
        self._bytes_left -= value.numel() * value.element_size()
        if self._bytes_left < 0:
            raise ValueError(f"a tensor claims shape {tuple(value.shape)}, more than the file has")
        return value.detach().clone(memory_format=torch.contiguous_format)

    def mixed(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a dictionary of tensors and plain values."""
        return {
            key: self.tensor(value) if isinstance(value, Tensor) else self.plain(value)
            for key, value in values.items()
        }

    def plain(self, value: Any) -> Any:
        """Return nested dictionaries, lists, texts and numbers; TypeError for anything else."""
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise ValueError("more values than a checkpoint has")
        if isinstance(value, dict):
            return {key: self.plain(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(inner) for inner in value)
        if value is None or isinstance(value, (str, int, float)):
            return value
        raise TypeError(f"wanted plain values, got a {type(value).__name__}")


def _unreadable(path: str | os.PathLike[str], error: Exception) -> CheckpointError:
    what = " ".join(str(error).split())[:160]
    found = f"{type(error).__name__}: {what}"
    return corrupt(path, wanted="a checkpoint dictionary of torch.save", found=found)


def _not_the_guide(path: str | os.PathLike[str], content: object) -> CheckpointConfigError:
    found = f"a {type(content).__name__}"
    if isinstance(content, dict):
        names = [str(name)[:40] for name in list(content)[:4] if isinstance(name, str)]
        found = f"a dictionary of {len(content)} entries ({', '.join(names)} ...)"
    return CheckpointConfigError(
        f"{os.fspath(path)} must be a dictionary with `config` and `model_state_dict`, got {found};"
        " without the configuration no model can be built for the weights. If they are a bare "
        "state dict, make the model yourself and use minigpt.checkpoint.load_weights"
    )
