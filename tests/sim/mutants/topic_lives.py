"""Ring 2, with brokers: topics that are deleted, messages in chunks, who follows a log, and
messages that are for later, or expire."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.log.managed.followed_log import FollowedLog
from magnetar.log.managed.store import ManagedLogStore
from magnetar.topics import upkeep
from magnetar.topics.consuming.delays import Delays
from magnetar.topics.consuming.dispatcher import Dispatcher
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.dispatch.shared import SharedRoundRobin
from magnetar.topics.topic import Topic
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _deleted_is_closed() -> AbstractContextManager[None]:
    """A topic that is deleted is closed, and its log stays."""

    async def delete(self: Any, name: str) -> None: ...

    return replaced((ManagedLogStore, "delete", delete))


def _chunks_go_round() -> AbstractContextManager[None]:
    """The chunks of a message go to the shared consumers in turn."""
    return replaced((SharedRoundRobin, "_seat_of", lambda self, chunk: self._turn()))


def _record_is_read_once() -> AbstractContextManager[None]:
    """Who follows a log does not learn of its next ledger."""

    async def follow_record(self: Any) -> None: ...

    return replaced((FollowedLog, "_follow_record", follow_record))


# -- delayed entries ------------------------------------------------------------------------------


def _a_moment_early() -> AbstractContextManager[None]:
    """What is due within the next 40 ms is taken for due."""
    original = DelayedEntries.take_due

    def take_due(self: Any, now_ms: int, entries_max: int) -> Any:
        return original(self, now_ms + 40, entries_max)

    return replaced((DelayedEntries, "take_due", take_due))


def _gone_with_the_last_one() -> AbstractContextManager[None]:
    """When the last consumer leaves, what is not due is forgotten, and not read again."""

    def rest(self: Any) -> None:
        if self._delays is not None:
            self._delays.index.clear()
            self.feed.rest()
        else:
            self.rewind()

    def begin(self: Any, machine: Any, delays: Any = None) -> None:
        self.machine = machine
        if delays is None or delays is not self._delays:
            self.rewind()
        self._delays = delays

    return replaced((Dispatcher, "rest", rest), (Dispatcher, "begin", begin))


def _known_twice() -> AbstractContextManager[None]:
    """Who goes back and reads everything again keeps what he knew."""
    return replaced((Dispatcher, "rewind", lambda self: self.feed.rewind()))


def _read_again_where_it_rested() -> AbstractContextManager[None]:
    """The last consumer leaves, what is not due stays known, and is read again all the same."""

    def rest(self: Any) -> None:
        self.feed.rewind()

    return replaced((Dispatcher, "rest", rest))


def _full_drops() -> AbstractContextManager[None]:
    """What is not due and finds the index full is dropped."""
    original = DelayedEntries._add

    def add(self: Any, due: Any) -> None:
        if not self.full:
            original(self, due)

    return replaced((DelayedEntries, "_add", add))


def _nobody_looks() -> AbstractContextManager[None]:
    """No timer is set for what will be due."""
    return replaced((Delays, "arm", lambda _: None))


def _full_for_good() -> AbstractContextManager[None]:
    """An index that was full stays so."""
    original = DelayedEntries._take

    def take(self: Any, until_ms: int, entries_max: int) -> Any:
        full = self.full
        taken = original(self, until_ms, entries_max)
        if full:
            self._entries_max = 0
        return taken

    return replaced((DelayedEntries, "_take", take))


# -- messages that expire -------------------------------------------------------------------------


def _one_more_expires() -> AbstractContextManager[None]:
    """The first message that has not expired goes with those that have."""
    original = Subscription.expire

    def expire(self: Any, stop: Any) -> int:
        return original(self, self._positions.next_position(stop))

    return replaced((Subscription, "expire", expire))


def _expires_too_soon() -> AbstractContextManager[None]:
    """By half a second."""
    original = upkeep.expire_messages

    async def expire_messages(topic: Any, subscriptions: Any, published_ms: int) -> None:
        await original(topic, subscriptions, published_ms + 500)

    return replaced((upkeep, "expire_messages", expire_messages))


def _removed_stays() -> AbstractContextManager[None]:
    """Topics that are open do not hear that a time to live was removed."""
    original = Topic.set_policy

    def set_policy(self: Any, policy: Any) -> None:
        if policy.message_ttl_ms:
            original(self, policy)

    return replaced((Topic, "set_policy", set_policy))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, brokers=True)


TOPIC_LIVES = (
    _mutant("a topic that is deleted is only closed", _deleted_is_closed),
    _mutant("chunks of a message go to consumers in turn", _chunks_go_round),
    _mutant("a follower does not learn of the next ledger", _record_is_read_once),
    _mutant("a delayed entry is sent a moment early", _a_moment_early),
    _mutant("what is not due is forgotten when the last consumer leaves", _gone_with_the_last_one),
    _mutant("what is not due is known twice after going back", _known_twice),
    _mutant("what is not due is read again after a rest", _read_again_where_it_rested),
    _mutant("what is not due and finds the index full is dropped", _full_drops),
    _mutant("nobody looks when a delayed entry is due", _nobody_looks),
    _mutant("an index that was full stays so", _full_for_good),
    _mutant("one message expires too many", _one_more_expires),
    _mutant("messages expire half a second too soon", _expires_too_soon),
    _mutant("a time to live that was removed stays", _removed_stays),
)
