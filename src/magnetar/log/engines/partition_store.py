"""The logs of a process that are on partitions: opening, deleting. Implements ``log.seam.LogStore``
as far as ``engines.store`` asks it.

Opening a log makes this broker the partition's leader, then writes the log's record, then loads its
cursors: in this order, so that a former owner's appends are refused before anything is read, and
what it stores of cursors is refused before they are.

A deletion says so in the record first, then the state goes, then the record: whoever opens the
log in between finishes it. Files go after their grace (``log.partition.doom``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from magnetar.env.files.disk import Disk
from magnetar.env.metadata import MetadataStore
from magnetar.log.engines.company import PartitionCompany
from magnetar.log.engines.record import PartitionRecord
from magnetar.log.housekeeping import Housekeeping
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import LogRecord, decode_log, decode_name, encode_log, log_path
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.serving.batch_places import SPAN
from magnetar.log.partition.serving.partition_log import PartitionLog
from magnetar.log.partition.serving.partition_names import other_name, partition_of
from magnetar.log.partition.serving.stored_entries import find_entries
from magnetar.log.partition.serving.tail import PartitionTail, TailBudget
from magnetar.log.policy import Engine, LogPolicy
from magnetar.model.errors import (
    CorruptBatchError,
    LogError,
    LogFencedError,
    MagnetarError,
    NoNodeError,
    NoSuchLogError,
    NotAllowedError,
    OtherEngineError,
)

log = structlog.get_logger(__name__)

OPEN_ATTEMPTS: Final = 5
TICKS_PER_TURN: Final = 100

Guard = Callable[[], Awaitable[None]]


class PartitionLogStore:
    """``ledgers`` keeps the logs' durable cursors, and deletes records. ``span``: see
    ``batch_places``."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: ManagedLogStore,
        leading: PartitionLeading,
        disk: Disk,
        *,
        tail_bytes_max: int,
        now_ms: Callable[[], int],
        span: int = SPAN,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._leading = leading
        self._disk = disk
        self._tails = TailBudget(tail_bytes_max)
        self._now_ms = now_ms
        self._span = span
        self._open: dict[str, PartitionLog] = {}
        # What retention no longer keeps goes.
        self._housekeeping = Housekeeping(self._open, TICKS_PER_TURN)
        self._closed = False

    # -- opening ------------------------------------------------------------------------------

    async def open(
        self,
        name: str,
        policy: LogPolicy,
        *,
        create: bool,
        guard: Guard | None,
        permit: Guard | None = None,
    ) -> PartitionLog:
        """See the seam. Raises ``OtherEngineError``: the log is on another engine, or is to be
        made there."""
        assert not self._closed
        former = self._open.get(name)
        if former is not None and former.lost is None and not former.closed:
            raise LogError(f"log {name} is open here already")
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            try:
                opened = await self._open_once(name, policy, create, guard, permit)
            except LogFencedError:
                if attempt == OPEN_ATTEMPTS:
                    raise
                continue  # another owner wrote the record meanwhile; what it wrote is read again
            self._open[name] = opened
            self._housekeeping.begin()
            return opened
        raise AssertionError("the last attempt returns or raises")

    async def _open_once(
        self,
        name: str,
        policy: LogPolicy,
        create: bool,
        guard: Guard | None,
        permit: Guard | None,
    ) -> PartitionLog:
        if guard is not None:
            await guard()
        node = await self._node(name)
        if node is not None and node.record.engine is not Engine.PARTITION:
            raise OtherEngineError(f"log {name} is on the engine {node.record.engine.value}")
        if node is not None and node.record.deleted:
            await self._finish_deletion(name)
            node = None
        if node is None:
            if not create:
                raise NoSuchLogError(f"there is no log {name}")
            if policy.engine is not Engine.PARTITION:
                raise OtherEngineError(f"log {name} is to be made on {policy.engine.value}")
            if permit is not None:
                await permit()
            node = await self._make(name)
        return await self._take_over(name, node, policy)

    async def _make(self, name: str) -> RecordNode[LogRecord]:
        other = other_name(name)
        if other is not None and await self._ledgers.exists(other):
            raise NotAllowedError(
                f"{name} would be the same partition as {other}, which exists; use another name"
            )
        # Of a log of that name whose deletion was cut off after its record had gone.
        await self._leading.delete(partition_of(name))
        try:
            return await self._make_node(name)
        except NoNodeError:
            await self._ledgers.clear(name)
            return await self._make_node(name)

    async def _make_node(self, name: str) -> RecordNode[LogRecord]:
        record = LogRecord(created_ms=self._now_ms(), engine=Engine.PARTITION)
        return await RecordNode.create(
            self._metadata, log_path(name), encode_log, partial(decode_log, name), record
        )

    async def _take_over(
        self, name: str, node: RecordNode[LogRecord], policy: LogPolicy
    ) -> PartitionLog:
        opened_before, handed = node.record.epoch > 0, node.record.handed_over
        hosted = await self._leading.lead(partition_of(name), policy, known=opened_before)
        epoch = hosted.leader_epoch
        assert epoch is not None
        record = PartitionRecord(name, node)
        await record.take_over()
        source = hosted.source
        try:
            rewrites = -1
            while rewrites != hosted.rewrites:  # it was compacted while it was looked at
                rewrites = hosted.rewrites
                found = await hosted.run(
                    lambda: find_entries(source, self._disk, hosted.high_watermark, self._span)
                )
        except (OSError, CorruptBatchError) as error:
            raise LogError(f"log {name} cannot be read: {error}") from error
        opened = PartitionLog(
            name, hosted, epoch, found, PartitionTail(self._tails), policy, self._now_ms
        )
        company = PartitionCompany(opened, record, self._ledgers.cursor_context, self._now_ms)
        opened.join(company)
        try:
            if opened_before:
                await company.recover(await self._cursor_names(name), handed)
                if source.compacted_end or policy.cleanup.compacts:
                    # Perhaps while nobody had the cursors, half way, or by the leader before.
                    company.passed(0, opened.places.end)
        except BaseException:
            await opened.abandon()
            raise
        return opened

    async def _cursor_names(self, name: str) -> list[str]:
        try:
            return [decode_name(each) for each in await self._metadata.children(log_path(name))]
        except NoNodeError:
            return []

    async def _node(self, name: str) -> RecordNode[LogRecord] | None:
        try:
            return await RecordNode.load_or_create(
                self._metadata, log_path(name), encode_log, partial(decode_log, name), None
            )
        except NoNodeError:
            return None

    # -- deleting, asking ---------------------------------------------------------------------

    async def has(self, name: str) -> bool:
        """Whether the log is on this engine, or was until its deletion began."""
        node = await self._node(name)
        return node is not None and node.record.engine is Engine.PARTITION

    async def delete(self, name: str) -> None:
        """See the seam."""
        opened = self._open.get(name)
        if opened is not None and not opened.closed:
            raise LogError(f"log {name} is open; close it before deleting it")
        await self._finish_deletion(name)

    async def _finish_deletion(self, name: str) -> None:
        node = await self._node(name)
        if node is None:
            return
        await PartitionRecord(name, node).mark_deleted()
        await self._leading.delete(partition_of(name))
        await self._ledgers.delete(name)  # its cursors, and the record

    async def check_space(self, name: str) -> None:
        """See the seam."""
        if name not in self._open:
            return
        room = self._leading.host.room
        room.look()
        room.check()

    async def close(self) -> None:
        """Close every log. Raises the first that could not be closed cleanly, after all."""
        self._closed = True
        self._housekeeping.end()
        errors = []
        for opened in list(self._open.values()):
            try:
                await opened.close()
            except MagnetarError as error:
                errors.append(error)
        self._open.clear()
        if errors:
            raise errors[0]
