"""Copies entries of a part to bookies that lack them.

* Entries are read from any bookie that the metadata names (``LedgerReader``: digests verified, the
  next replica when one fails) and added as they are, marked as recovery: a fenced ledger and a
  bookie that takes no new entries take them all the same. Who shares what is read gets it from one
  read.
* Of a fragment with more bookies than copies only what somebody lacks is read: a bookie of five
  with two copies each held two entries of five. What lies between is not asked for; such runs are
  short, and ``RUNS_AT_ONCE`` are read at once.
* Memory is bounded: a piece of about ``PIECE_BYTES`` is added while the next one is read, and no
  more is under way. ``Throttle`` bounds the pace.
* An answer counts when the entries are durable at the bookie, and all of them must be there before
  anything is said of them in the metadata.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import AddFlag, BookiePool
from magnetar.ledger.mending.adding import add_copies
from magnetar.ledger.reading.read_order import ReadPolicy
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.replies import Refusal
from magnetar.model.entry import Entry
from magnetar.model.errors import BookieError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.copies import Part, is_own, own_runs, without
from magnetar.repair.throttle import Throttle
from magnetar.wire.bookie.digest import EntryDigest

PIECE_BYTES = 1 << 20
PIECE_ENTRIES = 2000
RUNS_AT_ONCE = 16
"""Where a bookie holds runs of Qw entries: each is a request or a few."""


class CopyTarget(NamedTuple):
    """``bookie_id`` is to get what of ``missing`` (ascending) belongs to ``slot``."""

    bookie_id: BookieId
    slot: int
    missing: Sequence[range]


class _Coming(NamedTuple):
    """A piece that is being read: its runs, and what comes of each."""

    runs: Sequence[range]
    reading: asyncio.Task[list[list[Entry]] | MagnetarError]


async def pace(throttle: Throttle, byte_count: int) -> None:
    """So many bytes were moved: wait until the next may be."""
    wait_s = throttle.take(byte_count, asyncio.get_running_loop().time())
    if wait_s:
        await asyncio.sleep(wait_s)


class Copier:
    """``copied`` is told of each piece that bookies have: entries, bytes."""

    def __init__(
        self,
        pool: BookiePool,
        config: LedgerConfig,
        policy: ReadPolicy,
        throttle: Throttle,
        copied: Callable[[int, int], None],
    ) -> None:
        self._pool = pool
        self._config = config
        self._policy = policy
        self._throttle = throttle
        self._copied = copied

    async def copy(
        self, metadata: LedgerMetadata, part: Part, targets: Sequence[CopyTarget]
    ) -> Refusal | None:
        """Returns when all targets have what they were to get, durably, or the first that refused.
        Raises ``LedgerError``, ``NoEntryError``: an entry cannot be read from any bookie."""
        scope = TaskScope(f"copies of {metadata.ledger_id}", awaited(by="Copier.copy"))
        try:
            return await _Copying(self, metadata, part, targets, scope).run()
        finally:
            await scope.close()

    async def add(
        self,
        metadata: LedgerMetadata,
        digest: EntryDigest,
        target: CopyTarget,
        own: Sequence[Entry],
    ) -> Refusal | None:
        client, timeout_s = self._pool.client(target.bookie_id), self._config.add_timeout_ms / 1000
        try:
            await add_copies(
                client, metadata.ledger_id, digest.master_key, own, AddFlag.RECOVERY, timeout_s
            )
        except BookieError as error:
            return Refusal(target.bookie_id, error)
        byte_count = sum(len(entry.data) for entry in own)
        self._copied(len(own), byte_count)
        await pace(self._throttle, byte_count)
        return None

    def reader(self, metadata: LedgerMetadata, part: Part) -> LedgerReader:
        last = part.entry_ids.stop - 1
        return LedgerReader(metadata, last, self._pool, self._config, self._policy)


class _Copying:
    def __init__(
        self,
        copier: Copier,
        metadata: LedgerMetadata,
        part: Part,
        targets: Sequence[CopyTarget],
        scope: TaskScope,
    ) -> None:
        self._copier = copier
        self._metadata = metadata
        self._part = part
        self._targets = targets
        self._scope = scope
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._reader = copier.reader(metadata, part)
        self._run_bytes = 0  # of the largest run of the piece read last

    async def run(self) -> Refusal | None:
        left = deque(_union(target.missing for target in self._targets))
        coming = self._read_ahead(left)
        while coming is not None:
            found = await coming.reading
            if isinstance(found, MagnetarError):
                raise found
            _put_back(left, coming.runs, found)
            coming = self._read_ahead(left)
            refusal = await self._give(found)
            if refusal is not None:
                return refusal
        return None

    def _read_ahead(self, left: deque[range]) -> _Coming | None:
        """The next piece, taken off ``left``; None: there is none left."""
        wanted = self._next_piece(left)
        if not wanted:
            return None

        return _Coming(wanted, self._scope.spawn(self._read(wanted), f"from {wanted[0].start}"))

    async def _read(self, wanted: Sequence[range]) -> list[list[Entry]] | MagnetarError:
        """The first entries of each run, at least one."""
        found: dict[int, list[Entry]] = {}
        left = iter(wanted)

        async def take() -> MagnetarError | None:
            for run in left:
                try:
                    found[run.start] = await self._reader.read(run.start, len(run), PIECE_BYTES)
                except MagnetarError as error:
                    return error
            return None

        told = await asyncio.gather(*(take() for _ in wanted[:RUNS_AT_ONCE]))
        failed = next((error for error in told if error is not None), None)
        return failed or [found[run.start] for run in wanted]

    def _next_piece(self, left: deque[range]) -> list[range]:
        """Runs of entries that somebody lacks, and together about as much as a piece is."""
        while left:
            first = left.popleft()
            window, rest = _split(first, PIECE_ENTRIES)
            runs = self._lacked(window)
            count = self._runs_of_a_piece()
            if len(runs) > count:
                window, rest = _split(first, runs[count].start - first.start)
                runs = runs[:count]
            if rest:
                left.appendleft(rest)
            if runs:
                return runs
        return []

    def _lacked(self, window: range) -> list[range]:
        """What of ``window`` some target lacks."""
        part, quorum = self._part, self._metadata.write_quorum
        if len(part.fragment.bookies) == quorum:
            return [window]  # which are missing ranges of targets already
        return _union(
            _common(own_runs(part, target.slot, quorum, window), target.missing)
            for target in self._targets
        )

    def _runs_of_a_piece(self) -> int:
        """So many that they are about a piece; one while it is not known what they are."""
        return max(1, PIECE_BYTES // self._run_bytes) if self._run_bytes else 1

    async def _give(self, found: Sequence[Sequence[Entry]]) -> Refusal | None:
        """To all targets at the same time."""
        self._run_bytes = max(sum(len(entry.data) for entry in run) for run in found)
        adding = []
        for target in self._targets:
            own = [entry for run in found for entry in self._own(target, run)]
            if own:
                add = self._copier.add(self._metadata, self._digest, target, own)
                adding.append(self._scope.spawn(add, target.bookie_id))
        answers = [await each for each in adding]
        return next((answer for answer in answers if answer is not None), None)

    def _own(self, target: CopyTarget, found: Sequence[Entry]) -> list[Entry]:
        part, quorum, first = self._part, self._metadata.write_quorum, found[0].entry_id
        read = range(first, found[-1].entry_id + 1)
        lacking = (entry_id for run in _common([read], target.missing) for entry_id in run)
        return [found[e - first] for e in lacking if is_own(part, target.slot, quorum, e)]


def _put_back(
    left: deque[range], wanted: Sequence[range], found: Sequence[Sequence[Entry]]
) -> None:
    """What was asked for and did not come: a reader gives the first part of a run at least."""
    rests = [
        range(run.start + len(read), run.stop) for run, read in zip(wanted, found, strict=True)
    ]
    left.extendleft(reversed([rest for rest in rests if rest]))


def _split(run: range, count: int) -> tuple[range, range]:
    return run[:count], run[count:]


def _common(runs: Iterable[range], others: Sequence[range]) -> list[range]:
    """What is in both; both ascend."""
    kept = list(runs)
    return without(kept, without(kept, others))


def _union(missing: Iterable[Sequence[range]]) -> list[range]:
    """All of them, ascending, each id once."""
    found: list[range] = []
    for run in sorted((run for runs in missing for run in runs), key=lambda each: each.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return found
