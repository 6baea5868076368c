"""Bookies and metadata fail under a writer: what is confirmed, what the metadata then names."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.ledger.bookies import AddFlag
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MagnetarError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from magnetar.model.ledger import Fragment, LedgerMetadata, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, MemoryBookie, Outcomes, opened, payloads, until


def holders(cluster: Cluster, metadata: LedgerMetadata, entry_id: int) -> int:
    """Bookies that hold the entry and are named for it in the metadata."""
    return sum(
        entry_id in cluster.pool.bookies[name].entries.get(metadata.ledger_id, {})
        for name in metadata.write_set(entry_id)
    )


def check_named_copies(cluster: Cluster, ledger_id: int, confirmed: list[int]) -> None:
    metadata = cluster.metadata(ledger_id)
    for entry_id in confirmed:
        assert holders(cluster, metadata, entry_id) >= metadata.ack_quorum, entry_id


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (3, 2, 2), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("fault", ["down", "silent", "io"])
def test_a_failed_bookie_is_replaced(fault: str, quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(5, quorums, timeout_ms=60)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 10), outcomes)
            await outcomes.wait(10)
            victim = cluster.ensemble(writer.ledger_id)[0]
            _break(victim, fault)
            for i in range(10, 40):
                writer.append(payloads(i, 1), outcomes)
            await outcomes.wait(40)
            assert outcomes.confirmed == list(range(40))
            await until(lambda: len(cluster.metadata(writer.ledger_id).fragments) == 2)
            assert victim not in cluster.ensemble(writer.ledger_id)
            await writer.close()
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)
            reader = await cluster.new_client().open(writer.ledger_id)
            entries = await reader.read_range(0, 39)
            assert [bytes(e.payload) for e in entries] == payloads(0, 40)

    run_virtual(run())


def _break(bookie: MemoryBookie, fault: str) -> None:
    if fault == "down":
        bookie.refuse = BookieUnavailableError("connection lost")
    elif fault == "silent":
        bookie.held_back = []
    else:
        bookie.refuse = BookieIOError("disk")


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    """Acknowledgements of healthy bookies land during the compare-and-set; the new fragment
    begins after the last entry that was told confirmed, and holds what is told later."""

    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            seen: list[int] = []

            async def slowly(metadata: LedgerMetadata) -> None:
                writer.append(payloads(10, 5), outcomes)
                await asyncio.sleep(0.02)
                seen.append(outcomes.total)

            cluster.manager.before_write = slowly
            one, two, three = cluster.ensemble(writer.ledger_id)
            one.refuse = BookieIOError("disk")
            two.held_back, three.held_back = [], []  # nobody acknowledges before the failure
            writer.append(payloads(5, 5), outcomes)
            await asyncio.sleep(0.005)  # the failure is in, the compare-and-set has begun
            two.answer_held_back()
            three.answer_held_back()
            await outcomes.wait(15)
            assert seen == [5]
            metadata = cluster.metadata(writer.ledger_id)
            assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 5]
            assert outcomes.confirmed == list(range(15))
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)
            assert one.bookie_id not in metadata.fragments[-1].bookies

    run_virtual(run())


def test_late_answers_of_a_replaced_bookie_do_not_count() -> None:
    async def run() -> None:
        cluster = Cluster(4, (3, 3, 3), timeout_ms=60)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            slow = cluster.ensemble(writer.ledger_id)[1]
            slow.held_back = []
            (spare,) = set(cluster.pool.bookies.values()) - set(cluster.ensemble(writer.ledger_id))
            spare.held_back = []
            writer.append(payloads(0, 3), outcomes)
            await until(lambda: spare.held_back)
            slow.answer_held_back()
            await asyncio.sleep(0.02)
            assert outcomes.total == 0
            spare.answer_held_back()
            await outcomes.wait(3)
            assert outcomes.confirmed == [0, 1, 2]
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)
            assert len(cluster.metadata(writer.ledger_id).fragments) == 1  # replaced in place

    run_virtual(run())


def test_two_bookies_fail_one_after_the_other() -> None:
    async def run() -> None:
        cluster = Cluster(5, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            one, two, _ = cluster.ensemble(writer.ledger_id)

            async def second_fault(metadata: LedgerMetadata) -> None:
                two.refuse = BookieIOError("disk too")
                writer.append(payloads(1, 1), outcomes)
                await asyncio.sleep(0.01)
                cluster.manager.before_write = None

            cluster.manager.before_write = second_fault
            one.refuse = BookieIOError("disk")
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(2)
            assert outcomes.confirmed == [0, 1]
            await writer.close()
            named = cluster.metadata(writer.ledger_id).fragments[-1].bookies
            assert one.bookie_id not in named
            assert two.bookie_id not in named
            check_named_copies(cluster, writer.ledger_id, [0, 1])

    run_virtual(run())


def test_one_bookie_that_comes_back_loses_nothing() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1), timeout_ms=3000)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            cluster.bookie("b1").down = True
            writer.append(payloads(3, 3), outcomes)
            writer.append(payloads(6, 3), outcomes)
            await asyncio.sleep(0.08)
            assert outcomes.total == 3
            cluster.bookie("b1").down = False
            writer.append(payloads(9, 1), outcomes)
            await outcomes.wait(10)
            assert outcomes.confirmed == list(range(10))
            metadata = await writer.close()
            assert metadata.fragments == (Fragment(0, metadata.fragments[0].bookies),)
            reader = await cluster.client.open(writer.ledger_id)
            entries = await reader.read_range(0, 9)
            assert [bytes(e.payload) for e in entries] == payloads(0, 10)

    run_virtual(run())


def test_one_bookie_that_stays_away_fails_the_appends_by_name() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1), timeout_ms=120)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 2), outcomes)
            await outcomes.wait(2)
            cluster.bookie("b1").down = True
            writer.append(payloads(2, 2), outcomes)
            writer.append(payloads(4, 2), outcomes)
            await outcomes.wait(6)
            assert outcomes.confirmed == [0, 1]
            assert [count for error, _, _, count in outcomes.log if error] == [2, 2]
            for error in outcomes.errors:
                assert isinstance(error, NotEnoughBookiesError)
                assert "b1 (b1 is down)" in str(error)
            assert writer.pending_bytes == 0
            cluster.bookie("b1").down = False
            writer.append([b"after a hole"], outcomes)
            await outcomes.wait(7)
            assert isinstance(outcomes.errors[-1], NotEnoughBookiesError)
            closed = await writer.close()
            assert (closed.last_entry_id, closed.length) == (1, sum(map(len, payloads(0, 2))))

    run_virtual(run())


def test_without_a_spare_bookie_the_others_go_on() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=80)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            gone = cluster.ensemble(writer.ledger_id)[2]
            gone.down = True
            for i in range(40):
                writer.append(payloads(i, 1), outcomes)
                await asyncio.sleep(0.005)
            await outcomes.wait(40)
            assert outcomes.confirmed == list(range(40))
            gone.down = False
            await asyncio.sleep(1.1)  # past the longest wait between tries
            writer.append(payloads(40, 1), outcomes)
            await outcomes.wait(41)
            await asyncio.sleep(0.01)
            assert 40 in gone.entries[writer.ledger_id]
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)

    run_virtual(run())


@pytest.mark.parametrize(
    ("refusal", "told"),
    [(FencedError("f"), LedgerFencedError), (UnauthorizedError("u"), LedgerError)],
)
def test_fenced_and_refused_never_change_the_ensemble(
    refusal: MagnetarError, told: type[MagnetarError]
) -> None:
    async def run() -> None:
        cluster = Cluster(5, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            cluster.ensemble(writer.ledger_id)[0].refuse = refusal
            writer.append(payloads(0, 2), outcomes)
            writer.append(payloads(2, 1), outcomes)
            await outcomes.wait(3)
            assert [type(error) for error in outcomes.errors] == [told, told]
            assert outcomes.log[0][1:] == (-1, -1, 2)
            assert cluster.manager.writes == []

    run_virtual(run())


def test_a_change_lost_to_a_recovery_is_fenced() -> None:
    async def run() -> None:
        cluster = Cluster(5, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            _steal(cluster, writer.ledger_id, LedgerState.IN_RECOVERY)
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            cluster.ensemble(writer.ledger_id)[1].refuse = BookieIOError("disk")
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            assert isinstance(outcomes.errors[0], LedgerFencedError)
            with pytest.raises(LedgerFencedError):
                await writer.close()

    run_virtual(run())


def _steal(cluster: Cluster, ledger_id: int, state: LedgerState) -> None:
    metadata, version = cluster.manager.ledgers[ledger_id]
    cluster.manager.ledgers[ledger_id] = (replace(metadata, state=state), version + 1)


def test_a_change_whose_answer_was_lost_is_found_done() -> None:
    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()

            async def lose_the_answer(metadata: LedgerMetadata) -> None:
                cluster.manager.after_write = None
                raise MetadataUnavailableError("the connection broke")

            cluster.manager.after_write = lose_the_answer
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            cluster.ensemble(writer.ledger_id)[1].held_back = []
            writer.append(payloads(0, 4), outcomes)
            await outcomes.wait(4)
            assert outcomes.confirmed == [0, 1, 2, 3]
            assert len(cluster.manager.writes) == 1
            assert writer.metadata == cluster.metadata(writer.ledger_id)
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)

    run_virtual(run())


def test_a_change_keeps_what_re_replication_did_to_earlier_fragments() -> None:
    async def run() -> None:
        cluster = Cluster(6, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            writer.append(payloads(3, 3), outcomes)
            await outcomes.wait(6)
            await until(lambda: len(cluster.metadata(writer.ledger_id).fragments) == 2)
            metadata, version = cluster.manager.ledgers[writer.ledger_id]
            moved = Fragment(0, tuple(reversed(metadata.fragments[1].bookies)))
            changed = replace(metadata, fragments=(moved, *metadata.fragments[1:]))
            cluster.manager.ledgers[writer.ledger_id] = (changed, version + 1)
            cluster.ensemble(writer.ledger_id)[1].refuse = BookieIOError("disk")
            writer.append(payloads(6, 3), outcomes)
            await outcomes.wait(9)
            await until(lambda: len(cluster.metadata(writer.ledger_id).fragments) == 3)
            assert cluster.metadata(writer.ledger_id).fragments[0] == moved

    run_virtual(run())


def test_a_conflicting_close_counts_only_if_identical() -> None:
    async def run() -> None:
        for same in (True, False):
            cluster = Cluster()
            async with opened(cluster) as writer:
                outcomes = Outcomes()
                writer.append(payloads(0, 2), outcomes)
                await outcomes.wait(2)
                metadata, version = cluster.manager.ledgers[writer.ledger_id]
                other = metadata.with_close(1, writer.length if same else writer.length + 1)
                cluster.manager.ledgers[writer.ledger_id] = (other, version + 1)
                if same:
                    assert await writer.close() == other
                else:
                    with pytest.raises(LedgerClosedError):
                        await writer.close()

    run_virtual(run())


def test_a_failed_change_does_not_stop_the_close() -> None:
    """The store is away during an ensemble change; the writer ends, and closes at its LAC."""

    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("magnetar.ledger.catalog.stored_ledger.RETRY_DELAYS_S", (0.001, 0.001))
        cluster = Cluster(5, (3, 3, 3))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 2), outcomes)
            await outcomes.wait(2)

            async def away(metadata: LedgerMetadata) -> None:
                raise MetadataUnavailableError("no store")

            cluster.manager.before_write = away
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            writer.append(payloads(2, 2), outcomes)
            await outcomes.wait(4)
            assert isinstance(outcomes.errors[0], MetadataUnavailableError)
            cluster.manager.before_write = None
            closed = await writer.close()
            assert closed.last_entry_id == 1

    with pytest.MonkeyPatch.context() as monkeypatch:
        run_virtual(run(monkeypatch))


def test_an_append_after_the_failure_does_not_wait_for_the_store() -> None:
    """A bookie fails, all that is pending is confirmed without it, and the store hangs over its
    replacement: what is appended then has the writer's time-out too."""

    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2), timeout_ms=500)
        async with opened(cluster) as writer:
            outcomes = Outcomes()

            async def away(metadata: LedgerMetadata) -> None:
                await asyncio.sleep(60)
                raise MetadataUnavailableError("no store")

            cluster.manager.before_write = away
            cluster.ensemble(writer.ledger_id)[0].down = True
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            await asyncio.sleep(5)
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(NotEnoughBookiesError, match="the metadata store does not answer"):
                await writer.add(payloads(1, 1))
            assert asyncio.get_running_loop().time() - began_s < 1
            assert outcomes.errors == []

    run_virtual(run())


