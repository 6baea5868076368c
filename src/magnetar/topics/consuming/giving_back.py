"""What is done to a subscription here that another broker may serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.env.tasks import nothing
from magnetar.model.errors import ServiceNotReadyError
from magnetar.topics.consuming.bound import BoundSubscription
from magnetar.topics.consuming.subscription import Subscription

TIMES_BOUND_MAX: Final = 5
"""So often who wants a subscription has it given back, while others get it in between."""


async def once_given_back(
    subscription: Subscription,
    topic: object,
    work: Callable[[], Awaitable[None]],
    *,
    check: Callable[[], object] = nothing,
    asker: BoundSubscription | None = None,
) -> None:
    """``work()`` under the subscription's lock, when the broker that serves it has given it back,
    or was asked to and has not: it would go on with what was true before. The ``asker`` need not be
    asked. Another one may get it in between, and is asked as well. ``check`` comes first, each
    time; what it raises ends it. Raises ``ServiceNotReadyError`` if others get it again and
    again."""
    asked = asker
    for _ in range(TIMES_BOUND_MAX):
        async with subscription.lock:
            check()
            bound = subscription.bound
            if bound is None or bound is asked:
                await work()
                return
        asked = bound
        await bound.give_back()
    raise ServiceNotReadyError(
        f"subscription {subscription.name} of {topic} goes to other brokers again and again; try "
        "again"
    )
