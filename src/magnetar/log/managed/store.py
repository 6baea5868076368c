"""The logs of a process: opening, following, listing, deleting. Implements ``log.seam.LogStore``.

Opening takes a log over from whoever had it: the last ledger is recovered (fenced, closed), the
record is written (so that a former owner's next write loses), then the node of every cursor. The
cursors' ledgers are recovered beside the log's (``cursor_search``). An
owner that ends in order hands the cursors over in the record, and then opening is one read and one
write.
The ledger to append to is created by the first append, so opening many idle logs is cheap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from typing import TypeAlias

import structlog

from magnetar.config import LedgerConfig
from magnetar.env.emptied_nodes import delete_emptied
from magnetar.env.flush_timer import FlushTimer
from magnetar.env.metadata import MetadataStore
from magnetar.log.housekeeping import Housekeeping
from magnetar.log.managed.appender import AppendBounds
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.cursor_format import chunk_bytes_within
from magnetar.log.managed.cursor_search import (
    NONE_FOUND,
    CursorSearch,
    FoundCursor,
    cursor_node,
    side_by_side,
)
from magnetar.log.managed.cursor_store import CursorLimits, finish_deletion
from magnetar.log.managed.cursors import CursorContext
from magnetar.log.managed.followed_log import FollowedLog
from magnetar.log.managed.gone import open_needed
from magnetar.log.managed.history import History, NoHistory
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.managed_log import LogContext, ManagedLog
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.read_ahead import ReadAheadCache
from magnetar.log.managed.records import (
    NAME_PARTS,
    ROOT,
    LogRecord,
    decode_log,
    decode_name,
    encode_log,
    encode_name,
    log_path,
)
from magnetar.log.managed.stamping import extent_of
from magnetar.log.managed.tail_cache import TailCache
from magnetar.log.policy import Engine, LogPolicy, Retention, RollRule
from magnetar.log.seam import KnownLog
from magnetar.model.errors import (
    LogError,
    LogFencedError,
    MagnetarError,
    NoNodeError,
    NoSuchLogError,
    OtherEngineError,
)

log = structlog.get_logger(__name__)

OPEN_ATTEMPTS = 5
TICKS_PER_TURN = 500
CLEAN_UPS_AT_ONCE = 4
"""Cursors of which leftovers are deleted at a time, over all logs: nobody waits for that."""
FEW_NAMES = 8
"""So many records are read one after the other; more, side by side."""

Guard: TypeAlias = Callable[[], Awaitable[None]]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def policy_of(config: LedgerConfig) -> LogPolicy:
    """What holds for a log that nobody gave a policy of its own."""
    return LogPolicy(
        RollRule(config.ledger_entries_max, config.ledger_bytes_max, config.ledger_age_ms_max),
        Retention(config.retention_ms, config.retention_bytes),
    )


class ManagedLogStore:
    """All managed logs of one process.

    ``now_ms``: wall clock in milliseconds, for ledger ages and retention. ``history``: reads what
    is in tables only.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: Ledgers,
        config: LedgerConfig,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        cursor_limits: CursorLimits | None = None,
        history: History | None = None,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._timer = FlushTimer(config.cursor_flush_interval_ms)
        self._context = LogContext(
            ledgers=ledgers,
            tail_cache=TailCache(config.tail_cache_bytes),
            read_ahead=ReadAheadCache(config.read_ahead_bytes_max),
            cursors=CursorContext(
                metadata,
                ledgers,
                self._timer,
                cursor_limits
                or CursorLimits(chunk_bytes_max=chunk_bytes_within(config.payload_bytes_max)),
                asyncio.Semaphore(CLEAN_UPS_AT_ONCE),
            ),
            policy=policy_of(config),
            append_bounds=AppendBounds(config.roll_queue_bytes_max, config.payload_bytes_max),
            now_ms=now_ms,
            history=history or NoHistory(),
            tabled_ms_least=config.tabled_ledger_ms_least,
        )
        self._open: dict[str, ManagedLog] = {}
        self._followed: dict[str, FollowedLog] = {}
        # Rolls old ledgers, trims what retention no longer keeps.
        self._housekeeping = Housekeeping(self._open, TICKS_PER_TURN)
        self._closed = False

    @property
    def cursor_context(self) -> CursorContext:
        """What durable cursors stand on, whatever engine their logs are on."""
        return self._context.cursors

    # -- opening ------------------------------------------------------------------------------

    @property
    def policy(self) -> LogPolicy:
        """See the seam."""
        return self._context.policy

    async def open(
        self,
        name: str,
        policy: LogPolicy | None = None,
        *,
        create: bool = True,
        guard: Guard | None = None,
        permit: Guard | None = None,
    ) -> ManagedLog:
        """See the seam. Raises ``NoSuchLogError``, ``LogError``, ``LedgerError``,
        ``MetadataError``."""
        assert not self._closed
        former = self._open.get(name)
        if former is not None and former.lost is None and not former.closed:
            raise LogError(f"log {name} is open here already")
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            try:
                opened = await self._open_once(
                    name, policy, create, guard or _unguarded, permit or _unguarded
                )
            except LogFencedError:
                if attempt == OPEN_ATTEMPTS:
                    raise
                continue  # the former owner wrote meanwhile; what it wrote is read again
            self._open[name] = opened
            self._housekeeping.begin()
            return opened
        raise AssertionError("the last attempt returns or raises")

    async def _open_once(
        self, name: str, policy: LogPolicy | None, create: bool, guard: Guard, permit: Guard
    ) -> ManagedLog:
        engine = (policy or self.policy).engine
        node = await self._look(name, create and engine is Engine.LEDGER, guard, permit)
        handed = node.record.handed_over
        # Without an owner before there are none: only who has the log open makes cursors.
        stored = node.record.epoch > 0 and not node.owned and handed is None
        if stored:
            store, names, found = await self._take_over_with_cursors(name, node)
        else:
            store, names, found = await self._take_over(name, node, _unguarded), [], NONE_FOUND
        opened = ManagedLog(name, self._context, store, policy)
        try:
            if handed is not None:
                await opened.take_cursors(handed)
            elif stored:
                await opened.recover_cursors(names, found)
        except BaseException:
            await opened.abandon()
            raise
        opened.delete_left_nowait()
        return opened

    async def _look(
        self, name: str, create: bool, guard: Guard, permit: Guard
    ) -> RecordNode[LogRecord]:
        """The log's record. The guard is asked beside it: what is read changes nothing, and the
        record is written only as it was read here."""
        guarded, found = await asyncio.gather(
            guard(), self._log_node_or_none(name), return_exceptions=True
        )
        for outcome in (guarded, found):
            if isinstance(outcome, BaseException):
                raise outcome
        assert not isinstance(found, BaseException)
        if found is not None and found.record.engine is not Engine.LEDGER:
            raise OtherEngineError(f"log {name} is on the engine {found.record.engine.value}")
        if found is not None and not found.record.deleted:
            return found
        if not create:
            raise NoSuchLogError(f"there is no log {name}")
        await permit()
        if found is not None:
            await self._delete(name, found)
        try:
            return await self._make(name)
        except NoNodeError:
            await self.clear(name)
            return await self._make(name)

    async def _make(self, name: str) -> RecordNode[LogRecord]:
        return await RecordNode.create(
            self._metadata,
            log_path(name),
            encode_log,
            partial(decode_log, name),
            self._new_record(),
            taken=True,
        )

    async def _log_node_or_none(self, name: str) -> RecordNode[LogRecord] | None:
        try:
            return await self._log_node(name)
        except NoNodeError:
            return None

    async def _take_over_with_cursors(
        self, name: str, node: RecordNode[LogRecord]
    ) -> tuple[ChainStore, list[str], Mapping[str, FoundCursor]]:
        """As ``_take_over``; beside it the cursors are looked for."""
        search = CursorSearch(self._metadata, self._ledgers, name)

        async def take() -> tuple[ChainStore, list[str], bool]:
            store = await self._take_over(name, node, search.wait_nodes)
            # After the record is written: a former owner that makes a cursor now finds, before
            # anybody hears of it, that the log is not its own any more.
            return store, *await search.names_now()

        taken, found = await asyncio.gather(take(), search.run(), return_exceptions=True)
        # When nothing is under way any more: who tries again must not meet what was left of it.
        if isinstance(taken, BaseException):
            raise taken
        if isinstance(found, BaseException):
            raise found
        store, names, same = taken
        return store, names, found if same else NONE_FOUND

    async def _take_over(
        self, name: str, node: RecordNode[LogRecord], ready: Callable[[], Awaitable[None]]
    ) -> ChainStore:
        """Recover the last ledger and, when it is ``ready``, write the record."""
        record = node.record
        chain = Chain(record.ledgers, record.trimmed, record.first_offset, record.front)
        store = ChainStore(name, chain, node, self._ledgers)
        if chain.ledgers and not chain.ledgers[-1].closed:
            info = chain.ledgers[-1]
            reader = await open_needed(self._ledgers, name, info.ledger_id)
            last = reader.last_add_confirmed
            where = f"log {name}, ledger {info.ledger_id}"
            extent = await extent_of(reader, info.first_offset, last, where)
            store.close_last(self._context.now_ms(), last + 1, reader.length, extent)
        chain.end_front()
        await ready()
        if not node.owned:  # else it was made as it would be written now
            await store.take_over()
        return store

    def _new_record(self) -> LogRecord:
        """As its first owner has it: one round trip for who makes it, and not two."""
        return LogRecord(created_ms=self._context.now_ms(), epoch=1)

    async def _log_node(self, name: str) -> RecordNode[LogRecord]:
        return await RecordNode.load_or_create(
            self._metadata, log_path(name), encode_log, partial(decode_log, name), None
        )

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNodeError:
            return []

    # -- following ----------------------------------------------------------------------------

    async def follow(self, name: str) -> FollowedLog:
        """See the seam. Raises ``NoSuchLogError``, ``LogError``, ``MetadataError``."""
        assert not self._closed
        if name in self._followed:
            raise LogError(f"log {name} is followed here already; share it, or close it first")
        context = self._context
        followed = FollowedLog(
            name,
            self._metadata,
            self._ledgers,
            context.tail_cache,
            context.read_ahead,
            partial(self._followed.pop, name),
            context.history,
        )
        self._followed[name] = followed
        try:
            await followed.begin()
        except BaseException:
            await followed.close()
            raise
        return followed

    # -- asking, deleting ---------------------------------------------------------------------

    async def exists(self, name: str) -> bool:
        try:
            node = await self._log_node(name)
        except NoNodeError:
            return False
        return not node.record.deleted

    async def stored(self, name: str) -> KnownLog:
        """See the seam."""
        node = await self._log_node_or_none(name)
        if node is None or node.record.deleted:
            raise NoSuchLogError(f"there is no log {name}")
        record = node.record
        on_ledgers = record.engine is Engine.LEDGER
        return KnownLog(record.created_ms, record.leader_epoch if on_ledgers else -1)

    async def ledger_bytes(self, name: str) -> int | None:
        """See the seam."""
        opened = self._open.get(name)
        if opened is not None and not opened.closed:
            return opened.stats().stored_bytes
        node = await self._log_node_or_none(name)
        if node is None or node.record.deleted or node.record.engine is not Engine.LEDGER:
            return None
        return sum(info.stored_bytes for info in node.record.ledgers)

    async def check_space(self, name: str) -> None:
        """See the seam."""
        opened = self._open.get(name)
        if opened is not None:
            await opened.check_space()

    async def delete(self, name: str) -> None:
        opened = self._open.get(name)
        if opened is not None and not opened.closed:
            raise LogError(f"log {name} is open; close it before deleting it")
        try:
            node = await self._log_node(name)
        except NoNodeError:
            await self.clear(name)
            return
        if node.record.engine is not Engine.LEDGER and not node.record.deleted:
            raise OtherEngineError(f"log {name} is on the engine {node.record.engine.value}")
        await self._delete(name, node)

    async def clear(self, name: str) -> None:
        """A former owner that did not know that the log was deleted may have made a cursor of it,
        and with that a node without a record where the log's would be. Delete them."""
        path = log_path(name)
        try:
            stored = await self._metadata.get(path)
            if stored.value:
                return
            await self._delete_cursors(name)
            await self._metadata.delete(path, stored.version)
        except NoNodeError:
            return

    async def _delete_cursors(self, name: str) -> None:
        for segment in await self._children(log_path(name)):
            cursor = await cursor_node(self._metadata, name, decode_name(segment))
            await finish_deletion(self._ledgers, cursor, cursor.record)

    async def _delete(self, name: str, node: RecordNode[LogRecord]) -> None:
        """The record says so first, so that whoever opens the log next finishes the work."""
        store = ChainStore(name, Chain(), node, self._ledgers)
        await store.mark_deleted()
        await self._delete_cursors(name)
        await store.delete_log()

    async def names(self, prefix: str, known: Container[str] = ()) -> list[str]:
        """The names below ``prefix``: whole leading parts (``tenant/namespace``), or empty."""
        return sorted(await self._names_below(_segments(prefix), known))

    def watch_names(self, prefix: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See the seam."""
        segments = _segments(prefix)
        assert len(segments) == NAME_PARTS - 1, f"{prefix} is not tenant/namespace/domain"
        return self._metadata.watch("/".join((ROOT, *segments)), lambda _path: changed())

    async def forget_prefix(self, prefix: str) -> None:
        """See the seam."""
        await delete_emptied(self._metadata, "/".join((ROOT, *_segments(prefix))), ROOT)

    async def _names_below(self, parts: list[str], known: Container[str]) -> list[str]:
        if len(parts) == NAME_PARTS:
            return await self._existing([parts], known)
        below = [[*parts, each] for each in await self._children("/".join((ROOT, *parts)))]
        if len(parts) == NAME_PARTS - 1:
            return await self._existing(below, known)
        names = []
        for each in below:
            names += await self._names_below(each, known)
        return names

    async def _existing(self, nodes: list[list[str]], known: Container[str]) -> list[str]:
        """Of logs that have nodes, those that are not deleted: each record is read, but those of
        ``known``."""
        all_names = ["/".join(map(decode_name, parts)) for parts in nodes]
        return [each for each in all_names if each in known] + await self._not_deleted(
            [each for each in all_names if each not in known]
        )

    async def _not_deleted(self, names: list[str]) -> list[str]:
        if len(names) <= FEW_NAMES:
            return [name for name in names if await self._is_listed(name)]
        there = await side_by_side(names, self._is_listed)
        return [name for name, exists in zip(names, there, strict=True) if exists]

    async def _is_listed(self, name: str) -> bool:
        """As ``exists``. A log whose record cannot be read, damaged or of a newer release, is there
        too: who opens it is told, and others have their list."""
        try:
            return await self.exists(name)
        except LogError:
            return True

    async def close(self) -> None:
        """Close every log. Raises the first that could not be closed cleanly, after all."""
        self._closed = True
        self._housekeeping.end()
        errors = []
        for followed in list(self._followed.values()):
            await followed.close()
        for opened in list(self._open.values()):
            try:
                await opened.close()
            except MagnetarError as error:
                errors.append(error)
        self._open.clear()
        self._timer.close()
        if errors:
            raise errors[0]


def _segments(prefix: str) -> list[str]:
    return [encode_name(part) for part in prefix.split("/") if part]


async def _unguarded() -> None:
    """Nobody else opens logs."""
