"""A bookie that was away gets what was confirmed without it; nothing of it ever counted."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.mending import mending
from magnetar.model.errors import (
    BadRequestError,
    BookieError,
    BookieIOError,
    MagnetarError,
    UnauthorizedError,
)
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, MemoryBookie, Outcomes, opened, payloads, until

QUORUMS = [(3, 3, 2), (3, 2, 1)]


def whole(cluster: Cluster, ledger_id: int, count: int) -> bool:
    """Whether every copy that the metadata names is there."""
    metadata = cluster.metadata(ledger_id)
    return all(
        entry_id in cluster.pool.bookies[name].entries.get(ledger_id, {})
        for entry_id in range(count)
        for name in metadata.write_set(entry_id)
    )


async def append_steadily(writer, outcomes: Outcomes, first: int, count: int) -> None:  # type: ignore[no-untyped-def]
    for i in range(first, first + count):
        writer.append(payloads(i, 1), outcomes)
        await asyncio.sleep(0.01)
    await outcomes.wait(first + count)


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
@pytest.mark.parametrize("fault", ["down", "silent"])
def test_the_ledger_is_whole_after_the_bookie_is_back(
    fault: str, quorums: tuple[int, int, int]
) -> None:
    async def run() -> None:
        cluster = Cluster(3, quorums, timeout_ms=300)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            away = cluster.ensemble(writer.ledger_id)[1]
            setattr(away, fault, True)
            await append_steadily(writer, outcomes, 0, 300)
            assert outcomes.confirmed == list(range(300))
            held = len(away.entries.get(writer.ledger_id, ()))
            assert held < 200  # and none of what it lacks was counted as its own
            setattr(away, fault, False)
            await append_steadily(writer, outcomes, 300, 50)
            await until(lambda: whole(cluster, writer.ledger_id, 350), 60)
            await until(lambda: not cluster.client.mender.has_missing, 60)
            assert len(cluster.metadata(writer.ledger_id).fragments) == 1
            await writer.close()
        await cluster.client.close()

    run_virtual(run())


@pytest.mark.parametrize("piece_entries", [mending.PIECE_ENTRIES, 3])
def test_a_ledger_closed_without_the_bookie_is_made_whole_later(
    piece_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "PIECE_ENTRIES", piece_entries)

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b2")
        away.down = True
        ledgers = []
        for _ in range(3):
            async with opened(cluster) as writer:
                outcomes = Outcomes()
                writer.append(payloads(0, 20), outcomes)
                await outcomes.wait(20)
                await writer.close()
                ledgers.append(writer.ledger_id)
        await asyncio.sleep(40)
        assert cluster.client.mender.has_missing
        away.down = False
        await until(lambda: all(whole(cluster, each, 20) for each in ledgers), 60)
        await until(lambda: not cluster.client.mender.has_missing, 60)
        await cluster.client.close()

    run_virtual(run())


def test_a_replaced_bookie_gets_the_entries_of_its_own_fragment_only() -> None:
    async def run() -> None:
        cluster = Cluster(4, (3, 3, 2), timeout_ms=300)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            away = cluster.ensemble(writer.ledger_id)[0]
            away.silent = True
            await append_steadily(writer, outcomes, 0, 100)
            await until(lambda: len(cluster.metadata(writer.ledger_id).fragments) == 2, 60)
            boundary = cluster.metadata(writer.ledger_id).fragments[1].first_entry_id
            assert boundary > 0
            away.silent = False
            await until(lambda: whole(cluster, writer.ledger_id, 100), 60)
            await until(lambda: not cluster.client.mender.has_missing, 60)
            assert sorted(away.entries[writer.ledger_id]) == list(range(boundary))
        await cluster.client.close()

    run_virtual(run())


def test_a_late_answer_is_no_debt() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        late = cluster.bookie("b3")
        async with opened(cluster) as writer:
            late.held_back = []
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            await writer.close()
            late.answer_held_back()
            adds = len(late.adds)
            await asyncio.sleep(5)
            assert not cluster.client.mender.has_missing
            assert len(late.adds) == adds
        await cluster.client.close()

    run_virtual(run())


def test_a_deleted_ledger_is_owed_to_nobody() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        cluster.bookie("b1").down = True
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            await writer.close()
        await asyncio.sleep(1)
        assert cluster.client.mender.has_missing
        await cluster.client.delete(writer.ledger_id)
        await until(lambda: not cluster.client.mender.has_missing, 60)
        await cluster.client.close()

    run_virtual(run())


def test_nothing_but_sound_copies_is_handed_on() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b1")
        away.down = True
        others: list[MemoryBookie] = [cluster.bookie("b2"), cluster.bookie("b3")]
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 5), outcomes)
            await outcomes.wait(5)
            await writer.close()
        others[0].corrupt = {0, 1}
        others[1].corrupt = {3, 4}
        away.down = False
        await until(lambda: whole(cluster, writer.ledger_id, 5), 60)
        others[0].corrupt, others[1].corrupt = set(range(5)), set(range(5))
        reader = await cluster.client.open(writer.ledger_id)
        entries = await reader.read_range(0, 4)
        assert [bytes(entry.payload) for entry in entries] == payloads(0, 5)
        await cluster.client.close()

    run_virtual(run())


def test_a_fence_does_not_keep_a_confirmed_entry_out() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b2")
        async with opened(cluster) as writer:
            away.down = True
            outcomes = Outcomes()
            writer.append(payloads(0, 20), outcomes)
            await outcomes.wait(20)
            await asyncio.sleep(0.1)  # it was tried again, so it is missing something
            await cluster.new_client().open(writer.ledger_id)
            await writer.abandon()
        away.fenced.add(writer.ledger_id)
        away.down = False
        await until(lambda: whole(cluster, writer.ledger_id, 20), 60)
        await until(lambda: not cluster.client.mender.has_missing, 60)
        await cluster.client.close()

    run_virtual(run())


def test_the_log_has_the_beginning_and_the_end_of_a_debt() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b2")
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            await append_steadily(writer, outcomes, 0, 10)
            away.down = True
            await append_steadily(writer, outcomes, 10, 300)
            away.down = False
            await until(lambda: whole(cluster, writer.ledger_id, 310), 60)
            await until(lambda: not cluster.client.mender.has_missing, 60)
        await cluster.client.close()

    with capture_logs() as said:
        run_virtual(run())
    begun = [line for line in said if line["event"].startswith("bookie lacks confirmed entries")]
    ended = [line for line in said if line["event"].startswith("bookie lacks nothing")]
    assert [(line["bookie"], line["ledger"]) for line in begun] == [("b2", 1)] * len(begun)
    assert begun[0]["first_entry"] == 10
    assert len(ended) == len(begun) > 0
    assert not [line for line in said if line["event"].startswith("the client ends")]


def test_a_client_that_ends_before_a_debt_is_paid_tells_what_is_short_of_copies() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        cluster.bookie("b1").down = True
        ledger_ids = []
        for _ in range(2):
            async with opened(cluster) as writer:
                outcomes = Outcomes()
                writer.append(payloads(0, 5), outcomes)
                await outcomes.wait(5)
                await writer.close()
                ledger_ids.append(writer.ledger_id)
        with capture_logs() as said:
            await cluster.client.close()
            await cluster.client.close()
        warnings = [line for line in said if line["log_level"] == "warning"]
        assert len(warnings) == 1
        assert (warnings[0]["bookie"], warnings[0]["ledgers"]) == ("b1", ledger_ids)
        assert (warnings[0]["ledger_count"], warnings[0]["entries_at_most"]) == (2, 10)

    run_virtual(run())


def test_nothing_is_owed_for_entries_that_are_not_the_bookies_own() -> None:
    """Striped: one entry, all of its copies acknowledged; the third bookie has no part in it."""

    async def run() -> None:
        cluster = Cluster(3, (3, 2, 2), timeout_ms=300)
        async with opened(cluster) as writer:
            await writer.add(payloads(0, 1))
            await writer.close()
        assert not cluster.client.mender.has_missing
        await cluster.client.close()

    with capture_logs() as said:
        run_virtual(run())
    assert not [line for line in said if "lacks" in line["event"]]


async def two_ledgers_without(away: MemoryBookie, cluster: Cluster) -> list[int]:
    """Of five entries each, which that bookie lacks; it is down."""
    away.down = True
    ledger_ids = []
    for _ in range(2):
        async with opened(cluster) as writer:
            await writer.add(payloads(0, 5))
            await asyncio.sleep(1)
            await writer.close()
            ledger_ids.append(writer.ledger_id)
    return ledger_ids


def test_a_ledger_that_nobody_can_read_does_not_keep_the_next_from_being_mended() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b3")
        ledger_ids = await two_ledgers_without(away, cluster)
        for name in ("b1", "b2"):
            del cluster.bookie(name).entries[ledger_ids[0]]
        away.down = False
        await until(lambda: whole(cluster, ledger_ids[1], 5), 60)
        assert cluster.client.mender.has_missing  # the other is not forgotten
        await cluster.client.close()

    run_virtual(run())


@pytest.mark.parametrize("refusal", [UnauthorizedError, BadRequestError, BookieIOError])
def test_a_ledger_that_the_bookie_refuses_does_not_keep_the_next_from_being_mended(
    refusal: type[BookieError],
) -> None:
    """The first one that is missing was tried again and again, and no other."""

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=300)
        away = cluster.bookie("b3")
        ledger_ids = await two_ledgers_without(away, cluster)
        add_error = away._add_error

        def refused(ledger_id: int, flags: AddFlag) -> MagnetarError | None:
            of_it = ledger_id == ledger_ids[0] and not away.down
            return refusal("not this one") if of_it else add_error(ledger_id, flags)

        away._add_error = refused  # type: ignore[method-assign]
        away.down = False
        await until(lambda: whole(cluster, ledger_ids[1], 5), 60)
        assert cluster.client.mender.has_missing  # the other is not forgotten
        await cluster.client.close()

    run_virtual(run())
