"""One run of ring 2 with Kafka's clients: the product's bookies and brokers, clients that speak
Kafka's protocol to them, faults; then healing, progress and the last look.

Topics are on ledgers, on partitions, or on both. What must hold: ``kafka_history`` and
``group_history``.

Phases, in seconds of virtual time: faults and work until ``HEAL_S``, then every fault ends, and
within ``PROGRESS_S`` all that must hold is there.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final

from magnetar.config import KafkaConfig, LedgerConfig, PartitionConfig
from magnetar.metrics import Metrics
from magnetar.wire.kafka.admin_messages import CreateTopicsRequest, NewTopic, TopicConfig
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar_sim.brokers.broker_faults import BrokerFaults
from magnetar_sim.brokers.broker_moves import BrokerMoves
from magnetar_sim.brokers.broker_run import plan_ledgers
from magnetar_sim.brokers.brokers import BrokerMachine, plan_brokers
from magnetar_sim.brokers.run_with_brokers import SIZES, RunWithBrokers, plan_partitions
from magnetar_sim.cluster.cluster import Cluster, plan_cluster
from magnetar_sim.cluster.cluster_checkers import MetadataChecker
from magnetar_sim.cluster.faults import Faults
from magnetar_sim.kafka.group_consumer import ConsumerPlan, GroupConsumer
from magnetar_sim.kafka.group_history import GroupHistory, check_once
from magnetar_sim.kafka.kafka_client import KAFKA_PORT, REQUEST_S, KafkaClient, KafkaHost, Place
from magnetar_sim.kafka.kafka_groups import KafkaGroups
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.kafka_producers import KafkaProducer, ProducerPlan
from magnetar_sim.kafka.kafka_reader import LATEST, KafkaReader, ReaderPlan
from magnetar_sim.kafka.membership import GroupMembership, MemberPlan, StaticInstance
from magnetar_sim.kafka.pipe import PipePlan, Sources, pipe_incarnation
from magnetar_sim.kafka.share_consumer import ShareConsumer
from magnetar_sim.kafka.transactional import (
    IdHistory,
    Incarnation,
    TransactionalId,
    TransactionalProducer,
    TransactionPlan,
)
from magnetar_sim.world.loop import SimLoop, run_in, until
from magnetar_sim.world.planned_faults import PlannedFaults
from magnetar_sim.world.trace import Trace

FAULTS_FROM_S: Final = 0.8
HEAL_S: Final = 9.0
PROGRESS_S: Final = 120.0
IDLE_SHARE: Final = 0.3
IDLE_MS: Final = (100, 1500)
"""The first is less than what it takes to open a topic, or for a client to come back."""
FAR_SHARE: Final = 0.3
PIPES_SHARE: Final = 0.4
STATIC_SHARE: Final = 0.3
"""Of the groups: their members are static."""
CREATE_VERSION: Final = 5
AUDITS: Final = 3
"""Who read everything in the end: one that follows pipes, one what is committed, one all."""
OUTPUT: Final = "piped"
"""The topic that pipes write to."""
KEPT: Final = -1


class Moved:
    """``broker_moves.Unloads``, of which nobody here wants to know."""

    def __init__(self) -> None:
        self.unloading: Counter[str] = Counter()

    def closed(self, is_closed: Callable[[str], bool]) -> None:
        """Kafka's clients find out."""


def plan_kept_ledgers(rng: random.Random) -> LedgerConfig:
    """As for other brokers; nothing is trimmed: readers come to it in the end."""
    return replace(plan_ledgers(rng), retention_ms=KEPT, retention_bytes=KEPT)


