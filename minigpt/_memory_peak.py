"""A meter for the most bytes alive, phase by phase, on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

MARK = "minigpt memory "  # begins the names of our own events in the profiler's record
MEMORY_EVENT = "[memory]"  # the profiler's name for an allocation, or a release, of so many bytes


class PeakMeter:
    """Fills `peaks`: phase -> the most bytes alive in it.

    Phases of an update change by hooks: "forward" when the model is called, "backward" when it has
    answered, "update" before the optimizer's step. `mark` begins any other.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peaks: dict[str, int] = {}
        self.resident: int | None = None  # the peak of the process before the profiler is started
        self._phase = "start"

    @contextmanager
    def watch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, steady: int
    ) -> Iterator[None]:
        """Measure what happens inside; `steady` bytes were alive before, on the CPU unseen."""
        hooks: list[Any] = []
        if optimizer is not None:
            hooks = [
                model.register_forward_pre_hook(lambda *_: self._mark_training(model, "forward")),
                model.register_forward_hook(lambda *_: self._mark_training(model, "backward")),
                optimizer.register_step_pre_hook(lambda *_: self.mark("update")),
            ]
        try:
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
                yield
                self.mark("end")
            else:
                with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                    yield
                self._read(profiler, steady)
        finally:
            for hook in hooks:
                hook.remove()
        self.peaks.pop("start", None)

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        if self.device.type == "cuda":
            highest = torch.cuda.max_memory_allocated(self.device)
            self.peaks[self._phase] = max(highest, self.peaks.get(self._phase, 0))
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with record_function(MARK + phase):
                pass
        self._phase = phase

    def _mark_training(self, model: nn.Module, phase: str) -> None:
        if model.training:  # an evaluation is a phase of its own
            self.mark(phase)

    def _read(self, profiler: profile, steady: int) -> None:
        """Add up allocations and releases in the order of time."""
        results: Any = profiler.profiler
        events = results.kineto_results.events()
        ours = [e for e in events if e.name() == MEMORY_EVENT or e.name().startswith(MARK)]
        alive, phase = steady, "start"
        for event in sorted(ours, key=lambda event: event.start_ns()):
            if event.name() != MEMORY_EVENT:
                phase = event.name().removeprefix(MARK)
            else:
                alive += event.nbytes()
            self.peaks[phase] = max(alive, self.peaks.get(phase, 0))
