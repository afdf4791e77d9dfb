"""The subject of a stored report in short lines: what was measured, and how it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIGITS = 12  # of a digest of 64: enough to tell any two that a person compares
_OF_WHAT = {
    "model": "model",
    "parameters": "parameters",
    "trainable": "trainable",
    "dtype": "dtype",
    "weights_sha256": "weights, SHA-256",
    "train_ids_sha256": "training ids, SHA-256",
    "val_ids_sha256": "validation ids, SHA-256",
}
_OPTIONS = {"only": "only", "skip": "skip", "fast": "fast", "overfit_steps": "overfit steps"}


def subject_facts(subject: Any) -> dict[str, str]:
    """Return name -> value as a person reads it, digests cut; empty where nothing is known.

    subject: the field of a report's content; None for a report of schema version 1.
    """
    if not isinstance(subject, Mapping):
        return {}
    told = {
        name: _told(field, subject[field]) for field, name in _OF_WHAT.items() if field in subject
    }
    options = subject.get("options")
    if isinstance(options, Mapping):
        told |= {
            name: _option(field, options[field])
            for field, name in _OPTIONS.items()
            if field in options
        }
    return told


def _told(field: str, value: Any) -> str:
    if value is None:
        return "not known"
    if field.endswith("_sha256"):
        return f"{str(value)[:DIGITS]}..."
    return f"{value:,}" if isinstance(value, int) else str(value)


def _option(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "all" if field == "only" else "none"
    return str(value)
