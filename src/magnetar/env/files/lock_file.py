"""Locks on this machine: a file that one process holds (flock). A crash releases it; its text says
who holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

OWNER_BYTES_MAX: Final = 200


class LockHeldError(Exception):
    """``owner``: what the file's text says of who holds it; it may say nothing."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


def open_locked(path: Path | str) -> int:
    """The descriptor that holds the lock; the kernel releases it when the process ends. Raises
    ``OSError`` if the file cannot be opened or made, ``LockHeldError``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, OWNER_BYTES_MAX, 0).decode("utf-8", "replace").strip()
        os.close(descriptor)
        raise LockHeldError(owner) from error
    return descriptor


def write_owner(descriptor: int, owner: str) -> None:
    """Say who holds the lock; it is given up if that cannot be written. Raises ``OSError``."""
    line = f"{owner}\n".encode()
    try:
        os.pwrite(descriptor, line, 0)  # into the block that it has: the disk may be full
        os.ftruncate(descriptor, len(line))
    except OSError:
        os.close(descriptor)
        raise
