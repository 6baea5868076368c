"""Reading: any replica will do, corrupt ones are passed over, bounds are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.ledger.reading.reader import LedgerReader
from magnetar.model.errors import BookieIOError, EntryDamagedError, LedgerError, NoEntryError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, payloads


async def written(cluster: Cluster, count: int) -> LedgerReader:
    """A closed ledger of ``count`` entries, opened."""
    writer = await cluster.client.create()
    outcomes = Outcomes()
    writer.append(payloads(0, count), outcomes)
    await outcomes.wait(count)
    await asyncio.sleep(0)
    await writer.close()
    return await cluster.client.open(writer.ledger_id)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (5, 2, 1), (3, 1, 1)], ids=str)
def test_bounds_and_the_end(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        reader = await written(Cluster(5, quorums), 50)
        for first, count in ((0, 10), (7, 1), (45, 5), (3, 40)):
            found = await reader.read(first, count, 1 << 20)
            assert [e.entry_id for e in found] == list(range(first, first + count))
            assert [bytes(e.payload) for e in found] == payloads(first, count)
        assert [e.entry_id for e in await reader.read(48, 100, 1 << 20)] == [48, 49]
        assert await reader.read(50, 10, 1 << 20) == []
        some = await reader.read(0, 50, 300)
        assert 1 <= len(some) <= 12
        assert next(e.entry_id for e in await reader.read(5, 10, 0)) == 5
        with pytest.raises(ValueError, match="past the last confirmed"):
            await reader.read_range(0, 50)

    run_virtual(run())


def test_more_than_was_asked_for_is_not_handed_on() -> None:
    """A bookie holds what is not confirmed yet, and may be generous."""

    async def run() -> None:
        cluster = Cluster()
        whole = await written(cluster, 20)
        for bookie in cluster.ensemble(whole.ledger_id):
            give = bookie.read_batch

            async def give_all(
                ledger: int, first: int, _: int, *rest: Any, give: Any = give
            ) -> Any:
                return await give(ledger, first, 100, *rest)

            bookie.read_batch = give_all  # type: ignore[method-assign, assignment]
        reader = LedgerReader(whole.metadata, 4, cluster.pool, cluster.config)
        for first, count, expected in ((0, 10, 5), (1, 2, 2), (4, 1, 1)):
            found = await reader.read(first, count, 1 << 20)
            assert [e.entry_id for e in found] == list(range(first, first + expected))

    run_virtual(run())


@pytest.mark.parametrize("fault", ["", "corrupt", "hole"])
def test_a_long_read_goes_in_runs_with_some_ahead(fault: str) -> None:
    """A corrupt copy costs a read of another replica; at a hole what came before it is given."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        large = [payload.ljust(100_000) for payload in payloads(0, 40)]
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(large, outcomes)
        await outcomes.wait(40)
        await asyncio.sleep(0)
        await writer.close()
        reader = await cluster.client.open(writer.ledger_id)
        await reader.read(0, 1, 1)  # now it knows how large they are
        bookies = cluster.ensemble(writer.ledger_id)
        for bookie in bookies:
            bookie.read_delay_s = 0.001
            if fault == "hole":
                del bookie.entries[writer.ledger_id][17]
        if fault == "corrupt":
            bookies[0].corrupt |= set(range(0, 40, 7))
        before_s = asyncio.get_running_loop().time()
        entries = await reader.read(0, 40, 8 << 20)
        took_s = asyncio.get_running_loop().time() - before_s
        if fault == "hole":
            assert [e.entry_id for e in entries] == list(range(17))
            with pytest.raises(NoEntryError):
                await reader.read(17, 23, 8 << 20)
        elif fault == "corrupt":
            assert [bytes(e.payload) for e in await reader.read_range(0, 39)] == large
        else:
            assert [bytes(e.payload) for e in entries] == large
            assert took_s < 0.001 * 4  # four runs of ten, not one after the other

    run_virtual(run())


