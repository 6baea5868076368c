"""The health checks of the parts that the composition root puts together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from magnetar.app.checks import (
    bookies_check,
    metadata_check,
    partitions_check,
    tables_check,
    tables_lag,
    tls_check,
    topics_check,
)
from magnetar.config import LedgerConfig, TlsConfig
from magnetar.env.health import WELL, PartHealth
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.log.seam import TableLag
from magnetar.model.errors import EntryDamagedError, LogDamagedError, LogError, NoSuchLedgerError
from magnetar.topics.registry import Topics
from magnetar.topics.topic import COOL_DOWN_S
from magnetar.wire.bookie.metadata_service import (
    LACKS_SPACE_PROPERTY,
    REFUSAL_PROPERTY,
    BookieServiceInfo,
    encode_service_info,
)
from tests.certificates import Authority
from tests.unit.log.partition.kit import filled
from tests.unit.log.partition.test_space import MIB, RULES, TellingDisk
from tests.unit.log.partition.world import PartitionWorld
from tests.unit.protocols.pulsar.harness import TOPIC, World, run
from tests.unit.protocols.pulsar.test_consuming import consumers, producer


def test_topics_whose_logs_fail_are_named() -> None:
    async def scenario(world: World) -> None:
        check = topics_check(world.broker.topics)
        await world.peer().produce()
        assert await check() == WELL
        world.topic().append_failed(LogError("no bookie takes it"))
        found = await check()
        said = f"1 topics could not store messages a moment ago: {TOPIC} (no bookie takes it)"
        assert found.problem == said
        answer = await world.peer().produce()
        assert "no bookie takes it" in answer.error.message
        await asyncio.sleep(COOL_DOWN_S + 0.1)
        assert await check() == WELL

    run(scenario)


def test_subscriptions_that_wait_for_a_lost_entry_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.topics.consuming.feed.RETRY_DELAY_S", 0.02)

    async def scenario(world: World) -> None:
        check = topics_check(world.broker.topics)
        await producer(world, 4)
        [peer] = await consumers(world, 1)
        world.log().cached = False
        world.log().failing = EntryDamagedError("no replica has a sound copy of entry 1:0")
        with structlog.testing.capture_logs() as logs:
            peer.flow(10)
            assert await peer.entries() == []
            await asyncio.sleep(0.2)  # it is tried again, and not said again
        told = [each for each in logs if each["event"].startswith("read failed")]
        assert [(each["topic"], each["subscription"]) for each in told] == [(TOPIC, "s")]
        found = await check()
        (topic,) = world.broker.topics.loaded()
        unread = topic.subscriptions["s"].dispatcher.feed.unread
        assert unread is not None
        for said in ("1 subscriptions", TOPIC, f"at {unread.place}", "no replica has a sound"):
            assert said in found.problem
        assert f"seek {TOPIC} --subscription s --to {unread.behind}" in found.remedy
        assert f"seek {TOPIC} --subscription s --to {unread.behind}" in told[0]["remedy"]
        world.log().failing = NoSuchLedgerError("ledger 1 does not exist in the metadata store")
        await asyncio.sleep(0.1)
        end = world.log().positions.next_position(world.log().positions.readable)
        assert f"--to {end}" in (await check()).remedy, "none of the ledger's can be read"
        world.log().failing = None
        await asyncio.sleep(0.1)
        assert await peer.entries() == [0, 1, 2, 3]
        assert await check() == WELL

    run(scenario)


def test_partitions_tell_of_their_disk_and_of_what_cannot_be_opened() -> None:
    async def scenario() -> None:
        world, disk = PartitionWorld(), TellingDisk()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("orders", 0))
            await replica.run(lambda: filled(replica.source, 40))
        for each in (world.path / "orders-0").glob("*.log"):
            each.unlink()
        async with world.running(closing=False, disk=disk, space=RULES):
            host = world.host
            check = partitions_check(host)
            assert await check() == WELL
            host.advice = lambda partition: f"broker 2 has {partition[0]}"
            with pytest.raises(LogDamagedError, match="broker 2 has orders"):
                await host.replica(("orders", 0))
            disk.free = MIB
            host.room.look()
            found = await check()
            for said in (
                "1 partitions",
                str(world.path / "orders-0"),
                "Restore it",
                "is full",
                "broker 2 has",
            ):
                assert said in found.problem
            assert "make room" in found.remedy
            disk.free = 1 << 40
            host.room.look()
            await host.doom(("orders", 0))  # its topic is deleted
            assert await check() == WELL

    asyncio.run(scenario())


def test_bookies_are_well_when_a_ledger_can_be_made() -> None:
    async def scenario() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        registry = BookieRegistry(store)
        check = bookies_check(registry, LedgerConfig(ensemble_size=2))
        info = encode_service_info(BookieServiceInfo.of_address("127.0.0.1", 3181))
        await store.create("/ledgers/available/b1", info)
        why = ((REFUSAL_PROPERTY, "the disk of /d is full"), (LACKS_SPACE_PROPERTY, "true"))
        full = encode_service_info(
            replace(BookieServiceInfo.of_address("127.0.0.1", 3181), properties=why)
        )
        await store.create("/ledgers/available/readonly/b2", full)
        found = await check()
        assert not found.ok
        assert found.problem.startswith("1 registered bookies take new entries")
        assert found.problem.endswith("read-only: b2: the disk of /d is full")
        assert await registry.refusals() == {"b2": ReadOnlyReason("the disk of /d is full", True)}
        await store.create("/ledgers/available/b3", info)
        await store.sync()  # the registry's watch was told by then
        assert await check() == WELL
        assert await metadata_check(store)() == WELL
        registry.close()
        await store.close()

    asyncio.run(scenario())


HOUR_MS = 3_600_000


def topic_with(name: str, lag: TableLag | None, awaiting: tuple[int, ...] = ()) -> SimpleNamespace:
    stats = SimpleNamespace(awaiting_table=awaiting)
    log = SimpleNamespace(tabled=SimpleNamespace(lag=lag), stats=lambda: stats)
    return SimpleNamespace(name=name, log=log)


def test_tables_that_are_late_or_whose_jobs_fail_are_named() -> None:
    now_ms = 100 * HOUR_MS
    open_ = [
        topic_with("none", None),
        topic_with("well", TableLag(1, 10, now_ms - HOUR_MS, "")),
    ]
    topics = cast(Topics, SimpleNamespace(loaded=lambda: open_))
    check = tables_check(topics, 2 * HOUR_MS, lambda: now_ms)
    assert asyncio.run(check()) == WELL
    open_.append(topic_with("late", TableLag(3, 500, now_ms - 5 * HOUR_MS, ""), (7, 8)))
    found = asyncio.run(check())
    assert not found.ok
    assert found.problem == (
        "the tables of 1 topics are behind: late; 3 closed ledgers (500 bytes) are not in them, "
        "the first since 5.0 h (at most ledger.table_lag_ms_max); retention would have deleted 2 "
        "of them, and waits"
    )
    open_[-1] = topic_with("broken", TableLag(0, 0, 0, "the catalog is gone"))
    found = asyncio.run(check())
    assert found.problem == (
        "the tables of 1 topics cannot be filled: broken; broken: the catalog is gone"
    )
    assert "magnetar pipeline detach" in found.remedy
    lags = [lag for each in open_ if (lag := each.log.tabled.lag) is not None]
    assert tables_lag(lags) == (2, 1, 10, now_ms - HOUR_MS, 1)


def test_a_certificate_that_does_not_count_is_told(tmp_path: Path) -> None:
    """All was well while no client by TLS could connect."""
    pem = Authority(tmp_path).issue("server")
    files = TlsConfig(certificate_file=str(pem.certificate), key_file=str(pem.key))
    now_s, day_s = time.time(), 86_400

    async def scenario(clock_s: float) -> PartHealth:
        return await tls_check(files, lambda: clock_s)()

    assert asyncio.run(scenario(now_s)) == WELL
    late = asyncio.run(scenario(now_s + 31 * day_s))
    assert not late.ok
    assert "has expired: it counts from" in late.problem
    assert str(pem.certificate) in late.problem
    assert "does not count yet" in asyncio.run(scenario(now_s - 2 * day_s)).problem
    pem.key.write_bytes(Authority(tmp_path, "other").issue("o").key.read_bytes())
    found = asyncio.run(scenario(now_s))
    assert not found.ok
    assert "TLS cannot be set up with" in found.problem
    assert "from before count" in found.remedy
