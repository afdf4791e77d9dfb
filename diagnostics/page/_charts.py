"""The charts of a page: each returns a <figure> whose heading states what the numbers say.

Every chart is one SVG that scales with the page, names its axes with units, has ticks at round
numbers, tells series apart by dash and marker as well as by colour, and brings its numbers along
as a table. The same input gives the same bytes.
"""

from __future__ import annotations

from diagnostics.page._bar_chart import bar_chart
from diagnostics.page._chart_parts import Bar, Level
from diagnostics.page._column_chart import column_chart
from diagnostics.page._heat_map import heat_map
from diagnostics.page._line_chart import line_chart
from diagnostics.page._line_marks import Series

__all__ = [
    "Bar",
    "Level",
    "Series",
    "bar_chart",
    "column_chart",
    "heat_map",
    "line_chart",
]
