"""Ring 2, with policies that send consumers to read-only brokers: one rule broken each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.cluster.steering import Steering
from magnetar.protocols.pulsar.handlers import redirects
from magnetar.topics.bindings import OwnerBindings
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.opening import open_subscription
from magnetar.topics.steering import ReadSteering
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


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="steered")


STEERED = (
    _mutant("who does not follow is sent on and on", _in_a_circle),
    _mutant("a reader of what is to come is sent on", _end_elsewhere),
    _mutant("a consumer is sent before its subscription is there", _sent_before_it_is_there),
    _mutant("a subscription is served by its owner and elsewhere", _both_serve),
)
