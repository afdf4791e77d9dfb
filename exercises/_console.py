"""Plain lines for a terminal: folded to its width, ASCII, a prompt only where somebody sits."""

from __future__ import annotations

import shutil
import sys
import textwrap

WIDEST = 88
NARROWEST = 40


def columns() -> int:
    """Return the width to write for; COLUMNS says so where there is no terminal."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def tell(text: str, *, indent: str = "", hanging: int = 0) -> None:
    """Print one paragraph; all lines but the first hang by so many columns."""
    print("\n".join(fold(text, indent=indent, hanging=hanging)))


def fold(text: str, *, indent: str = "", hanging: int = 0) -> list[str]:
    """Return the lines of one paragraph; what is not ASCII is escaped."""
    return textwrap.wrap(
        in_ascii(text),
        columns(),
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) + hanging),
        break_on_hyphens=False,
    )


def in_ascii(text: str) -> str:
    """Escape what a terminal of any encoding might not show."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def on_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(prompt: str) -> str | None:
    """Return what was typed, without the blanks around it; None at the end of the input."""
    try:
        return input(prompt).strip()
    except EOFError:
        print()
        return None
