"""Entries of a ledger, and those passed over that are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.model.entry import Entry
from magnetar.model.errors import EntryDamagedError, LedgerError, NoEntryError, TableError
from magnetar.pipeline.reading.passing_ledgers import LostEntries, PassingLedger

LEDGER = 7


class Bookies:
    """Entries 0 to 9, some of which cannot be read; ``healed``: from the second look on."""

    def __init__(self, faults: dict[int, Exception], healed: tuple[int, ...] = ()) -> None:
        self.faults = faults
        self.healed = healed
        self.asked_again = 0
        self.slept = 0.0

    def read(self, first: int, stop: int) -> Iterator[Entry]:
        for entry_id in range(first, stop):
            if entry_id in self.faults:
                raise self.faults[entry_id]
            yield Entry(LEDGER, entry_id, b"x", 0)

    def again(self) -> object:
        self.asked_again += 1
        for entry_id in self.healed:
            self.faults.pop(entry_id, None)
        return self.read

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def ledger(self) -> PassingLedger:
        return PassingLedger(LEDGER, self.read, self.again, sleep=self.sleep)  # type: ignore[arg-type]


def lost(entry_id: int) -> EntryDamagedError:
    return EntryDamagedError(f"no replica has a sound copy of {entry_id}")


def test_neighbours_that_are_lost_are_one_loss_and_waited_for_once() -> None:
    bookies = Bookies({3: lost(3), 4: NoEntryError("no replica has 4"), 5: lost(5), 9: lost(9)})
    ledger = bookies.ledger()
    assert [each.entry_id for each in ledger.entries(0, 10)] == [0, 1, 2, 6, 7, 8]
    assert ledger.lost == [
        LostEntries(LEDGER, 3, 5, "no replica has a sound copy of 3"),
        LostEntries(LEDGER, 9, 9, "no replica has a sound copy of 9"),
    ]
    assert (bookies.asked_again, bookies.slept) == (2, 2.0)


def test_what_was_repaired_meanwhile_is_no_loss() -> None:
    bookies = Bookies({0: lost(0)}, healed=(0,))
    ledger = bookies.ledger()
    assert [each.entry_id for each in ledger.entries(0, 3)] == [0, 1, 2]
    assert ledger.lost == []


def test_what_may_come_back_is_never_passed_over() -> None:
    bookies = Bookies({2: LedgerError("no replica gave entry 2; bring one of them back")})
    ledger = bookies.ledger()
    with pytest.raises(LedgerError, match="bring one of them back"):
        list(ledger.entries(0, 10))
    assert ledger.lost == []


def test_a_ledger_that_was_deleted_meanwhile_is_not_lost() -> None:
    def gone() -> object:
        raise TableError("ledger 7 was deleted while it was read")

    bookies = Bookies({0: NoEntryError("no replica knows the ledger")})
    bookies.again = gone  # type: ignore[method-assign]
    with pytest.raises(TableError, match="deleted while it was read"):
        list(bookies.ledger().entries(0, 10))


def test_all_of_it_is_lost() -> None:
    ledger = Bookies({each: lost(each) for each in range(10)}).ledger()
    assert not list(ledger.entries(0, 10))
    assert [(each.first, each.last) for each in ledger.lost] == [(0, 9)]
