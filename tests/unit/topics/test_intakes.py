"""``topics.intakes``: who takes what queries have committed into topics, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

from magnetar.cluster.ownership import Ownership
from magnetar.cluster.policies.backlog_quotas import BacklogQuota, BacklogQuotas, QuotaAction
from magnetar.cluster.topic_name import TopicName
from magnetar.env.metadata import Versioned
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import BadVersionError, NoSpaceError, ServiceNotReadyError
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.staging.handing_out import HandingOut
from magnetar.staging.queries import Queries
from magnetar.staging.reading import StagedReading
from magnetar.staging.records import ROOT, Commit, QueryRecord, Source, encode_query, query_path
from magnetar.topics import intakes as intakes_module
from magnetar.topics.intakes import Intakes
from magnetar.topics.publishing.intake import Buffer
from magnetar.topics.terminating import terminate
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.protocols.pulsar.harness import TOPIC, World, run
from tests.unit.protocols.pulsar.test_staged_writes import MemoryManager, bookies, quorums_for
from tests.unit.topics.test_intake import BUILDER, Columns, Head, sender

QUERY, ENTRIES = "q", 3


class Staged:
    """``StagedReading``: each batch has one ledger, of that number."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def entries(
        self, topic: str, source: Source, first: int
    ) -> AsyncGenerator[Sequence[Buffer], None]:
        name = sender(self._key, source.ledger_id, 0)
        yield [
            BUILDER.entry(Head(name, number, 1_000), Columns([b"x"]))
            for number in range(first, source.entries)
        ]


class ComesHere:
    """``Ownership.claim`` of a topic that is another broker's when it is first asked."""

    def __init__(self, ownership: Any) -> None:
        self._ownership = ownership
        self.asked = 0

    async def claim(self, name: TopicName) -> None:
        self.asked += 1
        if self.asked == 1:
            raise ServiceNotReadyError(f"{name} is on its way")
        await self._ownership.claim(name)


def committed(batches: int, record: QueryRecord) -> tuple[str, QueryRecord]:
    commits = tuple(
        Commit(batch, record.epoch, {TOPIC: (Source(0, batch, ENTRIES, ENTRIES),)}, ())
        for batch in range(batches)
    )
    return record.key(QUERY), QueryRecord(record.run, record.first_run, commits=commits)


async def until(what: Callable[[], bool]) -> None:
    while not what():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_a_full_disk_ends_no_topic() -> None:
    """Its consumers go on; what is committed is taken in when there is space again."""

    async def scenario(world: World) -> None:
        await world.peer().subscribe(TOPIC)
        topic, log = world.topic(), world.log()
        queries = Queries(world.metadata)
        await queries.begin(QUERY, "r1")
        key = await queries.change(QUERY, partial(committed, 1))
        looks = 0

        async def full(_name: str) -> None:
            nonlocal looks
            looks += 1
            raise NoSpaceError("no bookie takes entries")

        check_space = world.store.check_space
        world.store.check_space = full  # type: ignore[method-assign]
        scope = TaskScope("intakes", awaited(by="the test"))
        reading = cast(StagedReading, Staged(key))
        ownership = world.broker.control.ownership
        scope.spawn(
            Intakes(queries, reading, world.services.topics, ownership, scope).run(), "intakes"
        )
        await until(lambda: looks >= 2)
        assert (world.topic() is topic, topic.closed) == (True, False)
        assert log.positions.end_offset == 0
        world.store.check_space = check_space  # type: ignore[method-assign]
        await until(lambda: log.positions.end_offset == ENTRIES)
        assert world.topic() is topic
        await scope.close()

    run(scenario)


def test_what_is_committed_for_a_terminated_topic_waits_and_ends_no_topic() -> None:
    """It is not dropped: its query's record keeps it, and the log says why."""

    async def scenario(world: World) -> None:
        await world.peer().subscribe(TOPIC)
        topic = world.topic()
        await terminate(topic)
        queries = Queries(world.metadata)
        await queries.begin(QUERY, "r1")
        key = await queries.change(QUERY, partial(committed, 1))
        scope = TaskScope("intakes", awaited(by="the test"))
        reading = cast(StagedReading, Staged(key))
        ownership = world.broker.control.ownership
        scope.spawn(
            Intakes(queries, reading, world.services.topics, ownership, scope).run(), "intakes"
        )
        await asyncio.sleep(30)
        assert (world.topic() is topic, topic.closed) == (True, False)
        record = await queries.read(QUERY)
        assert record is not None
        assert len(record.commits) == 1
        await scope.close()

    run(scenario)


