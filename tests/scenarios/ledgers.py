"""Ledger clients for the scenarios: write, open, and count what is there.

Payloads are made from the entry id, so that a reader knows what it must find.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.storage import open_cluster, open_ledgers, open_metadata
from magnetar.config import Config, LedgerConfig, MetadataConfig
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import LedgerAccess
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import LedgerError, LedgerRecoveryError, MagnetarError, NoEntryError
from tests.scenarios.cluster import SESSION_MS

PAYLOAD_BYTES = 256
RETURN_S = 60.0
"""Until a bookie that was paused past its session is registered again."""


@dataclass(frozen=True)
class Client:
    """One client of the cluster: its own metadata session, its own connections."""

    ledgers: LedgerClient
    manager: LedgerManager
    pool: BookiePool


@asynccontextmanager
async def client(
    metadata_url: str,
    quorums: tuple[int, int, int] = (3, 3, 2),
    add_timeout_ms: int = 10_000,
    read_timeout_ms: int = 10_000,
) -> AsyncIterator[Client]:
    """A client as ``magnetar broker`` builds it."""
    size, write_quorum, ack_quorum = quorums
    config = Config(
        metadata=MetadataConfig(url=metadata_url, session_timeout_ms=SESSION_MS),
        ledger=LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            add_timeout_ms=add_timeout_ms,
            read_timeout_ms=read_timeout_ms,
        ),
    )
    async with AsyncExitStack() as stack:
        process = Process(config, real(), stack, Fate(asyncio.Event()))
        cluster = await open_cluster(await open_metadata(process), process.outside)
        access: LedgerAccess = open_ledgers(process, cluster, {})
        yield Client(access.client, cluster.manager, access.pool)


def payload(entry_id: int, size: int = PAYLOAD_BYTES) -> bytes:
    """What entry ``entry_id`` holds."""
    return entry_id.to_bytes(8, "big") * (size // 8)


class Load:
    """Appends 16 entries, rests for ``rest_s``, and so on without end, at most
    ``pending_bytes_max`` unconfirmed; notes what is confirmed.

    ``confirmed`` is the number of entries confirmed, and these are the ids below it: whoever
    appends in order is answered in order. ``error`` is what ended it.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        size: int = PAYLOAD_BYTES,
        pending_bytes_max: int = 64 << 10,
        rest_s: float = 0.0,
    ) -> None:
        self.writer = writer
        self.confirmed = 0
        self.error: MagnetarError | None = None
        self._size = size
        self._pending_bytes_max = pending_bytes_max
        self._rest_s = rest_s
        self._moved = asyncio.Event()
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="load")

    def append(self, count: int) -> None:
        """``count`` more entries."""
        first = self.writer.last_add_pushed + 1
        payloads = [payload(entry_id, self._size) for entry_id in range(first, first + count)]
        self.writer.append(payloads, self._done)

    async def _run(self) -> None:
        while not self._stopped and self.error is None:
            self.append(16)
            await asyncio.sleep(self._rest_s)
            while self.writer.pending_bytes > self._pending_bytes_max and self.error is None:
                self._moved.clear()
                await self._moved.wait()

    def _done(self, error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
        if error is not None:
            self.error = self.error or error
        else:
            assert self.error is None, "confirmed after a failure"
            assert first == self.confirmed, "confirmed out of order"
            self.confirmed += count
        self._moved.set()

    async def wait_confirmed(self, more: int) -> None:
        """Until ``more`` entries more than now are confirmed. Raises what ends the load."""
        goal = self.confirmed + more
        while self.confirmed < goal:
            if self.error is not None:
                raise self.error
            self._moved.clear()
            await self._moved.wait()

    async def wait_failed(self) -> MagnetarError:
        while self.error is None:
            self._moved.clear()
            await self._moved.wait()
        return self.error

    async def stop(self) -> None:
        """Append no more. What is pending goes on."""
        self._stopped = True
        self._moved.set()
        await self._task


async def append(writer: LedgerWriter, count: int) -> None:
    """``count`` more entries; returns when all are confirmed."""
    first = writer.last_add_pushed + 1
    await writer.add([payload(entry_id) for entry_id in range(first, first + count)])


async def opened(reading: Client, ledger_id: int) -> LedgerReader:
    """As a broker does it: again, while recovery says that too few bookies answer."""
    async with asyncio.timeout(RETURN_S):
        while True:
            try:
                return await reading.ledgers.open(ledger_id)
            except LedgerRecoveryError as error:
                print(error)
                await asyncio.sleep(0.5)


async def lost(reader: LedgerReader, size: int = PAYLOAD_BYTES) -> dict[int, str]:
    """The entries that no replica gives, and what the reader says of each. All others were read
    and hold what was written."""
    found: dict[int, str] = {}
    entry_id = 0
    while entry_id <= reader.last_add_confirmed:
        try:
            entries = await reader.read(entry_id, 500, 1 << 20)
        except (LedgerError, NoEntryError) as error:
            found[entry_id] = str(error)
            entry_id += 1
            continue
        for entry in entries:
            assert entry.entry_id == entry_id
            assert bytes(entry.payload) == payload(entry_id, size)
            entry_id += 1
    return found
