"""Ctrl-C, SIGTERM or a closed terminal in a training run: finish the update, save, end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_noted(*, second_ends: bool = True) -> Iterator[threading.Event]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a flag: no update is cut in the middle.

    With `second_ends` the second one interrupts at once, for a user who does not want to wait.
    A process of torchrun may get one from the terminal and one from torchrun for the same Ctrl-C,
    and torchrun ends what takes longer than 30 seconds by itself. A closing terminal sends SIGHUP,
    often twice, so that one never counts as a second; `nohup` has it ignored, and so it stays.
    """
    requested = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield requested  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in numbers}
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN:
        before[hang_up] = signal.signal(hang_up, lambda number, frame: requested.set())

    def note(number: int, frame: object) -> None:
        requested.set()
        for each in numbers if second_ends else ():
            signal.signal(each, signal.default_int_handler)

    for number in numbers:
        signal.signal(number, note)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
