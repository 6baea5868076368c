"""One partition's closed ledgers -> its topic's table: in which order things are asked, written,
committed and told.

It is a coroutine over a ``TakingPort`` because the simulator runs it where every step takes time
and may be the last. A job's own port waits for nothing that a loop knows of (``at_once``).

Rules:

* The broker is told first that there is a table: from then on it deletes nothing that is not in it.
* It is told of ledgers when they are committed, and not before; what a job that ended had not told
  is told by the next one. So is what the owner has forgotten, as it was detached since: when the
  table's rows were held against the log.
* The side table is committed first: where a job ends in between, the side rows are there already,
  and only the main ones are missing.

Why: docs/adr/0125-a-topics-history-is-a-table.md,
docs/adr/0171-tables-are-taken-and-read-by-seams.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from magnetar.log.seam import TakenLedger
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.tables.taking_rules import (
    TableCommit,
    TakenUpTo,
    check_taken,
    commit_of,
    forgotten,
    rounds,
    to_take,
    untold,
)

T = TypeVar("T")


class LedgerRows(Protocol):
    """A ledger whose files are written and not in the table yet."""

    @property
    def taken(self) -> TakenLedger: ...

    @property
    def side(self) -> Sequence[object]:
        """Its files of the side table."""
        ...


Written = TypeVar("Written", bound=LedgerRows)


class TakingPort(Protocol[Written]):
    """What the taking of one partition reaches. All raise ``MagnetarError``."""

    async def tell(self, taken: Sequence[TakenLedger], *, attach: bool = False) -> None:
        """The log's owner: that there is the table, and that these ledgers are in it. ``attach``:
        and how long what is in it stays at the bookies."""
        ...

    async def ask(self) -> Sequence[LedgerFacts]:
        """The log's owner: which ledgers there are."""
        ...

    async def write(self, ledgers: Sequence[LedgerFacts]) -> Sequence[Written]:
        """The files of each, which no commit names yet."""
        ...

    async def taken(self, *, side: bool) -> TakenUpTo:
        """What the table has, or its side table (which is made if there is none), as it was read
        last."""
        ...

    async def commit(self, commit: TableCommit, written: Sequence[Written], *, side: bool) -> None:
        """Stands or falls as a whole, and only on what was read last. When it raises it is not
        known whether it stands."""
        ...

    async def check_has(self, ledger: LedgerFacts) -> None:
        """Raises ``TableError`` unless the tables, as they were read last, have all entries of this
        ledger, and of no other with its id."""
        ...

    async def look(self) -> None:
        """Read both tables again."""
        ...


async def take_partition(
    port: TakingPort[Written],
    partition: str,
    stop: Callable[[], bool],
    took: Callable[[Sequence[Written]], None],
) -> None:
    """Every closed ledger that is there now. ``took``: is told what was committed, round by round;
    ``stop``: no more rounds. Raises ``MagnetarError``."""
    await port.tell((), attach=True)
    ledgers = await port.ask()
    taken = await port.taken(side=False)
    waiting = untold(taken, ledgers)
    for known_once in forgotten(taken, ledgers):
        await port.check_has(known_once)  # only this log's facts say how much it is to be
        waiting.append(TakenLedger(known_once.ledger_id, known_once.entries, known_once.messages))
    if waiting:
        await port.tell(waiting)
    known = frozenset(each.ledger_id for each in taken.recent)
    for round_ in rounds(to_take(taken, ledgers)):
        if stop():
            return
        written = await port.write(round_)
        for each, facts in zip(written, round_, strict=True):
            check_taken(partition, each.taken, facts)
        await _commit(port, partition, written, known)
        now = [each.taken for each in written]
        await port.tell(now)
        known |= {each.ledger_id for each in now}
        took(written)


async def _commit(
    port: TakingPort[Written],
    partition: str,
    written: Sequence[Written],
    known: frozenset[int],
) -> None:
    """Put ledgers into both tables, those behind what each has."""
    ledgers = [each.taken for each in written]
    unfit = [each.taken.ledger_id for each in written if each.side]
    for side in (True, False) if unfit else (False,):
        told: Sequence[int] = () if side else unfit
        commit = commit_of(partition, await port.taken(side=side), ledgers, known, told)
        if commit is not None:  # else a job has ended right after that
            await port.commit(commit, written, side=side)
    await port.look()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise AssertionError("a job's own port waits for nothing")
