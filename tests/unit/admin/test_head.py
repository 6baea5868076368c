"""HEAD."""

from __future__ import annotations

import pytest

from tests.unit.admin.test_api import P, Platform, serve


@pytest.mark.parametrize(
    "path",
    [
        "/health",
        "/metrics",
        "/openapi.json",
        "/admin/v2/clusters",
        "/admin/v2/brokers/health",
        f"{P}/t/stats",
        f"{P}/none/stats",
        f"{P}/t/offloadPolicies",
        "/nothing",
        "/admin/v2/namespaces/public/default/retention",
    ],
)
def test_head_is_get_without_a_body(path: str) -> None:
    """Load balancers look with it whether a server is there: 405 was taken for a server that is
    not well."""

    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/t") == 204
        found = await p.client.get(path)
        for _ in range(2):  # on one connection: no body is left behind
            head = await p.client.head(path)
            assert (head.status_code, head.content) == (found.status_code, b"")
            assert head.headers.get("content-type") == found.headers.get("content-type")
        assert await p.status("HEAD", f"{P}/t/unload") == 405, "it is a PUT's"

    serve(scenario)
