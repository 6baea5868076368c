"""Where racks, zones and free space are known from, and that ledgers are placed by them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.placing.placement import ANYWHERE, BookieTraits
from magnetar.ledger.placing.topology import Topology, read_topology_file
from magnetar.model.errors import ConfigError, NotEnoughBookiesError
from magnetar.model.ids import BookieId
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, payloads


def client_of(
    cluster: Cluster, registered: Mapping[str, Mapping[str, str]], **settings: object
) -> LedgerClient:
    config = replace(cluster.config, **settings)  # type: ignore[arg-type]

    async def properties() -> dict[BookieId, Mapping[str, str]]:
        return {BookieId(name): told for name, told in registered.items()}

    topology = Topology(config, cluster.pool, properties)
    return LedgerClient(cluster.manager, cluster.pool, config, topology=topology)  # type: ignore[arg-type]


def test_ledgers_and_replacements_lie_in_two_racks() -> None:
    async def run() -> None:
        cluster = Cluster(6, (2, 2, 2))
        racks = {f"b{i}": {"rack": "r1" if i < 5 else "r2"} for i in range(1, 7)}
        client = client_of(cluster, racks, placement_domain="rack", placement_enforced=True)
        for _ in range(10):
            writer = await client.create()
            names = [name for fragment in writer.metadata.fragments for name in fragment.bookies]
            assert {racks[name]["rack"] for name in names} == {"r1", "r2"}
            await writer.abandon()
        writer = await client.create()
        outcomes = Outcomes()
        old = next(
            b for b in cluster.ensemble(writer.ledger_id) if racks[b.bookie_id]["rack"] == "r1"
        )
        old.down = True
        writer.append(payloads(0, 3), outcomes)
        await outcomes.wait(3)
        await writer.close()
        names = list(writer.metadata.fragments[-1].bookies)
        assert old.bookie_id not in names
        assert {racks[name]["rack"] for name in names} == {"r1", "r2"}
        await client.close()

    run_virtual(run())


def test_which_bookies_are_near(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[bookies.b1]\nzone = "z1"\n[bookies.b2]\nrack = "r"\n')
    told = {"b2": {"zone": "z1"}, "b3": {"zone": "z1"}, "b4": {"zone": "z2"}, "b5": {}}

    def near(zone: str) -> list[str]:
        cluster = Cluster(1)
        config = replace(cluster.config, topology_file=str(file))
        topology = Topology(
            config, cluster.pool, told=lambda bookie: told.get(bookie, {}), zone=zone
        )
        return [name for name in (*told, "b1", "b9") if topology.is_near(BookieId(name))]

    async def run() -> None:
        assert near("z1") == ["b3", "b1"]
        assert near("z2") == ["b4"]
        assert near("") == []

    run_virtual(run())


def test_reads_go_to_the_own_zone_first() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        told = {"b2": {"zone": "z"}}
        topology = Topology(
            cluster.config, cluster.pool, told=lambda bookie: told.get(bookie, {}), zone="z"
        )
        client = LedgerClient(cluster.manager, cluster.pool, cluster.config, topology=topology)  # type: ignore[arg-type]
        for _ in range(3):  # whichever the ledger's id would begin with
            writer = await client.create()
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            await writer.close()
            reader = await client.open(writer.ledger_id)
            assert reader._replicas(reader.metadata.fragments[0], 0)[0] == "b2"
            assert len(await reader.read(0, 3, 1 << 20)) == 3
        await client.close()

    run_virtual(run())


def test_the_file_wins_over_the_registration(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[bookies.b1]\nrack = "r9"\nzone = "z1"\n')

    async def run() -> None:
        cluster = Cluster(2)
        config = replace(cluster.config, placement_domain="rack", topology_file=str(file))

        async def properties() -> dict[BookieId, Mapping[str, str]]:
            return {BookieId("b1"): {"rack": "r1"}, BookieId("b2"): {"rack": "r2"}}

        topology = Topology(config, cluster.pool, properties)
        placement = await topology.placement(await cluster.pool.available())
        assert [placement.domain_of(BookieId(b)) for b in ("b1", "b2", "b3")] == [
            "z1/r9",
            "r2",
            "(not known)",
        ]

    run_virtual(run())


@pytest.mark.parametrize(
    "text", ["no toml [", "bookies = 3", '[bookies.b1]\nrak = "r1"', "[bookies.b1]\nrack = 1"]
)
def test_a_file_that_cannot_be_used_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"topology\.toml"):
        read_topology_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_topology_file(tmp_path / "missing")


def test_a_sound_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[bookies."host:3181"]\nzone = "z2"\n')
    assert read_topology_file(file) == {BookieId("host:3181"): BookieTraits("", "z2")}


def test_free_space_is_asked_of_the_bookies_now_and_then() -> None:
    async def run() -> None:
        cluster = Cluster(3, (2, 2, 1))
        cluster.bookie("b2").free_bytes = 5
        client = client_of(cluster, {}, placement_free_bytes_least=100)
        for _ in range(20):
            writer = await client.create()
            assert "b2" not in writer.metadata.fragments[0].bookies
            await writer.abandon()
        assert [bookie.reads for bookie in cluster.pool.bookies.values()] == [1, 1, 1]
        cluster.bookie("b1").silent = True  # does not tell: neither preferred nor passed over
        bigger = client_of(cluster, {}, placement_free_bytes_least=600)
        with pytest.raises(NotEnoughBookiesError, match="b1: usable; b2: 5 bytes free"):
            await bigger.create()

    run_virtual(run())


def test_without_rules_nobody_is_asked() -> None:
    async def run() -> None:
        cluster = Cluster(3)
        topology = Topology(cluster.config, cluster.pool)
        assert await topology.placement(await cluster.pool.available()) is ANYWHERE
        assert all(bookie.reads == 0 for bookie in cluster.pool.bookies.values())

    run_virtual(run())


def test_a_bookie_that_does_not_tell_its_space_does_not_hold_ledgers_up() -> None:
    async def run() -> None:
        cluster = Cluster(3, (2, 2, 2))
        cluster.bookie("b2").silent = True
        client = client_of(cluster, {}, placement_weighted=True, read_timeout_ms=5000)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await client.create()
        assert loop.time() - began_s < 1
        began_s = loop.time()
        await client.create()
        assert loop.time() == began_s

    run_virtual(run())
