"""Backlog quotas over REST, as Pulsar's clients ask for and say them; sizes of backlogs."""

from __future__ import annotations

import asyncio
import json

import pytest

from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.opening import open_durable
from magnetar.topics.policies_in_force import PoliciesInForce
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.admin.test_engine_rules import ENGINE, on_partitions
from tests.unit.admin.test_policy_api import N
from tests.unit.protocols.pulsar.harness import TOPIC, Peer

SIZE, AGE = "destination_storage", "message_age"
GO = {"limitTime": -1, "limitSize": 10_240, "policy": "producer_exception"}
OLD = {"limitTime": 60, "limitSize": -1, "policy": "consumer_backlog_eviction"}
NONE = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}


def shown(said: dict[str, object]) -> dict[str, object]:
    return {**said, "limit": said["limitSize"]}


async def filled(p: Platform, count: int = 10, topic: str = TOPIC) -> Peer:
    peer = p.world.peer()
    await peer.produce(topic, name="p")
    await open_durable(p.world.topic(topic), "s", EARLIEST, {})
    peer.publish(count)
    await peer.heard()
    return peer


@pytest.mark.parametrize("where", [N, f"{P}/t"])
def test_quotas_are_set_shown_and_removed_by_kind(where: str) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        one, every = f"{where}/backlogQuota", f"{where}/backlogQuotaMap"
        assert (await p.client.get(every)).json() == {}
        assert await p.status("POST", one, json=GO) == 204, "of size, where nothing is said"
        assert await p.status("POST", f"{one}?backlogQuotaType={AGE}", json=OLD) == 204
        assert (await p.client.get(every)).json() == {SIZE: shown(GO), AGE: shown(OLD)}
        text = '{"limit": "10240", "policy": "producer_request_hold"}'
        assert await p.status("POST", f"{one}?backlogQuotaType={SIZE}", content=text) == 204
        text_meant = {**NONE, "limit": 10_240, "limitSize": 10_240}
        assert (await p.client.get(every)).json()[SIZE] == text_meant
        assert await p.status("DELETE", f"{one}?backlogQuotaType={AGE}") == 204
        assert list((await p.client.get(every)).json()) == [SIZE]
        assert await p.status("DELETE", one) == 204
        assert await p.status("DELETE", one) == 204, "no error"
        assert (await p.client.get(every)).json() == {}

    serve(scenario)


def test_what_is_in_force_is_of_both_kinds_whoever_says_it() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        applied = f"{P}/t/backlogQuotaMap?applied=true"
        assert (await p.client.get(applied)).json() == {SIZE: NONE, AGE: NONE}
        await p.client.post(f"{N}/backlogQuota", json=GO)
        await p.client.post(f"{P}/t/backlogQuota?backlogQuotaType={AGE}", json=OLD)
        assert (await p.client.get(applied)).json() == {SIZE: shown(GO), AGE: shown(OLD)}

    serve(scenario)


@pytest.mark.parametrize("where", [N, f"{P}/t"])
def test_what_cannot_be_meant(where: str) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        one = f"{where}/backlogQuota"
        for body, why in (({"limitSize": 1}, "policy"), (None, "JSON object"), (9, "JSON object")):
            status, reason = await p.reason("POST", one, json=body)
            assert (status, why in reason) == (412, True)
        for method in ("POST", "DELETE"):
            status, _ = await p.reason(method, f"{one}?backlogQuotaType=odd", json=GO)
            assert status == 400
        other = one.replace("default", "other")
        assert (await p.reason("POST", other, json=GO))[0] == 404
        assert (await p.reason("GET", f"{P}/unknown/backlogQuotaMap"))[0] == 404

    serve(scenario)


@pytest.mark.parametrize("where", [N, f"{P}/t"])
def test_retention_must_exceed_it_whichever_comes_first(where: str) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        one, kept = f"{where}/backlogQuota", f"{where}/retention"
        tight = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 10}
        too_large = {**GO, "limitSize": 10 << 20}
        assert await p.status("POST", kept, json=tight) == 204
        status, reason = await p.reason("POST", one, json=too_large)
        assert (status, "needs a retention of more" in reason) == (412, True)
        assert await p.status("POST", one, json={**GO, "limitSize": (10 << 20) - 1}) == 204
        assert await p.status("DELETE", kept) == 204
        assert await p.status("POST", one, json=too_large) == 204
        status, reason = await p.reason("POST", kept, json=tight)
        assert (status, "needs a retention of more" in reason) == (412, True)
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert await p.status("POST", kept, json=forever) == 204

    serve(scenario)


def test_a_topics_quota_against_its_namespaces_retention() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        tight = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
        assert await p.status("POST", f"{N}/retention", json=tight) == 204
        age = f"backlogQuota?backlogQuotaType={AGE}"
        assert (await p.reason("POST", f"{P}/t/{age}", json=OLD))[0] == 412
        assert await p.status("POST", f"{N}/{age}", json=OLD) == 204, "as in Pulsar"

    serve(scenario)


def test_a_namespace_is_made_with_its_quotas() -> None:
    async def scenario(p: Platform) -> None:
        path = "/admin/v2/namespaces/public/limited"
        body = {"backlog_quota_map": {SIZE: GO}, "retention_policies": None}
        assert await p.status("PUT", path, json=body) == 204
        assert (await p.client.get(f"{path}/backlogQuotaMap")).json() == {SIZE: shown(GO)}
        said = (await p.client.get(path)).json()
        assert said["backlog_quota_map"] == {SIZE: shown(GO)}

    serve(scenario)


