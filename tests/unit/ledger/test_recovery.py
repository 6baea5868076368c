"""Recovery: what survives a writer's crash, what stops a recovery, and that two of them agree."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.recovering import recovery
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    LedgerFencedError,
    LedgerRecoveryError,
    NoLedgerError,
    UnknownLedgerStateError,
)
from magnetar.model.ledger import Fragment, LedgerMetadata, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, payloads, until


async def crashed(cluster: Cluster, confirmed: int) -> LedgerWriter:
    """A writer that confirmed entries one by one and then died."""
    writer = await cluster.client.create()
    outcomes = Outcomes()
    for i in range(confirmed):
        writer.append(payloads(i, 1), outcomes)
        await outcomes.wait(i + 1)
    await asyncio.sleep(0)
    await writer.abandon()
    return writer


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    return [bytes(e.payload) for e in await reader.read_range(0, reader.last_add_confirmed)]


def plant(cluster: Cluster, writer: LedgerWriter, entry_id: int, slots: list[int]) -> None:
    """An entry that reached only some bookies before the crash."""
    lac = writer.last_add_confirmed
    payload = payloads(entry_id, 1)[0]
    length = sum(map(len, payloads(0, entry_id + 1)))
    data = writer.digest.build(entry_id, lac, length, payload)
    for slot in slots:
        bookie = cluster.ensemble(writer.ledger_id)[slot]
        bookie.entries.setdefault(writer.ledger_id, {})[entry_id] = data


def test_a_tail_that_may_be_acknowledged_is_kept_and_written_again() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 5, [0, 1])
        plant(cluster, writer, 6, [1, 2])
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 7)
        metadata = cluster.metadata(writer.ledger_id)
        assert metadata.length == sum(map(len, payloads(0, 7)))
        await asyncio.sleep(0)
        for bookie in cluster.ensemble(writer.ledger_id):
            assert {5, 6} <= set(bookie.entries[writer.ledger_id])
            assert bookie.adds[-1][1] & AddFlag.RECOVERY

    run_virtual(run())


def test_entries_written_again_tell_the_lac_that_the_recovery_began_with() -> None:
    """Not what it has confirmed since: that may be on replacements which only its close names."""

    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        for entry_id in range(5, 25):
            plant(cluster, writer, entry_id, [0, 1, 2])
        known = max(
            int.from_bytes(data[16:24], "big", signed=True)
            for bookie in cluster.ensemble(writer.ledger_id)
            for entry_id, data in bookie.entries[writer.ledger_id].items()
            if entry_id < 5
        )
        await cluster.new_client().open(writer.ledger_id)
        for bookie in cluster.ensemble(writer.ledger_id):
            for entry_id in range(5, 25):
                told = bookie.entries[writer.ledger_id][entry_id][16:24]
                assert int.from_bytes(told, "big", signed=True) <= max(known, 4)

    run_virtual(run())


def test_entries_beyond_a_hole_are_dropped() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 6, [0])
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 5)

    run_virtual(run())


@pytest.mark.parametrize("kind", ["down", "silent", "io", "limbo", "corrupt"])
def test_unknown_is_never_taken_for_absent(kind: str) -> None:
    """With (3, 3, 2) two explicit negatives are needed; one and an unknown prove nothing."""

    async def run() -> None:
        cluster = Cluster(timeout_ms=60)
        writer = await crashed(cluster, 5)
        one, two, _ = cluster.ensemble(writer.ledger_id)
        plant(cluster, writer, 5, [0, 1])  # on Qa bookies: it may have been acknowledged
        for bookie in (one, two):
            _break(bookie, kind)
        with pytest.raises(LedgerRecoveryError, match=f"{one.bookie_id}|{two.bookie_id}"):
            await cluster.new_client().open(writer.ledger_id)
        assert cluster.metadata(writer.ledger_id).state is LedgerState.IN_RECOVERY
        for bookie in (one, two):
            bookie.down = bookie.silent = False
            bookie.read_error = None
            bookie.corrupt.clear()
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 6)

    def _break(bookie, kind: str) -> None:  # type: ignore[no-untyped-def]
        bookie.down, bookie.silent = kind == "down", kind == "silent"
        if kind in ("io", "limbo"):
            error = BookieIOError("disk") if kind == "io" else UnknownLedgerStateError("limbo")
            bookie.read_error = error
        if kind == "corrupt":
            bookie.corrupt.add(5)

    run_virtual(run())


def test_a_damaged_copy_before_the_last_entry_is_not_taken_for_absent() -> None:
    """Its bookies tell their LAC soundly, so that the fence goes through: the vote must stop."""

    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        one, two, _ = cluster.ensemble(writer.ledger_id)
        plant(cluster, writer, 5, [0, 1])
        plant(cluster, writer, 6, [0, 1])
        one.corrupt.add(5)
        two.corrupt.add(5)
        with pytest.raises(LedgerRecoveryError, match="whether entry 5 was acknowledged"):
            await cluster.new_client().open(writer.ledger_id)
        assert cluster.metadata(writer.ledger_id).state is LedgerState.IN_RECOVERY
        one.corrupt.clear()
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 7)

    run_virtual(run())


def test_no_entry_is_said_of_one_entry_and_not_of_those_behind_it() -> None:
    """Holes that cross: each bookie that answers lacks one of two entries that both were confirmed,
    and the one that has both is away. A "no" for the rest of a run would drop the second."""

    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 5, [1, 2])
        plant(cluster, writer, 6, [0, 1])
        cluster.ensemble(writer.ledger_id)[1].down = True
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 7)

    run_virtual(run())


@pytest.mark.parametrize("fault", ["down", "silent"])
def test_one_bookie_away_does_not_hold_recovery_up(fault: str) -> None:
    async def run() -> None:
        cluster = Cluster(4, timeout_ms=2000)
        writer = await crashed(cluster, 20)
        away = cluster.ensemble(writer.ledger_id)[0]
        away.down, away.silent = fault == "down", fault == "silent"
        async with asyncio.timeout(1.5):
            assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 20)

    run_virtual(run())


def test_a_bookie_lost_for_rewrites_is_replaced_only_in_the_closed_metadata() -> None:
    async def run() -> None:
        cluster = Cluster(4)
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 5, [1, 2])
        lost = cluster.ensemble(writer.ledger_id)[0]
        lost.refuse = BookieUnavailableError("gone")
        late = cluster.ensemble(writer.ledger_id)[1:]
        for bookie in late:
            bookie.held_back = []
        opening = asyncio.ensure_future(contents(cluster.new_client(), writer.ledger_id))
        spare = next(b for b in cluster.pool.bookies.values() if writer.ledger_id not in b.entries)
        await until(lambda: spare.adds)
        states = [metadata.state for metadata in cluster.manager.writes]
        assert states == [LedgerState.IN_RECOVERY]
        for bookie in late:
            bookie.answer_held_back()
        assert await opening == payloads(0, 6)
        metadata = cluster.metadata(writer.ledger_id)
        assert lost.bookie_id not in metadata.fragments[-1].bookies
        assert metadata.fragments[-1].first_entry_id == 5
        assert 5 in spare.entries[writer.ledger_id]

    run_virtual(run())


def test_a_tail_that_nobody_takes_again_is_not_cut_off() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 5, [0, 1])
        for bookie in cluster.pool.bookies.values():
            bookie.refuse = BookieIOError("its disk fails")
        with pytest.raises(LedgerRecoveryError, match="cannot be written again"):
            await cluster.new_client().open(writer.ledger_id)
        assert cluster.metadata(writer.ledger_id).state is LedgerState.IN_RECOVERY
        for bookie in cluster.pool.bookies.values():
            bookie.refuse = None
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 6)

    run_virtual(run())


def test_a_fresh_last_fragment_that_knows_no_lac() -> None:
    """The writer died right after an ensemble change; its new bookies hold nothing."""

    async def run() -> None:
        cluster = Cluster(6)
        writer = await crashed(cluster, 5)
        metadata, version = cluster.manager.ledgers[writer.ledger_id]
        others = tuple(sorted(set(cluster.pool.bookies) - set(metadata.fragments[0].bookies)))
        fragments = (*metadata.fragments, Fragment(5, others))
        cluster.manager.ledgers[writer.ledger_id] = (
            replace(metadata, fragments=fragments),
            version + 1,
        )
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 5)
        closed = cluster.metadata(writer.ledger_id)
        assert (closed.last_entry_id, closed.length) == (4, sum(map(len, payloads(0, 5))))
        firsts = [fragment.first_entry_id for fragment in closed.fragments]
        assert firsts == sorted(set(firsts))

    run_virtual(run())


def test_the_old_writer_is_not_acknowledged_after_the_close() -> None:
    """Fencing the LAC reads is not enough: a bookie not needed for coverage must refuse too."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 3), outcomes)
        await outcomes.wait(3)
        await cluster.new_client().open(writer.ledger_id)
        writer.append(payloads(3, 1), outcomes)
        await outcomes.wait(4)
        assert isinstance(outcomes.errors[0], LedgerFencedError)
        fenced = [b for b in cluster.pool.bookies.values() if writer.ledger_id in b.fenced]
        assert len(fenced) >= 2
        writer.append(payloads(4, 1), outcomes)
        await outcomes.wait(5)
        assert isinstance(outcomes.errors[1], LedgerFencedError)
        await writer.abandon()

    run_virtual(run())


