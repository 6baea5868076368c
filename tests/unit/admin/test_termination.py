"""Terminating topics over REST."""

from __future__ import annotations

import pytest

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import LogClosedError
from magnetar.topics.topic import Topic
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.protocols.pulsar.harness import TOPIC


async def fill(p: Platform, topic: str, count: int) -> None:
    peer = p.world.peer()
    await peer.produce(topic)
    peer.publish(count)
    await peer.heard()


def test_the_last_message_is_told_and_stats_say_it() -> None:
    async def scenario(p: Platform) -> None:
        await fill(p, TOPIC, 7)
        stats = (await p.client.get(f"{P}/t/stats")).json()
        assert stats["terminated"] is False
        for _ in range(2):
            answer = await p.client.post(f"{P}/t/terminate")
            assert answer.status_code == 200
            assert answer.json() == (await p.client.get(f"{P}/t/lastMessageId")).json()
            assert (answer.json()["ledgerId"], answer.json()["entryId"]) == (2, 1)
        stats = (await p.client.get(f"{P}/t/stats")).json()
        assert (stats["terminated"], stats["publishers"]) == (True, [])
        internal = (await p.client.get(f"{P}/t/internalStats")).json()
        assert (internal["state"], internal["lastConfirmedEntry"]) == ("Terminated", "2:1")

    serve(scenario)


def test_a_topic_without_messages_has_none_that_is_the_last() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/t") == 204
        answer = await p.client.post(f"{P}/t/terminate")
        assert (answer.status_code, answer.json()["entryId"]) == (200, -1)

    serve(scenario)


def test_what_cannot_be_terminated() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("POST", f"{P}/none/terminate") == 404
        assert await p.status("POST", f"{P}/none/terminate/partitions") == 404
        assert await p.status("PUT", f"{P}/many/partitions", json=2) == 204
        status, reason = await p.reason("POST", f"{P}/many/terminate")
        assert (status, "2 partitions" in reason) == (412, True)
        assert await p.status("PUT", f"{P}/one") == 204
        status, reason = await p.reason("POST", f"{P}/one/terminate/partitions")
        assert (status, "no partitions" in reason) == (409, True)
        groups = "/admin/v2/persistent/public/kafka-groups/groups-0/terminate"
        status, reason = await p.reason("POST", groups)
        assert (status, "Kafka" in reason) == (409, True)

    serve(scenario)


def test_the_partitions_of_a_topic() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/t/partitions", json=3) == 204
        await fill(p, f"{TOPIC}-partition-1", 2)
        answer = await p.client.post(f"{P}/t/terminate/partitions")
        assert answer.status_code == 200
        lasts = answer.json()
        assert {number: each["entryId"] for number, each in lasts.items()} == {
            "0": -1,
            "1": 1,
            "2": -1,
        }
        assert lasts["1"]["partitionIndex"] == 1
        for number in range(3):
            stats = (await p.client.get(f"{P}/t-partition-{number}/stats")).json()
            assert stats["terminated"] is True

    serve(scenario)


def test_one_that_cannot_be_terminated_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/t/partitions", json=3) == 204
        get = p.world.broker.topics.get

        async def failing(name: TopicName, create: bool = True) -> Topic:
            if name.partition == 1:
                raise LogClosedError(f"{name} cannot be opened")
            return await get(name, create)

        monkeypatch.setattr(p.world.broker.topics, "get", failing)
        status, reason = await p.reason("POST", f"{P}/t/terminate/partitions")
        assert (status, "2 of the 3 partitions" in reason) == (503, True)
        assert "t-partition-1: " in reason
        monkeypatch.undo()
        found = [
            (await p.client.get(f"{P}/t-partition-{number}/stats")).json()["terminated"]
            for number in range(3)
        ]
        assert found == [True, False, True]

    serve(scenario)
