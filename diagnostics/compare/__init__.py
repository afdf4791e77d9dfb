"""Two reports side by side: what got worse, what moved, and what can explain it.

    print(compare_files("before.json", "after.json"))

`_verdicts` compares statuses and reasons, `_leaves` and `_numbers` what was measured, `_origin`
what the environment and the inputs allow to conclude, `_subjects` what weights, ids and options
do. `_headline`, `_rows` and `_text` tell it.
"""

from __future__ import annotations

from diagnostics.compare._comparison import Comparison, Summary, compare_files, compare_reports

__all__ = ["Comparison", "Summary", "compare_files", "compare_reports"]
