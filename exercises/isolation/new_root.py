"""A root of its own for a job: Python, this library, a folder to work in, and nothing else.

What is not shown here does not exist for the job: no home, no other submission, no grades, no
socket of a service, no device but those that only give or take bytes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import exercises
from exercises.isolation import linux

JOB = Path("/job")
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")  # shared libraries
PACKAGES = ("minigpt", "diagnostics", "exercises", "data")
BASE_BYTES = 4 * 1024 * 1024  # for folders, links and names; what is shown takes no room


def enter(base: Path, given: Path | None, size_bytes: int) -> bool:
    """Make `base`, an empty folder, the root; return whether it worked. Wants capabilities.

    given: a folder of files, copied to JOB / "work", which is the only place to write.
    size_bytes: how much fits there.
    """
    if not linux.mount_scratch(base, size_bytes + BASE_BYTES):
        return False
    if not all(_show(path, base) for path in _shown_paths()):
        return False
    for folder in ("proc", "old", "given", JOB.name):
        (base / folder).mkdir()
    linux.mount_proc(base / "proc")  # where that is refused, there is none
    if given is not None:
        shutil.copytree(given, base / "given", symlinks=True, dirs_exist_ok=True)
    if not linux.change_root(base, base / "old") or not linux.make_read_only():
        return False
    if not linux.mount_scratch(JOB, size_bytes):
        return False
    shutil.copytree("/given", JOB / "work", symlinks=True)
    return True


def _shown_paths() -> Iterator[Path]:
    """Yield what a job can see, outer folders before inner ones."""
    library = Path(exercises.__file__).parents[1]
    wanted = {Path(path) for path in (*SYSTEM, sys.prefix, sys.base_prefix)}
    wanted |= {Path("/dev") / name for name in DEVICES} | {library / name for name in PACKAGES}
    wanted |= {Path(path) for path in sys.path if "-packages" in path}
    kept: list[Path] = []
    for path in sorted(wanted):
        if path.exists() and not any(outer in path.parents for outer in kept):
            kept.append(path)
            yield path


def _show(path: Path, base: Path) -> bool:
    """Show a file or folder under the new root, where it is under the old one."""
    target = base / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # /lib is a link to usr/lib on most systems
        target.symlink_to(path.readlink())
        return True
    if path.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    return linux.show(path, target)
