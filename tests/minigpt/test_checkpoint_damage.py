"""Truncated, flipped, foreign and hostile files give one exception, and run or take nothing."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from minigpt.checkpoint import (
    CheckpointConfigError,
    CheckpointCorruptError,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import make_optimizer
from minigpt.seed import random_states
from minigpt.tokenizer import CharTokenizer

CONFIG = MiniGPTConfig(vocab_size=5, block_size=4, embedding_dim=4, num_heads=2, num_layers=1)
TOKENIZER = CharTokenizer("abcd\n")
both_formats = pytest.mark.parametrize("suffix", [".safetensors", ".pt"])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a small complete checkpoint in both formats."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("healthy")
    model = MiniGPT(CONFIG)
    optimizer = make_optimizer(model, learning_rate=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = {"torch_cpu": random_states()["torch_cpu"][:64]}
    for suffix in (".safetensors", ".pt"):
        save_checkpoint(
            folder / f"a{suffix}", model, TOKENIZER, optimizer=optimizer, random_states=states
        )
    return {path.suffix: path.read_bytes() for path in folder.iterdir()}


def assert_corrupt(path: Path, content: bytes, *words: str) -> None:
    """Loading a file of that content must fail as corrupt, in these words among others."""
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError) as caught:
        load_checkpoint(path)
    for word in (str(path), "wanted", "found", *words):
        assert word in str(caught.value)


@both_formats
def test_every_truncation_is_noticed(
    tmp_path: Path, healthy: dict[str, bytes], suffix: str
) -> None:
    """No proper beginning of a checkpoint is one."""
    whole = healthy[suffix]
    near = [*range(20), *range(len(whole) - 20, len(whole))]
    for length in sorted({*near, *range(0, len(whole), 97)}):
        assert_corrupt(tmp_path / f"a{suffix}", whole[:length])


@both_formats
def test_bytes_after_the_end_are_noticed(
    tmp_path: Path, healthy: dict[str, bytes], suffix: str
) -> None:
    """Something appended makes it another file; a zip archive only tolerates what it can read."""
    if suffix == ".safetensors":
        assert_corrupt(tmp_path / "a.safetensors", healthy[suffix] + b"\0")
    else:
        assert_corrupt(tmp_path / "a.pt", healthy[suffix] + b"\0" * 70_000)


def test_every_flipped_bit_of_the_native_format_is_noticed(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """Length, header, digest, weights, states: 1,000 random bits and the first 256, one by one."""
    whole = healthy[".safetensors"]
    generator = random.Random(0)
    positions = {*range(256), *(generator.randrange(8 * len(whole)) for _ in range(1000))}
    for position in sorted(positions):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        assert_corrupt(tmp_path / "a.safetensors", bytes(damaged))


def test_a_flipped_bit_of_a_pt_file_is_noticed_or_without_effect(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """Zip checksums cover the content but not, for example, the padding: then nothing changes."""
    whole, path = healthy[".pt"], tmp_path / "a.pt"
    path.write_bytes(whole)
    expected = load_checkpoint(path)
    generator = random.Random(0)
    refused = 0
    for position in sorted(generator.randrange(8 * len(whole)) for _ in range(300)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            loaded = load_checkpoint(path)
        except CheckpointCorruptError:
            refused += 1
            continue
        assert (loaded.config, loaded.step) == (expected.config, expected.step)
        assert loaded.tokenizer_fingerprint == expected.tokenizer_fingerprint
        for name, tensor in expected.model.state_dict().items():
            assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert refused > 50


def test_flipped_bits_in_every_tensor_of_a_pt_file(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """Content is covered by checksums, which torch itself does not look at."""
    with zipfile.ZipFile(io.BytesIO(healthy[".pt"])) as archive:
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        contents = [archive.read(entry) for entry in entries]
    assert len(entries) > 20
    for content in contents:
        damaged = bytearray(healthy[".pt"])
        damaged[damaged.index(content)] ^= 1
        assert_corrupt(tmp_path / "a.pt", bytes(damaged))


@both_formats
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\0" * 1000,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"<!DOCTYPE html><html></html>",
        pickle.dumps({"a": 1}),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100_000) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 20_000) + b"[" * 20_000,
    ],
)
def test_foreign_files(tmp_path: Path, suffix: str, content: bytes) -> None:
    """Empty, text, a pointer of Git LFS, a pickle, absurd lengths: all are named corrupt."""
    assert_corrupt(tmp_path / f"a{suffix}", content)


def test_a_format_under_the_suffix_of_the_other(tmp_path: Path, healthy: dict[str, bytes]) -> None:
    """A renamed file is recognised; the native one under .pt at least refused."""
    assert_corrupt(tmp_path / "a.safetensors", healthy[".pt"], "rename it to .pt")
    assert_corrupt(tmp_path / "a.pt", healthy[".safetensors"])


def test_a_file_of_the_safetensors_library_is_not_a_checkpoint(tmp_path: Path) -> None:
    """It has no digest and no card."""
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"x": torch.ones(3)}, path)
    assert_corrupt(path, path.read_bytes(), "made by another program")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [0, 10**18, 10**18], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [1] * 1000 + [2], "data_offsets": [0, 8]},
        {"dtype": "X9", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F4", "shape": [4, 4], "data_offsets": [0, 8]},
        {"dtype": "F4", "shape": [16, 1], "data_offsets": [0, 8]},
        {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]},
        {"shape": [2]},
        None,
    ],
)
def test_claims_of_the_header_are_compared_with_the_file(tmp_path: Path, entry: Any) -> None:
    """Eight bytes of data are eight bytes, whatever the header says."""
    card = json.dumps({"sha256": "0" * 64})
    header = json.dumps({"__metadata__": {"card": card}, "model.x": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + b"\0" * 8
    assert_corrupt(tmp_path / "a.safetensors", content)


def rewrite_card(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the file again with another card and a right digest: an attacker can do that."""
    tensors = safetensors.torch.load(path.read_bytes())
    with safetensors.safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["card"])
    change(card)
    text = json.dumps({**card, "sha256": "0" * 64})
    version = card.get("format_version", 2)
    text = text.replace("0" * 64, digest_by_hand(text, tensors, version))
    safetensors.torch.save_file(tensors, path, {"card": text})


