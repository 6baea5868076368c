"""REST over a real socket, against a broker with its logs in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter

from magnetar import __version__
from magnetar.admin import api
from magnetar.admin.not_served import NAMESPACE_PARTS, TOPIC_PARTS, WHOLE
from magnetar.admin.server import DeadlineProtocol, HttpServer
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.config import Config
from magnetar.env.health import WELL, Health, PartHealth
from magnetar.env.network.listening import bind
from magnetar.model.errors import NotLeaderError, StartError
from magnetar.model.ids import EARLIEST
from magnetar.topics.opening import open_durable
from magnetar.topics.topic import Topic
from tests.doubles.garbage import in_cycles, ours
from tests.doubles.ownership import ELSEWHERE, divide
from tests.interop.pulsar.wire import send_frame
from tests.unit.admin.fakes import FakeLedgers, application
from tests.unit.protocols.pulsar.harness import World, batch

P = "/admin/v2/persistent/public/default"


class Platform:
    def __init__(self, client: httpx.AsyncClient, world: World, ledgers: FakeLedgers) -> None:
        self.client, self.world, self.ledgers = client, world, ledgers

    async def status(self, method: str, path: str, **options: object) -> int:
        answer = await self.client.request(method, path, **options)  # type: ignore[arg-type]
        return answer.status_code

    async def reason(self, method: str, path: str, **options: object) -> tuple[int, str]:
        answer = await self.client.request(method, path, **options)  # type: ignore[arg-type]
        body = answer.json()
        assert set(body) == {"reason"}
        return answer.status_code, body["reason"]


def serve(scenario: Callable[[Platform], Awaitable[None]], health: Health | None = None) -> None:
    async def run() -> None:
        world, ledgers, registry = await World().start(), FakeLedgers(), CollectorRegistry()
        counter = Counter("things", "Things", registry=registry)
        app = application(world.broker, ledgers, health, registry, [counter.inc])
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
                await scenario(Platform(client, world, ledgers))
        finally:
            await server.stop()
            await world.broker.close()

    asyncio.run(run())


def test_an_offer_of_another_protocol_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Java's HttpClient makes one with each request; two warnings told of it each time."""

    async def scenario(p: Platform) -> None:
        offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": ""}
        answer = await p.client.get("/admin/v2/brokers/health", headers=offer)
        assert (answer.status_code, answer.text) == (200, "ok")

    serve(scenario)
    assert [each.getMessage() for each in caplog.records if "uvicorn" in each.name] == []


def test_the_configuration_has_the_clusters_name() -> None:
    """`pulsar-admin clusters list` asks for it, to mark this cluster."""

    async def scenario(p: Platform) -> None:
        answer = (await p.client.get("/admin/v2/brokers/configuration/runtime")).json()
        assert [answer["clusterName"]] == (await p.client.get("/admin/v2/clusters")).json()
        assert answer["broker.auto_create_topics"] == "true"
        assert answer["http.port"] == str(Config().http.port)
        changed = await p.client.post("/admin/v2/brokers/configuration/a/b")
        assert changed.status_code == 501

    serve(scenario)


def test_process_paths() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get("/admin/v2/brokers/version")).text == __version__
        assert (await p.client.get("/admin/v2/brokers/health")).text == "ok"
        metrics = await p.client.get("/metrics")
        assert "things_total 1.0" in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "things_total 2.0" in (await p.client.get("/metrics")).text
        page = (await p.client.get("/", follow_redirects=True)).text
        assert "openapi.json" in page
        assert "http" not in page.replace("/openapi", "")  # nothing from elsewhere
        paths = (await p.client.get("/openapi.json")).json()["paths"]
        assert "/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats" in paths

    serve(scenario)


def test_health_names_the_part_that_is_not_well() -> None:
    async def well() -> PartHealth:
        return WELL

    async def away() -> PartHealth:
        return PartHealth(False, "0 bookies take entries", "start bookies")

    async def scenario(p: Platform) -> None:
        answer = await p.client.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {
            "ok": False,
            "parts": [
                {"part": "metadata", "ok": True, "problem": "", "remedy": ""},
                {
                    "part": "bookies",
                    "ok": False,
                    "problem": "0 bookies take entries",
                    "remedy": "start bookies",
                },
            ],
        }
        assert await p.reason("GET", "/admin/v2/brokers/health") == (
            503,
            "bookies: 0 bookies take entries; start bookies",
        )

    health = Health()
    health.add("metadata", well)
    health.add("bookies", away)
    serve(scenario, health)


def test_lookup_has_the_fields_that_clients_need() -> None:
    async def scenario(p: Platform) -> None:
        found = (await p.client.get("/lookup/v2/topic/persistent/public/default/a")).json()
        assert set(found) == {"brokerUrl", "brokerUrlTls", "httpUrl", "nativeUrl"}

    serve(scenario)


