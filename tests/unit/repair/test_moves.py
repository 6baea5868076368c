"""What emptying bookies would move, and where it cannot."""

from __future__ import annotations

import random

from magnetar.ledger.placing.placement import ANYWHERE, BookieTraits, Placement
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.repair.insight.moves import ENTRY_OVERHEAD_BYTES, BookiesNow, Moves
from magnetar.repair.insight.planning import plan_view

B = tuple(BookieId(f"b{i}") for i in range(6))


def ledger(*firsts: int, last: int, ledger_id: int = 1, quorums=(3, 2, 2)):  # type: ignore[no-untyped-def]
    size, write_quorum, ack_quorum = quorums
    return LedgerMetadata(
        LedgerId(ledger_id), size, write_quorum, ack_quorum, DigestType.CRC32C, b"",
        tuple(Fragment(first, B[i : i + size]) for i, first in enumerate(firsts)),
    ).with_close(last, 100 * (last + 1))  # fmt: skip


def moves(
    *leaving: BookieId,
    placement: Placement = ANYWHERE,
    away: tuple[BookieId, ...] = (),
    room: dict[BookieId, int] | None = None,
) -> Moves:
    registered = [bookie for bookie in B if bookie not in away]
    writable = [bookie for bookie in registered if bookie not in leaving]
    cluster = BookiesNow(leaving, writable, registered, room or {}, placement)
    return Moves(cluster, random.Random(1))


def test_each_share_is_counted_entry_by_entry() -> None:
    metadata = ledger(0, 10, 25, last=29)
    plan = moves(B[1], B[2])
    plan.add(metadata, 30, metadata.length)
    entry_bytes = ENTRY_OVERHEAD_BYTES + 100
    for bookie in (B[1], B[2]):
        count = sum(bookie in metadata.write_set(entry) for entry in range(30))
        assert plan.given[bookie].entries == count
        assert plan.given[bookie].byte_count == count * entry_bytes
    assert sum(each.byte_count for each in plan.taken.values()) == plan.byte_count
    assert not set(plan.taken) & {B[1], B[2]}
    assert plan.stuck == []
    assert plan.below_write_quorum == 0


def test_a_ledger_that_names_none_of_them_does_not_move() -> None:
    plan = moves(B[5])
    plan.add(ledger(0, last=9), 10, 1000)
    assert (plan.ledgers, plan.byte_count) == (0, 0)


def test_an_empty_last_fragment_must_name_others_too() -> None:
    plan = moves(B[0])
    plan.add(ledger(0, last=-1), 0, 0)
    assert plan.given[B[0]].fragments == 1
    assert plan.given[B[0]].entries == 0


def test_nobody_outside_the_ensemble_is_left() -> None:
    plan = moves(B[0], away=B[3:])
    plan.add(ledger(0, last=9), 10, 1000)
    assert plan.stuck_count == 1
    assert plan.stuck[0].why == "no bookie outside its ensemble takes entries"
    assert not plan_view(plan, 100, 2, [], [])["possible"]


def test_space_runs_out() -> None:
    """Room for the share of one ledger on each: the second fills the others, the third is stuck."""
    share = 7 * (ENTRY_OVERHEAD_BYTES + 100)
    plan = moves(B[0], away=B[5:], room={B[3]: share, B[4]: share})
    for ledger_id in range(1, 4):
        plan.add(ledger(0, last=9, ledger_id=ledger_id), 10, 1000)
    assert plan.stuck_count == 1
    assert "its disks have no room for it" in plan.stuck[0].why
    assert {*plan.taken} == {B[3], B[4]}


def test_racks_that_are_enforced() -> None:
    racks = dict(zip(B, ("r1", "r2", "r1", "r2", "r2", "r2"), strict=True))
    traits = {bookie: BookieTraits(rack=rack) for bookie, rack in racks.items()}
    placement = Placement("rack", 2, True, traits=traits)
    plan = moves(B[0], placement=placement)
    plan.add(ledger(0, last=9, quorums=(2, 2, 2)), 10, 1000)
    assert {*plan.taken} == {B[2]}, "the only other bookie in rack r1"
    plan = moves(B[0], placement=placement, away=(B[2],))
    plan.add(ledger(0, last=9, quorums=(2, 2, 2)), 10, 1000)
    assert plan.stuck_count == 1
    assert "in no rack that its write sets need" in plan.stuck[0].why


def test_what_lacks_copies_already_is_told_apart() -> None:
    plan = moves(B[0], away=(B[1],))
    plan.add(ledger(0, last=9, quorums=(3, 3, 2)), 10, 1000)
    plan.add(ledger(0, last=9, ledger_id=2, quorums=(3, 2, 2)), 10, 1000)
    assert plan.below_write_quorum == 2
    assert plan.below_ack_quorum == [2]
    told = plan_view(plan, 1000, 2, [], [])
    assert told["belowAckQuorumMeanwhile"] == 0
    assert told["belowAckQuorumAlready"] == 1
    assert told["seconds"] == round(plan.byte_count / 2000, 1)


def test_a_refusal_makes_it_impossible() -> None:
    assert not plan_view(moves(B[0]), 0, 1, ["not registered"], [])["possible"]
    assert plan_view(moves(B[0]), 0, 1, [], ["repair is off"])["possible"]
