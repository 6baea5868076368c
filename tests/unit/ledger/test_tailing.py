"""Readers of open ledgers: what they see, when, and that they do not poll for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.lac_announcer import TRIES_MAX
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    LedgerError,
    MetadataUnavailableError,
    NoEntryError,
    NoSuchLedgerError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment, LedgerMetadata, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads, until


@asynccontextmanager
async def tailed(cluster: Cluster) -> AsyncIterator[tuple[LedgerWriter, TailingReader]]:
    """A writer, and another client's reader of its open ledger, closed at the end."""
    async with (
        opened(cluster) as writer,
        await cluster.new_client().open_no_recovery(writer.ledger_id) as reader,
    ):
        yield writer, reader


async def collect(reader: TailingReader, first: int = 0) -> list[bytes]:
    return [bytes(entry.payload) async for entry in reader.follow(first)]


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)], ids=str)
def test_a_reader_follows_a_writer_to_the_end(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums, timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            async with await cluster.new_client().open_no_recovery(writer.ledger_id) as reader:
                following = asyncio.ensure_future(collect(reader))
                for i in range(50):
                    writer.append(payloads(2 * i, 2), outcomes)
                    await asyncio.sleep(0.05 if i % 10 else 3)
                await outcomes.wait(100)
                await writer.close()
                assert await asyncio.wait_for(following, 1) == payloads(0, 100)
                assert reader.closed
        assert not any(cluster.manager.watches.values())

    run_virtual(run())


def test_an_entry_followed_by_another_is_seen_at_once_and_the_last_one_soon() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        loop = asyncio.get_running_loop()
        async with tailed(cluster) as (writer, reader):
            outcomes = Outcomes()
            await asyncio.sleep(100)
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            began_s = loop.time()
            writer.append(payloads(1, 1), outcomes)
            assert await reader.wait_past(-1) == 0
            assert loop.time() - began_s < 0.01
            assert await reader.wait_past(0) == 1  # the writer is idle now
            assert 0.9 < loop.time() - began_s < 1.1
            told = [bookie.lacs[writer.ledger_id][0] for bookie in cluster.ensemble(1)]
            assert told == [1, 1, 1]

    run_virtual(run())


def test_who_hears_from_the_writer_asks_no_bookie() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        loop = asyncio.get_running_loop()
        async with tailed(cluster) as (writer, reader):
            outcomes = Outcomes()
            waiting = asyncio.ensure_future(reader.wait_past(-1))
            await asyncio.sleep(0.1)
            asked = sum(bookie.reads for bookie in cluster.ensemble(writer.ledger_id))
            for number in range(20):
                writer.append(payloads(number, 1), outcomes)
                await outcomes.wait(number + 1)
                began_s = loop.time()
                reader.told(number)
                assert await waiting == number
                assert loop.time() == began_s, "at once, and the entry is read"
                (entry,) = await reader.read(number, 1, 100)
                assert [entry.payload] == payloads(number, 1)
                waiting = asyncio.ensure_future(reader.wait_past(number))
                await asyncio.sleep(0.3)
            reads = sum(bookie.reads for bookie in cluster.ensemble(writer.ledger_id))
            assert reads - asked <= 20 + 3, "one read for each, and the polls of the beginning"
            # The writer goes on and is not heard any more: bookies are asked again.
            writer.append(payloads(20, 1), outcomes)
            await outcomes.wait(21)
            reader.told(3)
            assert await waiting == 20
            assert reader.last_add_confirmed == 20, "what was told late moves nothing back"
            await writer.close()
            assert await reader.wait_past(20) == 20
            assert reader.closed

    run_virtual(run())


def test_a_busy_writer_writes_no_explicit_lac_and_an_idle_one_writes_it_once() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            for i in range(100):
                writer.append(payloads(i, 1), outcomes)
                await asyncio.sleep(0.3)
            (bookie,) = cluster.ensemble(writer.ledger_id)
            assert bookie.lacs == {}
            reads = bookie.reads
            await asyncio.sleep(1000)
            assert bookie.lacs[writer.ledger_id][0] == 99
            assert bookie.reads == reads + 1  # the one write of the LAC

    run_virtual(run())


def test_a_bookie_of_the_same_process_asks_when_a_reader_does() -> None:
    """With many quiet topics there would be an announcement for nearly every message."""

    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1), local=("b1",))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            (bookie,) = cluster.ensemble(writer.ledger_id)
            loop = asyncio.get_running_loop()
            timers = len(loop._scheduled)  # type: ignore[attr-defined]
            for i in range(3):
                writer.append(payloads(i, 1), outcomes)
                await outcomes.wait(i + 1)
                await asyncio.sleep(3)
                assert len(loop._scheduled) == timers  # type: ignore[attr-defined]
                reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
                assert reader.last_add_confirmed == i
                reader.close()
            assert bookie.lacs == {}, "nothing was told"
            other = await cluster.client.create()
            other.append(payloads(0, 1), Outcomes())
            assert bookie.lac_source is not None
            assert bookie.lac_source(other.ledger_id) is None, "nothing is confirmed"
            assert bookie.lac_source(99) is None, "another process writes it"
            await writer.close()
            assert bookie.lac_source(writer.ledger_id) is None, "its metadata tells"
            await other.abandon()

    run_virtual(run())


