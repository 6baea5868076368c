"""Reads for a recovery: asks bookies for windows of entries until the fate of each is decided.

Rules (what answers mean is decided in ``recovery_plan``):

* Every bookie of an entry's write set is asked, all at once; what decides ends the wait. A bookie
  that hangs delays nothing as long as the others suffice.
* Batch reads, which fence: a bookie gives a run of entries with one answer. It says "no" only of
  the first entry that it was asked for, so it is asked again from behind each such answer on, as
  long as anything there is undecided.
* A copy counts when its digest is right; a corrupt one is "unknown", and so is every entry of the
  run when the bookie does not answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import BookiePool, ReadFlag
from magnetar.ledger.recovering.recovery_plan import Decision, EntryVote, VotingWindow, runs_of
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import (
    BookieUnavailableError,
    DigestError,
    NoEntryError,
    NoLedgerError,
    ProtocolError,
)
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest

ANSWER_BYTES = 1 << 20
RUNS_AT_ONCE = 16
"""Of one bookie: with striping (E > Qw) it holds many short runs of a window."""


class Copy(NamedTuple):
    """A sound copy of an entry: its payload, and the ledger's length up to and with it."""

    payload: memoryview
    length: int


class RecoveryReads:
    """Of one recovery. ``metadata`` says which bookies to ask; ``flags`` go with every read."""

    def __init__(
        self, metadata: LedgerMetadata, pool: BookiePool, timeout_s: float, flags: ReadFlag
    ) -> None:
        self.metadata = metadata
        self.pool = pool
        self.timeout_s = timeout_s
        self.flags = flags
        self.digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._refusals: dict[EntryId, list[Refusal]] = {}

    async def read(self, window: VotingWindow[Copy]) -> list[Copy]:
        """Ask until the window is finished; returns the copies that are to be written again."""
        reading = _WindowReading(self, window)
        self._refusals = reading.refusals
        return await reading.run()

    def refusals(self, entry_id: EntryId) -> Sequence[Refusal]:
        """Who had no copy of an entry of the last window, and what each said."""
        return self._refusals.get(entry_id, ())


class _WindowReading:
    def __init__(self, reads: RecoveryReads, window: VotingWindow[Copy]) -> None:
        self.refusals: dict[EntryId, list[Refusal]] = {}
        self._reads = reads
        self._window = window
        self._copies: list[Copy] = []
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scope = TaskScope(
            f"recovery-of-{reads.metadata.ledger_id}", awaited(by="_WindowReading.run")
        )

    async def run(self) -> list[Copy]:
        waiting: set[asyncio.Future[None]] = {self._finished, *self._readers()}
        try:
            while not self._finished.done():
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()
        finally:
            await self._scope.close()
        return self._copies

    def _readers(self) -> Iterable[asyncio.Task[None]]:
        for bookie_id, runs in runs_of(self._reads.metadata, self._window.entry_ids).items():
            left = deque(runs)
            for _ in range(min(len(runs), RUNS_AT_ONCE)):
                yield self._scope.spawn(self._read_runs(bookie_id, left), bookie_id)

    async def _read_runs(self, bookie_id: BookieId, runs: deque[range]) -> None:
        while runs:
            run = runs.popleft()
            first = self._window.first_pending(run)
            while first < run.stop:
                told = await self._ask(bookie_id, range(first, run.stop))
                first += self._count_all(bookie_id, range(first, run.stop), told)
                first = self._window.first_pending(range(first, run.stop))

    async def _ask(self, bookie_id: BookieId, run: range) -> Sequence[bytes] | Refusal:
        reads = self._reads
        ledger_id, key = reads.metadata.ledger_id, reads.digest.master_key
        answer = reads.pool.client(bookie_id).read_batch(
            ledger_id, run.start, len(run), ANSWER_BYTES, reads.flags, key
        )
        told = await reply(bookie_id, answer, reads.timeout_s)
        if isinstance(told, Refusal):
            return told
        if told:
            return list(map(bytes, told))
        return Refusal(bookie_id, ProtocolError("an answer without entries"))

    def _count_all(self, bookie_id: BookieId, run: range, told: Sequence[bytes] | Refusal) -> int:
        """Count an answer; returns how many entries of the run it was about."""
        if not isinstance(told, Refusal):
            entries = told[: len(run)]
            for entry_id, data in zip(run, entries, strict=False):
                if self._window.vote(entry_id).decision is Decision.PENDING:
                    self._count(entry_id, self._copy(bookie_id, entry_id, data))
            about = len(entries)
        else:
            about = len(run) if isinstance(told.error, BookieUnavailableError) else 1
            for entry_id in run[:about]:
                self._count(entry_id, told)
        self._copies += self._window.take_turns()
        if self._window.finished and not self._finished.done():
            self._finished.set_result(None)
        return about

    def _count(self, entry_id: EntryId, told: Copy | Refusal) -> None:
        if isinstance(told, Refusal):
            self.refusals.setdefault(entry_id, []).append(told)
        _count(self._window.vote(entry_id), told)

    def _copy(self, bookie_id: BookieId, entry_id: EntryId, data: bytes) -> Copy | Refusal:
        digest = self._reads.digest
        try:
            _, length = digest.verify(data, entry_id)
        except DigestError as error:
            return Refusal(bookie_id, error)
        return Copy(memoryview(data)[digest.payload_offset :], length)


def _count(vote: EntryVote[Copy], told: Copy | Refusal) -> None:
    """What an answer means."""
    if isinstance(told, Copy):
        vote.found(told)
    elif isinstance(told.error, NoEntryError | NoLedgerError):
        vote.negative()
    else:
        vote.unknown()
