"""Acknowledgements of a subscription on the way to its cursor, and their receipts on the way back.

Rules: an acknowledgement of something outside of the log has no effect; of how many messages an
entry has, the entry is asked and never the client; a receipt leaves once
everything that was acknowledged before it is stored, one wait of the cursor for all who ask
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import Cursor, ReadableLog
from magnetar.model.errors import MagnetarError, NotAllowedError, ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.consuming.consumer import ConsumerClient
from magnetar.topics.entry_format import EntryFormat, describe

UNSEEN_WORDS_MAX: Final = 1024
"""Words of an ack set (64 messages each) that are believed for an entry that is not in memory."""


class Acked(Protocol):
    """One acknowledged id. ``ack_set`` is empty for a whole entry; else it says what is left of a
    batch (``log.seam.Cursor.acknowledge_batch``)."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entry_id(self) -> int: ...

    @property
    def ack_set(self) -> Sequence[int]: ...


class Taken(NamedTuple):
    """``settled``: the entries that are acknowledged whole. ``refusal``: why not all ids were."""

    settled: Sequence[Position]
    refusal: NotAllowedError | None


class Acknowledging:
    """The cursor's side of one subscription."""

    def __init__(
        self,
        name: str,
        source: ReadableLog,
        cursor: Cursor,
        scope: TaskScope,
        entry_format: EntryFormat,
    ) -> None:
        self._name = name
        self._log = source
        self._format = entry_format
        self._positions = source.positions
        self._cursor = cursor
        self._scope = scope
        self._receipts: list[tuple[ConsumerClient, int]] = []
        self._answering = False

    def until(self, last: Acked) -> None:
        """Acknowledge everything up to ``last``. Raises ``NotAllowedError``."""
        position = Position(last.ledger_id, last.entry_id)
        if last.ledger_id < 0:
            return
        if position > self._positions.held:
            self._cursor.acknowledge([position])  # in vain: it is to know of that
            return
        if not last.ack_set:
            self._cursor.acknowledge_cumulative(position)
            return
        batch_size = self._batch_size(position, last)  # first: it may refuse
        before = self._positions.previous_position(position)
        if before > self._cursor.mark_delete:
            self._cursor.acknowledge_cumulative(before)
        self._cursor.acknowledge_batch(position, batch_size, last.ack_set)

    def whole(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Acknowledge entries; returns those of them that the log has."""
        held = self._positions.held
        if min(positions).ledger_id < 0:
            positions = [p for p in positions if p.ledger_id >= 0]
        self._cursor.acknowledge(positions)
        if max(positions, default=held) > held:
            return [position for position in positions if position <= held]
        return positions

    def each(self, ids: Sequence[Acked]) -> Taken:
        """Acknowledge ``ids``; what can be of them, if some are refused."""
        held = self._positions.held
        positions: list[Position] = []
        parts: list[tuple[Position, Acked]] = []
        for item in ids:
            position = Position(item.ledger_id, item.entry_id)
            if item.ledger_id < 0:
                continue
            if item.ack_set:
                parts.append((position, item))
            else:
                positions.append(position)
        self._cursor.acknowledge(positions)
        refusal: NotAllowedError | None = None
        for position, item in parts:
            try:
                batch_size = self._batch_size(position, item)
                if self._cursor.acknowledge_batch(position, batch_size, item.ack_set):
                    positions.append(position)
            except NotAllowedError as error:
                refusal = error
        return Taken([p for p in positions if p <= held], refusal)

    def _batch_size(self, position: Position, item: Acked) -> int:
        """How many messages the entry that ``item`` names has. What the client says of that counts
        for nothing: it is what the entry says, or, for one that is not in memory, at most what
        ``item`` has bits for, and of those at most ``UNSEEN_WORDS_MAX``. Raises ``NotAllowedError``
        for more bits than there can be messages, before they are looked at."""
        messages = self._messages(position)
        words = len(item.ack_set)
        words_max = UNSEEN_WORDS_MAX if messages is None else (messages + 63) // 64
        if words > words_max:
            raise NotAllowedError(
                f"subscription {self._name}: an acknowledgement of a part of {position} has bits "
                f"for {64 * words} messages; the entry has at most "
                f"{64 * words_max if messages is None else messages}"
            )
        return 64 * words if messages is None else messages

    def _messages(self, position: Position) -> int | None:
        """How many messages an entry says that it has; None if it is not in memory, or gone."""
        found = self._log.read_cached(position, 1, 1)
        if not found or (found[0].ledger_id, found[0].entry_id) != position:
            return None
        try:
            return describe(found[0], self._format).messages
        except ProtocolError:
            return None  # dispatch leaves it out

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