def test_topics_on_partitions_have_none() -> None:
    async def scenario(p: Platform) -> None:
        await on_partitions(p)
        status, reason = await p.reason("POST", f"{P}/t/backlogQuota", json=GO)
        assert (status, "t is on partitions" in reason) == (412, True)
        assert await p.status("POST", f"{P}/t/backlogQuota", json=NONE) == 204, "none is none"
        assert await p.status("POST", f"{N}/engine", **ENGINE) == 204
        assert (await p.reason("POST", f"{N}/backlogQuota", json=GO))[0] == 412
        assert await p.status("DELETE", f"{N}/engine") == 204
        assert await p.status("POST", f"{N}/backlogQuota", json=GO) == 204
        assert (await p.reason("POST", f"{N}/engine", **ENGINE))[0] == 412

    serve(scenario)


def test_topics_are_held_against_them_when_somebody_asks() -> None:
    async def scenario(p: Platform) -> None:
        peer = await filled(p)
        await p.client.post(f"{N}/backlogQuota", json={**GO, "limitSize": 1})
        assert await p.status("GET", "/admin/v2/brokers/backlog-quota-check") == 204
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        stats = (await p.client.get(f"{P}/t/stats")).json()
        assert stats["backlogQuotaLimitSize"] == 1
        assert stats["backlogQuotaLimitTime"] == -1
        assert "subscription s is " in stats["quotaExceeded"]
        assert await p.status("GET", "/admin/v2/brokers/standalone") == 200

    serve(scenario)


def test_what_was_just_said_counts_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open topics hear of it a moment later: the Java client asked before that, and found nothing
    done."""

    async def never(_: PoliciesInForce) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(PoliciesInForce, "wait_changed", never)

    async def scenario(p: Platform) -> None:
        peer = await filled(p)
        await p.client.post(f"{P}/t/backlogQuota", json={**GO, "limitSize": 1})
        assert await p.status("GET", "/admin/v2/brokers/backlog-quota-check") == 204
        assert await peer.kinds() == ["CLOSE_PRODUCER"]

    serve(scenario)


def test_stats_say_how_old_the_oldest_message_is() -> None:
    async def scenario(p: Platform) -> None:
        await filled(p)
        stats = (await p.client.get(f"{P}/t/stats")).json()
        # The messages say that they were published in 1970; it is 2001.
        assert stats["oldestBacklogMessageAgeSeconds"] == 10**9 - 1
        assert stats["oldestBacklogMessageSubscriptionName"] == "s"
        assert (stats["backlogQuotaLimitSize"], stats["quotaExceeded"]) == (-1, "")
        subscription = p.world.topic().subscriptions["s"]
        subscription.cursor.acknowledge_cumulative(p.world.log().positions.readable)
        stats = (await p.client.get(f"{P}/t/stats")).json()
        assert stats["oldestBacklogMessageAgeSeconds"] == -1
        assert stats["oldestBacklogMessageSubscriptionName"] is None

    serve(scenario)


@pytest.mark.parametrize("path", ["t/stats", "f/partitioned-stats"])
def test_stats_read_the_oldest_message_only_if_somebody_wants_its_age(path: str) -> None:
    """Who looks at all topics each minute had an entry of each read from its bookies."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/f/partitions", content=b"1")
        topic = TOPIC if path == "t/stats" else f"{TOPIC[:-1]}f-partition-0"
        await filled(p, topic=topic)
        log = p.world.log(topic)
        log.cached = False

        async def age(query: str = "") -> tuple[int, int]:
            reads = log.reads
            found = (await p.client.get(f"{P}/{path}{query}")).json()
            return found["oldestBacklogMessageAgeSeconds"], log.reads - reads

        assert await age() == (-1, 0)
        assert await age("?getEarliestTimeInBacklog=true") == (10**9 - 1, 1)
        assert await age() == (10**9 - 1, 0), "as it was looked at before"
        cursor = p.world.topic(topic).subscriptions["s"].cursor
        cursor.acknowledge_cumulative(Position(1, 2))
        assert await age() == (-1, 0), "another one by now"
        await p.client.post(f"{N}/backlogQuota?backlogQuotaType={AGE}", json=OLD)
        for _ in range(20):
            await asyncio.sleep(0)  # open topics hear of it
        assert await age() == (10**9 - 1, 1)

    serve(scenario)


def test_stats_of_partitions_together() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t/partitions", content=b"2")
        stats = (await p.client.get(f"{P}/t/partitioned-stats")).json()
        assert stats["oldestBacklogMessageAgeSeconds"] == -1
        await p.client.post(f"{N}/backlogQuota", json=GO)
        peer = p.world.peer()
        await peer.produce(f"{TOPIC}-partition-1")
        await open_durable(p.world.topic(f"{TOPIC}-partition-1"), "s", EARLIEST, {})
        peer.publish(1)
        await peer.heard()
        stats = (await p.client.get(f"{P}/t/partitioned-stats")).json()
        assert stats["oldestBacklogMessageSubscriptionName"] == "s"
        assert stats["backlogQuotaLimitSize"] == 10_240

    serve(scenario)


def test_the_size_of_a_backlog_by_a_message_id() -> None:
    async def scenario(p: Platform) -> None:
        await filled(p)
        stored = p.world.log().stats()
        path = f"{P}/t/backlogSize"

        async def size(ledger_id: int, entry_id: int) -> int:
            answer = await p.client.put(path, json={"ledgerId": ledger_id, "entryId": entry_id})
            assert answer.status_code == 200
            return int(answer.text)

        assert await size(-1, -1) == stored.stored_bytes
        assert await size(1, 4) == stored.ledgers[1].stored_bytes
        assert await size(2, 4) == 0
        assert (await p.reason("PUT", path, content=json.dumps("x")))[0] == 400
        first = {"ledgerId": 1, "entryId": 0}
        assert (await p.reason("PUT", f"{P}/none/backlogSize", json=first))[0] == 404

    serve(scenario)
