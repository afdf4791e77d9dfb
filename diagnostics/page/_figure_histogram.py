"""How often each token id occurs, over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._charts import Bar, column_chart
from diagnostics.page._figure_parts import Figure, find, listed, mapped, whole
from diagnostics.page._figure_sample import visible
from diagnostics.page._scales import shown

LOG_RATIO = 50  # from the rarest to the commonest, beyond which a plain axis hides the rare ones
NAME, CHECK = "figure-histogram", "range"
Bin = tuple[int, int, int]


def draw_histogram(content: Mapping[str, Any]) -> Figure | None:
    """Draw counts over ids; ids outside the vocabulary are flagged."""
    stored = mapped(find(content, CHECK).numbers.get("histogram"))
    V = whole(stored.get("vocab_size"))
    bins = [one for one in map(_bin, listed(stored.get("bins"))) if one is not None]
    if V is None or V < 1 or not bins:
        return None
    inside = [count for first, last, count in bins if first >= 0 and last < V and count > 0]
    log = bool(inside) and max(inside) > LOG_RATIO * min(inside)
    width = max((last - first + 1 for first, last, _ in bins if first >= 0 and last < V), default=1)
    source = str(stored.get("name") or "")
    counted = say("tokens of {source}", source=source) if source else say("tokens")
    markup = column_chart(
        NAME,
        _finding(stored, V, bins),
        x_label="token id" if width == 1 else f"token id, {width} to a column",
        y_label=say("{counted}, log scale", counted=counted) if log else counted,
        columns=[
            Bar(
                label=str(first) if first == last else f"{first} to {last}",
                value=count,
                flag="" if first >= 0 and last < V else "outside",
            )
            for first, last, count in bins
        ],
        log_y=log,
        note=_note(stored, bins),
    )
    return Figure(NAME, CHECK, markup)


def _bin(stored: Any) -> Bin | None:
    values = [whole(value) for value in listed(stored)]
    if len(values) != 3:
        return None
    first, last, count = values
    if first is None or last is None or count is None or last < first or count < 0:
        return None
    return first, last, count


def _finding(stored: Mapping[str, Any], V: int, bins: Sequence[Bin]) -> Text:
    outside = sum(count for first, last, count in bins if first < 0 or last >= V)
    unused = whole(stored.get("unused"))
    if outside:
        return say(
            "{n} {lie} outside 0 to {last}, where the vocabulary ends",
            n=shown(outside),
            lie=say("token lies") if outside == 1 else say("tokens lie"),
            last=V - 1,
        )
    if unused:
        return say(
            "{unused} of {V} ids never occur; the {used} others share {n} tokens",
            unused=unused,
            V=V,
            used=V - unused,
            n=shown(sum(count for _, _, count in bins)),
        )
    told = say("{n} tokens", n=shown(sum(count for _, _, count in bins)))
    if unused == 0:
        return say("All {V} ids of the vocabulary occur in {told}", V=V, told=told)
    return say("How {told} spread over {V} ids", V=V, told=told)


def _note(stored: Mapping[str, Any], bins: Sequence[Bin]) -> Text:
    total = sum(count for _, _, count in bins)
    pieces = mapped(stored.get("pieces"))
    commonest = []
    for entry in listed(stored.get("top"))[:3]:
        token_id, count, *_ = [whole(value) for value in listed(entry)] + [None, None]
        if token_id is not None and count is not None and total:
            piece = pieces.get(str(token_id))
            told = f"{token_id} ({visible(piece)})" if isinstance(piece, str) else str(token_id)
            commonest.append(say("{told} {share:%}", told=told, share=count / total))
    return say("Commonest ids: {ids}.", ids=", ".join(commonest)) if commonest else say("")
