"""The choice of a device: CUDA, then MPS, then the CPU."""

import pytest
import torch

from minigpt.device import describe_device, get_device


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
