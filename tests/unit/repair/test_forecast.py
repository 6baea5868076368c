"""What is left of a ledger without some bookies, against every entry counted one by one."""

from __future__ import annotations

import random

import pytest

from magnetar.ledger.recovering.recovery_plan import EntryVote, LacCoverage, RecoveryScan
from magnetar.model.ids import NO_ENTRY, BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.repair.insight.explaining import explanation
from magnetar.repair.insight.forecast import (
    CopyLayout,
    CopyState,
    EntryFate,
    closing,
    forecast,
    sections,
)
from magnetar.wire.bookie.availability import condense

BOOKIES = tuple(BookieId(f"b{i}") for i in range(7))
SHAPES = [(3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 2, 1), (1, 1, 1), (5, 5, 3), (3, 1, 1)]


class Case:
    """A random ledger, who holds what of it, and who is silent."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        size, write_quorum, ack_quorum = rng.choice(SHAPES)
        entries = rng.randrange(0, 40)
        firsts = sorted({0, *(rng.randrange(0, entries + 1) for _ in range(rng.randrange(3)))})
        fragments = tuple(Fragment(e, tuple(rng.sample(BOOKIES, size))) for e in firsts)
        metadata = LedgerMetadata(
            LedgerId(1), size, write_quorum, ack_quorum, DigestType.CRC32C, b"", fragments
        )
        self.closed = rng.random() < 0.5
        self.metadata = metadata.with_close(entries - 1, 0) if self.closed else metadata
        loss = rng.choice([0.0, 0.1, 0.5])
        self.holders: dict[int, set[BookieId]] = {
            entry: {b for b in self.metadata.write_set(entry) if rng.random() >= loss}
            for entry in range(entries)
        }
        self.silent = {b for b in BOOKIES if rng.random() < rng.choice([0.0, 0.2])}
        named = {b for one in fragments for b in one.bookies}
        held = {
            b: condense([e for e in range(entries) if b in self.holders[e]])
            for b in sorted(named - self.silent)
        }
        start = fragments[-1].first_entry_id
        confirmed = {
            b: rng.randrange(start - 1, max(entries, start))
            for b in fragments[-1].bookies
            if b in held and not self.closed
        }
        self.layout = CopyLayout(self.metadata, held, confirmed)
        self.gone = {b for b in BOOKIES if rng.random() < 0.3}

    def fate(self, entry: int, gone: set[BookieId]) -> tuple[int, int, EntryFate]:
        left = [b for b in self.metadata.write_set(entry) if b not in gone]
        perhaps = sum(b in self.silent for b in left)
        copies = sum(b in self.holders[entry] for b in left if b not in self.silent)
        if copies == self.metadata.write_quorum:
            return copies, perhaps, EntryFate.WHOLE
        if copies >= self.metadata.ack_quorum:
            return copies, perhaps, EntryFate.FEWER
        if copies:
            return copies, perhaps, EntryFate.BELOW_ACK_QUORUM
        return copies, perhaps, EntryFate.UNREADABLE if perhaps else EntryFate.LOST


@pytest.mark.parametrize("first_seed", range(0, 600, 100))
def test_every_entry_has_the_fate_that_counting_gives_it(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        case = Case(seed)
        found = sections(case.layout)
        for gone in (set(), case.gone):
            told = {}
            for stretch in forecast(case.layout, found, gone):
                for entry in stretch.entry_ids:
                    assert entry not in told, f"seed {seed}"
                    told[entry] = (stretch.copies, stretch.perhaps, stretch.fate)
                    sure = entry <= case.layout.last_confirmed
                    assert stretch.confirmed == sure, f"seed {seed}"
            counted = {
                entry: case.fate(entry, gone)
                for entry in range(case.layout.last_entry + 1)
                if entry in case.holders
            }
            assert told == counted, f"seed {seed}, without {sorted(gone)}"


@pytest.mark.parametrize("first_seed", range(1000, 1600, 100))
def test_closing_is_what_recovery_would_conclude(first_seed: int) -> None:
    """Every bookie that is left votes on every entry, in recovery's own machine."""
    for seed in range(first_seed, first_seed + 100):
        case = Case(seed)
        told = closing(case.layout, sections(case.layout), case.gone)
        if case.closed:
            assert told is None
            continue
        assert told is not None
        most, least = (_recovered(case, copies_first) for copies_first in (True, False))
        wanted = (None, None) if None in (most, least) else (least, most)
        found = (told.least, told.most) if told.possible else (None, None)
        assert found == wanted, f"seed {seed}"