NAME = "persistent://public/default"


def test_partitioned_topics() -> None:
    """Java's client looks whether a dead letter topic of the old name is there, and uses that."""

    async def scenario(p: Platform) -> None:
        query = {"checkAllowAutoCreation": "true"}
        assert await p.status("GET", f"{P}/f/partitions") == 404
        found = await p.client.get(f"{P}/f/partitions", params=query)
        assert found.json() == {"partitions": 0}
        assert await p.status("PUT", f"{P}/f/partitions", json=4) == 204
        assert await p.reason("PUT", f"{P}/f/partitions", json=4) == (
            409,
            f"{NAME}/f exists already",
        )
        found = await p.client.get(f"{P}/f/partitions", params=query)
        assert found.json() == {"partitions": 4}
        unused = await p.client.get(f"{P}/f-partition-3/partitions")
        assert unused.json() == {"partitions": 0}
        assert await p.status("GET", f"{P}/f-partition-4/partitions") == 404
        assert await p.status("POST", f"{P}/f/partitions", json=6) == 204
        assert (await p.reason("POST", f"{P}/f/partitions", json=2))[0] == 409
        assert (await p.client.get(f"{P}/partitioned")).json() == [f"{NAME}/f"]
        assert await p.status("DELETE", f"{P}/f/partitions") == 204
        assert (await p.client.get(f"{P}/partitioned")).json() == []
        assert (await p.reason("DELETE", f"{P}/f/partitions"))[0] == 404

    serve(scenario)


@pytest.mark.parametrize(
    "body",
    [
        b"3",
        b'"3"',
        b'{"partitions": 3}',
        b'{"partitions": 3, "properties": {}, "deleted": false}',
        b'{"partitions": 3, "properties": null}',
    ],
)
def test_partition_counts_come_in_every_form_that_clients_send(body: bytes) -> None:
    async def scenario(p: Platform) -> None:
        kind = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
        assert await p.status("PUT", f"{P}/f/partitions", content=body, headers=kind) == 204
        assert (await p.client.get(f"{P}/f/partitions")).json() == {"partitions": 3}

    serve(scenario)


def test_a_growth_that_is_cut_off_says_so_and_is_finished_when_it_is_asked_again() -> None:
    """Of a replicated topic, while a broker was away: it was 500, the topic had grown, and the
    subscriptions were never made on the new partitions."""

    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/f/partitions", json=2) == 204
        assert await p.status("PUT", f"{P}/f/subscription/s") == 204
        topics, away = p.world.broker.topics, set[str]()
        get = topics.get

        async def led_by_nobody(name: TopicName, *given: Any, **more: Any) -> Topic:
            if name.local in away:
                raise NotLeaderError(f"{name} cannot be led here: nobody leads it")
            return await get(name, *given, **more)

        topics.get = led_by_nobody  # type: ignore[method-assign]
        away.add("f-partition-0")
        status, why = await p.reason("POST", f"{P}/f/partitions", json=4)
        assert status == 503
        assert "nobody leads" in why
        assert (await p.client.get(f"{P}/f/partitions")).json() == {"partitions": 2}
        away.clear()
        away.add("f-partition-2")
        status, why = await p.reason("POST", f"{P}/f/partitions", json=4)
        assert status == 503
        assert "has 4 partitions now" in why
        assert "f-partition-2: " in why
        assert (await p.client.get(f"{P}/f-partition-3/subscriptions")).json() == ["s"]
        away.clear()
        assert await p.status("POST", f"{P}/f/partitions", json=4) == 204
        for index in range(4):
            found = await p.client.get(f"{P}/f-partition-{index}/subscriptions")
            assert found.json() == ["s"]

    serve(scenario)


def test_the_base_name_of_a_partitioned_topic_does_not_delete_its_partitions() -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=2)
        status, reason = await p.reason("DELETE", f"{P}/f?force=true")
        assert status == 412
        assert "has 2 partitions" in reason
        assert (await p.client.get(f"{P}/f/partitions")).json() == {"partitions": 2}
        assert await p.status("GET", f"{P}/f/stats") == 412

    serve(scenario)


def test_topics() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/b") == 204
        assert await p.status("PUT", f"{P}/b") == 409
        for path in (P, "/admin/v2/namespaces/public/default/topics"):
            assert (await p.client.get(path)).json() == [f"{NAME}/b"]
        assert await p.status("DELETE", f"{P}/b") == 204
        assert await p.reason("DELETE", f"{P}/b") == (404, f"topic {NAME}/b does not exist")
        await p.world.peer().produce(f"{NAME}/busy")
        assert (await p.reason("DELETE", f"{P}/busy"))[0] == 409
        assert await p.status("DELETE", f"{P}/busy?force=true") == 204

    serve(scenario)


