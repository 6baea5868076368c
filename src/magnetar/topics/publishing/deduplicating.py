"""Deduplication of one open topic: what is remembered of its producers, and how that survives.

The marks (``sequence_marks``) are in memory, and as the note of a cursor of the log, which says
them up to its mark-delete position. Whoever opens the log reads the note and then the entries
behind that position, which say who sent them and under which ids.

Rules:

* The cursor is there before the first entry is judged by its marks, and is deleted when
  deduplication ends. It is no subscription's.
* What lies behind its position is not deleted, whatever retention says (it is a cursor). So it
  follows: every ``snapshot_entries`` entries (or as many as there are producers, if that is more:
  each note has all of them), at every look for expiry, and when the topic is closed. At these it
  passes what others have appended, too: staged writes, clients of Kafka.
* Marks are taken from the log only while no send of a producer is under way (``begin``). After an
  append that failed nobody knows what of it is stored: the topic is to be opened again.
* Entries of staged writes, and of Kafka's producers, are not looked at: each has its own way
  (``staging.marks``, ``log.sequences``).

Why: docs/adr/0164-repeats-of-producers-are-not-stored.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

import structlog

from magnetar.log.seam import Cursor, WritableLog
from magnetar.model.errors import LogError, NotAllowedError, ProtocolError
from magnetar.model.ids import LATEST, Position
from magnetar.staging.marks import SENDER_PREFIX
from magnetar.topics.entry_format import EntryFormat
from magnetar.topics.publishing.sequence_marks import (
    INACTIVE_MS,
    PRODUCERS_MAX,
    SequenceMark,
    SequenceMarks,
)
from magnetar.topics.reading_on import entries_until

log = structlog.get_logger(__name__)

DEDUPLICATION: Final = "__deduplication"
"""The cursor: no subscription, though it is durable."""
STEP_ENTRIES: Final = 500
STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """``producers_max`` of a topic are remembered, for ``inactive_ms`` after they stored something
    last, or left."""

    producers_max: int = PRODUCERS_MAX
    inactive_ms: int = INACTIVE_MS
    snapshot_entries: int = 1_000


class TopicDeduplication:
    """See the module's text. ``now_ms`` is a wall clock, for the date of notes."""

    def __init__(
        self,
        source: WritableLog,
        entry_format: EntryFormat,
        limits: DeduplicationLimits,
        now_ms: Callable[[], int],
    ) -> None:
        self.format = entry_format
        self.left = DEDUPLICATION in source.cursors.durable()
        """The log has the cursor."""
        self._log = source
        self._limits = limits
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._marks: SequenceMarks | None = None
        self._cursor: Cursor | None = None
        self._position = LATEST
        """The last entry that the marks count."""
        self._entries = 0
        """Since the last snapshot."""

    @property
    def on(self) -> bool:
        """It is known what the log holds of every producer."""
        return self._marks is not None

    def settled(self, wanted: bool) -> bool:
        """It is on, or off with nothing left of it, as ``wanted``."""
        return self.on if wanted else not (self.on or self.left)

    # -- beginning and ending -----------------------------------------------------------------

    async def begin(self) -> None:
        """Know what the log holds. No send of a producer may be under way. Raises ``LogError``,
        ``LedgerError``, ``MetadataError``, and ``NotAllowedError`` on a log that cannot say it."""
        source = self._log
        if source.owns_sequences:
            # What such a log has refused for want of replicas may be read later all the same.
            raise NotAllowedError(
                "deduplication is not served for topics on partitions: turn it off for this topic, "
                "or keep it on ledgers"
            )
        cursor = await source.cursors.open(DEDUPLICATION, LATEST)
        self.left = True
        marks = SequenceMarks(self._limits.producers_max, self._limits.inactive_ms)
        if cursor.noted is not None:
            try:
                marks.decode(cursor.noted.value, self._steady_ms())
            except ProtocolError as error:
                raise LogError(f"log {source.name}, cursor {cursor.name}: {error}") from error
        self._position = cursor.mark_delete
        self._entries = await self._replay(marks)
        if cursor.noted is not None and not cursor.noted.value:
            # From the first entry on nothing leaves the log for a table before it is remembered.
            cursor.noted.take(self._position, marks.encode(self._now_ms()))
        self._cursor, self._marks = cursor, marks
        log.debug(
            "deduplication is on",
            log=source.name,
            producers=len(marks),
            entries_replayed=self._entries,
        )

    async def _replay(self, marks: SequenceMarks) -> int:
        """Learn from the entries behind the position; how many there are."""
        positions, count = self._log.positions, 0
        at, end = positions.next_position(self._position), positions.readable
        async for entries in entries_until(self._log, at, end, STEP_ENTRIES, STEP_BYTES):
            for entry in entries:
                self._learn(marks, entry.payload)
            self._position, count = entries[-1].position, count + len(entries)
        return count

    def _learn(self, marks: SequenceMarks, payload: memoryview) -> None:
        try:
            told = self.format.numbered(payload)
        except ProtocolError:
            return  # of no producer of ours
        if told.ends and not told.producer.startswith(SENDER_PREFIX):
            marks.found(told.producer, told.last, self._steady_ms())

    async def end(self) -> None:
        """Forget everything, for good. Raises what deleting the cursor does: to be called again."""
        self._marks = self._cursor = None
        if DEDUPLICATION in self._log.cursors.durable():
            await self._log.cursors.delete(DEDUPLICATION)
        self.left = False

    # -- while it is on -----------------------------------------------------------------------

    def mark(self, producer_name: str) -> SequenceMark:
        """How far that producer's messages are in the log; none of its sends may be under way."""
        assert self._marks is not None, "it is on"
        return self._marks.of(producer_name)

    def confirmed(self, mark: SequenceMark, entries: int, last: Position) -> None:
        """``mark`` has moved with entries of its producer, of which ``last`` is the last one. To be
        called in the order of the log."""
        if self._marks is None:
            return
        self._marks.used(mark, self._steady_ms())
        self._position = last
        self._entries += entries
        if self._entries >= max(self._limits.snapshot_entries, len(self._marks)):
            self.snapshot()

    def leaves(self, mark: SequenceMark) -> None:
        """Its producer is connected no longer: from now on it is inactive."""
        if self._marks is not None:
            self._marks.used(mark, self._steady_ms())

    def snapshot(self, whole: bool = False) -> None:
        """Have the marks stored, if an entry came since the last time. ``whole``: no send of a
        producer is under way, so they speak of all that can be read."""
        marks, cursor = self._marks, self._cursor
        if marks is None or cursor is None or cursor.noted is None:
            return
        readable = self._log.positions.readable
        if whole and readable > self._position:
            self._position, self._entries = readable, self._entries + 1
        if not self._entries:
            return
        cursor.noted.take(self._position, marks.encode(self._now_ms()))
        self._entries = 0

    async def store(self) -> None:
        """All that is known is durable when it returns. Raises what storing it does."""
        self.snapshot()
        if self._cursor is not None:
            await self._cursor.wait_stored()

    def forget(self, connected: Container[str]) -> None:
        """Those that are inactive. ``connected``: names of producers."""
        if self._marks is not None:
            self._marks.forget(self._steady_ms(), connected)

    def _steady_ms(self) -> int:
        """Of a clock that nobody sets."""
        return int(self._loop.time() * 1000)