def test_what_is_committed_for_a_topic_past_its_backlog_quota_waits_for_place() -> None:
    """Also where producers would fail: what is committed can no more be failed."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe(topic=TOPIC)
        await peer.produce(TOPIC)
        peer.publish(3)
        await peer.heard()
        quotas = BacklogQuotas(BacklogQuota(1, -1, QuotaAction.EXCEPTION))
        await world.broker.control.policies.set_topic(world.topic().name, "backlog_quotas", quotas)
        queries = Queries(world.metadata)
        await queries.begin(QUERY, "r1")
        key = await queries.change(QUERY, partial(committed, 1))
        scope = TaskScope("intakes", awaited(by="the test"))
        reading = cast(StagedReading, Staged(key))
        ownership = world.broker.control.ownership
        scope.spawn(
            Intakes(queries, reading, world.services.topics, ownership, scope).run(), "intakes"
        )
        await asyncio.sleep(30)
        log = world.log()
        assert log.positions.end_offset == 3
        peer.acknowledge(0, 1, 2)
        await until(lambda: log.positions.end_offset == 3 + ENTRIES)
        await scope.close()

    run(scenario)


def test_a_topic_that_comes_here_takes_in_the_first_batch_first() -> None:
    """Who has taken in a later batch takes in no earlier one: it would be lost."""

    async def scenario(world: World) -> None:
        await world.peer().produce(TOPIC)
        log = world.log()
        queries = Queries(world.metadata)
        await queries.begin(QUERY, "r1")
        key = await queries.change(QUERY, partial(committed, 3))
        scope = TaskScope("intakes", awaited(by="the test"))
        reading = cast(StagedReading, Staged(key))
        coming = ComesHere(world.broker.control.ownership)
        ownership = cast(Ownership, coming)
        scope.spawn(
            Intakes(queries, reading, world.services.topics, ownership, scope).run(), "intakes"
        )
        await until(lambda: coming.asked >= 1)
        await asyncio.sleep(0.01)
        assert log.positions.end_offset == 0, "the batches behind it wait"
        await queries.begin("another", "r1")
        await queries.change(QUERY, lambda record: (None, record))  # something has changed
        await until(lambda: log.positions.end_offset == 3 * ENTRIES)
        found = await log.read(Position(1, 0), 100, 1 << 20)
        names = [PulsarEntryFormat().sent(each.payload)[0] for each in found]
        assert names == [sender(key, batch, 0) for batch in range(3) for _ in range(ENTRIES)]
        await scope.close()

    run(scenario, ledger_entries=100)


class Quiet(MemoryMetadata):
    """Tells nobody of a change; ``reads`` are counted."""

    def __init__(self, metadata: MemoryMetadata) -> None:
        self.__dict__ = metadata.__dict__
        self.tells = False
        self.reads = 0

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return super().watch(path, lambda told: changed(told) if self.tells else None)

    async def get(self, path: str) -> Versioned:
        self.reads += path.startswith(ROOT)
        return await super().get(path)


def test_a_record_that_was_written_here_is_taken_in_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the store tells of it, and without a read. What comes with it is not missed."""
    monkeypatch.setattr(intakes_module, "LOOK_AGAIN_S", 3600.0)

    async def scenario(world: World) -> None:
        await world.peer().produce(TOPIC)
        log, quiet = world.log(), Quiet(world.metadata)
        queries = Queries(quiet)
        record, seen = await queries.begin(QUERY, "r1")
        handing_out = HandingOut(quiet, MemoryManager(), quorums_for, bookies)
        reads: list[int] = []

        class Reading(Staged):
            def entries(
                self, topic: str, source: Source, first: int
            ) -> AsyncGenerator[Sequence[Buffer], None]:
                reads.append(quiet.reads)
                return super().entries(topic, source, first)

        scope = TaskScope("intakes", awaited(by="the test"))
        reading = cast(StagedReading, Reading(record.key(QUERY)))
        ownership = world.broker.control.ownership
        intakes = Intakes(queries, reading, world.services.topics, ownership, scope)
        handing_out.record_written = intakes.told
        scope.spawn(intakes.run(), "intakes")
        await asyncio.sleep(0.02)
        before = quiet.reads
        value = encode_query(committed(1, record)[1])
        with pytest.raises(BadVersionError):
            await handing_out.write_record(QUERY, value, seen.version + 1)
        await asyncio.sleep(0.02)
        assert reads == [], "nothing is told of what was not written"
        await handing_out.write_record(QUERY, value, seen.version)
        await until(lambda: log.positions.end_offset == ENTRIES)
        assert reads == [before]
        await asyncio.sleep(0.02)
        version = (await quiet.get(query_path(QUERY))).version
        await handing_out.write_record(QUERY, encode_query(committed(2, record)[1]), version)
        # In the same turn of the loop, and told by nobody.
        await quiet.put(query_path(QUERY), encode_query(committed(3, record)[1]), version + 1)
        await until(lambda: log.positions.end_offset == 3 * ENTRIES)
        await scope.close()

    run(scenario, ledger_entries=100)
