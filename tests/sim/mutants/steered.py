"""Ring 2, with policies that send consumers to read-only brokers: one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.cluster.steering import Steering
from magnetar.log.managed.cursor import ManagedLending
from magnetar.protocols.pulsar.handlers import consumers, redirects
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.opening import open_subscription
from magnetar.topics.steering import ReadSteering
from magnetar.topics.subscription import Subscription
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _in_a_circle() -> AbstractContextManager[None]:
    """Clients are sent on whether they follow or not, and as often as they come back."""
    place = Steering.place

    def placed(self: Any, seeker: Any, *args: Any) -> Any:
        return place(self, seeker._replace(follows=True, sent=None), *args)

    return replaced((Steering, "place", placed))


def _end_elsewhere() -> AbstractContextManager[None]:
    """A reader of what comes from now on is sent to where "now" is later."""
    place = ReadSteering.place

    async def placed(self: Any, topic: Any, asks: Any) -> Any:
        return await place(self, topic, asks._replace(at_end=False))

    return replaced((ReadSteering, "place", placed))


def _sent_before_it_is_there() -> AbstractContextManager[None]:
    """A consumer is told of its success, and its subscription is made where it is sent."""

    async def later(topic: Any, name: str, durable: bool, start: Any, properties: Any) -> Any:
        if not durable:
            return await open_subscription(topic, name, durable, start, properties)
        return None

    return replaced((redirects, "open_subscription", later))


def _permits_lost() -> AbstractContextManager[None]:
    """Who seeks before it was sent on stays, without what it has asked for."""
    stay = redirects.stay_if_leaving

    async def stays(session: Any, consumer_id: int, join: Any) -> None:
        leaving = session.leaving.get(consumer_id)
        if leaving is not None:
            leaving.permits = 0
        await stay(session, consumer_id, join)

    return replaced((consumers, "stay_if_leaving", stays))


def _both_serve() -> AbstractContextManager[None]:
    """Whom a client that follows nobody wants is served by the owner, and elsewhere too."""

    async def not_ended(self: Any, topic: Any, name: str, broker_id: str) -> None: ...

    def nothing(self: Any) -> None: ...

    async def at_once(self: Any, subscription: Any, broker_id: str = "") -> None: ...

    bind = Subscription.bind

    async def bound(self: Any, binding: Any) -> Any:
        found = await bind(self, binding)
        self.dispatcher.release()
        return found

    return replaced(
        (OwnerBindings, "end", not_ended),
        (OwnerBindings, "wait_free", at_once),
        (Subscription, "check_served_here", nothing),
        (Subscription, "bind", bound),
    )


def _closing_takes() -> AbstractContextManager[None]:
    """A topic that closes takes deltas, and does not store them any more."""
    merge = ManagedLending.merge

    def merged(self: Any, image: Any) -> None:
        if not self._store._closed:
            merge(self, image)

    def nothing(self: Any, topic: Any) -> None: ...

    return replaced((OwnerBindings, "_check_open", nothing), (ManagedLending, "merge", merged))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, steered=True)


STEERED = (
    _mutant("who does not follow is sent on and on", _in_a_circle),
    _mutant("a reader of what is to come is sent on", _end_elsewhere),
    _mutant("a consumer is sent before its subscription is there", _sent_before_it_is_there),
    _mutant("who stays has lost its permits", _permits_lost),
    _mutant("a subscription is served by its owner and elsewhere", _both_serve),
    _mutant("a topic that closes takes deltas", _closing_takes),
)
