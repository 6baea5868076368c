"""Which confirmed entries a bookie still lacks although the metadata names it for them.

With an ack quorum below the write quorum a ledger goes on while a bookie is away; that bookie
is then *missing* what was confirmed meanwhile. Decides only; ``mending`` copies.

Rules:

* Only confirmed entries count as missing: adding one again, whenever, never changes what a ledger
  holds. Nothing here counts towards a quorum.
* Memory is bounded whatever happens: ranges of ids are kept, not their bytes. Of a ledger a bookie
  has at most ``RANGES_MAX`` ranges; past that the two closest become one, which costs copies that
  were there already. Past ``LEDGERS_MAX`` ledgers the oldest record is dropped and counted:
  repairing that ledger is left to re-replication.
"""

from __future__ import annotations

from magnetar.model.ids import BookieId

RANGES_MAX = 16
LEDGERS_MAX = 10_000


class MissingEntries:
    """Ranges of entry ids by bookie and ledger, in the order in which they were noted."""

    def __init__(self, ledgers_max: int = LEDGERS_MAX) -> None:
        self._ledgers_max = ledgers_max
        self._ranges_by_key: dict[tuple[BookieId, int], list[range]] = {}
        self.dropped = 0
        """Records that were forgotten, since there were too many."""

    def __bool__(self) -> bool:
        return bool(self._ranges_by_key)

    def add(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` may lack some of ``entry_ids`` (ascending, confirmed)."""
        if not entry_ids:
            return
        key = bookie_id, ledger_id
        self._ranges_by_key[key] = _merged([*self._ranges_by_key.get(key, ()), entry_ids])
        if len(self._ranges_by_key) > self._ledgers_max:
            del self._ranges_by_key[next(iter(self._ranges_by_key))]
            self.dropped += 1

    def copied(self, bookie_id: BookieId, ledger_id: int, entry_ids: range) -> None:
        """``bookie_id`` holds ``entry_ids`` now, as far as they are its own."""
        key = bookie_id, ledger_id
        left = [
            part
            for missing in self._ranges_by_key.get(key, ())
            for part in _without(missing, entry_ids)
        ]
        if left:
            self._ranges_by_key[key] = _merged(left)
        else:
            self._ranges_by_key.pop(key, None)

    def forget(self, ledger_id: int) -> None:
        """The ledger is gone."""
        for key in [key for key in self._ranges_by_key if key[1] == ledger_id]:
            del self._ranges_by_key[key]

    def bookies(self) -> list[BookieId]:
        """Who is missing something, each once."""
        return list(dict.fromkeys(bookie_id for bookie_id, _ in self._ranges_by_key))

    def ledgers(self, bookie_id: BookieId) -> list[int]:
        return [ledger_id for owner, ledger_id in self._ranges_by_key if owner == bookie_id]

    def ranges(self, bookie_id: BookieId, ledger_id: int) -> list[range]:
        """What is missing, ascending; ids that are not the bookie's stripe may be among them."""
        return list(self._ranges_by_key.get((bookie_id, ledger_id), ()))

    def entries(self, bookie_id: BookieId) -> int:
        """The bookie is missing at most so many entries."""
        return sum(
            len(ids)
            for (owner, _), ranges in self._ranges_by_key.items()
            if owner == bookie_id
            for ids in ranges
        )


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


def _without(missing: range, entry_ids: range) -> list[range]:
    before = range(missing.start, min(missing.stop, entry_ids.start))
    after = range(max(missing.start, entry_ids.stop), missing.stop)
    return [part for part in (before, after) if part]
