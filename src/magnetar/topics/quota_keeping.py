"""Backlog quotas are kept (``quotas`` decides): producers of a topic that is past one are refused,
or its slowest subscriptions go on without what is too much.

Rules:

* Open topics are looked at every ``broker.backlog_quota_check_interval_ms``, and a topic whenever a
  producer of Pulsar's comes to it, so that it gets in as soon as there is place again, and before
  the first use by Kafka's clients since it was opened. Nothing is done on a message's way: between
  two looks a topic may go past its quota by what it is sent.
* A topic without a limit, or without a subscription that is behind, costs a look at what is in
  memory. Of one with a limit in time the oldest entry that is not acknowledged is read, if it is
  another one than at the look before; its publish time is the producer's. Where it cannot be read
  nothing is done for its age.
* Producers that are connected are sent away when their sends have had their outcomes: what they
  fail then was not stored. A batch of Kafka's is refused as the last look found it.
* What is evicted counts as acknowledged, for durable subscriptions only; each is named in the log,
  with how many entries it lost, and they are counted (``evicted_entries``).
* Topics on partitions have no quotas, nor has what Kafka's groups keep.

Why: docs/adr/0230-backlog-quotas.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from magnetar.cluster.topic_name import KAFKA_GROUPS
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import MagnetarError, ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.quotas import (
    Behind,
    Exceeded,
    Oldest,
    age_ms_left,
    by_age,
    by_bytes,
    bytes_left,
    mark_within,
    refusal,
    slowest,
)
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

TOPICS_PER_TURN: Final = 100
AT_ONCE: Final = 64
"""Topics of which something is read, or whose producers are sent away, at a time."""
READ_S: Final = 1.0
WAIT_S: Final = 5.0
"""How long sends under way are waited for; a log that stands still gets no more."""


class Loaded(Protocol):
    """The open topics."""

    def loaded(self) -> Sequence[Topic]: ...


class QuotaKeeping:
    """Of a broker's open topics; see the module's text."""

    def __init__(self, topics: Loaded, check_interval_ms: int, scope: TaskScope) -> None:
        self._topics = topics
        self._scope = scope
        self._interval_s = check_interval_ms / 1000
        self.evicted_entries = 0
        """Since the broker started."""

    @property
    def topics_over(self) -> int:
        """That refuse producers."""
        return sum(1 for topic in self._topics.loaded() if topic.over_quota is not None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """At every topic, once."""
        waiting: list[Topic] = []
        for number, topic in enumerate(self._topics.loaded()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if _is_limited(topic) and not topic.closed:
                waiting.append(topic)
            if len(waiting) == AT_ONCE:
                await asyncio.gather(*map(self._look_at, waiting))
                waiting.clear()
        await asyncio.gather(*map(self._look_at, waiting))

    async def _look_at(self, topic: Topic) -> None:
        # It is not held meanwhile: idle ones would never be unloaded.
        self._evict_bytes(topic)
        await self._evict_by_age(topic)
        exceeded = await find_exceeded(topic)
        _note(topic, exceeded)
        if exceeded is not None and (topic.producers or topic.waiting):
            await self._send_away(topic, exceeded)

    async def _send_away(self, topic: Topic, exceeded: Exceeded) -> None:
        """Its producers, and those that wait to be."""
        try:
            async with asyncio.timeout(WAIT_S):
                await topic.lock.acquire()
        except TimeoutError:
            return  # the next look comes to it again
        try:
            topic.stop_sends()
            # By itself: who gives up waiting for a drain would break it for others.
            drain = self._scope.spawn(topic.drain(), f"drain {topic.name}")
            await asyncio.wait([drain], timeout=WAIT_S)
            error = refusal(topic.name, exceeded)
            topic.turn_away(type(error), str(error))
        finally:
            topic.lock.release()

    # -- eviction -----------------------------------------------------------------------------

    def _evict_bytes(self, topic: Topic) -> None:
        quotas, behind = topic.policy.backlog_quotas, behind_in(topic)
        if not quotas.evicts_bytes or not behind:
            return
        stored = topic.log.stats()
        exceeded = by_bytes(quotas, stored, behind)
        if exceeded is not None:
            mark = mark_within(stored, bytes_left(exceeded.limit))
            self._evict(topic, topic.log.positions.next_position(mark), exceeded)

    async def _evict_by_age(self, topic: Topic) -> None:
        quotas = topic.policy.backlog_quotas
        exceeded = by_age(quotas, await oldest_in(topic)) if quotas.evicts_by_age else None
        if exceeded is None:
            return
        try:
            stop = await topic.log.first_at(topic.now_ms() - age_ms_left(exceeded.limit) + 1)
        except MagnetarError as error:
            log.info("nothing is evicted now", topic=str(topic.name), error=str(error))
            return
        if topic.policy.backlog_quotas == quotas:  # else an operator has said otherwise meanwhile
            self._evict(topic, stop, exceeded)

    def _evict(self, topic: Topic, stop: Position, exceeded: Exceeded) -> None:
        """What is before ``stop`` counts as acknowledged for each durable subscription."""
        for subscription in list(topic.subscriptions.values()):
            if not subscription.durable or topic.closed:
                continue
            entries = subscription.expire(stop)
            if not entries:
                continue
            self.evicted_entries += entries
            log.warning(
                "backlog evicted, as its quota's policy says: these entries are not delivered",
                topic=str(topic.name),
                subscription=subscription.name,
                entries=entries,
                up_to=str(subscription.cursor.mark_delete),
                why=str(exceeded),
            )


async def check_quota(topic: Topic) -> None:
    """A producer wants to publish to the topic. Raises ``BacklogQuotaError``."""
    exceeded = await note_quota(topic)
    if exceeded is not None:
        raise refusal(topic.name, exceeded)


async def note_quota(topic: Topic) -> Exceeded | None:
    """The quota for which producers are refused, looked at now (``Topic.over_quota``)."""
    if not _is_limited(topic):
        return None
    exceeded = await find_exceeded(topic)
    _note(topic, exceeded)
    return exceeded


async def find_exceeded(topic: Topic) -> Exceeded | None:
    """The quota for which producers of the topic are refused."""
    quotas = topic.policy.backlog_quotas
    if quotas.limit_bytes >= 0 and not quotas.evicts_bytes:
        behind = behind_in(topic)
        if behind or not quotas.limit_bytes:  # else nothing is to be counted
            exceeded = by_bytes(quotas, topic.log.stats(), behind)
            if exceeded is not None:
                return exceeded
    if quotas.limit_s > 0 and not quotas.evicts_by_age:
        oldest = await oldest_in(topic)
        if topic.policy.backlog_quotas != quotas:
            # What is noted of a quota that has gone would stay: its topic is looked at no more.
            return await find_exceeded(topic)
        return by_age(quotas, oldest)
    return None


def _note(topic: Topic, exceeded: Exceeded | None) -> None:
    """As it stands now."""
    before, topic.over_quota = topic.over_quota, exceeded
    if exceeded is None and before is not None:
        log.info("backlog quota is kept again: producers are let in", topic=str(topic.name))
    elif exceeded is not None and before is None:
        log.warning(
            "backlog quota exceeded: producers are refused",
            topic=str(topic.name),
            policy=str(exceeded.action),
            why=str(exceeded),
        )


def behind_in(topic: Topic) -> list[Behind]:
    return [
        Behind(name, each.cursor.mark_delete, entries)
        for name, each in topic.subscriptions.items()
        if each.durable and (entries := each.cursor.backlog_entries())
    ]


async def oldest_in(topic: Topic, *, read: bool = True) -> Oldest | None:
    """None: everything is acknowledged, or it is not known now; without ``read`` it is known if it
    was looked at before, or lies in memory."""
    first = slowest(behind_in(topic))
    if first is None:
        return None
    at = topic.log.positions.next_position(first.mark_delete)
    known = topic.oldest_known
    if known is None or known[0] != at:
        time_ms = await _published(topic, at, read)
        if time_ms <= 0:
            return None
        known = topic.oldest_known = at, time_ms
    return Oldest(first.name, max(0, topic.now_ms() - known[1]))


async def _published(topic: Topic, at: Position, read: bool) -> int:
    """The publish time of the entry there; 0: not known now."""
    try:
        async with asyncio.timeout(READ_S):
            found = await topic.log.read(at, 1, 1) if read else topic.log.read_cached(at, 1, 1)
        return topic.format.published(found[0].payload).time_ms if found else 0
    except (MagnetarError, TimeoutError) as error:
        if not isinstance(error, ProtocolError):
            log.info("age of a backlog is not known now", topic=str(topic.name), error=repr(error))
        return 0


def _is_limited(topic: Topic) -> bool:
    on_ledgers = not topic.log.owns_sequences
    limited = topic.policy.backlog_quotas.limited and on_ledgers
    return limited and topic.name.namespace != KAFKA_GROUPS
