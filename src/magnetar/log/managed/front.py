"""The front of a log on ledgers, which moves to any offset; and its epochs: whichever owner wrote
an entry, what was readable once is never cut off. Implements ``log.seam.LogFront`` and
``LogEpochs``.

Where the log begins is kept in its record (``chain.Front``), which trimming, the next owner and
followers read. Rules:

* Readers see it before the record does: nobody is given what somebody else was told is gone. If the
  write fails it is in doubt, and the next write of the record says the same.
* Cursors pass what is gone only when the record says so; until they have stored that, their ledgers
  stay.
* Nothing is deleted that a later owner must read (``log.seam.Checkpoints``), nor of a log that is
  read from elsewhere as well: its table, or what compaction has left, would still have it.

Why: docs/adr/0159-deleted-records-on-ledgers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.log.managed.chain import Front
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.seam import Positions
from magnetar.model.errors import (
    LogFencedError,
    NotAllowedError,
    OffsetOutOfRangeError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.model.url_secrets import without_passwords

EVERYTHING: Final = -1


@dataclass(frozen=True, slots=True)
class FrontEvents:
    """What the log wants to know. ``moved``: the record says that the log begins later;
    ``compacted``: something of it lies in a compacted ledger, or is about to; ``require_open``
    raises when it is not open here any more."""

    moved: Callable[[], None]
    compacted: Callable[[], bool]
    lost: Callable[[LogFencedError], None]
    require_open: Callable[[], None]


class LedgersFront:
    """See the module's text."""

    def __init__(self, store: ChainStore, positions: Positions, events: FrontEvents) -> None:
        self._store = store
        self._chain = store.chain
        self._positions = positions
        self._events = events

    @property
    def offset(self) -> int:
        """See the seam."""
        return self._chain.front.offset

    @property
    def _begin(self) -> int:
        return max(self._chain.first_offset, self._chain.front.offset)

    async def delete_before(self, offset: int) -> int:
        """See the seam. Raises as reading a log as well, ``LogFencedError``, ``MetadataError``, and
        ``ServiceNotReadyError`` for what can be deleted a little later."""
        self._events.require_open()
        end = self._chain.end_offset
        wanted = end if offset == EVERYTHING else offset
        if not 0 <= wanted <= end:
            raise OffsetOutOfRangeError(
                f"log {self._store.name}: records can be deleted up to {end}, not {offset}"
            )
        if wanted > self._begin:
            front = await self._front_at(wanted)
            self._events.require_open()
            self._check(front)
            # From the check to here nobody else has had a turn.
            self._chain.begin_at(front)
        elif self._store.stored_front == self._chain.front:
            return self._begin
        # Also of one that is asked for again: its first write failed, or is under way.
        try:
            await self._store.save()
        except LogFencedError as error:
            self._events.lost(error)
            raise
        self._events.moved()
        return self._begin

    async def _front_at(self, offset: int) -> Front:
        place = await self._positions.position_of(offset)
        first = await self._positions.offset_of(place)
        # What was trimmed meanwhile is gone as well.
        return Front(place, first, max(first, offset))

    def _check(self, front: Front) -> None:
        name, table = self._store.name, self._store.table
        if table is not None:
            raise NotAllowedError(
                f"log {name} is read from the table {without_passwords(table.where)} as well, "
                "which would still have what is deleted here; detach the table, or erase rows there"
            )
        if self._events.compacted():
            raise NotAllowedError(
                f"log {name} is compacted: what was left of its older records is kept by key, and "
                "is not deleted by offset; publish null values for the keys instead"
            )
        checkpoint, (ledger_id, entry_id) = self._store.checkpoint, front.position
        last = self._chain.last_at(Position(ledger_id, entry_id - 1))
        if checkpoint is not None and checkpoint.position < last:
            raise ServiceNotReadyError(
                f"log {name} is taking in what queries have staged, from {checkpoint.position} on; "
                "delete records again in a moment"
            )


class EpochsOfLedgers:
    """``end_offset``: of what can be read now."""

    whole_since = 0

    def __init__(self, epoch: int, end_offset: Callable[[], int]) -> None:
        self._epoch = epoch
        self._end_offset = end_offset

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """See the seam."""
        return (epoch, self._end_offset()) if 0 <= epoch <= self._epoch else (-1, -1)
