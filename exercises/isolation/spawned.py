"""A job in a process that was started for it alone: for systems that cannot fork.

It costs the seconds that loading torch takes, and reaches level L1: a process of its own, and a
time limit. The order comes on standard input, as one message of the wire.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from exercises.isolation import wire
from exercises.isolation.channel import Channel


def main() -> None:
    """Read the order, and run the job."""
    import torch

    torch.set_num_threads(1)
    order = wire.decode(sys.stdin.buffer.read)
    work = Path(order["scratch"]) / "work"
    from exercises.isolation import jobs, zygote

    zygote.fill(work, Path(order["folder"]) if order["folder"] else None)
    zygote.start_afresh(work, order["seed"])
    measures = {"limits": False, "closed": False, "namespaces": False}
    jobs.run(order["name"], order["arguments"], Channel(_connection(order)), measures)


def _connection(order: dict[str, Any]) -> socket.socket:
    if sys.platform == "win32":
        return socket.fromshare(bytes(order["connection"]))
    return socket.socket(fileno=order["connection"])
