"""What a log on partitions has beside its entries: durable cursors, a checkpoint, holds.

Owns them from opening to closing. They are those of logs on ledgers (``log.managed``), over another
order of positions and another record. Implements ``partition.serving.partition_log.LogCompany``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from magnetar.log.ack_store import AckStore
from magnetar.log.engines.record import PartitionRecord
from magnetar.log.managed.cursors import CursorContext, CursorEvents, ManagedCursors
from magnetar.log.managed.holds import HoldEvents, LogHolds
from magnetar.log.managed.records import HandedCursor
from magnetar.log.partition.serving.cursor import PartitionCursor, PartitionCursors
from magnetar.log.partition.serving.partition_log import PartitionLog
from magnetar.log.seam import Checkpoints, Cursors, Holds
from magnetar.model.errors import LogFencedError, MagnetarError
from magnetar.model.ids import Position


class PartitionCompany:
    """See the module's text."""

    def __init__(
        self,
        source: PartitionLog,
        record: PartitionRecord,
        context: CursorContext,
        now_ms: Callable[[], int],
    ) -> None:
        self._record = record
        self._places = source.places
        events = CursorEvents(
            source.trim_nowait, source.lose, source.require_open, record.confirm_owned
        )
        self._cursors = ManagedCursors(
            source.name, PartitionCursors(source.places), context, source.scope, events
        )
        hold_events = HoldEvents(source.trim_nowait, source.lose, source.require_open)
        self._holds = LogHolds(record, now_ms, hold_events)
        self.cursors: Cursors = self._cursors
        self.checkpoints: Checkpoints = record
        self.holds: Holds = self._holds

    async def recover(self, names: Sequence[str], handed: Sequence[HandedCursor] | None) -> None:
        """Load the durable cursors: those that the last owner has handed over, else ``names``,
        which the metadata store has. Raises ``LogError``, ``LedgerError``, ``MetadataError``."""
        if handed is not None:
            await self._cursors.take_handed(handed)
        else:
            await self._cursors.recover(names)
        places = self._places
        self.pass_over(places.position(places.following(places.start)))

    def pass_over(self, front: Position) -> None:
        """See ``LogCompany``."""
        self._cursors.pass_over(front)

    def passed(self, first: int, end: int) -> None:
        """See ``LogCompany``."""
        for each in self._cursors.durable().values():
            if isinstance(each, PartitionCursor):
                each.passed(first, end)

    def stores(self) -> Iterable[AckStore]:
        """Of the durable cursors."""
        return self._cursors.stores()

    def needed_from(self, *, counted: bool) -> list[Position]:
        """See ``LogCompany``."""
        checkpoint = self._record.stored if counted else self._record.checkpoint
        marks = [each.stored_mark_delete for each in self.stores()]
        marks += [] if checkpoint is None else [checkpoint.position]
        places = self._places
        after = [places.position(places.following(places.offset(mark) + 1)) for mark in marks]
        return after + [Position(hold.ledger_id, 0) for hold in self._holds.all()]

    async def count(self) -> None:
        """See ``LogCompany``."""
        if self._record.stored != self._record.checkpoint:
            await self._record.save()

    @property
    def created_ms(self) -> int:
        return self._record.record.created_ms

    def tick(self) -> None:
        """Some time has passed."""
        self._cursors.clean_up_nowait()

    async def close(self, lost: bool) -> list[MagnetarError]:
        """See ``LogCompany``."""
        found = await asyncio.gather(*(_error_of(each.close()) for each in self.stores()))
        errors = [each for each in found if each is not None]
        if not lost:
            handed = None if errors else await self._cursors.handed_over()
            failed = await _error_of(self._record.hand_over(handed))
            if failed is not None and not isinstance(failed, LogFencedError):
                errors.append(failed)
        return errors


async def _error_of(closing: Awaitable[None]) -> MagnetarError | None:
    """What it failed with."""
    try:
        await closing
    except MagnetarError as error:
        return error
    return None