def test_no_request_is_made_for_what_has_no_room_for_an_entry() -> None:
    """A read of 4 MiB asked for 16 entries of 250 KiB, and then for one in what was left."""

    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        reader = await written(cluster, 50)
        (bookie,) = cluster.ensemble(reader.ledger_id)
        (entry,) = await reader.read(0, 1, 1)
        asked: list[int] = []
        read_batch = bookie.read_batch

        async def counted(ledger_id: int, first: int, *rest: Any) -> list[bytes]:
            asked.append(first)
            return await read_batch(ledger_id, first, *rest)

        bookie.read_batch = counted  # type: ignore[method-assign]
        found = await reader.read(0, 50, 10 * len(entry.data) + len(entry.data) // 2)
        assert (len(found), asked) == (10, [0])

    run_virtual(run())


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (3, 2, 2)], ids=str)
@pytest.mark.parametrize("fault", ["down", "silent", "corrupt", "empty", "io"])
def test_one_bad_replica_is_passed_over(fault: str, quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        for victim_index in range(quorums[0]):
            cluster = Cluster(4, quorums, timeout_ms=40)
            reader = await written(cluster, 30)
            victim = cluster.ensemble(reader.ledger_id)[victim_index]
            victim.down, victim.silent = fault == "down", fault == "silent"
            if fault == "corrupt":
                victim.corrupt |= {3, 4, 17}
            elif fault == "empty":
                victim.entries.clear()
            elif fault == "io":
                victim.read_error = BookieIOError("disk")
            entries = await reader.read_range(0, 29)
            assert [bytes(e.payload) for e in entries] == payloads(0, 30)

    run_virtual(run())


def test_a_bookie_that_refused_is_asked_last_from_then_on() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=50)
        reader = await written(cluster, 10)
        preferred = cluster.ensemble(reader.ledger_id)[reader.ledger_id % 3]
        preferred.silent = True
        loop = asyncio.get_running_loop()
        await reader.read(0, 5, 1000)
        began = loop.time()
        for _ in range(20):
            await reader.read(0, 5, 1000)
        assert loop.time() - began < 0.05 * 20 / 2

    run_virtual(run())


def test_when_no_replica_is_sound_the_error_says_what_each_said() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        reader = await written(cluster, 3)
        one, two, three = cluster.ensemble(reader.ledger_id)
        one.corrupt.add(1)
        two.down = True
        three.entries[reader.ledger_id].pop(1)
        with pytest.raises(LedgerError) as told:
            await reader.read(1, 1, 1000)
        text = str(told.value)
        assert f"{one.bookie_id}: DigestError" in text
        assert f"{two.bookie_id}: BookieUnavailableError" in text
        assert f"{three.bookie_id}: NoEntryError" in text
        assert type(told.value) is LedgerError  # the one that is away may have it
        two.down = False
        two.corrupt.add(1)
        with pytest.raises(EntryDamagedError, match=r"no replica has a sound copy of entry \d+:1 "):
            await reader.read(1, 1, 1000)
        found = await reader.read(0, 3, 1000)  # what comes before the bad one is given
        assert [entry.entry_id for entry in found] == [0]

    run_virtual(run())


def test_entries_of_several_fragments_are_read_from_their_own_bookies() -> None:
    async def run() -> None:
        cluster = Cluster(6, (2, 2, 2))
        writer = await cluster.client.create()
        outcomes = Outcomes()
        for i in range(4):
            writer.append(payloads(i * 5, 5), outcomes)
            await outcomes.wait(i * 5 + 5)
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("full")
        await writer.close()
        assert len(cluster.metadata(writer.ledger_id).fragments) == 4
        for bookie in cluster.pool.bookies.values():
            bookie.refuse = None
        reader = await cluster.client.open(writer.ledger_id)
        found = await reader.read(0, 20, 1 << 20)
        assert [bytes(e.payload) for e in found] == payloads(0, 20)

    run_virtual(run())