def test_a_writer_tells_those_of_its_bookies_that_do_not_ask() -> None:
    """Also when a bookie of the same process was replaced by one of another."""

    async def run() -> None:
        cluster = Cluster(3, (2, 2, 2), timeout_ms=500, local=("b1", "b2"))
        cluster.pool.gone.add("b3")
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            one, two = cluster.ensemble(writer.ledger_id)
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            await asyncio.sleep(3)
            assert one.lacs == two.lacs == {}
            cluster.pool.gone.clear()
            one.down = True
            writer.append(payloads(1, 1), outcomes)
            await outcomes.wait(2)
            await asyncio.sleep(10)
            three = cluster.bookie("b3")
            assert three.lacs[writer.ledger_id][0] == 1
            assert one.lacs == two.lacs == {}

    run_virtual(run())


def test_a_bookie_that_was_away_is_told_when_it_is_back() -> None:
    """A reader that reaches no other bookie would never see the last entry."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 2), outcomes)
            await outcomes.wait(2)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            one, two, three = cluster.ensemble(writer.ledger_id)
            one.down = True
            await asyncio.sleep(10)
            assert writer.ledger_id not in one.lacs
            one.down, two.down, three.down = False, True, True
            assert await reader.wait_past(0, timeout_s=60) == 1
            assert [two.lacs[writer.ledger_id][0], three.lacs[writer.ledger_id][0]] == [1, 1]
            reader.close()
            tries = one.reads
            await asyncio.sleep(10_000)
            assert one.reads == tries, "it has been told: nothing is written to it again"

    run_virtual(run())


def test_a_bookie_that_stays_away_is_told_so_many_times() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            one, two, three = cluster.ensemble(writer.ledger_id)
            one.down = True
            await asyncio.sleep(10_000)
            assert one.reads == TRIES_MAX
            assert [two.reads, three.reads] == [1, 1]

    run_virtual(run())


def test_waiting_costs_a_few_requests_a_minute() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (_, reader):
            assert await reader.wait_past(-1, timeout_s=600) == -1
            assert sum(bookie.long_polls for bookie in cluster.pool.bookies.values()) <= 3 * 21

    run_virtual(run())


def test_entries_are_heard_of_while_a_change_cannot_be_read() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            outcomes = Outcomes()

            async def away(ledger_id: int) -> tuple[LedgerMetadata, int]:
                await asyncio.sleep(15)
                raise MetadataUnavailableError("no store")

            cluster.manager.read = away  # type: ignore[method-assign]
            assert await reader.wait_past(-1, timeout_s=1) == -1
            for i in range(3):
                writer.append(payloads(i, 1), outcomes)
                await outcomes.wait(i + 1)
                assert await reader.wait_past(i - 2, timeout_s=1) == i - 1
            with pytest.raises(MetadataUnavailableError):
                await reader.wait_past(2)

    run_virtual(run())


def test_no_bookie_is_left_with_a_poll_that_outlasts_the_caller() -> None:
    """It would go on with it: a program that waits for 100 ms at a time had hundreds under way."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            reads = 0
            read = cluster.manager.read

            async def counted(ledger_id: int) -> tuple[LedgerMetadata, int]:
                nonlocal reads
                reads += 1
                return await read(ledger_id)

            cluster.manager.read = counted  # type: ignore[method-assign]
            for _ in range(50):
                assert await reader.wait_past(-1, timeout_s=0.1) == -1
            assert all(max(bookie.poll_s) < 0.11 for bookie in cluster.ensemble(writer.ledger_id))
            assert reads <= 1

    run_virtual(run())


