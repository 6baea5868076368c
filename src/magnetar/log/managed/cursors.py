"""The durable cursors of one managed log: opening, listing and deleting them.

Owns: the cursors that are open here, and those that are deleted and of which something (a ledger,
the node) is left.

Rules:

* A name has one cursor. One that was deleted is wholly gone before its name is used again.
* A deletion that failed half way is finished by the log's housekeeping.
* What is handed over to the next owner, when the log is closed, is what the nodes hold, and is
  written by nobody here afterwards.

Why: docs/adr/0096-cursors-are-handed-over.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from magnetar.env.flush_timer import FlushTimer
from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope
from magnetar.log.ack_store import AckStore, NullAckStore
from magnetar.log.acknowledgements import AckState, LedgerChain
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.cursor import (
    ManagedCursor,
    ManagedLending,
    recover_state,
    state_of,
    stored_state,
    take_node,
)
from magnetar.log.managed.cursor_search import (
    NONE_FOUND,
    FoundCursor,
    find_cursors,
    make_cursor_node,
    side_by_side,
)
from magnetar.log.managed.cursor_store import CursorLimits, CursorStore, finish_deletion
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.node import RecordNode, session_of
from magnetar.log.managed.records import (
    CursorRecord,
    HandedCursor,
    cursor_path,
    decode_cursor,
    encode_cursor,
)
from magnetar.log.seam import Cursor, CursorLending
from magnetar.model.errors import (
    CursorNotFoundError,
    LogError,
    LogFencedError,
    MagnetarError,
)
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

HANDED_MAX: Final = 100
HANDED_BYTES_MAX: Final = 64 << 10
"""Cursors that are handed over, and their bytes: each write of the log's record carries them once,
and each reading of it."""


@dataclass(frozen=True, slots=True)
class CursorEvents:
    """What the log wants to know; called on the loop. ``stored``: a cursor was stored, or is
    gone, so that ledgers may be free. ``require_usable`` raises why no cursor can be opened, and
    ``confirm_owned`` (it asks the metadata) ``LogFencedError`` when another owner has the log."""

    stored: Callable[[], None]
    lost: Callable[[LogFencedError], None]
    require_usable: Callable[[], None]
    confirm_owned: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What the cursors of a process share."""

    metadata: MetadataStore
    ledgers: Ledgers
    timer: FlushTimer
    limits: CursorLimits
    clean_ups: asyncio.Semaphore
    """How many delete what former owners have left, at a time."""


def handed_node(
    metadata: MetadataStore, log_name: str, handed: HandedCursor, session_id: int | None
) -> RecordNode[CursorRecord]:
    """The node of a cursor, of which its last owner has said what it holds."""
    label = f"{log_name}/{handed.name}"
    return RecordNode(
        metadata,
        cursor_path(log_name, handed.name),
        encode_cursor,
        decode_cursor(label, handed.stored.value),
        handed.stored,
        session_id,
    )


def readers_cursor(chain: Chain, name: str, start: Position) -> Cursor:
    """In memory only; ``start`` is read first."""
    state = AckState(chain, chain.mark_before(start))
    return ManagedCursor(name, chain, state, {}, NullAckStore(state))


class StoredCursor(Cursor, Protocol):
    """A cursor, and what keeps it."""

    store: AckStore


