"""Every injected bug is named by its check, on at least three architectures; see `self_test`.

This is the mutation test of the checks: one that no longer sees a bug of its own fails here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, self_test
from diagnostics._catalog import CATALOG
from diagnostics._self_test import INJECTIONS, Outcome
from exercises._lab import Lab
from tests.diagnostics.architectures import Llama, OffsetGPT, SineGPT, StateSpace
from tests.diagnostics.tiny import Convolution, Recurrent, TinyGPT
from tests.diagnostics.whole import BLOCK, ROWS, TOKENIZER, Whole

V, C = TOKENIZER.vocab_size, 16


def _dropping(model: nn.Module, name: str = "embedding") -> nn.Module:
    """Drop out a tenth of the embedded tokens, so that the mode matters."""
    setattr(model, name, nn.Sequential(getattr(model, name), nn.Dropout(0.1)))
    return model


def _tied(model: nn.Module, name: str) -> nn.Module:
    """Make the table of the embedding the matrix of the head as well."""
    model.head.weight = getattr(model, name).weight  # type: ignore[union-attr]
    return model


class _Scaled(Convolution):
    """A convolution whose logits are multiplied by a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__(V, C)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.scale * super().forward(x)


@dataclass(frozen=True)
class Architecture:
    """A healthy pipeline, the checks that are tried on it, and the bugs that have no place in it.

    make: the model, around which all parts are put.    build: the pipeline, where it is another.
    """

    make: Callable[[], nn.Module] | None = None
    build: Callable[[], Pipeline] | None = None
    checks: tuple[str, ...] = tuple(CATALOG)
    placeless: tuple[str, ...] = ()
    overfit_steps: int = 300

    def pipeline(self, folder: Path) -> Pipeline:
        """Return the healthy pipeline."""
        if self.build is not None:
            return self.build()
        assert self.make is not None
        return Whole(self.make).pipeline(folder)


def _shifts_inside(make: Callable[[], nn.Module]) -> Architecture:
    """A pipeline whose targets are its inputs: the model shifts."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - BLOCK, (ROWS,)).tolist()
        rows = torch.stack([data[start : start + BLOCK] for start in starts])
        return rows, rows.clone()

    return Architecture(
        build=lambda: Pipeline(make(), labels="same", get_batch=get_batch, vocab_size=V),
        checks=("shift",),
        placeless=tuple(i.id for i in INJECTIONS if i.check == "shift" and i.id != SHIFTS_INSIDE),
    )


SHIFTS_INSIDE = "shift.already_shifted"
NO_POSITIONS = ("positions.constant", "positions.shared_rows")
NO_STACK = "forward_hooks.explodes"
NO_TIE, NO_BUFFER = "checkpoint.tie_broken", "checkpoint.buffers_differ"
# the exercises break these on the same pipeline
LEFT_OUT = {
    "environment",
    "training_step",
    "distributed",
    "schedule",
    "evaluation",
    "resume",
    "generation",
    "sampling",
    "overfit",
    "honesty",
}

ARCHITECTURES: dict[str, Architecture] = {
    "minigpt": Architecture(
        build=lambda: Lab().pipeline(),
        checks=tuple(name for name in CATALOG if name not in LEFT_OUT),
        placeless=(SHIFTS_INSIDE, "batches.val_reads_train", NO_TIE, NO_BUFFER),
    ),
    "llama": Architecture(
        lambda: Llama(V, C=C),
        checks=tuple(name for name in CATALOG if name != "evaluation"),  # its mode is no matter
        placeless=(SHIFTS_INSIDE, *NO_POSITIONS, NO_TIE),
        overfit_steps=150,
    ),
    "gru": Architecture(
        lambda: _dropping(Recurrent(V, C)),
        placeless=(SHIFTS_INSIDE, *NO_POSITIONS, NO_STACK, NO_TIE, NO_BUFFER),
    ),
    "state space": Architecture(
        lambda: _dropping(StateSpace(V, C)),
        placeless=(SHIFTS_INSIDE, *NO_POSITIONS, NO_STACK, NO_TIE, NO_BUFFER),
    ),
    # bugs that need a part which the first four lack
    "gpt-2": Architecture(
        lambda: _dropping(TinyGPT(V, tied=True), "tokens"),
        checks=("forward_hooks", "positions", "evaluation", "checkpoint"),
        placeless=(NO_BUFFER,),
    ),
    "offset": Architecture(lambda: OffsetGPT(V), checks=("positions",)),
    "sines": Architecture(lambda: _tied(SineGPT(V), "tokens"), checks=("checkpoint",)),
    "tied gru": Architecture(
        lambda: _tied(Recurrent(V, C), "embedding"), checks=("checkpoint",), placeless=(NO_BUFFER,)
    ),
    "convolution": Architecture(_Scaled, checks=("checkpoint",), placeless=(NO_TIE,)),
    "gpt-2 that shifts": _shifts_inside(lambda: TinyGPT(V)),
    "llama that shifts": _shifts_inside(lambda: Llama(V)),
    "gru that shifts": _shifts_inside(lambda: Recurrent(V)),
}

TRIED = [(name, check) for name, its in ARCHITECTURES.items() for check in its.checks]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pipeline]:
    """Each architecture's pipeline, built once."""

    @functools.cache
    def pipeline(name: str) -> Pipeline:
        return ARCHITECTURES[name].pipeline(tmp_path_factory.mktemp("whole"))

    return pipeline


@pytest.mark.parametrize(("name", "check"), TRIED)
def test_every_bug_of_a_check_is_named_by_it(
    name: str, check: str, pipelines: Callable[[str], Pipeline]
) -> None:
    """And the bugs that cannot be injected are those that have no place there."""
    architecture = ARCHITECTURES[name]
    found = self_test(pipelines(name), only=[check], overfit_steps=architecture.overfit_steps)
    others = {t.injection.id for t in found.of(Outcome.ELSEWHERE)}
    assert others == {bug for bug in architecture.placeless if bug.startswith(f"{check}.")}
    assert found.injected == len(found.of(Outcome.CAUGHT)), str(found)
    assert found.injected + len(others) == sum(i.check == check for i in INJECTIONS)


def test_every_check_has_a_bug_and_every_bug_three_architectures() -> None:
    """What is tried above covers the whole catalogue."""
    places = Counter(
        injection.id
        for name, check in TRIED
        for injection in INJECTIONS
        if injection.check == check and injection.id not in ARCHITECTURES[name].placeless
    )
    assert {i.id: places[i.id] for i in INJECTIONS if places[i.id] < 3} == {}
    assert {injection.check for injection in INJECTIONS} == set(CATALOG)
    assert len({injection.id for injection in INJECTIONS}) == len(INJECTIONS)
