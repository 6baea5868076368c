"""Every path of REST, for each kind of client: who is let through, and who is not.

The table says of each path and method who may. A path that is added is not in it, and fails here
until somebody has said whose it is.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi import FastAPI

from magnetar.admin.needs import NeededLevel, need
from magnetar.admin.routes import bookie_api
from tests.unit.admin.test_guard import bearer, serve
from tests.unit.cluster.security.files import token

ANYBODY: Final = frozenset({"nothing", "nobody", "reader", "writer", "boss", "root"})
ANY_ROLE: Final = ANYBODY - {"nothing"}
EITHER: Final = ANY_ROLE - {"nobody"}
"""Who may produce or consume, and who administers."""
CONSUMES, PRODUCES = EITHER - {"writer"}, EITHER - {"reader"}
LISTS: Final = CONSUMES
"""``writer`` may produce to one topic, and sees no others."""
ADMINS: Final = frozenset({"boss", "root"})
SUPER: Final = frozenset({"root"})

TENANT, CLUSTER, BROKERS = "/admin/v2/tenants", "/admin/v2/clusters", "/admin/v2/brokers"
SPACE, OURS = "/admin/v2/namespaces/{tenant}/{namespace}", "/magnetar/v1"
LIST, TOPIC = "persistent/{tenant}/{namespace}", "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
SCHEMA: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
SUBSCRIPTION: Final = TOPIC + "/subscription/{subscription}"
TABLE: Final[Mapping[str, frozenset[str]]] = {
    "GET /": ANYBODY,
    "GET /docs": ANYBODY,
    "GET /openapi.json": ANYBODY,
    "GET /metrics": ANY_ROLE,
    "GET /health": ANY_ROLE,
    f"GET {BROKERS}/health": ANY_ROLE,
    f"GET {CLUSTER}": ANY_ROLE,
    f"GET {CLUSTER}/{{cluster}}": ANY_ROLE,
    f"PUT {CLUSTER}/{{cluster}}": SUPER,
    f"GET {TENANT}": SUPER,
    f"GET {TENANT}/{{tenant}}": ADMINS,
    f"PUT {TENANT}/{{tenant}}": SUPER,
    f"POST {TENANT}/{{tenant}}": SUPER,
    f"DELETE {TENANT}/{{tenant}}": SUPER,
    **{f"GET {BROKERS}{each}": SUPER for each in ("", "/version", "/configuration/runtime")},
    f"GET {BROKERS}/backlog-quota-check": SUPER,
    f"GET {BROKERS}/{{cluster}}": SUPER,
    f"GET {BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces": SUPER,
    **{f"GET {OURS}/{each}": SUPER for each in ("brokers", "ledgers", "bookies")},
    f"GET {OURS}/ledgers/{{ledger_id}}": SUPER,
    f"GET {OURS}/ledgers/{{ledger_id}}/entries": SUPER,
    f"PUT {OURS}/brokers/{{broker}}/drain": SUPER,
    f"PUT {OURS}/brokers/{{broker}}/undrain": SUPER,
    f"GET {OURS}/namespaces/{{tenant}}/{{namespace}}/bundles": ADMINS,
    f"GET {OURS}/read-only/{{tenant}}/{{namespace}}/{{topic}}/subscriptions": SUPER,
    "GET /admin/v2/namespaces/{tenant}": ADMINS,
    f"GET {SPACE}/topics": LISTS,
    f"GET /admin/v2/{LIST}": LISTS,
    f"GET /admin/v2/{LIST}/partitioned": LISTS,
    f"GET /admin/v2/non-{LIST}": LISTS,
    f"GET /admin/v2/non-{LIST}/partitioned": LISTS,
    f"GET /lookup/v2/topic/{LIST}/{{topic}}": EITHER,
    **{
        f"GET {TOPIC}/{each}": EITHER
        for each in (
            "stats", "partitioned-stats", "internalStats", "subscriptions", "partitions",
            "compaction", "lastMessageId", "messageid/{time_ms}",
        )
    },
    f"GET {TOPIC}/ledger/{{ledger_id}}/entry/{{entry_id}}": CONSUMES,
    f"GET {SUBSCRIPTION}/position/{{number}}": CONSUMES,
    f"PUT {SUBSCRIPTION}": CONSUMES,
    f"DELETE {SUBSCRIPTION}": CONSUMES,
    **{
        f"POST {SUBSCRIPTION}/{each}": CONSUMES
        for each in (
            "resetcursor", "resetcursor/{time_ms}", "skip/{count}", "skip_all",
            "expireMessages/{seconds}",
        )
    },
    f"POST {TOPIC}/all_subscription/expireMessages/{{seconds}}": CONSUMES,
    f"PUT {TOPIC}/backlogSize": CONSUMES,
    f"GET {SCHEMA}/schema": EITHER,
    f"GET {SCHEMA}/schema/{{version}}": EITHER,
    f"GET {SCHEMA}/schemas": EITHER,
    f"POST {SCHEMA}/compatibility": EITHER,
    f"POST {SCHEMA}/version": EITHER,
    f"POST {SCHEMA}/schema": PRODUCES,
    f"DELETE {SCHEMA}/schema": ADMINS,
    f"PUT {TOPIC}": ADMINS,
    f"DELETE {TOPIC}": ADMINS,
    **{f"{each} {TOPIC}/partitions": ADMINS for each in ("PUT", "POST", "DELETE")},
    f"PUT {TOPIC}/unload": ADMINS,
    f"PUT {TOPIC}/compaction": ADMINS,
    f"POST {TOPIC}/terminate": ADMINS,
    f"POST {TOPIC}/terminate/partitions": ADMINS,
    **{f"{each} {SPACE}": ADMINS for each in ("GET", "PUT", "DELETE")},
    f"GET {SPACE}/bundles": ADMINS,
    f"PUT {SPACE}/unload": ADMINS,
    f"PUT {SPACE}/{{bundle}}/unload": ADMINS,
    f"PUT {SPACE}/{{bundle}}/split": ADMINS,
    **{
        f"{method} {where}/permissions{role}": ADMINS
        for where in (SPACE, TOPIC)
        for method, role in (("GET", ""), ("POST", "/{role}"), ("DELETE", "/{role}"))
    },
}  # fmt: skip
POLICIES: Final[Mapping[str, str]] = {
    SPACE: (
        "retention messageTTL persistence subscriptionExpirationTime compactionThreshold "
        "delayedDelivery autoTopicCreation autoSubscriptionCreation deduplication readOnlyBrokers "
        "publishRate dispatchRate subscriptionDispatchRate subscribeRate "
        "maxProducersPerTopic maxConsumersPerTopic maxConsumersPerSubscription "
        "maxSubscriptionsPerTopic maxTopicsPerNamespace maxUnackedMessagesPerConsumer "
        "maxUnackedMessagesPerSubscription "
        "engine replication schemaCompatibilityStrategy schemaValidationEnforced "
        "isAllowAutoUpdateSchema backlogQuota backlogQuotaMap"
    ),
    TOPIC: (
        "retention messageTTL persistence compactionThreshold delayedDelivery "
        "autoSubscriptionCreation deduplicationEnabled readOnlyBrokers engine "
        "publishRate dispatchRate subscriptionDispatchRate subscribeRate "
        "maxProducers maxConsumers maxConsumersPerSubscription maxSubscriptionsPerTopic "
        "maxUnackedMessagesOnConsumer maxUnackedMessagesOnSubscription maxMessageSize "
        "schemaCompatibilityStrategy schemaValidationEnforced backlogQuota backlogQuotaMap "
        "{subscription}/dispatchRate subscription/{subscription}/dispatchRate"
    ),
}
"""Whatever is done with them is the admins'."""
VALUES: Final[Mapping[str, str]] = {
    "tenant": "acme",
    "namespace": "own",
    "topic": "t",
    "subscription": "s",
    "cluster": "none",
    "broker": "none",
    "bundle": "0x00000000_0x10000000",
    "role": "x",
    "ledger_id": "9",
    "entry_id": "0",
}
NUMBER: Final = "1"
"""Of what is left."""


