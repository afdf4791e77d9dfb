"""The end of a report: figures to note before asking, the environment, and how to run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnostics._stored_subject import subject_facts
from diagnostics._versions import environment_block
from diagnostics.page._markup import Child, Markup, element, isolate, join
from diagnostics.page._numbers import brief
from diagnostics.page._parts import copy_line, facts, prose, table
from diagnostics.page._report_headline import link
from diagnostics.page._verdicts import Stored

# field of `debug` -> (its name for people, what its number is counted in, the check it is from)
FIGURES: Mapping[str, tuple[str, str, str]] = {
    "tokenizer_fingerprint": ("tokenizer fingerprint", "", "fingerprint"),
    "vocabulary_size": ("vocabulary size", "tokens", "shapes"),
    "token_range": ("token range", "smallest and largest id", "range"),
    "batch_shape": ("batch shape", "rows, tokens per row", "batches"),
    "initial_loss": ("initial loss", "nats per token", "initial_loss"),
    "expected_baseline": ("expected baseline", "nats per token", "initial_loss"),
    "gradient_norm": ("gradient norm", "global L2 norm", "gradients"),
    "missing_gradients": ("missing gradients", "parameters", "gradients"),
    "parameter_update_size": ("parameter update size", "of the weights' size", "optimizer"),
    "single_batch_final_loss": ("single-batch final loss", "nats per token", "overfit"),
}


def debug_figures(report: Stored) -> Markup:
    """Return the ten figures of a debug report as a table, each with the check that has it."""
    rows = [_figure(report, *entry) for entry in FIGURES.items()]
    return table("Ten figures to note", ("figure", "value", "check"), rows)


def environment(report: Stored) -> Markup:
    """Return the environment as a table, and as a block to paste into a question."""
    values = report.environment
    if not values:
        return element("p", "The report holds no environment.", class_="quiet")
    names = [str(name).replace("_", " ") for name in values]
    rows = [(isolate(n), isolate(brief(v))) for n, v in zip(names, values.values(), strict=True)]
    paste = [element("p", "Ready to paste: one click selects all of it.", class_="quiet small")]
    return element(
        "div",
        table("Versions, devices and switches", ("name", "value"), rows),
        element("div", paste, copy_line(environment_block(values))),
        class_="pair",
    )


def origin(report: Stored) -> Markup:
    """Return the notes on how it was measured, seed and version of the format, and on what."""
    notes = [element("li", prose(note)) for note in report.notes]
    told = facts(
        [
            ("notes", element("ul", notes, class_="plain") if notes else "none"),
            ("seed", isolate(brief(report.seed))),
            ("schema version", isolate(brief(report.schema_version))),
        ]
    )
    return join([told, _subject(report.subject)])


def _subject(subject: Mapping[str, Any]) -> Markup:
    """Return what was measured as a table; a sentence where the report does not say."""
    told = subject_facts(subject)
    rows = [(isolate(name), isolate(brief(value))) for name, value in told.items()]
    if not rows:
        unknown = "The report does not say which weights and ids it is about."
        return element("p", unknown, class_="quiet")
    return table("What was measured, and the options of the run", ("name", "value"), rows)


def rerun(report: Stored) -> Markup:
    """Return how to measure again."""
    seed = report.seed if isinstance(report.seed, int) else 42
    return join(
        [
            element("p", "To measure again, with the same draws:"),
            copy_line(f"python -m diagnostics --seed {seed} --json report.json --html report.html"),
            element(
                "p",
                prose(
                    "For a pipeline of your own add `--target file.py:function`; to explain one "
                    "check, `python -m diagnostics --explain NAME`."
                ),
            ),
        ]
    )


def _figure(report: Stored, name: str, shown: tuple[str, str, str]) -> tuple[Child, Child, Child]:
    title, unit, check = shown
    value: Any = report.debug.get(name)
    verdict = report.find(check)
    measured = [isolate(brief(value)), " ", element("span", unit, class_="quiet") if unit else ""]
    return (
        title,
        element("span", "not measured", class_="quiet") if value is None else measured,
        isolate(check) if verdict is None else link(verdict),
    )
