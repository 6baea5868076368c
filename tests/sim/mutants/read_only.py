"""Ring 2, with read-only brokers: bindings, deltas and followed logs with one rule broken each."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.ledger.tailing import TailingReader
from magnetar.log.managed.followed_log import FollowedLog
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.merging import Merging
from magnetar.topics import bindings
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.consuming.bound import BoundSubscription
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.following.ack_sending import AckSending
from magnetar.topics.following.followed_topic import FollowedTopic
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


# -- who dispatches ---------------------------------------------------------------------------


async def _at_once(self: Any, subscription: Any, broker_id: str = "") -> None:
    """In place of ``wait_free``: most of those who wait are let in by then, whatever the rules."""


def _two_dispatch() -> AbstractContextManager[None]:
    """The owner seats consumers of a subscription that is bound to another broker."""

    def nothing(self: Any) -> None: ...

    bind = Subscription.bind

    async def bound(self: Any, binding: Any) -> Any:
        found = await bind(self, binding)
        self.dispatcher.release()
        return found

    return replaced(
        (Subscription, "check_served_here", nothing),
        (Subscription, "bind", bound),
        (OwnerBindings, "wait_free", _at_once),
    )


def _owner_goes_on() -> AbstractContextManager[None]:
    """The owner gives a binding, and goes on with the consumers that it has."""

    async def bound(self: Any, binding: Any) -> Any:
        self.bound = BoundSubscription(binding, self._loop.time)
        await self.cursor.lending.bind(binding)
        return self.bound

    return replaced((Subscription, "bind", bound))


def _survives() -> AbstractContextManager[None]:
    """A binding is held for a broker that is gone."""

    def never(*_: Any) -> None:
        return None

    return replaced((bindings, "why_over", never))


def _end_not_stored() -> AbstractContextManager[None]:
    """The end of a binding is kept in memory; the next owner takes it to hold."""

    async def ended(self: Any) -> None:
        bound, self.bound = self.bound, None
        if bound is not None:
            self.dispatcher.rewind()
            self.dispatcher.release()

    return replaced((Subscription, "end_binding", ended))


# -- what is acknowledged ---------------------------------------------------------------------


def _begins_at_the_mark() -> AbstractContextManager[None]:
    """A bound broker begins after the mark-delete position, without the holes behind it."""
    bind = OwnerBindings.bind

    async def marked(self: Any, *args: Any) -> Any:
        lent = await bind(self, *args)
        return lent._replace(image=replace(lent.image, holes={}, ack_sets={}))

    return replaced((OwnerBindings, "bind", marked))


def _begins_before_it_sees() -> AbstractContextManager[None]:
    """A lent cursor begins before the follower has seen the log as far as it is acknowledged."""

    async def at_once(self: Any, position: Position) -> None: ...

    return replaced((FollowedLog, "wait_seen", at_once))


def _answered_before_stored() -> AbstractContextManager[None]:
    """The owner answers a delta when it has merged it, and stores it later."""
    ask = Merging._ask

    async def at_once(self: Any, line: Any, merges: Any, stored: bool) -> None:
        await ask(self, line, merges, stored=False)

    return replaced((Merging, "_ask", at_once))


def _terms_are_one() -> AbstractContextManager[None]:
    """What a former owner has taken counts as taken by this one."""
    answered = AckSending.answered

    def any_term(self: Any, term: int) -> None:
        answered(self, self._term)

    def nothing(self: Any) -> None: ...

    return replaced((AckSending, "answered", any_term), (AckSending, "say_again", nothing))


def _dropped_at_a_change() -> AbstractContextManager[None]:
    """What was under way when the owner changed counts as stored."""

    def failed(self: Any) -> None:
        self.answered(self._term)

    return replaced((AckSending, "failed", failed))


def _changes_after_failure() -> AbstractContextManager[None]:
    """After an image that failed only what changed since then is sent."""

    def failed(self: Any) -> None:
        self._under_way = None
        self._again = True

    return replaced((AckSending, "failed", failed))


def _trimmed_unread() -> AbstractContextManager[None]:
    """The owner takes what it has lent for read."""
    lent = Subscription.bind

    async def bound(self: Any, binding: Any) -> Any:
        found = await lent(self, binding)
        self.cursor.acknowledge_cumulative(self._positions.readable)
        return found

    return replaced((Subscription, "bind", bound))


# -- followed logs ----------------------------------------------------------------------------


def _past_the_end() -> AbstractContextManager[None]:
    """A follower takes an entry for readable that is not confirmed yet."""
    take = FollowedLog._take_entries

    async def take_entries(self: Any, reader: Any, ledger_id: int, confirmed: int) -> None:
        await take(self, reader, ledger_id, confirmed)
        chain = self._chain
        if chain.open_ledger_id == ledger_id:
            chain.confirm(chain.last_confirmed_entry + 1, chain.end_offset + 1)
            self._watch.grew()

    return replaced((FollowedLog, "_take_entries", take_entries))


def _told_too_far() -> AbstractContextManager[None]:
    """The owner tells of what it has sent to the bookies, and not of what is confirmed."""

    def told(self: Any, entry_id: int) -> None:
        self._told_s = asyncio.get_running_loop().time()
        self.last_add_confirmed = max(self.last_add_confirmed, entry_id + 1)
        self._news.set()

    return replaced((TailingReader, "told", told))


def _end_not_asked() -> AbstractContextManager[None]:
    """A seek to the end goes to where the follower sees it."""

    async def at_once(self: Any) -> None: ...

    return replaced((FollowedTopic, "see_end", at_once))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="read_only")


READ_ONLY = (
    _mutant("two brokers dispatch a subscription", _two_dispatch),
    _mutant("an owner goes on with what it has lent", _owner_goes_on),
    _mutant("a binding survives its broker", _survives),
    _mutant("the end of a binding is not stored", _end_not_stored),
    _mutant("a lent cursor begins at the mark", _begins_at_the_mark),
    _mutant("a lent cursor begins before its log is seen", _begins_before_it_sees),
    _mutant("a delta is answered before it is stored", _answered_before_stored),
    _mutant("what a former owner has taken counts for the next", _terms_are_one),
    _mutant("deltas are dropped when the owner changes", _dropped_at_a_change),
    _mutant("after a failure only changes are sent", _changes_after_failure),
    _mutant("what is lent counts as read", _trimmed_unread),
    _mutant("a follower reads past the readable end", _past_the_end),
    _mutant("a follower is told of more than is confirmed", _told_too_far),
    _mutant("a follower's end is taken for the log's", _end_not_asked),
)
