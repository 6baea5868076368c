"""What a program may get wrong: it is told what, and nothing else suffers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.config import LedgerConfig
from magnetar.ledger import sync
from magnetar.ledger.catalog.ledger_list import LedgerList
from magnetar.ledger.connecting import connect
from magnetar.ledger.writing.writer import Buffer
from magnetar.model.errors import (
    ConfigError,
    EntryTooLargeError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.ledger.doubles import Cluster, Outcomes, opened


def test_a_payload_that_is_too_large_is_refused_and_the_writer_goes_on() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        cluster.config = replace(cluster.config, payload_bytes_max=2000)
        cluster.client = cluster.new_client()
        async with opened(cluster) as writer:
            assert await writer.add([bytes(2000), bytes(2000)]) == 0
            for payloads in ([bytes(2001)], [b"small", bytes(2001)]):
                with pytest.raises(EntryTooLargeError, match="2001 bytes; accepted: at most 2000"):
                    await writer.add(payloads)
                with pytest.raises(EntryTooLargeError):
                    writer.append(payloads, Outcomes())
            assert writer.last_add_pushed == 1
            assert await writer.add([b"next"]) == 2
        assert all(
            max(map(max, (ids for ids, _ in b.adds))) == 2
            for b in cluster.ensemble(writer.ledger_id)
        )

    run_virtual(run())


def test_a_payload_that_is_none_takes_no_room_for_ever() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        cluster.config = replace(cluster.config, writer_pending_bytes_max=1024)
        cluster.client = cluster.new_client()
        async with opened(cluster) as writer:
            wrong: list[Buffer] = ["x" * 1000]  # type: ignore[list-item]
            for _ in range(3):
                with pytest.raises(TypeError):
                    await writer.add(wrong)
            async with asyncio.timeout(5):
                assert await asyncio.gather(writer.add([bytes(600)]), writer.add([bytes(600)]))

    run_virtual(run())


@pytest.mark.parametrize("fault", ["none", "silent"])
def test_a_done_that_raises_keeps_nobody_else_waiting(fault: str) -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        said: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

        def wrong(*_told: object) -> None:
            raise RuntimeError("a mistake of the program")

        async with opened(cluster) as writer:
            if fault == "silent":
                for bookie in cluster.pool.bookies.values():
                    bookie.silent = True
            outcomes = Outcomes()
            writer.append([b"one"], wrong)
            writer.append([b"two"], outcomes)
            await outcomes.wait(1)
            assert outcomes.confirmed == ([1] if fault == "none" else [])
            async with asyncio.timeout(5):
                closed = await writer.close()
            assert closed.last_entry_id == (1 if fault == "none" else -1)
        (told,) = said
        assert told["message"] == "ledger 1: the done of an append raised"
        assert isinstance(told["exception"], RuntimeError)

    run_virtual(run())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ensemble_size": 2, "write_quorum": 3}, "ensemble_size = 2, ledger.write_quorum = 3"),
        ({"write_quorum": 0, "ack_quorum": 0}, "ledger.write_quorum = 0"),
        ({"ensemble_size": "3"}, "ledger.ensemble_size = '3'"),
        ({"placement_domain": "rak"}, "ledger.placement_domain = 'rak'"),
        ({"placement_enforced": True}, "nothing to enforce"),
        ({"add_timeout_ms": 0}, "ledger.add_timeout_ms = 0 .* at least 10"),
    ],
)
def test_settings_of_a_program_are_checked(changes: dict[str, object], told: str) -> None:
    config = replace(LedgerConfig(), **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=told):
        sync.connect("zk://127.0.0.1:1/never-asked", config)


def test_a_ledger_id_below_zero_is_no_ledger() -> None:
    async def run() -> None:
        client = Cluster(1, (1, 1, 1)).client
        for call in (client.open, client.open_no_recovery, client.read_metadata, client.delete):
            with pytest.raises(NoSuchLedgerError, match="no ledger -1"):
                await call(-1)
        await client.delete(-1, missing_ok=True)
        writer = await client.create()
        with pytest.raises(ValueError, match="entry -1"):
            await writer.reader().read(-1, 1, 1)

    run_virtual(run())


@pytest.mark.parametrize("name", ["", "a/b", ".", ".."])
def test_a_list_cannot_be_called_anything(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        LedgerList(MemoryMetadata(), name)


def test_a_file_that_is_not_there_is_no_cluster_and_is_not_made(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(NoNodeError, match="no such file"):
            async with connect(f"sqlite:{tmp_path / 'none.sqlite'}"):
                pass

    asyncio.run(run())
    assert not list(tmp_path.iterdir())
