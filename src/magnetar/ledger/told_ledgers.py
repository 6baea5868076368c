"""Ledgers read at the bookies by what somebody told of them (``directory``): no metadata store.

    with ToldLedgers(bookies) as ledgers:
        for entry in ledgers.entries(metadata, 0, 5000):
            ...

Rules:

* Only what was confirmed when the metadata was told may be read: whoever tells how far that is says
  so to the caller. Entries up to there lie where the metadata says, whatever has changed since.
* Nothing is written and nothing is fenced.
* While the caller works on some entries the next ones are being read: one read ahead, of
  ``READ_BYTES``.

Reads are the library's: any replica, in batches, hedged (``reading/``); a read is one request, and
large entries are views of its answer: hold them for no longer than they are needed (why:
docs/adr/0183-scans-ask-for-four-mib.md). A client runs an event loop
in a thread of its own; calls wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from magnetar.config import LedgerConfig
from magnetar.env.loop_thread import LoopThread
from magnetar.ledger.connecting import connection_options
from magnetar.ledger.connections.channel import Address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.reading.reader import LedgerReader, read_policy
from magnetar.model.entry import Entry
from magnetar.model.errors import BookieUnavailableError
from magnetar.model.ids import BookieId, EntryId
from magnetar.wire.bookie.metadata import decode_ledger_metadata

READ_ENTRIES = 20_000
READ_BYTES = 4 << 20
RUN_BYTES = READ_BYTES
"""Of one request to a bookie. What a request costs beside its bytes (two processes and their
threads woken, the tasks that wait for it) is that of half a MiB."""


class ToldLedgers:
    """Reads ledgers whose bookies listen at these addresses. Close it, or use it as a context
    manager."""

    def __init__(
        self,
        bookies: Mapping[str, Address],
        config: LedgerConfig | None = None,
        frame_bytes_max: int = 0,
    ) -> None:
        """``frame_bytes_max``: entries up to that size are taken."""
        self._bookies = dict(bookies)
        self._config = config or LedgerConfig()
        options = connection_options(self._config, frame_bytes_max)
        self._options = replace(options, lends_entries=True)
        self._policy = read_policy(self._config)
        self._loop = LoopThread("magnetar-told-ledgers", "the reader of ledgers")
        self._parts = AsyncExitStack()
        self._pool = self._loop.run(self._open_pool())

    async def _open_pool(self) -> ConnectionPool:
        pool = ConnectionPool(self._resolve, self._available, None, self._options)
        self._parts.push_async_callback(pool.close)
        return pool

    async def _resolve(self, bookie_id: BookieId) -> Address:
        address = self._bookies.get(str(bookie_id))
        if address is None:
            raise BookieUnavailableError(
                f"bookie {bookie_id} is not registered; start it, or wait until it is back"
            )
        return address

    async def _available(self) -> list[BookieId]:
        return sorted(BookieId(name) for name in self._bookies)

    def entries(
        self, ledger_id: int, told: bytes, first_entry_id: EntryId, stop_entry_id: EntryId
    ) -> Iterator[Entry]:
        """The entries from the first up to, not including, ``stop_entry_id``, all of which must be
        confirmed. Raises ``MetadataFormatError`` for metadata that is none, and as
        ``LedgerReader.read``."""
        metadata = decode_ledger_metadata(ledger_id, told)
        reader = LedgerReader(
            metadata,
            stop_entry_id - 1,
            self._pool,
            self._config,
            self._policy,
            run_bytes=RUN_BYTES,
        )
        return self._read(reader, first_entry_id, stop_entry_id)

    def _read(
        self, reader: LedgerReader, first_entry_id: EntryId, stop_entry_id: EntryId
    ) -> Iterator[Entry]:
        under_way: Future[list[Entry]] | None = None
        try:
            while first_entry_id < stop_entry_id:
                under_way = under_way or self._begin(reader, first_entry_id)
                entries = self._loop.result_of(under_way)
                under_way = None
                first_entry_id = entries[-1].entry_id + 1
                if first_entry_id < stop_entry_id:
                    under_way = self._begin(reader, first_entry_id)
                yield from entries
        finally:
            if under_way is not None:
                under_way.cancel()

    def _begin(self, reader: LedgerReader, first_entry_id: EntryId) -> Future[list[Entry]]:
        return self._loop.begin(reader.read(first_entry_id, READ_ENTRIES, READ_BYTES))

    def close(self) -> None:
        """End the connections and the thread. Idempotent."""
        self._loop.end(self._parts.aclose())

    def __enter__(self) -> ToldLedgers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
