"""The life of a ledger: created, appended to, confirmed, read, closed, opened, recovered."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.model.errors import (
    BookieIOError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads

QUORUMS = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (4, 2, 1), (5, 3, 2), (3, 3, 3)]


async def read_all(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    entries = await reader.read_range(0, reader.last_add_confirmed)
    assert [entry.entry_id for entry in entries] == list(range(reader.last_add_confirmed + 1))
    return [bytes(entry.payload) for entry in entries]


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_what_was_appended_is_read_back(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums)
        writer = await cluster.client.create({"name": b"t"})
        outcomes = Outcomes()
        for first in (0, 1, 4, 68):
            count = {0: 1, 1: 3, 4: 64, 68: 32}[first]
            writer.append(payloads(first, count), outcomes)
        await outcomes.wait(100)
        assert outcomes.confirmed == list(range(100))
        assert writer.last_add_confirmed == writer.last_add_pushed == 99
        assert writer.pending_bytes == 0
        closed = await writer.close()
        assert closed.state is LedgerState.CLOSED
        assert closed.last_entry_id == 99
        assert closed.length == writer.length == sum(map(len, payloads(0, 100)))
        assert closed == cluster.metadata(writer.ledger_id)
        assert closed.ctime_ms == 1500
        assert await read_all(cluster.new_client(), writer.ledger_id) == payloads(0, 100)

    run_virtual(run())


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_each_entry_lies_on_its_write_set_and_nowhere_else(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 20), outcomes)
            await outcomes.wait(20)
            await asyncio.sleep(0)
            for entry_id in range(20):
                holders = {
                    name
                    for name, bookie in cluster.pool.bookies.items()
                    if entry_id in bookie.entries.get(writer.ledger_id, {})
                }
                assert holders == set(writer.metadata.write_set(entry_id))

    run_virtual(run())


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_a_crashed_writers_entries_are_recovered(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            for i in range(30):
                writer.append(payloads(i, 1), outcomes)
            await outcomes.wait(30)
            assert await read_all(cluster.new_client(), writer.ledger_id) == payloads(0, 30)
            metadata = cluster.metadata(writer.ledger_id)
            assert metadata.closed
            assert metadata.length == sum(map(len, payloads(0, 30)))
            writer.append([b"too late"], outcomes)
            await outcomes.wait(31)
            assert isinstance(outcomes.errors[0], LedgerFencedError)
            writer.append([b"later still"], outcomes)
            await outcomes.wait(32)
            assert isinstance(outcomes.errors[1], LedgerFencedError)
            assert await read_all(cluster.client, writer.ledger_id) == payloads(0, 30)

    run_virtual(run())


def test_an_empty_ledger_is_recovered_and_read() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            reader = await cluster.new_client().open(writer.ledger_id)
            assert reader.last_add_confirmed == -1
            assert reader.closed
            assert await reader.read(0, 10, 1000) == []
            assert cluster.metadata(writer.ledger_id).length == 0

    run_virtual(run())


def test_looking_without_recovery_leaves_the_writer_alone() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            for i in range(5):
                writer.append(payloads(i, 1), outcomes)
                await outcomes.wait(i + 1)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            assert reader.last_add_confirmed == 3  # the last append's LAC: it trails by one
            assert not reader.closed
            assert len(await reader.read(0, 100, 1 << 20)) == 4
            writer.append([b"still mine"], outcomes)
            await outcomes.wait(6)
            assert not outcomes.errors

    run_virtual(run())


def test_appends_after_close_fail_and_closing_twice_is_fine() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 2), outcomes)
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        writer.append([b"late"], outcomes)
        closed = await closing
        assert closed.last_entry_id == 1
        assert await writer.close() == closed
        await outcomes.wait(3)
        assert outcomes.confirmed == [0, 1]
        assert isinstance(outcomes.errors[0], LedgerClosedError)

    run_virtual(run())


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_every_digest_type_and_a_password(digest_type: DigestType) -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create(digest_type=digest_type, password=b"secret")
        outcomes = Outcomes()
        writer.append([b"a", memoryview(b"bc"), bytearray(b"def")], outcomes)
        await outcomes.wait(3)
        await writer.abandon()
        assert await read_all(cluster.client, writer.ledger_id) == [b"a", b"bc", b"def"]
        assert cluster.metadata(writer.ledger_id).length == 6

    run_virtual(run())


def test_too_few_bookies_to_create_names_them() -> None:
    async def run() -> None:
        cluster = Cluster(2, (3, 3, 2))
        with pytest.raises(NotEnoughBookiesError, match=r"needs 3 bookies and 2.*b1.*b2"):
            await cluster.client.create()

    run_virtual(run())


def test_delete_and_read_metadata() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create({"owner": b"x"})
        await writer.close()
        metadata = await cluster.client.read_metadata(writer.ledger_id)
        assert metadata.custom == (("owner", b"x"),)
        await cluster.client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await cluster.client.open(writer.ledger_id)

    run_virtual(run())


def test_an_entry_that_nobody_has_is_told_by_bookie() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 3), outcomes)
        await writer.close()
        for bookie in cluster.pool.bookies.values():
            bookie.entries[writer.ledger_id].pop(1, None)
        reader = await cluster.client.open(writer.ledger_id)
        assert [entry.entry_id for entry in await reader.read(0, 1, 100)] == [0]
        with pytest.raises(NoEntryError, match=r"b1.*b2.*b3|b2.*b3.*b1|b3.*b1.*b2"):
            await reader.read(1, 5, 1000)

    run_virtual(run())


def test_of_bookies_that_failed_lately_only_as_many_are_taken_as_are_needed() -> None:
    async def run() -> None:
        cluster = Cluster(5, (3, 3, 2))
        client = cluster.new_client()
        now_s = asyncio.get_running_loop().time()
        for name in ("b4", "b1", "b5", "b4"):
            client._context.quarantine.failed(BookieId(name), "silent", now_s)
        for _ in range(20):
            writer = await client.create()
            assert set(writer.metadata.fragments[0].bookies) == {"b1", "b2", "b3"}

    run_virtual(run())


def test_a_client_that_ends_gives_up_its_open_writers() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 3))
        client = cluster.new_client()
        closed = await client.create()
        await closed.close()
        writer = await client.create()
        cluster.bookie("b1").refuse = BookieIOError("disk")
        add = asyncio.ensure_future(writer.add([b"x"]))
        await asyncio.sleep(0.05)  # a bookie is tried again and again by now
        await client.close()
        with pytest.raises(LedgerClosedError, match="given up"):
            await add
        assert closed.error is None

    run_virtual(run())


def test_of_an_append_that_is_confirmed_in_part_the_part_counts() -> None:
    """Striped, the first entry may be on its bookies while others wait for theirs."""

    async def run() -> None:
        cluster = Cluster(3, (3, 2, 2))
        writer = await cluster.client.create()
        outcomes = Outcomes()
        cluster.ensemble(writer.ledger_id)[2].held_back = []
        writer.append(payloads(0, 3), outcomes)
        await outcomes.wait(1)
        assert outcomes.confirmed == [0]
        assert writer.pending_bytes == sum(map(len, payloads(1, 2)))
        writer.fail(LedgerError("lost"))
        closed = await writer.close()
        assert (closed.last_entry_id, closed.length) == (0, len(payloads(0, 1)[0]))

    run_virtual(run())