class KafkaRun(RunWithBrokers):
    """The run of ``seed``."""

    def __init__(self, seed: int, loop: SimLoop, trace: Trace, metrics: Metrics) -> None:
        super().__init__(loop, trace)
        self._seed = seed
        self.random = rng = random.Random(f"{seed}/kafka run")
        ledger = plan_kept_ledgers(rng)
        plan = replace(
            plan_cluster(rng, ledger.ensemble_size + rng.choice((0, 1)), ledger), v3_only=False
        )
        self.cluster = Cluster(loop, seed, plan, trace, metrics)
        self.history = KafkaHistory(self.cluster.broken, self.cluster.count)
        self.engine = rng.choice(("ledger", "partition"))
        self.brokers = self._make_brokers(rng)
        self.topics: dict[str, int] = {
            f"t{number + 1}": rng.choice((1, 2, 3)) for number in range(rng.choice((1, 2)))
        }
        self.topics[OUTPUT] = max(self.topics.values())
        self.more = KafkaGroups(
            seed, self.topics, self.history, self.cluster.broken, self.cluster.count
        )
        for broker in self.brokers:
            broker.kafka = self.more.config(broker.kafka)
        self.hosts: list[KafkaHost] = []
        self.producers: list[KafkaProducer] = []
        self.readers: list[KafkaReader] = []
        self.ids: list[TransactionalId] = []
        self.pipes: list[TransactionalId] = []
        self.consumers: list[GroupConsumer] = []
        self.groups: dict[str, tuple[GroupHistory, Sequence[Place], bool]] = {}
        """Of consumers: what they read, and whether what is committed only."""
        self._static = random.Random(f"{seed}/static members")
        self.sources = Sources()
        self._piped: list[tuple[Place, Place]] = []
        self._audits: list[KafkaReader] = []

    def _make_brokers(self, rng: random.Random) -> list[BrokerMachine]:
        plan = plan_brokers(rng)
        count, replicas, min_isr = rng.choice(SIZES)
        partition = PartitionConfig()
        config = replace(plan.config, engine=self.engine)
        if self.engine == "ledger":
            count = plan.brokers
        else:
            partition = plan_partitions(rng, replicas, min_isr)
        if rng.random() < IDLE_SHARE:
            config = replace(config, idle_topic_unload_ms=rng.choice(IDLE_MS))
        kafka = KafkaConfig(
            port=KAFKA_PORT,
            offset_logs=rng.choice((1, 2, 5)),
            rebalance_delay_ms=rng.choice((0, 100)),
        )
        machines = [
            BrokerMachine(self.cluster, f"k{i + 1}", config, random.Random(f"{self._seed}/k{i}"))
            for i in range(count)
        ]
        for machine in machines:
            machine.kafka, machine.partition = kafka, partition
        return machines

    # -- what the runner asks -----------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Records that producers were told are stored."""
        return self.history.acknowledged

    @property
    def ledgers(self) -> int:
        """Partitions that were written to."""
        return len({each.place for each in self.history.written.values()})

    # -- the run ------------------------------------------------------------------------------

    async def main(self) -> None:
        cluster = self.cluster
        self.trace.note("run", f"engine={self.engine} topics={self.topics}")
        await cluster.start()
        checker = MetadataChecker(cluster)
        for broker in self.brokers:
            broker.start()
        await until(self._all_served, 0.1)
        await run_in(self._host("setup").process, self._make_topics(), "makes topics")
        begin_s = self.loop.time()
        self._populate()
        faults = self._plan_faults(begin_s)
        while self.loop.time() < begin_s + HEAL_S:
            await asyncio.sleep(0.5)
            self.check()
            checker.check()
            for each_id in (*self.ids, *self.pipes):
                each_id.restart()
        for each in faults:
            each.over = True
        self.history.healed = True
        self._heal(self.hosts)
        async with self.progress(PROGRESS_S, self._unfinished):
            await self._last_look()
        self.check()
        checker.check()

    def _all_served(self) -> bool:
        self.check()
        return all(broker.topics is not None for broker in self.brokers)

    async def _make_topics(self) -> None:
        """As an operator does, before anything goes wrong."""
        client = self._client(self.hosts[0], "setup")
        for name, partitions in self.topics.items():
            configs = []
            if self.engine == "partition" and self.random.random() < 0.2:
                configs.append(TopicConfig("magnetar.engine", "ledger"))
            request = CreateTopicsRequest([NewTopic(name, partitions, -1, [], configs)], 1000)
            while True:
                link = await client.any_broker()
                answer = await link.ask(ApiKey.CREATE_TOPICS, CREATE_VERSION, request, REQUEST_S)
                (said,) = answer.topics
                if said.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    break
                self.trace.note("setup", f"{name}: {said}")
                await client.pause()
        await self.more.configure(client)

    @property
    def places(self) -> list[Place]:
        return [(name, index) for name, count in self.topics.items() for index in range(count)]

    @property
    def inputs(self) -> list[Place]:
        """Those that producers write to."""
        return [place for place in self.places if place[0] != OUTPUT]

    # -- faults -------------------------------------------------------------------------------

    def _plan_faults(self, begin_s: float) -> list[Faults | PlannedFaults | BrokerMoves]:
        rng = random.Random(f"{self._seed}/kafka faults")
        first_s, end_s = begin_s + FAULTS_FROM_S, begin_s + HEAL_S - 1
        ours = BrokerFaults(self.cluster, rng, self.brokers, self.hosts)
        ours.plan(rng.choice((1, 3, 8, 15)), first_s, end_s)
        topics = [
            f"persistent://public/default/{name}-partition-{index}" for name, index in self.places
        ]
        moves = BrokerMoves(self.cluster, rng, self.brokers, topics, Moved())
        moves.plan(rng.choice((0, 2, 6, 15)), first_s, end_s)
        moves.plan_cuts(rng, rng.choice((0, 0, 2)), first_s, end_s)
        theirs = Faults(self.cluster, rng, self.brokers, lose_disks=0)
        theirs.plan(rng.choice((0, 2, 5)), first_s, end_s)
        if rng.random() < FAR_SHARE:
            names = [broker.name for broker in self.brokers]
            for one, other in permutations(names, 2):
                self.cluster.network.slow(one, other, rng.choice((0.02, 0.1)))
        return [ours, theirs, moves]

    # -- who is there -------------------------------------------------------------------------

    def _host(self, name: str) -> KafkaHost:
        host = KafkaHost(self.cluster, name)
        self.hosts.append(host)
        return host

    def _client(self, host: KafkaHost, name: str) -> KafkaClient:
        brokers = [broker.name for broker in self.brokers]
        return KafkaClient(host, name, brokers, random.Random(f"{self._seed}/{name}"))

    def _populate(self) -> None:
        rng = self.random
        hosts = [self._host(f"c{number + 1}") for number in range(rng.choice((2, 3)))]
        for number in range(rng.choice((0, 1, 2))):
            self._produce(rng.choice(hosts), f"p{number + 1}")
        for number in range(rng.choice((0, 1, 2))):
            self._transact(hosts, f"x{number + 1}")
        for number in range(rng.choice((1, 1, 2))):
            self._read(rng.choice(hosts), f"r{number + 1}")
        for number in range(rng.choice((0, 1, 2))):
            self._consume(hosts, f"g{number + 1}")
        if rng.random() < PIPES_SHARE:
            self._pipe(hosts)
        self._populate_more(hosts)
        if rng.random() < 0.3:
            at_s = self.loop.time() + rng.uniform(1.0, HEAL_S)
            self.loop.call_at(at_s, rng.choice(hosts).kill, rng.random() < 0.5)

    def _populate_more(self, hosts: Sequence[KafkaHost]) -> None:
        def new_client(name: str) -> KafkaClient:
            return self._client(self.more.random.choice(hosts), name)

        for name in self.more.assigned:
            made = self.more.consume(name, new_client, self._reader_plan)
            self.groups[name] = made.history, made.places, made.committed
            self.consumers += made.consumers
        for share in self.more.shares:
            self.more.share(share, new_client)

    def _produce(self, host: KafkaHost, name: str) -> None:
        rng = self.random
        places = rng.sample(self.inputs, rng.randint(1, len(self.inputs)))
        plan = ProducerPlan(
            places=tuple(places),
            batches=rng.choice((15, 40, 80)),
            spread_s=rng.choice((2.0, 5.0, 8.0)),
            records_max=rng.choice((1, 3, 10)),
            padding=rng.choice((0, 20, 500)),
            eager=rng.random() < 0.5,
            bumps=rng.choice((0.0, 0.0, 0.05)),
        )
        producer = KafkaProducer(self._client(host, name), self.history, name, plan)
        self.producers.append(producer)
        host.process.spawn(producer.run(), name)

    def _transaction_plan(self, places: Sequence[Place]) -> TransactionPlan:
        rng = self.random
        return TransactionPlan(
            places=tuple(places),
            batches_max=rng.choice((2, 5, 12)),
            records_max=rng.choice((1, 4)),
            padding=rng.choice((0, 20, 500)),
            spread_s=rng.choice((0.005, 0.05, 0.2)),
            rest_s=rng.choice((0.03, 0.1, 0.5)),
            aborts=rng.choice((0.1, 0.5)),
            impatient=rng.choice((0.0, 0.5)),
            timeout_ms=rng.choice((1000, 3000, 8000)),
            eager=rng.random() < 0.5,
        )

    def _new_client(self, hosts: Sequence[KafkaHost], name: str) -> KafkaClient:
        """On one that lives."""
        alive = [host for host in hosts if host.process.alive]
        return self._client(self.random.choice(alive or list(hosts)), name)

    def _transact(self, hosts: Sequence[KafkaHost], name: str) -> None:
        rng = self.random
        plan = self._transaction_plan(rng.sample(self.inputs, rng.randint(1, len(self.inputs))))

        def make(of: IdHistory, name: str) -> Incarnation:
            client = self._new_client(hosts, name)
            return TransactionalProducer(client, self.history, of, name, plan)

        made = TransactionalId(self.history, name, make)
        self.ids.append(made)
        self._start_again(made, rng.choice((0, 0, 1, 3, 6)))

    def _start_again(self, made: TransactionalId, times: int) -> None:
        """Also before the one before is gone."""
        made.start()
        for _ in range(times):
            at_s = self.loop.time() + self.random.uniform(0.5, HEAL_S)
            self.loop.call_at(at_s, made.start)

    def _member_plan(self, group: str, places: Sequence[Place]) -> MemberPlan:
        rng = self.random
        return MemberPlan(group, tuple(places), rng.choice((1000, 2000)), rng.choice((800, 2000)))

    def _group(self, name: str) -> GroupHistory:
        return GroupHistory(name, self.cluster.broken, self.cluster.count)

    def _consume(self, hosts: Sequence[KafkaHost], name: str) -> None:
        rng = self.random
        topics = rng.sample(list(self.topics), rng.randint(1, len(self.topics)))
        places = [place for place in self.places if place[0] in topics]
        committed = rng.random() < 0.5
        group = self._group(name)
        self.groups[name] = group, places, committed
        member = self._member_plan(name, places)
        static = self._static.random() < STATIC_SHARE
        for number in range(rng.choice((1, 2, 3))):
            who = f"{name}.{number + 1}"
            plan = ConsumerPlan(
                self._reader_plan(committed),
                commits=rng.choice((0.1, 0.5, 1.0)),
                leaves=rng.choice((0.0, 0.0, 0.03)),
                think_s=rng.choice((0.0, 0.02, 0.2)),
            )
            if static:
                self._consume_static(hosts, group, who, plan, member)
            else:
                self._start_consumer(self._new_client(hosts, who), group, plan, member, None)

    def _consume_static(
        self,
        hosts: Sequence[KafkaHost],
        group: GroupHistory,
        name: str,
        plan: ConsumerPlan,
        member: MemberPlan,
    ) -> None:
        """Others take its place, also while it goes on."""
        rng, instance = self._static, StaticInstance(name)
        plan = replace(plan, leaves=rng.choice((0.0, 0.03)))

        def start(who: str) -> None:
            self._start_consumer(self._new_client(hosts, who), group, plan, member, instance)

        start(name)
        for number in range(rng.choice((0, 1, 3))):
            at_s = self.loop.time() + rng.uniform(0.5, HEAL_S)
            self.loop.call_at(at_s, start, f"{name}.{number + 2}")

    def _start_consumer(
        self,
        client: KafkaClient,
        group: GroupHistory,
        plan: ConsumerPlan,
        member_plan: MemberPlan,
        instance: StaticInstance | None,
    ) -> None:
        def alone() -> bool:
            others = [each for each in self.living_consumers if each is not made]
            return all(each.member.instance is not instance for each in others)

        member = GroupMembership(client, self.history, group, client.name, member_plan, instance)
        made = GroupConsumer(client, self.history, group, member, client.name, plan, alone)
        self.consumers.append(made)
        client.host.process.spawn(made.run(), made.name)

    def _pipe(self, hosts: Sequence[KafkaHost]) -> None:
        rng, name = self.random, "pipe"
        group = self._group(name)
        source = rng.choice(sorted({topic for topic, _ in self.inputs}))
        places = [place for place in self.inputs if place[0] == source]
        self._piped = [(place, (OUTPUT, place[1])) for place in places]
        member = self._member_plan(name, places)
        static = self._static.random() < STATIC_SHARE
        for number in range(rng.choice((1, 2, 3))):
            instance = StaticInstance(f"{name}{number + 1}") if static else None
            plan = PipePlan(
                member,
                # More than a batch at once: else it does not come to an end.
                replace(
                    self._reader_plan(committed=True), bytes_max=6000, partition_bytes_max=2000
                ),
                self._transaction_plan([target for _, target in self._piped]),
                OUTPUT,
                hesitates=rng.choice((0.0, 0.05)),
            )

            def make(
                of: IdHistory,
                name: str,
                plan: PipePlan = plan,
                instance: StaticInstance | None = instance,
            ) -> Incarnation:
                producer = self._new_client(hosts, name), self.history, group, of, name
                return pipe_incarnation(*producer, self.sources, plan, instance)

            made = TransactionalId(self.history, f"{name}{number + 1}", make)
            self.pipes.append(made)
            self._start_again(made, rng.choice((0, 0, 1, 3)))

    def _reader_plan(self, committed: bool) -> ReaderPlan:
        rng = self.random
        return ReaderPlan(
            committed=committed,
            bytes_max=rng.choice((1, 2000, 1 << 20, 1 << 20)),
            partition_bytes_max=rng.choice((1, 1000, 1 << 20, 1 << 20)),
            wait_ms=rng.choice((200, 500)),
            epochs=rng.random() < 0.7,
        )

    def _read(self, host: KafkaHost, name: str) -> None:
        rng = self.random
        client = self._client(host, name)
        reader = KafkaReader(
            client,
            self.history,
            name,
            self._reader_plan(committed=rng.random() < 0.6),
            rng.sample(self.places, rng.randint(1, len(self.places))),
            restless=rng.choice((0.0, 0.03)),
        )
        self.readers.append(reader)
        host.process.spawn(reader.run(), name)

    # -- the last look ------------------------------------------------------------------------

    async def _last_look(self) -> None:
        for producer in self.producers:
            producer.over = True
        for each in self.ids:
            each.end()
        await self._until(lambda: all(each.settled for each in self.producers))
        await self._until(lambda: all(each.waits is None for each in self.ids))
        await self._until(lambda: self._broker_away() is None)
        follower = await self._audit("follows what is committed", committed=True)
        await self._until(lambda: self._unpiped(follower) is None)
        for each in self.pipes:
            each.end()
        await self._until(lambda: all(each.waits is None for each in self.pipes))
        if self.random.random() < 0.5:
            for broker in self.brokers:
                broker.kill(0.1)
        committed = await self._audit("audit of committed", committed=True)
        whole = await self._audit("audit of all", committed=False)
        await self._until(lambda: self._undone(committed, whole) is None)
        ending: list[GroupConsumer | ShareConsumer] = [*self.consumers, *self.more.sharers]
        for consumer in ending:
            consumer.over = True
        await self._until(lambda: all(each.settled for each in ending))
        shown = {place: [each for each, _ in committed.got[place]] for place in self.places}
        for place in self.places:
            self.history.ended(place, whole.reader.places[place].offsets, shown[place])
        self.history.check_whole(shown)
        for source, target in self._piped:
            check_once(
                f"{source} to {target}", shown[source], shown[target], self.sources.of,
                self.history.broken,
            )  # fmt: skip
        for follows in (follower, committed, whole):
            follows.over = True

    def _unpiped(self, reader: KafkaReader) -> str | None:
        """What pipes have not done yet. Such as are gone by now are replaced."""
        for each in self.pipes:
            each.restart()
        for source, target in self._piped:
            inputs, outputs = reader.got[source], reader.got[target]
            if len(outputs) < len(inputs):
                return f"{len(inputs)} are in {source}, and {len(outputs)} in {target}"
        return None

    def _undone(self, committed: KafkaReader, whole: KafkaReader) -> str | None:
        """What groups have not done yet."""
        for name, (group, places, only_committed) in self.groups.items():
            if not any(each.name.startswith(f"{name}.") for each in self.living_consumers):
                continue
            got = committed.got if only_committed else whole.got
            for place in places:
                missing = group.undone(place, [offset for _, offset in got[place]])
                if missing is not None:
                    return f"{name} is not given {missing} of {place}"
        return self.more.undone(committed.got, whole.got)

    @property
    def living_consumers(self) -> list[GroupConsumer]:
        return [each for each in self.consumers if not each.settled]

    async def _until(self, holds: Callable[[], bool]) -> None:
        def checked() -> bool:
            self.check()
            return holds()

        await until(checked, 0.2)

    async def _audit(self, name: str, committed: bool) -> KafkaReader:
        """Reads everything that is there now, and follows; all there is must be stable."""
        host = self._host(name)
        client = self._client(host, name)
        plan = ReaderPlan(committed, 1 << 20, 1 << 20, 100, epochs=True)
        reader = KafkaReader(client, self.history, name, plan, self.places, 0.0)
        self._audits.append(reader)
        ends: dict[Place, int] = {}

        async def read() -> None:
            for place in self.places:
                ends[place] = await reader.reader.list_offset(place, LATEST)
            await reader.run()

        host.process.spawn(read(), name)

        def done() -> bool:
            at = reader.reader.places
            return bool(at) and all(at[place].offset >= ends[place] for place in self.places)

        await self._until(done)
        return reader

    def _broker_away(self) -> str | None:
        for broker in self.brokers:
            if broker.topics is None:
                return f"{broker.name} neither serves nor ends"
        return None

    def _unfinished(self) -> str:
        for producer in self.producers:
            if not producer.settled:
                return producer.waits
        for each in self.ids:
            if (waits := each.waits) is not None:
                return waits
        if (away := self._broker_away()) is not None:
            return away
        audits = self._audits
        if audits and (unpiped := self._unpiped(audits[0])) is not None:
            return f"{unpiped}; {self._unread()}"
        if len(audits) == AUDITS and (undone := self._undone(*audits[1:])) is not None:
            return f"{undone}; {self._unread()}"
        return self._unread()

    def _unread(self) -> str:
        told = [
            f"{each.name} is at {at.offset} of {place}, where {at.stable_offset} is stable and "
            f"{at.high_watermark} confirmed"
            for each in self._audits[-1:]
            for place, at in each.reader.places.items()
        ]
        return "; ".join(told) or "nothing is read"
