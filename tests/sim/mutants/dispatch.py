"""Ring 2 with brokers: sessions, topics and dispatch with one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from magnetar.cluster.stored.counters import Counters
from magnetar.log.seam import Run
from magnetar.protocols.pulsar.handlers import consumers
from magnetar.protocols.pulsar.receipts import SessionProducer
from magnetar.topics import seek
from magnetar.topics.consuming.dispatcher import Dispatcher
from magnetar.topics.consuming.feed import EntryFeed
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.dispatch.redelivery import Redelivery
from magnetar.topics.dispatch.shared import SharedRoundRobin
from magnetar.topics.dispatch.single_active import SingleActive
from magnetar.topics.publishing.producer import Producer
from magnetar.topics.publishing.resend import ResendWindow
from magnetar.topics.topic import Topic
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


# -- receipts and producers -------------------------------------------------------------------


def _receipts_backwards() -> AbstractContextManager[None]:
    original = SessionProducer.stored

    def stored(self: Any, sends: Sequence[Any], ledger_id: int, first_entry_id: int) -> None:
        for index in reversed(range(len(sends))):
            original(self, sends[index : index + 1], ledger_id, first_entry_id + index)

    return replaced((SessionProducer, "stored", stored))


def _failed_is_stored() -> AbstractContextManager[None]:
    """What an append failed with is nobody's business: its sends are told the next places."""
    original = Producer._answered

    def answered(self: Any, sends: Any, messages: Any, size: int, error: Any, runs: Any) -> None:
        confirmed = sum(run.entries for run in runs)
        last = runs[-1] if runs else Run(0, 0, 0)
        left = len(sends) - confirmed
        if error is not None and left:
            runs = [*runs, Run(last.ledger_id, last.first_entry_id + last.entries, left)]
            error = None
        original(self, sends, messages, size, error, runs)

    return replaced((Producer, "_answered", answered))


def _resent_is_new() -> AbstractContextManager[None]:
    """What a producer sends again is taken for something new."""
    return replaced((ResendWindow, "find", lambda *_: None))


def _epoch_in_memory() -> AbstractContextManager[None]:
    """How often a topic was taken for oneself is forgotten with its broker."""

    async def raise_topic_epoch(self: Any, name: Any) -> int:
        epochs = self.__dict__.setdefault("epochs", {})
        epochs[name] = epochs.get(name, 0) + 1
        return int(epochs[name])

    return replaced((Counters, "raise_topic_epoch", raise_topic_epoch))


# -- where entries come from ------------------------------------------------------------------


def _wakes_one() -> AbstractContextManager[None]:
    """What is confirmed wakes one subscription of the topic."""

    def wake(self: Any) -> None:
        for subscription in list(self.subscriptions.values())[:1]:
            subscription.dispatcher.wake()

    return replaced((Topic, "_wake", wake))


def _skips_after_catching_up() -> AbstractContextManager[None]:
    """After a read from bookies the next entry is stepped over."""
    original = EntryFeed._read_new

    async def read_new(self: Any, generation: int, count: int) -> None:
        await original(self, generation, count)
        if generation == self._generation and self._ahead:
            self.position = self._positions.next_position(self.position)

    return replaced((EntryFeed, "_read_new", read_new))


def _late_read_counts() -> AbstractContextManager[None]:
    """A read that was under way when the subscription went back still moves it."""

    async def read_new(self: Any, _generation: int, count: int) -> None:
        entries = await self._log.read(self.position, count, 1 << 20)
        self._step_past(entries)
        self._ahead = entries

    return replaced((EntryFeed, "_read_new", read_new))


def _left_over_is_lost() -> AbstractContextManager[None]:
    """What was read and finds no permits is not kept."""
    return replaced((EntryFeed, "give_back", lambda *_: None))


# -- who gets them ----------------------------------------------------------------------------


def _no_permits_charged(machine: type) -> AbstractContextManager[None]:
    original = machine.place  # type: ignore[attr-defined]

    def place(self: Any, entries: Any, descriptions: Any) -> Any:
        before = {seat: seat.permits for seat in self.seats}
        placed = original(self, entries, descriptions)
        for seat, permits in before.items():
            seat.permits = permits
        return placed

    return replaced((machine, "place", place))


def _charged_twice() -> AbstractContextManager[None]:
    original = SingleActive.place

    def place(self: Any, entries: Any, descriptions: Any) -> Any:
        placed = original(self, entries, descriptions)
        for run in placed.runs:
            run.seat.permits -= run.messages
        return placed

    return replaced((SingleActive, "place", place))


def _given_to_two() -> AbstractContextManager[None]:
    """What one shared consumer refuses stays out at it, and goes to others."""
    original = SharedRoundRobin.take_back

    def take_back(self: Any, seat: Any, keys: Any) -> Any:
        mine = original(self, seat, keys)
        others = [key for other in self.seats if other is not seat for key in other.out]
        for key in others[:1]:
            holder = self._holders.pop(key)
            holder.unacked -= holder.out.pop(key)
        return mine + others[:1]

    return replaced((SharedRoundRobin, "take_back", take_back))


