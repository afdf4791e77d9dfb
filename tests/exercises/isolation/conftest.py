"""One sandbox for many tests: starting it loads torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exercises.isolation.limits import Level
from exercises.isolation.sandbox import Sandbox


@pytest.fixture(scope="package")
def sandbox() -> Iterator[Sandbox]:
    """The highest level that this system gives."""
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="package")
def limited_sandbox() -> Iterator[Sandbox]:
    """Limits and no namespaces, as on a system that does not let ordinary users have them."""
    with Sandbox(level_max=Level.L2) as sandbox:
        yield sandbox
