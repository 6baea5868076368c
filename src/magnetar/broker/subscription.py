"""A subscription: a cursor, its consumers, and what moves between them.

Control (``add``, ``remove``, seek, unsubscribe) changes who is there; ``wake`` asks for a dispatch
round, which runs once per loop turn, takes entries from the feed, lets the machine place them and
hands each consumer its run. Acknowledgements go straight to the cursor.

Rules:

* Exclusive: one consumer. Failover: many, one active. When a better one comes, the active one is
  told, nobody is active for ``SWITCH_DELAY_S`` (its acknowledgements on the way arrive), then the
  new one starts after the mark-delete position. Never two at once.
* Shared: each unacknowledged entry is out at one consumer; when that one leaves, or refuses the
  entry, it goes to any other, before new entries.
* An acknowledgement of something outside of the log, or by a consumer that was closed, has no
  effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch import SharedRoundRobin, SingleActive
from magnetar.broker.feed import EntryFeed
from magnetar.env.tasks import TaskScope
from magnetar.log.seam import Cursor, Log
from magnetar.model.entry import Entry
from magnetar.model.errors import ConsumerBusyError, MagnetarError, NotAllowedError, ProtocolError
from magnetar.model.ids import Position
from magnetar.wire.pulsar.hot import AckCommand, AckId
from magnetar.wire.pulsar.metadata import batch_size
from magnetar.wire.pulsar.replies import ack_response

if TYPE_CHECKING:
    from magnetar.broker.session import Session

log = structlog.get_logger(__name__)

ROUNDS_MAX: Final = 4
"""Reads of one subscription in one loop turn; then others have theirs."""

SWITCH_DELAY_S: Final = 1.0


class Kind(IntEnum):
    """Values are those of Pulsar's ``SubType``."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2


class Limits(NamedTuple):
    unacked_messages_max: int
    consumers_max: int


