"""Many parameters become a bar a layer; what stands out stays in sight without hiding the rest."""

from __future__ import annotations

from diagnostics.page._charts import Bar
from diagnostics.page._figure_bars import layer_bars, median, root_of_squares


def test_few_parameters_keep_their_own_bars() -> None:
    assert layer_bars({"b": 1.0, "a": None}, {"a": "no gradient"}, median) == (
        [Bar(label="a", value=None, flag="no gradient"), Bar(label="b", value=1.0)],
        False,
    )


def test_a_layer_of_many_experts_without_gradient_has_one_bar_for_them() -> None:
    """Two layers of 30 experts: all but one of each are without gradient, 58 bars if drawn."""
    names = [f"h.{layer}.e{n}.weight" for layer in range(2) for n in range(30)]
    values = {name: 3.0 if ".e0." in name else None for name in names}
    flags = {name: "no gradient" for name in names if values[name] is None}
    bars, per_layer = layer_bars(values, flags, root_of_squares)
    assert per_layer
    assert bars == [
        Bar(label="h.0", value=3.0),
        Bar(label="h.0: 29 parameters", value=None, flag="no gradient"),
        Bar(label="h.1", value=3.0),
        Bar(label="h.1: 29 parameters", value=None, flag="no gradient"),
    ]


def test_flags_are_told_apart_and_equal_values_kept() -> None:
    """30 times zero keep their 0; one alone keeps its name; different ones have no value."""
    zero = {f"h.0.z{n}": 0.0 for n in range(30)}
    odd = {"h.0.w0": 1.0, "h.0.w1": 2.0}
    values: dict[str, float | None] = {
        **zero,
        **odd,
        "h.0.m": None,
        **{f"h.1.{n}": 1.0 for n in "abcdefgh"},
    }
    flags = dict.fromkeys(zero, "zero") | dict.fromkeys(odd, "wrong value") | {"h.0.m": "missing"}
    bars, _ = layer_bars(values, flags, median)
    assert [(bar.label, bar.value, bar.flag) for bar in bars] == [
        ("h.0.m", None, "missing"),
        ("h.0: 2 parameters", None, "wrong value"),
        ("h.0: 30 parameters", 0.0, "zero"),
        ("h.1", 1.0, ""),
    ]


def test_nan_everywhere_stays_nan() -> None:
    values = {f"h.{n}.a": float("nan") for n in range(20)} | {
        f"h.{n}.b": float("nan") for n in range(21)
    }
    bars, _ = layer_bars(values, dict.fromkeys(values, "not finite"), median)
    assert len(bars) == 21
    assert all(bar.value != bar.value for bar in bars)
