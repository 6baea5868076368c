"""The dispatcher of one subscription: entries from its feed, places from its machine, to consumers.

``wake`` asks for a round, which runs once per loop turn: it takes entries from the feed, lets the
machine (``dispatch``) place them and hands each consumer its run. Who is seated, and who is
active, is the subscription's business.

Where a rate is limited (``limit_rate``) a round takes what may pass, by whole entries, and the rest
waits in the feed, where it is not read again; the throttle asks for the next round.

Invariant: an entry of a shared subscription is out at one consumer, or in the feed, or not due yet
(``delays``), or none of these. The
machine says what is out and asserts that it was in no other place; what goes back to the feed has
been taken from it (``take_back``, ``remove``).

Why: docs/adr/0064-dispatch.md, docs/adr/0069-delayed-delivery.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import structlog

from magnetar.env.tasks import TaskScope, nothing
from magnetar.log.seam import Cursor, ReadableLog
from magnetar.model.entry import Description, Entry
from magnetar.model.errors import ErasedEntryError, ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.consuming.consumer import Consumer, ConsumerNews
from magnetar.topics.consuming.delays import Delays
from magnetar.topics.consuming.feed import ENTRIES_MAX, EntryFeed
from magnetar.topics.consuming.transaction_view import TransactionView
from magnetar.topics.dispatch.redelivery import Key, Redelivery, Replays
from magnetar.topics.dispatch.seats import Machine
from magnetar.topics.entry_format import EntryFormat, describe
from magnetar.topics.rate_limits import ANY, MayPass
from magnetar.topics.throttle import TopicThrottle
from magnetar.topics.traffic import Traffic

log = structlog.get_logger(__name__)

ROUNDS_MAX: Final = 4
"""Reads of one subscription in one loop turn; then others have theirs."""

_SIGN: Final = 1 << 63
_WORD_MASK: Final = (1 << 64) - 1


def both(words: Sequence[int] | None, kept: Sequence[int]) -> list[int]:
    """The ack set of a batch of which compaction has left ``kept``, in signed words."""
    found = [(each ^ _SIGN) - _SIGN for each in kept]
    return found if not words else [one & other for one, other in zip(found, words, strict=False)]


def acknowledged_in(words: Sequence[int], messages: int) -> int:
    """How many of a batch's ``messages`` are acknowledged by its ack set (bit 1: not so)."""
    bits = sum((word & _WORD_MASK) << (64 * index) for index, word in enumerate(words))
    return messages - (bits & ((1 << messages) - 1)).bit_count()


NO_ACK_SETS: Final[Mapping[Key, Sequence[int]]] = MappingProxyType({})


