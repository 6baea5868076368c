"""Moving a subscription to another place.

Clients take a bare SUCCESS for a seek without asking for more messages, and their permits leak. So
a seek sends every consumer of the subscription away before it is answered: they
subscribe again, with empty queues and new permits. From the moment the seek begins nothing is
dispatched and acknowledgements of the consumers that were there have no effect. Where the topic
ends here meanwhile they hear of it then: once it is open again others may be served in their place.

Why: docs/adr/0063-seeks-send-consumers-away.md.
"""

from __future__ import annotations

from functools import partial

from magnetar.topics.consuming.giving_back import once_given_back
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.positions import Place, PublishTime, seek_target
from magnetar.topics.subscribable import SubscribableTopic


async def seek(
    topic: SubscribableTopic, subscription: Subscription, place: Place, back_to: str = ""
) -> None:
    """Move ``subscription`` so that ``place`` comes next; durable on return. Its consumers are
    sent away, whether it works out or not: to come back to the broker at ``back_to``, if a lookup
    would not lead them here. If it fails a reader comes back to where its client says: where it
    stood is known there."""
    # Held: its consumers are sent away, so that perhaps nobody is connected while it waits.
    with topic.held():
        # A broker that serves it would send messages from where it stood until it heard of the end.
        work = partial(_seek_here, topic, subscription, place, back_to)
        await once_given_back(subscription, topic.name, work)


async def _seek_here(
    topic: SubscribableTopic, subscription: Subscription, place: Place, back_to: str
) -> None:
    await subscription.end_binding()  # or what is sought here would be another's to keep
    subscription.dispatcher.hold()
    subscription.detach_untold()
    sought = False
    try:
        await topic.see_end()
        if isinstance(place, PublishTime):
            target = await topic.position_at(place)
        else:
            target = seek_target(subscription.dispatcher.feed.positions, place)
        await subscription.cursor.reset(target)
        sought = True
    finally:
        for consumer in subscription.take_untold():
            consumer.client.tell_closed(back_to)
        subscription.release()
        if sought:
            topic.linger(subscription)
        else:
            topic.drop_reader(subscription)