def test_lists_of_non_persistent_topics_are_empty() -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/b")
        for path in (
            "/admin/v2/non-persistent/public/default",
            "/admin/v2/non-persistent/public/default/partitioned",
            "/admin/v2/namespaces/public/default/topics?mode=NON_PERSISTENT",
        ):
            answer = await p.client.get(path)
            assert (answer.status_code, answer.json()) == (200, [])
        assert await p.status("GET", "/admin/v2/non-persistent/public/nothing") == 404
        every = await p.client.get("/admin/v2/namespaces/public/default/topics?mode=ALL")
        assert every.json() == [f"{NAME}/b"]

    serve(scenario)


@pytest.mark.parametrize("topic", ["x%2Fy", ".", "..", "%2E%2E", "a%00b", "a%0Ab", "%C2%85"])
def test_names_that_no_topic_can_have_are_refused_as_names(topic: str) -> None:
    async def scenario(p: Platform) -> None:
        # by hand: clients take dots out of paths
        for method, path in (("PUT", f"{P}/{topic}"), ("GET", f"{P}/{topic}/stats")):
            status, body = await raw(p.client, method, path)
            assert status == 412, body
            assert "persistent://public/default/" in body["reason"]

    serve(scenario)


async def raw(client: httpx.AsyncClient, method: str, path: str) -> tuple[int, dict[str, str]]:
    """A request whose path goes out as it stands."""
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port or 80)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


def test_names_may_hold_anything_else_and_come_encoded() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/x%25y%20%C3%A9%3Fstats") == 204
        assert (await p.client.get(P)).json() == [f"{NAME}/x%y é?stats"]
        assert await p.status("GET", f"{P}/x%25y%20%C3%A9%3Fstats/stats") == 200
        topic = await p.world.broker.topics.get(parse_topic("x%y é?stats"), create=False)
        await open_durable(topic, "a/b/stats", EARLIEST, {})
        path = f"{P}/x%25y+%C3%A9%3Fstats/subscription/a%252Fb%252Fstats"  # Java's form
        assert await p.status("DELETE", path) == 204
        await open_durable(topic, "a/b", EARLIEST, {})
        path = f"{P}/x%25y%20%C3%A9%3Fstats/subscription/a%2Fb"
        assert await p.status("DELETE", path) == 204
        assert (await p.reason("PUT", f"{P}/%FF"))[0] == 400

    serve(scenario)


def test_stats_have_pulsars_fields() -> None:
    async def scenario(p: Platform) -> None:
        peer = p.world.peer()
        await peer.produce(name="p")
        await peer.subscribe()
        peer.feed(send_frame(1, 0, batch(5), messages=5))
        peer.publish(2, first=1)
        await peer.heard()
        peer.flow(5)
        await peer.heard()
        stats = (await p.client.get(f"{P}/t/stats")).json()
        assert (stats["msgInCounter"], stats["entriesInCounter"]) == (7, 3)
        assert (stats["msgOutCounter"], stats["storedEntries"]) == (5, 3)
        assert stats["totalMessages"] == 7
        assert stats["bytesInCounter"] > 0
        assert stats["backlogSize"] >= 0
        assert stats["publishers"][0]["producerName"] == "p"
        assert stats["publishers"][0]["accessMode"] == "Shared"
        found = stats["subscriptions"]["s"]
        assert (found["type"], found["unackedMessages"]) == ("Shared", 5)
        assert (found["msgBacklog"], found["entriesBacklog"]) == (7, 3), "two messages a batch"
        consumer = found["consumers"][0]
        assert (consumer["msgOutCounter"], consumer["availablePermits"]) == (5, 0)
        for field in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut"):
            assert stats[field] >= 0
        internal = (await p.client.get(f"{P}/t/internalStats")).json()
        assert internal["lastConfirmedEntry"] == "1:2"
        assert internal["cursors"]["s"]["readPosition"] == "1:0"
        assert (await p.reason("GET", f"{P}/none/stats"))[0] == 404

    serve(scenario)


def test_partitioned_stats_are_those_of_all_partitions() -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=3)
        peer = p.world.peer()
        for number in range(3):
            part = f"{NAME}/f-partition-{number}"
            await peer.produce(part, producer_id=number + 1)
            await peer.subscribe("s", topic=part, consumer_id=number + 1)
            peer.publish(number, producer_id=number + 1)
        await peer.heard()
        found = (await p.client.get(f"{P}/f/partitioned-stats")).json()
        assert found["metadata"] == {"partitions": 3}
        assert (found["msgInCounter"], len(found["publishers"])) == (3, 3)
        assert found["subscriptions"]["s"]["msgBacklog"] == 3
        assert len(found["subscriptions"]["s"]["consumers"]) == 3
        assert found["partitions"][f"{NAME}/f-partition-2"]["msgInCounter"] == 2
        short = await p.client.get(f"{P}/f/partitioned-stats?perPartition=false")
        assert short.json()["partitions"] == {}
        assert (await p.reason("GET", f"{P}/g/partitioned-stats"))[0] == 404

    serve(scenario)


