"""What is wrong with copies that were read."""

from __future__ import annotations

from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.repair.insight.faults import Fault, Finding, differing, fingerprint, joined, single
from magnetar.wire.bookie.digest import EntryDigest

A, B, C = (BookieId(name) for name in "abc")


def test_the_last_add_confirmed_of_copies_may_differ_and_nothing_else() -> None:
    digest = EntryDigest(DigestType.CRC32C, 7, b"")
    offset = digest.payload_offset
    first = fingerprint(digest.build(5, 4, 60, b"payload"), offset)
    assert fingerprint(digest.build(5, 3, 60, b"payload"), offset) == first
    assert fingerprint(digest.build(5, 4, 61, b"payload"), offset) != first
    assert fingerprint(digest.build(5, 4, 60, b"pavload"), offset) != first


def test_most_are_right() -> None:
    assert differing({A: b"1", B: b"1", C: b"1"}) == {}
    assert differing({A: b"1"}) == {}
    assert differing({A: b"1", B: b"2", C: b"1"}) == {B: "sound, but other bytes than at a, c"}
    assert set(differing({A: b"1", B: b"2"})) == {A, B}


def test_neighbours_are_told_together() -> None:
    one = [Finding(single(e), A, Fault.DAMAGED, "x") for e in (3, 4, 5, 9)]
    other = [Finding(single(4), B, Fault.DAMAGED, "x")]
    assert joined([*one[:2], *other, *one[2:]]) == [
        Finding(range(3, 6), A, Fault.DAMAGED, "x"),
        other[0],
        one[3],
    ]
