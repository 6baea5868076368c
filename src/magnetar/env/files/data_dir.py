"""The data directory of a process: made, locked, and laid out.

``LOCK`` is held (flock) while a process uses the directory, so a crash releases it; its text says
who holds it. Layout::

    DIR/LOCK
    DIR/metadata.sqlite                  the embedded metadata store
    DIR/start-reserve                    room for a start on a full disk (``start_reserve``)
    DIR/metadata-socket                  where brokers and operators' commands reach it
    DIR/bookie-0/journal, .../ledgers    bookie 0, unless its directories are configured
    DIR/bookie-1/...
"""

from __future__ import annotations

import os
from pathlib import Path

from magnetar.env.files.lock_file import LockHeldError, open_locked, write_owner
from magnetar.model.errors import StartError

LOCK_NAME = "LOCK"


def metadata_file(path: Path) -> Path:
    """The embedded metadata store of the data directory ``path``."""
    return path / "metadata.sqlite"


class DataDir:
    """A directory that this process alone uses, from ``open`` to ``close``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use ``open``."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, role: str) -> DataDir:
        """Make ``path`` if need be and lock it for ``role``.

        Raises ``StartError`` when it cannot be made or another process uses it.
        """
        lock = path / LOCK_NAME
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = open_locked(lock)
        except OSError as error:
            raise StartError(f"cannot use the data directory {path}: {error.strerror}") from error
        except LockHeldError as error:
            raise StartError(
                f"the data directory {path} is in use by {error.owner or 'another process'}; "
                "stop it first, or choose another with --data-dir"
            ) from error
        try:
            write_owner(descriptor, f"magnetar {role}, process {os.getpid()}")
        except OSError as error:
            raise StartError(
                f"cannot use the data directory {path}: {lock} cannot be written: {error.strerror}"
            ) from error
        return cls(path, descriptor)

    def journal_directory(self, bookie: int) -> Path:
        return self.path / f"bookie-{bookie}" / "journal"

    def ledger_directory(self, bookie: int) -> Path:
        return self.path / f"bookie-{bookie}" / "ledgers"

    def bookies_held(self) -> int:
        """How many bookies have data here: one more than the highest number among them."""
        numbers = (entry.name.removeprefix("bookie-") for entry in self.path.glob("bookie-*"))
        return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)

    def close(self) -> None:
        """Let go of the directory. The lock file stays: removing it would race with a waiter."""
        os.close(self._descriptor)