def _recovered(case: Case, copies_first: bool) -> int | None:
    """Where it ends when those who hold an entry answer before those who deny it, or after them;
    None: it cannot be closed."""
    metadata, layout = case.metadata, case.layout
    last = metadata.fragments[-1]
    answers = {b for b in last.bookies if b not in case.silent | case.gone}
    coverage = LacCoverage(len(last.bookies), metadata.write_quorum, metadata.ack_quorum)
    for slot, bookie in enumerate(last.bookies):
        if bookie in answers:
            coverage.answered(slot, layout.confirmed.get(bookie, NO_ENTRY))
        else:
            coverage.unknown(slot)
    if not coverage.covered:
        return None
    scan: RecoveryScan[int] = RecoveryScan(coverage.start_after(last.first_entry_id))
    while not scan.finished:
        entry = scan.next_entry_id
        vote: EntryVote[int] = EntryVote(metadata.write_quorum, metadata.ack_quorum)
        holders = case.holders.get(entry, set())
        order = sorted(metadata.write_set(entry), key=lambda b: (b in holders) is not copies_first)
        for bookie in order:
            if bookie not in answers:
                vote.unknown()
            elif bookie in holders:
                vote.found(entry)
            else:
                vote.negative()
        scan.decided([vote])
    return scan.end


def test_a_striped_bookie_that_lacks_all_is_one_section() -> None:
    fragment = Fragment(0, BOOKIES[:5])
    metadata = LedgerMetadata(LedgerId(1), 5, 3, 2, DigestType.CRC32C, b"", (fragment,)).with_close(
        999_999, 0
    )
    held = {
        b: condense([e for e in range(1_000_000) if b in metadata.write_set(e)])
        for b in BOOKIES[1:3]
    }
    (section,) = sections(CopyLayout(metadata, {**held, BOOKIES[0]: ()}))
    assert section.entry_ids == range(1_000_000)
    unknown = (CopyState.UNKNOWN, CopyState.UNKNOWN)
    assert section.copies == (CopyState.MISSING, CopyState.HELD, CopyState.HELD, *unknown)


def test_the_explanation_counts_what_is_named_and_held() -> None:
    fragments = (Fragment(0, BOOKIES[:3]), Fragment(10, BOOKIES[1:4]))
    metadata = LedgerMetadata(LedgerId(9), 3, 2, 2, DigestType.CRC32C, b"", fragments)
    metadata = metadata.with_close(19, 200)
    held = {
        b: condense([e for e in range(20) if b in metadata.write_set(e)])
        for b in (BOOKIES[1], BOOKIES[2], BOOKIES[3])
    }
    layout = CopyLayout(metadata, held)
    told = explanation(layout, {BOOKIES[0]: "gone"}, [BOOKIES[2], BookieId("other")])
    rows = {each["bookieId"]: each for each in told["bookies"]}
    assert rows[BOOKIES[0]]["copiesHeld"] is None
    assert rows[BOOKIES[0]]["problem"] == "gone"
    for bookie, each in rows.items():
        count = sum(bookie in metadata.write_set(entry) for entry in range(20))
        assert each["copiesNamed"] == count
        assert each["copiesHeld"] in (None, count)
    assert told["notOfThisLedger"] == ["other"]
    assert sum(told["now"]["entries"].values()) == 20
    assert told["forecast"]["without"] == [BOOKIES[2]]
    unreadable = [each for each in told["forecast"]["ranges"] if each["fate"] == "unreadable"]
    ids = [
        entry
        for each in unreadable
        for entry in range(each["firstEntryId"], each["lastEntryId"] + 1, each["every"])
    ]
    assert sorted(ids) == [
        e for e in range(10) if metadata.write_set(e) == (BOOKIES[2], BOOKIES[0])
    ]