def test_concurrent_recoveries_end_identical() -> None:
    async def run() -> None:
        for seed in range(20):
            cluster = Cluster(5, seed=seed)
            writer = await crashed(cluster, 6)
            plant(cluster, writer, 6, [seed % 3])
            clients = [cluster.new_client() for _ in range(3)]
            readers = await asyncio.gather(*(c.open(writer.ledger_id) for c in clients))
            assert len({reader.last_add_confirmed for reader in readers}) == 1
            assert len({reader.metadata for reader in readers}) == 1
            closes = [m for m in cluster.manager.writes if m.closed]
            assert len(closes) == 1
            # the entry on one bookie was never acknowledged: it may stay or go, for all alike
            kept = readers[0].last_add_confirmed + 1
            assert kept in (6, 7)
            assert await contents(clients[0], writer.ledger_id) == payloads(0, kept)

    run_virtual(run())


def test_a_recovery_that_finds_the_ledger_closed_meanwhile_takes_that_end() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 4)

        async def other_recovery_first(metadata: LedgerMetadata) -> None:
            if metadata.closed:
                cluster.manager.before_write = None
                current, version = cluster.manager.ledgers[writer.ledger_id]
                theirs = current.with_close(3, metadata.length)
                cluster.manager.ledgers[writer.ledger_id] = (theirs, version + 1)

        plant(cluster, writer, 4, [0])
        cluster.manager.before_write = other_recovery_first
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 4)

    run_virtual(run())


