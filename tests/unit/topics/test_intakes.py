"""``topics.intakes``: who takes what queries have committed into topics, and when not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import cast

from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import NoSpaceError
from magnetar.staging.queries import Queries
from magnetar.staging.reading import StagedReading
from magnetar.staging.records import Commit, QueryRecord, Source
from magnetar.topics.intake import Buffer
from magnetar.topics.intakes import Intakes
from tests.unit.protocols.pulsar.harness import TOPIC, World, run
from tests.unit.topics.test_intake import BUILDER, Columns, Head, sender

QUERY, ENTRIES = "q", 3


class Staged:
    """``StagedReading`` of one part."""

    def __init__(self, key: str) -> None:
        self._name = sender(key, 0, 0)

    async def entries(
        self, topic: str, source: Source, first: int
    ) -> AsyncGenerator[Sequence[Buffer], None]:
        yield [
            BUILDER.entry(Head(self._name, number, 1_000), Columns([b"x"]))
            for number in range(first, source.entries)
        ]


def committed(record: QueryRecord) -> tuple[str, QueryRecord]:
    commit = Commit(0, record.epoch, {TOPIC: (Source(0, 100, ENTRIES, ENTRIES),)}, ())
    return record.key(QUERY), QueryRecord(record.run, record.first_run, commits=(commit,))


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
        key = await queries.change(QUERY, committed)
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
