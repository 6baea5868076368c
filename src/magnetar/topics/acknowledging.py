"""Acknowledgements of a subscription on the way to its cursor, and their receipts on the way back.

Rules: an acknowledgement of something outside of the log has no effect; a receipt leaves once
everything that was acknowledged before it is stored, one wait of the cursor for all who ask
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import Cursor, ReadableLog
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import Position
from magnetar.topics.consumer import ConsumerClient


class Acked(Protocol):
    """One acknowledged id. ``ack_set`` is empty for a whole entry; else it says what is left of a
    batch (``log.seam.Cursor.acknowledge_batch``), which has ``batch_size`` messages (0: unsaid)."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entry_id(self) -> int: ...

    @property
    def ack_set(self) -> Sequence[int]: ...

    @property
    def batch_size(self) -> int: ...


class Acknowledging:
    """The cursor's side of one subscription."""

    def __init__(self, name: str, source: ReadableLog, cursor: Cursor, scope: TaskScope) -> None:
        self._name = name
        self._positions = source.positions
        self._cursor = cursor
        self._scope = scope
        self._receipts: list[tuple[ConsumerClient, int]] = []
        self._answering = False

    def until(self, last: Acked) -> None:
        """Acknowledge everything up to ``last``."""
        position = Position(last.ledger_id, last.entry_id)
        if position > self._positions.readable or last.ledger_id < 0:
            return
        if not last.ack_set:
            self._cursor.acknowledge_cumulative(position)
            return
        before = self._positions.previous_position(position)
        if before > self._cursor.mark_delete:
            self._cursor.acknowledge_cumulative(before)
        self._part(last)

    def each(self, ids: Sequence[Acked]) -> list[Position]:
        """Acknowledge ``ids``; returns the entries that are acknowledged whole by it."""
        readable = self._positions.readable
        positions: list[Position] = []
        completed: list[Position] = []
        for item in ids:
            position = Position(item.ledger_id, item.entry_id)
            if position > readable or item.ledger_id < 0:
                continue
            if not item.ack_set:
                positions.append(position)
            elif self._part(item):
                completed.append(position)
        self._cursor.acknowledge(positions)
        return positions + completed if completed else positions

    def _part(self, item: Acked) -> bool:
        """Acknowledge messages of a batch; True when all of it is acknowledged now."""
        size = item.batch_size if item.batch_size > 0 else len(item.ack_set) * 64
        position = Position(item.ledger_id, item.entry_id)
        return self._cursor.acknowledge_batch(position, size, item.ack_set)

    def answer_stored(self, client: ConsumerClient, request_id: int) -> None:
        """Answer once everything acknowledged so far is stored."""
        self._receipts.append((client, request_id))
        if not self._answering:
            self._answering = True
            self._scope.spawn(self._answer_stored(), f"ack receipts {self._name}")

    async def _answer_stored(self) -> None:
        try:
            while self._receipts:
                batch, self._receipts = self._receipts, []
                failure: MagnetarError | None = None
                try:
                    await self._cursor.wait_stored()
                except MagnetarError as error:
                    failure = error
                for client, request_id in batch:
                    client.answer_ack(request_id, failure)
        finally:
            self._answering = False
