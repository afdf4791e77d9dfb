"""Reports that people look at: pages of HTML, each one file that needs nothing else.

    report = diagnose(pipeline)
    Path("report.html").write_text(report.to_html(), encoding="utf-8")

    content = json.loads(Path("report.json").read_text(encoding="utf-8"))
    page = render_report_page(content)        # the same bytes, from a stored report

    with RunPage("run.html", total_steps=1000) as page:      # rewritten while a loop trains
        page.log(step, loss=loss, learning_rate=rate)

No script, no font and no picture is loaded, and nothing in a report depends on the clock. Whatever
came from a user, a corpus, a module's name or a message, is text: `_markup` escapes it.

`_frame` and `_style` hold what every page shares, `_parts` its building blocks, `_charts` the
pictures. `_report_page` puts the page of a report together, `_run_page` that of a training run.
Names load on first use, as in `diagnostics`: a run needs nothing of a report.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnostics.page._report_page import render_report_fragment, render_report_page
    from diagnostics.page._run_history import RunHistory
    from diagnostics.page._run_page import render_run_page
    from diagnostics.page._run_writer import RunPage

__all__ = [
    "RunHistory",
    "RunPage",
    "render_report_fragment",
    "render_report_page",
    "render_run_page",
]

_HOMES = {
    "RunHistory": "_run_history",
    "RunPage": "_run_writer",
    "render_report_fragment": "_report_page",
    "render_report_page": "_report_page",
    "render_run_page": "_run_page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diagnostics.page' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"diagnostics.page.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