def test_a_long_tail_is_recovered_in_windows() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 2, 2))
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 1000), outcomes)  # one append: its LAC knows of nothing before
        await outcomes.wait(1000)
        await writer.abandon()
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 1000)

    run_virtual(run())


def test_a_long_tail_goes_on_when_what_is_under_way_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "REWRITE_BYTES_MAX", 0)

    async def run() -> None:
        cluster = Cluster(3, (3, 2, 2))
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 100), outcomes)
        await outcomes.wait(100)
        await writer.abandon()
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 100)

    run_virtual(run())


def test_recovery_waits_for_no_more_than_it_needs_and_names_who_is_missing() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=50)
        writer = await crashed(cluster, 3)
        names = [bookie.bookie_id for bookie in cluster.ensemble(writer.ledger_id)]
        for bookie in cluster.ensemble(writer.ledger_id)[:2]:
            bookie.down = True
        with pytest.raises(LedgerRecoveryError, match="cannot be fenced") as told:
            await cluster.new_client().open(writer.ledger_id)
        assert all(name in str(told.value) for name in names[:2])
        assert names[2] not in str(told.value)

    run_virtual(run())


def test_who_says_that_there_is_no_entry_is_fenced_by_that_question() -> None:
    """Also one that the first question, to all, did not reach: what is on its way there could else
    be acknowledged, with a bookie that is away now, after it was found absent."""

    async def run() -> None:
        cluster = Cluster(timeout_ms=60)
        writer = await crashed(cluster, 5)
        _, holds, late = cluster.ensemble(writer.ledger_id)
        plant(cluster, writer, 5, [1])  # and on its way to the third

        async def lost(*_: object) -> object:
            return await asyncio.Event().wait()

        late.read_lac = lost  # type: ignore[method-assign, assignment]
        holds.read_batch = lost  # type: ignore[method-assign, assignment]
        reader = await cluster.new_client().open(writer.ledger_id)
        assert reader.metadata.last_entry_id == 4
        assert writer.ledger_id in late.fenced

    run_virtual(run())


