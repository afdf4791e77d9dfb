"""Causes of text that is read as JSON and is none."""

from __future__ import annotations

from diagnostics.help.traceback._rules import Rule, rule

RULES: tuple[Rule, ...] = (
    rule(
        "file.json",
        "JSONDecodeError",
        r"Expecting value: line 1 column 1 \(char 0\)",
        "what was read as JSON is empty, or is no JSON at all",
        "print(repr(text[:80])) on the line before",
    ),
    rule(
        "file.json_lines",
        "JSONDecodeError",
        r"Extra data: line (?P<line>\d+) column (?P<column>\d+)",
        "a second value begins at line {line}, column {column}, and JSON is one value; a file "
        "with a value on each line (.jsonl) has this form",
        "rows = [json.loads(line) for line in open(path)]",
    ),
    rule(
        "file.json_place",
        "JSONDecodeError",
        r"(?P<what>[^\n:]{1,60}): line (?P<line>\d+) column (?P<column>\d+)",
        "the text stops being JSON at line {line}, column {column}, as at a comma after the "
        "last entry, single quotes, or an end that was cut off",
        "python -m json.tool FILE, which names the same place, after each correction",
    ),
)