def test_the_recovery_flag_is_not_on_ordinary_adds() -> None:
    async def run() -> None:
        cluster = Cluster()
        writer = await cluster.client.create()
        outcomes = Outcomes()
        writer.append(payloads(0, 2), outcomes)
        await writer.close()
        flags = {flag for b in cluster.pool.bookies.values() for _, flag in b.adds}
        assert flags == {AddFlag.NONE}

    run_virtual(run())


def test_a_busy_bookie_takes_what_it_can_and_is_not_replaced() -> None:
    """Standalone's one bookie under a burst larger than its journal queue: everything gets
    through in the end, and with spare bookies around nobody changes the ensemble for it."""

    async def run() -> None:
        for bookies, quorums in ((1, (1, 1, 1)), (5, (3, 3, 2))):
            cluster = Cluster(bookies, quorums, timeout_ms=2000)
            async with opened(cluster) as writer:
                outcomes = Outcomes()
                for bookie in cluster.pool.bookies.values():
                    bookie.room_bytes = 3 << 20
                large = [bytes(1 << 20)] * 4
                for _ in range(5):
                    writer.append(large, outcomes)
                await outcomes.wait(20)
                assert outcomes.confirmed == list(range(20))
                assert cluster.manager.writes == []

    run_virtual(run())


def test_nothing_goes_to_a_new_bookie_before_the_metadata_names_it() -> None:
    """Switching the ensemble before the compare-and-set: BookKeeper #1591."""

    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            (spare,) = set(cluster.pool.bookies.values()) - set(cluster.ensemble(writer.ledger_id))
            early: list[int] = []

            async def look(metadata: LedgerMetadata) -> None:
                writer.append(payloads(1, 1), outcomes)
                await asyncio.sleep(0.01)
                early.append(len(spare.adds))

            cluster.manager.before_write = look
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(2)
            await until(lambda: spare.adds)
            assert early == [0]
            assert set(spare.entries[writer.ledger_id]) <= {0, 1}

    run_virtual(run())


