"""The log that keeps the committed offsets of some groups, their members, and how transactions of
some ids go; its owner is their coordinator.

Groups and transactional ids are spread over ``kafka.offset_logs`` topics of the namespace
``public/kafka-groups`` by a hash of their ids. A topic is open at one broker, which the cluster
chooses as for any other; who has it answers for its groups and transactions.

Rules:

* A commit is answered when its record is in the log. Memory is changed then, in the order of the
  log, so an offset that is told has been stored.
* Changes are in the log in the order in which they were asked for.
* What failed may be in the log all the same, or be stored though nobody waits for it any more.
  What is known of its keys is written again before anything else is: else the next coordinator
  would find what this one has never known and so never ended, as an offset of a transaction.
* The log is replayed when it is opened, from the place of its cursor on. After
  ``SNAPSHOT_RECORDS`` records, and more than are known, all that is known is written again, and
  when that is stored the cursor moves to its begin: what lies before it can be trimmed.
* When the topic closes here (it moves, or its log fails), nothing of it is known any more. When an
  append fails and the topic stays open, this one has ended, and stores nothing more: another one
  is made of the log, and does not know what this one would still write.

Why: docs/adr/0107-offsets-of-groups.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from magnetar.log.seam import AppendDone, Content, Cursor, Run, Stamp
from magnetar.model.errors import (
    LogError,
    MagnetarError,
    MessageTooLargeError,
    ProtocolError,
    ServiceNotReadyError,
)
from magnetar.model.ids import EARLIEST, Position
from magnetar.protocols.kafka.coordination.coordinator_state import (
    Change,
    CoordinatorState,
    Key,
    decode_changes,
    encode_changes,
)
from magnetar.protocols.kafka.coordination.group_offsets import GroupOffsets, OffsetKey
from magnetar.topics.topic import Topic
from magnetar.wire.kafka.batches import read_batch_header

log = structlog.get_logger(__name__)

CURSOR: Final = "offsets"
SNAPSHOT_RECORDS: Final = 10_000
FITTED: Final = 1 << 62
"""No bound for a record that is in the log already."""
REPLAY_ENTRIES: Final = 200
REPLAY_BYTES: Final = 4 << 20


class _Snapshot:
    """Batches of one that have no outcome yet, and where it begins."""

    __slots__ = ("begin", "failed", "left")

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.begin: Position | None = None
        self.failed = False


class OffsetLog:
    """See the module's text. ``replay`` comes first. ``record_bytes_max``: a record has no more."""

    def __init__(self, topic: Topic, record_bytes_max: int) -> None:
        self.topic = topic
        self._record_bytes_max = record_bytes_max
        self.state = CoordinatorState()
        self._cursor: Cursor | None = None
        self._ended = False
        self._records = 0
        """In the log since the cursor's place, as far as known."""
        self._snapshot: _Snapshot | None = None
        self._doubtful: dict[Key, None] = {}
        """Whose newest record in the log may be another one than is known."""
        self._committing: Counter[str] = Counter()
        """Groups with offsets that are on their way into the log, and not known yet."""
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._gate = asyncio.Lock()

    @property
    def offsets(self) -> GroupOffsets:
        return self.state.offsets

    @property
    def usable(self) -> bool:
        return not self._ended and not self.topic.closed

    def end(self) -> None:
        """Idempotent."""
        self._ended = True

    async def replay(self) -> None:
        """Learn what is committed. Raises ``LogError``, ``MetadataError``."""
        source = self.topic.log
        await source.opening.wait_whole()  # what was answered last may be what can be read last
        self._cursor = await source.cursors.open(CURSOR, EARLIEST)
        positions = source.positions
        at = positions.next_position(self._cursor.mark_delete)
        while at <= positions.readable:
            entries = await source.read(at, REPLAY_ENTRIES, REPLAY_BYTES)
            if not entries:
                break
            for entry in entries:
                try:
                    changes = decode_changes(entry.payload)
                except ProtocolError as error:
                    raise LogError(
                        f"{self.topic.name} holds at {entry} what is no record of a coordinator; "
                        f"take it away, or the topic with the offsets in it: {error}"
                    ) from error
                self.state.apply(changes)
                self._records += len(changes)
            at = positions.next_position(entries[-1].position)
            await asyncio.sleep(0)
        log.debug("offsets replayed", topic=str(self.topic.name), known=len(self.state))

    async def change(
        self, changes: Sequence[Change], now_ms: int, instead: Sequence[Change] = ()
    ) -> None:
        """Stored, and known, when it returns; ``instead`` in their place, if they are too large.
        Raises ``MessageTooLargeError``: nothing is stored. Anything else that it raises: it may be
        stored or not; after ``LogError`` and its like the owner must begin anew with ``replay``."""
        groups = {key.group for key, said in changes if said and isinstance(key, OffsetKey)}
        self._committing.update(groups)
        try:
            await self._change(changes, now_ms, instead)
        finally:
            for group in groups:
                self._committing[group] -= 1
                if not self._committing[group]:
                    del self._committing[group]

    async def _change(
        self, changes: Sequence[Change], now_ms: int, instead: Sequence[Change]
    ) -> None:
        await self.settle(now_ms)
        try:
            batches = encode_changes(changes, now_ms, self._record_bytes_max)
        except MessageTooLargeError as error:
            if not instead:
                raise
            log.warning("stored in part", topic=str(self.topic.name), why=str(error))
            changes, batches = instead, encode_changes(instead, now_ms, self._record_bytes_max)
        await self._store(changes, batches)

    def is_committing(self, group: str) -> bool:
        """Offsets of the group are to be stored: what is known of it is not all."""
        return group in self._committing

    async def _store(self, changes: Sequence[Change], batches: Sequence[bytes]) -> None:
        if not batches:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left, failed = len(batches), False

        def stored(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            nonlocal left, failed
            left -= 1
            if error is not None:
                failed = True
                self._doubt(changes)
                if not done.done():
                    done.set_exception(error)
            if left:
                return
            if not failed:
                self.state.apply(changes)
            if not done.done():
                done.set_result(None)
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

        self._under_way += 1
        self._idle.clear()
        self._records += len(changes)
        for batch in batches:
            self._append(batch, stored)
        try:
            await done
        except asyncio.CancelledError:
            self._doubt(changes)
            raise

    def _doubt(self, changes: Sequence[Change]) -> None:
        self._doubtful.update((key, None) for key, _ in changes)

    def _check_usable(self) -> None:
        if not self.usable:
            raise ServiceNotReadyError(f"{self.topic.name} is closing here")

    def _append(self, batch: bytes, done: AppendDone) -> None:
        header = read_batch_header(batch)
        content = Content((header.record_count,), (header.max_timestamp_ms,), Stamp())
        self.topic.log.append((batch,), done, content)

    # -- snapshots ----------------------------------------------------------------------------

    @property
    def _due(self) -> bool:
        enough = self._records >= max(SNAPSHOT_RECORDS, 2 * len(self.state))
        return enough and self._snapshot is None

    async def settle(self, now_ms: int) -> None:
        """What is known is what is in the log when it returns, but for what is under way and will
        be known. Raises as ``change``."""
        # What is under way would be stored before the snapshot, which does not have it: so the
        # snapshot waits for it, and what comes meanwhile waits here, or there would be no end. All
        # pass here, or who comes when the snapshot is written would overtake those who wait.
        async with self._gate:
            if self._due:
                await self._idle.wait()
                self._check_usable()  # what another knows by now is not to be overwritten
                self._write_again(now_ms)
            if self._doubtful:
                await self._idle.wait()
                self._check_usable()
                keys = list(self._doubtful)
                changes = [self.state.change_of(key) for key in keys]
                await self._store(changes, encode_changes(changes, now_ms, FITTED))
                for key in keys:
                    del self._doubtful[key]
        self._check_usable()

    def _write_again(self, now_ms: int) -> None:
        batches = encode_changes(self.state.all(), now_ms, FITTED)
        self._records = 0
        if not batches:
            return
        snapshot = self._snapshot = _Snapshot(len(batches))
        for batch in batches:
            self._append(batch, partial(self._written_again, snapshot))

    def _written_again(
        self, snapshot: _Snapshot, error: MagnetarError | None, runs: Sequence[Run]
    ) -> None:
        """A batch of a snapshot has its outcome. The cursor moves once all of it is stored: one
        that lacks a batch stands for nothing, and the next one makes it good."""
        snapshot.left -= 1
        if error is not None:
            snapshot.failed = True
            log.warning("offsets not written again", topic=str(self.topic.name), error=str(error))
        elif snapshot.begin is None:
            snapshot.begin = Position(runs[0].ledger_id, runs[0].first_entry_id)
        if snapshot.left:
            return
        self._snapshot = None
        if snapshot.failed or snapshot.begin is None or self._cursor is None:
            return
        before = self.topic.log.positions.previous_position(snapshot.begin)
        self._cursor.acknowledge_cumulative(before)