def test_subscriptions() -> None:
    async def scenario(p: Platform) -> None:
        await p.world.peer().subscribe()
        assert (await p.client.get(f"{P}/t/subscriptions")).json() == ["s"]
        assert (await p.reason("DELETE", f"{P}/t/subscription/s"))[0] == 409
        assert await p.status("DELETE", f"{P}/t/subscription/s?force=true") == 204
        assert (await p.reason("DELETE", f"{P}/t/subscription/s"))[0] == 404

    serve(scenario)


def test_a_subscription_that_is_there_is_a_conflict() -> None:
    """As in Pulsar: of a partitioned topic if every partition has it."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        await p.client.put(f"{P}/parts/partitions", content=b"2")
        for path in (f"{P}/t/subscription/s", f"{P}/parts/subscription/s"):
            assert await p.status("PUT", path) == 204
            status, reason = await p.reason("PUT", path)
            assert (status, "Subscription already exists for topic" in reason) == (409, True)
        assert await p.status("DELETE", f"{P}/parts-partition-1/subscription/s") == 204
        assert await p.status("PUT", f"{P}/parts/subscription/s") == 204, "it was not on all"
        assert await p.status("PUT", f"{P}/parts/subscription/s") == 409

    serve(scenario)


def test_clusters_tenants_namespaces() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get("/admin/v2/clusters")).json() == ["standalone"]
        about = (await p.client.get("/admin/v2/clusters/standalone")).json()
        assert about["brokerServiceUrl"] == p.world.broker.service_url
        assert (await p.reason("PUT", "/admin/v2/clusters/standalone", json={}))[0] == 409
        assert (await p.reason("PUT", "/admin/v2/clusters/other", json={}))[0] == 412
        assert (await p.reason("PUT", "/admin/v2/namespaces/private/n"))[0] == 404
        assert (await p.client.get("/admin/v2/tenants")).json() == ["public"]
        about = {"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]}
        assert await p.status("PUT", "/admin/v2/tenants/private", json=about) == 204
        assert (await p.reason("PUT", "/admin/v2/tenants/private"))[0] == 409
        assert (await p.client.get("/admin/v2/tenants")).json() == ["private", "public"]
        assert (await p.client.get("/admin/v2/tenants/private")).json() == {
            "adminRoles": ["anonymous"],
            "allowedClusters": ["standalone"],
        }
        changed = {"adminRoles": ["ops", "alice"]}
        assert await p.status("POST", "/admin/v2/tenants/private", json=changed) == 204
        found = (await p.client.get("/admin/v2/tenants/private")).json()
        assert found["adminRoles"] == ["alice", "ops"]
        assert (await p.reason("POST", "/admin/v2/tenants/none", json=changed))[0] == 404
        assert await p.status("PUT", "/admin/v2/namespaces/private/n") == 204
        assert (await p.reason("PUT", "/admin/v2/namespaces/private/n"))[0] == 409
        assert (await p.client.get("/admin/v2/namespaces/private")).json() == ["private/n"]
        assert (await p.reason("GET", "/admin/v2/namespaces/none"))[0] == 404

    serve(scenario)


def test_a_namespace_is_on_this_cluster_which_scripts_say_and_ask() -> None:
    """What follows the making of a namespace in most set-ups of Pulsar's."""

    async def scenario(p: Platform) -> None:
        path = "/admin/v2/namespaces/public/default/replication"
        assert await p.status("POST", path, json=["standalone"]) == 204
        assert (await p.client.get(path)).json() == ["standalone"]
        status, words = await p.reason("POST", path, json=["standalone", "east"])
        assert (status, "knows no other" in words) == (412, True)
        for nothing in ([], None, {}, "standalone"):
            assert await p.status("POST", path, json=nothing) == 400
        for method in ("GET", "POST"):
            missing = "/admin/v2/namespaces/public/none/replication"
            assert await p.status(method, missing, json=["standalone"]) == 404

    serve(scenario)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("tenants/x", {"allowedClusters": ["east"]}, "allowedClusters"),
        ("tenants/x", {"quota": 5}, "quota"),
        ("namespaces/public/x", {"offload_threshold": 5}, "offload_threshold"),
        ("namespaces/public/x", {"replication_clusters": ["standalone", "east"]}, "replication"),
        ("namespaces/public/x", {"encryption_required": True}, "encryption_required"),
        ("persistent/public/default/x", {"color": "red"}, "color"),
        (
            "persistent/public/default/x/partitions",
            {"partitions": 2, "properties": {"a": "b"}},
            "p",
        ),
    ],
)
def test_what_a_body_asks_for_is_done_or_refused(path: str, body: object, words: str) -> None:
    async def scenario(p: Platform) -> None:
        status, reason = await p.reason("PUT", f"/admin/v2/{path}", json=body)
        assert status == 412
        assert "not served" in reason
        assert words in reason
        assert (await p.client.get("/admin/v2/tenants")).json() == ["public"]
        assert (await p.client.get("/admin/v2/namespaces/public")).json() == ["public/default"]
        assert (await p.client.get(P)).json() == []

    serve(scenario)


