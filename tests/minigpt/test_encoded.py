"""Stored ids: smallest safe type, exact reading, clear refusals."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from minigpt.encoded import EncodedMeta, ids_path, load_ids, read_meta, save_ids, storage_dtype


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_type_is_the_smallest_that_holds_every_id(
    vocab_size: int, dtype: str, tmp_path: Path
) -> None:
    """The largest id, V - 1, survives at each border; nothing wraps around to 0."""
    ids = torch.tensor([0, vocab_size - 1])
    save_ids(tmp_path / "ids.npy", ids, vocab_size=vocab_size)
    assert str(storage_dtype(vocab_size)) == dtype
    assert str(np.load(tmp_path / "ids.npy").dtype) == dtype
    loaded = load_ids(tmp_path / "ids.npy", vocab_size=vocab_size)
    assert loaded.dtype == torch.int64
    assert torch.equal(loaded, ids)


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_both_forms_read_back(suffix: str, tmp_path: Path) -> None:
    """Lists, arrays and tensors are written alike; the result can be written to."""
    for ids in ([3, 1, 2], np.array([3, 1, 2]), torch.tensor([3, 1, 2])):
        save_ids(tmp_path / f"ids{suffix}", ids, vocab_size=4)
        loaded = load_ids(tmp_path / f"ids{suffix}")
        assert loaded.tolist() == [3, 1, 2]
        loaded.zero_()
        assert load_ids(tmp_path / f"ids{suffix}").tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 4], r"0\.\.3, got 0\.\.4"),
        ([-1, 0], r"0\.\.3, got -1\.\.0"),
        ([], r"N >= 1, got \(0,\)"),
        ([[1]], r"got \(1, 1\)"),
        ([0.5], "whole numbers, got float64"),
        ("01", "got str"),
    ],
)
def test_unusable_ids_are_not_written(ids: list[int], message: str, tmp_path: Path) -> None:
    """What could not be read back right is refused, and the old file stays."""
    path = tmp_path / "ids.npy"
    save_ids(path, [1], vocab_size=4)
    with pytest.raises(ValueError, match=message):
        save_ids(path, ids, vocab_size=4)
    assert load_ids(path).tolist() == [1]
    with pytest.raises(ValueError, match=r"\.npy or \.pt"):
        save_ids(tmp_path / "ids.bin", [1], vocab_size=4)


def npy(array: object) -> bytes:
    """Return the bytes of a `.npy` file, pickled where the array holds objects."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (npy(range(100))[:-1], "truncated"),
        (npy(range(100))[:20], "truncated"),
        (npy(range(100)) + b"x", "1 bytes more"),
        (npy([1.0]), "whole numbers, got float64"),
        (npy([[1]]), r"got \(1, 1\)"),
        (npy([]), r"no readable|got \(0,\)"),
        (npy([-1]), "got -1"),
        (npy(np.array([{}], dtype=object)), "no readable"),
        (b"plain text", "no readable"),
        (npy([1]).replace(b"(1,)", b"(9**9,)"), "no readable"),
    ],
)
def test_damaged_array_names_path_and_remedy(content: bytes, message: str, tmp_path: Path) -> None:
    """Each kind of damage is a `ValueError` with the path and the command to run."""
    path = tmp_path / "train_ids.npy"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"train_ids\.npy .*({message}).*`python -m minigpt\.pre"):
        load_ids(path)


class Hostile:
    """Runs a command when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_pt_file_with_code_is_refused_unrun(tmp_path: Path) -> None:
    """A pickle that would run a function is refused, and the function does not run."""
    torch.save(Hostile(tmp_path / "marker"), tmp_path / "ids.pt")
    with pytest.raises(ValueError, match=r"ids\.pt is no readable .pt file"):
        load_ids(tmp_path / "ids.pt")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", [{"a": 1}, torch.tensor([0.5]), torch.tensor(1), "text"])
def test_pt_file_with_something_else(content: object, tmp_path: Path) -> None:
    """Only a 1-D tensor of whole numbers counts as ids."""
    torch.save(content, tmp_path / "ids.pt")
    with pytest.raises(ValueError, match=r"ids\.pt must .*minigpt\.prepare"):
        load_ids(tmp_path / "ids.pt")
    (tmp_path / "ids.pt").write_bytes((tmp_path / "ids.pt").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"ids\.pt is no readable"):
        load_ids(tmp_path / "ids.pt")


def test_vocabulary_is_checked_on_request(tmp_path: Path) -> None:
    """Ids of a larger vocabulary are found out when V is given."""
    save_ids(tmp_path / "ids.npy", [0, 9], vocab_size=10)
    with pytest.raises(ValueError, match=r"0\.\.8, got 0\.\.9"):
        load_ids(tmp_path / "ids.npy", vocab_size=9)


def test_missing_ids_name_path_and_command(tmp_path: Path) -> None:
    """Missing files say where they should be; a `.pt` stands in for a missing `.npy`."""
    with pytest.raises(FileNotFoundError, match=r"train_ids\.npy; .*`python -m minigpt\.prepare`"):
        load_ids(tmp_path / "train_ids.npy")
    with pytest.raises(FileNotFoundError, match=r"no train ids at .*train_ids\.npy; .*prepare"):
        ids_path(tmp_path, "train")
    save_ids(tmp_path / "train_ids.pt", [1], vocab_size=2)
    assert ids_path(tmp_path, "train") == tmp_path / "train_ids.pt"
    save_ids(tmp_path / "train_ids.npy", [1], vocab_size=2)
    assert ids_path(tmp_path, "train") == tmp_path / "train_ids.npy"


def test_card_reads_back(tmp_path: Path) -> None:
    """The card survives its JSON; a missing or damaged one is described."""
    meta = EncodedMeta(
        tokenizer_fingerprint="t",
        corpus_fingerprint="c",
        vocab_size=3,
        source="é",
        dtype="uint8",
        counts={"train": 1},
    )
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        read_meta(tmp_path)
    (tmp_path / "meta.json").write_text(meta.to_json(), encoding="utf-8")
    assert read_meta(tmp_path) == meta
    for damaged in ("", "[]", "{}", '{"source": 1}'):
        (tmp_path / "meta.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match=r"meta\.json is damaged .*minigpt\.prepare"):
            read_meta(tmp_path)


class Call:
    """Pickles as a call."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize("name", ["ids.pt", "ids.npy"])
def test_ids_that_hold_code_are_refused_without_advice_to_run_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line without torch's and NumPy's hint to load the file unsafely; nothing runs."""
    path = tmp_path / name
    if name.endswith(".pt"):
        torch.save(Call(), path)
    else:
        np.save(path, np.array([Call()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="nothing in it was executed") as caught:
        load_ids(path)
    assert "weights_only" not in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
    assert "executed\n" not in capsys.readouterr().out
