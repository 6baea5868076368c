"""Ring 2: bookies with one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.app import storage
from magnetar.bookie import replay
from magnetar.bookie.journal import journal_scan
from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.journal.journal_format import LEDGER, commit_bytes, decode_ledger
from magnetar.bookie.ledgers.admission import Admission
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.storage.storage import LedgerStorage
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 1500


def _starts_on_any_disk() -> AbstractContextManager[None]:
    """No cookie check: a wiped bookie comes back under its id and says "no such ledger"."""

    async def no_check(*_: Any, **__: Any) -> None:
        return

    return replaced((storage, "check_cookie", no_check))


def _mark_passes_fences() -> AbstractContextManager[None]:
    """A flush without entries skips the ledgers' records, and moves the mark."""
    original = LedgerStorage.take_work

    def take_work(self: Any) -> Any:
        work = original(self)
        return work if work.half.entry_count else work._replace(records=[])

    return replaced((LedgerStorage, "take_work", take_work))


def _marks_of_one_journal() -> AbstractContextManager[None]:
    """The journal furthest ahead speaks for all."""
    original = LedgerStorage.flush

    async def flush(self: Any, positions: Sequence[Any]) -> None:
        await original(self, [max(positions)] * len(positions))

    return replaced((LedgerStorage, "flush", flush))


def _fence_without_key() -> AbstractContextManager[None]:
    """A fence record has no master key, so that the replay of an unknown ledger skips it."""
    original = replay.Replayer.apply

    def apply(self: Any, position: Any, record: Any) -> None:
        if record.kind == LEDGER:
            ledger_id, _, fenced = decode_ledger(record.payload)
            if fenced and self._table.find_blocking(ledger_id) is None:
                return
        original(self, position, record)

    return replaced((replay.Replayer, "apply", apply))


def _fence_not_awaited() -> AbstractContextManager[None]:
    """A fencing read is answered before the fence is durable."""
    original = Journal.barrier

    async def barrier(self: Any) -> None:
        self._loop.create_task(original(self))

    async def fence(self: Any, ledger_id: int, master_key: bytes) -> Any:
        # With the ledger loaded the fence waits for nothing else, so that the journal is replaced
        # for this turn alone: for longer, what others replace meanwhile would undo each other.
        async with self._table.loaded((ledger_id,)):
            with replaced((Journal, "barrier", barrier)):
                return await fence_and_wait(self, ledger_id, master_key)

    fence_and_wait = Fences.fence
    return replaced((Fences, "fence", fence))


def _roll_without_sync() -> AbstractContextManager[None]:
    """A batch that spans two files is acknowledged after the sync of the second one."""
    original = Journal._write

    def write(self: Any, requests: list[Any]) -> Any:
        size = commit_bytes(
            sum(len(request.payloads) for request in requests),
            sum(request.byte_count for request in requests),
        )
        if len(requests) > 1 and self._offset + size > self._config.file_bytes:
            config = self._config
            self._config = replace(config, sync=False)
            original(self, requests[:1])
            self._config = config
            requests = requests[1:]
        return original(self, requests)

    return replaced((Journal, "_write", write))


def _no_sync() -> AbstractContextManager[None]:
    original = Journal.__init__

    def init(self: Any, index: int, directory: Any, disk: Any, config: Any, *rest: Any) -> None:
        original(self, index, directory, disk, replace(config, sync=False), *rest)

    return replaced((Journal, "__init__", init))


def _no_limbo() -> AbstractContextManager[None]:
    """A bookie with a damaged journal says "no such entry" all the same."""
    return replaced(
        (HeldLedger, "certain", property(lambda self: True)),
        (LedgerStorage, "enter_limbo", lambda self: None),
    )


def _all_tails_are_torn() -> AbstractContextManager[None]:
    """What is unreadable in a journal's last commit counts as never finished."""
    return replaced((journal_scan, "written_blocks", lambda *_: 0))


def _adds_after_the_fence() -> AbstractContextManager[None]:
    original = Admission.check_add

    def check(self: Any, ledger_id: int, ledger: Any, master_key: bytes, flags: int) -> None:
        if ledger is not None and ledger.fenced and not ledger.deleted:
            flags |= 1
        original(self, ledger_id, ledger, master_key, flags)

    return replaced((Admission, "check_add", check))


BOOKIES = (
    Mutant("a wiped bookie answers", 2, "#2612, #4812", _starts_on_any_disk, SEEDS_MAX),
    Mutant(
        "the mark passes a fence that was not flushed", 2, "#4843", _mark_passes_fences, SEEDS_MAX
    ),
    Mutant("one mark for several journals", 2, "#4844", _marks_of_one_journal, SEEDS_MAX),
    Mutant(
        "a fence is journaled without the master key", 2, "reference", _fence_without_key, SEEDS_MAX
    ),
    Mutant(
        "a fencing read answers before the fence is durable",
        2,
        "reference",
        _fence_not_awaited,
        SEEDS_MAX,
    ),
    Mutant(
        "a roll acknowledges before the first file's sync",
        2,
        "reference",
        _roll_without_sync,
        SEEDS_MAX,
    ),
    Mutant("adds are acknowledged before the sync", 2, "", _no_sync, SEEDS_MAX),
    Mutant("a damaged journal, and no limbo", 2, "rule 13", _no_limbo, 500),
    Mutant("damage taken for a torn tail", 2, "seed 10447", _all_tails_are_torn, 500),
    Mutant("a fenced ledger takes adds", 2, "", _adds_after_the_fence, SEEDS_MAX),
)
