"""What Linux offers to shut a process in, through the C library: no privileges are needed.

Every function returns whether it worked; a kernel may refuse any of them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
PR_CAPBSET_DROP = 24
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
SYS_MOUNT_SETATTR = 442  # the same number on every architecture; Linux 5.12
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522
SCRATCH_FILES = 100_000  # each one costs the kernel memory, an empty one too
INSIDE_ID = 1000  # the user and group id that a job sees of itself

IS_LINUX = sys.platform.startswith("linux")
_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def set_dumpable(dumpable: bool) -> bool:
    """Let other processes of the same user read this one's memory, or not."""
    return _prctl(PR_SET_DUMPABLE, int(dumpable))


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose own parent has ended."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """Get SIGKILL when the thread that started this process ends."""
    return _prctl(PR_SET_PDEATHSIG, 9)


def die_first() -> bool:
    """Be what the kernel ends when memory runs out, before anything else."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return False
    return True


def gain_no_privileges() -> bool:
    """Make programs with the set-user-id bit run as anybody else's."""
    return _prctl(PR_SET_NO_NEW_PRIVS, 1)


def enter_namespaces() -> bool:
    """Leave for new user, mount, process, network and IPC namespaces; this user becomes INSIDE_ID.

    The process namespace is entered by the next fork. Must be called while dumpable.
    """
    if _libc is None:
        return False
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if _libc.unshare(flags) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {group} 1")
    except OSError:
        return False
    return _mount(None, "/", None, MS_REC | MS_PRIVATE)


def cover(path: Path) -> bool:
    """Put an empty file system over a folder, the null device over a file, nothing over nothing."""
    if path.is_dir():
        return _mount("tmpfs", str(path), "tmpfs", MS_NOSUID | MS_NODEV, "size=4k")
    return not path.exists() or _mount(os.devnull, str(path), None, MS_BIND)


def mount_scratch(folder: Path, size_bytes: int) -> bool:
    """Put an empty file system in memory over a folder: writable, and no larger than that."""
    options = f"size={size_bytes},mode=700,nr_inodes={SCRATCH_FILES}"
    return _mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, options)


def mount_proc(folder: Path) -> bool:
    """Show the processes of this namespace, and no others, in a folder."""
    return _mount("proc", str(folder), "proc", MS_NOSUID | MS_NODEV)


def show(source: Path, target: Path) -> bool:
    """Make a file or folder appear at a second place, with all that is mounted in it."""
    return _mount(str(source), str(target), None, MS_BIND | MS_REC)


def change_root(new: Path, old: Path) -> bool:
    """Make a mounted folder the root, and let go of the old one; `old`: a folder in `new`."""
    number = SYS_PIVOT_ROOT.get(platform.machine())
    if _libc is None or number is None:
        return False
    paths = [os.fsencode(path) for path in (new, old)]
    if _libc.syscall(ctypes.c_long(number), *paths) != 0:
        return False
    os.chdir("/")
    return bool(_libc.umount2(os.fsencode("/" + old.name), MNT_DETACH) == 0)


def make_read_only() -> bool:
    """Make every file system that is mounted read-only, for this mount namespace."""
    if _libc is None:
        return False
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0))
    done = _libc.syscall(
        *map(ctypes.c_long, (SYS_MOUNT_SETATTR, AT_FDCWD)), b"/",
        ctypes.c_long(AT_RECURSIVE), attributes, ctypes.c_size_t(32),
    )  # fmt: skip
    return bool(done == 0)


def drop_capabilities() -> bool:
    """Give up every capability in this user namespace, for this process and what it starts."""
    if _libc is None:
        return False
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # unknown numbers are refused
    header = ctypes.create_string_buffer(struct.pack("Ii", LINUX_CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(struct.pack("6I", 0, 0, 0, 0, 0, 0))
    return bool(_libc.capset(header, nothing) == 0)


def children_of(parent: int) -> list[int]:
    """Return the process ids whose parent is `parent`, a process of one thread."""
    with suppress(OSError):  # kernels without this file are asked process by process
        return [int(n) for n in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text(errors="replace")
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(folder.name))
    return found


def address_space_bytes() -> int:
    """Return how much address space this process takes; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _prctl(option: int, value: int) -> bool:
    return _libc is not None and _libc.prctl(option, value, 0, 0, 0) == 0


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> bool:
    if _libc is None:
        return False
    encoded = [None if text is None else os.fsencode(text) for text in (source, kind, options)]
    done = _libc.mount(
        encoded[0], os.fsencode(target), encoded[1], ctypes.c_ulong(flags), encoded[2]
    )
    return bool(done == 0)
