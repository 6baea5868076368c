"""The durable cursors of one managed log: opening, listing and deleting them.

Owns: the cursors that are open here, and those that are deleted and of which something (a ledger,
the node) is left.

Rules:

* A name has one cursor. One that was deleted is wholly gone before its name is used again.
* A deletion that failed half way is finished by the log's housekeeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope
from magnetar.log.ack_store import AckStore, NullAckStore
from magnetar.log.acknowledgements import AckState
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.cursor import ManagedCursor, ManagedLending, recover_state
from magnetar.log.managed.cursor_store import CursorLimits, CursorStore
from magnetar.log.managed.flush_timer import FlushTimer
from magnetar.log.managed.ledgers import Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import (
    CursorRecord,
    cursor_path,
    decode_cursor,
    encode_cursor,
)
from magnetar.log.seam import Cursor
from magnetar.model.errors import (
    CursorNotFoundError,
    LogError,
    LogFencedError,
    MagnetarError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position

log = structlog.get_logger(__name__)


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


async def cursor_node(
    metadata: MetadataStore, log_name: str, name: str, initial: CursorRecord | None = None
) -> RecordNode[CursorRecord]:
    """The node of a cursor; made with ``initial``, or else ``NoNodeError``, if there is none."""
    return await RecordNode.load_or_create(
        metadata,
        cursor_path(log_name, name),
        encode_cursor,
        lambda value: decode_cursor(f"{log_name}/{name}", value),
        initial,
    )


def mark_before(chain: Chain, start: Position) -> Position:
    """The mark-delete position of a cursor that reads ``start`` next."""
    if start == LATEST:
        return chain.confirmed
    if start == EARLIEST:
        return chain.before_first()
    return chain.previous_position(start)


def readers_cursor(chain: Chain, name: str, start: Position) -> Cursor:
    """In memory only; ``start`` is read first."""
    state = AckState(chain, mark_before(chain, start))
    return ManagedCursor(name, chain, state, {}, NullAckStore(state))


class ManagedCursors:
    """Implements ``log.seam.Cursors``."""

    def __init__(
        self,
        log_name: str,
        chain: Chain,
        context: CursorContext,
        scope: TaskScope,
        events: CursorEvents,
    ) -> None:
        self._log_name = log_name
        self._chain = chain
        self._context = context
        self._scope = scope
        self._events = events
        self._open: dict[str, ManagedCursor] = {}
        self._deleted: dict[str, AckStore] = {}  # something of what they keep is left
        self._lock = asyncio.Lock()

    async def open(
        self, name: str, start: Position, properties: Mapping[str, str] | None = None
    ) -> Cursor:
        self._events.require_usable()
        async with self._lock:
            cursor = self._open.get(name)
            if cursor is None:
                if name in self._deleted and not await self._finish_deletion(name):
                    raise LogError(
                        f"log {self._log_name}: the former cursor {name!r} is not wholly deleted "
                        "yet; try again"
                    )
                record = CursorRecord(
                    mark_before(self._chain, start), properties=dict(properties or {})
                )
                try:
                    node = await cursor_node(self._context.metadata, self._log_name, name, record)
                    cursor = await self.recover(name, node)
                except LogFencedError as error:
                    self._events.lost(error)
                    raise
            return cursor

    async def recover(self, name: str, node: RecordNode[CursorRecord]) -> ManagedCursor:
        """Load a cursor that the metadata store has, and take it over."""
        context = self._context
        label = f"{self._log_name}/{name}"
        state = await recover_state(
            label, self._chain, node, context.ledgers, self._events.confirm_owned
        )
        store = CursorStore(
            label,
            state,
            node,
            context.ledgers,
            self._scope,
            timer=context.timer,
            limits=context.limits,
            on_stored=self._events.stored,
            on_lost=self._events.lost,
        )
        lending = ManagedLending(state, store)
        cursor = ManagedCursor(name, self._chain, state, node.record.properties, store, lending)
        self._open[name] = cursor
        if node.record.deleting:
            self._scope.spawn(store.forget_leftovers(), f"cursor-leftovers/{name}")
        return cursor

    def reader(self, name: str, start: Position) -> Cursor:
        return readers_cursor(self._chain, name, start)

    async def delete(self, name: str) -> None:
        self._events.require_usable()
        async with self._lock:
            cursor = self._open.get(name)
            if cursor is None:
                raise CursorNotFoundError(f"log {self._log_name} has no cursor {name!r}")
            try:
                await cursor.store.mark_deleted()
            except LogFencedError as error:
                self._events.lost(error)
                raise
            del self._open[name]
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

    def finish_deletions_nowait(self) -> None:
        """Try again what deletions that failed have left."""
        if self._deleted and not self._lock.locked():
            self._scope.spawn(self._finish_deletions(), "cursor-deletions")

    async def _finish_deletions(self) -> None:
        async with self._lock:
            for name in list(self._deleted):
                await self._finish_deletion(name)

    def stores(self) -> Iterable[AckStore]:
        return [cursor.store for cursor in self._open.values()]
