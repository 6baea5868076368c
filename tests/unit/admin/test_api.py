"""REST over a real socket, against a platform of dictionaries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from magnetar.admin import api
from magnetar.admin.server import DeadlineProtocol, HttpServer
from magnetar.env.health import WELL, Health, PartHealth
from magnetar.env.listening import bind
from magnetar.model.errors import StartError
from tests.unit.admin.fakes import FakeLedgers, FakeTopics

P = "/admin/v2/persistent/public/default"


class Platform:
    def __init__(self, client: httpx.AsyncClient, topics: FakeTopics, ledgers: FakeLedgers) -> None:
        self.client, self.topics, self.ledgers = client, topics, ledgers

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
        topics, ledgers, registry = FakeTopics(), FakeLedgers(), CollectorRegistry()
        counter = Counter("things", "Things", registry=registry)
        app = api.create(registry, topics, ledgers, [counter.inc], health)
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                await scenario(Platform(client, topics, ledgers))
        finally:
            await server.stop()

    asyncio.run(run())


def test_process_paths() -> None:
    async def scenario(p: Platform) -> None:
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


def test_partitioned_topics() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get(f"{P}/f/partitions")).json() == {"partitions": 0}
        assert await p.status("PUT", f"{P}/f/partitions", json=4) == 204
        assert await p.reason("PUT", f"{P}/f/partitions", json=4) == (
            409,
            "persistent://public/default/f exists already",
        )
        query = {"checkAllowAutoCreation": "true"}
        found = await p.client.get(f"{P}/f/partitions", params=query)
        assert found.json() == {"partitions": 4}
        assert p.topics.asked_to_create == ["persistent://public/default/f"]
        assert await p.status("POST", f"{P}/f/partitions", json=6) == 204
        assert (await p.reason("POST", f"{P}/f/partitions", json=2))[0] == 409
        assert (await p.client.get(f"{P}/partitioned")).json() == ["persistent://public/default/f"]
        assert await p.status("DELETE", f"{P}/f/partitions") == 204
        assert p.topics.partitioned == {}

    serve(scenario)


def test_topics() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get(P)).json() == ["persistent://public/default/a"]
        assert await p.status("PUT", f"{P}/b") == 204
        assert await p.status("PUT", f"{P}/b") == 409
        listed = (await p.client.get("/admin/v2/namespaces/public/default/topics")).json()
        assert listed == ["persistent://public/default/a", "persistent://public/default/b"]
        assert await p.status("DELETE", f"{P}/b") == 204
        assert await p.reason("DELETE", f"{P}/b") == (
            404,
            "there is no topic persistent://public/default/b",
        )
        assert (await p.reason("DELETE", f"{P}/busy"))[0] == 409
        assert await p.status("DELETE", f"{P}/busy?force=true") == 204

    serve(scenario)


def test_topic_names_may_hold_slashes_and_escapes() -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/x%2Fy%20z") == 204
        assert "persistent://public/default/x/y z" in p.topics.plain
        assert await p.status("GET", f"{P}/x%2Fy%20z/stats") == 200

    serve(scenario)


def test_stats_are_in_camel_case() -> None:
    async def scenario(p: Platform) -> None:
        stats = (await p.client.get(f"{P}/a/stats")).json()
        assert stats["entriesInCounter"] == 8
        assert stats["subscriptions"]["s"]["markDeletePosition"] == "1:4"
        internal = (await p.client.get(f"{P}/a/internalStats")).json()
        assert internal["lastConfirmedEntry"] == "1:7"
        assert (await p.reason("GET", f"{P}/none/stats"))[0] == 404

    serve(scenario)


def test_subscriptions() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get(f"{P}/a/subscriptions")).json() == ["s"]
        assert await p.status("DELETE", f"{P}/a/subscription/s") == 204
        assert (await p.reason("DELETE", f"{P}/a/subscription/s"))[0] == 404

    serve(scenario)


def test_clusters_tenants_namespaces() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.client.get("/admin/v2/clusters")).json() == ["standalone"]
        for _ in range(2):
            assert await p.status("PUT", "/admin/v2/clusters/standalone", json={}) == 204
        assert (await p.reason("PUT", "/admin/v2/clusters/other", json={}))[0] == 412
        assert await p.status("PUT", "/admin/v2/tenants/private", json={"x": 1}) == 204
        assert (await p.client.get("/admin/v2/tenants")).json() == ["public", "private"]
        assert await p.status("PUT", "/admin/v2/namespaces/private/n") == 204
        assert (await p.client.get("/admin/v2/namespaces/private")).json() == ["private/n"]
        assert (await p.reason("GET", "/admin/v2/namespaces/none"))[0] == 404

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
        ("PUT", f"{P}/f/partitions", b"0", 400, "greater than or equal to 1"),
        ("PUT", f"{P}/f/partitions", b"many", 400, "body"),
        ("PUT", f"{P}/f/partitions", b"", 400, "required"),
        ("PUT", f"{P}/f/partitions", b"4" * 70_000, 413, "too large"),
        ("PUT", "/admin/v2/tenants/a%20b", None, 400, "tenant"),
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
        app = api.create(CollectorRegistry(), FakeTopics())
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
        app = api.create(CollectorRegistry(), FakeTopics())
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
        app = api.create(CollectorRegistry(), FakeTopics())
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
        app = api.create(CollectorRegistry(), FakeTopics())

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


def test_what_nobody_foresaw_has_a_reason_too() -> None:
    async def scenario(p: Platform) -> None:
        p.topics.subscription_names = None  # type: ignore[assignment]
        transport = httpx.ASGITransport(
            api.create(CollectorRegistry(), p.topics), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.get(f"{P}/a/subscriptions")
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
