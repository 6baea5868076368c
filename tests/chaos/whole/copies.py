"""Judges what bookies hold when everything is mended: every copy of every final entry, read from
the bookie that the metadata names for it, with its digest.

Writers that died left entries with too few copies, wiped bookies took theirs with them: repair has
to find and mend all of that by itself, within ``WHOLE_S``. It is only told to look now, as an
operator can (``magnetar recovery check``), rather than at its next time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from magnetar.config import LedgerConfig
from magnetar.env.metadata import MetadataStore
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connecting import connection_options, open_access
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import MetadataError, NoSuchLedgerError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.copies import own_runs, parts_of
from magnetar.repair.marks import ShortageMarks
from magnetar.repair.switches import Switches
from magnetar.wire.bookie.digest import EntryDigest

WHOLE_S: Final = 300.0
LOOK_S: Final = 3.0
CHECK_EVERY_S: Final = 60.0
READ_BYTES: Final = 1 << 20
READ_S: Final = 20.0
EXAMPLES_MAX: Final = 5


class Copies(NamedTuple):
    """``copies``: entries that were read, each from one bookie. ``lacking``: those that were not,
    in words; ``marked``: ledgers that are marked still."""

    ledgers: int = 0
    copies: int = 0
    lacking: tuple[str, ...] = ()
    marked: int = 0

    @property
    def whole(self) -> bool:
        return not self.lacking and not self.marked


class Whole(NamedTuple):
    """``took_s``: until ``copies`` were whole, or until nobody waited any more."""

    took_s: float
    copies: Copies

    @property
    def trouble(self) -> str:
        """What is not whole, in words; empty if all is."""
        found = self.copies
        if found.whole:
            return ""
        some = "; ".join(found.lacking[:EXAMPLES_MAX])
        return (
            f"not whole {self.took_s:.0f} s after all was mended: {found.marked} ledgers marked, "
            f"{len(found.lacking)} runs of copies missing: {some}"
        )


def wait_whole(metadata_url: str) -> Whole:
    """Look at all copies until none is missing, for a while."""
    return asyncio.run(_wait_whole(metadata_url))


async def _wait_whole(metadata_url: str) -> Whole:
    begun_s, checked_s, found = time.monotonic(), -CHECK_EVERY_S, Copies(lacking=("not looked at",))
    while not found.whole and time.monotonic() - begun_s < WHOLE_S:
        try:
            async with AsyncExitStack() as stack:
                store = await ZooKeeperMetadataStore.open(metadata_url)
                stack.push_async_callback(store.close)
                if time.monotonic() - checked_s > CHECK_EVERY_S:
                    checked_s = time.monotonic()
                    await Switches(store).set_checked(0)
                found = await _look(stack, store)
        except MetadataError as error:
            found = Copies(lacking=(str(error),))
        if not found.whole:
            await asyncio.sleep(LOOK_S)
    return Whole(time.monotonic() - begun_s, found)


async def _look(stack: AsyncExitStack, store: MetadataStore) -> Copies:
    manager, config = LedgerManager(store), LedgerConfig()
    await manager.initialize(create=False)
    pool = open_access(stack, store, manager, config, connection_options(config)).pool
    marked = len([each async for each in ShortageMarks(store).ledgers()])
    ledgers, copies, lacking = 0, 0, []
    async for metadata in _all(manager):
        ledgers += 1
        for read, problem in await asyncio.gather(*_reads(pool, metadata)):
            copies += read
            lacking += [problem] if problem else []
    return Copies(ledgers, copies, tuple(lacking), marked)


async def _all(manager: LedgerManager) -> AsyncIterator[LedgerMetadata]:
    async for ledger_id in manager.iterate():
        try:
            metadata, _ = await manager.read(ledger_id)
        except NoSuchLedgerError:
            continue
        yield metadata


def _reads(
    pool: BookiePool, metadata: LedgerMetadata
) -> Iterator[Coroutine[None, None, tuple[int, str]]]:
    """Of each bookie of each final part."""
    for part in parts_of(metadata):
        for slot, bookie in enumerate(part.fragment.bookies):
            runs = own_runs(part, slot, metadata.write_quorum, part.entry_ids)
            yield _read(pool, metadata, bookie, runs)


async def _read(
    pool: BookiePool, metadata: LedgerMetadata, bookie: BookieId, runs: Iterator[range]
) -> tuple[int, str]:
    """How many entries the bookie gave, and what was wrong with the next."""
    digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
    client, count = pool.client(bookie), 0
    for run in runs:
        at = run.start
        while at < run.stop:
            reading = client.read_batch(metadata.ledger_id, at, run.stop - at, READ_BYTES)
            found = await reply(bookie, reading, READ_S)
            where = f"{metadata.ledger_id}:{at} at {bookie}"
            if isinstance(found, Refusal):
                return count, f"{where}: {type(found.error).__name__}"
            sound = digest.sound_count(found[: run.stop - at], at)
            if not sound:
                return count, f"{where} is damaged"
            at, count = at + sound, count + sound
    return count, ""
