"""Every page is HTML without a fault, to a strict parser and to the Nu Html Checker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.pages import needs
from tests.pages.specimens import PAGES, page

# Parts of CSS that all current browsers know and the checker of 2026 does not.
UNKNOWN_CSS = {
    "CSS: “container-type”: Property “container-type” doesn't exist.",  # css-contain-3
    "CSS: Unrecognized at-rule “@container”",
    "CSS: “vector-effect”: Property “vector-effect” doesn't exist.",  # SVG 2
}

# What is said of a user's text, which a page shows as it is.
OF_THE_TEXT = (
    "Text run is not in Unicode Normalization Form C.",
    "This document appears to be written in",
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_written_as_utf_8(name: str) -> None:
    assert page(name).encode().decode() == page(name)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_the_same_bytes_again(name: str) -> None:
    assert PAGES[name]() == page(name)


@pytest.mark.parametrize("name", PAGES)
def test_a_strict_parser_finds_no_fault(name: str) -> None:
    needs.package("html5lib").HTMLParser(strict=True).parse(page(name))


def test_the_nu_html_checker_finds_no_fault(tmp_path: Path) -> None:
    """One run for all pages: most of its time goes into starting Java."""
    checker = needs.html_checker()
    for name in PAGES:
        (tmp_path / f"{name}.html").write_bytes(page(name).encode())
    done = subprocess.run(
        [*checker, "--format", "json", "--exit-zero-always", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = {}  # message -> where
    for message in json.loads(done.stderr)["messages"]:
        said = message["message"]
        if said not in UNKNOWN_CSS and not said.startswith(OF_THE_TEXT):
            place = f"{Path(message['url']).name} near {message.get('extract', '')!r:.200}"
            found.setdefault(said, []).append(place)
    assert found == {}
