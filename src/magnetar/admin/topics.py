"""``TopicService``: what REST asks and tells about topics. It asks the registry of open topics and
the control plane; it keeps nothing.

Names are those of clients, full or short. A question about a topic that another broker serves ends
in ``ServedElsewhereError``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from magnetar.admin.elsewhere import AUTHORITATIVE, ServedElsewhereError
from magnetar.admin.lent_stats import ServedThere, lent_stats
from magnetar.admin.peers import Peers, about_topic, read_answer, subscription_path
from magnetar.admin.stats_views import (
    InternalStatsView,
    PartitionedStatsView,
    SubscriptionView,
    TopicStatsView,
)
from magnetar.admin.topic_stats import (
    ASK_AGE,
    followed_stats,
    internal_stats,
    partitioned_stats,
    topic_stats,
)
from magnetar.admin.views import LookupView
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At, Owner
from magnetar.cluster.policies.policies import decode_engine
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.env.loop_turns import LoopLine
from magnetar.model.errors import (
    BrokerError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.topics.engine_rules import EngineRules
from magnetar.topics.following.followed_topics import FollowedTopics
from magnetar.topics.partitioned_deletion import delete_partitioned, parts_of
from magnetar.topics.parts import each_part
from magnetar.topics.positions import Place, PublishTime, seek_target
from magnetar.topics.rates import Rates
from magnetar.topics.registry import Topics
from magnetar.topics.seek import seek
from magnetar.topics.skipping import skip_messages
from magnetar.topics.topic import Topic
from magnetar.topics.upkeep import expire_messages

log = structlog.get_logger(__name__)

OPENED_AT_A_TIME: Final = 32
"""Partitions that one request may be opening; others open topics, too."""
SUBSCRIPTION_EXISTS: Final = "Subscription already exists for topic"
"""Pulsar's words, which brokers tell each other."""


class PartitionedTopicError(BrokerError):
    """The request is one for a topic without partitions."""


