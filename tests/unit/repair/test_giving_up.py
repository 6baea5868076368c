"""A ledger that recovery cannot close is closed at a loss: what a look tells, and what keeps it
from being done."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from magnetar.ledger.given_up import GIVEN_UP_KEY, GivenUp, encode_given_up, given_up_of
from magnetar.model.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    ReadOnlyBookieError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import CURSOR_KEY, LedgerMetadata, LedgerState
from magnetar.repair.giving_up import GivingUp
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Outcomes, payloads
from tests.unit.ledger.test_recovery import contents, crashed, plant
from tests.unit.repair.doubles import RepairCluster, _Listing

ONE = (1, 1, 1)
NOW_MS = 1_700_000_000_000


def giving_up(cluster: RepairCluster) -> GivingUp:
    return GivingUp(cluster.manager, _Listing(cluster.pool), 0.02)


def length_of(entries: int) -> int:
    return sum(map(len, payloads(0, entries)))


def test_one_damaged_last_entry_is_given_up_and_the_rest_is_served() -> None:
    """Its topic was closed for good: no command closed the ledger."""

    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 10)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {9}
        with pytest.raises(LedgerRecoveryError, match=r"ledger close-at-loss 1$"):
            await cluster.new_client().open(writer.ledger_id)
        bookie.fenced.clear()
        bookie.fencing_reads = 0
        work, before = giving_up(cluster), cluster.manager.ledgers[writer.ledger_id]
        found = await work.look(writer.ledger_id)
        assert (found.recoverable, found.last, found.length) == (False, 8, length_of(9))
        assert ([*found.behind], found.unreadable, found.silent) == ([9], {}, {})
        assert "digest" in found.behind[9]
        assert (bookie.fencing_reads, cluster.manager.ledgers[writer.ledger_id]) == (0, before)

        with capture_logs() as logs:
            closed = await work.close(writer.ledger_id, 8, NOW_MS)
        assert closed == cluster.metadata(writer.ledger_id)
        assert (closed.state, closed.last_entry_id, closed.length) == (
            LedgerState.CLOSED,
            8,
            length_of(9),
        )
        told = given_up_of(closed)
        assert told is not None
        assert told[:5] == (9, 9, [], [], NOW_MS)
        assert "entry 9: b1: " in told.why
        assert logs[-1]["given_up"] == "entry 9 was given up"
        assert writer.ledger_id in bookie.fenced
        with capture_logs() as logs:
            assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 9)
        assert "given up at an operator's word" in logs[0]["event"]
        with pytest.raises(LedgerClosedError, match="closed, at entry 8"):
            await work.look(writer.ledger_id)
        with pytest.raises(LedgerClosedError):
            await work.close(writer.ledger_id, 8, NOW_MS)

    run_virtual(run())


def test_what_is_damaged_before_a_sound_entry_stays_in_the_ledger() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 10)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {3, 4, 8, 9}
        found = await giving_up(cluster).look(writer.ledger_id)
        assert (found.last, [*found.behind], [*found.unreadable]) == (7, [8, 9], [3, 4])
        closed = await giving_up(cluster).close(writer.ledger_id, 7, NOW_MS)
        told = given_up_of(closed)
        assert told is not None
        assert told[:3] == (8, 9, [3, 4])
        assert told.text == "entries 8 to 9 were given up; before that nobody can read 3, 4"

    run_virtual(run())


def test_a_ledger_without_a_sound_entry_is_closed_empty() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 3)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {0, 1, 2}
        work = giving_up(cluster)
        assert (await work.look(writer.ledger_id)).last == NO_ENTRY
        closed = await work.close(writer.ledger_id, NO_ENTRY, NOW_MS)
        assert (closed.last_entry_id, closed.length) == (NO_ENTRY, 0)
        assert await contents(cluster.new_client(), writer.ledger_id) == []

    run_virtual(run())


def test_the_end_before_an_empty_fragment_may_be_what_is_lost() -> None:
    """An ensemble change was the last act, and the confirmed entry before it is damaged."""

    async def run() -> None:
        cluster = RepairCluster(2, ONE)
        writer = await crashed_in_a_new_fragment(cluster)
        first, second = (cluster.bookie(one.bookies[0]) for one in writer.fragments)
        second.entries[writer.ledger_id].clear()
        first.corrupt = {8, 9}
        with pytest.raises(LedgerRecoveryError, match=r"last entry cannot be read.*close-at-loss"):
            await cluster.new_client().open(writer.ledger_id)
        found = await giving_up(cluster).look(writer.ledger_id)
        assert (found.confirmed, found.last, sorted(found.behind)) == (9, 7, [8, 9])
        first.down = True  # of a fragment before the last: it may have a sound copy all the same
        found = await giving_up(cluster).look(writer.ledger_id)
        assert [*found.silent] == [first.bookie_id]
        with pytest.raises(LedgerRecoveryError, match="do not answer"):
            await giving_up(cluster).close(writer.ledger_id, 7, NOW_MS)
        first.down = False
        closed = await giving_up(cluster).close(writer.ledger_id, 7, NOW_MS)
        assert [one.first_entry_id for one in closed.fragments] == [0]
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 8)

    run_virtual(run())


async def crashed_in_a_new_fragment(cluster: RepairCluster) -> LedgerMetadata:
    writer = await cluster.client.create()
    outcomes = Outcomes()
    writer.append(payloads(0, 10), outcomes)
    await outcomes.wait(10)
    (first,) = cluster.ensemble(writer.ledger_id)
    first.refuse = ReadOnlyBookieError("full")
    writer.append(payloads(10, 1), outcomes)
    await outcomes.wait(11)
    await writer.abandon()
    first.refuse = None
    found = cluster.metadata(writer.ledger_id)
    assert [one.first_entry_id for one in found.fragments] == [0, 10]
    return found


def test_what_recovery_can_close_is_left_to_it() -> None:
    async def run() -> None:
        cluster = RepairCluster(3)
        writer = await crashed(cluster, 5)
        plant(cluster, writer, 5, [0, 1])
        cluster.ensemble(writer.ledger_id)[2].corrupt = {4}
        work = giving_up(cluster)
        found = await work.look(writer.ledger_id)
        assert found.recoverable
        assert not found.behind
        with pytest.raises(LedgerRecoveryError, match="closed without a loss"):
            await work.close(writer.ledger_id, 5, NOW_MS)
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 6)
        assert given_up_of(cluster.metadata(writer.ledger_id)) is None

    run_virtual(run())


def test_it_ends_where_the_operator_was_told_or_not_at_all() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 10)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {9}
        for at in (7, 9, NO_ENTRY):
            with pytest.raises(LedgerRecoveryError, match="would end at entry 8 now"):
                await giving_up(cluster).close(writer.ledger_id, at, NOW_MS)
        bookie.corrupt.clear()  # it was restored meanwhile
        with pytest.raises(LedgerRecoveryError, match="without a loss"):
            await giving_up(cluster).close(writer.ledger_id, 8, NOW_MS)
        assert await contents(cluster.new_client(), writer.ledger_id) == payloads(0, 10)

    run_virtual(run())


@pytest.mark.parametrize("how", ["down", "silent", "in limbo"])
def test_a_bookie_that_says_nothing_may_have_what_is_missed(how: str) -> None:
    async def run() -> None:
        cluster = RepairCluster(3)
        writer = await crashed(cluster, 5)
        one, two, away = cluster.ensemble(writer.ledger_id)
        one.corrupt = two.corrupt = {4}
        if how == "in limbo":
            away.read_error = UnknownLedgerStateError("it has lost entries")
        else:
            setattr(away, how, True)
        work = giving_up(cluster)
        assert [*(await work.look(writer.ledger_id)).silent] == [away.bookie_id]
        with pytest.raises(LedgerRecoveryError, match="Nothing was given up"):
            await work.close(writer.ledger_id, 3, NOW_MS)
        found = await work.look(writer.ledger_id, [BookieId(away.bookie_id)])
        assert (found.silent, found.last, [*found.behind]) == ({}, 3, [4])
        closed = await work.close(writer.ledger_id, 3, NOW_MS, [BookieId(away.bookie_id)])
        told = given_up_of(closed)
        assert told is not None
        assert told.lost == [away.bookie_id]
        assert f"and whatever {away.bookie_id} had behind entry 3 were" in told.text

    run_virtual(run())


def test_of_a_lost_bookie_nobody_knows_what_it_had() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 5)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.down = True
        lost = [BookieId(bookie.bookie_id)]
        found = await giving_up(cluster).look(writer.ledger_id, lost)
        assert (found.recoverable, found.last, found.behind) == (False, NO_ENTRY, {})
        closed = await giving_up(cluster).close(writer.ledger_id, NO_ENTRY, NOW_MS, lost)
        told = given_up_of(closed)
        assert told is not None
        assert told.text == f"whatever {lost[0]} had behind entry -1 was given up"

    run_virtual(run())


def test_a_writer_that_lives_has_nothing_acknowledged_behind_it() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 10), outcomes)
        await outcomes.wait(10)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {9}
        await giving_up(cluster).close(writer.ledger_id, 8, NOW_MS)
        writer.append(payloads(10, 1), outcomes)
        await outcomes.wait(11)
        assert isinstance(outcomes.errors[0], LedgerFencedError)
        await writer.abandon()

    run_virtual(run())


def test_another_that_changes_the_ledger_meanwhile_is_not_overridden() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        writer = await crashed(cluster, 10)
        (bookie,) = cluster.ensemble(writer.ledger_id)
        bookie.corrupt = {9}

        async def other(wanted: LedgerMetadata) -> None:
            if wanted.closed:
                cluster.manager.before_write = None
                now, version = cluster.manager.ledgers[writer.ledger_id]
                cluster.manager.ledgers[writer.ledger_id] = now, version + 1

        cluster.manager.before_write = other
        with pytest.raises(LedgerRecoveryError, match="changed meanwhile"):
            await giving_up(cluster).close(writer.ledger_id, 8, NOW_MS)
        assert not cluster.metadata(writer.ledger_id).closed
        await giving_up(cluster).close(writer.ledger_id, 8, NOW_MS)

    run_virtual(run())


def test_what_is_kept_of_it() -> None:
    async def run() -> None:
        cluster = RepairCluster(1, ONE)
        metadata = cluster.metadata((await crashed(cluster, 1)).ledger_id).with_close(4, 40)
        assert given_up_of(metadata) is None
        told = GivenUp(5, 7, [1, 2], [BookieId("b2")], NOW_MS, "why")
        kept = replace(metadata, custom=((GIVEN_UP_KEY, encode_given_up(told)),))
        assert given_up_of(kept) == told
        for value in (b"{}", b"[]", b"\xff", b'{"first": "x"}'):
            unread = given_up_of(replace(metadata, custom=((GIVEN_UP_KEY, value),)))
            assert unread is not None, "that something was given up is known"
            assert unread[:2] == (5, 4)

    run_virtual(run())


def test_of_a_cursors_closed_ledger_is_given_up_what_nobody_can_read() -> None:
    """It kept its topic shut, and was refused since it was closed."""

    async def run() -> None:
        cluster = RepairCluster(2, (2, 2, 1))
        writer = await cluster.client.create(custom={CURSOR_KEY: b"public/default/persistent/t/s"})
        outcomes = Outcomes()
        writer.append(payloads(0, 10), outcomes)
        await outcomes.wait(10)
        await writer.close()
        before, work = cluster.metadata(writer.ledger_id), giving_up(cluster)
        first, second = cluster.ensemble(writer.ledger_id)
        first.corrupt = {3, 5}
        assert (await work.look(writer.ledger_id)).recoverable
        with pytest.raises(LedgerRecoveryError, match="is sound"):
            await work.close(writer.ledger_id, 9, NOW_MS)
        second.down = True
        found = await work.look(writer.ledger_id)
        assert ([*found.silent], found.recoverable) == ([second.bookie_id], False)
        with pytest.raises(LedgerRecoveryError, match="do not answer"):
            await work.close(writer.ledger_id, 9, NOW_MS)
        second.down, second.corrupt = False, {3, 5, 7}
        assert cluster.metadata(writer.ledger_id) == before
        found = await work.look(writer.ledger_id)
        assert ([*found.unreadable], found.behind, found.last) == ([3, 5], {}, 9)
        closed = await work.close(writer.ledger_id, 9, NOW_MS)
        told = given_up_of(closed)
        assert told is not None
        assert told.text == "what nobody can read was given up: 3, 5"
        assert replace(closed, custom=before.custom) == before
        first.corrupt |= {7}  # and once more
        told = given_up_of(await work.close(writer.ledger_id, 9, NOW_MS))
        assert told is not None
        assert told.unreadable == [3, 5, 7]

    run_virtual(run())
