"""How much of each entry log is of use, kept in the index: a start reads a row per log, a deletion
one per log that the ledger lies in.

    family   key                value
    shares   ledger id, log id  bytes of the ledger's records in the log
    logs     log id             bytes of its records, and those of living ledgers

Invariants:

* ``live_bytes`` of a log is the sum of its shares: what changes both is one batch. So a log that is
  said to hold nothing of use holds nothing of use, after any crash.
* A log has a row once it is settled (a flush that is cut short leaves ledgers in a log of which
  nobody will ever hear again) and all of its shares are stored. One without a row is counted again
  after a start, and what shares it has are written anew.
* A ledger's shares go in the batch that forgets where its entries lie, before its record says that
  it is deleted: who is found deleted is not looked for again.
* What that batch takes away counts as dead only when it is durable (``apply``), or when the journal
  has the deletion, durably, and the disk is full (``forget_early``): whether that batch is written,
  was refused or is to come.
* Shares of a log without a row were left by a crash, and count for nothing: what the log holds is
  counted anew, and what that says of a ledger is taken away with it (``_unstored_shares``).
* No id of a log is given out again, or a share that was left over would count for another log.

Used by the directory's flush lane only. Blocking; raises ``BookieIOError``.

Why: docs/adr/0102-usage-in-the-index.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice, product

import structlog

from magnetar.bookie.storage.location_index import (
    BATCH_MAX,
    LocationIndex,
    Share,
    StoredLog,
    UsageChange,
)
from magnetar.bookie.storage.log_usage import LogUsage
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)


class _Unstored:
    """A log whose row is to be written. ``shares``: ledger id -> bytes."""

    __slots__ = ("byte_count", "for_now", "settled", "shares", "unsure")

    def __init__(
        self,
        byte_count: int,
        shares: dict[int, int],
        settled: bool,
        unsure: frozenset[int],
        for_now: bool,
    ) -> None:
        self.byte_count = byte_count
        self.for_now = for_now
        self.shares = shares
        self.settled = settled
        self.unsure = unsure


class UsageStore:
    """Of one ledger directory. ``usage`` is what the deciding parts look at."""

    def __init__(self, index: LocationIndex, usage: LogUsage) -> None:
        self._index = index
        self._usage = usage
        self._stored: dict[int, StoredLog] = {}
        self._unstored: dict[int, _Unstored] = {}
        self._taken: dict[int, list[Share]] = {}
        """Shares that went from the index with a ledger, by a flush that is not durable yet; none
        if the index has refused to forget them."""
        self._early: set[int] = set()
        """Ledgers whose shares count as dead before the index says so durably: it has no room to
        be told."""
        self._no_logs: list[int] = []
        self._no_shares: list[tuple[list[int], list[int]]] = []
        """(Ledgers, logs): what any of them has in any of these is to go, as the rows of the logs:
        they are no more."""
        self.highest = 0
        """No log that ever had shares has a higher id."""

    def __contains__(self, log_id: int) -> bool:
        """Whether the log has a row."""
        return log_id in self._stored

    def open(self, there: Iterable[int]) -> None:
        """Take over what the index says of the logs that are ``there``."""
        logs, self.highest = self._index.logs()
        ids = frozenset(there)
        for each in logs:
            if each.log_id in ids:
                self._stored[each.log_id] = each
                self._usage.add(each.log_id, each.byte_count, each.live_bytes)
        self._no_logs = [each.log_id for each in logs if each.log_id not in ids]

    def add(
        self,
        log_id: int,
        byte_count: int,
        shares: dict[int, int],
        settled: bool,
        unsure: frozenset[int],
        for_now: bool = False,
    ) -> None:
        """A log that takes no more. ``shares``: by ledger, 0 of one that is deleted. ``unsure``:
        ledgers of which the index could not be asked; until it can be the log is not stored, so
        that a start asks again. One that counts ``for_now`` is not stored."""
        self._unstored[log_id] = _Unstored(byte_count, shares, settled, unsure, for_now)

    def drop(self, log_ids: Iterable[int], ledger_ids: Iterable[int] = ()) -> None:
        """Logs that are no more. ``ledger_ids``: those that may have shares in them; what others
        have is left, and goes with the ledger. Writes nothing: the disk may be full."""
        gone = list(log_ids)
        for log_id in gone:
            self._unstored.pop(log_id, None)
            if self._stored.pop(log_id, None) is not None:
                self._no_logs.append(log_id)
        self._no_shares.append((list(ledger_ids), gone))

    def store(self, below: int, unsure: Container[int]) -> None:
        """Write the rows of the logs with ids under ``below`` and of those added as settled, and
        remove those of logs that are no more. ``unsure``: of which the index cannot be asked still.
        What is not written has to be counted by a start; the next call tries again."""
        try:
            for log_id, each in list(self._unstored.items()):
                each.unsure = frozenset(one for one in each.unsure if one in unsure)
                sure = not each.unsure and not each.for_now
                if sure and (log_id < below or each.settled):
                    self._store(log_id, each)
                    del self._unstored[log_id]
            while self._no_logs:
                some = self._no_logs[:BATCH_MAX]
                self._index.change_usage(UsageChange(no_logs=some))
                del self._no_logs[: len(some)]
            while self._no_shares:
                self._remove_shares(*self._no_shares[0])
                del self._no_shares[0]
        except BookieIOError as error:
            log.warning("use of entry logs not stored for now", error=str(error))

    def _remove_shares(self, ledger_ids: Iterable[int], log_ids: Sequence[int]) -> None:
        keys = product(ledger_ids, log_ids)
        while some := list(islice(keys, BATCH_MAX)):
            self._index.change_usage(UsageChange(no_shares=some))

    def _store(self, log_id: int, added: _Unstored) -> None:
        # Before its shares: should they be all that is left of it, no other log gets them.
        self.highest = max(self.highest, log_id)
        self._index.change_usage(UsageChange(highest=self.highest))
        rows = iter(added.shares.items())
        while some := list(islice(rows, BATCH_MAX)):
            shares = [(ledger_id, log_id, size) for ledger_id, size in some if size]
            none = [(ledger_id, log_id) for ledger_id, size in some if not size]
            self._index.change_usage(UsageChange(shares=shares, no_shares=none))
        # Behind its shares: a log that has a row has all of them.
        row = StoredLog(log_id, added.byte_count, sum(added.shares.values()))
        self._index.change_usage(UsageChange(logs=[row]))
        self._stored[log_id] = row

    # -- deletions ----------------------------------------------------------------------------

    def take(self, ledger_ids: Sequence[int]) -> None:
        """Forget where the entries of deleted ledgers lie, and their shares. Unsynced: they count
        as dead at ``apply``. Raises ``BookieIOError``; then it may be done again."""
        batch: dict[int, list[Share]] = {}
        keys = 0
        for ledger_id in ledger_ids:
            batch[ledger_id] = self._index.shares(ledger_id)
            keys += 1 + 2 * len(batch[ledger_id])
            if keys >= BATCH_MAX // 2:
                self._take(batch)
                batch, keys = {}, 0
        if batch:
            self._take(batch)

    def _take(self, batch: Mapping[int, list[Share]]) -> None:
        """Of each ledger its shares, as the index has them."""
        changed: dict[int, StoredLog] = {}
        gone: list[tuple[int, int]] = []
        for ledger_id, shares in batch.items():
            for log_id, size in shares:
                gone.append((ledger_id, log_id))
                row = changed.get(log_id) or self._stored.get(log_id)
                if row is not None:
                    changed[log_id] = row._replace(live_bytes=row.live_bytes - size)
        logs = list(changed.values())
        for ledger_id in batch:  # before the index says so: ``undecided``
            self._taken.setdefault(ledger_id, [])
        self._index.change_usage(UsageChange((), gone, logs, (), list(batch)))
        self._stored.update(changed)
        for ledger_id, shares in batch.items():
            if ledger_id not in self._early:  # else these are dead already
                self._taken[ledger_id] += self._counted(shares)
            self._taken[ledger_id] += self._unstored_shares(ledger_id)

    def _counted(self, shares: Iterable[Share]) -> list[Share]:
        """Without those that a crash has left of logs without a row."""
        return [each for each in shares if each.log_id in self._stored]

    def _unstored_shares(self, ledger_id: int) -> list[Share]:
        """What the ledger has in logs without a row; they will not be stored."""
        found = []
        for log_id, each in self._unstored.items():
            if size := each.shares.get(ledger_id, 0):
                found.append(Share(log_id, size))
                each.shares[ledger_id] = 0
        return found

    def apply(self) -> None:
        """What was taken is durable: it is dead."""
        for shares in self._taken.values():
            self._usage.forget(shares)
        durable = list(self._taken)
        self._taken.clear()
        self._early.difference_update(durable)  # in this order: they are dead all the time

    def forget_early(self, ledger_ids: Sequence[int]) -> None:
        """Ledgers whose deletion is durable, in a journal at least. Nothing is written. Raises
        ``BookieIOError``."""
        for ledger_id in ledger_ids:
            if ledger_id in self._early:
                continue
            # A flush may have begun to take them and met the full disk, before the index forgot
            # them or behind that.
            held = self._counted(self._index.shares(ledger_id))
            self._early.add(ledger_id)
            taken = self._taken.pop(ledger_id, [])
            self._usage.forget([*taken, *held, *self._unstored_shares(ledger_id)])

    def forget_unstored(self, ledger_id: int) -> None:
        """It had been deleted when the logs that have no row yet were counted."""
        self._usage.forget(self._unstored_shares(ledger_id))

    def dead_early(self, ledger_id: int) -> bool:
        """Whether it counts as deleted though the index may not say so yet. On any thread."""
        return ledger_id in self._early

    def undecided(self, ledger_id: int) -> bool:
        """Whether the index may say that it is deleted, and forget it again. On any thread; ask
        the index first."""
        return ledger_id in self._taken
