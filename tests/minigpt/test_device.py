"""The choice of a device: CUDA, then MPS, then the CPU."""

import pytest
import torch

from minigpt.device import describe_device, find_device, get_device


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_order_of_choice(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first device that works is taken."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert get_device() == torch.device(expected)


def test_build_without_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that does not know MPS still gives the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delattr(torch.backends, "mps")
    assert get_device() == torch.device("cpu")


def test_description_names_device_and_threads() -> None:
    """A log line says what was computed on."""
    threads = torch.get_num_threads()
    assert describe_device("cpu").startswith("cpu (")
    assert f"{threads} thread" in describe_device(torch.device("cpu"))
    assert describe_device("meta") == "meta"


def test_a_device_that_is_not_here_is_a_value_error() -> None:
    """An unknown name and a device of another machine say so, with what to do."""
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"device nonsense cannot be used here: .*; try cpu"):
        find_device("nonsense")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device cuda cannot be used here: .*; try cpu"):
            find_device("cuda")
