"""What a text that is posted for all to read should not say: where a person keeps files."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

# Home folders of this and of other systems: of any user, also with the backslashes of a repr.
_POSIX_HOME = re.compile(
    r"(?<![\w.~])/(?:home|Users)/[^/\s'\"`:]+|(?<![\w.~/])/root(?=[/\s'\":]|$)"
)
_WINDOWS_HOME = re.compile(
    r"[a-z]:(?:\\+|/)Users(?:\\+|/)(?:[^\\/\n'\"`:]{1,64}(?=[\\/])|[^\\/\s'\"`:]+)", re.IGNORECASE
)
_NAME_MIN = 3  # characters; a shorter user name is a part of too many words
_COMMON = frozenset({"root", "user", "users", "home", "ubuntu", "runner", "admin", "data", "work"})


def shorten_paths(text: str) -> str:
    """Return the text with paths relative to the current folder, home folders as `~`.

    A user's name elsewhere in a path becomes USER. Nothing is read from the environment but the
    home folder and the name of the user.
    """
    here, home = Path.cwd(), _home()
    for folder, short in ((here, ""), (home, "~")):
        if folder is not None and len(folder.parts) > 2:
            text = _replace_folder(text, str(folder), short)
    text = _WINDOWS_HOME.sub("~", _POSIX_HOME.sub("~", text))
    name = _user()
    if name is not None and len(name) >= _NAME_MIN and name.lower() not in _COMMON:
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\])", "USER", text)
    return text


def _replace_folder(text: str, folder: str, short: str) -> str:
    """Replace a folder in front of what lies inside it, and where it stands alone."""
    inside = f"{short}/" if short else ""
    for spelled in {folder, folder.replace("\\", "\\\\"), folder.replace("\\", "/")}:
        head = rf"(?<![\w.~/\\-]){re.escape(spelled)}"
        text = re.sub(rf"{head}[/\\]+(?=[^\s/\\])", inside, text)
        text = re.sub(rf"{head}(?![\w.-])", short or ".", text)
    return text


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user without a home folder
        return None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return None
