"""Counts the copies of a ledger: every bookie that the metadata names is asked itself.

Windows of ``WINDOW`` entries are read from all bookies of an ensemble at once, two windows at a
time, so memory is bounded whatever the ledger's size. Of each entry one copy is verified (digest,
ledger, id, payload); another counts if it is the same to the byte, or is verified too: a recovery
writes an entry again with another header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from magnetar.ledger.bookies import BookieClient, BookiePool
from magnetar.model.errors import BookieError, BookieUnavailableError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest
from tests.scenarios.ledgers import PAYLOAD_BYTES, payload

WINDOW = 1000
READ_BYTES = 1 << 20
WINDOWS_AT_ONCE = 2
ATTEMPTS = 4
REST_S = 0.5


async def copies(
    pool: BookiePool, metadata: LedgerMetadata, count: int, size: int = PAYLOAD_BYTES
) -> bytes:
    """For each of the first ``count`` entries, how many of the bookies that the metadata names for
    it give it. Raises ``DigestError`` or fails on the first copy that is not what was written."""
    counter = _Counter(pool, metadata, count, size)
    windows = _windows(metadata, count)
    async with asyncio.TaskGroup() as group:
        for _ in range(WINDOWS_AT_ONCE):
            group.create_task(counter.work(windows))
    return bytes(counter.counts)


def _windows(metadata: LedgerMetadata, count: int) -> Iterator[tuple[Sequence[BookieId], range]]:
    """(ensemble, entry ids), ascending; none crosses into another fragment."""
    ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    for fragment, end in zip(metadata.fragments, [*ends, count], strict=True):
        for first in range(fragment.first_entry_id, min(end, count), WINDOW):
            yield fragment.bookies, range(first, min(first + WINDOW, end, count))


class _Counter:
    """Takes windows until there are none left; see the module's text."""

    def __init__(self, pool: BookiePool, metadata: LedgerMetadata, count: int, size: int) -> None:
        self.counts = bytearray(count)
        self._pool = pool
        self._metadata = metadata
        self._size = size
        self._gone: dict[BookieId, BookieUnavailableError] = {}
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)

    async def work(self, windows: Iterator[tuple[Sequence[BookieId], range]]) -> None:
        for bookies, ids in windows:
            clients = [self._pool.client(bookie_id) for bookie_id in bookies]
            held = await asyncio.gather(
                *(self._held(client, slot, ids) for slot, client in enumerate(clients))
            )
            for entry_id in ids:
                self._count(entry_id, [each[entry_id] for each in held if entry_id in each])

    async def _held(self, bookie: BookieClient, slot: int, ids: range) -> dict[int, bytes]:
        """What the bookie in ``slot`` gives of those of ``ids`` that it is named for."""
        held: dict[int, bytes] = {}
        following = ids.start
        while following in ids:
            if not self._named(slot, following):
                following += 1
                continue
            try:
                batch = await self._read(bookie, range(following, ids.stop))
            except BookieUnavailableError:
                break
            except BookieError:
                batch = []
            held.update(zip(range(following, ids.stop), batch, strict=False))
            following += max(1, len(batch))
        return {entry_id: data for entry_id, data in held.items() if self._named(slot, entry_id)}

    async def _read(self, bookie: BookieClient, ids: range) -> list[bytes]:
        """As ``read_batch``; patient with a bookie that does not answer, once."""
        for attempt in range(1, ATTEMPTS + 1):
            if bookie.bookie_id in self._gone:
                break
            try:
                return await bookie.read_batch(
                    self._metadata.ledger_id, ids.start, len(ids), READ_BYTES
                )
            except BookieUnavailableError as error:
                if attempt == ATTEMPTS:
                    self._gone[bookie.bookie_id] = error
                await asyncio.sleep(REST_S)
        raise self._gone[bookie.bookie_id]

    def _named(self, slot: int, entry_id: int) -> bool:
        ledger = self._metadata
        return (slot - entry_id) % ledger.ensemble_size < ledger.write_quorum

    def _count(self, entry_id: int, found: Sequence[bytes]) -> None:
        sound = None
        for data in found:
            if data != sound:
                self._digest.verify(data, entry_id)
                assert data[self._digest.payload_offset :] == payload(entry_id, self._size)
                sound = data
        self.counts[entry_id] = len(found)