class TopicService:
    """``service_url`` and ``http_url`` are told to clients; ``now_ms`` is a wall clock; ``peers``
    are the brokers that serve other topics. ``tls_url``: the TLS address of the broker that
    Pulsar's clients find at a plain one."""

    def __init__(
        self,
        control: ControlPlane,
        topics: Topics,
        rates: Rates,
        service_url: str,
        http_url: str,
        now_ms: Callable[[], int],
        peers: Peers,
        followed: FollowedTopics | None = None,
        tls_url: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._tls_url = tls_url
        self._answers = LoopLine()
        self._followed = followed
        self._control = control
        self._peers = peers
        self._topics = topics
        self._rates = rates
        self._service_url = service_url
        self._http_url = http_url
        self._now_ms = now_ms

    # -- names --------------------------------------------------------------------------------

    async def names(self, namespace: str) -> list[str]:
        """All topics of ``tenant/namespace``, each partition by itself, sorted."""
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return await self._as_text(await self._topics.names(namespace))

    async def partitioned_names(self, namespace: str) -> list[str]:
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return await self._as_text(await self._control.partitioned.names(namespace))

    async def _as_text(self, names: Sequence[TopicName]) -> list[str]:
        """What many asked for at once comes for all of them in one turn of the loop: each makes its
        answer in one of its own."""
        await self._answers.wait()
        return [str(name) for name in names]

    async def all_of(self, namespace: str) -> tuple[list[TopicName], list[TopicName]]:
        """The partitioned topics of ``tenant/namespace``, and all, each partition by itself; also
        while it is being deleted."""
        partitioned = await self._control.partitioned.names(namespace)
        return partitioned, await self._topics.names(namespace)

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics."""
        await self._topics.forget_namespace(namespace)

    async def lookup(self, topic: str) -> LookupView:
        """Where the topic is served, or is to be: that broker takes it when a client opens it
        there. It need not exist. Never sent on: libcurl shows nothing to another port (ADR 0091).
        """
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        owner = await self._control.ownership.locate_reachable(name, AUTHORITATIVE.get())
        here = (self._service_url, self._http_url)
        url, http_url = owner[:2] if isinstance(owner, At) else here
        by_tls = "" if self._tls_url is None else await self._tls_url(url)
        return LookupView(broker_url=url, broker_url_tls=by_tls, http_url=http_url, native_url=url)

    # -- partitions ---------------------------------------------------------------------------

    async def partitions(self, topic: str, create: bool = False) -> int:
        """0 when the topic is not partitioned. ``create``: it need not be there, and is made first,
        if topics are made on their first use as partitioned ones. Raises ``TopicNotFoundError`` for
        an unknown namespace, and for an unknown topic that is not made."""
        return await self._topics.partitions(parse_topic(topic), create)

    async def create_partitioned(self, topic: str, partitions: int, engine: str = "") -> bool:
        """False when the topic exists already, partitioned or not. ``engine``: what is to keep it;
        empty: as policies say. Raises ``InvalidPolicyError``."""
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        if await self._topics.exists(name) or await self._control.partitioned.partitions(name):
            return False
        await self._topics.check_place(name, partitions)
        await self._choose_engine(name, engine)
        return await self._control.partitioned.create(name, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        """Raises ``NotAllowedError`` when that would be fewer than now. Partitions are opened on
        first use; the subscriptions of the others are made on the new ones at once, so that they
        miss nothing. Where that fails the rest is made all the same, and ``ServiceNotReadyError``
        says so: whoever asks for the same number again has made what is missing."""
        name = parse_topic(topic)
        before = await self._control.partitioned.partitions(name)
        if 0 < before <= partitions:
            if partitions > before:  # else nothing is made but subscriptions that are missing
                await self._topics.check_place(name, partitions - before)
            await self._first_subscriptions(name)  # if it cannot be asked now nothing is changed
        await self._control.partitioned.grow(name, partitions)
        if not 0 < before <= partitions:
            return
        new = range(before if before < partitions else 1, partitions)
        failed = await self._make_subscriptions([name.of_partition(index) for index in new], name)
        if failed:
            part, error = next(iter(failed.items()))
            raise ServiceNotReadyError(
                f"{name} has {partitions} partitions now, and is used; subscriptions of the first "
                f"one are not on {len(failed)} of the others yet ({part}: {error}); ask for "
                f"{partitions} partitions once more, which makes those that are missing"
            )

    async def _make_subscriptions(
        self, parts: Sequence[TopicName], name: TopicName
    ) -> Mapping[TopicName, MagnetarError]:
        """Those of the first partition on ``parts``, from their beginnings; why they could not be
        made."""
        failed: dict[TopicName, MagnetarError] = {}
        try:
            # Read again: one that was made while the topic grew must not be left out.
            wanted = await self._first_subscriptions(name)
        except MagnetarError as error:
            return dict.fromkeys(parts, error)
        for part in parts:
            try:
                for subscription in wanted:
                    await self._make_subscription(part, subscription, EARLIEST)
            except MagnetarError as error:
                failed[part] = error
        return failed

    async def _first_subscriptions(self, name: TopicName) -> list[str]:
        """The durable ones of the first partition; none if that was never used."""
        try:
            first = await self._stats_of(name.of_partition(0), create=True)
        except TopicNotFoundError:  # so says its owner
            return []
        return [each for each, about in first.subscriptions.items() if about.is_durable]

    async def delete_partitioned(self, topic: str, force: bool = False) -> None:
        """Delete a partitioned topic with its partitions. With ``force`` connected clients are
        sent away; without, they are an error. Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        parts = await parts_of(self._control, self._topics, name)
        if not force:  # before anything is said of it: a refusal sends nobody away
            await self._check_unused(parts)

        async def delete(part: TopicName, _: object) -> None:
            await self.delete_wherever(part, force)

        await delete_partitioned(self._control, self._topics, name, delete)

    async def _check_unused(self, parts: Sequence[TopicName]) -> None:
        for part in parts:
            topic = self._topics.find(part)
            owner = await self._control.ownership.owner_of(part)
            if topic is not None:
                topic.check_unused()
            elif isinstance(owner, At):
                with contextlib.suppress(TopicNotFoundError):  # never used
                    _check_unused(part, await self._stats_at(owner, part))

    async def delete_wherever(self, part: TopicName, force: bool) -> None:
        """A topic without partitions, or one partition, by whoever serves it. Raises
        ``TopicNotFoundError``, ``NotAllowedError``, ``PeerError``."""
        owner = await self.locate(part)
        if isinstance(owner, At):
            query = {"force": str(force).lower()}
            await self._peers.ask(owner.http_url, about_topic("DELETE", part, query=query))
        else:
            await self._topics.delete(part, force)

    # -- topics -------------------------------------------------------------------------------

    async def _choose_engine(self, name: TopicName, engine: str) -> None:
        """Before there is a log: what it is made on counts for good."""
        if engine:
            wanted = decode_engine(engine)
            await EngineRules(self._control, self._topics).check_topic(name, "engine", wanted)
            await self._control.policies.set_topic(name, "engine", wanted)

    async def create(self, topic: str, engine: str = "") -> bool:
        """Make a topic without partitions; False when it exists already. ``engine`` as for
        ``create_partitioned``. Raises ``ServedElsewhereError``, ``InvalidPolicyError``."""
        name = parse_topic(topic)
        await self._check_here(name)
        if await self._topics.exists(name):
            return False
        await self._choose_engine(name, engine)
        return await self._topics.create(name)

    async def delete(self, topic: str, force: bool = False) -> None:
        """Delete one topic, or one partition. Raises ``TopicNotFoundError``, and
        ``PartitionedTopicError`` for the name of a partitioned topic, ``ServedElsewhereError``."""
        name = parse_topic(topic)
        await self._check_plain(name)
        await self._check_here(name)
        await self._topics.delete(name, force)

    async def unload(self, topic: str) -> None:
        """Close a topic, or every partition of one; its next use loads it again. Its owner stays.
        Raises ``TopicNotFoundError``, and ``ServedElsewhereError`` for one without partitions."""
        name = parse_topic(topic)
        parts = await self._parts(name)
        await each_part(name, parts, "unloaded", partial(self._unload, whole=parts == [name]))

    async def _unload(self, part: TopicName, *, whole: bool) -> None:
        owner = await self._control.ownership.owner_of(part)
        if not isinstance(owner, At):
            if not await self._topics.unload(part, self._service_url) and whole:
                await self._check_exists(part)
        elif whole:
            raise _elsewhere(part, owner)
        else:
            with contextlib.suppress(TopicNotFoundError):  # never used
                await self._peers.ask(owner.http_url, about_topic("PUT", part, "/unload"))

    async def _check_exists(self, name: TopicName) -> None:
        if not await self._topics.exists(name):
            raise TopicNotFoundError(f"topic {name} does not exist")

    async def _check_plain(self, name: TopicName) -> None:
        count = await self._control.partitioned.partitions(name)
        if count:
            raise PartitionedTopicError(
                f"{name} has {count} partitions; name one ({name}-partition-0), or use "
                ".../partitions or .../partitioned-stats for all of them"
            )

    async def locate(self, name: TopicName) -> Owner:
        """Who serves it, as whoever asks knows it."""
        return await self._control.ownership.locate(name, AUTHORITATIVE.get())

    async def _check_here(self, name: TopicName) -> None:
        owner = await self.locate(name)
        if isinstance(owner, At):
            raise _elsewhere(name, owner)

    async def opened(self, topic: str) -> Topic:
        """The topic, loaded here. Raises ``TopicNotFoundError``, ``PartitionedTopicError``,
        ``ServedElsewhereError``."""
        name = parse_topic(topic)
        await self._check_plain(name)
        return await self._open(name)

    async def _open(self, name: TopicName) -> Topic:
        await self._check_here(name)
        return await self._topics.get(name, create=False)

    async def _parts(self, name: TopicName) -> list[TopicName]:
        """The topic itself, or its partitions."""
        count = await self._control.partitioned.partitions(name)
        return [name.of_partition(index) for index in range(count)] or [name]

    # -- stats --------------------------------------------------------------------------------

    async def stats(self, topic: str, with_age: bool = False) -> TopicStatsView:
        """``with_age``: as ``topic_stats``. Raises ``TopicNotFoundError``."""
        return await self._stats(await self.opened(topic), with_age)

    async def _stats(self, topic: Topic, with_age: bool = False) -> TopicStatsView:
        epoch = topic.epoch
        if epoch is None:
            epoch = await self._control.counters.topic_epoch(topic.name)
        lent: Mapping[str, ServedThere] = {}
        if any(each.bound is not None for each in topic.subscriptions.values()):
            lent = await lent_stats(topic, self._peers, await self._control.bundles.reports())
        url = self._service_url
        return await topic_stats(topic, self._rates, url, epoch, lent, with_age=with_age)

    def followed_stats(self, topic: str) -> dict[str, SubscriptionView]:
        """Of the subscriptions that this read-only broker serves; none if it serves none."""
        found = None if self._followed is None else self._followed.find(parse_topic(topic))
        return {} if found is None else followed_stats(found, self._rates)

    async def _stats_of(
        self, name: TopicName, create: bool = False, with_age: bool = False
    ) -> TopicStatsView:
        """Of a topic of any broker."""
        owner = await self.locate(name)
        if isinstance(owner, At):
            return await self._stats_at(owner, name, with_age)
        return await self._stats(await self._topics.get(name, create), with_age)

    async def _stats_at(self, owner: At, name: TopicName, with_age: bool = False) -> TopicStatsView:
        request = about_topic("GET", name, "/stats", {ASK_AGE: "true"} if with_age else None)
        found = await self._peers.ask(owner.http_url, request)
        return read_answer(TopicStatsView, found, owner.http_url)

    async def partitioned_stats(
        self, topic: str, per_partition: bool, with_age: bool = False
    ) -> PartitionedStatsView:
        """All partitions together; ``with_age``: as ``topic_stats``. Raises
        ``TopicNotFoundError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            raise TopicNotFoundError(f"{name} is not a partitioned topic")
        views: dict[str, TopicStatsView] = {}
        for start in range(0, count, OPENED_AT_A_TIME):
            indexes = range(start, min(start + OPENED_AT_A_TIME, count))
            names = [name.of_partition(index) for index in indexes]
            stats_of = partial(self._stats_of, with_age=with_age)
            found = await asyncio.gather(*map(stats_of, names))
            views.update(zip(map(str, names), found, strict=True))
        together = partitioned_stats(views, count)
        return together if per_partition else together.model_copy(update={"partitions": {}})

    async def internal_stats(self, topic: str) -> InternalStatsView:
        """Raises ``TopicNotFoundError``."""
        return internal_stats(await self.opened(topic))

    # -- subscriptions ------------------------------------------------------------------------

    async def subscriptions(self, topic: str) -> list[str]:
        """Names, sorted; of a partitioned topic, those its partitions together."""
        names: dict[str, None] = {}
        name = parse_topic(topic)
        for part in await self._parts(name):
            owner = await self.locate(part)
            if not isinstance(owner, At):
                found = (await self._topics.get(part, create=False)).subscriptions
            elif part == name:
                raise _elsewhere(name, owner)
            else:
                request = about_topic("GET", part, "/subscriptions")
                found = await self._peers.ask(owner.http_url, request)
            names.update(dict.fromkeys(found))
        return sorted(names)

    async def create_subscription(self, topic: str, subscription: str, start: Position) -> bool:
        """A durable one, of each partition of a partitioned topic; False if it was there, on each.
        Raises ``TopicNotFoundError``, and ``ServedElsewhereError`` for a topic without partitions.
        """
        name = parse_topic(topic)
        parts = await self._parts(name)
        if parts == [name]:
            await self._check_here(name)
        make = partial(self._make_subscription, subscription=subscription, start=start)
        return any((await each_part(name, parts, "done", make)).values())

    async def _make_subscription(self, part: TopicName, subscription: str, start: Position) -> bool:
        """False if it was there."""
        owner = await self.locate(part)
        if not isinstance(owner, At):
            return await self._topics.make_subscription(part, subscription, start)
        what = subscription_path(subscription)
        body = {"ledgerId": start.ledger_id, "entryId": start.entry_id}
        try:
            await self._peers.ask(owner.http_url, about_topic("PUT", part, what, body=body))
        except NotAllowedError as error:
            if SUBSCRIPTION_EXISTS in str(error):
                return False
            raise
        return True

    async def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Of a partitioned topic, from each partition that has it. Raises
        ``TopicNotFoundError``, ``SubscriptionNotFoundError``, ``NotAllowedError``."""
        delete = partial(self._delete_subscription, subscription=subscription, force=force)
        await self._in_parts(topic, subscription, delete)

    async def _in_parts(
        self, topic: str, subscription: str | None, change: Callable[..., Awaitable[None]]
    ) -> None:
        """``change(part, whole=...)`` where there is such a subscription; ``whole``: the topic has
        no other part. Each part is tried, whatever becomes of the others. Raises
        ``SubscriptionNotFoundError`` if none has it, and as ``parts.each_part``."""
        name = parse_topic(topic)

        async def tried(part: TopicName) -> bool:
            try:
                await change(part, whole=part == name)
            except SubscriptionNotFoundError:
                return False
            return True

        found = await each_part(name, await self._parts(name), "done", tried)
        if not any(found.values()):
            raise SubscriptionNotFoundError(f"topic {topic} has no subscription {subscription}")

    async def move_subscription(
        self, topic: str, subscription: str, to: Place, after: bool = False
    ) -> None:
        """What comes next to the subscription is at ``to``; with ``after`` (of a position) behind
        it. Its consumers are sent away, and come back. Of a partitioned topic in each partition,
        by time or to an end. Stored when it returns. Raises ``TopicNotFoundError``,
        ``SubscriptionNotFoundError``, ``NotAllowedError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if count and not isinstance(to, PublishTime) and to not in (EARLIEST, LATEST):
            raise NotAllowedError(
                f"{name} has {count} partitions, and a message id is a place in one of them: name "
                f"that one ({name.of_partition(0)}), or move it by time"
            )
        move = partial(self._move, subscription=subscription, to=to, after=after)
        await self._in_parts(topic, subscription, move)

    async def _move(
        self, part: TopicName, *, subscription: str, to: Place, after: bool, whole: bool
    ) -> None:
        owner = await self.locate(part)
        if not isinstance(owner, At):
            opened = await self._topics.get(part, create=False)
            positions = opened.readable.positions
            if after and isinstance(to, Position) and seek_target(positions, to) == to:
                to = positions.next_position(to)
            await seek(opened, opened.subscription(subscription), to)
            return
        if whole:
            raise _elsewhere(part, owner)
        what, body = f"{subscription_path(subscription)}/resetcursor", None
        if isinstance(to, PublishTime):
            what = f"{what}/{to.time_ms}"
        else:
            body = {"ledgerId": to.ledger_id, "entryId": to.entry_id, "excluded": after}
        await self._peers.ask(owner.http_url, about_topic("POST", part, what, body=body))

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """The next ``count`` messages that are not acknowledged count as acknowledged; stored when
        it returns. Raises as ``opened``, and ``SubscriptionNotFoundError``."""
        opened = await self.opened(topic)
        await skip_messages(opened, opened.subscription(subscription), count)

    async def expire_messages(self, topic: str, subscription: str | None, age_s: int) -> None:
        """What is ``age_s`` old or older counts as acknowledged for the subscription, or for all
        durable ones if none is named; stored when it returns. Of a partitioned topic, in each
        partition. Raises ``TopicNotFoundError``, ``SubscriptionNotFoundError``."""
        expire = partial(self._expire, subscription=subscription, age_s=age_s)
        await self._in_parts(topic, subscription, expire)

    async def _expire(
        self, part: TopicName, *, subscription: str | None, age_s: int, whole: bool
    ) -> None:
        owner = await self.locate(part)
        if isinstance(owner, At):
            if whole:
                raise _elsewhere(part, owner)
            whose = "/all_subscription" if subscription is None else subscription_path(subscription)
            request = about_topic("POST", part, f"{whose}/expireMessages/{age_s}")
            await self._peers.ask(owner.http_url, request)
            return
        opened = await self._topics.get(part, create=False)
        if subscription is None:
            meant = [each for each in opened.subscriptions.values() if each.durable]
        else:
            meant = [opened.subscription(subscription)]
        await expire_messages(opened, meant, self._now_ms() - 1000 * age_s)
        for each in meant:
            await each.cursor.wait_stored()

    async def _delete_subscription(
        self, part: TopicName, *, subscription: str, force: bool, whole: bool
    ) -> None:
        owner = await self.locate(part)
        if not isinstance(owner, At):
            topic = await self._topics.get(part, create=False)
            await topic.delete_subscription(subscription, force)
        elif whole:
            raise _elsewhere(part, owner)
        else:
            what, query = subscription_path(subscription), {"force": str(force).lower()}
            await self._peers.ask(owner.http_url, about_topic("DELETE", part, what, query))


def _elsewhere(name: TopicName, owner: At) -> ServedElsewhereError:
    return ServedElsewhereError(f"topic {name}", owner.http_url, owner.candidate)


def _check_unused(name: TopicName, about: TopicStatsView) -> None:
    for subscription, each in about.subscriptions.items():
        if each.served_by:
            raise NotAllowedError(
                f"subscription {subscription} of {name} is served by the broker at "
                f"{each.served_by}; close its consumers first, or force it"
            )
    consumers = sum(len(each.consumers) for each in about.subscriptions.values())
    if about.publishers or consumers:
        raise NotAllowedError(
            f"topic {name} has {len(about.publishers)} producers and {consumers} consumers "
            "connected; close them first, or force it"
        )