def test_policies_that_say_nothing_are_no_obstacle() -> None:
    async def scenario(p: Platform) -> None:
        body = {
            "auth_policies": {"namespaceAuthentication": {}, "topicAuthentication": {}},
            "replication_clusters": ["standalone"],
            "bundles": {"numBundles": 4},
            "backlog_quota_map": {},
            "offload_threshold": -1,
            "schema_compatibility_strategy": "UNDEFINED",
            "schema_auto_update_compatibility_strategy": "Full",
            "deleted": False,
            "clusterThatCanDeleteNamespace": "standalone",
            "allowed_clusters": [],
            "retention_policies": None,
            "persistence": {"bookkeeperEnsemble": 0, "bookkeeperWriteQuorum": 0},
            "subscription_expiration_time_minutes": 0,
        }
        assert await p.status("PUT", "/admin/v2/namespaces/public/x", json=body) == 204
        assert await p.status("GET", "/admin/v2/namespaces/public/x/retention") == 204

    serve(scenario)


def test_all_policies_of_a_namespace_are_shown() -> None:
    async def scenario(p: Platform) -> None:
        path = "/admin/v2/namespaces/public/shown"
        assert (await p.reason("GET", path))[0] == 404
        assert await p.status("PUT", path, json={"bundles": {"numBundles": 2}}) == 204
        nothing = {
            "auth_policies": {
                "namespace_auth": {},
                "destination_auth": {},
                "subscription_auth_roles": {},
            },
            "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
            "replication_clusters": ["standalone"],
        }
        assert (await p.client.get(path)).json() == nothing
        kept = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
        for part, body in (
            ("retention", kept), ("messageTTL", 60), ("deduplication", True),
            ("permissions/app", ["consume"]), ("engine", "ledger"),
        ):  # fmt: skip
            assert await p.status("POST", f"{path}/{part}", json=body) == 204
        found = (await p.client.get(path)).json()
        assert found.pop("auth_policies")["namespace_auth"] == {"app": ["consume"]}
        del nothing["auth_policies"]
        assert found == {
            **nothing,
            "retention_policies": kept,
            "message_ttl_in_seconds": 60,
            "deduplicationEnabled": True,
            "engine": "ledger",
        }
        await p.world.broker.control.namespaces.begin_deletion("public/shown")
        assert (await p.client.get(path)).json()["deleted"] is True

    serve(scenario)


def test_policies_that_come_with_a_namespace_are_kept() -> None:
    async def scenario(p: Platform) -> None:
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        body = {"retention_policies": nothing, "message_ttl_in_seconds": 5}
        assert await p.status("PUT", "/admin/v2/namespaces/public/x", json=body) == 204
        path = "/admin/v2/namespaces/public/x"
        assert (await p.client.get(f"{path}/retention")).json() == nothing
        assert (await p.client.get(f"{path}/messageTTL")).json() == 5
        body["retention_policies"] = {**nothing, "retentionSizeInMB": 5}
        status, reason = await p.reason("PUT", "/admin/v2/namespaces/public/y", json=body)
        assert (status, "both are 0" in reason) == (412, True)

    serve(scenario)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{P}/t/offload"),
        ("POST", f"{P}/t/offloadPolicies"),
        ("POST", f"{P}/t/subscription/s/analyzeBacklog"),
        ("GET", f"{P}/t/examinemessage"),
        ("POST", "/admin/v2/namespaces/public/default"),
        ("DELETE", "/admin/v2/namespaces/public/default/0x00000000_0xffffffff"),
        ("POST", "/admin/v2/namespaces/public/default/offloadPolicies"),
        ("GET", "/admin/v2/namespaces/public/default/persistence/bookieAffinity"),
        ("GET", "/admin/v2/schemas/public/default/t/metadata"),
        ("PUT", "/admin/v2/non-persistent/public/default/t"),
        ("GET", "/admin/v2/brokers/leaderBroker"),
        ("GET", "/admin/v3/sinks/public/default"),
        ("GET", "/admin/persistent/public/standalone/default/t/stats"),
        ("GET", "/lookup/v2/topic/non-persistent/public/default/t"),
        ("GET", "/admin/v2/namespaces/public/default/configversion"),
        ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics"),
        ("DELETE", f"{P}/t/policies"),
        ("GET", "/proxy-stats/topics"),
        ("GET", "/admin/v2/namespaces/standalone/antiAffinity/group"),
        ("POST", "/admin/v2/sinks"),
        ("GET", "/admin/v2/sources/public/default/name/status"),
        ("GET", "/admin/v2/packages/function/public/default"),
    ],
)
def test_what_pulsar_has_and_this_does_not_is_said_so(method: str, path: str) -> None:
    async def scenario(p: Platform) -> None:
        status, reason = await p.reason(method, path)
        assert status == 501
        assert reason.startswith("not served: ")

    serve(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{P}/t/colour", 404),
        ("GET", f"{P}/t/stats/more", 404),
        ("GET", "/admin/v2/colours", 404),
        ("POST", f"{P}/t/stats", 405),
        ("GET", f"{P}/t", 405),
    ],
)
def test_what_nobody_has_is_not_there(method: str, path: str, status: int) -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.reason(method, path))[0] == status

    serve(scenario)


