"""The influence map: which position's prediction moves when which token is replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._charts import heat_map
from diagnostics.page._figure_parts import Figure, Found, find, listed, mapped, whole
from diagnostics.page._scales import number

CELLS_MAX = 128  # per side; the check gives at most 64
NAME, CHECK = "figure-influence", "causal_independence"


def draw_influence(content: Mapping[str, Any]) -> Figure | None:
    """Draw rows (positions that read) by columns (replaced tokens), leaks outlined."""
    found = find(content, CHECK)
    stored = mapped(found.numbers.get("influence"))
    rows = [[number(value) for value in listed(row)] for row in listed(stored.get("rows"))]
    if not 2 <= len(rows) <= CELLS_MAX or any(len(row) != len(rows) for row in rows):
        return None
    step = max(1, whole(stored.get("step")) or 1)
    leaks = _leaks(found, rows, step, listed(stored.get("diagonal_leaks")))
    limit = number(found.numbers.get("limit")) or 0.0
    alone = step == 1 and _reads_itself_alone(rows, limit)
    markup = heat_map(
        NAME,
        _finding(found, leaks, alone),
        x_label="replaced token",
        y_label="position whose logits are read",
        cells=rows,
        x_step=step,
        y_step=step,
        flagged=lambda row, column: (row, column) in leaks,
        flag="a later token is read",
        nothing_up_to=limit if 0 < limit < math.inf else 0.0,
        note=_note(found, step),
    )
    return Figure(NAME, CHECK, markup, also=("context",))


def _reads_itself_alone(rows: list[list[float | None]], limit: float) -> bool:
    """Return whether every cell beside the diagonal was measured, and none shows a move."""
    return all(
        value is not None and value <= limit
        for row, line in enumerate(rows)
        for column, value in enumerate(line)
        if column != row
    )


def _leaks(
    found: Found, rows: list[list[float | None]], step: int, diagonal: Any
) -> set[tuple[int, int]]:
    """Return the cells that hold a leak; none of a model that may read the future."""
    if found.status == "skip":
        return set()
    limit = number(found.numbers.get("limit"))
    scale = number(found.numbers.get("weight_scale")) or 1.0
    leaks = {(cell, cell) for cell in diagonal if whole(cell) is not None} if step > 1 else set()
    for row, line in enumerate(rows):
        for column in range(row + 1, len(line)):
            value = line[column]
            if value is None or (math.isnan(value) and scale > 1.0):
                continue  # an overflow that only larger weights cause is no leak
            if limit is not None and not value <= limit:
                leaks.add((row, column))
    return leaks


def _finding(found: Found, leaks: set[tuple[int, int]], alone: bool) -> Text:
    numbers = found.numbers
    pairs, judged = whole(numbers.get("leaking_pairs")), whole(numbers.get("judged_pairs"))
    worst, length = number(numbers.get("worst_leak")), whole(numbers.get("length"))
    if found.status == "skip":
        return say("Which position reads which token; whether it may is not judged here")
    if leaks and found.reason.endswith(".not_finite") and not math.isfinite(worst or 0.0):
        return say(
            "Logits are nan or infinite: which token a prediction reads cannot be told where they "
            "are"
        )
    if leaks and pairs:
        return say(
            "The future leaks: in {pairs} of {judged} pairs a prediction moves when a later token "
            "is replaced, by up to {worst}",
            pairs=pairs,
            judged="-" if judged is None else judged,
            worst=worst,
        )
    if leaks:
        return say("The future leaks: {n:cell is|cells are} outlined", n=len(leaks))
    if alone:
        return say(
            "Each prediction reads the token of its own position alone: neither a later nor an "
            "earlier one moves it"
        )
    if judged is not None and worst is not None:
        return say(
            "No prediction reads a later token: in {judged:pair|pairs} of {length} positions the "
            "largest move is {worst}",
            judged=judged,
            length="-" if length is None else length,
            worst=worst,
        )
    return say("No cell for a later token shows a move")


def _note(found: Found, step: int) -> Text:
    told = "Each cell: the largest move of a logit at the position (row) when the token (column) "
    told += "is replaced. A later token lies right of the diagonal."
    if step > 1:
        told += " A cell stands for {step} positions by {step} tokens."
    scale = number(found.numbers.get("weight_scale")) or 1.0
    if scale > 1.0:
        told += " Measured with the weights times {scale}."
    elif found.reason.endswith("only_in_train_mode"):
        told += " Measured in train mode."
    elif found.reason.endswith("only_with_attention_mask"):
        told += " Measured with an attention mask passed."
    elif found.status == "pass":
        told += " Measured in eval mode, without an attention mask."
    return say(told, step=step, scale=scale)
