"""Staged writes by way of a broker: a real one on a socket, which loses answers and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from magnetar.app.broker import Broker
from magnetar.config import BrokerConfig
from magnetar.env.network.free_ports import free_port
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.model.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    NotAllowedError,
    StaleRunError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Quorums
from magnetar.pipeline.brokers.link import BrokerLink
from magnetar.pipeline.brokers.staging import (
    BrokerBookies,
    BrokerCatalog,
    BrokerRecords,
    query_records,
    quorums_told,
)
from magnetar.staging.commit_rules import CommitVerdict, Offer, taken_in
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.handing_out import HandingOut
from magnetar.staging.queries import Queries
from magnetar.staging.records import INLINE, Source
from tests.doubles.memory_log import MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues
from tests.unit.ledger.doubles import MemoryManager
from tests.unit.protocols.pulsar.test_staged_writes import bookies, quorums_for
from tests.unit.staging.doubles import MemoryStagedLedgers
from tests.unit.staging.test_grants import OF_A_TOPIC, STAGED

RUN, NEXT = QueryRun("q", "r1"), QueryRun("q", "r2")
OFFER = Offer(0, {"persistent://public/default/t": Source(0, INLINE, 1, 1, (b"row",))})
Scenario = Callable[["World"], Awaitable[None]]


class World:
    """A broker that comes and goes; what it has in the store stays."""

    def __init__(self) -> None:
        self.port = free_port()
        self.metadata = MemoryMetadata()
        self.manager = MemoryManager()
        self.handing_out = HandingOut(self.metadata, self.manager, quorums_for, bookies)
        self.broker: Broker | None = None
        self.link = self.linked(20.0)
        self.queries = query_records(self.link)
        self.committer = Committer(self.queries, MemoryStagedLedgers())

    def linked(self, patience_s: float, *ports: int) -> BrokerLink:
        return BrokerLink([("127.0.0.1", port) for port in ports or (self.port,)], patience_s)

    async def start(self, *, serves: bool = True) -> None:
        self.broker = Broker(
            BrokerConfig(port=self.port),
            MemoryLogStore(5),
            self.metadata,
            MemoryValues(),
            staged_writes=self.handing_out if serves else None,
        )
        await self.broker.start()

    async def stop(self) -> None:
        if self.broker is not None:
            await self.broker.close()
            self.broker = None

    def lose_the_answer(self, monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
        """The next call of ``method`` is done, and its answer never comes. Returns where calls are
        counted."""
        original, calls = getattr(self.handing_out, method), list[int]()

        async def done_and_lost(*args: Any) -> Any:
            answer = await original(*args)
            calls.append(1)
            if len(calls) == 1:
                assert self.broker is not None
                for session in list(self.broker.pulsar.services.sessions):
                    session.abort()  # type: ignore[attr-defined]
            return answer

        monkeypatch.setattr(self.handing_out, method, done_and_lost)
        return calls


def run(scenario: Scenario, *, serves: bool = True) -> None:
    async def main() -> None:
        world = World()
        async with AsyncExitStack() as parts, asyncio.timeout(60):
            parts.push_async_callback(world.stop)
            parts.callback(world.link.close)
            await world.start(serves=serves)
            await scenario(world)

    asyncio.run(main())


def test_a_query_commits_as_with_the_store_itself() -> None:
    async def scenario(world: World) -> None:
        assert await world.queries.read("q") is None
        await world.queries.begin(*RUN)
        assert await world.committer.commit(RUN, 0, [OFFER], 5.0) is CommitVerdict.COMMITTED
        assert await world.committer.commit(RUN, 0, [OFFER], 5.0) is CommitVerdict.ALREADY
        record = await Queries(world.metadata).read("q")
        assert record == await world.queries.read("q")
        assert record is not None
        assert [commit.batch for commit in record.commits] == [0]
        await world.queries.begin(*NEXT)
        with pytest.raises(StaleRunError, match="r2 has begun since"):
            await world.committer.commit(RUN, 1, [OFFER], 5.0)

    run(scenario)


def test_a_commit_whose_answer_is_lost_is_found_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.queries.begin(*RUN)
        calls = world.lose_the_answer(monkeypatch, "write_record")
        assert await world.committer.commit(RUN, 0, [OFFER], 5.0) is CommitVerdict.ALREADY
        assert len(calls) == 1
        record = await world.queries.read("q")
        assert record is not None
        assert len(record.commits) == 1

    run(scenario)


def test_a_run_that_began_and_was_not_told_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.lose_the_answer(monkeypatch, "create_record")
        assert (await world.queries.begin(*RUN)).record.epoch == 1
        await Queries(world.metadata).begin(*NEXT)
        with pytest.raises(StaleRunError):
            await world.queries.begin(*RUN)

    run(scenario)


def test_a_broker_that_restarts_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        await world.queries.begin(*RUN)
        await world.stop()
        committing = asyncio.create_task(world.committer.commit(RUN, 0, [OFFER], 5.0))
        await asyncio.sleep(0.3)
        assert not committing.done()
        await world.start()
        assert await committing is CommitVerdict.COMMITTED

    run(scenario)


def test_a_commit_waits_until_its_rows_are_taken_in() -> None:
    async def scenario(world: World) -> None:
        await world.queries.begin(*RUN)
        await world.committer.commit(RUN, 0, [OFFER], 5.0)
        waiting = asyncio.create_task(world.committer.wait_taken_in("q", 0, 30.0))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        topic = "persistent://public/default/t"
        await Queries(world.metadata).change("q", lambda record: (None, taken_in(record, 0, topic)))
        await waiting

    run(scenario)


def test_a_change_wakes_whoever_waits_through_a_restart() -> None:
    async def scenario(world: World) -> None:
        await world.queries.begin(*RUN)
        with world.queries.changes("q") as changes:
            await changes.wait(30)  # how it was is one change
            waiting = asyncio.create_task(changes.wait(30))
            await asyncio.sleep(0.1)
            await world.stop()
            await world.start()
            assert not waiting.done()
            await Queries(world.metadata).begin(*NEXT)
            await waiting

    run(scenario)


def test_nobody_answers() -> None:
    async def scenario(world: World) -> None:
        await world.stop()
        link = world.linked(0.2)
        with pytest.raises(MetadataUnavailableError, match=r"no broker answers at 127\.0\.0\.1:"):
            await BrokerRecords(link).get("q")

    run(scenario)


def test_another_address_of_the_service_url_answers() -> None:
    async def scenario(world: World) -> None:
        link = world.linked(5.0, free_port(), world.port)
        try:
            with pytest.raises(NoNodeError):
                await BrokerRecords(link).get("q")
        finally:
            link.close()

    run(scenario)


def test_a_broker_that_serves_no_staged_writes_says_so() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(NotAllowedError, match="'deliveryGuarantee' = 'at-least-once'"):
            await world.queries.read("q")

    run(scenario, serves=False)


def test_the_metadata_of_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        catalog = BrokerCatalog(world.link)
        made, version = await catalog.create_new(STAGED)
        assert world.manager.ledgers[made.ledger_id] == (made, version)
        closed = made.with_close(3, 30)
        calls = world.lose_the_answer(monkeypatch, "write_ledger")
        assert await catalog.write(closed, version) == 1
        assert len(calls) == 1, "the answer was lost, and what was written found"
        assert await catalog.read(made.ledger_id) == (closed, 1)
        with pytest.raises(BadVersionError):
            await catalog.write(made, version)
        world.lose_the_answer(monkeypatch, "delete_ledger")
        await catalog.delete(made.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await catalog.delete(made.ledger_id)

    run(scenario)


def test_a_new_ledger_whose_answer_is_lost_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.lose_the_answer(monkeypatch, "create_ledger")
        made, _ = await BrokerCatalog(world.link).create_new(STAGED)
        assert sorted(world.manager.ledgers) == [made.ledger_id - 1, made.ledger_id]

    run(scenario)


def test_ledgers_of_topics_are_none_to_a_writer() -> None:
    async def scenario(world: World) -> None:
        world.manager.ledgers[5] = (OF_A_TOPIC, 0)
        catalog = BrokerCatalog(world.link)
        with pytest.raises(NoSuchLedgerError):
            await catalog.read(5)
        with pytest.raises(NoSuchLedgerError):
            await catalog.delete(5)
        with pytest.raises(NotAllowedError, match="does not say which query"):
            await catalog.create_new(OF_A_TOPIC)

    run(scenario)


def test_bookies_and_quorums() -> None:
    async def scenario(world: World) -> None:
        told = BrokerBookies(world.link)
        one, two = BookieId("b-1"), BookieId("b-2")
        assert await told.available() == {one: ("h1", 1)}
        assert await told.all() == {one: ("h1", 1), two: ("h2", 2)}
        assert (await told.properties())[one] == {"rack": "r1"}
        assert await told.refusals() == {two: ReadOnlyReason("full", True)}
        assert await quorums_told(world.link, "t") == Quorums(3, 3, 2)
        assert await quorums_told(world.link, None) == Quorums(1, 1, 1)

    run(scenario)
