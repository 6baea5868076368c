"""``topics.intakes``: who takes what queries have committed into topics, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, cast

from magnetar.cluster.ownership import Ownership
from magnetar.cluster.topic_name import TopicName
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import NoSpaceError, ServiceNotReadyError
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.staging.queries import Queries
from magnetar.staging.reading import StagedReading
from magnetar.staging.records import Commit, QueryRecord, Source
from magnetar.topics.intake import Buffer
from magnetar.topics.intakes import Intakes
from tests.unit.protocols.pulsar.harness import TOPIC, World, run
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
