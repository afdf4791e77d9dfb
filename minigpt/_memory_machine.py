"""How much memory there is, and sizes as people write them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

UNITS = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
MEMINFO = Path("/proc/meminfo")
CONTROL_GROUPS = (  # limit and use of a container: version 2, then version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as 8GiB, 500MB or 1.5 GiB. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise ValueError(f"a size is a number and a unit, as in 8GiB or 500MB, got {text!r}")
    size = int(float(found[1]) * units[found[2].lower()])
    if size < 1:
        raise ValueError(f"a size must be at least one byte, got {text!r}")
    return size


def format_bytes(count: int) -> str:
    """Return the size in the unit that keeps it short, as in 41.2 MiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= 0.995 * UNITS[unit]:
            return f"{count / UNITS[unit]:,.1f} {unit}"
    return f"{count} B"


def available_bytes(device: str) -> int | None:
    """Return the memory that is free for a new process on the device; None if nobody says."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None
    readers = {"linux": _linux_bytes, "darwin": _mac_bytes, "win32": _windows_bytes}
    reader = readers.get(sys.platform)
    return reader() if reader is not None else None


def _linux_bytes() -> int | None:
    """Return what the kernel can give without swapping, and a container's limit leaves."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    free = [int(found[1]) * 1024] if found else []
    for limit_path, used_path in CONTROL_GROUPS:
        try:
            limit, used = limit_path.read_text("ascii"), used_path.read_text("ascii")
            free.append(max(0, int(limit) - int(used) + _idle_cache_bytes(limit_path)))
        except (OSError, ValueError):  # not there, or "max": no limit
            continue
    return min(free, default=None)


def _idle_cache_bytes(limit_path: Path) -> int:
    """Return what a container's use counts of files, and the kernel gives up when asked to.

    As Kubernetes and Docker do: use less inactive files. With it, whoever has read a large corpus
    would be told that nothing fits.
    """
    try:
        text = limit_path.with_name("memory.stat").read_text("ascii")
    except (OSError, ValueError):
        return 0
    found = re.findall(r"^(?:total_)?inactive_file (\d+)$", text, re.MULTILINE)
    return max(map(int, found), default=0)


def _mac_bytes() -> int | None:
    """Return the pages that are free, or that files can do without."""
    try:
        said = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    page = re.search(r"page size of (\d+) bytes", said)
    kinds = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d+)\.", said, re.MULTILINE)
    return int(page[1]) * sum(map(int, kinds)) if page and kinds else None


def _windows_bytes() -> int | None:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((f"size_{index}", ctypes.c_ulonglong) for index in range(7)),
        )

    status = Status(length=ctypes.sizeof(Status))
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.size_1)  # total, then available
