"""What this machine computes fastest: measured in a moment before a run, not guessed from names.

Two chips with the same number of cores differ by a factor of 15 in what bfloat16 costs them. So
the choice is a measurement, and because it changes the last bits of every product, a run that has
made it keeps it: the result is a setting of the run, stored in its checkpoints.

Shapes: N rows (B * T tokens), C embedding_dim.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from minigpt.model import FeedForward, MiniGPTConfig

ROUNDS_MIN, ROUNDS_MAX = 3, 41  # pairs of runs; the median of their ratios counts
SECONDS_MAX = 0.3  # of a trial, once it has its fewest pairs
ROWS_MAX = 128  # enough for products at nearly full speed
GAIN = 0.9  # a choice that saves less than a tenth is noise
# "medium" may use fewer bits. oneDNN's float32 has 1 to 3 times the rounding error of MKL's, TF32
# and bfloat16 have 1,000 and 10,000 times as much: 8 tells them apart on any chip.
ERROR_FACTOR = 8.0
ERROR_WIDTH = 150  # of the reason that torch gives, which may be a page long


@dataclass(frozen=True, kw_only=True)
class MatmulTrial:
    """What `set_float32_matmul_precision` is best set to, and what was measured for it."""

    precision: str  # "highest" or "medium"
    changes_bits: bool  # whether the two differ at all on this chip
    seconds_ratio: float  # medium / highest
    error_ratio: float  # medium / highest, against float64


def try_matmul_precision(config: MiniGPTConfig, row_count: int) -> MatmulTrial:
    """Return "medium" where the CPU's products are faster that way and as accurate.

    row_count: tokens in a batch, B * T. The global setting is left as it was.
    """
    layer, x = _make_layer(config, row_count)
    plain, plain_error = _product_and_error("highest")
    medium, medium_error = _product_and_error("medium")
    if torch.equal(plain, medium):  # the setting changes nothing on this chip
        return MatmulTrial(
            precision="highest", changes_bits=False, seconds_ratio=1.0, error_ratio=1.0
        )
    seconds_ratio = _paired_ratio(
        _pass(layer, x, lambda: matmul_precision("medium")),
        _pass(layer, x, lambda: matmul_precision("highest")),
    )
    error_ratio = medium_error / plain_error
    gains = seconds_ratio <= GAIN and error_ratio <= ERROR_FACTOR  # a NaN gains nothing
    return MatmulTrial(
        precision="medium" if gains else "highest",
        changes_bits=True,
        seconds_ratio=seconds_ratio,
        error_ratio=error_ratio,
    )


def bfloat16_seconds_ratio(config: MiniGPTConfig, row_count: int) -> float:
    """Return time under bfloat16 autocast / time in float32 of the CPU's products.

    Measured on the feed-forward layer of the run, forward and backward. Above 1 autocast loses:
    on chips without bfloat16 arithmetic, and on models whose time goes into other things.
    """
    layer, x = _make_layer(config, row_count)
    autocast = _pass(layer, x, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    return _paired_ratio(autocast, _pass(layer, x, nullcontext))


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Set torch's `float32_matmul_precision` inside the block, for products of any thread."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compile_problem(device: torch.device) -> str | None:
    """Return why `torch.compile` does not work here, or None; compiles two operators to find out.

    A C++ compiler, its headers, Triton for a GPU, a Python that torch can trace: asking for each
    would be a longer list than trying, and still not complete.
    """
    try:
        torch.compile(_double_and_add, dynamic=False)(torch.ones(8, device=device))
    except Exception as error:  # its class depends on what is missing
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reasons = [line for line in lines if not line.endswith("raised:")]  # the next line says it
        return (reasons or lines or [type(error).__name__])[0][:ERROR_WIDTH]
    return None


def compile_model(model: nn.Module) -> nn.Module:
    """Return a compiled form of `model` that shares its parameters; it compiles at its first call.

    Train through what is returned. Save and evaluate `model`: it keeps the plain names, and
    no shape of an evaluation makes it compile again.
    """
    return cast("nn.Module", torch.compile(model))


def _double_and_add(x: Tensor) -> Tensor:
    return x * 2 + 1


def _make_layer(config: MiniGPTConfig, row_count: int) -> tuple[nn.Module, Tensor]:
    """Return a feed-forward layer of the run's size and (N, C) input for it."""
    with torch.random.fork_rng(devices=[]):  # a trial must not change what the run draws
        torch.manual_seed(0)
        x = torch.randn(min(row_count, ROWS_MAX), config.embedding_dim, requires_grad=True)
        return FeedForward(config).float(), x


def _pass(
    layer: nn.Module, x: Tensor, precision: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], None]:
    def run() -> None:
        with precision():
            total = layer(x).float().sum()
            torch.autograd.grad(total, [x, *layer.parameters()])

    return run


def _paired_ratio(run: Callable[[], None], other: Callable[[], None]) -> float:
    """Return the median of seconds of `run` / seconds of `other`, made in turns.

    The median, because other programs slow down single runs of either by any factor.
    """
    run()
    other()
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < ROUNDS_MIN or (
        len(ratios) < ROUNDS_MAX and time.perf_counter() - start < SECONDS_MAX
    ):
        ratios.append(_seconds(run) / _seconds(other))
    return statistics.median(ratios)


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _product_and_error(precision: str) -> tuple[Tensor, float]:
    """Return a 384-long product in that precision, and its error relative to its size."""
    left, right = torch.randn(2, 384, 384, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    with matmul_precision(precision):
        product = left @ right
    return product, float((product.double() - exact).norm() / exact.norm())
