"""A broker with very many topics ends: others have their turns meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.topics.registry import TELLS_PER_TURN
from magnetar.topics.topic import Topic
from tests.unit.protocols.pulsar.harness import World, run

TOPICS = 3 * TELLS_PER_TURN


def test_clients_of_many_topics_are_sent_away_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, turns = 0, list[int]()
    disconnect, drain, drained = Topic.disconnect, Topic.drain, list[str]()

    def bump() -> None:
        nonlocal turn
        turn += 1

    def noted(topic: Topic) -> None:
        turns.append(turn)
        asyncio.get_running_loop().call_soon(bump)
        disconnect(topic)

    async def noted_drain(topic: Topic) -> None:
        drained.append(str(topic.name))
        await drain(topic)

    monkeypatch.setattr(Topic, "disconnect", noted)
    monkeypatch.setattr(Topic, "drain", noted_drain)

    async def scenario(world: World) -> None:
        topics = world.services.topics
        for number in range(TOPICS):
            await topics.get(parse_topic(f"t{number}"), create=True)
        await topics.close()
        assert not len(topics)
        assert max(turns.count(each) for each in set(turns)) <= TELLS_PER_TURN
        assert drained == [], "nothing was under way"

    run(scenario)
