from __future__ import annotations

import re

import pytest

from diagnostics.page._chart_style import CHART_STYLE
from diagnostics.page._report_style import REPORT_STYLE
from diagnostics.page._style import DARK, LIGHT, PAPER, STYLE, fragment_style

PALETTES = {"light": LIGHT, "dark": DARK, "paper": PAPER}
TEXTS = ("ink", "quiet", "ok", "warn", "fail", "error", "skip", "accent")
STROKES = ("series-1", "series-2", "series-3", "heat")


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2.2: (lighter + 0.05) / (darker + 0.05) of relative luminances."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_ratio_is_that_of_the_definition() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)


@pytest.mark.parametrize("theme", PALETTES)
@pytest.mark.parametrize("ground", ["page", "card"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_text_has_a_contrast_of_at_least_4_5(theme: str, ground: str, name: str) -> None:
    palette = PALETTES[theme]
    assert contrast(palette[name], palette[ground]) >= 4.5


@pytest.mark.parametrize("theme", PALETTES)
@pytest.mark.parametrize("name", STROKES)
def test_every_curve_has_the_contrast_of_text_for_its_label_has_its_colour(
    theme: str, name: str
) -> None:
    palette = PALETTES[theme]
    assert contrast(palette[name], palette["page"]) >= 4.5
    assert contrast(palette[name], palette["card"]) >= 4.5


def test_all_palettes_have_the_same_names_and_paper_is_black_on_white() -> None:
    assert list(LIGHT) == list(DARK) == list(PAPER)
    assert (PAPER["ink"], PAPER["page"], PAPER["card"]) == ("#000000", "#ffffff", "#ffffff")


def test_every_colour_that_a_rule_asks_for_is_defined() -> None:
    asked = set(re.findall(r"var\(--([a-z0-9-]+)\)", STYLE + REPORT_STYLE + CHART_STYLE))
    assert asked <= set(LIGHT)


def test_no_rule_has_a_colour_of_its_own_on_the_screen() -> None:
    rules = re.sub(r"--[a-z0-9-]+: #[0-9a-f]{6};", "", STYLE + REPORT_STYLE)
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules.partition("@media print {\n  main")[0]) == []


def test_closed_parts_are_opened_on_paper() -> None:
    for style in (STYLE, fragment_style("x")):
        paper = style[style.rindex("@media print") :]
        assert "::details-content { content-visibility: visible;" in paper


def test_a_fragment_styles_its_own_insides_only() -> None:
    """Outside of the braces that follow the class stands nothing but the class and media."""
    style = fragment_style("mine", REPORT_STYLE)
    depth, outside, selectors = 0, "", []
    for character in style:
        if character == "{":
            if depth == 0 or (depth == 1 and selectors[-1].startswith("@media")):
                selectors.append(outside.strip())
            depth, outside = depth + 1, ""
        elif character == "}":
            depth, outside = depth - 1, ""
        else:
            outside += character
    assert depth == 0
    assert {s for s in selectors if not s.startswith("@media")} == {".mine.mine"}


@pytest.mark.parametrize("style", [STYLE, REPORT_STYLE, fragment_style("x")])
def test_nothing_is_loaded_and_no_style_element_is_ended(style: str) -> None:
    assert "url(" not in style
    assert "@import" not in style
    assert "</" not in style
