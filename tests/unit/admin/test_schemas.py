"""Schemas over REST, as Pulsar's admin clients ask for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magnetar.admin.body_limit import BODY_BYTES_MAX, SCHEMA_BODY_BYTES_MAX
from magnetar.model.schema import SCHEMA_BYTES_MAX, SchemaStrategy
from tests.unit.admin.test_api import Platform, serve
from tests.unit.cluster.schemas.kit import field, record

S = "/admin/v2/schemas/public/default/t"
N = "/admin/v2/namespaces/public/default"
T = "/admin/v2/persistent/public/default/t"
A, B = record(field("a", "int")), record(field("a", "int"), field("b", "int", default=0))
WRONG = record(field("a", "string"))


def posted(node: Any, kind: str = "AVRO", **properties: str) -> dict[str, Any]:
    return {"type": kind, "schema": json.dumps(node), "properties": properties}


async def ask(p: Platform, method: str, path: str, body: object = None) -> Any:
    answer = await p.client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_upload_look_at_and_delete() -> None:
    async def scenario(p: Platform) -> None:
        assert (await p.reason("GET", S + "/schema"))[0] == 404
        assert await ask(p, "GET", S + "/schemas") == {"getSchemaResponses": []}
        first = await ask(p, "POST", S + "/schema", posted(A, owner="me"))
        assert first == {"version": {"version": 0}}
        assert await ask(p, "POST", S + "/schema", posted(B)) == {"version": {"version": 1}}
        assert await ask(p, "POST", S + "/schema", posted(A)) == {"version": {"version": 0}}
        newest = await ask(p, "GET", S + "/schema")
        assert (newest["version"], newest["type"], newest["timestamp"]) == (1, "AVRO", 10**12)
        assert json.loads(newest["data"]) == B
        oldest = await ask(p, "GET", S + "/schema/0")
        assert (oldest["version"], oldest["properties"]) == (0, {"owner": "me"})
        listed = (await ask(p, "GET", S + "/schemas"))["getSchemaResponses"]
        assert [each["version"] for each in listed] == [0, 1]
        assert await ask(p, "GET", S + "-partition-3/schema") == newest
        assert await ask(p, "DELETE", S + "/schema?force=true") == {"version": 2}
        for path in ("/schema", "/schema/0", "/schema/1"):
            assert (await p.reason("GET", S + path))[0] == 404
        assert (await p.reason("DELETE", S + "/schema"))[0] == 404
        assert await ask(p, "POST", S + "/schema", posted(WRONG)) == {"version": {"version": 3}}

    serve(scenario)


def test_what_is_refused() -> None:
    async def scenario(p: Platform) -> None:
        await ask(p, "POST", S + "/schema", posted(A))
        status, reason = await p.reason("POST", S + "/schema", json=posted(WRONG))
        assert status == 409
        assert "R.a: int cannot be read as string" in reason
        for body, status in (
            (posted({}), 422),
            (posted(A, "NONE"), 422),
            (posted(A, "NIX"), 400),
            ({}, 400),
            ({"type": "AVRO", "schema": {}}, 400),
            ({"type": "STRING", "properties": []}, 400),
            ([], 400),
            (None, 400),
        ):
            assert (await p.reason("POST", S + "/schema", json=body))[0] == status, body
        elsewhere = "/admin/v2/schemas/no/where/t/schema"
        for method in ("GET", "POST", "DELETE"):
            assert (await p.reason(method, elsewhere, json=posted(A)))[0] == 404
        assert (await p.reason("GET", S + "/schema/x"))[0] == 400
        assert (await p.reason("GET", S + "/schema/-1"))[0] == 400

    serve(scenario)


def test_questions_change_nothing() -> None:
    async def scenario(p: Platform) -> None:
        await ask(p, "POST", S + "/schema", posted(A))
        assert await ask(p, "POST", S + "/version", posted(A)) == {"version": 0}
        assert await ask(p, "POST", S + "/version", posted(B)) == {"version": -1}
        yes = await ask(p, "POST", S + "/compatibility", posted(B))
        assert yes == {
            "compatibility": True,
            "schemaCompatibilityStrategy": "FULL",
            "reason": "",
        }
        no = await ask(p, "POST", S + "/compatibility", posted(WRONG))
        assert (no["compatibility"], "R.a" in no["reason"]) == (False, True)
        assert len(p.world.values.values) == 1

    serve(scenario)


def test_a_key_and_a_value() -> None:
    async def scenario(p: Platform) -> None:
        properties = {
            "key.schema.type": "STRING",
            "value.schema.type": "AVRO",
            "kv.encoding.type": "INLINE",
        }
        body = posted({"key": "", "value": A}, "KEY_VALUE", **properties)
        await ask(p, "POST", S + "/schema", body)
        found = await ask(p, "GET", S + "/schema")
        assert json.loads(found["data"]) == {"key": "", "value": A}
        assert found["properties"] == properties

    serve(scenario)


def test_types_without_a_definition() -> None:
    async def scenario(p: Platform) -> None:
        body = {"type": "INT64", "schema": "", "properties": {}}
        assert await ask(p, "POST", S + "/schema", body) == {"version": {"version": 0}}
        assert (await ask(p, "GET", S + "/schema"))["type"] == "INT64"

    serve(scenario)


def test_operators_upload_where_clients_may_not() -> None:
    async def scenario(p: Platform) -> None:
        path = N + "/isAllowAutoUpdateSchema"
        assert await ask(p, "GET", path) is True
        assert await p.status("POST", path, json=False) == 204
        assert await ask(p, "GET", path) is False
        await ask(p, "POST", S + "/schema", posted(A))

    serve(scenario)


def test_policies_of_a_namespace() -> None:
    async def scenario(p: Platform) -> None:
        path = N + "/schemaCompatibilityStrategy"
        assert await ask(p, "GET", path) == "UNDEFINED"
        for strategy in SchemaStrategy:
            assert await p.status("PUT", path, json=strategy) == 204
            assert await ask(p, "GET", path) == strategy
        await p.status("PUT", path, json="FORWARD")
        assert (await ask(p, "POST", S + "/compatibility", posted(A)))[
            "schemaCompatibilityStrategy"
        ] == "FORWARD"
        assert await p.status("PUT", path, json="UNDEFINED") == 204
        assert await ask(p, "GET", path) == "UNDEFINED"
        assert (await p.reason("PUT", path, json="NIX"))[0] == 400
        path = N + "/schemaValidationEnforced"
        assert await ask(p, "GET", path) is False
        assert await p.status("POST", path, json=True) == 204
        assert await ask(p, "GET", path) is True
        assert (await p.reason("POST", path, json="yes"))[0] == 400
        for part in ("schemaCompatibilityStrategy", "schemaValidationEnforced"):
            assert (await p.reason("GET", f"/admin/v2/namespaces/no/where/{part}"))[0] == 404

    serve(scenario)


def test_policies_of_a_topic_count_before_its_namespaces() -> None:
    async def scenario(p: Platform) -> None:
        path = T + "/schemaCompatibilityStrategy"
        applied = path + "?applied=true"
        assert await p.status("PUT", T) == 204
        assert await p.status("GET", path) == 204
        assert await ask(p, "GET", applied) == "FULL"
        assert await p.status("PUT", N + "/schemaCompatibilityStrategy", json="FORWARD") == 204
        assert await ask(p, "GET", applied) == "FORWARD"
        assert await p.status("PUT", path, json="ALWAYS_INCOMPATIBLE") == 204
        assert await ask(p, "GET", path) == await ask(p, "GET", applied) == "ALWAYS_INCOMPATIBLE"
        await ask(p, "POST", S + "/schema", posted(A))
        assert (await p.reason("POST", S + "/schema", json=posted(B)))[0] == 409
        assert (await p.reason("PUT", path, json="NIX"))[0] == 412
        assert await p.status("DELETE", path) == 204
        assert await ask(p, "GET", applied) == "FORWARD"
        assert await p.status("PUT", path, json="ALWAYS_COMPATIBLE") == 204
        await ask(p, "POST", S + "/schema", posted(B))
        assert await p.status("PUT", path, json="UNDEFINED") == 204
        assert await p.status("GET", path) == 204

        path = T + "/schemaValidationEnforced"
        assert await ask(p, "GET", path) is False  # clients take what they get for a boolean
        assert await ask(p, "GET", path + "?applied=true") is False
        assert await p.status("POST", path, json=True) == 204
        assert await ask(p, "GET", path + "?applied=true") is True
        assert (await p.reason("POST", path, json="yes"))[0] == 412

    serve(scenario)


def test_a_namespace_is_made_with_them() -> None:
    async def scenario(p: Platform) -> None:
        made = "/admin/v2/namespaces/public/made"
        body = {
            "schema_compatibility_strategy": "BACKWARD",
            "schema_validation_enforced": True,
            "is_allow_auto_update_schema": False,
        }
        assert await p.status("PUT", made, json=body) == 204
        assert await ask(p, "GET", made + "/schemaCompatibilityStrategy") == "BACKWARD"
        assert await ask(p, "GET", made + "/schemaValidationEnforced") is True
        assert await ask(p, "GET", made + "/isAllowAutoUpdateSchema") is False
        wrong = {"schema_compatibility_strategy": "NIX"}
        assert (await p.reason("PUT", made + "2", json=wrong))[0] == 412

    serve(scenario)


@pytest.mark.parametrize("size", [BODY_BYTES_MAX * 2, SCHEMA_BYTES_MAX + 1, SCHEMA_BODY_BYTES_MAX])
def test_large_ones(size: int) -> None:
    async def scenario(p: Platform) -> None:
        body = {"type": "EXTERNAL", "schema": "x" * size, "properties": {}}
        status = await p.status("POST", S + "/schema", json=body)
        too_large = 413 if size == SCHEMA_BODY_BYTES_MAX else 422
        assert status == (200 if size <= SCHEMA_BYTES_MAX else too_large)
        assert (
            await p.status("PUT", "/admin/v2/tenants/x", json={"adminRoles": ["x" * size]}) == 413
        )

    serve(scenario)
