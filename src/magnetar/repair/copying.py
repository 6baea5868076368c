"""Copies entries of a part to bookies that lack them.

* Entries are read from any bookie that the metadata names (``LedgerReader``: digests verified, the
  next replica when one fails) and added as they are, marked as recovery: a fenced ledger and a
  bookie that takes no new entries take them all the same. Who shares what is read gets it from one
  read.
* Memory is bounded: a piece of ``PIECE_BYTES`` is added while the next one is read, and no more is
  under way. ``Throttle`` bounds the pace.
* An answer counts when the entries are durable at the bookie, and all of them must be there before
  anything is said of them in the metadata.
"""

from __future__ import annotations

import asyncio
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
from magnetar.repair.copies import Part, is_own, without
from magnetar.repair.throttle import Throttle
from magnetar.wire.bookie.digest import EntryDigest

PIECE_BYTES = 1 << 20
PIECE_ENTRIES = 2000


class CopyTarget(NamedTuple):
    """``bookie_id`` is to get what of ``missing`` (ascending) belongs to ``slot``."""

    bookie_id: BookieId
    slot: int
    missing: Sequence[range]


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
        wait_s = self._throttle.take(byte_count, asyncio.get_running_loop().time())
        if wait_s:
            await asyncio.sleep(wait_s)
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

    async def run(self) -> Refusal | None:
        left = _union(target.missing for target in self._targets)
        coming = self._read_ahead(left)
        while coming is not None:
            found = await coming
            if isinstance(found, MagnetarError):
                raise found
            left = without(left, [range(left[0].start, found[-1].entry_id + 1)])
            coming = self._read_ahead(left)
            refusal = await self._give(found)
            if refusal is not None:
                return refusal
        return None

    def _read_ahead(
        self, left: Sequence[range]
    ) -> asyncio.Task[list[Entry] | MagnetarError] | None:
        if not left:
            return None
        first, count = left[0].start, min(len(left[0]), PIECE_ENTRIES)

        async def read() -> list[Entry] | MagnetarError:
            try:
                return await self._reader.read(first, count, PIECE_BYTES)
            except MagnetarError as error:
                return error

        return self._scope.spawn(read(), f"from {first}")

    async def _give(self, found: Sequence[Entry]) -> Refusal | None:
        """To all targets at the same time."""
        adding = []
        for target in self._targets:
            own = self._own(target, found)
            if own:
                add = self._copier.add(self._metadata, self._digest, target, own)
                adding.append(self._scope.spawn(add, target.bookie_id))
        answers = [await each for each in adding]
        return next((answer for answer in answers if answer is not None), None)

    def _own(self, target: CopyTarget, found: Sequence[Entry]) -> list[Entry]:
        part, quorum, first = self._part, self._metadata.write_quorum, found[0].entry_id
        read = range(first, found[-1].entry_id + 1)
        present = without([read], target.missing)
        lacking = (entry_id for run in without([read], present) for entry_id in run)
        return [found[e - first] for e in lacking if is_own(part, target.slot, quorum, e)]


def _union(missing: Iterable[Sequence[range]]) -> list[range]:
    """All of them, ascending, each id once."""
    found: list[range] = []
    for run in sorted((run for runs in missing for run in runs), key=lambda each: each.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return found
