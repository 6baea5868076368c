"""One log's policy beside another's."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed import appender
from magnetar.log.policy import LogPolicy, PieceRule, Retention, RollRule
from magnetar.model.errors import MetadataUnavailableError, NoSpaceError
from magnetar.model.ids import EARLIEST
from magnetar.model.ledger import Quorums
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_managed_log import publish, read_all, values

OTHER = "public/default/persistent/other"
BIG = RollRule(1000, 1 << 30, 1 << 40)


def test_each_log_rolls_and_is_replicated_by_its_own_policy() -> None:
    async def scenario() -> None:
        process = Process(World())
        store = process.store(LedgerConfig(ledger_entries_max=10))
        quorums = Quorums(3, 3, 2)
        own = await store.open(NAME, LogPolicy(RollRule(4, 1 << 30, 1 << 40), quorums=quorums))
        default = await store.open(OTHER)
        await publish(own, 0, 8)
        await publish(default, 0, 8)
        assert [len(log.stats().ledgers) for log in (own, default)] == [2, 1]
        assert process.ledgers.quorums == [quorums, quorums, None]
        own.set_policy(LogPolicy(BIG))
        await publish(own, 8, 20)
        assert len(own.stats().ledgers) == 3
        assert process.ledgers.quorums[-1] is None
        assert values(await read_all(own)) == list(range(28))

    asyncio.run(scenario())


def test_a_log_ends_ledgers_sooner_as_its_topic_says() -> None:
    """At housekeeping, and not without end: each ledger is named in the log's one record."""

    async def scenario() -> None:
        process = Process(World())
        log = await process.store(LedgerConfig()).open(NAME, LogPolicy(BIG, pieces=PieceRule(50)))

        async def looked_at() -> list[str]:
            log.tick()
            for _ in range(50):
                await asyncio.sleep(0)
            return [each.state for each in log.stats().ledgers]

        await publish(log, 0, 1)
        assert log.stats().stored_bytes < 50
        assert await looked_at() == ["open"]
        await publish(log, 1, 9)
        assert await looked_at() == ["closed"]
        assert await looked_at() == ["closed"], "an empty one is left alone"
        log.set_policy(LogPolicy(BIG, pieces=PieceRule(0, 1000)))
        await publish(log, 10, 9)
        assert await looked_at() == ["closed", "open"], "the bytes are not said any more"
        process.world.now_ms += 1000
        assert await looked_at() == ["closed", "closed"]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(appender, "LEDGERS_MANY", 3)
            await publish(log, 19, 1)
            process.world.now_ms += 1000
            assert await looked_at() == ["closed", "closed", "open"]
        assert values(await read_all(log)) == list(range(20))

    asyncio.run(scenario())


def test_a_retention_that_is_set_lets_go_at_once_what_it_no_longer_keeps() -> None:
    async def scenario() -> None:
        process = Process(World())
        store = process.store(LedgerConfig(ledger_entries_max=4))
        log = await store.open(NAME)
        kept = await store.open(OTHER)
        for each in (log, kept):
            cursor = await each.cursors.open("s", EARLIEST)
            positions = await publish(each, 0, 10)
            cursor.acknowledge_cumulative(positions[-1])
            await cursor.wait_stored()
        assert len(log.stats().ledgers) == 3
        log.set_policy(LogPolicy(BIG, Retention(0, 0)))
        await asyncio.sleep(0.05)
        assert len(log.stats().ledgers) == 1
        assert len(kept.stats().ledgers) == 3

    asyncio.run(scenario())


def test_space_is_asked_for_by_the_logs_own_quorums_and_its_open_ledger() -> None:
    async def scenario() -> None:
        process = Process(World())
        store = process.store(LedgerConfig(ledger_entries_max=10))
        quorums = Quorums(3, 3, 2)
        log = await store.open(NAME, LogPolicy(BIG, quorums=quorums))
        await store.check_space(NAME)
        await publish(log, 0, 1)
        await store.check_space(NAME)
        assert process.ledgers.asked_space == [(quorums, None), (quorums, 1)]
        process.ledgers.create_errors = [NoSpaceError("full")]
        with pytest.raises(NoSpaceError):
            await store.check_space(NAME)
        process.ledgers.create_errors = [MetadataUnavailableError("away")]
        await store.check_space(NAME)  # what is not known refuses nobody
        await store.check_space(OTHER)

    asyncio.run(scenario())