@pytest.mark.parametrize("knows_nothing_of", ["the last fragment", "the ledger"])
def test_a_bookie_that_forgot_the_ledger_counts_as_fenced(knows_nothing_of: str) -> None:
    """BookKeeper's rule: who holds nothing of a ledger takes nothing of it from its old writer
    either, so one bookie that is away beside it holds no recovery up."""

    async def run() -> None:
        cluster = Cluster(timeout_ms=60)
        writer = await crashed(cluster, 5)
        forgot, away, _ = cluster.ensemble(writer.ledger_id)
        away.silent = True
        if knows_nothing_of == "the ledger":
            forgot.read_error = NoLedgerError("it was deleted here")
        del forgot.entries[writer.ledger_id]
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 5)
        assert cluster.metadata(writer.ledger_id).last_entry_id == 4

    run_virtual(run())


def test_a_recovery_gives_up_while_others_go_on_changing_the_ledger() -> None:
    """Each attempt is lost to somebody else's write; the ledger stays as they left it, open to the
    next recovery."""

    async def run() -> None:
        cluster = Cluster()
        writer = await crashed(cluster, 5)
        attempts = 0

        async def other_first(metadata: LedgerMetadata) -> None:
            nonlocal attempts
            attempts += 1
            theirs, version = cluster.manager.ledgers[writer.ledger_id]
            cluster.manager.ledgers[writer.ledger_id] = (theirs, version + 1)

        cluster.manager.before_write = other_first
        with pytest.raises(LedgerRecoveryError, match="changed 10 times while recovery began"):
            await cluster.new_client().open(writer.ledger_id)
        assert attempts == 10
        assert cluster.metadata(writer.ledger_id).state is LedgerState.OPEN
        in_recovery = replace(cluster.metadata(writer.ledger_id), state=LedgerState.IN_RECOVERY)
        cluster.manager.ledgers[writer.ledger_id] = (in_recovery, 99)
        with pytest.raises(LedgerRecoveryError, match="changed 10 times during recovery"):
            await cluster.new_client().open(writer.ledger_id)
        assert attempts == 20
        cluster.manager.before_write = None
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 5)

    run_virtual(run())


def test_large_entries_of_a_client_that_may_send_them_are_recovered_by_one_that_may_not() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create()
        outcomes = Outcomes()
        large = b"x" * 5000
        writer.append([large], outcomes)
        await outcomes.wait(1)
        await writer.abandon()
        cluster.config = replace(cluster.config, payload_bytes_max=1000)
        assert await contents(cluster.new_client(), writer.ledger_id) == [large]

    run_virtual(run())
