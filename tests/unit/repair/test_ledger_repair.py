"""A ledger is made whole: with bookies that hang, with stripes, and by racks, zones and space."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.ledger.placing.placement import BookieTraits, Placement
from magnetar.model.errors import BookieIOError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair import checking, copying
from magnetar.repair.copies import Standing
from magnetar.repair.ledger_repair import Outcome
from tests.unit.ledger.doubles import MemoryBookie, payloads
from tests.unit.repair.doubles import ENTRIES, RepairCluster

# -- bookies that hang ------------------------------------------------------------------------


def test_a_bookie_that_never_answers_is_replaced() -> None:
    async def run() -> None:
        cluster = RepairCluster(5)
        metadata = await cluster.written()
        hung = cluster.bookie(metadata.fragments[0].bookies[1])
        hung.silent = True
        first = await cluster.repair.run(metadata.ledger_id, [])
        assert first.outcome is Outcome.LEFT, "its silence says nothing yet"
        assert cluster.metadata(metadata.ledger_id) == metadata
        await cluster.repaired(metadata.ledger_id)
        assert hung.bookie_id not in cluster.metadata(metadata.ledger_id).fragments[0].bookies
        assert cluster.lacking(metadata.ledger_id) == {}

    asyncio.run(run())


def test_a_bookie_that_takes_no_copies_is_replaced() -> None:
    """Its journal's disk hangs: it tells what it holds, and reads."""

    async def run() -> None:
        cluster = RepairCluster(4)
        metadata = await cluster.written()
        hung = cluster.bookie(metadata.fragments[0].bookies[1])
        del hung.entries[metadata.ledger_id][7]
        hung.add_entries = lambda *_: None  # type: ignore[method-assign]
        await cluster.repaired(metadata.ledger_id)
        assert hung.bookie_id not in cluster.metadata(metadata.ledger_id).fragments[0].bookies
        assert cluster.lacking(metadata.ledger_id) == {}

    asyncio.run(run())