def test_two_failures_and_a_conflict_in_one_change() -> None:
    """A second bookie fails while the compare-and-set of the first loses to re-replication of an
    earlier fragment: BookKeeper #1886."""

    async def run() -> None:
        cluster = Cluster(6, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 3), outcomes)
            await outcomes.wait(3)
            one, two, _ = cluster.ensemble(writer.ledger_id)

            async def interfere(metadata: LedgerMetadata) -> None:
                cluster.manager.before_write = None
                current, version = cluster.manager.ledgers[writer.ledger_id]
                changed = replace(current, custom=(("moved", b"1"),))
                cluster.manager.ledgers[writer.ledger_id] = (changed, version + 1)
                two.refuse = BookieIOError("disk too")
                writer.append(payloads(4, 1), outcomes)
                await asyncio.sleep(0.01)

            cluster.manager.before_write = interfere
            one.refuse = BookieIOError("disk")
            writer.append(payloads(3, 1), outcomes)
            await outcomes.wait(5)
            closed = await writer.close()
            assert outcomes.confirmed == [0, 1, 2, 3, 4]
            assert closed.custom == (("moved", b"1"),)
            # Entry 3 was confirmed by the other two before the change began.
            assert [fragment.first_entry_id for fragment in closed.fragments] == [0, 4]
            assert not {one.bookie_id, two.bookie_id} & set(closed.fragments[-1].bookies)
            check_named_copies(cluster, writer.ledger_id, outcomes.confirmed)

    run_virtual(run())


