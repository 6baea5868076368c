"""One run of ring 2 with brokers: the product's bookies and brokers, clients that speak Pulsar's
protocol to them, faults; then healing, progress and the last look.

A share of the seeds (``SHARE``) is of this kind. What must hold: ``topic_history``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from magnetar.admin.topics import TopicService
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import BrokerConfig, LedgerConfig
from magnetar.log.managed.history import NoHistory, ProcessHistory
from magnetar.metrics import Metrics
from magnetar.model.errors import TopicNotFoundError
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe, ProducerAccessMode
from magnetar_sim.brokers import deduplication
from magnetar_sim.brokers.broker_faults import BrokerFaults
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_watch import BrokerWatch
from magnetar_sim.brokers.brokers import BROKER_PORT, BrokerMachine, plan_brokers
from magnetar_sim.brokers.bundle_owners import BundleOwners
from magnetar_sim.brokers.deduplication import Deduplication
from magnetar_sim.brokers.pulsar_client import PulsarClient
from magnetar_sim.brokers.run_with_brokers import RunWithBrokers
from magnetar_sim.brokers.topic_consumers import ConsumerPlan, TopicConsumer
from magnetar_sim.brokers.topic_followers import TopicFollower
from magnetar_sim.brokers.topic_history import AUDIT, Subscription, Topic
from magnetar_sim.brokers.topic_producers import ProducerPlan, TopicProducer
from magnetar_sim.brokers.watched_connection import WatchedConnection
from magnetar_sim.cluster.cluster import Cluster, plan_cluster
from magnetar_sim.cluster.cluster_checkers import MetadataChecker
from magnetar_sim.cluster.faults import Faults, Host
from magnetar_sim.world.loop import SimLoop, until
from magnetar_sim.world.network import SimServer
from magnetar_sim.world.outside import SINCE_1970_S
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

SHARE = 0.3
FAULTS_FROM_S = 0.8
HEAL_S = 9.0
PROGRESS_S = 90.0
IDLE_SHARE = 0.4
CHUNKS_SHARE = 0.3
DELETIONS_SHARE = 0.25
FOLLOWERS_SHARE = 0.35
"""Of the runs without deletions."""
DELAYS_SHARE = 0.3
EXPIRY_SHARE = 0.25
ASK_AGAIN_S = 0.1
EXPIRY_SLACK_S = 1.0
"""An expiry that is under way ends."""
QUORUMS = ((1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 2), (3, 2, 2))
TOPIC = "persistent://public/default/{}"
EXCLUSIVE, FAILOVER = CommandSubscribe.Exclusive, CommandSubscribe.Failover
SHARED = CommandSubscribe.Shared


def has_brokers(seed: int) -> bool:
    """Whether the run of ``seed`` is of this kind. (The number leaves those seeds as they were that
    tests hold on to, for what they once found.)"""
    return random.Random(f"{seed}/brokers 485").random() < SHARE


def plan_ledgers(rng: random.Random) -> LedgerConfig:
    """Small caches, so that consumers that lag read from bookies; short ledgers, so that logs roll,
    and are trimmed if nothing is retained."""
    size, write_quorum, ack_quorum = rng.choice(QUORUMS)
    return LedgerConfig(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        add_timeout_ms=rng.choice((800, 3000)),
        read_timeout_ms=rng.choice((500, 2000)),
        ledger_entries_max=rng.choice((8, 30, 1000)),
        cursor_flush_interval_ms=rng.choice((20, 100, 500)),
        tail_cache_bytes=rng.choice((1024, 8 << 10, 1 << 20)),
        read_ahead_bytes_max=rng.choice((1024, 1 << 20)),
        retention_ms=rng.choice((-1, 0)),
        retention_bytes=rng.choice((-1, 0)),
    )


class BrokerRun(RunWithBrokers):
    """The run of ``seed``."""

    _keys = 0
    """How many keys entries have; 0: they have none."""
    _deduplication_share = deduplication.SHARE
    _followed = True
    """Others than the owner may read the logs."""
    _owners = BundleOwners
    """What knows who serves which topic."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(loop, trace)
        self.random = rng = random.Random(f"{seed}/broker run")
        self._deduplication = Deduplication(seed, self._deduplication_share)
        ledger = self._deduplication.retained(plan_ledgers(rng))
        bookies = ledger.ensemble_size + rng.choice((0, 1))
        plan = replace(plan_cluster(rng, bookies, ledger), v3_only=False)
        self.cluster = Cluster(loop, seed, plan, trace, metrics)
        self._names = dict[str, None]()
        self.watch = self._new_watch(ledger)
        self.cluster.network.tap = self._tap
        brokers = plan_brokers(rng)
        # By a generator of its own: the other seeds stay what they were.
        self._idle = idle = random.Random(f"{seed}/idle topics")
        self._quiet_times = 0
        if idle.random() < IDLE_SHARE:
            unload_ms = idle.choice((20, 100, 400))
            brokers = replace(
                brokers, config=replace(brokers.config, idle_topic_unload_ms=unload_ms)
            )
            self._quiet_times = idle.choice((1, 3, 6))
        # Its number leaves those seeds as they were that tests hold on to.
        self._delays = delays = random.Random(f"{seed}/delays 4")
        self._delayed = 0.0
        if delays.random() < DELAYS_SHARE:
            self._delayed = delays.choice((0.1, 0.5, 1.0))
            brokers = replace(
                brokers,
                config=replace(
                    brokers.config,
                    delayed_delivery_tick_ms=delays.choice((1, 50, 1000)),
                    delayed_entries_per_subscription_max=delays.choice((1, 10, 1_000_000)),
                ),
            )
        self._expiry = random.Random(f"{seed}/expiry 4")
        self._expires = self._expiry.random() < EXPIRY_SHARE
        brokers = replace(brokers, config=self._configured(brokers.config))
        self.watch.deduplicates = self._deduplication.on
        self._sayings: list[asyncio.Task[None]] = []
        self.watch.unacked_max = brokers.config.unacknowledged_per_consumer_max
        self.brokers = [
            BrokerMachine(self.cluster, f"k{i + 1}", brokers.config, random.Random(f"{seed}/k{i}"))
            for i in range(brokers.brokers)
        ]
        self._names.update(dict.fromkeys(broker.name for broker in self.brokers))
        self.clients: list[PulsarClient] = []
        self.producers: list[TopicProducer] = []
        self.consumers: list[TopicConsumer] = []
        self.topics = [TOPIC.format(f"t{i + 1}") for i in range(rng.choice((1, 2, 3)))]
        if rng.random() < 0.2:
            self.topics[0] = TOPIC.format("parts-partition-1")
        self._skewed = rng.random() < 0.3
        # Each by a generator of its own; the numbers leave those seeds as they were that tests
        # hold on to.
        self._chunks = random.Random(f"{seed}/chunks 1")
        self._chunked = self._chunks.choice((0.1, 0.6)) if self._has_chunks() else 0.0
        self._deletion_random = random.Random(f"{seed}/deletions 1")
        self._deletes = self._deletion_random.random() < DELETIONS_SHARE
        self._deletions: list[asyncio.Task[None]] = []
        self._follower_random = random.Random(f"{seed}/followers 1")
        self.followers: list[TopicFollower] = []
        self._moves = random.Random(f"{seed}/moves 1")
        self._cuts = random.Random(f"{seed}/cuts 1")

    def _new_watch(self, ledger: LedgerConfig) -> BrokerWatch:
        cluster, names = self.cluster, self._names
        watch = BrokerWatch(
            self.loop.time, cluster.broken, cluster.count, lambda name: name in names, self._owners
        )
        watch.trims = ledger.retention_ms == 0 or ledger.retention_bytes == 0
        return watch

    def _configured(self, config: BrokerConfig) -> BrokerConfig:
        if self._expires:
            every_ms = self._expiry.choice((20, 200, 1000))
            config = replace(config, expiry_check_interval_ms=every_ms)
        return self._deduplication.configured(config)

    def add_brokers(self, brokers: Sequence[BrokerMachine]) -> None:
        """Before the run begins."""
        self.brokers += brokers
        self._names.update(dict.fromkeys(broker.name for broker in brokers))

    @property
    def confirmed(self) -> int:
        """Entries that producers were told are stored."""
        return self.cluster.happened["receipts"]

    def _has_chunks(self) -> bool:
        return self._chunks.random() < CHUNKS_SHARE

    def _tap(self, server: SimServer) -> WatchedConnection | None:
        if server.port != BROKER_PORT:
            return None
        process = server.process
        read_only = {each.name for each in self.brokers if each.read_only}
        return WatchedConnection(
            self.watch, self.watch.number_of(process), process.name in read_only
        )

    @property
    def ledgers(self) -> int:
        """That hold what is in topics, as far as is known."""
        topics = self.watch.topics.values()
        return len({position.ledger_id for topic in topics for position in topic.positions})

    async def main(self) -> None:
        cluster, rng = self.cluster, self.random
        await cluster.start()
        checker = MetadataChecker(cluster)
        self._watch_owners(cluster.metadata.written)
        for broker in self.brokers:
            broker.start()
        await until(self._served, 0.1)
        await self._make_partitions()
        begin_s = self.loop.time()
        self._populate()
        self._plan_quiet_times(begin_s)
        if self._expires:
            self._plan_expiry(begin_s)
        faults = self._plan_faults(begin_s)
        if self._deletes:
            self._plan_deletions(begin_s)
        elif self._followed and self._follower_random.random() < FOLLOWERS_SHARE:
            faults.append(self._add_followers(begin_s))
        while self.loop.time() < begin_s + HEAL_S:
            await asyncio.sleep(0.5)
            self.check()
            checker.check()
        for each in faults:
            each.over = True
        self._heal(self.clients)
        async with self.progress(PROGRESS_S, self._unfinished):
            await self._last_look(rng)
        self.check()
        checker.check()

    def _watch_owners(self, also: Callable[[str, bytes | None, bytes | None], None]) -> None:
        def written(path: str, before: bytes | None, after: bytes | None) -> None:
            also(path, before, after)
            self.watch.owners.written(path, before, after)
            self.watch.bindings.written(path, after)

        self.cluster.metadata.written = written

    def _served(self) -> bool:
        self.check()
        return any(broker.topics is not None for broker in self.brokers)

    async def _make_partitions(self) -> None:
        if "partition" not in self.topics[0]:
            return
        for broker in self.brokers:
            await broker.ask(lambda it: it.create_partitioned(TOPIC.format("parts"), 2))

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        rng, end_s = self.random, begin_s + HEAL_S - 1
        ours = BrokerFaults(self.cluster, rng, self.brokers, self.clients)
        ours.plan(rng.choice((1, 3, 8)), begin_s + FAULTS_FROM_S, end_s)
        moves = BrokerMoves(self.cluster, self._moves, self.brokers, self.topics, self.watch)
        moves.plan(self._moves.choice((0, 2, 6, 15)), begin_s + FAULTS_FROM_S, end_s)
        cuts = self._cuts
        moves.plan_cuts(cuts, cuts.choice((0, 0, 2, 6)), begin_s + FAULTS_FROM_S, end_s)
        theirs = Faults(self.cluster, rng, self.hosts(), lose_disks=0)
        theirs.plan(rng.choice((0, 2, 5)), begin_s + FAULTS_FROM_S, end_s)
        return [ours, theirs, moves]

    def hosts(self) -> Sequence[Host]:
        """Whose ways to bookies and metadata fail."""
        return self.brokers

    # -- topics that are deleted --------------------------------------------------------------

    def _plan_deletions(self, begin_s: float) -> None:
        rng = self._deletion_random
        topics = [name for name in self.topics if "partition" not in name]
        for _ in range(rng.choice((1, 2, 3)) if topics else 0):
            at_s = begin_s + rng.uniform(FAULTS_FROM_S, HEAL_S - 1)
            self.loop.call_at(at_s, self._begin_deletion, rng.choice(topics))

    def _begin_deletion(self, name: str) -> None:
        self._deletions.append(self.loop.create_task(self._delete(name), name=f"delete {name}"))

    async def _delete(self, name: str) -> None:
        """Whoever uses the topic is sent away, and makes it anew when it comes back."""
        if name not in self.watch.topics:
            return
        self.trace.note("operator", f"deletes {name}")

        async def delete(service: TopicService) -> bool:
            with suppress(TopicNotFoundError):
                await service.delete(name, force=True)
            self.watch.forget(name)
            return True

        while True:
            if (topic := self.watch.topics.get(name)) is not None:
                topic.vague = True  # until it is answered, nobody knows
            for broker in self.brokers:
                if await broker.ask(delete):
                    self.trace.note("operator", f"{name} is deleted")
                    return
            await asyncio.sleep(ASK_AGAIN_S)

    # -- messages that expire -----------------------------------------------------------------

    def _plan_expiry(self, begin_s: float) -> None:
        """For a while messages live a second or two."""
        rng = self._expiry
        on_s = begin_s + rng.uniform(0.2, 2.0)
        off_s = on_s + rng.uniform(0.5, 2.5)
        self.loop.call_at(on_s, self._begin_expiry, rng.choice((1, 2)), off_s)

    def _begin_expiry(self, ttl_s: int, off_s: float) -> None:
        task = self.loop.create_task(self._let_expire(ttl_s, off_s), name="time to live")
        self._sayings.append(task)

    async def _let_expire(self, ttl_s: int, off_s: float) -> None:
        self.watch.expiry.ttl_ms = 1000 * ttl_s
        await self._say("message_ttl_s", ttl_s)
        await asyncio.sleep(max(0.0, off_s - self.loop.time()))
        await self._say("message_ttl_s", None)
        # A broker that is cut off believes it until its session is suspended, and no longer.
        believed_s = self.cluster.plan.session_timeout_s + EXPIRY_SLACK_S
        self.watch.expiry.until_ms = self.watch.now_ms() + 1000 * believed_s
        self.cluster.count("times to live that were set and removed")

    async def _say(self, field: str, value: object) -> None:
        self.trace.note("operator", f"{field} of the namespace is {value}")
        while True:
            for broker in self.brokers:
                if await broker.set_policy(field, value):
                    return
            await asyncio.sleep(ASK_AGAIN_S)

    def _history(self) -> ProcessHistory:
        """What a process reads tables with."""
        return NoHistory()

    # -- who follows --------------------------------------------------------------------------

    def _add_followers(self, begin_s: float) -> Faults:
        rng = self._follower_random
        clients = []
        for index, topic in enumerate(self.topics):
            client = self.cluster.client(f"f{index + 1}")
            clients.append(client)
            restless = rng.choice((0.0, 0.02))
            self.followers.append(
                TopicFollower(
                    client,
                    topic,
                    parse_topic(topic).log_name,
                    self.watch,
                    lambda restless=restless: rng.random() < restless,  # type: ignore[misc]
                    self._history(),
                )
            )
        faults = Faults(self.cluster, rng, clients, lose_disks=0)
        faults.plan(rng.choice((0, 2)), begin_s + FAULTS_FROM_S, begin_s + HEAL_S - 1)
        return faults

    # -- topics that nobody uses --------------------------------------------------------------

    def _plan_quiet_times(self, begin_s: float) -> None:
        """All clients leave for a while, so that topics are idle, and come back at once: while
        topics close, or when they are unloaded."""
        for _ in range(self._quiet_times):
            at_s = begin_s + self._idle.uniform(FAULTS_FROM_S, HEAL_S - 1)
            self.loop.call_at(at_s, self._quiet, self._idle.uniform(0.02, 1.2))

    def _quiet(self, lasts_s: float) -> None:
        self.trace.note("run", f"all clients leave for {lasts_s:.3f} s")
        for client in self.clients:
            client.leave(self.loop.time() + lasts_s)
        before = [(broker.starts, broker.unloaded()) for broker in self.brokers]
        self.loop.call_later(lasts_s, self._count_unloaded, before)

    def _count_unloaded(self, before: Sequence[tuple[int, int]]) -> None:
        for broker, (starts, unloaded) in zip(self.brokers, before, strict=True):
            if broker.starts == starts and broker.unloaded() > unloaded:
                self.cluster.count("quiet times that unloaded topics")

    # -- who is there -------------------------------------------------------------------------

    def _client(self, name: str) -> PulsarClient:
        hosts = [broker.name for broker in self.brokers]
        self.random.shuffle(hosts)
        client = PulsarClient(self.cluster, name, hosts)
        self.clients.append(client)
        return client

    def _populate(self) -> None:
        rng = self.random
        clients = [self._client(f"c{i + 1}") for i in range(rng.choice((2, 3)))]
        exclusive = rng.random() < 0.15
        for topic in self.topics:
            for _ in range(rng.choice((1, 2, 3))):
                self._produce(rng.choice(clients), topic, exclusive)
            for number in range(rng.choice((1, 2, 3))):
                self._subscribe(clients, topic, f"s{number + 1}")
            if rng.random() < 0.4:
                self._read(rng.choice(clients), topic)
        if rng.random() < 0.4:
            victim = rng.choice(clients)
            at_s = self.loop.time() + rng.uniform(1.0, HEAL_S)
            silently = rng.random() < 0.5
            self.loop.call_at(at_s, victim.kill, silently)

    def _consumer(
        self, client: PulsarClient, name: str, plan: ConsumerPlan, rng: random.Random
    ) -> TopicConsumer:
        return TopicConsumer(client, name, plan, rng)

    def _produce(self, client: PulsarClient, topic: str, exclusive: bool) -> None:
        rng = self.random
        skew_ms = rng.choice((-1500, 0, 900)) if self._skewed else 0
        plan = ProducerPlan(
            topic=topic,
            texts=rng.choice((20, 60, 120)),
            spread_s=rng.choice((1.0, 4.0, 7.0)),
            batch_max=rng.choice((1, 1, 5, 12)),
            padding=rng.choice((20, 200, 1500)),
            named=rng.random() < 0.5,
            mode=rng.choice((
                ProducerAccessMode.Exclusive,
                ProducerAccessMode.WaitForExclusive,
                ProducerAccessMode.ExclusiveWithFencing,
            )) if exclusive else ProducerAccessMode.Shared,
            chunked=self._chunked,
            delayed=self._delayed,
            keys=self._keys,
            # What a deleted topic's producer repeats is new to the topic that takes its name.
            repeats=0.0 if self._deletes else self._deduplication.repeats,
        )  # fmt: skip
        name = f"p{len(self.producers) + 1}"

        def now_ms() -> int:
            return int((SINCE_1970_S + self.loop.time()) * 1000) + skew_ms

        self.producers.append(
            TopicProducer(
                client,
                name,
                plan,
                rng,
                now_ms,
                self._chunks,
                self._delays,
                self._deduplication.random,
            )
        )

    def _subscribe(self, clients: Sequence[PulsarClient], topic: str, name: str) -> None:
        rng = self.random
        kind = rng.choice((EXCLUSIVE, FAILOVER, SHARED, SHARED))
        consumers = 1 if kind == EXCLUSIVE and rng.random() < 0.8 else rng.choice((1, 2, 3))
        plan = ConsumerPlan(
            topic=topic,
            subscription=name,
            kind=kind,
            earliest=rng.random() < 0.7,
            queue=rng.choice((1, 4, 20, 200)),
            think_s=rng.choice((0.0, 0.01, 0.1)),
            acknowledges=rng.choice((0.5, 0.9, 1.0, 1.0)),
            cumulative=rng.choice((0.0, 0.3, 1.0)),
            partly=rng.choice((0.0, 0.3, 0.8)),
            refuses=rng.choice((0.0, 0.0, 0.1, 0.3)),
            receipts=rng.choice((0.2, 1.0)),
            seeks=rng.choice((0.0, 0.0, 0.0, 0.3)),
            leaves=rng.choice((0.0, 0.0, 0.3)),
        )
        for index in range(consumers):
            mine = replace(plan, priority=rng.choice((0, 0, 1)))
            who = f"{topic.rsplit('/', 1)[1]}.{name}.{index}"
            consumer = self._consumer(rng.choice(clients), who, mine, rng)
            self.consumers.append(consumer)
            if rng.random() < 0.1:
                at_s = self.loop.time() + rng.uniform(2.0, HEAL_S)
                self.loop.call_at(at_s, setattr, consumer, "ended", True)

    def _read(self, client: PulsarClient, topic: str) -> None:
        rng = self.random
        plan = ConsumerPlan(
            topic=topic,
            subscription=f"reader-{len(self.consumers)}",
            kind=EXCLUSIVE,
            earliest=rng.random() < 0.7,
            queue=rng.choice((1, 20)),
            think_s=rng.choice((0.0, 0.05)),
            durable=False,
            seeks=rng.choice((0.0, 0.3)),
            leaves=rng.choice((0.0, 0.5)),
        )
        name = f"{topic.rsplit('/', 1)[1]}.{plan.subscription}"
        self.consumers.append(self._consumer(client, name, plan, rng))

    # -- the last look ------------------------------------------------------------------------

    async def _last_look(self, rng: random.Random) -> None:
        """Every message has its receipt; then new consumers get what was not acknowledged."""
        said = (*self._deletions, *self._sayings)
        await until(lambda: all(task.done() for task in said), 0.1)
        for task in said:
            task.result()
        for producer in self.producers:
            producer.over = True
        await until(lambda: all(each.settled for each in self.producers), 0.2)
        for consumer in self.consumers:
            consumer.still = True
        await until(lambda: self.watch.behind() is None, 0.2)
        await until(self._all_closed, 0.1)
        await until(lambda: self._broker_away() is None, 0.1)
        if rng.random() < 0.5:
            for broker in self.brokers:
                broker.kill(0.1)
        topics = list(self.watch.topics.values())
        last = self._client("last")
        for topic in topics:
            topic.begin_audit()
            for subscription in topic.subscriptions.values():
                self._audit(last, topic, subscription)
            plan = _audit_plan(topic.name, AUDIT, durable=False)
            self._consumer(last, f"audit of {topic.name}", plan, rng)
        await until(lambda: self._unfinished() is None, 0.2)
        for topic in topics:
            topic.check_order()

    def _all_closed(self) -> bool:
        """A seek that was not answered is done again until it is: where it went is certain then."""
        for consumer in self.consumers:
            consumer.over = not consumer.seeking or consumer.ended
        return all(each.closed or _dead(each) for each in self.consumers)

    def _audit(self, last: PulsarClient, topic: Topic, subscription: Subscription) -> None:
        kind = self._kind_of(topic, subscription)
        plan = replace(_audit_plan(topic.name, subscription.name), kind=kind)
        self._consumer(last, f"audit of {topic.name} {subscription.name}", plan, self.random)

    def _kind_of(
        self, topic: Topic, subscription: Subscription
    ) -> CommandSubscribe.SubType.ValueType:
        for consumer in self.consumers:
            plan = consumer.plan
            if (plan.topic, plan.subscription) == (topic.name, subscription.name):
                return plan.kind
        return SHARED

    def _unfinished(self) -> str | None:
        """Invariant 11."""
        for producer in self.producers:
            if not producer.settled:
                return f"{producer.name} waits for receipts"
        behind = self.watch.behind()
        if behind is not None:
            return behind
        for topic in self.watch.topics.values():
            for subscription in topic.subscriptions.values():
                missing = topic.missing(subscription)
                if missing is not None:
                    return f"{topic.name}: {subscription.name} is not sent {missing}"
            unread = topic.unread() or topic.unseen()
            if unread is not None:
                return f"{topic.name}: a reader is not sent {unread}"
        for follower in self.followers:
            if (position := follower.behind) is not None:
                return f"{follower.name} does not get {position}"
        return self._broker_away()

    def _broker_away(self) -> str | None:
        """A broker that had to end has ended, and serves again: others may have its topics, so that
        no client tells that it hangs."""
        for broker in self.brokers:
            if broker.topics is None:
                return f"{broker.name} neither serves nor ends"
        return None


def _audit_plan(topic: str, subscription: str, durable: bool = True) -> ConsumerPlan:
    return ConsumerPlan(
        topic=topic,
        subscription=subscription,
        kind=EXCLUSIVE,
        earliest=True,
        queue=100,
        think_s=0.0,
        durable=durable,
    )


def _dead(consumer: TopicConsumer) -> bool:
    return not consumer.client.process.alive
