"""A page can be mailed: a model of ten million parameters gets less than a megabyte."""

from __future__ import annotations

import pytest

from tests.pages.specimens import LARGE, large_measured, page

PAGE_MAX_BYTES = 1_000_000


@pytest.mark.parametrize("name", ["healthy", "failing", "large"])
def test_a_page_is_smaller_than_a_megabyte(name: str) -> None:
    assert len(page(name).encode()) < PAGE_MAX_BYTES


@pytest.mark.slow
@pytest.mark.thorough
def test_the_measured_report_of_ten_million_parameters_is_smaller_than_a_megabyte() -> None:
    from diagnostics.page._report_page import render_report_page
    from minigpt import MiniGPT

    assert sum(p.numel() for p in MiniGPT(LARGE).parameters()) > 10_000_000
    assert len(render_report_page(large_measured()).encode()) < PAGE_MAX_BYTES
