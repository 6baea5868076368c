"""Bodies and names that could be stored and then not be shown, not be answered in JSON, or not be
used by anybody: all are refused, and nothing of them is kept."""

from __future__ import annotations

import pytest

from tests.unit.admin.test_api import P, Platform, serve

N = "/admin/v2/namespaces/public/default"
SCHEMA = "/admin/v2/schemas/public/default/t/schema"
LONE = b'"\\ud800"'
RAW = b'"\xed\xa0\x80"'
QUORUMS = b'{"bookkeeperEnsemble":1,"bookkeeperWriteQuorum":1,"bookkeeperAckQuorum":1,'


def rate(number: bytes) -> bytes:
    return QUORUMS + b'"managedLedgerMaxMarkDeleteRate":' + number + b"}"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"9" * 400, b"-5"])
def test_a_rate_that_is_none_is_refused_and_not_stored(number: bytes) -> None:
    async def scenario(p: Platform) -> None:
        status, why = await p.reason("POST", f"{N}/persistence", content=rate(number))
        assert status in (400, 412)
        assert "number" in why
        assert await p.status("GET", f"{N}/persistence") == 204, "nothing is said"

    serve(scenario)


def test_texts_with_halves_of_pairs_are_refused_everywhere() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        asked = [
            ("POST", f"{N}/messageTTL", LONE),
            ("POST", f"{N}/messageTTL", RAW),
            ("PUT", f"{P}/u", b"{" + LONE + b":1}"),
            ("PUT", "/admin/v2/tenants/x", b"{" + LONE + b":1}"),
            ("POST", SCHEMA, b'{"type":"STRING","schema":' + LONE + b"}"),
            ("POST", SCHEMA, b'{"type":"STRING","schema":"","properties":{"a":' + LONE + b"}}"),
        ]
        for method, path, body in asked:
            status, why = await p.reason(method, path, content=body)
            assert (status, "\\ud800" in why) == (400, True), path
        assert await p.status("GET", SCHEMA) == 404
        assert await p.status("GET", "/admin/v2/tenants/x") == 404
        whole = b'{"type":"STRING","schema":"","properties":{"a":"\\ud83d\\ude00"}}'
        assert await p.status("POST", SCHEMA, content=whole) == 200
        assert (await p.client.get(SCHEMA)).json()["properties"] == {"a": "\U0001f600"}

    serve(scenario)


def test_bundles_and_permissions_that_cannot_be_are_refused() -> None:
    async def scenario(p: Platform) -> None:
        for body in (
            b'{"bundles":{"numBundles":1e999}}',
            b'{"bundles":{"numBundles":-1}}',
            b'{"auth_policies":{"destination_auth":{"one/two":{"r":["produce"]}}}}',
            b'{"auth_policies":{"destination_auth":{"non-persistent://a/b/c":{"r":["produce"]}}}}',
        ):
            status, _ = await p.reason("PUT", "/admin/v2/namespaces/public/new", content=body)
            assert 400 <= status < 500, body
        assert await p.status("GET", "/admin/v2/namespaces/public/new/permissions") == 404

    serve(scenario)


def test_a_topics_permission_of_a_namespaces_body_counts_by_its_full_name() -> None:
    async def scenario(p: Platform) -> None:
        granted = {"destination_auth": {"public/new/t-partition-1": {"r": ["produce"]}}}
        body = {"auth_policies": granted}
        assert await p.status("PUT", "/admin/v2/namespaces/public/new", json=body) == 204
        path = "/admin/v2/persistent/public/new/t/permissions"
        assert (await p.client.get(path)).json() == {"r": ["produce"]}

    serve(scenario)


def test_a_subscription_that_no_consumer_could_come_to_is_refused() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        status, why = await p.reason("PUT", f"{P}/t/subscription/{'x' * 513}")
        assert (status, "512 characters" in why) == (409, True)
        assert await p.status("PUT", f"{P}/t/subscription/{'x' * 512}") == 204
        assert (await p.client.get(f"{P}/t/subscriptions")).json() == ["x" * 512]

    serve(scenario)


def test_a_partition_that_a_topic_does_not_have_is_not_made() -> None:
    """It was made, and nobody who reads the topic saw it; a deletion of the topic left it."""

    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/f/partitions", json=2) == 204
        status, why = await p.reason("PUT", f"{P}/f-partition-2")
        assert (status, "has 2 partitions" in why) == (412, True)
        assert await p.status("PUT", f"{P}/f-partition-1") == 204
        assert (await p.client.delete(f"{P}/f/partitions")).status_code == 204
        assert (await p.client.get("/admin/v2/persistent/public/default")).json() == []

    serve(scenario)
