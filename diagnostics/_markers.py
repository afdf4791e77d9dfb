"""Ids that mark a place instead of standing for text: are they where documents begin and end?"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from diagnostics._stored_text import StoredText
from diagnostics._text import say
from diagnostics._text_readings import TextFault
from diagnostics._tokenizer import ids_of

MARKERS_MIN = 3  # places; a text about tokenizers may name a marker once or twice
STARTS = ("bos", "cls", "sot")
ENDS = ("eos", "pad", "sep", "eot")


def find_lost_marker(side: StoredText) -> TextFault | None:
    """Documents that train_text marks must be marked in the ids, by one id each."""
    counts = side.count_marks()
    for index, marker in side.specials.items():
        written = side.raw_text.count(marker) if len(marker) > 1 else 0
        found = counts[index]
        # the text may be a part of what was encoded, and the other way round at its ends
        if written < MARKERS_MIN or found >= written - 1:
            continue
        numbers = {"marker": marker, "in_text": written, "in_ids": found}
        if side.spelled.get(index, 0) + found >= written - 1:
            if not _stands_alone(side.raw_text, marker):
                continue
            return TextFault(
                "text.marker_spelled",
                say(
                    "spell {marker} out in {count:place|places}, as plain text: the id {index} "
                    "is there {found:time|times}",
                    marker=ascii(marker),
                    count=side.spelled[index],
                    index=index,
                    found=found,
                ),
                say("encode was not told that the marker may be read as a special token"),
                numbers=numbers,
            )
        return TextFault(
            "text.terminator_missing",
            say(
                "hold the id {index} {found:time|times}, and train_text has {marker} in {written} "
                "places",
                index=index,
                found=found,
                marker=ascii(marker),
                written=written,
            ),
            say("documents were split at the marker and joined without its id")
            if not found
            else say("documents were cut at a length, and lost what stood at their ends"),
            numbers=numbers,
        )
    return None


def find_start_fault(side: StoredText) -> TextFault | None:
    """A start token stands once at each start, and where the tokenizer itself puts it."""
    named = side.reader.special_ids
    ends = {i for name, i in named.items() if name.startswith(ENDS)}
    starts = {i for name, i in named.items() if name.startswith(STARTS)} - ends
    for index in sorted(starts):
        here = side.ids == index
        groups = int((here & ~np.concatenate(([False], here[:-1]))).sum())
        doubled = int((here[:-1] & here[1:]).sum())
        if doubled >= 0.9 * groups > 0 and (groups >= MARKERS_MIN or here[0]):
            return TextFault(
                "text.doubled_start",
                say(
                    "hold the start token {index} twice in a row in {doubled:place|places}",
                    index=index,
                    doubled=doubled,
                ),
                say("a template writes the start token, and encode adds one more"),
                numbers={"id": index, "places": groups, "doubled": doubled},
            )
    added = _added_by_default(side)
    if added is None or (side.ids == added).any():
        return None
    return TextFault(
        "text.start_missing",
        say("hold no start token, and encode puts {index} before every text", index=added),
        say("special tokens were switched off for training, and are on for prompts"),
        warn=True,  # many models are trained without one
        numbers={"id": added},
    )


def find_other_terminator(side: StoredText, stop_ids: Collection[int]) -> TextFault | None:
    """The id that the model is configured to stop at must be one that ends documents."""
    named = side.reader.special_ids
    starts = {i for name, i in named.items() if name.startswith((*STARTS, "pad"))}
    counts = side.count_marks()
    used = [i for i in side.specials if i not in starts and counts[i] >= MARKERS_MIN]
    if not used or not stop_ids or np.isin(side.ids, list(stop_ids)).any():
        return None
    usual = max(used, key=lambda i: counts[i])
    return TextFault(
        "text.other_terminator",
        say(
            "hold the id {usual} {count} times as a mark, and never {stop}, at which the model is "
            "configured to stop",
            usual=usual,
            count=counts[usual],
            stop=", ".join(map(str, sorted(stop_ids))),
        ),
        say("the end of text in the configuration is that of another tokenizer or template"),
        warn=True,  # a generator may be handed ids of its own to stop at
        numbers={"id": usual, "count": counts[usual], "stop_ids": sorted(stop_ids)},
    )


def _stands_alone(text: str, marker: str) -> bool:
    """Whether it mostly stands at the edge of a line, as what separates documents does."""
    whole = f"\n{text}\n"
    edges = whole.count("\n" + marker) + whole.count(marker + "\n")
    return 2 * edges >= text.count(marker)


def _added_by_default(side: StoredText) -> int | None:
    """The special id with which encode begins a text when nobody asks it not to."""
    try:
        first = ids_of(side.reader.tokenizer.encode("a"))[0]
    except Exception:  # any: the user's encode may not know the letter
        return None
    return first if first in side.specials else None
