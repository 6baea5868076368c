"""What topics on partitions cannot have is refused where it is said."""

from __future__ import annotations

import pytest

from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.admin.test_policy_api import NAME, READING, N

ASKED = (
    ("deduplicationEnabled", "deduplication", True, False),
    ("compactionThreshold", "compactionThreshold", 1000, 0),
    ("readOnlyBrokers", "readOnlyBrokers", READING, {"rules": []}),
)
ENGINE = {"content": b'"partition"'}


async def on_partitions(p: Platform, local: str = "t") -> None:
    """The topic is there, and its log says that it is on partitions."""
    assert await p.status("PUT", f"{P}/{local}") == 204
    p.world.log(f"persistent://public/default/{local}").epoch = -1


@pytest.mark.parametrize(("part", "_namespaces", "body", "nothing"), ASKED)
def test_of_a_topic_on_partitions(
    part: str, _namespaces: str, body: object, nothing: object
) -> None:
    async def scenario(p: Platform) -> None:
        await on_partitions(p)
        status, reason = await p.reason("POST", f"{P}/t/{part}", json=body)
        assert (status, "t is on partitions" in reason) == (412, True)
        assert await p.status("GET", f"{P}/t/{part}") == 204, "it says nothing"
        assert await p.status("POST", f"{P}/t/{part}", json=nothing) == 204
        assert await p.status("PUT", f"{P}/other") == 204
        assert await p.status("POST", f"{P}/other/{part}", json=body) == 204

    serve(scenario)


@pytest.mark.parametrize(("part", "_namespaces", "body", "_nothing"), ASKED)
def test_of_one_that_has_no_log_yet(
    part: str, _namespaces: str, body: object, _nothing: object
) -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/t/partitions?engine=partition", json=2) == 204
        assert (await p.reason("POST", f"{P}/t/{part}", json=body))[0] == 412
        assert await p.status("PUT", f"{P}/l/partitions", json=2) == 204
        assert await p.status("POST", f"{P}/l/{part}", json=body) == 204
        status, reason = await p.reason("POST", f"{P}/l/engine", **ENGINE)
        assert (status, "remove that first" in reason) == (412, True)

    serve(scenario)


@pytest.mark.parametrize(("_part", "part", "body", "_nothing"), ASKED)
def test_of_a_namespace(_part: str, part: str, body: object, _nothing: object) -> None:
    async def scenario(p: Platform) -> None:
        said = "PUT" if part == "compactionThreshold" else "POST"
        assert await p.status("POST", f"{N}/engine", **ENGINE) == 204
        status, reason = await p.reason(said, f"{N}/{part}", json=body)
        assert (status, "made on partitions" in reason) == (412, True)
        assert await p.status("DELETE", f"{N}/engine") == 204
        assert await p.status(said, f"{N}/{part}", json=body) == 204
        assert (await p.reason("POST", f"{N}/engine", **ENGINE))[0] == 412

    serve(scenario)


def test_a_namespace_stores_nothing_twice_only_where_all_its_topics_can() -> None:
    async def scenario(p: Platform) -> None:
        await on_partitions(p)
        status, reason = await p.reason("POST", f"{N}/deduplication", json=True)
        assert (status, f"topic {NAME} is on partitions" in reason) == (412, True)
        assert await p.status("POST", f"{P}/t/deduplicationEnabled", json=False) == 204
        assert await p.status("POST", f"{N}/deduplication", json=True) == 204
        # From now on none is made that would refuse its producers.
        for path, body in ((f"{P}/new", None), (f"{P}/new/partitions", 2)):
            status, reason = await p.reason("PUT", f"{path}?engine=partition", json=body)
            assert (status, "say false for it first" in reason) == (412, True)
        assert await p.status("GET", f"{P}/new/stats") == 404

    serve(scenario)