class Dispatcher:
    """See the module's text."""

    def __init__(
        self,
        source: ReadableLog,
        cursor: Cursor,
        scope: TaskScope,
        traffic: Traffic,
        entry_format: EntryFormat,
        machine: Machine[Consumer],
        now_ms: Callable[[], int],
    ) -> None:
        self.machine = machine
        self.messages_out = 0
        self.bytes_out = 0
        self.last_sent_ms = 0
        """When a consumer was last sent something: milliseconds since 1970, 0: never."""
        self._now_ms = now_ms
        self.feed = EntryFeed(source, cursor, scope, self.wake)
        self._log = source
        self._cursor = cursor
        self._traffic = traffic
        self._format = entry_format
        self._loop = asyncio.get_running_loop()
        self._full: list[Consumer] = []
        """Consumers whose connections had too much to write in this loop turn."""
        self._round = scope.guarded(self._dispatch, f"dispatch {cursor.name}")
        self._scheduled = False
        self._held = False
        self._delays: Delays | None = None
        self._view: TransactionView | None = None
        """From the first entry of a transaction on."""
        self._skims = False
        """Nothing of what came last is due: more than there is room for may be read."""
        self._takes: Callable[[int], bool] | None = None
        """Which hashes of keys a reader of some gets; None: all."""
        self._limited = False
        """By one of these; not so, as a rule: that is all they cost then."""
        self._throttles: tuple[TopicThrottle, ...] = ()
        self._unacked_max = 0
        """Of the messages that are out at all consumers; 0: any number."""
        self._unacked_full = False

    @property
    def delays(self) -> Delays | None:
        """What is not due yet; None where nothing is delayed."""
        return self._delays

    def begin(
        self,
        machine: Machine[Consumer],
        delays: Delays | None = None,
        replays: Replays | None = None,
    ) -> None:
        """Place by ``machine`` from now on, from after the mark-delete position. With ``delays``
        entries wait until they are due; if it holds some they stay there, and dispatch goes on
        where it rested (``rest``). ``replays``: the machine's own, if it has one."""
        resting = delays is not None and delays is self._delays and len(delays.index) > 0
        self.machine = machine
        self.feed.replay_by(Redelivery() if replays is None else replays, resting)
        if not resting:
            self.rewind()
        self._delays = delays

    def end(self, machine: Machine[Consumer]) -> None:
        """Everybody was sent away, with what was out; ``machine`` seats nobody."""
        self.machine = machine
        self.rewind()

    def rest(self) -> None:
        """Nobody is left. What is not due yet stays known: to find it again, everything that is not
        acknowledged would have to be read. That is done if so much waits besides (what was out at
        consumers of a Key_Shared subscription) that others would stand still for it."""
        if self._delays is not None and len(self._delays.index):
            self.feed.rest(self._due(self.feed.take_ahead()))
            if not self.feed.redelivery.full:
                return
        self.rewind()

    def rewind(self) -> None:
        """Start again after the mark-delete position; nothing may be out."""
        if self._delays is not None:
            self._delays.index.clear()
        self.feed.rewind()

    # -- rounds -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ask for a dispatch round in this loop turn (or the next)."""
        if not self._scheduled and self.machine.seats:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def hold(self) -> None:
        """No rounds until ``release``."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self.wake()

    def only(self, takes: Callable[[int], bool] | None) -> None:
        """Send nothing but entries whose keys' hashes (``model.key_hash``) are taken; None: all.
        The others count as acknowledged."""
        self._takes = takes

    def limit_rate(self, throttles: tuple[TopicThrottle, ...]) -> None:
        """From now on what is sent passes all of those."""
        self._forget_throttles()
        self._throttles = throttles
        self._see_limits()

    def limit_unacked(self, most: int) -> None:
        """From now on so many messages may be out at all consumers together; 0: any number."""
        self._unacked_max = most
        self._see_limits()

    def _see_limits(self) -> None:
        self._limited = bool(self._throttles) or self._unacked_max > 0
        self.wake()

    def _forget_throttles(self) -> None:
        for throttle in self._throttles:
            throttle.forget(self)
        self._throttles = ()

    def close(self) -> None:
        """No rounds and no reads any more."""
        self._held = True
        self._forget_throttles()
        self.feed.close()
        if self._delays is not None:
            self._delays.close()
        self._round = nothing  # it leads back here, which would be a cycle

    def _dispatch(self) -> None:
        self._scheduled = False
        if self._held:
            return
        self._rounds()
        if self._delays is not None:
            self._delays.arm()
        if self._log.end.terminated:
            self._tell_end()

    def _tell_end(self) -> None:
        """Nothing more comes: consumers are told once all is acknowledged, each once; what is sent
        again before that may still go to any of them."""
        if self._cursor.backlog_entries():
            return
        for seat in self.machine.seats:
            consumer = seat.owner
            if not consumer.told_end:
                consumer.told_end = True
                consumer.client.tell(ConsumerNews.ENDED)

    def _rounds(self) -> None:
        machine, delays = self.machine, self._delays
        full, self._full = self._full, []
        for consumer in full:
            self.follow_connection(consumer)
        stuck = False
        left = None
        for _ in range(ROUNDS_MAX):
            room = machine.room()
            if room <= 0:
                break
            if self._limited:
                left = self._admitted()
                if left is None:
                    return  # the throttle will wake us, or an acknowledgement
                if self.feed.redelivery.by_place:  # else what is read is kept at hand
                    room = min(room, left.messages)
            if delays is None:
                entries, replay = self.feed.take(room)
            else:
                delays.release(self.feed.redelivery)
                room = max(room, ENTRIES_MAX) if self._skims else room
                entries, replay = self.feed.take(room, ahead=not delays.index.full)
            if not entries:
                held_up = self.feed.waits or self.feed.redelivery.full
                if delays is not None and delays.waiting and not held_up:
                    continue  # what was due is gone from the log; the next may not be
                if self._full:  # what waits may be theirs alone
                    self.wake()
                return  # new entries, or the feed, or the timer, will wake us
            entries = self._cursor.unacknowledged(entries)
            if left is None:
                stuck = not self._place(machine, entries, replay)
            else:
                stuck = not self._place_limited(machine, entries, replay, left)
            if stuck:
                break
        if self._full or (machine.room() > 0 and not stuck):
            self.wake()  # a connection may be full for this turn only; one that stays so wakes us

    def follow_connection(self, consumer: Consumer) -> None:
        """Take over whether the consumer's connection can take more."""
        self.machine.set_blocked(consumer.seat, not consumer.client.writable)

    def _admitted(self) -> MayPass | None:
        """What may be sent now; None: nothing, and a round comes when something may."""
        messages = byte_count = ANY
        if self._unacked_max:
            messages = self._unacked_max - sum(seat.unacked for seat in self.machine.seats)
            self._unacked_full = messages <= 0
            if self._unacked_full:
                return None
        for throttle in self._throttles:
            left = throttle.admits(self, self.wake)
            if left is None:
                return None
            messages, byte_count = min(messages, left.messages), min(byte_count, left.byte_count)
        return MayPass(messages, byte_count)

    def _place_limited(
        self, machine: Machine[Consumer], entries: list[Entry], replay: bool, left: MayPass
    ) -> bool:
        """As ``_place``, of as many of ``entries`` as may pass; the first always does."""
        messages = byte_count = passing = 0
        for entry in entries:
            if messages >= left.messages or byte_count >= left.byte_count:
                break
            messages += self._messages_in(entry)
            byte_count += len(entry.payload)
            passing += 1
        before = self.messages_out, self.bytes_out
        goes_on = self._place(machine, entries[:passing], replay, entries[passing:])
        for throttle in self._throttles:
            throttle.take(self.messages_out - before[0], self.bytes_out - before[1])
        return goes_on

    def _messages_in(self, entry: Entry) -> int:
        try:
            return describe(entry, self._format).messages
        except ProtocolError:
            return 1  # it is left out

    def _place(
        self,
        machine: Machine[Consumer],
        entries: list[Entry],
        replay: bool,
        held: Sequence[Entry] = (),
    ) -> bool:
        """False if all of it waits, though there is room: chunks for one connection, or what a
        transaction without an outcome keeps. ``held``: what comes behind it and waits, too."""
        entries, descriptions = self._describe(entries)
        if self._takes is not None:
            entries = self._taken(entries, self._takes)
            descriptions = [describe(entry, self._format) for entry in entries]
        waiting: list[Entry] = []
        if any(each.transaction is not None for each in descriptions):
            entries, waiting = self._sort(entries)
            descriptions = [describe(entry, self._format) for entry in entries]
        if self._delays is not None:
            # What is sent again was due once, and stays so when the clock is set back.
            if not replay:
                entries, descriptions = self._delays.hold(entries, descriptions)
                # Given back they may come again as if they had been sent.
                waiting, held = self._due(waiting), self._due(list(held))
            self._skims = not entries
        if not entries:
            if waiting or held:
                self.feed.give_back([*waiting, *held], replay)
            return not waiting
        feed, total = self.feed, len(entries)
        messages = sum([description.messages for description in descriptions])
        feed.learn(total, messages)
        counts = feed.redelivery.counts
        ack_sets = self._ack_sets(entries, descriptions) if messages > total else NO_ACK_SETS
        runs, left, grouped = machine.place(entries, descriptions)
        sent = entries if grouped is None else grouped
        if runs:
            self.last_sent_ms = self._now_ms()
        for run in runs:
            consumer = run.seat.owner
            consumer.last_sent_ms = self.last_sent_ms
            mine = sent if run.stop - run.start == total else sent[run.start : run.stop]
            self.bytes_out += consumer.send(mine, run.messages, counts, ack_sets)
            self.messages_out += run.messages
            if replay:
                consumer.redelivered += run.messages
            if ack_sets and not consumer.returns_skipped:
                machine.flow(run.seat, self._skipped(mine, ack_sets))
            if consumer.client.crowded:
                machine.set_blocked(run.seat, True)
                self._full.append(consumer)
        self._traffic.entries_out += total - len(left)
        if left or waiting or held:
            feed.give_back([*(entries[index] for index in left), *waiting, *held], replay)
        # Where others than those that are left may be placed, more is taken.
        return bool(runs) or (feed.redelivery.by_place and not waiting)

    def _taken(self, entries: list[Entry], takes: Callable[[int], bool]) -> list[Entry]:
        taken: list[Entry] = []
        others: list[Position] = []
        for entry in entries:
            if takes(self._format.key_hash(entry.payload)):
                taken.append(entry)
            else:
                others.append(entry.position)
        if others:
            self._cursor.acknowledge(others)
        return taken

    def _due(self, entries: list[Entry]) -> list[Entry]:
        """Those that may be delivered now; the others wait until they are due."""
        if self._delays is None or not entries:
            return entries
        return self._delays.hold(*self._describe(entries))[0]

    def _sort(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        """What consumers get of entries of which some are parts of transactions, and what has no
        outcome yet. What nobody gets is acknowledged."""
        if self._view is None:
            self._view = TransactionView(self._log, self._format, self.feed.read_aside)
        delivered, hidden, waiting = self._view.sort(entries)
        if hidden:
            self._cursor.acknowledge(hidden)
        return delivered, waiting

    def _describe(self, entries: list[Entry]) -> tuple[list[Entry], list[Description]]:
        """The entries that can be sent, and what they say of themselves; one whose contents cannot
        be read would break every consumer, so it is acknowledged and left out."""
        entry_format = self._format
        try:
            return entries, [
                entry.description or describe(entry, entry_format) for entry in entries
            ]
        except ProtocolError:
            pass
        good: list[Entry] = []
        descriptions: list[Description] = []
        for entry in entries:
            try:
                descriptions.append(describe(entry, entry_format))
            except ProtocolError as error:
                self._skip(entry.position, error)
            else:
                good.append(entry)
        return good, descriptions

    def _skip(self, position: Position, error: ProtocolError) -> None:
        if isinstance(error, ErasedEntryError):  # somebody wanted that: it is nobody's trouble
            self._cursor.acknowledge([position])
            return
        log.warning(
            "entry skipped: its metadata cannot be read",
            log=self._log.name,
            subscription=self._cursor.name,
            position=str(position),
            error=str(error),
        )
        self._cursor.acknowledge([position])

    def _ack_sets(
        self, entries: Sequence[Entry], descriptions: Sequence[Description]
    ) -> Mapping[Key, Sequence[int]]:
        """The ack sets of batches among ``entries`` that are acknowledged in part."""
        found = {}
        for entry, description in zip(entries, descriptions, strict=True):
            if description.messages > 1:
                words = self._cursor.ack_set(entry.position)
                if entry.kept:
                    words = both(words, entry.kept)
                if words:
                    found[entry.ledger_id, entry.entry_id] = words
        return found

    def _skipped(self, entries: Sequence[Entry], ack_sets: Mapping[Key, Sequence[int]]) -> int:
        """How many messages of ``entries`` their consumer leaves out, for they are acknowledged.
        The machine charged them, since a batch is placed whole; a client that never counts them
        would be short of as many permits each time, until it has none for good."""
        total = 0
        for entry in entries:
            words = ack_sets.get((entry.ledger_id, entry.entry_id))
            if words:
                total += acknowledged_in(words, describe(entry, self._format).messages)
        return total

    # -- what is out --------------------------------------------------------------------------

    def settle(self, keys: Sequence[Position]) -> None:
        """``keys`` are acknowledged: forget them, wherever they are; a full consumer that has room
        again is served."""
        freed = self.machine.settle(keys)
        self.feed.redelivery.forget(keys)
        if freed or self._unacked_full:
            self.wake()

    def look_for_end(self) -> None:
        """Something was acknowledged, or a consumer has come: perhaps there is nothing left."""
        if self._log.end.terminated:
            self.wake()

    def settle_until(self, last: Position) -> None:
        """Everything up to ``last`` is acknowledged: forget what of it is out, or waits."""
        out = [key for seat in self.machine.seats for key in seat.out if key <= last]
        self.settle([Position(*key) for key in (*out, *self.feed.redelivery.up_to(last))])
        self.feed.skip_acknowledged()
        self.look_for_end()

    def take_back(self, consumer: Consumer, keys: Sequence[Key]) -> None:
        """``consumer`` refuses ``keys``, or all that is out at it if none are named: they go to
        anybody, before new entries."""
        self.feed.redelivery.add(self.machine.take_back(consumer.seat, keys), counted=True)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """``consumer`` left: what was out at it goes to others."""
        self.feed.redelivery.add(self.machine.remove(consumer.seat), counted=False)
        self.wake()