def _leaving_takes_along() -> AbstractContextManager[None]:
    """What is out at a shared consumer is forgotten when it leaves."""
    original = SharedRoundRobin.remove

    def remove(self: Any, seat: Any) -> Any:
        original(self, seat)
        return []

    return replaced((SharedRoundRobin, "remove", remove))


def _refused_is_gone() -> AbstractContextManager[None]:
    return replaced((Redelivery, "add", lambda *_, **__: None))


def _refusals_not_counted() -> AbstractContextManager[None]:
    original = Redelivery.add
    return replaced((Redelivery, "add", lambda self, keys, counted: original(self, keys, False)))


def _settled_stays_full() -> AbstractContextManager[None]:
    """An acknowledgement makes no room at the shared consumer that had the entry."""
    original = SharedRoundRobin.settle

    def settle(self: Any, keys: Any) -> bool:
        before = {seat: seat.unacked for seat in self.seats}
        original(self, keys)
        for seat, unacked in before.items():
            seat.unacked = unacked
        return False

    return replaced((SharedRoundRobin, "settle", settle))


def _blocked_for_good() -> AbstractContextManager[None]:
    """A consumer whose connection was full once gets nothing more."""
    original = Dispatcher.follow_connection

    def follow(self: Any, consumer: Any) -> None:
        if not consumer.seat.blocked:
            original(self, consumer)

    return replaced((Dispatcher, "follow_connection", follow))


def _old_one_not_told() -> AbstractContextManager[None]:
    """A failover consumer is not told that another takes its place."""
    original = Subscription._change

    def change(self: Any, change: Any) -> None:
        if change.deposed is not None:
            with replaced((type(change.deposed.owner.client), "tell", lambda *_: None)):
                original(self, change)
        else:
            original(self, change)

    return replaced((Subscription, "_change", change))


def _goes_on_where_the_old_one_was() -> AbstractContextManager[None]:
    """The next active consumer gets nothing of what the one before has not acknowledged."""
    original = Subscription._change

    def change(self: Any, change: Any) -> None:
        if change.activated is None:
            original(self, change)
            return
        with replaced((EntryFeed, "rewind", lambda _: None)):
            original(self, change)

    return replaced((Subscription, "_change", change))


# -- places -----------------------------------------------------------------------------------


def _seeks_behind() -> AbstractContextManager[None]:
    original = seek.seek_target

    def seek_target(positions: Any, position: Any) -> Any:
        return positions.next_position(original(positions, position))

    return replaced((seek, "seek_target", seek_target))


def _reader_starts_late() -> AbstractContextManager[None]:
    original = consumers.reader_start

    def reader_start(positions: Any, data: Any) -> Any:
        start = original(positions, data)
        if start.ledger_id < 0 or start > positions.readable:
            return start
        return positions.next_position(positions.next_position(start))

    return replaced((consumers, "reader_start", reader_start))


def _mutant(name: str, plant: Any, known: str = "", seeds_max: int = SEEDS_MAX) -> Mutant:
    return Mutant(name, 2, known, plant, seeds_max, brokers=True)


DISPATCH = (
    _mutant("receipts leave in the wrong order", _receipts_backwards),
    _mutant("a failed append is answered with receipts", _failed_is_stored),
    _mutant("what is sent again is stored again", _resent_is_new),
    _mutant("a topic's epoch is not stored", _epoch_in_memory),
    _mutant("what is confirmed wakes one subscription only", _wakes_one),
    _mutant("an entry is skipped after a read from bookies", _skips_after_catching_up),
    _mutant("a read from before a rewind still counts", _late_read_counts),
    _mutant("what finds no permits is dropped", _left_over_is_lost),
    _mutant(
        "an active consumer's permits are not charged", lambda: _no_permits_charged(SingleActive)
    ),
    _mutant(
        "shared consumers' permits are not charged", lambda: _no_permits_charged(SharedRoundRobin)
    ),
    _mutant("permits are charged twice", _charged_twice),
    _mutant("a shared entry is given to two consumers", _given_to_two),
    _mutant("what is out at a consumer that leaves is forgotten", _leaving_takes_along),
    _mutant("what is refused does not come again", _refused_is_gone),
    _mutant("refusals are not counted", _refusals_not_counted),
    _mutant("a full consumer stays full", _settled_stays_full),
    _mutant("a full connection is full for good", _blocked_for_good),
    _mutant("two consumers are active", _old_one_not_told),
    _mutant(
        "the next active consumer goes on where the last one was", _goes_on_where_the_old_one_was
    ),
    _mutant("a seek goes one too far", _seeks_behind),
    _mutant("a reader starts after what it asks for", _reader_starts_late),
)