def test_a_topic_of_another_broker_is_asked_about_there() -> None:
    async def scenario(p: Platform) -> None:
        control = p.world.broker.control
        divide(control, lambda name: True)
        answer = await p.client.get(f"{P}/a%20b/stats?x=1")
        assert answer.status_code == 307
        assert answer.headers["location"] == f"http://other:8080{P}/a%20b/stats?x=1"
        found = (await p.client.get("/lookup/v2/topic/persistent/public/default/a")).json()
        assert found["brokerUrl"] == "pulsar://other:6650"
        assert found["httpUrl"] == "http://other:8080"
        for method, path in (
            ("PUT", f"{P}/a"), ("DELETE", f"{P}/a"), ("PUT", f"{P}/a/unload"),
            ("GET", f"{P}/a/subscriptions"), ("GET", f"{P}/a/internalStats"),
            ("PUT", f"{P}/a/subscription/s"), ("DELETE", f"{P}/a/subscription/s"),
        ):  # fmt: skip
            answer = await p.client.request(method, path)
            assert answer.status_code == 307, (method, path)
            assert answer.headers["location"] == f"http://other:8080{path}"
        divide(control, lambda name: True, ELSEWHERE._replace(candidate=True))
        answer = await p.client.get(f"{P}/a/stats?x=1")
        assert answer.status_code == 307
        assert answer.headers["location"].endswith(f"{P}/a/stats?x=1&authoritative=true")
        # Clients that are sent on over HTTP do not all show there who they are.
        found = (await p.client.get("/lookup/v2/topic/persistent/public/default/a")).json()
        assert found["brokerUrl"] == "pulsar://other:6650"

    serve(scenario)


