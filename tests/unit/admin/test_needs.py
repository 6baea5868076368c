"""Which permission each path of REST needs; above all, that none is open by accident."""

from __future__ import annotations

import pytest

from magnetar.admin.needs import Need, NeededLevel, OfTenant, OfTopics, need
from magnetar.cluster.security.permissions import Action
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import MagnetarError

T, NS = parse_topic("persistent://a/b/c"), "a/b"
ADMIN, LOOKUP, CONSUME, PRODUCE = (
    OfTopics(action, T) for action in (Action.ADMIN, Action.LOOKUP, Action.CONSUME, Action.PRODUCE)
)
LIST, TENANT, SUPER = OfTopics(Action.LOOKUP, NS), OfTenant("a"), NeededLevel.SUPER_USER


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("GET", "/", NeededLevel.EVERYBODY),
        ("GET", "/metrics", NeededLevel.METRICS),
        ("GET", "/health", NeededLevel.HEALTH),
        ("GET", "/admin/v2/clusters", NeededLevel.EVERY_ROLE),
        ("PUT", "/admin/v2/clusters/x", SUPER),
        ("GET", "/admin/v2/tenants", SUPER),
        ("GET", "/admin/v2/tenants/a", TENANT),
        ("PUT", "/admin/v2/tenants/a", SUPER),
        ("POST", "/admin/v2/tenants/a", SUPER),
        ("GET", "/admin/v2/namespaces/a", TENANT),
        ("PUT", "/admin/v2/namespaces/a/b", TENANT),
        ("GET", "/admin/v2/namespaces/a/b/topics", LIST),
        ("POST", "/admin/v2/namespaces/a/b/permissions/r", TENANT),
        ("GET", "/admin/v2/namespaces/a/b/retention", TENANT),
        ("GET", "/admin/v2/persistent/a/b", LIST),
        ("GET", "/admin/v2/persistent/a/b/partitioned", LIST),
        ("PUT", "/admin/v2/persistent/a/b/c", ADMIN),
        ("DELETE", "/admin/v2/persistent/a/b/c", ADMIN),
        ("GET", "/admin/v2/persistent/a/b/c/stats", LOOKUP),
        ("GET", "/admin/v2/persistent/a/b/c/partitions", LOOKUP),
        ("PUT", "/admin/v2/persistent/a/b/c/partitions", ADMIN),
        ("DELETE", "/admin/v2/persistent/a/b/c/subscription/s", CONSUME),
        ("GET", "/admin/v2/persistent/a/b/c/subscription/s/position/1", CONSUME),
        ("GET", "/admin/v2/persistent/a/b/c/ledger/1/entry/0", CONSUME),
        ("GET", "/admin/v2/persistent/a/b/c/lastMessageId", LOOKUP),
        ("GET", "/admin/v2/persistent/a/b/c/messageid/1", LOOKUP),
        ("POST", "/admin/v2/persistent/a/b/c/all_subscription/expireMessages/5", CONSUME),
        ("PUT", "/admin/v2/persistent/a/b/c/compaction", ADMIN),
        # Rates of subscriptions, which may be called as other parts of the path are.
        ("POST", "/admin/v2/persistent/a/b/c/s/dispatchRate", ADMIN),
        ("GET", "/admin/v2/persistent/a/b/c/stats/dispatchRate", ADMIN),
        ("DELETE", "/admin/v2/persistent/a/b/c/ledger/dispatchRate", ADMIN),
        ("POST", "/admin/v2/persistent/a/b/c/subscription/dispatchRate", ADMIN),
        ("PUT", "/admin/v2/persistent/a/b/c/subscription/dispatchRate", CONSUME),
        ("DELETE", "/admin/v2/persistent/a/b/c/subscription/dispatchRate", CONSUME),
        ("POST", "/admin/v2/persistent/a/b/c/subscription/s/dispatchRate", ADMIN),
        ("DELETE", "/admin/v2/persistent/a/b/c/subscription/subscription/dispatchRate", ADMIN),
        ("GET", "/admin/v2/persistent/a/b/c/retention", ADMIN),
        ("GET", "/admin/v2/persistent/a/b/c/permissions", ADMIN),
        ("GET", "/lookup/v2/topic/persistent/a/b/c", LOOKUP),
        ("GET", "/admin/v2/schemas/a/b/c/schema", LOOKUP),
        ("POST", "/admin/v2/schemas/a/b/c/compatibility", LOOKUP),
        ("POST", "/admin/v2/schemas/a/b/c/schema", PRODUCE),
        ("DELETE", "/admin/v2/schemas/a/b/c/schema", ADMIN),
        ("GET", "/magnetar/v1/ledgers/3/entries", SUPER),
        ("GET", "/magnetar/v1/bookies", SUPER),
        ("GET", "/magnetar/v1/namespaces/a/b/bundles", TENANT),
        ("PUT", "/magnetar/v1/brokers/x/drain", SUPER),
        ("PUT", "/api/v1/bookie/state/readonly", SUPER),
        ("GET", "/none/such", SUPER),
        ("GET", "//health", SUPER),
        ("GET", "/health/", SUPER),
    ],
)  # fmt: skip
def test_what_a_path_needs(method: str, path: str, wanted: Need) -> None:
    assert need(method, path) == wanted


def test_segments_are_decoded_as_routes_do() -> None:
    found = need("GET", "/admin/v2/persistent/a%2Db/c/d+e%2Df/stats")
    assert isinstance(found, OfTopics)
    assert str(found.of) == "persistent://a-b/c/d e-f"


def test_names_that_are_none_are_no_way_in() -> None:
    for path in ("/admin/v2/persistent/%2E%2E/b/c/stats", "/admin/v2/namespaces/a%2Fx"):
        with pytest.raises(MagnetarError):
            need("GET", path)
    with pytest.raises(ValueError):
        need("GET", "/admin/v2/persistent/a/b/%ff/stats")
