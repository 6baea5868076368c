"""What a bookie could not read of what it holds, and who is told.

Readers take another copy and go on, so that nobody would hear of a disk that fails, or of a copy
that is damaged, until the last sound one is gone. So each is counted, named in the log and in
``/health``.

Rules:

* An entry is listed from a read of it that failed until one succeeds, the entry is added again, or
  its ledger is deleted. Whoever asks how the bookie is has some read again (``again``): what has
  passed must not be told for ever. ``NO_ENTRY`` stands for the list of a ledger's entries.
* At most ``LISTED_MAX`` are listed, the first that were met; all are counted.
* The log says so once in ``TOLD_AGAIN_S`` at most: readers try again, and one sector has many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import structlog

from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError
from magnetar.model.ids import NO_ENTRY

log = structlog.get_logger(__name__)

LISTED_MAX: Final = 1000
TOLD_AGAIN_S: Final = 60.0
READ_AGAIN_S: Final = 30.0
READ_AGAIN_MAX: Final = 8
REMEDY: Final = (
    "look at its disk; have sound copies put in their place (magnetar ledger verify --all "
    "--repair); if it goes on, empty the bookie (magnetar bookie decommission)"
)

Key: TypeAlias = tuple[int, int]


class ReadFailures:
    """Of one bookie; used on its loop. ``now_s`` is of one clock that never goes back."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._listed: dict[Key, str] = {}
        self._told_s = -TOLD_AGAIN_S
        self._again_s = -READ_AGAIN_S

    @property
    def problem(self) -> str:
        """What is listed, and why the first one failed; empty: nothing is."""
        if not self._listed:
            return ""
        ledgers = sorted({ledger_id for ledger_id, _ in self._listed})
        named = ", ".join(map(str, ledgers[:5])) + (", ..." if len(ledgers) > 5 else "")
        more = "at least " if len(self._listed) >= LISTED_MAX else ""
        return (
            f"{more}{len(self._listed)} entries of ledgers {named} cannot be read: "
            f"{next(iter(self._listed.values()))}"
        )

    def failed(self, ledger_id: int, entry_id: int, error: BookieIOError, now_s: float) -> None:
        self._metrics.bookie_failed_reads_total.inc()
        if len(self._listed) < LISTED_MAX:
            self._listed[ledger_id, entry_id] = str(error)
        if now_s - self._told_s >= TOLD_AGAIN_S:
            self._told_s = now_s
            what = "entry" if entry_id != NO_ENTRY else "list of entries"
            log.error(
                f"{what} cannot be read here",
                entry=f"{ledger_id}:{entry_id}",
                error=str(error),
                unreadable=len(self._listed),
                remedy=REMEDY,
            )

    def again(self, now_s: float) -> list[Key]:
        """Which are to be read again now: some, now and then."""
        if not self._listed or now_s - self._again_s < READ_AGAIN_S:
            return []
        self._again_s = now_s
        return list(self._listed)[:READ_AGAIN_MAX]

    def sound(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        """These were read, or are being added again."""
        if self._listed:
            for entry_id in entry_ids:
                self._listed.pop((ledger_id, entry_id), None)

    def deleted(self, ledger_id: int) -> None:
        if self._listed:
            self._listed = {key: why for key, why in self._listed.items() if key[0] != ledger_id}