def test_a_bookie_whose_reads_hang_is_not_known_to_have_its_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lists what it holds, by heart, and cannot give it."""

    async def hang(self: MemoryBookie, *_: Any) -> bytes:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def run() -> None:
        cluster = RepairCluster(3, silent_s=0.0)
        metadata = await cluster.written()
        hung = cluster.bookie(metadata.fragments[0].bookies[1])
        monkeypatch.setattr(hung, "read_entry", hang.__get__(hung))
        standings = dict.fromkeys(metadata.fragments[0].bookies, Standing.SERVING)
        findings = await cluster.checker.look(metadata, standings, durably=True)
        assert not findings.whole
        assert list(findings.unknown) == [hung.bookie_id]

    asyncio.run(run())


def test_a_bookie_that_answers_again_keeps_its_place() -> None:
    async def run() -> None:
        cluster = RepairCluster(5, silent_s=30.0)
        metadata = await cluster.written()
        hung = cluster.bookie(metadata.fragments[0].bookies[1])
        hung.silent = True
        for _ in range(3):
            assert (await cluster.repair.run(metadata.ledger_id, [])).outcome is Outcome.LEFT
        hung.silent = False
        await cluster.repaired(metadata.ledger_id)
        assert cluster.metadata(metadata.ledger_id) == metadata

    asyncio.run(run())


def test_whole_is_what_every_bookie_has_made_durable() -> None:
    async def run() -> None:
        cluster = RepairCluster(3)
        metadata = await cluster.written()
        bookies = cluster.ensemble(metadata.ledger_id)
        assert (await cluster.repair.run(metadata.ledger_id, [])).outcome is Outcome.WHOLE
        assert [bookie.forced for bookie in bookies] == [[metadata.ledger_id]] * 3

        async def fail(_ledger_id: int) -> None:
            raise BookieIOError("its journal cannot write")

        bookies[1].force_ledger = fail  # type: ignore[method-assign]
        assert (await cluster.repair.run(metadata.ledger_id, [])).outcome is Outcome.LEFT

    asyncio.run(run())


@pytest.mark.parametrize("damaged", [0, ENTRIES - 1])
def test_a_bookie_whose_first_or_last_entry_is_damaged_is_replaced(
    damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LOOK_AGAIN_S", 0.0)

    async def run() -> None:
        cluster = RepairCluster(4)
        metadata = await cluster.written()
        bookie = cluster.bookie(metadata.fragments[0].bookies[1])
        bookie.corrupt.add(damaged)
        await cluster.repaired(metadata.ledger_id)
        assert bookie.bookie_id not in cluster.metadata(metadata.ledger_id).fragments[0].bookies
        assert cluster.lacking(metadata.ledger_id) == {}

    asyncio.run(run())


@pytest.mark.parametrize("another_lacks", [(), (7,), (0, 30, 31)], ids=str)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2)], ids=str)
def test_a_bookie_is_named_with_all_of_its_copies(
    quorums: tuple[int, int, int],
    another_lacks: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers give the first part of what they are asked for. ``another_lacks``: of its entries, by
    their place. The ledger is fenced, as every one that was recovered."""
    monkeypatch.setattr(copying, "PIECE_BYTES", 100)

    async def run() -> None:
        cluster = RepairCluster(quorums[0] + 1, quorums)
        metadata = await cluster.written()
        lost = metadata.fragments[0].bookies[1]
        cluster.away.add(lost)
        cluster.bookie(lost).down = True
        held = cluster.bookie(metadata.fragments[0].bookies[2]).entries[metadata.ledger_id]
        for entry_id in [sorted(held)[place] for place in another_lacks]:
            del held[entry_id]
        for bookie in cluster.pool.bookies.values():
            bookie.fenced.add(metadata.ledger_id)
        named: list[dict[str, list[int]]] = []

        async def look(_: LedgerMetadata) -> None:
            named.append(cluster.lacking(metadata.ledger_id))

        cluster.manager.after_write = look
        await cluster.repaired(metadata.ledger_id, [lost])
        assert named == [{}]

    asyncio.run(run())


@pytest.mark.parametrize("refusing", [0, 1])
@pytest.mark.parametrize("another_lacks", [False, True])
def test_a_bookie_that_refuses_copies_is_not_named(another_lacks: bool, refusing: int) -> None:
    """Of two that could be chosen one refuses, beside another that takes what it lacks."""

    async def run() -> None:
        cluster = RepairCluster(5)
        metadata = await cluster.written()
        ensemble = metadata.fragments[0].bookies
        cluster.away.add(ensemble[1])
        cluster.bookie(ensemble[1]).down = True
        if another_lacks:
            del cluster.bookie(ensemble[2]).entries[metadata.ledger_id][7]
        spare = sorted(set(cluster.pool.bookies) - set(ensemble))[refusing]
        cluster.bookie(spare).refuse = BookieIOError("its disk fails")
        named: list[dict[str, list[int]]] = []

        async def look(_: LedgerMetadata) -> None:
            named.append(cluster.lacking(metadata.ledger_id))

        cluster.manager.after_write = look
        await cluster.repaired(metadata.ledger_id, [ensemble[1]])
        assert named == [{}]

    asyncio.run(run())


def test_a_ledger_that_is_still_written_on_a_bookie_that_hangs_is_closed() -> None:
    async def run() -> None:
        cluster = RepairCluster(4)
        writer = await cluster.client.create()
        await writer.add(payloads(0, 10))
        hung = cluster.ensemble(writer.ledger_id)[0]
        hung.silent = True
        await cluster.repaired(writer.ledger_id)
        metadata = cluster.metadata(writer.ledger_id)
        assert metadata.closed
        assert metadata.last_entry_id == 9
        assert cluster.lacking(writer.ledger_id) == {}
        assert all(hung.bookie_id not in one.bookies for one in metadata.fragments)
        await writer.abandon()

    asyncio.run(run())


