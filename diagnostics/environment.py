"""Environment (being written)."""

from typing import Any


def measure_environment() -> dict[str, Any]:
    """Return versions and devices."""
    return {}
