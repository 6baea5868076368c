"""Lists of a namespace's topics that many ask for in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.admin.topics import TopicService
from magnetar.cluster.topic_name import parse_topic
from tests.doubles.memory_log import MemoryLogStore
from tests.unit.protocols.pulsar.harness import World, run

NAMESPACE = "public/default"
MANY = 150


def test_those_who_ask_at_once_share_a_list_and_have_turns_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """150 clients that asked for 10 000 topics stopped a broker for 1.2 s at a time."""
    looks = made = 0
    names = MemoryLogStore.names

    async def counted(store: MemoryLogStore, prefix: str) -> list[str]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        return list(await names(store, prefix))

    monkeypatch.setattr(MemoryLogStore, "names", counted)

    async def asked(admin: TopicService) -> list[str]:
        nonlocal made
        found = await admin.names(NAMESPACE)
        made += 1
        return found

    async def scenario(world: World) -> None:
        await world.services.control.partitioned.create(parse_topic("a"), 2)
        asking = [asyncio.create_task(asked(world.admin)) for _ in range(MANY)]
        most = before = 0
        while made < MANY:
            await asyncio.sleep(0)
            most, before = max(most, made - before), made
        assert most == 1
        assert looks <= 2
        listed = [f"persistent://{NAMESPACE}/a-partition-{index}" for index in (0, 1)]
        assert [task.result() for task in asking] == [listed] * MANY

    run(scenario)


def test_a_list_is_no_older_than_its_question() -> None:
    async def scenario(world: World) -> None:
        control = world.services.control.partitioned
        for number in range(3):
            first = asyncio.create_task(world.admin.names(NAMESPACE))
            await asyncio.sleep(0)
            await control.create(parse_topic(f"b{number}"), 1)
            second = await world.admin.names(NAMESPACE)
            assert f"persistent://{NAMESPACE}/b{number}-partition-0" in second
            await first

    run(scenario)
