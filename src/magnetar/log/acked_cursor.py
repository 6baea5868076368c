"""What cursors of both engines are: the acknowledgement state, joined with the store that keeps it.

An engine says which positions of the state an entry has, what its backlog is, and where a mark
before a position lies; the rest of ``log.seam.Cursor`` is here.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from magnetar.log.ack_store import AckStore
from magnetar.log.acknowledgements import AckState
from magnetar.log.seam import CursorLending, CursorNote
from magnetar.model.entry import Entry
from magnetar.model.ids import Position


class AckedCursor:
    """Implements ``log.seam.Cursor`` but for ``backlog_entries``."""

    def __init__(
        self,
        name: str,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> None:
        self.name = name
        self.durable = store.durable
        self.lending = lending
        self.properties = properties
        self.store = store
        self.noted: CursorNote | None = AckedNote(self, state) if store.durable else None
        self._state = state

    def _mark_before(self, position: Position) -> Position:
        """The mark-delete position that leaves ``position`` to be read next."""
        raise NotImplementedError

    @property
    def mark_delete(self) -> Position:
        return self._state.mark_delete

    def acknowledge(self, positions: Sequence[Position]) -> None:
        if self._state.acknowledge(positions):
            self.store.mark_dirty()

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        whole = self._state.acknowledge_batch(position, batch_size, ack_set)
        self.store.mark_dirty()
        return whole

    def acknowledge_cumulative(self, position: Position) -> None:
        if self._state.acknowledge_cumulative(position):
            self.store.mark_dirty()

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return self._state.is_acknowledged(ledger_id, entry_id)

    def unacknowledged(self, entries: Sequence[Entry]) -> list[Entry]:
        return self._state.unacknowledged(entries)

    def ack_set(self, position: Position) -> list[int] | None:
        return self._state.ack_set(position)

    async def reset(self, position: Position) -> None:
        self._state.reset(self._mark_before(position))
        self.store.mark_dirty()  # it is stored even if whoever waits for it gives up
        await self.wait_stored()

    async def wait_stored(self) -> None:
        await self.store.wait_stored()


class AckedNote:
    """Implements ``log.seam.CursorNote``."""

    def __init__(self, cursor: AckedCursor, state: AckState) -> None:
        self._cursor = weakref.ref(cursor)  # which has this: else a cycle
        self._state = state

    @property
    def value(self) -> bytes:
        return self._state.note

    def take(self, position: Position, value: bytes) -> None:
        cursor = self._cursor()
        assert cursor is not None, "a note is taken by who has its cursor"
        cursor.acknowledge_cumulative(position)
        self._state.take_note(value)
        cursor.store.mark_dirty()
