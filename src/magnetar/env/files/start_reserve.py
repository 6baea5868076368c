"""Room to start in, on a disk that others have filled to the last byte.

A start writes some hundred kilobytes before anything is read or deleted (the metadata store's log,
the bookies' indexes): without them a platform could not be started to delete topics from it. So
its data directory keeps ``RESERVE_BYTES`` in a file, which a start gives up when it finds less than
that free, and a later one writes again. Blocking.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from magnetar.env.files.disk import RealDisk
from magnetar.model.errors import StartError

log = structlog.get_logger(__name__)

RESERVE_NAME: Final = "start-reserve"
RESERVE_BYTES: Final = 4 << 20
LEAST_BYTES: Final = 512 << 10
"""A start with 256 KiB came as far as serving, and could not end in order."""
PLENTY_BYTES: Final = 64 << 20
"""From so much on what the reserve takes is not missed: it does not come and go with each start."""


def make_room(directory: Path) -> None:
    """Of a data directory that is locked. Raises ``StartError`` if there is none."""
    reserve = directory / RESERVE_NAME
    free_bytes = RealDisk().space(directory).free_bytes
    if free_bytes >= PLENTY_BYTES:
        _fill(reserve)
        return
    if free_bytes < RESERVE_BYTES and reserve.exists():
        reserve.unlink()
        free_bytes = RealDisk().space(directory).free_bytes
        log.warning("the reserve for starting is given up", path=reserve, free_bytes=free_bytes)
    if free_bytes < LEAST_BYTES:
        raise StartError(
            f"the disk of {directory} is full: {free_bytes} bytes are free, and a start takes "
            f"{LEAST_BYTES}; remove or move what else is on that disk, or add space, and start "
            "again: then topics can be read, and deleted to make more room"
        )


def _fill(reserve: Path) -> None:
    if reserve.exists() and reserve.stat().st_size == RESERVE_BYTES:
        return
    try:
        with reserve.open("wb") as file:
            file.write(bytes(RESERVE_BYTES))
    except OSError as error:  # the next start tries again; this one does not need it
        log.warning("no reserve for starting is kept", path=reserve, error=str(error))
        with suppress(OSError):
            reserve.unlink()
