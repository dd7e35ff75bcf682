"""Folders replaced as a whole: whatever kills the writer, the old folder is there or the new one.

A full folder cannot be exchanged for another in one portable step. So the new one is made under a
hidden name beside its place, the old one is set aside, the new one renamed, the old one deleted;
and whoever finds the place empty brings the old one back. Renaming onto a full folder fails: of two
writers each sees the other's folder and sets it aside in turn, and no lock is needed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

# Another computer's process cannot be asked whether it lives; no run pauses that long.
ABANDONED_AFTER_S = 14 * 86400


def begin(target: Path) -> Path:
    """Make a hidden folder beside ``target``, to be filled and then put in its place."""
    folder = _hidden(target, "staging")
    folder.mkdir()
    return folder


def write(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it, so that a folder in place is a whole one."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def put(folder: Path, target: Path, *, replace: bool) -> bool:
    """Move ``folder`` to ``target``, in place of what is there.

    Returns:
        Whether it is in place: False, with nothing changed, if ``replace`` is false and there is
        something in ``target``.
    """
    aside = []
    while True:
        try:
            os.rename(folder, target)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        if not replace:
            return False
        aside.append(_hidden(target, "aside"))
        with suppress(FileNotFoundError):
            os.rename(target, aside[-1])
    for old in aside:
        _delete(old, target)
    return True


def recover(target: Path) -> None:
    """Bring back a folder whose replacement was cut short between its two renames."""
    if target.exists():
        return
    aside = [old for old in target.parent.glob(f".{target.name}.aside-*") if old.is_dir()]
    if aside:
        # A living writer may be faster; its folder is then in place, and as good.
        with suppress(OSError):
            os.rename(max(aside, key=_last_written), target)


def tidy(target: Path) -> None:
    """Recover, then delete the hidden folders that dead processes left."""
    # Listed before the target is looked at: what is set aside after that is not deleted here.
    leftovers = list(target.parent.glob(f".{target.name}.*-*-*-*"))
    recover(target)
    for leftover in leftovers:
        is_needed = ".aside-" in leftover.name and not target.exists()
        if _abandoned(leftover) and not is_needed:
            _delete(leftover, target)


def discard(folder: Path, process: int) -> None:
    """Delete a hidden folder, if it was begun by this process."""
    # A forked worker inherits the draft, and must not delete its parent's folder.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _hidden(target: Path, purpose: str) -> Path:
    """Name a folder beside the target that tells whose it is: computer, process, one of many."""
    owner = f"{_computer()}-{os.getpid()}-{secrets.token_hex(4)}"
    return target.with_name(f".{target.name}.{purpose}-{owner}")


def _delete(folder: Path, target: Path) -> None:
    """Delete a hidden folder, renamed first: nobody takes a half-deleted one for the old one."""
    obsolete = _hidden(target, "obsolete")
    with suppress(OSError):
        os.rename(folder, obsolete)
    shutil.rmtree(obsolete, ignore_errors=True)


def _computer() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())


def _last_written(folder: Path) -> float:
    """Time of the newest file in a folder."""
    return max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)


def _abandoned(folder: Path) -> bool:
    _, computer, process, _ = folder.name.rsplit("-", 3)
    if computer == _computer():
        return not psutil.pid_exists(int(process))
    try:
        return time.time() - folder.stat().st_mtime > ABANDONED_AFTER_S
    except FileNotFoundError:
        return False
