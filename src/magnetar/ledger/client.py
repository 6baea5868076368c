"""The ledger client: create, open, delete ledgers. The way into this room.

    client = LedgerClient(manager, pool, config)
    writer = await client.create()
    writer.append([b"one", b"two"], done)      # done(error, ledger_id, first_entry_id, count)
    await writer.close()
    reader = await client.open(writer.ledger_id)
    entries = await reader.read(0, max_entries=100, max_bytes=1 << 20)

Rules: a ledger has one writer, the one that created it. ``open`` takes a ledger away from its
writer: it is fenced, recovered and closed first. ``open_no_recovery`` only looks.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Callable, Mapping
from weakref import WeakValueDictionary

import structlog

from magnetar.config import LedgerConfig
from magnetar.env.metadata import MetadataStore
from magnetar.ledger.bookies import AddFlag, BookiePool, ReadFlag, ReadOnlyReason
from magnetar.ledger.catalog.ledger_list import LedgerList
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.catalog.stored_ledger import StoredLedger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.given_up import given_up_of
from magnetar.ledger.mending.mending import Mender
from magnetar.ledger.placing.placement import RandomSource, check_space, choose_ensemble
from magnetar.ledger.placing.topology import Topology
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.recovering.last_confirmed import read_last_confirmed
from magnetar.ledger.recovering.recovery import recover_ledger
from magnetar.ledger.replies import listing
from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    LedgerClosedError,
    LedgerError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, Quorums

log = structlog.get_logger(__name__)

UNNUMBERED = LedgerId(-1)
"""The id of a ledger that has none yet."""


class CatalogClient:
    """Ledgers of one cluster.

    ``catalog`` holds their metadata, ``pool`` reaches the bookies; both belong to the caller, who
    closes them. ``clock`` gives seconds since the epoch (for the ledgers' creation time),
    ``random`` chooses bookies, by what ``topology`` knows of them. Use on one event loop only.
    """

    def __init__(
        self,
        catalog: LedgerCatalog,
        pool: BookiePool,
        config: LedgerConfig,
        clock: Callable[[], float] = time.time,
        random: RandomSource | None = None,
        topology: Topology | None = None,
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._config = config
        self._clock = clock
        self._random: RandomSource = random or random_module.Random()
        self._writers: WeakValueDictionary[LedgerId, LedgerWriter] = WeakValueDictionary()
        asking = pool.let_ask(self._lac_of)
        self._context = LedgerContext.of(catalog, pool, config, self._random, topology, asking)

    async def close(self) -> None:
        """End what the client does on its own (``mending``). Writers are their owners' to close;
        those that are not are given up, as by ``LedgerWriter.abandon``. Idempotent."""
        for writer in [*self._writers.values()]:
            if not writer.metadata.closed:
                await writer.abandon()
        await self._context.close()

    @property
    def mender(self) -> Mender:
        """Gives bookies what they missed; tells whether they are missing any."""
        return self._context.mender

    async def create(
        self,
        custom: Mapping[str, bytes] | None = None,
        *,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        deferred_sync_unsafe: bool = False,
        quorums: Quorums | None = None,
    ) -> LedgerWriter:
        """A new ledger, open for appending, with the configured quorums or with ``quorums``.

        ``custom`` is kept with its metadata, for people and tools. ``deferred_sync_unsafe``:
        bookies answer before entries are durable, and only ``LedgerWriter.force`` confirms them;
        a power cut loses the rest, and no bookie can be replaced. Raises
        ``NotEnoughBookiesError`` (naming the bookies and why not), ``MetadataError``.
        """
        stored = await self._create(custom, digest_type, password, quorums)
        flags = AddFlag.DEFERRED_SYNC if deferred_sync_unsafe else AddFlag.NONE
        return self._writer(stored, flags)

    async def create_for_another(
        self, custom: Mapping[str, bytes], *, quorums: Quorums | None = None
    ) -> LedgerId:
        """A new ledger that another process is to write (``writer_of``); as ``create``."""
        stored = await self._create(custom, DigestType.CRC32C, b"", quorums)
        return stored.metadata.ledger_id

    async def writer_of(self, ledger_id: int) -> LedgerWriter:
        """Write the ledger that somebody has made for this process alone, from its first entry on.
        Raises ``NoSuchLedgerError``, ``LedgerClosedError``, ``MetadataError``."""
        _check_id(ledger_id)
        metadata, version = await self._catalog.read(ledger_id)
        if metadata.closed:
            raise LedgerClosedError(f"ledger {ledger_id} is closed; it cannot be written")
        return self._writer(StoredLedger(self._catalog, metadata, version), AddFlag.NONE)

    async def _create(
        self,
        custom: Mapping[str, bytes] | None,
        digest_type: DigestType,
        password: bytes,
        quorums: Quorums | None,
    ) -> StoredLedger:
        quorums = quorums or self._quorums
        bookies = await self._choose_ensemble(quorums)
        metadata, version = await self._catalog.create_new(
            LedgerMetadata(
                ledger_id=UNNUMBERED,
                ensemble_size=quorums.ensemble_size,
                write_quorum=quorums.write_quorum,
                ack_quorum=quorums.ack_quorum,
                digest_type=digest_type,
                password=password,
                fragments=(Fragment(0, bookies),),
                ctime_ms=int(self._clock() * 1000),
                custom=tuple(sorted((custom or {}).items())),
            )
        )
        return StoredLedger(self._catalog, metadata, version)

    def _writer(self, stored: StoredLedger, flags: AddFlag) -> LedgerWriter:
        writer = LedgerWriter(stored, self._context, flags=flags)
        self._writers[stored.metadata.ledger_id] = writer
        return writer

    def _lac_of(self, ledger_id: int) -> tuple[int, bytes] | None:
        """``bookies.LacSource``"""
        writer = self._writers.get(LedgerId(ledger_id))
        return None if writer is None else writer.lac_asked_for()

    async def _choose_ensemble(self, quorums: Quorums) -> tuple[BookieId, ...]:
        """Bookies that did not fail lately; without enough of them also those whose failure is
        longest ago, as few as are needed."""
        available = await self._pool.available()
        placement = await self._context.topology.placement(available)
        size, quorum = quorums.ensemble_size, quorums.write_quorum
        failed = self._context.quarantine.reasons(asyncio.get_running_loop().time())
        avoided = {bookie: failed[bookie] for bookie in failed if bookie in available}
        while avoided:
            try:
                return choose_ensemble(available, size, avoided, self._random, placement, quorum)
            except NotEnoughBookiesError:
                del avoided[next(iter(avoided))]
        refused = await self._context.topology.refusals() if len(available) < size else {}
        check_space(available, size, _full(refused))
        words = {bookie: f"read-only: {told.reason}" for bookie, told in refused.items()}
        return choose_ensemble(available, size, words, self._random, placement, quorum)

    async def check_space(
        self, quorums: Quorums | None = None, ledger_id: int | None = None
    ) -> None:
        """Would the next entry be refused for want of space? As far as bookies say in their
        registrations: nobody is asked. ``ledger_id``: of a ledger that this client writes; None:
        it would need a new one, with ``quorums`` or the configured ones. Raises ``NoSpaceError``,
        ``MetadataError``."""
        quorums = quorums or self._quorums
        available = await self._pool.available()
        writer = None if ledger_id is None else self._writers.get(LedgerId(ledger_id))
        if writer is not None:
            ensemble = writer.metadata.fragments[-1].bookies
            if sum(bookie in available for bookie in ensemble) >= quorums.ack_quorum:
                return  # it goes on without the others
        if len(available) < quorums.ensemble_size:
            refused = await self._context.topology.refusals()
            check_space(available, quorums.ensemble_size, _full(refused))

    @property
    def _quorums(self) -> Quorums:
        config = self._config
        return Quorums(config.ensemble_size, config.write_quorum, config.ack_quorum)

    async def open(self, ledger_id: int) -> LedgerReader:
        """A reader of the whole ledger. If it is not closed, its writer is fenced off and the
        ledger recovered and closed first, keeping every acknowledged entry.

        Raises ``NoSuchLedgerError``, ``LedgerRecoveryError`` (too few bookies answer; try again
        when they do), ``MetadataError``.
        """
        _check_id(ledger_id)
        metadata = await recover_ledger(self._context, ledger_id)
        given_up = given_up_of(metadata)
        if given_up is not None:
            log.warning(
                "entries of this ledger were given up at an operator's word",
                ledger=ledger_id,
                given_up=given_up.text,
                why=given_up.why,
            )
        context = self._context
        end = metadata.last_entry_id
        return LedgerReader(metadata, end, self._pool, self._config, context.policy)

    async def delete(self, ledger_id: int, *, missing_ok: bool = False) -> None:
        """Forget the ledger; bookies drop its entries when they collect garbage. Until then
        readers that are open go on; afterwards they, and a writer, are told that it is gone.

        Raises ``NoSuchLedgerError`` (not with ``missing_ok``: a repeated delete is then fine),
        ``MetadataError``.
        """
        try:
            _check_id(ledger_id)
            await self._catalog.delete(ledger_id)
        except NoSuchLedgerError:
            if not missing_ok:
                raise

    async def given_up(self, ledger_id: int) -> bool:
        """Whether an operator has closed it without entries that nobody can read. Raises
        ``NoSuchLedgerError``, ``MetadataError``."""
        return given_up_of(await self.read_metadata(ledger_id)) is not None

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the store says of the ledger. Raises ``NoSuchLedgerError``."""
        _check_id(ledger_id)
        metadata, _ = await self._catalog.read(ledger_id)
        return metadata


class LedgerClient(CatalogClient):
    """Ledgers of one cluster, by its metadata store: they can be followed, and listed."""

    def __init__(
        self,
        manager: LedgerManager,
        pool: BookiePool,
        config: LedgerConfig,
        clock: Callable[[], float] = time.time,
        random: RandomSource | None = None,
        topology: Topology | None = None,
    ) -> None:
        super().__init__(manager, pool, config, clock, random, topology)
        self._manager = manager

    async def open_no_recovery(self, ledger_id: int, *, urgent: bool = False) -> TailingReader:
        """A reader of what is confirmed now that can follow what comes, leaving the writer alone.
        The end it sees trails the writer's by the entries not yet followed by another, until
        the writer has been idle for ``explicit_lac_interval_ms``. ``urgent``: as ``LedgerReader``.

        Raises ``NoSuchLedgerError``, ``LedgerError`` (too few bookies answer), ``MetadataError``.
        """
        metadata = await self.read_metadata(ledger_id)
        if metadata.closed:
            return self._tail(metadata, metadata.last_entry_id, urgent)
        timeout_s = self._config.read_timeout_ms / 1000
        told = await read_last_confirmed(metadata, self._pool, timeout_s, ReadFlag.NONE)
        if not told.covered:
            raise LedgerError(
                f"ledger {ledger_id}: too few of its bookies tell how far it is confirmed "
                f"({listing(told.refusals)}); bring them back and try again"
            )
        return self._tail(metadata, told.start_after, urgent)

    def _tail(
        self, metadata: LedgerMetadata, last_add_confirmed: int, urgent: bool
    ) -> TailingReader:
        context, manager = self._context, self._manager
        return TailingReader(metadata, last_add_confirmed, context, manager, urgent=urgent)

    @property
    def metadata(self) -> MetadataStore:
        """The store that ledgers' metadata are in; not this client's to close."""
        return self._manager.store

    def ledger_list(self, name: str) -> LedgerList:
        """The named list of ledgers, by which a program finds its own."""
        return LedgerList(self._manager.store, name)


def _full(refused: Mapping[BookieId, ReadOnlyReason]) -> dict[BookieId, str]:
    """Why those lack space that do."""
    return {bookie: told.reason for bookie, told in refused.items() if told.lacks_space}


def _check_id(ledger_id: int) -> None:
    if ledger_id < 0:
        raise NoSuchLedgerError(f"there is no ledger {ledger_id}: ids begin at 0")
