"""Cursors of a managed log: the acknowledgement state joined with its store, and recovery.

A durable cursor has a ``CursorStore``; a reader's cursor has none and lives in memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain
from magnetar.log.managed.cursor_format import decode_records, recovery_start
from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.ledgers import ChainReader, Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import CursorRecord
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError, MagnetarError
from magnetar.model.ids import Position

RECOVERY_BATCH_ENTRIES = 1_000
RECOVERY_BATCH_BYTES = 4 << 20


class FlushTimer:
    """One timer for all cursors of a process: every ``interval_ms`` while any has something to
    store, each that has is told to."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._dirty: dict[CursorStore, None] = {}
        self._handle: asyncio.TimerHandle | None = None

    def add(self, store: CursorStore) -> None:
        """``store`` changed."""
        self._dirty[store] = None
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._handle = None
        stores, self._dirty = self._dirty, {}
        for store in stores:
            store.tick()
            if store.dirty:
                self.add(store)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._dirty.clear()


class ManagedCursor:
    """Implements ``log.seam.Cursor``."""

    def __init__(
        self,
        name: str,
        chain: Chain,
        state: AckState,
        properties: Mapping[str, str],
        store: CursorStore | None = None,
        timer: FlushTimer | None = None,
    ) -> None:
        assert (store is None) == (timer is None)
        self.name = name
        self.durable = store is not None
        self.properties = properties
        self.store = store
        self._timer = timer
        self._chain = chain
        self._state = state

    @property
    def mark_delete(self) -> Position:
        return self._state.mark_delete

    def _changed(self) -> None:
        if self._timer is not None and self.store is not None:
            self._timer.add(self.store)

    def acknowledge(self, positions: Sequence[Position]) -> None:
        if self._state.acknowledge(positions):
            self._changed()

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        whole = self._state.acknowledge_batch(position, batch_size, ack_set)
        self._changed()
        return whole

    def acknowledge_cumulative(self, position: Position) -> None:
        if self._state.acknowledge_cumulative(position):
            self._changed()

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return self._state.is_acknowledged(ledger_id, entry_id)

    def unacknowledged(self, entries: Sequence[Entry]) -> list[Entry]:
        return self._state.unacknowledged(entries)

    def ack_set(self, position: Position) -> list[int] | None:
        return self._state.ack_set(position)

    def backlog_entries(self) -> int:
        after = self._chain.entries_between(self._state.mark_delete, self._chain.confirmed)
        return after - self._state.hole_entries

    async def mark_deleted(self) -> None:
        """See ``CursorStore.mark_deleted``: when it fails the cursor is to be stored again."""
        assert self.store is not None
        try:
            await self.store.mark_deleted()
        finally:
            if self.store.dirty:
                self._changed()

    async def reset(self, position: Position) -> None:
        self._state.reset(self._chain.previous_position(position))
        self._changed()
        await self.wait_stored()

    async def wait_stored(self) -> None:
        if self.store is not None:
            await self.store.wait_stored()


async def recover_state(
    name: str, chain: Chain, node: RecordNode[CursorRecord], ledgers: Ledgers
) -> AckState:
    """The acknowledgements that were stored, and the node taken over.

    Fences the cursor's ledger, so that a former owner stores nothing more, then reads it; then
    writes the node, so that a former owner cannot move to another ledger. A state that the
    mark-delete position says wholly goes into the node, and the ledger with it goes away.
    Raises ``LogError`` when the ledger is not what a cursor wrote.
    """
    record = node.record
    state = AckState(chain, record.mark_delete, record.reset_epoch)
    if record.ledger_id is not None:
        reader = await ledgers.open(record.ledger_id)
        images = await _read_images(name, record.ledger_id, reader)
        # Not at the node's mark-delete: a reset since then may have moved it back.
        state = AckState(chain, images[0].mark_delete, images[0].reset_epoch)
        for image in images:
            state.merge(image)
    await node.update(lambda record: _taken_over(record, state))
    return state


def _taken_over(record: CursorRecord, state: AckState) -> CursorRecord:
    record = replace(record, epoch=record.epoch + 1)
    if record.ledger_id is None or not state.simple:
        return record
    return replace(
        record,
        ledger_id=None,
        mark_delete=state.mark_delete,
        reset_epoch=state.reset_epoch,
        deleting=(*record.deleting, record.ledger_id),
    )


async def _read_images(name: str, ledger_id: int, reader: ChainReader) -> list[AckImage]:
    """What the last whole snapshot in a cursor ledger and the deltas after it say."""
    last = reader.last_add_confirmed
    where = f"ledger {ledger_id} of cursor {name}"
    try:
        if last < 0:
            raise LogError(f"{where} is empty; it must start with a snapshot")
        (entry,) = await reader.read(last, 1, RECOVERY_BATCH_BYTES)
        at = recovery_start(last, bytes(entry.payload))
        if at < 0:
            raise LogError(f"{where} holds no whole snapshot")
        records: list[bytes] = []
        while at <= last:
            count = min(RECOVERY_BATCH_ENTRIES, last - at + 1)
            entries = await reader.read(at, count, RECOVERY_BATCH_BYTES)
            records += [bytes(e.payload) for e in entries]
            at += len(entries)
        images = decode_records(records)
    except LogError:
        raise
    except MagnetarError as error:
        raise LogError(f"{where} cannot be read: {error}") from error
    if not images:
        raise LogError(f"{where} holds no whole snapshot")
    return images
