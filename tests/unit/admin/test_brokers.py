"""Brokers and bundles over REST, of a cluster with one broker."""

from __future__ import annotations

from tests.unit.admin.test_api import Platform, serve

ID = "here:8080"
BUNDLE = "0x40000000_0x80000000"
NAMESPACE = "/admin/v2/namespaces/public/default"


async def join(p: Platform) -> None:
    await p.world.broker.join("http://here:8080", "z1", 1000, lambda why: None)


def test_who_is_there() -> None:
    async def scenario(p: Platform) -> None:
        await join(p)
        cluster = p.world.broker.control.name
        assert (await p.client.get("/admin/v2/brokers")).json() == [ID]
        assert (await p.client.get(f"/admin/v2/brokers/{cluster}")).json() == [ID]
        assert (await p.reason("GET", "/admin/v2/brokers/other"))[0] == 404
        await p.world.peer().produce()
        (told,) = (await p.client.get("/magnetar/v1/brokers")).json()
        assert (told["brokerId"], told["zone"], told["draining"]) == (ID, "z1", False)
        assert told["readOnly"] is False
        assert (told["bundles"], told["topics"]) == (4, len(p.world.broker.topics))
        assert told["topics"] > 0
        owned = await p.client.get(f"/admin/v2/brokers/{cluster}/{ID}/ownedNamespaces")
        assert len(owned.json()) == 4
        assert f"public/default/{BUNDLE}" in owned.json()
        assert (await p.reason("PUT", "/magnetar/v1/brokers/x:1/drain"))[0] == 404
        status, said = await p.reason("PUT", f"/magnetar/v1/brokers/{ID}/drain")
        assert (status, "one broker" in said) == (409, True)
        assert (await p.client.put(f"/magnetar/v1/brokers/{ID}/undrain")).status_code == 204

    serve(scenario)


def test_how_a_namespace_is_cut() -> None:
    async def scenario(p: Platform) -> None:
        found = (await p.client.get(f"{NAMESPACE}/bundles")).json()
        assert (found["numBundles"], found["boundaries"][1]) == (4, "0x40000000")
        owners = (await p.client.get("/magnetar/v1/namespaces/public/default/bundles")).json()
        assert owners[1] == {"bundle": BUNDLE, "owner": ID}
        assert (await p.reason("GET", "/admin/v2/namespaces/public/none/bundles"))[0] == 404
        made = await p.client.put(
            "/admin/v2/namespaces/public/two", json={"bundles": {"numBundles": 2}}
        )
        assert made.status_code == 204
        found = (await p.client.get("/admin/v2/namespaces/public/two/bundles")).json()
        assert found["boundaries"] == ["0x00000000", "0x80000000", "0xffffffff"]
        status, said = await p.reason(
            "PUT", "/admin/v2/namespaces/public/bad", json={"bundles": {"boundaries": ["0x1"]}}
        )
        assert (status, "boundaries rise" in said) == (400, True)

    serve(scenario)


def test_unloading_sends_clients_away_and_keeps_everything() -> None:
    async def scenario(p: Platform) -> None:
        await join(p)
        topics = p.world.broker.topics
        unloads = (
            "/admin/v2/persistent/public/default/t/unload",
            f"{NAMESPACE}/unload",
            f"{NAMESPACE}/0xc0000000_0xffffffff/unload",
            f"{NAMESPACE}/{BUNDLE}/unload",
            f"{NAMESPACE}/0x00000000_0x40000000/unload",
            f"{NAMESPACE}/0x80000000_0xc0000000/unload",
        )
        await p.client.put("/admin/v2/persistent/public/default/t")
        unloaded = []
        for path in unloads:
            stats = await p.client.get("/admin/v2/persistent/public/default/t/stats")
            assert stats.status_code == 200  # loaded again
            assert len(topics) == 1
            assert (await p.client.put(path)).status_code == 204
            unloaded.append(len(topics) == 0)
        assert unloaded[:2] == [True, True]
        assert unloaded[2:].count(True) == 1  # the bundle that it is in
        assert (await p.reason("PUT", f"{NAMESPACE}/0x0_0x1/unload"))[0] == 404
        assert (await p.reason("PUT", "/admin/v2/persistent/public/default/no/unload"))[0] == 404

    serve(scenario)


def test_a_bundle_is_split() -> None:
    async def scenario(p: Platform) -> None:
        await join(p)
        await p.client.put("/admin/v2/persistent/public/default/t")
        loaded = p.world.broker.topics.loaded()
        path = f"{NAMESPACE}/{BUNDLE}/split"
        assert (await p.client.put(path, params={"unload": "false"})).status_code == 204
        found = (await p.client.get(f"{NAMESPACE}/bundles")).json()
        assert found["boundaries"][1:4] == ["0x40000000", "0x60000000", "0x80000000"]
        assert p.world.broker.topics.loaded() == loaded
        assert (await p.reason("PUT", path))[0] == 404  # it is none any more
        by = {"splitAlgorithmName": "topic_count_equally_divide", "unload": "true"}
        for each in ("0x00000000_0x40000000", "0x40000000_0x60000000", "0x60000000_0x80000000",
                     "0x80000000_0xc0000000", "0xc0000000_0xffffffff"):  # fmt: skip
            answer = await p.client.put(f"{NAMESPACE}/{each}/split", params=by)
            assert answer.status_code == 204
        assert (await p.client.get(f"{NAMESPACE}/bundles")).json()["numBundles"] == 10
        assert p.world.broker.topics.loaded() == []
        status, said = await p.reason(
            "PUT", f"{NAMESPACE}/0x40000000_0x50000000/split?splitAlgorithmName=flow"
        )
        assert (status, "range_equally_divide" in said) == (409, True)

    serve(scenario)
