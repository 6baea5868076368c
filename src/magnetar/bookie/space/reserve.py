"""The reserve: a file of zeros in a ledger directory, given up when a flush finds the disk full to
the last byte: index and mark have room again, and compaction for a small log.

Blocking but for ``fill``'s pauses; raises ``OSError``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from magnetar.env.files.disk import Disk

RESERVE_NAME = "reserve"
CHUNK_BYTES = 1 << 20


class Reserve:
    """Of one ledger directory; ``byte_count`` 0: none is kept."""

    def __init__(self, disk: Disk, directory: Path, byte_count: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / RESERVE_NAME
        self.byte_count = byte_count
        self.full = byte_count == 0
        """Nothing is missing, as far as is known."""

    @property
    def held_bytes(self) -> int:
        """What giving it up would free."""
        present = RESERVE_NAME in self._disk.list(self._directory)
        return self._disk.size(self._path) if present else 0

    def fill(self) -> Iterator[None]:
        """Write what is missing, a chunk for each step. A disk that is full meanwhile gets all of
        it back."""
        while (start := self.held_bytes) < self.byte_count:  # given up meanwhile, it begins anew
            size = min(CHUNK_BYTES, self.byte_count - start)
            try:
                self._write(start, size)
            except OSError:
                self.give_up()
                raise
            yield
        self.full = True

    def _write(self, offset: int, size: int) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            file.pwritev([bytes(size)], offset)
            file.datasync()
        finally:
            file.close()

    def give_up(self) -> int:
        """Returns the bytes that were freed."""
        held, self.full = self.held_bytes, self.byte_count == 0
        if RESERVE_NAME in self._disk.list(self._directory):
            self._disk.remove(self._path)
        return held
