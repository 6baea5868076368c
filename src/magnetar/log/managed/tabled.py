"""Ledgers of a log that lie in a table. Implements ``log.seam.TabledLedgers``.

Whoever fills the table (``pipeline/jobs``) tells the log's owner which ledgers are in it; the owner
keeps that in the log's record, where trimming looks, and only then lets bookies delete anything.

Rules:

* A ledger counts as taken when the table has as many entries and messages of it as the log.
* The record says that a ledger is in the table before it says that bookies have none: so whoever
  reads the record, at any moment, finds each ledger somewhere.
* Who asks is told what the record says, and what was told is in the record when that is answered:
  the job forgets what the owner knows, and the next owner knows nothing else.
* A log has one table. Nothing is taken for another one.
* Of a log that is compacted nothing after the horizon leaves the log: whoever reads the compacted
  view has it nowhere else.

Why: docs/adr/0125-a-topics-history-is-a-table.md, docs/adr/0148-compacted-topics-with-tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.seam import StoredAt, TableLag, TableMark, TakenLedger
from magnetar.model.errors import LogFencedError, NotAllowedError
from magnetar.model.ids import Position
from magnetar.model.url_secrets import without_passwords

WHERE_CHARS_MAX = 2000
PROBLEM_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class TabledEvents:
    """What the log wants to know. ``require_open`` raises when it is not open here any more;
    ``forget``: these ledgers are read elsewhere from now on; ``compacted_to``: what lies after any
    of these stays in the log."""

    changed: Callable[[], None]
    forget: Callable[[list[int]], None]
    compacted_to: Callable[[], Sequence[Position]]
    lost: Callable[[LogFencedError], None]
    require_open: Callable[[], None]


class LogTabled:
    """The ledgers of one log, for its owner."""

    def __init__(self, store: ChainStore, events: TabledEvents) -> None:
        self._store = store
        self._events = events
        self._problem = ""

    @property
    def mark(self) -> TableMark | None:
        """See the seam."""
        return self._store.stored_table

    @property
    def lag(self) -> TableLag | None:
        """See the seam."""
        if self._store.stored_table is None:
            return None
        ledgers = stored_bytes = closed_ms = 0
        # Ledgers are taken in order, so those that wait are the last ones.
        for info in reversed(self._store.chain.ledgers):
            if not info.closed:
                continue
            if info.stored is not StoredAt.LEDGER:
                break
            ledgers, stored_bytes = ledgers + 1, stored_bytes + info.stored_bytes
            closed_ms = info.closed_ms
        return TableLag(ledgers, stored_bytes, closed_ms, self._problem)

    def note_problem(self, where: str, problem: str) -> None:
        """See the seam."""
        self._check(where)
        self._problem = problem[:PROBLEM_CHARS_MAX]

    async def attach(self, mark: TableMark) -> None:
        """See the seam."""
        self._events.require_open()
        if not 0 < len(mark.where) <= WHERE_CHARS_MAX:
            raise NotAllowedError(
                f"log {self._store.name}: the name of a table has 1 to {WHERE_CHARS_MAX} characters"
            )
        if self._store.table is not None:
            self._check(mark.where)
        elif self._store.chain.deleted > self._store.chain.trimmed:
            raise NotAllowedError(
                f"log {self._store.name}: records up to {self._store.chain.deleted} were deleted, "
                "and a table takes whole ledgers; attach it when that ledger is gone"
            )
        if mark != self._store.stored_table:
            self._store.table = mark
            await self._save()
            self._events.changed()

    async def take(self, where: str, taken: Sequence[TakenLedger]) -> None:
        """See the seam."""
        self._events.require_open()
        self._check(where)
        chain, recorded = self._store.chain, self._store.stored_at
        new, unsaved = [], False
        for each in taken:
            info = chain.info(each.ledger_id)
            if info is None:
                continue  # it was trimmed before the log had a table
            if not info.closed or (info.entries, info.messages) != (each.entries, each.messages):
                raise NotAllowedError(
                    f"log {self._store.name}: ledger {each.ledger_id} has {info.entries} entries "
                    f"and {info.messages} messages{'' if info.closed else ' and is open'}, and the "
                    f"table {each.entries} and {each.messages}; nothing is deleted. Has the table "
                    "been changed by others? Make it anew, or say detach"
                )
            if info.stored is StoredAt.LEDGER:
                new.append(each.ledger_id)
            unsaved |= recorded.get(each.ledger_id, StoredAt.LEDGER) is StoredAt.LEDGER
        if unsaved:  # also what a write that failed was to say
            chain.store(StoredAt.BOTH, new)
            await self._save()
        self._events.changed()

    def rewritten(self, where: str) -> None:
        """See the seam."""
        self._check(where)
        ledgers = self._store.chain.ledgers
        self._events.forget([i.ledger_id for i in ledgers if i.stored is StoredAt.TABLE])

    async def forget(self, where: str, ledger_id: int, *, lost: bool = False) -> None:
        """See the seam."""
        self._events.require_open()
        self._check(where)
        chain = self._store.chain
        gone = [info for info in chain.ledgers if info.ledger_id <= ledger_id]
        only = 0
        while only < len(gone) and gone[only].stored is StoredAt.TABLE:
            only += 1
        if not lost:
            self._check_compacted(gone[:only])
        chain.store(StoredAt.LEDGER, [i.ledger_id for i in gone if i.stored is StoredAt.BOTH])
        left = [info.ledger_id for info in chain.trim(only)]
        self._events.forget(left)
        await self._save()
        self._events.changed()

    def _check_compacted(self, leaving: Sequence[LedgerInfo]) -> None:
        if not leaving:
            return
        last = Position(leaving[-1].ledger_id, leaving[-1].entries - 1)
        horizon = min(self._events.compacted_to(), default=last)
        if horizon < last:
            raise NotAllowedError(
                f"log {self._store.name} is compacted up to {horizon}, and readers of what is left "
                f"need all that came later: compact it before what is up to {last} leaves the table"
            )

    async def detach(self, where: str) -> None:
        """See the seam."""
        self._events.require_open()
        self._check(where)
        chain = self._store.chain
        only = [info.ledger_id for info in chain.ledgers if info.stored is StoredAt.TABLE]
        if only:
            raise NotAllowedError(
                f"log {self._store.name}: {len(only)} ledgers, from {only[0]} to {only[-1]}, are "
                "in the table and nowhere else; while it is attached consumers read them there. "
                "If the table is gone for good, give them up: magnetar pipeline detach --yes"
            )
        chain.store(StoredAt.LEDGER, [info.ledger_id for info in chain.ledgers if info.closed])
        self._store.table = None
        self._problem = ""
        await self._save()
        self._events.changed()

    def _check(self, where: str) -> None:
        table = self._store.table
        told = without_passwords(where)
        # Earlier releases noted the catalog's password with the table's place.
        noted = None if table is None else without_passwords(table.where)
        if noted != told:
            has = "has no table" if noted is None else f"has the table {noted}"
            raise NotAllowedError(
                f"log {self._store.name} {has}, and not {told}; attach the one, or detach the other"
            )

    async def _save(self) -> None:
        try:
            await self._store.save()
        except LogFencedError as error:
            self._events.lost(error)
            raise
