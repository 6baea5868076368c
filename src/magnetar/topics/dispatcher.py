"""The dispatcher of one subscription: entries from its feed, places from its machine, to consumers.

``wake`` asks for a round, which runs once per loop turn: it takes entries from the feed, lets the
machine (``dispatch``) place them and hands each consumer its run. Who is seated, and who is
active, is the subscription's business.

Invariant: a shared entry is out at one consumer (its ``pending``), or in the feed, or neither.

Why: docs/adr/0064-dispatch.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import Cursor, ReadableLog
from magnetar.model.entry import Chunk, Entry
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.consumer import Consumer
from magnetar.topics.dispatch import NO_CHUNKS, Machine
from magnetar.topics.entry_format import EntryFormat, describe
from magnetar.topics.feed import EntryFeed
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

ROUNDS_MAX: Final = 4
"""Reads of one subscription in one loop turn; then others have theirs."""


class Dispatcher:
    """See the module's text. ``machine`` decides; with ``tracked`` consumers remember what is out
    at them."""

    def __init__(
        self,
        source: ReadableLog,
        cursor: Cursor,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        machine: Machine[Consumer],
    ) -> None:
        self.machine = machine
        self.tracked = False
        self.messages_out = 0
        self.bytes_out = 0
        self.feed = EntryFeed(source, cursor, scope, self.wake)
        self._log = source
        self._cursor = cursor
        self._traffic = traffic
        self._format = entry_format
        self._loop = asyncio.get_running_loop()
        self._full: list[Consumer] = []
        """Consumers whose connections had too much to write in this loop turn."""
        self._scheduled = False
        self._held = False

    def use(self, machine: Machine[Consumer], tracked: bool) -> None:
        """Place by ``machine`` from now on."""
        self.machine = machine
        self.tracked = tracked

    # -- rounds -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ask for a dispatch round in this loop turn (or the next)."""
        if not self._scheduled and self.machine.seats:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def hold(self) -> None:
        """No rounds until ``release``."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self.wake()

    def close(self) -> None:
        """No rounds and no reads any more."""
        self._held = True
        self.feed.closed = True

    def _dispatch(self) -> None:
        self._scheduled = False
        if self._held:
            return
        machine = self.machine
        full, self._full = self._full, []
        for consumer in full:
            consumer.follow_connection()
        stuck = False
        for _ in range(ROUNDS_MAX):
            room = machine.room()
            if room <= 0:
                break
            entries, replay = self.feed.take(room)
            if not entries:
                return  # new entries, or the feed, will wake us
            stuck = not self._place(machine, self._cursor.unacknowledged(entries), replay)
            if stuck:
                break
        if self._full or (machine.room() > 0 and not stuck):
            self.wake()  # a connection may be full for this turn only; one that stays so wakes us

    def _place(self, machine: Machine[Consumer], entries: list[Entry], replay: bool) -> bool:
        """False if all of it waits, though there is room: chunks for one connection."""
        entries, sizes = self._measure(entries)
        if not entries:
            return True
        chunks = _chunks(entries)
        feed = self.feed
        feed.learn(len(entries), sum(sizes))
        counts = feed.redelivery.counts
        ack_sets = self._ack_sets(entries, sizes)
        stop = 0
        for seat, start, stop in machine.assign(sizes, chunks):
            consumer = seat.owner
            run = sizes[start:stop]
            self.bytes_out += consumer.send(
                entries[start:stop], run, counts, ack_sets, self.tracked
            )
            self.messages_out += sum(run)
            if seat.blocked:
                self._full.append(consumer)
            if replay:
                consumer.redelivered += sum(run)
        self._traffic.entries_out += stop
        if stop < len(entries):
            feed.give_back(entries[stop:], replay)
        return stop > 0

    def _measure(self, entries: list[Entry]) -> tuple[list[Entry], list[int]]:
        """The entries that can be sent and how many messages each holds; one whose contents cannot
        be read would break every consumer, so it is acknowledged and left out."""
        entry_format = self._format
        try:
            return entries, [describe(entry, entry_format).messages for entry in entries]
        except ProtocolError:
            pass
        good: list[Entry] = []
        sizes: list[int] = []
        for entry in entries:
            try:
                sizes.append(describe(entry, entry_format).messages)
            except ProtocolError as error:
                self._skip(Position(entry.ledger_id, entry.entry_id), error)
            else:
                good.append(entry)
        return good, sizes

    def _skip(self, position: Position, error: ProtocolError) -> None:
        log.warning(
            "entry skipped: its metadata cannot be read",
            log=self._log.name,
            subscription=self._cursor.name,
            position=str(position),
            error=str(error),
        )
        self._cursor.acknowledge([position])

    def _ack_sets(
        self, entries: Sequence[Entry], sizes: Sequence[int]
    ) -> dict[tuple[int, int], list[int]]:
        """The ack sets of batches among ``entries`` that are acknowledged in part."""
        found = {}
        for entry, size in zip(entries, sizes, strict=True):
            if size > 1:
                words = self._cursor.ack_set(Position(entry.ledger_id, entry.entry_id))
                if words:
                    found[entry.ledger_id, entry.entry_id] = words
        return found

    # -- what is out --------------------------------------------------------------------------

    def settle(self, consumer: Consumer, keys: Sequence[Position]) -> None:
        """``keys`` are acknowledged by ``consumer``: forget them, wherever they are; a full
        consumer that has room again is served."""
        machine, redelivery = self.machine, self.feed.redelivery
        room = machine.room()
        for key in keys:
            if not consumer.settle(key):
                any(seat.owner.settle(key) for seat in machine.seats if seat.owner is not consumer)
            redelivery.forget(key)
        if room == 0:
            self.wake()

    def take_back(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """``consumer`` refuses ``positions``, or all that is out at it if none are named: they
        go to anybody, before new entries."""
        if positions:
            keys = [(key.ledger_id, key.entry_id) for key in positions if consumer.settle(key)]
        else:
            keys = consumer.take_pending()
        self.feed.redelivery.add(keys, counted=True)
        self.wake()


def _chunks(entries: Sequence[Entry]) -> Mapping[int, Chunk]:
    """The chunks among ``entries``, by index."""
    found = None
    for index, entry in enumerate(entries):
        description = entry.description
        if description is not None and description.chunk is not None:
            found = found or {}
            found[index] = description.chunk
    return found or NO_CHUNKS
