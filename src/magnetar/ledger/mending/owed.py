"""Which confirmed entries a bookie still lacks although the metadata names it for them.

With an ack quorum below the write quorum a ledger goes on while a bookie is away; what was
confirmed meanwhile is *owed* to that bookie. Decides only; ``mending`` copies.

Rules:

* Only confirmed entries are owed: adding one again, whenever, never changes what a ledger holds.
* Owed is not acknowledged: nothing here counts towards a quorum.
* Memory is bounded whatever happens: a debt is a range of ids, not their bytes. A ledger owes a
  bookie at most ``RANGES_MAX`` ranges; past that the two closest become one, which costs copies
  that were there already. Past ``LEDGERS_MAX`` debts the oldest is dropped and counted: repairing
  that ledger is left to re-replication.
"""

from __future__ import annotations

from magnetar.model.ids import BookieId

RANGES_MAX = 16
LEDGERS_MAX = 10_000


class OwedEntries:
    """Debts by bookie and ledger, in the order in which they came."""

    def __init__(self, ledgers_max: int = LEDGERS_MAX) -> None:
        self._ledgers_max = ledgers_max
        self._debts: dict[tuple[BookieId, int], list[range]] = {}
        self.dropped = 0
        """Debts that were forgotten for want of room."""

    def __bool__(self) -> bool:
        return bool(self._debts)

    def add(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` may lack some of ``entry_ids`` (ascending, confirmed)."""
        if not entry_ids:
            return
        key = bookie_id, ledger_id
        self._debts[key] = _merged([*self._debts.get(key, ()), entry_ids])
        if len(self._debts) > self._ledgers_max:
            del self._debts[next(iter(self._debts))]
            self.dropped += 1

    def settled(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` holds ``entry_ids`` now, as far as they are its own."""
        key = bookie_id, ledger_id
        left = [part for owed in self._debts.get(key, ()) for part in _without(owed, entry_ids)]
        if left:
            self._debts[key] = _merged(left)
        else:
            self._debts.pop(key, None)

    def forget(self, ledger_id: int) -> None:
        """The ledger is gone."""
        for key in [key for key in self._debts if key[1] == ledger_id]:
            del self._debts[key]

    def bookies(self) -> list[BookieId]:
        """To whom something is owed, each once."""
        return list(dict.fromkeys(bookie_id for bookie_id, _ in self._debts))

    def ledgers(self, bookie_id: BookieId) -> list[int]:
        return [ledger_id for owed_to, ledger_id in self._debts if owed_to == bookie_id]

    def ranges(self, bookie_id: BookieId, ledger_id: int) -> list[range]:
        """What is owed, ascending; ids that are not the bookie's stripe may be among them."""
        return list(self._debts.get((bookie_id, ledger_id), ()))

    def entries(self, bookie_id: BookieId) -> int:
        """At most so many entries are owed to the bookie."""
        debts = [ranges for (owed_to, _), ranges in self._debts.items() if owed_to == bookie_id]
        return sum(len(ids) for ranges in debts for ids in ranges)


def _merged(ranges: list[range]) -> list[range]:
    merged: list[range] = []
    for each in sorted(ranges, key=lambda ids: ids.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, each.stop))
        else:
            merged.append(each)
    while len(merged) > RANGES_MAX:
        gaps = [merged[i + 1].start - merged[i].stop for i in range(len(merged) - 1)]
        i = gaps.index(min(gaps))
        merged[i : i + 2] = [range(merged[i].start, merged[i + 1].stop)]
    return merged


def _without(owed: range, entry_ids: range) -> list[range]:
    before = range(owed.start, min(owed.stop, entry_ids.start))
    after = range(max(owed.start, entry_ids.stop), owed.stop)
    return [part for part in (before, after) if part]