class CursorKind(Protocol):
    """What cursors of an engine are, beside what is stored of them."""

    @property
    def chain(self) -> LedgerChain:
        """The log, as acknowledgements count it."""
        ...

    def mark_before(self, start: Position) -> Position:
        """The mark-delete position of a cursor that reads ``start`` next."""
        ...

    def make(
        self,
        name: str,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> StoredCursor: ...


class ChainCursors:
    """Implements ``CursorKind``: of logs on ledgers."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def mark_before(self, start: Position) -> Position:
        return self.chain.mark_before(start)

    def make(
        self,
        name: str,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> StoredCursor:
        return ManagedCursor(name, self.chain, state, properties, store, lending)


class ManagedCursors:
    """Implements ``log.seam.Cursors``."""

    def __init__(
        self,
        log_name: str,
        kind: CursorKind,
        context: CursorContext,
        scope: TaskScope,
        events: CursorEvents,
    ) -> None:
        self._log_name = log_name
        self._kind = kind
        self._context = context
        self._scope = scope
        self._events = events
        self._open: dict[str, StoredCursor] = {}
        self._stores: dict[str, CursorStore] = {}
        """Of those that are open."""
        self._deleted: dict[str, AckStore] = {}  # something of what they keep is left
        self._half_made: dict[str, None] = {}  # perhaps
        self._cleaning = False
        self._lock = asyncio.Lock()

    async def open(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        self._events.require_usable()
        async with self._lock:
            self._events.require_usable()  # it may be closed by now, and its cursors given away
            cursor = self._open.get(name)
            if cursor is None:
                if name in self._deleted and not await self._finish_deletion(name):
                    raise LogError(
                        f"log {self._log_name}: the former cursor {name!r} is not wholly deleted "
                        "yet; try again"
                    )
                record = CursorRecord(
                    self._kind.mark_before(start), properties=dict(properties or {}), epoch=1
                )
                try:
                    cursor = await self._make(name, record)
                except LogFencedError as error:
                    self._events.lost(error)
                    raise
            return cursor

    async def _make(self, name: str, record: CursorRecord) -> StoredCursor:
        context = self._context
        self._half_made[name] = None  # until it is known: it may be there, and nobody has it
        node = await make_cursor_node(context.metadata, self._log_name, name, record)
        label = f"{self._log_name}/{name}"
        state = await recover_state(
            label, self._kind.chain, node, context.ledgers, self._events.confirm_owned
        )
        del self._half_made[name]
        return self._add(name, node, state)

    async def recover(
        self, names: Sequence[str], found: Mapping[str, FoundCursor] = NONE_FOUND
    ) -> None:
        """Load cursors that the metadata store has, and take them over (while opening); those whose
        deletion has begun are deleted wholly. ``found``: what ``CursorSearch`` has of them."""
        late = [name for name in names if name not in found]
        read = await find_cursors(
            self._context.metadata, self._context.ledgers, self._log_name, late
        )
        if late:
            # Once for all: each was read before (see ``recover_state``). Of those that were read
            # before the log's record was written, that it could be written has said so.
            await self._events.confirm_owned()
        # One that is not there any more is refused when it is taken.
        everything = {**dict.fromkeys(names), **found, **read}
        cursors = {name: each for name, each in everything.items() if each is not None}
        living = [item for item in cursors.items() if not item[1].node.record.deleted]
        states = [state_of(self._kind.chain, each.node.record, each.images) for _, each in living]
        taken = list(zip(living, states, strict=True))
        await side_by_side(taken, lambda item: take_node(item[0][1].node, item[1]))
        for (name, each), state in taken:
            self._add(name, each.node, state)
        for each in cursors.values():
            if each.node.record.deleted:
                await finish_deletion(self._context.ledgers, each.node, each.node.record)

    async def take_handed(self, handed: Sequence[HandedCursor]) -> None:
        """Load the cursors that the log's last owner has handed over (while opening). Their nodes
        need not be asked for, nor written: that owner writes them no more, and had the log until it
        was ours. Whoever takes the log from us writes them first of all, so that what we would
        store there afterwards is refused."""
        context = self._context
        session_id = await session_of(context.metadata)
        nodes = [
            (each.name, handed_node(context.metadata, self._log_name, each, session_id))
            for each in handed
        ]
        states = await side_by_side(nodes, self._read)
        for (name, node), state in zip(nodes, states, strict=True):
            self._add(name, node, state)

    async def _read(self, item: tuple[str, RecordNode[CursorRecord]]) -> AckState:
        name, node = item
        label = f"{self._log_name}/{name}"
        return await stored_state(label, self._kind.chain, node.record, self._context.ledgers)

    def _add(self, name: str, node: RecordNode[CursorRecord], state: AckState) -> StoredCursor:
        context = self._context
        store = CursorStore(
            f"{self._log_name}/{name}",
            state,
            node,
            context.ledgers,
            self._scope,
            timer=context.timer,
            limits=context.limits,
            on_stored=self._events.stored,
            on_lost=self._events.lost,
            confirm_owned=self._events.confirm_owned,
        )
        lending = ManagedLending(state, store)
        cursor = self._kind.make(name, state, node.record.properties, store, lending)
        self._open[name] = cursor
        self._stores[name] = store
        return cursor

    def reader(self, name: str, start: Position) -> Cursor:
        """See the seam."""
        state = AckState(self._kind.chain, self._kind.mark_before(start))
        return self._kind.make(name, state, {}, NullAckStore(state))

    async def delete(self, name: str) -> None:
        self._events.require_usable()
        async with self._lock:
            self._events.require_usable()
            cursor = self._open.get(name)
            if cursor is None:
                raise CursorNotFoundError(f"log {self._log_name} has no cursor {name!r}")
            try:
                await cursor.store.mark_deleted()
            except LogFencedError as error:
                self._events.lost(error)
                raise
            del self._open[name], self._stores[name]
            self._deleted[name] = cursor.store
            await self._finish_deletion(name)
        self._events.stored()

    async def _finish_deletion(self, name: str) -> bool:
        """Take away what is left of a deleted cursor. What fails is tried again; False then."""
        try:
            await self._deleted[name].finish_deletion()
        except LogFencedError as error:
            self._events.lost(error)
            raise
        except MagnetarError as error:
            log.warning(
                "cursor not wholly deleted yet", log=self._log_name, cursor=name, error=str(error)
            )
            return False
        del self._deleted[name]
        return True

    def durable(self) -> Mapping[str, Cursor]:
        return dict(self._open)

    # -- for the log --------------------------------------------------------------------------

    def pass_over(self, front: Position) -> None:
        """What is before ``front`` was deleted: for those that have not acknowledged it, it counts
        as if they had. (An owner may have ended after it said so in the log's record, and before
        they had stored that.)"""
        last = Position(front.ledger_id, front.entry_id - 1)
        for cursor in self._open.values():
            if cursor.mark_delete < last:
                cursor.acknowledge_cumulative(last)

    def clean_up_nowait(self) -> None:
        """Try again what deletions that failed have left, and delete what former owners did: not
        while the log is being opened, when clients wait for it and for others beside it."""
        if self._deleted and not self._lock.locked():
            self._scope.spawn(self._finish_deletions(), "cursor-deletions")
        if not self._cleaning and any(store.any_left for store in self._stores.values()):
            self._cleaning = True
            self._scope.spawn(self._forget_leftovers(), "cursor-leftovers")

    async def _finish_deletions(self) -> None:
        async with self._lock:
            for name in list(self._deleted):
                with suppress(LogFencedError):  # the log has heard of it
                    await self._finish_deletion(name)

    async def _forget_leftovers(self) -> None:
        try:
            for store in [each for each in self._stores.values() if each.any_left]:
                async with self._context.clean_ups:
                    await store.forget_leftovers()
        finally:
            self._cleaning = False

    async def handed_over(self) -> tuple[HandedCursor, ...] | None:
        """All cursors, once the log and they are closed, for the next owner; None if something of
        them is not known for certain, or if they are too much for the log's node."""
        async with self._lock:  # who has it still makes a cursor, or deletes one
            return self._handed()

    def _handed(self) -> tuple[HandedCursor, ...] | None:
        if self._deleted or self._half_made or len(self._stores) > HANDED_MAX:
            return None
        found = [(name, store.stored_node) for name, store in self._stores.items()]
        handed = tuple(HandedCursor(name, stored) for name, stored in found if stored is not None)
        byte_count = sum(len(each.stored.value) for each in handed)
        if len(handed) < len(found) or byte_count > HANDED_BYTES_MAX:
            return None
        return handed

    def stores(self) -> Iterable[AckStore]:
        return [cursor.store for cursor in self._open.values()]

    def noted_until(self) -> list[Position]:
        """As stored: whoever keeps a note is to learn from what lies behind, when it reads it again
        (``log.seam.CursorNote``)."""
        return [
            cursor.store.stored_mark_delete
            for cursor in self._open.values()
            if cursor.noted is not None and cursor.noted.value
        ]
