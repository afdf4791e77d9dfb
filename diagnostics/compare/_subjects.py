"""What two reports were measured on: weights, ids and options, each the same, not, or unknown.

Equal digests are equal content; unequal ones are other content. Where a report has no digest,
nothing is known: a report of schema version 1, or weights and ids that have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._catalog import CATALOG, select
from diagnostics._text import Text, say, show

WEIGHTS = "weights_sha256"
IDS = ("train_ids_sha256", "val_ids_sha256")
_OPTIONS = ("only", "skip", "fast", "overfit_steps")
_NAMES = {
    WEIGHTS: "weights",
    "train_ids_sha256": "training ids",
    "val_ids_sha256": "validation ids",
    "model": "model class",
    "parameters": "parameters",
    "trainable": "trainable parameters",
    "dtype": "dtype",
}
_DIGITS = 12  # of a digest of 64, as a person reads it
_TEXT_MAX = 40  # characters of an option
_NAMES_MAX = 3


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Each mapping is from a field of `subject` to (value in A, value in B), where they differ.

    same, unknown: fields of digests, equal in both, or missing in one.
    options: of the run.    asked: all options of A and of B, None where one is not known.
    """

    differing: Mapping[str, tuple[Any, Any]]
    same: tuple[str, ...]
    unknown: tuple[str, ...]
    options: Mapping[str, tuple[Any, Any]]
    asked: tuple[Mapping[str, Any], Mapping[str, Any]] | None

    @property
    def named(self) -> dict[str, tuple[Any, Any]]:
        """What differs by the names that people read, digests cut to 12 digits."""
        return {
            _NAMES[field]: (_short(field, pair[0]), _short(field, pair[1]))
            for field, pair in self.differing.items()
        }

    def names(self, fields: Sequence[str]) -> list[str]:
        """Return the names that people read."""
        return [_NAMES[field] for field in fields]


def compare_subjects(a: Mapping[str, Any], b: Mapping[str, Any]) -> Subjects:
    """Compare the subjects of two reports; both may be empty."""
    pairs = {field: (a.get(field), b.get(field)) for field in _NAMES}
    known = {field: pair for field, pair in pairs.items() if None not in pair}
    digests = (WEIGHTS, *IDS)
    before, after = (_options(side) for side in (a, b))
    asked = None if before is None or after is None else (before, after)
    return Subjects(
        differing={field: pair for field, pair in known.items() if pair[0] != pair[1]},
        same=tuple(f for f in digests if f in known and known[f][0] == known[f][1]),
        unknown=tuple(field for field in digests if field not in known),
        options={}
        if asked is None
        else {
            name: (asked[0][name], asked[1][name])
            for name in _OPTIONS
            if asked[0][name] != asked[1][name]
        },
        asked=asked,
    )


def told_options(
    subjects: Subjects, only_a: Sequence[str], only_b: Sequence[str]
) -> tuple[Text, ...]:
    """Return which options differ, and whether they explain the checks of one report alone."""
    if subjects.asked is None:
        return ()
    told = []
    if subjects.options:
        told.append(say("other options of the run: {options}", options=_shown(subjects.options)))
    chosen = [_selected(options) for options in subjects.asked]
    for letter, with_it, without, checks in (("B", *chosen, only_a), ("A", *chosen[::-1], only_b)):
        left_out = [c for c in checks if c in with_it and c in CATALOG and c not in without]
        others = [check for check in checks if check not in left_out]
        if left_out:
            told.append(
                say(
                    "the options of {letter} leave out {checks}, which the other was asked for",
                    letter=letter,
                    checks=_few(left_out),
                )
            )
        if others:
            told.append(
                say(
                    "the options do not explain that {letter} has no {checks}",
                    letter=letter,
                    checks=_few(others),
                )
            )
    return tuple(told)


def suspects(subjects: Subjects, inputs: Sequence[str], changed: Sequence[str]) -> list[str]:
    """Return what can make numbers differ: what is known to differ, then what is not known equal.

    inputs: names of what else differs.    changed: checks of which anything differs.
    Which checks were chosen matters little: each begins from the seed, and only a part with a
    state of its own remembers the check before.
    """
    found = []
    differing = [*subjects.named, *inputs]
    if differing:
        found.append(f"the {' and '.join(differing)} (not the same)")
    if "overfit_steps" in subjects.options and "overfit" in changed:  # no other check counts them
        found.append("overfit steps (for the check overfit alone)")
    if any(name in subjects.options for name in ("only", "skip", "fast")):
        found.append("the checks that ran before (for a part with a state of its own)")
    if WEIGHTS in subjects.unknown:
        found.append("the weights")
    if any(field in subjects.unknown for field in IDS):
        some = any(field in subjects.same for field in IDS)
        found.append("data without a digest" if some else "the data")
    if subjects.asked is None:
        found.append("the options of the run")
    return [*found, "code (the model's, the loader's or this library's)"]


def known_equal(subjects: Subjects) -> list[str]:
    """Return what is the same in both beside seed and environment, for a sentence."""
    ids = [field for field in IDS if field in subjects.same]
    return [
        *(["the weights"] if WEIGHTS in subjects.same else []),
        *(["the ids"] if len(ids) == len(IDS) else [f"the {_NAMES[field]}" for field in ids]),
        *(["the options"] if subjects.asked is not None and not subjects.options else []),
    ]


def _options(subject: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = subject.get("options")
    complete = isinstance(found, Mapping) and all(name in found for name in _OPTIONS)
    return found if complete and isinstance(found, Mapping) else None


def _selected(options: Mapping[str, Any]) -> list[str]:
    """Return what this release would run with such options; all where it does not know them."""
    try:
        return select(options["only"], options["skip"], fast=bool(options["fast"]))
    except (ValueError, TypeError):  # a check of another release, or a file that was edited
        return list(CATALOG)


def _shown(options: Mapping[str, tuple[Any, Any]]) -> str:
    told = [
        f"{name.replace('_', ' ')} ({_option(name, a)} -> {_option(name, b)})"
        for name, (a, b) in options.items()
    ]
    return ", ".join(told)


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "all" if name == "only" else "none"
    if isinstance(value, list):
        return _few([str(item) for item in value]) or "none"
    return show(value)[:_TEXT_MAX]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:_TEXT_MAX] for name in names[:_NAMES_MAX])
    return f"{shown} and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else shown


def _short(field: str, value: Any) -> Any:
    return str(value)[:_DIGITS] if field.endswith("_sha256") else value