def test_an_owner_may_append_and_give_up_from_inside_done() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        async with opened(cluster) as writer:
            log: list[tuple[bool, int]] = []
            finished = asyncio.Event()

            def done(error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
                log.append((error is None, count))
                if first == 0:
                    writer.append([b"from inside"], done)
                    writer.fail(LedgerError("given up"))
                if len(log) == 4:
                    finished.set()

            for count in (1, 2, 3):
                writer.append(payloads(0, count), done)
            async with asyncio.timeout(5):
                await finished.wait()
            assert log == [(True, 1), (False, 2), (False, 3), (False, 1)]

    run_virtual(run())


def test_a_metadata_store_that_hangs_in_a_change_is_named() -> None:
    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            release = asyncio.Event()

            async def hang(metadata: LedgerMetadata) -> None:
                await release.wait()

            cluster.manager.before_write = hang
            cluster.ensemble(writer.ledger_id)[0].refuse = BookieIOError("disk")
            cluster.ensemble(writer.ledger_id)[1].held_back = []
            writer.append(payloads(0, 1), outcomes)
            await outcomes.wait(1)
            assert isinstance(outcomes.errors[0], NotEnoughBookiesError)
            assert "metadata store does not answer, so b" in str(outcomes.errors[0])
            cluster.manager.before_write = None
            release.set()

    run_virtual(run())
