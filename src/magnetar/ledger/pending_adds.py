"""Adds that a bookie has not answered, matched by ledger and entry (version 2 of the protocol has
no transaction ids). Pure.

Rules:

* A batch's ``done`` hears of each of its entry ids exactly once, whatever happens.
* The same entry may be under way more than once (a resend after an ensemble change); the oldest
  add is answered first.
* Batches expire in the order they came, since all have the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.ledger.bookies import AddDone


class AddBatch:
    """One call of ``add_entries``. ``deadline_s`` is when it expires, in the owner's clock;
    ``left`` counts the entry ids not answered."""

    __slots__ = ("deadline_s", "done", "entry_ids", "ledger_id", "left")

    def __init__(
        self, ledger_id: int, entry_ids: Sequence[int], done: AddDone, deadline_s: float
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.done = done
        self.deadline_s = deadline_s
        self.left = len(entry_ids)


class PendingAdds:
    """See the module's text."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, AddBatch]] = {}
        self._again: dict[tuple[int, int], deque[AddBatch]] = {}  # behind the one in _ledgers
        self._batches: deque[AddBatch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: AddBatch) -> None:
        ledger_id, entry_ids = batch.ledger_id, batch.entry_ids
        pending = self._ledgers.get(ledger_id)
        if pending is None:
            pending = self._ledgers[ledger_id] = {}
        if pending.keys().isdisjoint(entry_ids):
            pending.update(dict.fromkeys(entry_ids, batch))
        else:
            for entry_id in entry_ids:
                if entry_id in pending:
                    self._again.setdefault((ledger_id, entry_id), deque()).append(batch)
                else:
                    pending[entry_id] = batch
        self._batches.append(batch)

    def answered(
        self, ledger_id: int, entry_ids: Sequence[int]
    ) -> list[tuple[AddBatch, list[int]]]:
        """The batches that these answers belong to, each with its ids in the answers' order.
        Ids that nobody waits for (late answers) are left out."""
        pending = self._ledgers.get(ledger_id)
        if pending is None:
            return []
        groups: list[tuple[AddBatch, list[int]]] = []
        current: AddBatch | None = None
        ids: list[int] = []
        again = self._again
        for entry_id in entry_ids:
            batch = pending.pop(entry_id, None)
            if batch is None:
                continue
            if again:
                self._promote(pending, ledger_id, entry_id)
            if batch is not current:
                current, ids = batch, []
                groups.append((batch, ids))
            ids.append(entry_id)
        if not pending:
            del self._ledgers[ledger_id]
        for batch, answered_ids in groups:
            batch.left -= len(answered_ids)
        batches = self._batches
        while batches and not batches[0].left:
            batches.popleft()
        return groups

    def _promote(self, pending: dict[int, AddBatch], ledger_id: int, entry_id: int) -> None:
        waiting = self._again.get((ledger_id, entry_id))
        if waiting is None:
            return
        pending[entry_id] = waiting.popleft()
        if not waiting:
            del self._again[ledger_id, entry_id]

    def expired(self, now_s: float) -> list[tuple[AddBatch, list[int]]]:
        """The batches whose time is over, each with its unanswered ids; they are forgotten."""
        groups = []
        batches = self._batches
        while batches and (not batches[0].left or batches[0].deadline_s <= now_s):
            batch = batches.popleft()
            if batch.left:
                groups.append((batch, self._forget(batch)))
        return groups

    def drain(self) -> list[tuple[AddBatch, list[int]]]:
        """All batches with their unanswered ids; nothing is pending afterwards."""
        groups = [(batch, self._forget(batch)) for batch in self._batches if batch.left]
        self._batches.clear()
        assert not self._ledgers, "an add belongs to no batch"
        assert not self._again, "an add belongs to no batch"
        return groups

    def _forget(self, batch: AddBatch) -> list[int]:
        ledger_id = batch.ledger_id
        pending = self._ledgers[ledger_id]
        ids = []
        for entry_id in batch.entry_ids:
            waiting = self._again.get((ledger_id, entry_id)) if self._again else None
            if waiting is not None and batch in waiting:
                waiting.remove(batch)
                if not waiting:
                    del self._again[ledger_id, entry_id]
            elif pending.get(entry_id) is batch:
                del pending[entry_id]
                self._promote(pending, ledger_id, entry_id)
            else:
                continue
            ids.append(entry_id)
        if not pending:
            del self._ledgers[ledger_id]
        batch.left = 0
        return ids
