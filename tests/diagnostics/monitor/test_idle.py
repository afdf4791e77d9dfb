"""Parameters without a gradient, look by look."""

from __future__ import annotations

from diagnostics.monitor.events import Speaker
from diagnostics.monitor.idle import EXPERT_LOOKS, IdleWatch

NAMES = [f"mlps.{number}.weight" for number in range(3)]


def feed(rows: list[tuple[float, ...]], names: list[str] = NAMES) -> tuple[IdleWatch, Speaker]:
    """Feed one norm per name and look; looks are 20 updates apart."""
    speaker = Speaker(None)
    watch = IdleWatch(speaker)
    for look, norms in enumerate(rows, 1):
        found = {n: norm for n, norm in zip(names, norms, strict=True) if norm}
        watch.see(20 * look, names, found)
    return watch, speaker


def test_five_looks_that_span_75_updates() -> None:
    events = feed([(1.0, 1.0, 0.0)] * 5)[1].events
    assert [(e.reason, e.step, e.numbers) for e in events] == [
        ("monitor.no_gradient", 100, {"names": ["mlps.2.weight"]})
    ]
    assert feed([(1.0, 1.0, 0.0)] * 4)[1].events == []


def test_a_sibling_that_comes_and_goes_tells_that_they_are_experts() -> None:
    """Whatever the list is called: the idle one has 25 looks instead of 5."""
    rows = [(1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0)]
    assert feed(rows + [(1.0, 1.0, 0.0)] * (EXPERT_LOOKS - 4))[1].events == []
    assert [e.step for e in feed(rows + [(1.0, 1.0, 0.0)] * EXPERT_LOOKS)[1].events] == [500]


def test_weights_that_begin_without_gradient_are_no_experts() -> None:
    """The first of LoRA's factors has none until the second has moved."""
    rows = [(0.0, 1.0, 0.0)] + [(1.0, 1.0, 0.0)] * 4
    assert [e.step for e in feed(rows)[1].events] == [100]


def test_what_is_kept_of_an_idle_parameter_is_bounded() -> None:
    watch, _ = feed([(1.0, 1.0, 0.0)] * 200)
    assert watch.looks["mlps.0.weight"] == []
    assert len(watch.looks["mlps.2.weight"]) == EXPERT_LOOKS + 2
    assert watch.looks["mlps.2.weight"][0] == 20
