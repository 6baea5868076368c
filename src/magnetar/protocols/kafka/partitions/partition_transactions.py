"""Transactions of one partition, beside its log: what is open, and a cursor that says from where on
the log must be read to know that.

Rules:

* A log that has or had transactions has the cursor ``CURSOR``. It is made, durably, before the
  first batch of one is appended; so a log without it is known to have none, and costs nothing.
* The cursor stays before the first batch of the oldest open transaction. So what is open is known
  after reading from it to the end, and retention keeps what such a transaction has written. It
  moves on when transactions end, and, while none is open, every ``MOVE_OFFSETS``: never past what
  is readable and was not told yet, since that may open one.
* When an append has failed it is not known what is stored: all is read again.

Why: docs/adr/0117-transactions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.log.seam import Cursor, WritableLog
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.model.ids import LATEST, Position
from magnetar.protocols.kafka.partitions.transaction_index import (
    Aborted,
    AbortedAhead,
    StoredTransactions,
    TransactionWriters,
    is_part,
)
from magnetar.topics.topic import OPEN_TRANSACTIONS
from magnetar.wire.kafka.batches import CONTROL, BatchHeader, is_batch, read_batch_header
from magnetar.wire.kafka.markers import read_marker

CURSOR: Final = OPEN_TRANSACTIONS
MOVE_OFFSETS: Final = 1_000
STEP_ENTRIES: Final = 200
STEP_BYTES: Final = 4 << 20


class PartitionTransactions:
    """See the module's text."""

    def __init__(self, log: WritableLog) -> None:
        self._log = log
        self._positions = log.positions
        self._cursor: Cursor | None = log.cursors.durable().get(CURSOR)
        self._end_watch: Callable[[], None] | None = None
        self._moved_offset = 0
        self.known = self._cursor is None
        self.stored = StoredTransactions()
        self.writers = TransactionWriters()

    @property
    def there(self) -> bool:
        """Batches of transactions may be appended."""
        return self._cursor is not None and self.known

    async def prepare(self) -> None:
        """Before the first batch of a transaction. Raises ``LogError``, ``MetadataError``."""
        if self._cursor is None:
            self._cursor = await self._log.cursors.open(CURSOR, LATEST)
            self.stored = StoredTransactions(self._positions.end_offset)
            self._watch()

    def _watch(self) -> None:
        if self._end_watch is None:
            self._end_watch = self._log.watch_readable(self._grew)

    def doubt(self) -> None:
        """An append has failed: what is stored is not known."""
        self.known = self._cursor is None
        self.writers = TransactionWriters()

    async def read(self) -> tuple[StoredTransactions, TransactionWriters]:
        """What the log says. Raises as reading a log."""
        assert self._cursor is not None, "a log without the cursor is known"
        # Else the last batches of a former leader would open transactions that nobody knows of: no
        # marker would end them, and readers would take them for committed.
        await self._log.opening.wait_whole()
        at = self._positions.next_position(self._cursor.mark_delete)
        stored = StoredTransactions(await self._positions.offset_of(at))
        writers = TransactionWriters()
        while at <= self._positions.readable:
            entries = await self._log.read(at, STEP_ENTRIES, STEP_BYTES)
            if not entries:
                break
            for entry in entries:
                header = part_of(entry)
                if header is not None:
                    _learn(stored, writers, header, entry)
            at = self._positions.next_position(entries[-1].position)
            await asyncio.sleep(0)  # others have their turns
        return stored, writers

    def learned(self, found: tuple[StoredTransactions, TransactionWriters]) -> None:
        """What ``read`` has found is so: nothing was appended meanwhile."""
        self.stored, self.writers = found
        self.known = True
        self._watch()

    # -- what is stored -----------------------------------------------------------------------

    def batch_stored(self, header: BatchHeader, base_offset: int, position: Position) -> None:
        self.stored.batch(header._replace(base_offset=base_offset), position)

    def marker_stored(
        self, header: BatchHeader, base_offset: int, position: Position, commits: bool
    ) -> None:
        self.stored.marker(header._replace(base_offset=base_offset), commits)
        # No further: what is readable behind it may be of a transaction, and be told next.
        self._move(position)

    def _grew(self) -> None:
        # By now all that is readable has been told (``log.watching``).
        if self._positions.end_offset - self._moved_offset >= MOVE_OFFSETS:
            self._move(self._positions.readable)

    def _move(self, until: Position) -> None:
        """The cursor follows what is open; where nothing is, to ``until``."""
        if self._cursor is None or not self.known:
            return
        first = self.stored.first_open
        self._moved_offset = self._positions.end_offset
        if first is None:
            self._cursor.acknowledge_cumulative(until)
        else:
            before = self._positions.previous_position(first.position)
            self._cursor.acknowledge_cumulative(before)

    # -- readers ------------------------------------------------------------------------------

    def stable_offset(self) -> int:
        return self.stored.stable_offset(self._positions.end_offset)

    async def aborted_in(
        self,
        first_offset: int,
        answered: Sequence[tuple[BatchHeader, bool | None]],
        after: Position,
    ) -> list[Aborted]:
        """The aborted transactions with batches among ``answered`` (parts of transactions, and
        whether a marker commits), all of them stable; ``after``: the entry behind the answer.
        Raises as reading a log, ``LogError``."""
        if not answered:
            return []
        if first_offset >= self.stored.seen_from:
            end_offset = answered[-1][0].next_offset
            aborted = self.stored.aborted_between(first_offset, end_offset)
            return [each for each in aborted if _has_part_in(each, answered)]
        ahead, at = AbortedAhead(), after
        for header, commits in answered:
            ahead.look(header, commits, True)
        while ahead.waits and at <= self._positions.readable:
            entries = await self._log.read(at, STEP_ENTRIES, STEP_BYTES)
            if not entries:
                break
            for entry in entries:
                found = part_of(entry)
                if found is not None:
                    ahead.look(found, commits_of(found, entry), False)
            at = self._positions.next_position(entries[-1].position)
        if ahead.waits:
            raise LogError(
                f"log {self._log.name} has batches of a transaction at offset {first_offset} or "
                "after it, before its last stable offset, and no marker behind them"
            )
        return ahead.aborted


def _has_part_in(aborted: Aborted, answered: Sequence[tuple[BatchHeader, bool | None]]) -> bool:
    """Compaction may have taken its batches and its marker: a client that is told of it, and gets
    no marker, would drop what the producer commits later."""
    return any(
        header.producer_id == aborted.producer_id
        and aborted.first_offset <= header.base_offset <= aborted.last_offset
        for header, _ in answered
    )


def _learn(
    stored: StoredTransactions, writers: TransactionWriters, header: BatchHeader, entry: Entry
) -> None:
    if header.attributes & CONTROL:
        commits, coordinator_epoch = read_marker(entry.payload)
        stored.marker(header, commits)
        writers.marker(header.producer_id, header.producer_epoch, coordinator_epoch)
    else:
        stored.batch(header, entry.position)
        writers.batch(header)


def part_of(entry: Entry) -> BatchHeader | None:
    """The header of a batch that is part of a transaction."""
    payload = entry.payload
    if not is_batch(payload):
        return None
    header = read_batch_header(payload)
    return header if is_part(header) else None


def commits_of(header: BatchHeader, entry: Entry) -> bool | None:
    """Whether a marker commits; None: it is none."""
    return read_marker(entry.payload)[0] if header.attributes & CONTROL else None
