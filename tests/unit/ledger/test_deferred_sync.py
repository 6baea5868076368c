"""Ledgers with deferred sync: what ``force`` confirms, and what a power cut takes."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import BookieUnavailableError, LedgerError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, MemoryBookie, Outcomes, payloads


async def created(cluster: Cluster) -> LedgerWriter:
    return await cluster.client.create(deferred_sync_unsafe=True)


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2)], ids=str)
def test_answered_at_once_and_confirmed_by_force(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums)
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 30), outcomes)
        await outcomes.wait(30)
        assert writer.last_add_confirmed == -1
        assert writer.reader().last_add_confirmed == -1
        await writer.force()
        assert writer.last_add_confirmed == 29
        writer.append(payloads(30, 10), outcomes)
        await outcomes.wait(40)
        assert writer.last_add_confirmed == 29
        closed = await writer.close()  # forces what is left
        assert (closed.last_entry_id, closed.length) == (39, sum(map(len, payloads(0, 40))))
        reader = await cluster.client.open(writer.ledger_id)
        entries = await reader.read_range(0, 39)
        assert [bytes(entry.payload) for entry in entries] == payloads(0, 40)

    run_virtual(run())


def test_force_needs_as_many_bookies_as_hold_the_entries() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=200)
        writer = await created(cluster)
        one, two, three = cluster.ensemble(writer.ledger_id)
        three.held_back = []  # it does not count for the entries
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        two_forces, two.force_ledger = two.force_ledger, _never  # type: ignore[method-assign]
        forcing = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.1)
        assert not forcing.done()  # one and three have answered; three holds nothing
        assert one.forced == three.forced == [writer.ledger_id]
        assert writer.last_add_confirmed == -1
        two.force_ledger = two_forces  # type: ignore[method-assign]
        with pytest.raises(LedgerError, match="could not be forced"):
            await forcing
        await writer.abandon()

    run_virtual(run())


def test_a_barrier_says_nothing_of_what_was_taken_behind_it() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1), timeout_ms=60_000)
        writer = await created(cluster)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        outcomes, go_on = Outcomes(), asyncio.Event()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)

        async def force(_ledger_id: int) -> None:
            await go_on.wait()

        bookie.force_ledger = force  # type: ignore[method-assign]
        bookie.held_back = []
        writer.append(payloads(5, 5), outcomes)
        await asyncio.sleep(0.1)
        forcing = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.1)
        bookie.answer_held_back()
        await outcomes.wait(10)
        go_on.set()
        await forcing
        assert writer.last_add_confirmed == 4
        go_on.clear()
        forcing = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.1)
        assert not forcing.done()
        assert writer.last_add_confirmed == 4
        go_on.set()
        await forcing
        assert writer.last_add_confirmed == 9
        await writer.abandon()

    run_virtual(run())


async def _never(_ledger_id: int) -> None:
    await asyncio.Event().wait()


def test_a_bookie_that_lost_power_cannot_be_forced() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 3), timeout_ms=200)
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        cluster.ensemble(writer.ledger_id)[0].lose_power()
        with pytest.raises(LedgerError, match="it was away"):
            await writer.force()
        assert writer.last_add_confirmed == -1
        writer.append(payloads(5, 1), outcomes)
        await outcomes.wait(6)
        assert outcomes.errors
        await writer.abandon()

    run_virtual(run())


def test_more_entries_after_a_power_cut_do_not_hide_it() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=200)
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        cluster.ensemble(writer.ledger_id)[1].lose_power()
        writer.append(payloads(5, 5), outcomes)
        await asyncio.sleep(0.1)
        with pytest.raises(LedgerError, match="may have lost"):
            await writer.force()
        closed = await writer.close()
        assert closed.last_entry_id == -1

    run_virtual(run())


def test_forced_entries_survive_a_power_cut_of_all() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=200)
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        await writer.force()
        writer.append(payloads(5, 5), outcomes)
        await outcomes.wait(10)
        for bookie in cluster.pool.bookies.values():
            bookie.lose_power()
        await writer.abandon()
        reader = await cluster.new_client().open(writer.ledger_id)
        assert reader.last_add_confirmed == 4
        entries = await reader.read_range(0, 4)
        assert [bytes(entry.payload) for entry in entries] == payloads(0, 5)

    run_virtual(run())


def test_the_ensemble_is_never_changed() -> None:
    async def run() -> None:
        cluster = Cluster(5, (3, 3, 2), timeout_ms=200)
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        await writer.force()
        failed: MemoryBookie = cluster.ensemble(writer.ledger_id)[0]
        failed.refuse = BookieUnavailableError("connection lost")
        writer.append(payloads(5, 1), outcomes)
        await asyncio.sleep(0.1)
        assert writer.error is not None
        assert "deferred sync cannot change" in str(writer.error)
        closed = await writer.close()
        assert closed.last_entry_id == 4
        assert len(closed.fragments) == 1

    run_virtual(run())


def test_an_ordinary_ledger_has_nothing_to_force() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        writer = await cluster.client.create()
        assert await writer.add([b"x"]) == 0
        await writer.force()
        assert cluster.bookie("b1").forced == []
        assert writer.last_add_confirmed == 0
        await writer.close()

    run_virtual(run())


def test_two_forces_at_once_confirm_what_the_later_one_forced() -> None:
    """The bookies answer the first one's barriers last: what the second has confirmed meanwhile
    must stay confirmed, or the ledger would be closed before it."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        writer = await created(cluster)
        outcomes = Outcomes()
        writer.append(payloads(0, 5), outcomes)
        await outcomes.wait(5)
        bookies = cluster.ensemble(writer.ledger_id)
        for bookie in bookies:
            bookie.read_delay_s = 0.1
        first = asyncio.ensure_future(writer.force())
        await asyncio.sleep(0.01)
        for bookie in bookies:
            bookie.read_delay_s = 0
        writer.append(payloads(5, 5), outcomes)
        await outcomes.wait(10)
        await asyncio.gather(first, writer.force())
        assert writer.last_add_confirmed == 9
        closed = await writer.close()
        assert (closed.last_entry_id, closed.length) == (9, sum(map(len, payloads(0, 10))))

    run_virtual(run())
