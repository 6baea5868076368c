"""Adds that a bookie has not answered, matched by ledger and entry (version 2 of the protocol has
no transaction ids). Pure.

Rules:

* An add's ``done`` hears of each of its entry ids exactly once, whatever happens.
* The same entry may be under way more than once (a resend after an ensemble change); the oldest
  add is answered first.
* The adds of a ledger expire in the order they came, since all have the same time.

Cost: bookies answer the adds of a ledger in order, so an answer is looked for in the oldest add
first, and whole runs of ids are compared at once. Answers out of order are looked up id by id.
With an add of one entry for each of many ledgers this costs a third of a dictionary of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from magnetar.ledger.bookies import AddDone

Add: TypeAlias = tuple[Sequence[int], AddDone, float]
"""The ids that are not answered (never none), ``done``, and when it expires in the owner's
clock. A plain tuple: one is made per bookie, ledger and turn of the loop."""

Answered: TypeAlias = tuple[AddDone, Sequence[int]]
"""Call ``done`` with these ids."""


class PendingAdds:
    """See the module's text."""

    def __init__(self) -> None:
        self._ledgers: dict[int, list[Add]] = {}  # oldest first; none is empty

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def add(self, ledger_id: int, add: Add) -> None:
        adds = self._ledgers.get(ledger_id)
        if adds is None:
            self._ledgers[ledger_id] = [add]
        else:
            adds.append(add)

    def answered(self, ledger_id: int, entry_ids: list[int]) -> Sequence[Answered]:
        """Whom these answers belong to, each with its ids in the answers' order. Ids that nobody
        waits for (late answers) are left out."""
        adds = self._ledgers.get(ledger_id)
        if adds is None:
            return ()
        awaited, done, _ = adds[0]
        if (
            len(adds) == 1
            and len(awaited) == len(entry_ids)
            and awaited[0] == entry_ids[0]
            and (len(awaited) == 1 or list(awaited) == entry_ids)
        ):
            del self._ledgers[ledger_id]  # with many ledgers nearly every answer ends here
            return [(done, awaited)]
        groups, at = _answered_in_order(adds, entry_ids)
        for entry_id in entry_ids[at:]:
            _answered_one(adds, entry_id, groups)
        if not adds:
            del self._ledgers[ledger_id]
        return groups

    def expired(self, now_s: float) -> list[tuple[Answered, float]]:
        """The adds whose time is over with their unanswered ids, and when they expired; they are
        forgotten."""
        found = []
        for ledger_id, adds in list(self._ledgers.items()):
            late = [add for add in adds if add[2] <= now_s]
            found += [((done, entry_ids), deadline_s) for entry_ids, done, deadline_s in late]
            del adds[: len(late)]
            if not adds:
                del self._ledgers[ledger_id]
        return found

    def drain(self) -> list[Answered]:
        """All adds with their unanswered ids; nothing is pending afterwards."""
        ledgers, self._ledgers = self._ledgers, {}
        return [(done, entry_ids) for adds in ledgers.values() for entry_ids, done, _ in adds]


def _answered_in_order(adds: list[Add], entry_ids: list[int]) -> tuple[list[Answered], int]:
    """Take the ids that come as they were sent, oldest add first; returns whom they belong to and
    how many they are."""
    groups: list[Answered] = []
    at = whole = 0
    left = len(entry_ids)
    for awaited, done, deadline_s in adds:
        count = len(awaited)
        if not left or awaited[0] != entry_ids[at]:
            break
        if count > left:
            awaited, rest = awaited[:left], awaited[left:]
            count = left
        else:
            rest = ()
        if count > 1 and list(awaited) != entry_ids[at : at + count]:
            break
        groups.append((done, awaited))
        at += count
        left -= count
        if rest:
            adds[whole] = (rest, done, deadline_s)
            break
        whole += 1
    del adds[:whole]
    return groups, at


def _answered_one(adds: list[Add], entry_id: int, groups: list[Answered]) -> None:
    """Take one id from the oldest add that has it, if any."""
    for index, (awaited, done, deadline_s) in enumerate(adds):
        if entry_id in awaited:
            left = [each for each in awaited if each != entry_id]
            if left:
                adds[index] = (left, done, deadline_s)
            else:
                del adds[index]
            groups.append((done, (entry_id,)))
            return