def test_the_pages_of_what_is_served_are_true() -> None:
    """docs/rest.md lists every path that is served, and every one of Pulsar's that is not."""
    page = (Path(__file__).parents[3] / "docs/rest.md").read_text()
    served, refused = page.split("## Not served")

    async def scenario(p: Platform) -> None:
        paths = (await p.client.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                assert f"| {method.upper()} | `{path}` |" in served
        rows = re.findall(r"^\| (?:GET|PUT|POST|DELETE) \|", served, re.MULTILINE)
        assert len(rows) == sum(map(len, paths.values()))
        for each in WHOLE:
            assert f"`{each.path}`" in refused
        for part in (*NAMESPACE_PARTS, *TOPIC_PARTS):
            assert f"`{part}`" in refused

    serve(scenario)


def test_storage() -> None:
    async def scenario(p: Platform) -> None:
        listed = (await p.client.get("/magnetar/v1/ledgers?after=1&limit=1")).json()
        assert [each["ledgerId"] for each in listed] == [2]
        ledger = (await p.client.get("/magnetar/v1/ledgers/2")).json()
        assert ledger["fragments"] == [{"firstEntryId": 0, "bookies": ["b:1"]}]
        entries = (await p.client.get("/magnetar/v1/ledgers/2/entries?first=8&count=5")).json()
        assert [each["entryId"] for each in entries] == [8, 9]
        assert (await p.client.get("/magnetar/v1/bookies")).json()[0]["bookieId"] == "b:1"
        assert (await p.reason("GET", "/magnetar/v1/ledgers/9"))[0] == 404
        p.ledgers.unavailable = True
        assert await p.reason("GET", "/magnetar/v1/ledgers/2/entries") == (
            503,
            "bookie b:1 does not answer",
        )

    serve(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/nothing/here", None, 404, "/docs"),
        ("POST", "/metrics", None, 405, "Method Not Allowed"),
        ("GET", "/magnetar/v1/ledgers/two", None, 400, "ledger_id"),
        ("GET", "/magnetar/v1/ledgers/-1", None, 400, "greater than or equal to 0"),
        ("GET", "/magnetar/v1/ledgers/1/entries?count=1001", None, 400, "count"),
        ("PUT", f"{P}/f/partitions", b"0", 400, "at least 1"),
        ("PUT", f"{P}/f/partitions", b"true", 400, "whole number"),
        ("PUT", f"{P}/f/partitions", b"many", 400, "body"),
        ("PUT", f"{P}/f/partitions", b"", 400, "whole number"),
        ("PUT", f"{P}/f/partitions", b"1000000", 409, "between 1 and"),
        ("PUT", "/admin/v2/tenants/x", b"[]", 400, "JSON object"),
        ("PUT", "/admin/v2/tenants/x", b'{"adminRoles":5}', 400, "adminRoles is a list"),
        (
            "PUT",
            "/admin/v2/tenants/x",
            b'{"allowedClusters":"a"}',
            400,
            "allowedClusters is a list",
        ),
        ("PUT", "/admin/v2/namespaces/public/x", b'{"replication_clusters":true}', 400, "a list"),
        ("PUT", "/admin/v2/namespaces/public/x", b'{"allowed_clusters":{"a":1}}', 400, "a list"),
        ("PUT", "/admin/v2/tenants/x", b"[" * 60_000, 400, "nested deeper than 64"),
        ("PUT", "/admin/v2/tenants/x", b"[" * 65 + b"]" * 65, 400, "nested deeper than 64"),
        ("PUT", "/admin/v2/tenants/x", b'{"a":' * 10_000, 400, "nested deeper than 64"),
        ("PUT", f"{P}/f/partitions", b"4" * 70_000, 413, "too large"),
        ("PUT", "/admin/v2/tenants/a%20b", None, 412, "tenant"),
    ],
)
def test_bad_requests_have_a_reason(
    method: str, path: str, body: bytes | None, status: int, words: str
) -> None:
    async def scenario(p: Platform) -> None:
        got, reason = await p.reason(method, path, content=body)
        assert got == status
        assert words in reason

    serve(scenario)


class Impatient(DeadlineProtocol):
    request_timeout_s = 0.4


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /metrics HTT",
        b"PUT /admin/v2/tenants/x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_never_ends_is_ended(sent: bytes) -> None:
    async def run() -> None:
        bound = bind("127.0.0.1", 0, "http.port")
        app = api.create(CollectorRegistry())
        server = HttpServer(app, bound, Impatient)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(60):
            await reader.read()  # until the server closes
        writer.close()
        await server.stop()

    asyncio.run(run())


async def send_for_ever(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"content-length: 10000000000\r\n\r\n", b"4" * 65536),
        (b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"4" * 65536 + b"\r\n"),
    ],
    ids=["its length is told", "in chunks"],
)
def test_a_body_that_is_too_large_is_not_read_to_its_end(head: bytes, piece: bytes) -> None:
    async def run() -> None:
        app = api.create(CollectorRegistry())
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /admin/v2/tenants/x HTTP/1.1\r\nhost: x\r\n" + head + piece + piece)
        async with asyncio.timeout(60):
            answer = await reader.read()  # until the server has said its last
        assert b" 413 " in answer
        assert b"too large" in answer
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionError):
                await send_for_ever(writer, piece)
        await server.stop()

    asyncio.run(run())


def test_a_small_body_in_chunks_is_taken() -> None:
    async def scenario(p: Platform) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"3"
            yield b""

        path = f"{P}/chunked/partitions"
        assert (await p.client.put(path, content=pieces())).status_code == 204

    serve(scenario)