def test_what_comes_before_the_last_fragment_is_confirmed() -> None:
    """Nobody of the new ensemble has an entry that could tell of it."""

    async def run() -> None:
        cluster = Cluster(6, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            for i in range(5):
                writer.append(payloads(i, 1), outcomes)
                await outcomes.wait(i + 1)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            assert reader.last_add_confirmed == 3
            waiting = asyncio.ensure_future(reader.wait_past(3, timeout_s=0.5))
            await asyncio.sleep(0.1)
            metadata = cluster.metadata(writer.ledger_id)
            others = sorted(set(cluster.pool.bookies) - set(metadata.fragments[0].bookies))
            second = Fragment(5, tuple(BookieId(name) for name in others))
            await cluster.manager.write(
                replace(metadata, fragments=(*metadata.fragments, second)), 0
            )
            assert await waiting == 4
            reader.close()

    run_virtual(run())


def test_one_bookie_is_enough_to_hear_from() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            one, two, _three = cluster.ensemble(writer.ledger_id)
            one.silent = two.silent = True
            writer.append(payloads(3, 1), outcomes)
            assert await reader.wait_past(1, timeout_s=5) == 2
            reader.close()

    run_virtual(run())


def test_a_change_of_the_ensemble_is_followed() -> None:
    async def run() -> None:
        cluster = Cluster(6, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            outcomes = Outcomes()
            following = asyncio.ensure_future(collect(reader))
            for i in range(40):
                if i in (10, 20, 30):
                    cluster.ensemble(writer.ledger_id)[0].down = True
                writer.append(payloads(i, 1), outcomes)
                await asyncio.sleep(0.1)
            await outcomes.wait(40)
            assert len(cluster.metadata(writer.ledger_id).fragments) == 4
            await writer.close()
            assert await asyncio.wait_for(following, 5) == payloads(0, 40)

    run_virtual(run())


def test_a_recovery_ends_the_tail_at_the_ledgers_end() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            outcomes = Outcomes()
            following = asyncio.ensure_future(collect(reader))
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            await writer.abandon()
            recovered = await cluster.new_client().open(writer.ledger_id)
            assert recovered.last_add_confirmed == 4
            assert await asyncio.wait_for(following, 5) == payloads(0, 5)

    run_virtual(run())


def test_a_deleted_ledger_ends_the_tail_with_an_error() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            waiting = asyncio.ensure_future(reader.wait_past(-1))
            await asyncio.sleep(1)
            await cluster.client.delete(writer.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await asyncio.wait_for(waiting, 5)

    run_virtual(run())


def test_a_lac_without_a_digest_counts_for_nothing() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            (bookie,) = cluster.ensemble(writer.ledger_id)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            assert reader.last_add_confirmed == -1
            bookie.lacs[writer.ledger_id] = (77, b"\x00" * 20)
            assert await reader.wait_past(-1, timeout_s=0.5) == -1
            reader.close()

    run_virtual(run())


def test_metadata_that_changed_before_the_wait_is_seen() -> None:
    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2), timeout_ms=500)
        async with tailed(cluster) as (writer, reader):
            metadata, version = cluster.manager.ledgers[writer.ledger_id]
            moved = Fragment(0, tuple(reversed(metadata.fragments[0].bookies)))
            changed = replace(metadata, fragments=(moved,), state=LedgerState.OPEN)
            await cluster.manager.write(changed, version)
            await reader.wait_past(-1, timeout_s=1)
            assert reader.metadata.fragments == (moved,)
            reader.close()
            await until(lambda: not any(cluster.manager.watches.values()))

    run_virtual(run())


def test_a_read_by_stale_metadata_looks_again() -> None:
    async def run() -> None:
        cluster = Cluster(6, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            old = cluster.ensemble(writer.ledger_id)
            for bookie in old:
                bookie.down = True
                writer.append(payloads(writer.last_add_pushed + 1, 1), outcomes)
                await asyncio.sleep(0.3)
            writer.append(payloads(8, 2), outcomes)
            await outcomes.wait(10)
            assert not set(old) & set(cluster.ensemble(writer.ledger_id))
            for bookie in old:
                bookie.down = False
            reader.last_add_confirmed = 8  # as a poll would have told
            assert len(reader.metadata.fragments) == 1
            (entry,) = await reader.read(8, 1, 100)
            assert bytes(entry.payload) == payloads(8, 1)[0]
            await cluster.client.delete(writer.ledger_id)
            for bookie in cluster.pool.bookies.values():
                bookie.entries.clear()
            with pytest.raises(NoSuchLedgerError):
                await reader.read(8, 1, 100)

    run_virtual(run())


def test_a_read_that_meets_a_closed_ledger_does_not_end_the_tail_early() -> None:
    """It takes the metadata, which tells of the close, and with it where the ledger ends."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            reader.last_add_confirmed = 3  # as a poll would have told
            writer.append(payloads(5, 5), outcomes)
            await outcomes.wait(10)
            await writer.close()
            bookies = list(cluster.pool.bookies.values())
            held = [dict(bookie.entries) for bookie in bookies]
            for bookie in bookies:
                bookie.entries.clear()
            with pytest.raises((LedgerError, NoEntryError)):
                await reader.read(0, 1, 100)
            for bookie, entries in zip(bookies, held, strict=True):
                bookie.entries.update(entries)
            assert await reader.wait_past(3) == 9
            assert await collect(reader) == payloads(0, 10)

    run_virtual(run())


@pytest.mark.parametrize("fault", ["slow", "away"])
def test_a_change_that_could_not_be_read_is_looked_at_again(fault: str) -> None:
    """The watch tells once. A caller that waits for a second at a time never gets to the look
    after a quiet half minute, and would not hear of the end."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 2), outcomes)
            await outcomes.wait(2)
            reader = await cluster.new_client().open_no_recovery(writer.ledger_id)
            assert await reader.wait_past(0, timeout_s=5) == 1
            assert await reader.wait_past(1, timeout_s=1) == 1
            await writer.close()
            read = cluster.manager.read

            async def broken(ledger_id: int) -> tuple[LedgerMetadata, int]:
                await asyncio.sleep(2)
                raise MetadataUnavailableError("no store")

            cluster.manager.read = broken  # type: ignore[method-assign]
            if fault == "away":
                with pytest.raises(MetadataUnavailableError):
                    await reader.wait_past(1)
            else:
                assert await reader.wait_past(1, timeout_s=1) == 1
            cluster.manager.read = read  # type: ignore[method-assign]
            assert not reader.closed
            assert await reader.wait_past(1, timeout_s=1) == 1
            assert reader.closed
            reader.close()

    run_virtual(run())
