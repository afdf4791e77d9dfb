"""Versions of the packages that a pipeline may stand on, read without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from diagnostics._text import printable

LIBRARY = "minigpt-diagnostics"
# Those that this library needs, and those that models and tokenizers of others come from. torch
# and numpy are asked themselves: what is imported counts, not what is installed.
_NEEDED = (LIBRARY, "safetensors", "tqdm")
_OPTIONAL = (
    "transformers",
    "tokenizers",
    "tiktoken",
    "sentencepiece",
    "accelerate",
    "lightning",
    "datasets",
)


def measure_versions() -> dict[str, str]:
    """Return {name with underscores: version}; an optional package that is missing is left out."""
    found = {name: _version(name) or "not installed" for name in _NEEDED}
    found |= {name: version for name in _OPTIONAL if (version := _version(name))}
    return {name.replace("-", "_"): version for name, version in found.items()}


def environment_block(facts: Mapping[str, Any]) -> str:
    """Return an environment with its heading, ready to paste into a question."""
    return f"Environment\n-----------\n{render_facts(facts)}"


def render_facts(facts: Mapping[str, Any]) -> str:
    """Return an environment, of this machine or of a stored report, one fact a line."""
    names = {name: str(name).replace("_", " ") for name in facts}
    width = max(map(len, names.values()), default=0)
    return "\n".join(printable(f"{names[name]:<{width}}  {_shown(facts[name])}") for name in facts)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == []:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
