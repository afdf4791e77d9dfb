"""The pictures of a report are there where their numbers are, and never in the way."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from diagnostics.page._figures import figures
from tests.diagnostics.page.drawn import assert_inside, parse
from tests.diagnostics.page.stored_numbers import stored

ALL = [
    ("figure-histogram", "range"),
    ("figure-sample", "shift"),
    ("figure-activations", "forward_hooks"),
    ("figure-initial-loss", "initial_loss"),
    ("figure-influence", "causal_independence"),
    ("figure-gradients", "gradients"),
    ("figure-updates", "optimizer"),
    ("figure-schedule", "schedule"),
    ("figure-overfit", "overfit"),
    ("figure-accuracy", "overfit"),
    ("figure-honesty", "honesty"),
]
ODD: tuple[Any, ...] = (
    None, True, -1, 10**400, 1e308, math.nan, "nan", "inf", "<b>\u202e\ud800", [], {}, [[]], [None],
    {"a": {"b": []}}, [1, "x", None, [2]], 0,
)  # fmt: skip


def test_every_picture_is_drawn_and_stands_under_its_check() -> None:
    drawn = figures(stored())
    assert [(figure.name, figure.check) for figure in drawn] == ALL
    for figure in drawn:
        root = parse(figure.markup)
        assert root.get("id") == figure.name
        if figure.name != "figure-sample":
            assert_inside(figure.markup)


def test_ids_are_unique_on_the_page() -> None:
    ids = [
        element.get("id")
        for figure in figures(stored())
        for element in parse(figure.markup).iter()
        if element.get("id")
    ]
    assert len(ids) == len(set(ids))


def test_a_stored_report_gives_the_same_bytes() -> None:
    """JSON sorts the names of every mapping, and spells nan as text."""
    content = stored("overfit", final_loss="nan")
    again = json.loads(json.dumps(content, sort_keys=True))
    assert [f.markup for f in figures(content)] == [f.markup for f in figures(again)]


@pytest.mark.parametrize("check", [check for _, check in ALL])
def test_a_check_without_numbers_costs_its_pictures_only(check: str) -> None:
    content = stored()
    for result in content["results"]:
        if result["check"] == check:
            result["numbers"] = {}
    expected = [pair for pair in ALL if pair[1] != check]
    assert [(figure.name, figure.check) for figure in figures(content)] == expected


@pytest.mark.parametrize(
    "content", [{}, {"results": None}, {"results": [None, 3, {}]}, {"results": {"a": 1}}]
)
def test_what_is_no_report_has_no_pictures(content: dict[str, Any]) -> None:
    assert figures(content) == []


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value inside."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_any_number_may_be_anything(odd: Any) -> None:
    """Each value of the report in turn is replaced: nothing raises, and pages stay well formed."""
    whole = stored()
    for index in range(len(whole["results"])):
        alone = {"results": [whole["results"][index]]}
        count = sum(1 for _ in _places(alone["results"][0]["numbers"]))
        for place in range(count):
            content = copy.deepcopy(alone)
            container, key = list(_places(content["results"][0]["numbers"]))[place]
            container[key] = odd
            for figure in figures(content):
                parse(figure.markup)
                assert len(figure.markup) < 100_000


def test_a_model_of_48_layers_stays_small() -> None:
    """600 parameters are drawn by layer, 580 module outputs too, and 4,096 cells as runs."""
    names = ["wte.weight", "wpe.weight", "ln_f.weight"]
    parts = ("attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc", "mlp.proj", "ln_1", "ln_2")
    names += [f"transformer.h.{n}.{part}.weight" for n in range(48) for part in parts]
    norms = {name: 0.1 + 0.001 * n for n, name in enumerate(names)}
    content = stored("gradients", norms=norms)
    by_check = {result["check"]: result["numbers"] for result in content["results"]}
    by_check["optimizer"]["update_to_weight_by_name"] = norms
    by_check["forward_hooks"]["rms"] = {
        **{name.removesuffix(".weight"): norm for name, norm in norms.items()},
        **{f"transformer.h.{n}": 1.0 for n in range(48)},
    }
    by_check["causal_independence"]["influence"] = {
        "length": 1024,
        "step": 16,
        "rows": [[(r * 7 + c * 3) % 11 / 7 if c <= r else 0 for c in range(64)] for r in range(64)],
        "diagonal_leaks": [],
    }
    drawn = {figure.name: figure.markup for figure in figures(content)}
    assert len(drawn) == len(ALL)
    assert sum(map(len, drawn.values())) < 250_000
    assert "transformer.h.47" in drawn["figure-gradients"]
