"""REST where clients must show who they are, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from magnetar.admin.guard import Guard
from magnetar.admin.needs import NeededLevel, OfTopics, need
from magnetar.admin.paths import EncodedPaths
from magnetar.admin.server import HttpServer
from magnetar.cluster.security.permissions import Action
from magnetar.config import SecurityConfig
from magnetar.env.health import Health, PartHealth
from magnetar.env.network.listening import bind
from tests.unit.admin.fakes import FakeLedgers, application
from tests.unit.cluster.security.files import token
from tests.unit.protocols.pulsar.test_authentication import Secured

NS = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"


def serve(
    directory: Path,
    scenario: Callable[[httpx.AsyncClient], Awaitable[None]],
    health: Health | None = None,
    **opened: bool,
) -> None:
    async def run() -> None:
        world = await Secured(directory).start()
        access = world.broker.access
        assert access is not None
        app = EncodedPaths(
            Guard(
                application(world.broker, FakeLedgers(), health), access, SecurityConfig(**opened)
            )
        )
        server = HttpServer(app, bind("127.0.0.1", 0, "http.port"))  # type: ignore[arg-type]
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
                await scenario(client)
        finally:
            await server.stop()
            await world.broker.close()

    asyncio.run(run())


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role)}"}


def test_who_shows_nothing_sound_is_401(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for headers in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": f"Bearer {token('root', bytes(32))}"},
            {"Authorization": "Basic YWxpY2U6d3Jvbmc="},
            {"Authorization": "Negotiate x"},
        ):
            for path in (f"{TOPIC}/stats", "/metrics", "/health", "/none"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401, path
                assert "Bearer" in answer.headers["www-authenticate"]
                assert set(answer.json()) == {"reason"}
        twice = [("Authorization", "Bearer x"), ("Authorization", f"Bearer {token('root')}")]
        assert (await client.get("/metrics", headers=twice)).status_code == 401
        assert (await client.get("/docs")).status_code == 200
        assert (await client.get("/openapi.json")).status_code == 200

    serve(tmp_path, scenario)


def test_a_role_may_do_what_it_is_permitted_and_is_told_else(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        root, alice = bearer("root"), bearer("alice")

        async def status(method: str, path: str, headers: dict[str, str], **body: object) -> int:
            return (await client.request(method, path, headers=headers, **body)).status_code  # type: ignore[arg-type]

        assert await status("PUT", TOPIC, root) == 204
        answer = await client.get(f"{TOPIC}/stats", headers=alice)
        assert answer.status_code == 403
        assert "alice" in answer.json()["reason"]
        grant = f"{NS}/permissions/alice"
        assert await status("POST", grant, alice, json=["consume"]) == 403
        assert await status("POST", grant, root, json=["consume"]) == 204
        assert (await client.get(f"{NS}/permissions", headers=root)).json() == {
            "alice": ["consume"]
        }
        assert await status("GET", f"{TOPIC}/stats", alice) == 200
        assert await status("PUT", f"{TOPIC}/subscription/s", alice) == 204
        assert await status("DELETE", TOPIC, alice) == 403
        assert await status("GET", "/magnetar/v1/ledgers", alice) == 403
        assert await status("GET", "/metrics", alice) == 200
        assert await status("POST", grant, root, json=["everything"]) == 412
        assert await status("DELETE", grant, root) == 204
        assert await status("GET", f"{TOPIC}/stats", alice) == 403
        assert await status("GET", f"{NS.replace('default', 'none')}/topics", alice) == 404

        about = {"adminRoles": ["alice"]}
        assert await status("POST", "/admin/v2/tenants/public", alice, json=about) == 403
        assert await status("POST", "/admin/v2/tenants/public", root, json=about) == 204
        assert await status("DELETE", TOPIC, alice, params={"force": "true"}) == 204
        assert await status("GET", "/admin/v2/tenants", alice) == 403

    serve(tmp_path, scenario)


def test_permissions_of_one_topic_come_besides_its_namespace(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        root, bob = bearer("root"), bearer("bob")
        path = f"{TOPIC}/permissions"
        await client.put(TOPIC, headers=root)
        await client.post(f"{NS}/permissions/alice", headers=root, json=["produce"])
        answer = await client.post(f"{path}/bob", headers=root, json=["consume"])
        assert answer.status_code == 204
        found = (await client.get(path, headers=root)).json()
        assert found == {"alice": ["produce"], "bob": ["consume"]}
        assert (await client.get(f"{TOPIC}/stats", headers=bob)).status_code == 200
        assert (await client.get(f"{TOPIC}x/stats", headers=bob)).status_code == 403
        await client.delete(f"{path}/bob", headers=root)
        assert (await client.get(f"{TOPIC}/stats", headers=bob)).status_code == 403

    serve(tmp_path, scenario)


def test_metrics_and_health_may_be_opened(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for path in ("/metrics", "/health", "/admin/v2/brokers/health"):
            assert (await client.get(path)).status_code in (200, 503)
        assert (await client.get("/admin/v2/clusters")).status_code == 401

    serve(tmp_path, scenario, open_metrics=True, open_health=True)


@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_wrong_is_told_to_super_users(tmp_path: Path, is_open: bool) -> None:
    """It names topics, which any role, and probes without one, would learn from it."""
    health = Health()

    async def check() -> PartHealth:
        return PartHealth(False, "persistent://a/b/secret is not stored", "see /data/secret")

    health.add("topics", check)

    async def scenario(client: httpx.AsyncClient) -> None:
        others = [bearer("alice")] + is_open * [{}, {"Authorization": "Bearer x"}]
        for path in ("/health", "/admin/v2/brokers/health"):
            told = await client.get(path, headers=bearer("root"))
            assert (told.status_code, "a/b/secret" in told.text) == (503, True)
            for headers in others:
                hidden = await client.get(path, headers=headers)
                assert (hidden.status_code, "secret" in hidden.text) == (503, False)
                assert "topics" in hidden.text
        if not is_open:
            assert (await client.get("/health")).status_code == 401

    serve(tmp_path, scenario, health, open_health=is_open)


def test_a_refused_request_is_answered_before_its_body_is_read(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.put(TOPIC, content=b"x" * 60_000)
        assert answer.status_code == 401

    serve(tmp_path, scenario)


def test_what_changes_something_is_for_no_more_than_its_users(tmp_path: Path) -> None:
    """Every path that is served, by its description."""
    open_to_read = (
        NeededLevel.EVERYBODY,
        NeededLevel.METRICS,
        NeededLevel.HEALTH,
        NeededLevel.EVERY_ROLE,
    )

    def check(method: str, path: str) -> None:
        for name, value in (("{tenant}", "a"), ("{namespace}", "b"), ("{topic}", "c")):
            path = path.replace(name, value)
        found = need(method, path.replace("{", "").replace("}", ""))
        if found in open_to_read:
            assert method == "GET", path
        elif isinstance(found, OfTopics) and found.action is Action.LOOKUP:
            assert method == "GET" or "/schemas/" in path, path

    async def scenario(client: httpx.AsyncClient) -> None:
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert len(paths) > 50
        for path, methods in paths.items():
            for method in methods:
                check(method.upper(), path)

    serve(tmp_path, scenario)


def test_what_kafka_keeps_of_all_tenants_is_not_one_tenants(tmp_path: Path) -> None:
    """Its namespace lies in ``public``: whose admins could have read, moved and deleted what other
    tenants' groups have committed."""

    async def scenario(client: httpx.AsyncClient) -> None:
        root, alice = bearer("root"), bearer("alice")
        about = {"adminRoles": ["alice"]}
        await client.post("/admin/v2/tenants/public", headers=root, json=about)
        kept = "/admin/v2/namespaces/public/kafka-groups"
        same = "/admin/v2/namespaces/public/kafka%2Dgroups"
        mine = {"auth_policies": {"namespace_auth": {"alice": ["produce"]}}}
        for path in (kept, same):
            assert (await client.put(path, headers=alice, json=mine)).status_code == 403
        assert (await client.put(kept, headers=root)).status_code == 204
        topic = "/admin/v2/persistent/public/kafka-groups/offsets-0"
        assert (await client.put(topic, headers=root)).status_code == 204
        for method, path in (
            ("POST", f"{kept}/permissions/alice"),
            ("POST", f"{same}/permissions/alice"),
            ("POST", f"{topic}/permissions/alice"),
            ("PUT", f"{kept}/unload"),
            ("GET", f"{kept}/topics"),
            ("GET", f"{topic}/stats"),
            ("DELETE", f"{topic}/subscription/offsets"),
            ("DELETE", topic),
        ):
            body = ["consume"] if method == "POST" else None
            for sent in (method, "HEAD") if method == "GET" else (method,):
                answer = await client.request(sent, path, headers=alice, json=body)
                assert answer.status_code == 403, (sent, path)
        # Who is to look is told so by a super-user.
        grant = f"{kept}/permissions/alice"
        assert (await client.post(grant, headers=root, json=["consume"])).status_code == 204
        assert (await client.get(f"{topic}/stats", headers=alice)).status_code == 200
        assert (await client.delete(topic, headers=alice)).status_code == 403

    serve(tmp_path, scenario)


def test_the_address_of_a_client_is_its_connections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not what it says: the log of who was refused would name somebody else."""

    async def scenario(client: httpx.AsyncClient) -> None:
        said = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
        assert (await client.get("/metrics", headers=said)).status_code == 401

    serve(tmp_path, scenario)
    told = capsys.readouterr()
    assert "192.0.2.7" not in told.out + told.err
    assert "request refused" in told.out + told.err