# -- stripes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [(5, 2, 2), (5, 3, 2), (3, 2, 2)], ids=str)
def test_only_entries_that_are_missing_are_read(quorums: tuple[int, int, int]) -> None:
    """With more bookies than copies the whole range was read, of which a part was missing."""

    async def run() -> None:
        cluster = RepairCluster(quorums[0] + 1, quorums)
        metadata = await cluster.written()
        slot = 1
        lost = metadata.fragments[0].bookies[slot]
        own = {e for e in range(ENTRIES) if lost in metadata.write_set(e)}
        assert len(own) == ENTRIES * quorums[1] // quorums[0]
        read: set[int] = set()
        for bookie in cluster.pool.bookies.values():
            _record(bookie, read)
        cluster.away.add(lost)
        cluster.bookie(lost).down = True
        await cluster.repaired(metadata.ledger_id, [lost])
        assert read == own
        assert cluster.lacking(metadata.ledger_id) == {}

    asyncio.run(run())


def _record(bookie: MemoryBookie, read: set[int]) -> None:
    original = bookie.read_batch

    async def read_batch(ledger_id: int, first: int, *rest: Any) -> Sequence[bytes]:
        found = await original(ledger_id, first, *rest)
        read.update(range(first, first + len(found)))
        return found

    bookie.read_batch = read_batch  # type: ignore[assignment,method-assign]


# -- where copies go --------------------------------------------------------------------------

TRAITS = {
    "b1": BookieTraits("r1", "z1", 100),
    "b2": BookieTraits("r2", "z1", 100),
    "b3": BookieTraits("r3", "z2", 100),
    "b4": BookieTraits("r1", "z1", 100),
    "b5": BookieTraits("r3", "z2", 100),
    "b6": BookieTraits("r4", "z2", 3),
}


def placed(**rules: Any) -> Placement:
    return Placement(traits={BookieId(name): each for name, each in TRAITS.items()}, **rules)


@pytest.mark.parametrize(
    ("placement", "lost", "takes"),
    [
        (placed(domain="rack", free_bytes_least=10), "b3", {"b5"}),
        (placed(domain="rack", free_bytes_least=10), "b1", {"b4"}),
        (placed(domain="zone", domains_least=2, enforced=True), "b3", {"b5", "b6"}),
        (placed(free_bytes_least=10), "b2", {"b4", "b5"}),
    ],
    ids=["rack", "another rack", "zone", "space"],
)
def test_a_replacement_is_placed_as_new_ledgers_are(
    placement: Placement, lost: str, takes: set[str]
) -> None:
    async def run() -> None:
        cluster = RepairCluster(6, placement=placement)
        cluster.pool.gone = {"b4", "b5", "b6"}
        metadata = await cluster.written(10)
        cluster.pool.gone = set()
        cluster.away.add(BookieId(lost))
        cluster.bookie(lost).down = True
        await cluster.repaired(metadata.ledger_id, [lost])
        now = cluster.metadata(metadata.ledger_id).fragments[0].bookies
        (taken,) = set(now) - set(metadata.fragments[0].bookies)
        assert taken in takes
        assert cluster.lacking(metadata.ledger_id) == {}

    asyncio.run(run())


def test_a_rule_that_nobody_fits_leaves_the_ledger_marked() -> None:
    async def run() -> None:
        cluster = RepairCluster(6, placement=placed(domain="zone", enforced=True))
        cluster.pool.gone = {"b4", "b5", "b6"}
        metadata = await cluster.written(10)
        cluster.pool.gone = {"b5", "b6"}  # b4 is left: all copies would be in one zone
        cluster.away.add(BookieId("b3"))
        cluster.bookie("b3").down = True
        told = await cluster.repair.run(metadata.ledger_id, ["b3"])
        assert told.outcome is Outcome.LEFT
        assert "no bookie can take the place of b3" in told.why
        assert cluster.metadata(metadata.ledger_id) == metadata

    asyncio.run(run())