def test_connections_past_the_bound_are_closed_as_they_come() -> None:
    async def run() -> None:
        app = api.create(CollectorRegistry())
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"), connections_max=3)
        await server.start()
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            held.pop()[1].close()
            held.pop()[1].close()
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                url = f"http://127.0.0.1:{server.port}/metrics"
                while (await client.get(url)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        held[0][1].close()
        await server.stop()

    asyncio.run(run())


def test_a_slow_answer_is_waited_for() -> None:
    async def run() -> None:
        app = api.create(CollectorRegistry())

        @app.get("/slow")
        async def slow() -> str:
            await asyncio.sleep(0.9)
            return "there"

        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"), Impatient)
        await server.start()
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            url = f"http://127.0.0.1:{server.port}"
            assert (await client.get(f"{url}/slow")).json() == "there"
            await asyncio.sleep(0.8)  # keep-alive is not a request that never ends
            assert (await client.get(f"{url}/slow")).json() == "there"
        await server.stop()

    asyncio.run(run())


class Unread(DeadlineProtocol):
    unread_timeout_s = 0.3


LONG: Final = 8 << 20
"""More than the kernel takes for a client that does not read."""


def long_answers() -> FastAPI:
    app = api.create(CollectorRegistry())

    @app.get("/long")
    async def long() -> PlainTextResponse:
        return PlainTextResponse("x" * LONG)

    return app


async def ask_and_read_nothing(
    port: int, head: bytes = b"", receive_bytes: int = 4096
) -> socket.socket:
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    asking.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(asking, ("127.0.0.1", port))
    await loop.sock_sendall(asking, b"GET /long HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
    return asking


@pytest.mark.parametrize("head", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
def test_an_answer_that_is_never_read_is_dropped(head: bytes) -> None:
    """Else who asks and does not read has its connection, and the answer, for ever."""

    async def run() -> None:
        server = HttpServer(long_answers(), bind("127.0.0.1", 0, "http.port"), Unread)
        await server.start()
        state = server._server.server_state
        asking = await ask_and_read_nothing(server.port, head)
        async with asyncio.timeout(60):
            while not state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        asking.close()
        await server.stop()

    asyncio.run(run())


def test_a_client_that_reads_slowly_gets_all_of_its_answers() -> None:
    async def run() -> None:
        server = HttpServer(long_answers(), bind("127.0.0.1", 0, "http.port"), Unread)
        await server.start()
        asking = await ask_and_read_nothing(server.port, receive_bytes=128 << 10)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(asking, b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        found = 0
        async with asyncio.timeout(60):
            while found < 2 * LONG:
                piece = await loop.sock_recv(asking, 1 << 20)
                assert piece, "it was disconnected"
                found += len(piece)
                await asyncio.sleep(0.002)
        asking.close()
        await server.stop()

    asyncio.run(run())


def test_of_many_answers_that_are_not_read_the_first_are_dropped() -> None:
    class Bounded(DeadlineProtocol):
        unread_bytes_max = 3 * LONG

    async def run() -> None:
        server = HttpServer(long_answers(), bind("127.0.0.1", 0, "http.port"), Bounded)
        await server.start()
        state = server._server.server_state
        held = [await ask_and_read_nothing(server.port) for _ in range(8)]
        async with asyncio.timeout(60):
            url = f"http://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=url) as client:
                assert len((await client.get("/long")).content) == LONG
            while len(state.connections) > 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for each in held:
            each.close()
        await server.stop()

    asyncio.run(run())


def test_what_nobody_foresaw_has_a_reason_too() -> None:
    async def scenario(p: Platform) -> None:
        app = application(p.world.broker, FakeLedgers())

        @app.get("/broken")
        async def broken() -> None:
            raise KeyError("x")

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get("/broken")
        app.router.routes.pop()  # other tests have the same application
        assert answer.status_code == 500
        assert "internal error" in answer.json()["reason"]

    serve(scenario)


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=rf"http\.port = {port}: another process"):
            bind("127.0.0.1", port, "http.port")


def test_an_idle_server_does_not_wake_up() -> None:
    async def run() -> None:
        server = HttpServer(api.create(CollectorRegistry()), bind("127.0.0.1", 0, "http.port"))
        await server.start()
        before = len(asyncio.all_tasks())
        loop = asyncio.get_running_loop()
        timers = len(loop._scheduled)  # type: ignore[attr-defined]
        await server.stop()
        assert before == 1
        assert timers == 0

    asyncio.run(run())


def test_what_is_not_answered_when_the_server_ends_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata store is out of reach, say."""
    monkeypatch.setattr("magnetar.admin.server.SHUTDOWN_S", 0)

    async def run() -> httpx.Response:
        app = FastAPI()

        @app.get("/waits")
        async def waits() -> None:
            await asyncio.Event().wait()

        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            asking = asyncio.ensure_future(client.get("/waits"))
            await asyncio.sleep(0.2)
            await server.stop()
            return await asking

    answer = asyncio.run(run())
    assert answer.status_code == 503
    assert answer.json() == {"reason": "this server ends; ask again"}
    assert "Exception in ASGI" not in caplog.text


def test_a_connection_that_ends_leaves_nothing_to_the_collector() -> None:
    async def run() -> None:
        app = api.create(CollectorRegistry())
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()

        async def use() -> None:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
                assert (await client.get("/admin/v2/nothing")).status_code == 404
            await asyncio.sleep(0.05)

        await use()
        with in_cycles() as left:
            await use()
        assert [each for each in ours(left) if "Protocol" in each or "Linger" in each] == []
        await server.stop()

    asyncio.run(run())
