"""The health checks of the parts that the composition root puts together."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from magnetar.app.checks import bookies_check, metadata_check, topics_check
from magnetar.config import LedgerConfig
from magnetar.env.health import WELL
from magnetar.env.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import LogError
from magnetar.topics.topic import COOL_DOWN_S
from magnetar.wire.bookie.metadata_service import (
    LACKS_SPACE_PROPERTY,
    REFUSAL_PROPERTY,
    BookieServiceInfo,
    encode_service_info,
)
from tests.unit.protocols.pulsar.harness import TOPIC, World, run


def test_topics_whose_logs_fail_are_named() -> None:
    async def scenario(world: World) -> None:
        check = topics_check(world.broker.topics)
        await world.peer().produce()
        assert await check() == WELL
        world.topic().append_failed(LogError("no bookie takes it"))
        found = await check()
        assert found.problem == f"1 topics could not store messages a moment ago: {TOPIC}"
        await asyncio.sleep(COOL_DOWN_S + 0.1)
        assert await check() == WELL

    run(scenario)


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
