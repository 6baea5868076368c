"""``magnetar bookie`` for power cuts, with a defect planted if one is named:

python -m tests.power_cuts.bookie PLANT OPTIONS...       PLANT: a name of ``PLANTS``, or none
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.cli import servers
from magnetar.cli.main import main
from magnetar.env.files.disk import Buffer, RealDisk, RealFile


def _journal_is_not_synced() -> None:
    def write_through(self: RealFile, parts: Sequence[Buffer], offset: int) -> None:
        self.pwritev(parts, offset)

    RealFile.write_through = write_through  # type: ignore[method-assign]


def _directory_is_not_synced_by(*modules: str) -> Callable[[], None]:
    def plant() -> None:
        original = RealDisk.sync_dir

        def sync_dir(self: RealDisk, path: Path) -> None:
            if not sys._getframe(1).f_code.co_filename.endswith(modules):
                original(self, path)

        RealDisk.sync_dir = sync_dir  # type: ignore[method-assign]

    return plant


def _index_is_not_synced() -> None:
    def sync(self: Any) -> None:
        self.synced_sequence = self.sequence

    LocationIndex.sync = sync  # type: ignore[method-assign]


def _entry_log_is_not_synced() -> None:
    original = RealFile.datasync

    def datasync(self: RealFile) -> None:
        if self.path.suffix != ".log":
            original(self)

    RealFile.datasync = datasync  # type: ignore[method-assign]


def _mark_is_not_synced() -> None:
    original = RealFile.datasync

    def datasync(self: RealFile) -> None:
        if self.path.name != "lastmark.new":
            original(self)

    RealFile.datasync = datasync  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "journal": _journal_is_not_synced,
    "new-journal-file": _directory_is_not_synced_by("/journal_files.py"),
    # One alone is not missed: names in a directory are durable in order, and the mark's sync comes
    # before anything rests on a log.
    "ledger-directory": _directory_is_not_synced_by("/entry_log.py", "/marks.py", "/reclaim.py"),
    "index": _index_is_not_synced,
    "entry-log": _entry_log_is_not_synced,
    "mark": _mark_is_not_synced,
}


if __name__ == "__main__":
    PLANTS[sys.argv[1]]()
    # A bookie wants ZooKeeper; here its metadata is in the process of the test.
    servers.clustered.__defaults__ = (servers.SHARED_METADATA,)
    sys.argv = ["magnetar", "bookie", *sys.argv[2:]]
    main()
