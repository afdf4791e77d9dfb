"""What a drawn figure holds, for tests: markup is parsed, so that it must be well formed."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element


def parse(markup: str) -> Element:
    """Return the root of the figure; every figure of ours is XML as well."""
    return ElementTree.fromstring(markup)


def texts(markup: str, name: str = "text") -> list[str]:
    """Return the text of each element of this name, in order."""
    return ["".join(found.itertext()) for found in parse(markup).iter(name)]


def paths(markup: str, kind: str) -> list[str]:
    """Return the commands of each path of the drawing that has this class; the key is left out."""
    drawing = next(iter(parse(markup).iter("svg")))
    return [
        found.get("d", "")
        for found in drawing.iter("path")
        if kind in found.get("class", "").split()
    ]


def finding(markup: str) -> str:
    """Return the heading."""
    return texts(markup, "figcaption")[0]


def notes(markup: str) -> str:
    """Return the sentences below the drawing, one a line."""
    found = (part for part in parse(markup).iter("p") if part.get("class") == "chart-note")
    return "\n".join("".join(part.itertext()) for part in found)


def table(markup: str) -> list[list[str]]:
    """Return the rows of the table of numbers, its heads first."""
    return [["".join(cell.itertext()) for cell in row] for row in parse(markup).iter("tr")]


def assert_inside(markup: str) -> None:
    """Every number in the drawing is finite and lies on the canvas, give or take a marker."""
    svg = next(iter(parse(markup).iter("svg")))
    width, height = (float(part) for part in svg.get("viewBox", "").split()[2:])
    assert "nan" not in "".join(p.get("d", "") for p in svg.iter("path"))
    assert "inf" not in "".join(p.get("d", "") for p in svg.iter("path"))
    for text in svg.iter("text"):
        assert -1 <= float(text.get("x", "")) <= width + 1, text.text
        assert 0 <= float(text.get("y", "")) <= height, text.text