class Subscription:
    """One subscription of one topic; see the module's text."""

    def __init__(
        self,
        name: str,
        source: Log,
        cursor: Cursor,
        partition: int,
        limits: Limits,
        scope: TaskScope,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.partition = partition
        self.consumers: list[Consumer] = []
        self.kind = Kind.EXCLUSIVE
        self.lock = asyncio.Lock()
        """Held by whatever changes the subscription as a whole: subscribe, seek, unsubscribe."""
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.on_idle: Callable[[Subscription], None] | None = None
        """Told when the last consumer left."""
        self._log = source
        self._limits = limits
        self._scope = scope
        self._receipts: list[tuple[Session, int, int]] = []
        self._answering = False
        self._loop = asyncio.get_running_loop()
        self._feed = EntryFeed(source, cursor, scope, self.wake)
        self._single: SingleActive[Consumer] = SingleActive(partition)
        self._shared: SharedRoundRobin[Consumer] = SharedRoundRobin(limits.unacked_messages_max)
        self._order = 0
        self._full: list[Consumer] = []
        """Consumers whose connections had too much to write in this loop turn."""
        self._scheduled = False
        self._held = False
        self._switch: asyncio.TimerHandle | None = None

    def next_order(self) -> int:
        self._order += 1
        return self._order

    @property
    def durable(self) -> bool:
        return self.cursor.durable

    @property
    def active(self) -> Consumer | None:
        """The active consumer of an exclusive or failover subscription."""
        return self._single.active.owner if self._single.active else None

    # -- consumers ----------------------------------------------------------------------------

    def check_room(self, kind: Kind) -> None:
        """Raise ``ConsumerBusyError`` if a consumer of ``kind`` cannot join."""
        if not self.consumers:
            return
        if kind is not self.kind:
            raise ConsumerBusyError(
                f"subscription {self.name} on {self._log.name} is {self.kind.name.lower()} and has "
                f"{len(self.consumers)} consumers; it cannot be {kind.name.lower()} at once"
            )
        if kind is Kind.EXCLUSIVE:
            raise ConsumerBusyError(
                f"subscription {self.name} on {self._log.name} is exclusive and taken by "
                f"{self.consumers[0].name} ({self.consumers[0].session.peer})"
            )
        if len(self.consumers) >= self._limits.consumers_max:
            raise ConsumerBusyError(
                f"subscription {self.name} on {self._log.name} has {len(self.consumers)} "
                "consumers, the most that are allowed"
            )

    def add(self, consumer: Consumer, kind: Kind) -> None:
        """Seat ``consumer``; ``check_room`` has passed, in the same loop turn. Call ``announce``
        once it has been told of its success."""
        if not self.consumers:
            self.kind = kind
            self._feed.rewind()
        self.consumers.append(consumer)
        if kind is Kind.SHARED:
            self._shared.add(consumer.seat)
        else:
            self._single.add(consumer.seat)

    def announce(self, consumer: Consumer) -> None:
        """``consumer`` has been told that it is subscribed: it may be active and get entries."""
        if self.kind is Kind.SHARED:
            self.wake()
            return
        self._elect()
        if self.kind is Kind.FAILOVER and self.active is not consumer and not consumer.closed:
            consumer.session.tell_active(consumer, False)

    def remove(self, consumer: Consumer) -> None:
        """``consumer`` left; what it had not acknowledged goes to others."""
        if consumer.closed:
            return
        consumer.closed = True
        self.consumers.remove(consumer)
        if self.kind is Kind.SHARED:
            self._shared.remove(consumer.seat)
            self._feed.redelivery.add(consumer.take_pending(), counted=False)
            self.wake()
        else:
            self._single.remove(consumer.seat)
            self._elect()
        if not self.consumers:
            self._feed.rewind()
            if self.on_idle is not None:
                self.on_idle(self)

    def detach_all(self) -> list[Consumer]:
        """Close every consumer here; whoever calls tells their clients (and nobody calls
        ``on_idle``)."""
        consumers, self.consumers = self.consumers, []
        self._cancel_switch()
        for consumer in consumers:
            consumer.closed = True
            consumer.session.forget_consumer(consumer)
        self._single = SingleActive(self.partition)
        self._shared = SharedRoundRobin(self._limits.unacked_messages_max)
        return consumers

    # -- failover -----------------------------------------------------------------------------

    def _elect(self) -> None:
        machine = self._single
        chosen, active = machine.elect(), machine.active
        if chosen is active or self._switch is not None:
            return
        if active is None:
            self._activate()
            return
        machine.active = None
        active.owner.session.tell_active(active.owner, False)
        self._switch = self._loop.call_later(SWITCH_DELAY_S, self._activate)

    def _activate(self) -> None:
        self._cancel_switch()
        seat = self._single.elect()
        if seat is None:
            return
        self._feed.rewind()
        self._single.active = seat
        if self.kind is Kind.FAILOVER:
            seat.owner.session.tell_active(seat.owner, True)
        self.wake()

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    # -- dispatch -----------------------------------------------------------------------------

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.seat.permits += permits
        self.wake()

    def wake(self) -> None:
        """Ask for a dispatch round in this loop turn (or the next)."""
        if not self._scheduled and self.consumers:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        if self._held:
            return
        machine = self._shared if self.kind is Kind.SHARED else self._single
        full, self._full = self._full, []
        for consumer in full:
            consumer.follow_connection()
        for _ in range(ROUNDS_MAX):
            room = machine.room()
            if room <= 0:
                break
            entries, replay = self._feed.take(room)
            if not entries:
                return  # new entries, or the feed, will wake us
            self._place(machine, self.cursor.unacknowledged(entries), replay)
        if self._full or machine.room() > 0:
            self.wake()  # a connection may be full for this turn only; one that stays so wakes us

    def _place(
        self,
        machine: SingleActive[Consumer] | SharedRoundRobin[Consumer],
        entries: list[Entry],
        replay: bool,
    ) -> None:
        entries, sizes = self._measure(entries)
        if not entries:
            return
        self._feed.learn(len(entries), sum(sizes))
        tracked = self.kind is Kind.SHARED
        counts = self._feed.redelivery.counts
        ack_sets = self._ack_sets(entries, sizes)
        stop = 0
        for seat, start, stop in machine.assign(sizes):
            consumer = seat.owner
            run = sizes[start:stop]
            self.bytes_out += consumer.send(entries[start:stop], run, counts, ack_sets, tracked)
            self.entries_out += stop - start
            self.messages_out += sum(run)
            if seat.blocked:
                self._full.append(consumer)
            if replay:
                consumer.redelivered += sum(run)
        if stop < len(entries):
            self._feed.give_back(entries[stop:], replay)

    def _measure(self, entries: list[Entry]) -> tuple[list[Entry], list[int]]:
        """The entries that can be sent and how many messages each holds; one whose metadata
        cannot be read would break every consumer, so it is acknowledged and left out."""
        try:
            return entries, [batch_size(entry.payload) for entry in entries]
        except ProtocolError:
            pass
        good: list[Entry] = []
        sizes: list[int] = []
        for entry in entries:
            try:
                sizes.append(batch_size(entry.payload))
            except ProtocolError as error:
                position = Position(entry.ledger_id, entry.entry_id)
                log.warning(
                    "entry skipped: its metadata cannot be read",
                    log=self._log.name,
                    subscription=self.name,
                    position=str(position),
                    error=str(error),
                )
                self.cursor.acknowledge([position])
            else:
                good.append(entry)
        return good, sizes

    def _ack_sets(
        self, entries: Sequence[Entry], sizes: Sequence[int]
    ) -> dict[tuple[int, int], list[int]]:
        """The ack sets of batches among ``entries`` that are acknowledged in part."""
        found = {}
        for entry, size in zip(entries, sizes, strict=True):
            if size > 1:
                words = self.cursor.ack_set(Position(entry.ledger_id, entry.entry_id))
                if words:
                    found[entry.ledger_id, entry.entry_id] = words
        return found

    # -- acknowledgement ----------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: AckCommand) -> None:
        """Raises ``NotAllowedError`` for what this subscription cannot do."""
        if ack.txn is not None:
            raise NotAllowedError(
                f"subscription {self.name}: transactions are not served; acknowledge without one"
            )
        if ack.cumulative:
            if self.kind is Kind.SHARED:
                raise NotAllowedError(
                    f"subscription {self.name} is shared: acknowledge messages one by one"
                )
            if ack.ids:
                self._acknowledge_until(ack.ids[-1])
        else:
            self._acknowledge_each(consumer, ack.ids)
        consumer.acknowledged += len(ack.ids)

    def _acknowledge_until(self, last: AckId) -> None:
        position = Position(last.ledger_id, last.entry_id)
        if position > self._log.confirmed or last.ledger_id < 0:
            return
        if not last.ack_set:
            self.cursor.acknowledge_cumulative(position)
            return
        before = self._log.previous_position(position)
        if before > self.cursor.mark_delete:
            self.cursor.acknowledge_cumulative(before)
        self._acknowledge_part(last)

    def _acknowledge_each(self, consumer: Consumer, ids: Sequence[AckId]) -> None:
        confirmed = self._log.confirmed
        positions = []
        for item in ids:
            position = Position(item.ledger_id, item.entry_id)
            if position > confirmed or item.ledger_id < 0:
                continue
            if item.ack_set:
                if self._acknowledge_part(item):
                    self._settle(consumer, position)
            else:
                positions.append(position)
        self.cursor.acknowledge(positions)
        if self.kind is Kind.SHARED:
            for position in positions:
                self._settle(consumer, position)

    def _acknowledge_part(self, item: AckId) -> bool:
        size = item.batch_size if item.batch_size > 0 else len(item.ack_set) * 64
        position = Position(item.ledger_id, item.entry_id)
        return self.cursor.acknowledge_batch(position, size, item.ack_set)

    def _settle(self, consumer: Consumer, key: Position) -> None:
        """Forget ``key``, wherever it is; a full consumer that has room again is served."""
        full = self.is_full(consumer)
        if not consumer.settle(key):
            any(other.settle(key) for other in self.consumers if other is not consumer)
        self._feed.redelivery.forget(key)
        if full:
            self.wake()

    def is_full(self, consumer: Consumer) -> bool:
        """Whether the consumer gets no more until it acknowledges something."""
        return consumer.seat.unacked >= self._limits.unacked_messages_max

    def answer_stored(self, session: Session, consumer_id: int, request_id: int) -> None:
        """Send an ACK_RESPONSE once everything acknowledged so far is stored."""
        self._receipts.append((session, consumer_id, request_id))
        if not self._answering:
            self._answering = True
            self._scope.spawn(self._answer_stored(), f"ack receipts {self.name}")

    async def _answer_stored(self) -> None:
        try:
            while self._receipts:
                batch, self._receipts = self._receipts, []
                code: int | None = None
                text = ""
                try:
                    await self.cursor.wait_stored()
                except MagnetarError as error:
                    code, text = error.pulsar_code, str(error)
                for session, consumer_id, request_id in batch:
                    session.write(ack_response(consumer_id, request_id, code, text))
        finally:
            self._answering = False

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Send again what ``consumer`` has not acknowledged: those, or all if none are named."""
        if self.kind is not Kind.SHARED:
            if consumer is self.active:
                self._feed.rewind()
                self.wake()
            return
        if positions:
            keys = [tuple(key) for key in positions if consumer.settle(key)]
            self._feed.redelivery.add(((key[0], key[1]) for key in keys), counted=True)
        else:
            self._feed.redelivery.add(consumer.take_pending(), counted=True)
        self.wake()

    # -- the whole subscription ---------------------------------------------------------------

    def hold(self) -> None:
        """No dispatch until ``release``."""
        self._held = True

    def release(self) -> None:
        """Dispatch again, from after the mark-delete position if nobody is connected."""
        self._held = False
        if not self.consumers:
            self._feed.rewind()
        self.wake()

    def close(self) -> None:
        """The subscription ends here: its topic closes or it was deleted."""
        self._held = True
        self._feed.closed = True
        self._cancel_switch()
