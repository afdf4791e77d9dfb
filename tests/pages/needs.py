"""What these tests need besides the library, and what happens where it is missing.

They are skipped and say why; with PAGES_REQUIRED=1, as in CI, they fail instead.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def package(name: str) -> Any:
    """Return a module of one of the packages in the extra `pages`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _missing(
            f"{name.partition('.')[0]} is not installed: python -m pip install -e '.[test,pages]'"
        )


def chromium() -> str:
    """Return the path of a Chromium."""
    for name in (os.environ.get("CHROMIUM", ""), *CHROMIUMS):
        path = shutil.which(name)
        if path:
            return path
    return _missing("no Chromium: apt-get install chromium, or name one in CHROMIUM")


def html_checker() -> list[str]:
    """Return the command of the Nu Html Checker."""
    jar = Path(os.environ.get("VNU_JAR", "vnu.jar"))
    if not jar.is_file() or not shutil.which("java"):
        _missing("no Nu Html Checker: VNU_JAR names the vnu.jar of npm's vnu-jar; it needs java")
    return ["java", "-jar", str(jar)]


def _missing(reason: str) -> NoReturn:
    if os.environ.get("PAGES_REQUIRED"):
        pytest.fail(reason)
    pytest.skip(reason)
