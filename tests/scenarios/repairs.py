"""What scenarios of repair look at: the whole cluster's ledgers, bookie by bookie."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import NamedTuple

from magnetar.config import Config, LedgerConfig, MetadataConfig
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.ledger import sync
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connecting import connection_options, open_access
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import NoLedgerError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import Checker
from magnetar.repair.copies import Standing, parts_of
from magnetar.repair.marks import ShortageMarks
from magnetar.wire.bookie.availability import held_runs


class Survey(NamedTuple):
    """``lacking``: what each ledger lacks that lacks something, in words; ``naming``: how many name
    each bookie; ``marked``: ledgers that are marked; ``registered``: bookies."""

    ledgers: list[LedgerMetadata]
    lacking: dict[int, str]
    naming: dict[str, int]
    marked: list[int]
    registered: list[str]

    @property
    def whole(self) -> bool:
        return not self.lacking and not self.marked


def survey(metadata_url: str) -> Survey:
    """Ask every bookie what it holds of every ledger."""
    return asyncio.run(_survey(metadata_url))


async def _survey(metadata_url: str) -> Survey:
    config = Config(metadata=MetadataConfig(url=metadata_url), ledger=LedgerConfig())
    async with AsyncExitStack() as stack:
        store = await ZooKeeperMetadataStore.open(metadata_url)
        stack.push_async_callback(store.close)
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        options = connection_options(config.ledger)
        access = open_access(stack, store, manager, config.ledger, options)
        checker = Checker(access.pool, 5.0)
        registered = await access.registry.all()
        marked = [each async for each in ShortageMarks(store).ledgers()]
        found = Survey([], {}, {}, marked, list(registered))
        async for ledger_id in manager.iterate():
            metadata, _ = await manager.read(ledger_id)
            found.ledgers.append(metadata)
            named = dict.fromkeys(b for one in metadata.fragments for b in one.bookies)
            for bookie in named:
                found.naming[bookie] = found.naming.get(bookie, 0) + 1
            standings = {b: Standing.SERVING if b in registered else Standing.LOST for b in named}
            findings = await checker.look(metadata, standings, durably=True)
            if not findings.whole:
                found.lacking[ledger_id] = str(findings)
        return found


class Copies(NamedTuple):
    """``fewest``: of any final entry, at bookies that the metadata names for it; ``ledgers``: how
    many were looked at."""

    fewest: int
    ledgers: int


def copies_now(metadata_url: str) -> Copies:
    """Count the copies of every final entry at this moment. A ledger whose metadata changes while
    its bookies are asked is left to the next look."""
    return asyncio.run(_copies_now(metadata_url))


async def _copies_now(metadata_url: str) -> Copies:
    async with AsyncExitStack() as stack:
        store = await ZooKeeperMetadataStore.open(metadata_url)
        stack.push_async_callback(store.close)
        manager, config = LedgerManager(store), LedgerConfig()
        await manager.initialize(create=False)
        access = open_access(stack, store, manager, config, connection_options(config))
        fewest, ledgers = 1 << 30, 0
        async for ledger_id in manager.iterate():
            metadata, version = await manager.read(ledger_id)
            found = await _fewest(access.pool, metadata)
            if found is not None and (await manager.read(ledger_id))[1] == version:
                fewest, ledgers = min(fewest, found), ledgers + 1
        return Copies(fewest, ledgers)


async def _fewest(pool: ConnectionPool, metadata: LedgerMetadata) -> int | None:
    held: dict[BookieId, set[int]] = {}
    for bookie in dict.fromkeys(b for one in metadata.fragments for b in one.bookies):
        told = await reply(bookie, pool.lister(bookie).list_entries(metadata.ledger_id), 10.0)
        groups = () if isinstance(told, Refusal) else told
        runs = held_runs(groups, range(1 << 30))
        held[bookie] = {entry for run in runs for entry in run}
    counts = [
        sum(entry in held[bookie] for bookie in metadata.write_set(entry))
        for part in parts_of(metadata)
        for entry in part.entry_ids
    ]
    return min(counts, default=None)


def naming(metadata_url: str) -> dict[str, int]:
    """How many ledgers name each bookie, by the metadata alone."""

    async def ask() -> dict[str, int]:
        store = await ZooKeeperMetadataStore.open(metadata_url)
        try:
            manager = LedgerManager(store)
            await manager.initialize(create=False)
            found: dict[str, int] = {}
            async for ledger_id in manager.iterate():
                metadata, _ = await manager.read(ledger_id)
                for bookie in {b for one in metadata.fragments for b in one.bookies}:
                    found[bookie] = found.get(bookie, 0) + 1
            return found
        finally:
            await store.close()

    return asyncio.run(ask())


class Load:
    """Writes ledgers one after the other, until it is ended; everything is confirmed."""

    def __init__(
        self, metadata_url: str, quorums: tuple[int, int, int], entries: int, entry_bytes: int
    ) -> None:
        size, write_quorum, ack_quorum = quorums
        self._config = LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            add_timeout_ms=3000,
            read_timeout_ms=3000,
        )
        self._url = metadata_url
        self._entries = entries
        self._payload = b"x" * entry_bytes
        self.written: dict[int, int] = {}
        """Ledger -> entries confirmed."""
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with sync.connect(self._url, self._config) as client:
                while not self._over.is_set():
                    with client.create() as writer:
                        for _ in range(self._entries):
                            if self._over.is_set():
                                break
                            writer.add(self._payload)
                            self.written[writer.ledger_id] = (
                                self.written.get(writer.ledger_id, 0) + 1
                            )
        except BaseException as error:  # noqa: BLE001 - told to whoever ends the load
            self.error = error

    def check(self) -> None:
        """All that was confirmed can be read."""
        if self.error is not None:
            raise self.error
        with sync.connect(self._url, self._config) as client:
            for ledger_id, count in self.written.items():
                with client.open(ledger_id) as reader:
                    assert reader.last_add_confirmed + 1 >= count
                    for entry in reader:
                        assert bytes(entry.payload) == self._payload


def fill(metadata_url: str, quorums: tuple[int, int, int], ledgers: int, entries: int) -> int:
    """Write and close ``ledgers`` of so many entries of 10 KiB; returns their bytes."""
    size, write_quorum, ack_quorum = quorums
    config = LedgerConfig(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
    payload = b"y" * 10_240
    with sync.connect(metadata_url, config) as client:
        for _ in range(ledgers):
            with client.create() as writer:
                writer.add_all(payload for _ in range(entries))
    return ledgers * entries * len(payload)


def held_by(metadata_url: str, bookie_id: str) -> list[int]:
    """The ledgers of which that bookie has entries."""

    async def ask() -> list[int]:
        async with AsyncExitStack() as stack:
            store = await ZooKeeperMetadataStore.open(metadata_url)
            stack.push_async_callback(store.close)
            manager = LedgerManager(store)
            await manager.initialize(create=False)
            config = LedgerConfig()
            access = open_access(stack, store, manager, config, connection_options(config))
            found = []
            async for ledger_id in manager.iterate():
                try:
                    await access.pool.lister(BookieId(bookie_id)).list_entries(ledger_id)
                except NoLedgerError:
                    continue
                found.append(ledger_id)
            return found

    return asyncio.run(ask())
