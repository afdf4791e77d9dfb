"""Choosing where to compute: CUDA, then MPS, then the CPU."""

from __future__ import annotations

import platform

import torch


def get_device() -> torch.device:
    """Return the first device that works on this machine: CUDA, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if mps_available():
        return torch.device("mps")
    return torch.device("cpu")


def mps_available() -> bool:
    """Return whether Apple's GPU backend can be used; False on builds that do not know it."""
    backend = getattr(torch.backends, "mps", None)  # absent from older and custom builds
    return backend is not None and bool(backend.is_available())


def find_device(name: str | None) -> torch.device:
    """Return the device of that name, or the best one for None; ValueError when it cannot be used.

    Puts one number there, because a device that is not built in, or not plugged in, shows only
    when it is used.
    """
    try:
        device = torch.device(name) if name is not None else get_device()
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120]
        raise ValueError(f"device {name} cannot be used here: {reason}; try cpu") from error
    return device


def describe_device(device: torch.device | str) -> str:
    """Return one line that names the device for a log, as in `cpu (x86_64, 2 threads)`."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"cpu ({platform.machine()}, {threads} thread{'s' if threads != 1 else ''})"
    return str(device)