def who_may(method: str, path: str) -> frozenset[str]:
    """Raises ``KeyError`` for what nobody has said anything of."""
    for where, parts in POLICIES.items():
        if path.removeprefix(where + "/") in parts.split():
            return ADMINS
    return TABLE[f"{method} {path}"]


def filled(path: str) -> str:
    for name, value in VALUES.items():
        path = path.replace(f"{{{name}}}", value)
    return "/".join(NUMBER if part.startswith("{") else part for part in path.split("/"))


def unsigned(role: str, algorithm: str) -> str:
    """A token that says it needs no signature."""
    parts = ({"alg": algorithm, "typ": "JWT"}, {"sub": role})
    made = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*made, ""])


SHOWN: Final[Mapping[str, Mapping[str, str]]] = {
    "nothing": {},
    **{role: bearer(role) for role in ("nobody", "reader", "writer", "boss", "root")},
}
UNSOUND: Final = {
    "expired": token("root", exp=1),
    "of another key": token("root", bytes(32)),
    **{f"alg {each!r}": unsigned("root", each) for each in ("none", "None", "NONE", "", "RS256")},
}


def served(description: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Methods and paths. The pages are in no description."""
    yield from (("GET", each) for each in ("/", "/docs", "/openapi.json"))
    for path, methods in description["paths"].items():
        yield from ((method.upper(), path) for method in methods)


async def prepare(client: httpx.AsyncClient) -> None:
    topic, space = "/admin/v2/persistent/acme/own/t", "/admin/v2/namespaces/acme/own"
    for method, path, body in (
        ("PUT", "/admin/v2/tenants/acme", {"adminRoles": ["boss"]}),
        ("PUT", space, None),
        ("PUT", topic, None),
        ("POST", f"{space}/permissions/reader", ["consume"]),
        ("POST", f"{topic}/permissions/writer", ["produce"]),
    ):
        answer = await client.request(method, path, json=body, headers=SHOWN["root"])
        assert answer.status_code == 204, (path, answer.text)


def test_each_path_lets_through_who_may_and_nobody_else(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await prepare(client)
        paths = list(served((await client.get("/openapi.json")).json()))
        assert len(paths) > 150
        seen = {f"{method} {path}" for method, path in paths}
        assert seen >= TABLE.keys(), "what the table says is served"
        refused: dict[str, int] = {}

        async def check(method: str, path: str, who: str, may: bool) -> None:
            answer = await client.request(method, filled(path), headers=SHOWN[who])
            if may:
                assert answer.status_code not in (401, 403), (method, path, who, answer.text)
            else:
                wanted = 401 if who == "nothing" else 403
                assert answer.status_code == wanted, (method, path, who, answer.text)
                refused[who] = refused.get(who, 0) + 1

        for method, path in paths:
            for who in SHOWN:
                may = who in who_may(method, path)
                # What changes something is not carried out: only who is refused is sent it.
                if not may or method == "GET":
                    await check(method, path, who, may)
                if method == "GET" and not may and who == "reader":
                    await check("HEAD", path, who, may)
        assert min(refused.values()) > 10, refused
        stats = await client.get("/admin/v2/persistent/acme/own/t/stats", headers=SHOWN["root"])
        assert stats.json()["subscriptions"] == {}, "nothing has been changed"

    serve(tmp_path, scenario)


def test_a_token_that_is_not_sound_opens_nothing(tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        paths = list(served((await client.get("/openapi.json")).json()))
        guarded = [each for each in paths if who_may(*each) is not ANYBODY]
        for (method, path), (name, shown) in zip(guarded, cycle(UNSOUND.items()), strict=False):
            headers = {"Authorization": f"Bearer {shown}"}
            answer = await client.request(method, filled(path), headers=headers)
            assert answer.status_code == 401, (name, method, path)

    serve(tmp_path, scenario)


def test_what_bookies_tell_is_for_super_users() -> None:
    app = FastAPI()
    app.include_router(bookie_api.routes(None))  # type: ignore[arg-type]
    found = {
        path: need(method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    assert found.pop("/heartbeat") is NeededLevel.HEALTH
    assert len(found) > 5
    assert set(found.values()) == {NeededLevel.SUPER_USER}


STATS: Final = "/admin/v2/persistent/acme/own/t/stats"
DETOURS: Final = (
    f"/{STATS}",
    STATS.replace("/v2/", "//v2/"),
    f"/.{STATS}",
    f"{STATS}/",
    STATS.upper(),
    STATS.replace("/own/", "/other/../own/"),
    STATS.replace("/own/", "/other/%2e%2e/own/"),
    STATS.replace("/acme/own/t", "/other/space/..%2f..%2facme%2fown%2ft"),
    STATS.replace("/acme/own", "/other%2f..%2facme/own"),
    STATS.replace("stats", "%73tats"),
    STATS.replace("/t/", "%2ft/"),
    f"{STATS};x",
    f"{STATS}%3fx",
    f"/metrics/..{STATS}",
    f"/docs/..{STATS}",
    f"/admin/v2/clusters/..{STATS}",
    f"/lookup/v2/topic/persistent/other/space/..{STATS}",
    f"http://there{STATS}",
    "*",
)
BESIDE: Final = (
    "X-HTTP-Method-Override: GET",
    "X-Method-Override: GET",
    f"X-Original-URL: {STATS}",
    f"X-Rewrite-URL: {STATS}",
    "X-Forwarded-User: root",
    "X-Original-Principal: root",
    "X-Forwarded-For: 127.0.0.1",
)


def test_no_way_of_writing_it_leads_around(tmp_path: Path) -> None:
    """A role asks for what is another namespace's; its requests go out as they are written here."""

    async def scenario(client: httpx.AsyncClient) -> None:
        await prepare(client)
        for method, path, body in (
            ("PUT", "/admin/v2/tenants/other", {}),
            ("PUT", "/admin/v2/namespaces/other/space", None),
            ("POST", "/admin/v2/namespaces/other/space/permissions/stranger", ["consume"]),
        ):
            await client.request(method, path, json=body, headers=SHOWN["root"])
        shown = bearer("stranger")["Authorization"]
        mine = STATS.replace("acme/own", "other/space")
        address = client.base_url.host, client.base_url.port

        async def answered(target: str, beside: str = "", method: str = "GET") -> tuple[int, str]:
            reader, writer = await asyncio.open_connection(*address)
            lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: {shown}"]
            lines += [beside] * bool(beside) + ["Connection: close", "Content-Length: 0"]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            answer = (await reader.read()).decode()
            writer.close()
            return int(answer.split()[1]), answer

        for target in DETOURS:
            status, answer = await answered(target)
            assert status >= 400, (target, answer)
            assert "storageSize" not in answer, target
        for method in ("HEAD", "OPTIONS", "TRACE", "PATCH", "get", "PROPFIND"):
            assert (await answered(STATS, method=method))[0] == 403, method
        for beside in BESIDE:
            assert (await answered(STATS, beside))[0] == 403, beside
            assert (await answered(mine, beside))[0] == 404, (beside, "its own is not there")

    serve(tmp_path, scenario)
