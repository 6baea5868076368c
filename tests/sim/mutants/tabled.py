"""Ring 2, with tables that take topics: one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.log.managed import managed_log
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.tabled import LogTabled
from magnetar.log.seam import StoredAt
from magnetar.model.errors import MagnetarError, TableError
from magnetar.model.ids import Position
from magnetar.pipeline.tables import partition_taking
from magnetar.pipeline.tables.taking_rules import TakenUpTo, commit_of, rounds, to_take
from magnetar.tables.parts import FilePart, window
from magnetar_sim.tabled import warehouse_history
from magnetar_sim.tabled.warehouse import Warehouse
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _told_before() -> AbstractContextManager[None]:
    """The owner is told of ledgers when their files are written."""
    original = partition_taking._commit

    async def commit(port: Any, partition: str, written: Any, known: Any) -> None:
        await port.tell([each.taken for each in written])
        await original(port, partition, written, known)

    return replaced((partition_taking, "_commit", commit))


def _committed_again() -> AbstractContextManager[None]:
    """A commit whose answer is lost is made once more, on what the table is now."""
    original = partition_taking._commit

    async def commit(port: Any, partition: str, written: Any, known: Any) -> None:
        try:
            await original(port, partition, written, known)
        except TableError:
            before = await port.taken(side=False)
            await port.look()
            again = commit_of(partition, before, [each.taken for each in written], known)
            if again is not None:
                await port.commit(again, written, side=False)

    return replaced((partition_taking, "_commit", commit))


def _onto_the_winner() -> AbstractContextManager[None]:
    """A commit that lost is put onto what the winner wrote, as pyiceberg's retries do."""
    return replaced((Warehouse, "compare", lambda *_: None))


def _taken_again() -> AbstractContextManager[None]:
    """The ledger that the table names as its last one is taken with the next."""

    def again(former: TakenUpTo) -> TakenUpTo:
        return replace(former, ledger_id=former.ledger_id - 1)

    def committed(partition: str, former: TakenUpTo, *rest: Any) -> Any:
        return commit_of(partition, again(former), *rest)

    return replaced(
        (partition_taking, "to_take", lambda taken, ledgers: to_take(again(taken), ledgers)),
        (partition_taking, "commit_of", committed),
    )


def _first_of_a_round_left() -> AbstractContextManager[None]:
    """Of several ledgers the first is passed over."""

    def fewer(ledgers: Sequence[Any]) -> Any:
        for each in rounds(ledgers):
            yield each[1:] if len(each) > 1 else each

    return replaced((partition_taking, "rounds", fewer))


def _main_first() -> AbstractContextManager[None]:
    """The table says that it has ledgers before its side table has their rows."""

    async def commit(port: Any, partition: str, written: Any, known: Any) -> None:
        ledgers = [each.taken for each in written]
        unfit = [each.taken.ledger_id for each in written if each.side]
        for side in (False, True) if unfit else (False,):
            former = await port.taken(side=side)
            made = commit_of(partition, former, ledgers, known, () if side else unfit)
            if made is not None:
                await port.commit(made, written, side=side)
        await port.look()

    return replaced((partition_taking, "_commit", commit))


def _untold_for_ever() -> AbstractContextManager[None]:
    """What a job that ended had not told is told by nobody."""
    return replaced((partition_taking, "untold", lambda *_: []))


def _deleted_untaken() -> AbstractContextManager[None]:
    """Bookies delete what retention lets go, in the table or not."""

    def droppable(self: Any) -> list[int]:
        return [info.ledger_id for info in self._past_bookies()]

    return replaced((ManagedLog, "_droppable", droppable))


def _trimmed_as_others() -> AbstractContextManager[None]:
    """A log with a table is trimmed as any other."""

    def deletable(self: Any) -> int:
        return managed_log.deletable(
            self._chain.ledgers,
            self._needed_after(),
            self._appender.policy.retention,
            self._context.now_ms(),
        )

    return replaced((ManagedLog, "_deletable", deletable))


def _deleted_before_the_record() -> AbstractContextManager[None]:
    """Ledgers are deleted, and then the record says that they are in the table only."""

    async def trim(self: Any) -> None:
        try:
            dropped = self._droppable()
            for ledger_id in dropped:
                await self._context.ledgers.delete(ledger_id)
            self._chain.store(StoredAt.TABLE, dropped)
            self._catch_up.forget(dropped)
            await self._store.save()
        except MagnetarError:
            pass
        finally:
            self._trimming = False

    return replaced((ManagedLog, "_trim", trim))


def _mark_not_stored() -> AbstractContextManager[None]:
    """The next owner does not know that there is a table."""
    original = ChainStore._now

    def now(self: Any, record: Any, opened: Any = None) -> Any:
        return replace(original(self, record, opened), table=None)

    return replaced((ChainStore, "_now", now))


def _rewritten_unheard() -> AbstractContextManager[None]:
    """What brokers have in memory of ledgers in the table stays there when they are rewritten."""
    return replaced((LogTabled, "rewritten", lambda *_: None))


def _holes_forgotten() -> AbstractContextManager[None]:
    """What is not acknowledged of ledgers that bookies delete is forgotten with them."""
    original = ManagedLog._trim

    async def trim(self: Any) -> None:
        dropped = self._droppable()
        await original(self)
        if dropped:
            last = self._chain.info(dropped[-1])
            if last is not None:
                self._cursors.pass_over(Position(last.ledger_id, last.entries))

    return replaced((ManagedLog, "_trim", trim))


def _window_of_one_part() -> AbstractContextManager[None]:
    """Of the parts of files that hold an entry one is read."""

    def one(parts: Sequence[FilePart], first: int, entries: int) -> Any:
        chosen, stop = window(parts, first, entries)
        return chosen[:1], stop

    return replaced((warehouse_history, "window", one))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="tabled")


TABLED = (
    _mutant("ledgers are told before they are in the table", _told_before),
    _mutant("a commit whose answer is lost is made again", _committed_again),
    _mutant("a commit that lost is put onto what the winner wrote", _onto_the_winner),
    _mutant("the last ledger in the table is taken again", _taken_again),
    _mutant("the first ledger of a round is passed over", _first_of_a_round_left),
    _mutant("a table is committed before its side table", _main_first),
    _mutant("what a job had not told when it ended is not told", _untold_for_ever),
    _mutant("bookies delete what is not in the table", _deleted_untaken),
    _mutant("a log with a table is trimmed as others are", _trimmed_as_others),
    _mutant("ledgers are deleted before the record says so", _deleted_before_the_record),
    _mutant("the next owner does not know of the table", _mark_not_stored),
    _mutant("what brokers keep of a table outlives its erasure", _rewritten_unheard),
    _mutant("holes of a cursor go with the ledgers at the bookies", _holes_forgotten),
    _mutant("one part of the files that hold an entry is read", _window_of_one_part),
)