def digest_by_hand(card: str, tensors: dict[str, torch.Tensor], version: int = 2) -> str:
    """Return SHA-256 over one JSON text; in version 1 the bytes of all tensors came after it."""
    ordered = sorted(tensors.items())
    table: list[list[Any]] = [[name, str(t.dtype), list(t.shape)] for name, t in ordered]
    content = [bytes(tensor.flatten().view(torch.uint8).tolist()) for _, tensor in ordered]
    if version == 1:
        return hashlib.sha256(json.dumps([card, table]).encode() + b"".join(content)).hexdigest()
    for row, piece in zip(table, content, strict=True):
        row.append(zlib.crc32(piece))
    return hashlib.sha256(json.dumps([card, table]).encode()).hexdigest()


def test_a_card_written_again_without_a_change_is_accepted(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """The digest in the file is the one computed by hand, so that the tests below reach the card.

    The file is even the same byte for byte: equal contents give equal files.
    """
    path = tmp_path / "a.safetensors"
    path.write_bytes(healthy[".safetensors"])
    rewrite_card(path, lambda card: None)
    load_and_restore(path)
    assert path.read_bytes() == healthy[".safetensors"]


def test_a_file_of_the_first_version_loads_and_its_flipped_bits_are_noticed(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """Format 1 differs in its digest only: the bytes of the tensors are in it themselves."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(healthy[".safetensors"])
    expected = load_checkpoint(path)
    rewrite_card(path, lambda card: card.update(format_version=1))
    whole = path.read_bytes()
    loaded = load_checkpoint(path)
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    generator = random.Random(1)
    for position in (generator.randrange(8 * len(whole)) for _ in range(200)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        assert_corrupt(path, bytes(damaged))


def load_and_restore(path: Path) -> None:
    """Use everything that a checkpoint has."""
    loaded = load_checkpoint(path)
    loaded.restore_optimizer(make_optimizer(loaded.model, learning_rate=0.1))


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["config"].update(vocab_size=10**12),
        lambda card: card["config"].update(embedding_dim=10**30),
        lambda card: card["config"].update(num_layers=10**9),
        lambda card: card["config"].update(block_size=10**400),
        lambda card: card["config"].update(vocab_size="5"),
        lambda card: card["config"].update(vocab_size=-5),
        lambda card: card["config"].update(dropout=float("nan")),
        lambda card: card["config"].clear(),
        lambda card: card.update(config=[]),
        lambda card: card.update(step=-1),
        lambda card: card.update(step="many"),
        lambda card: card.update(step=None),
        lambda card: card.update(train_loss="low"),
        lambda card: card.update(chars=["ab"]),
        lambda card: card.update(chars=["a", "a"]),
        lambda card: card.update(chars=5),
        lambda card: card.update(chars=["x", "y"]),
        lambda card: card.update(tokenizer_fingerprint="0" * 64),
        lambda card: card.update(tokenizer_fingerprint=7),
        lambda card: card.update(tied={"head.weight": "nothing"}),
        lambda card: card.update(tied={"nowhere.weight": "head.weight"}),
        lambda card: card.update(tied={"head.weight": []}),
        lambda card: card.update(tied={"head.weight": "final_norm.weight"}),
        lambda card: card.update(optimizer=[]),
        lambda card: card.update(optimizer={"param_groups": 3, "values": {}}),
        lambda card: card.update(optimizer={"param_groups": [], "values": {"x": 1}}),
        lambda card: card.update(optimizer_parameters=[1]),
        lambda card: card.update(optimizer_parameters="abc"),
        lambda card: card.update(format_version=3),
        lambda card: card.update(format_version=[2]),
        lambda card: card.update(format="other"),
        lambda card: card.clear(),
    ],
)
def test_a_card_with_nonsense_and_a_right_digest(
    tmp_path: Path, healthy: dict[str, bytes], change: Callable[[dict[str, Any]], object]
) -> None:
    """A CheckpointError on loading or restoring, whatever an attacker writes into the card."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(healthy[".safetensors"])
    rewrite_card(path, change)
    with pytest.raises(CheckpointError):
        load_and_restore(path)


def test_an_absurd_configuration_is_called_corrupt(
    tmp_path: Path, healthy: dict[str, bytes]
) -> None:
    """A vocabulary of 10**12 in a file of some kilobytes is damage, not an architecture."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(healthy[".safetensors"])
    rewrite_card(path, lambda card: card["config"].update(vocab_size=10**12))
    with pytest.raises(CheckpointCorruptError, match=r"wanted 8e\+12 weights"):
        load_checkpoint(path)


class Attack:
    """A pickle of it calls a function of the attacker's choice."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def guide_dictionary(**changes: Any) -> dict[str, Any]:
    """Return what the guide saves, with changes."""
    torch.manual_seed(0)
    return {
        "config": CONFIG.to_dict(),
        "model_state_dict": MiniGPT(CONFIG).state_dict(),
        "optimizer_state_dict": None,
        "step": 1,
        "tokenizer_fingerprint": TOKENIZER.fingerprint,
    } | changes


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    """The file that the code would create is not there; the message names the call."""
    trace = tmp_path / "executed"
    path = tmp_path / "a.pt"
    torch.save(guide_dictionary(extra=Attack(Path.write_text, trace, "x")), path)
    assert_corrupt(path, path.read_bytes(), "not executed")
    torch.save(guide_dictionary(extra=Attack(exec, f"open({str(trace)!r}, 'w')")), path)
    assert_corrupt(path, path.read_bytes(), "exec", "not executed")
    torch.save(guide_dictionary(extra=Attack(exec, "")), path, pickle_protocol=4)
    assert_corrupt(path, path.read_bytes(), "not executed")
    path.write_bytes(pickle.dumps(Attack(exec, f"open({str(trace)!r}, 'w')")))
    assert_corrupt(path, path.read_bytes(), "a bare pickle")
    assert not trace.exists()


@pytest.mark.parametrize("attack", [(bytearray, 10**15), (torch.Tensor, 10**7, 10**7)])
def test_calls_that_only_take_memory_are_refused(tmp_path: Path, attack: tuple[Any, ...]) -> None:
    """With weights_only torch allows these calls; here nothing is called."""
    path = tmp_path / "a.pt"
    torch.save(guide_dictionary(extra=Attack(*attack)), path)
    assert_corrupt(path, path.read_bytes(), "not executed")


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    """Compression is never used by torch.save: 50 MB in 50 KB are not unpacked."""
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\0" * 50_000_000)
    assert_corrupt(path, path.read_bytes(), "would unpack to 50,000,000")


def test_tensors_larger_than_the_file_are_not_copied(tmp_path: Path) -> None:
    """Four bytes can be expanded to any shape; here to 4 TB, in weights, states and optimizer."""
    path = tmp_path / "a.pt"
    bomb = torch.zeros(1).expand(10**6, 10**6)
    places: list[dict[str, Any]] = [
        {"model_state_dict": {"head.weight": bomb}},
        {"random_states": {"torch_cpu": bomb}},
        {"optimizer_state_dict": {"state": {0: {"exp_avg": bomb}}, "param_groups": []}},
    ]
    for place in places:
        torch.save(guide_dictionary(**place), path)
        assert_corrupt(path, path.read_bytes(), "more than the file has")


def test_values_that_grow_when_they_are_walked_are_refused(tmp_path: Path) -> None:
    """A list of ten times the same list, twenty times over, has 10**20 entries."""
    value: Any = 0
    for _ in range(20):
        value = [value] * 10
    path = tmp_path / "a.pt"
    for name in ("trainer_state", "config"):
        torch.save(guide_dictionary(**{name: {"a": value}}), path)
        assert_corrupt(path, path.read_bytes(), "more values than a checkpoint has")


@pytest.mark.parametrize(
    "changes",
    [
        {"config": "small"},
        {"config": CONFIG.to_dict() | {"vocab_size": 10**12}},
        {"config": CONFIG.to_dict() | {"num_layers": [1]}},
        {"model_state_dict": None},
        {"model_state_dict": {"head.weight": 1}},
        {"model_state_dict": {}},
        {"optimizer_state_dict": {"state": {}}},
        {"optimizer_state_dict": 5},
        {"step": "one"},
        {"step": torch.ones(1)},
        {"tokenizer_fingerprint": 5},
        {"trainer_state": 5},
        {"random_states": 5},
    ],
)
def test_a_dictionary_with_nonsense(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Each is a CheckpointError that names the file."""
    torch.save(guide_dictionary(**changes), tmp_path / "a.pt")
    with pytest.raises((CheckpointCorruptError, CheckpointConfigError), match=r"a\.pt"):
        load_checkpoint(tmp_path / "a.pt")


def test_hostile_files_take_no_memory(tmp_path: Path, healthy: dict[str, bytes]) -> None:
    """Under a limit of 4 GB the absurd configuration ends in the documented exception."""
    pytest.importorskip("resource")
    native, guide = tmp_path / "a.safetensors", tmp_path / "a.pt"
    native.write_bytes(healthy[".safetensors"])
    rewrite_card(native, lambda card: card["config"].update(vocab_size=10**12))
    config = CONFIG.to_dict() | {"vocab_size": 10**12}
    torch.save(guide_dictionary(config=config), guide)
    program = (
        "import resource, sys, minigpt.checkpoint as c\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))\n"
        "for path in sys.argv[1:]:\n"
        "    try: c.load_checkpoint(path)\n"
        "    except c.CheckpointCorruptError: print('refused')\n"
    )
    command = [sys.executable, "-c", program, str(native), str(guide)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "refused\n" * 2, result.stderr
