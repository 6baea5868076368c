"""The ledger library for scripts: the same calls, without ``async``.

    from magnetar.ledger import sync

    with sync.connect("zk://localhost:2181/cluster") as client:
        with client.create() as writer:
            writer.add(b"one")
            writer.add_all(b"%d" % i for i in range(1000))
        with client.open(writer.ledger_id) as reader:
            for entry in reader:
                print(entry.entry_id, bytes(entry.payload))

A client runs an event loop in a thread of its own; calls wait for it. Errors are those of the
asynchronous library. Objects may be used from any thread, one call at a time each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self, TypeAlias

from magnetar.config import LedgerConfig
from magnetar.env.loop_thread import LoopThread, Waits, waiting
from magnetar.ledger.catalog.ledger_list import LedgerIds
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import connect as connect_async
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.entry import Entry
from magnetar.model.errors import LedgerError
from magnetar.model.ids import EntryId
from magnetar.model.ledger import DigestType, LedgerMetadata

__all__ = ["SyncClient", "SyncReader", "SyncTail", "SyncWriter", "connect"]

Buffer: TypeAlias = bytes | bytearray | memoryview

READ_ENTRIES = 1000
READ_BYTES = 1 << 20
ADD_ENTRIES = 256
ADD_BYTES = 256 << 10
ADDS_UNDER_WAY = 8


def connect(
    metadata_url: str, config: LedgerConfig | None = None, *, session_timeout_ms: int = 10_000
) -> SyncClient:
    """As ``magnetar.ledger.connect``. Close it, or use it as a context manager."""
    loop, parts = LoopThread("magnetar-ledger", "the ledger client"), AsyncExitStack()
    opening = connect_async(metadata_url, config, session_timeout_ms=session_timeout_ms)
    try:
        return SyncClient(loop, loop.run(parts.enter_async_context(opening)), parts)
    except BaseException:
        loop.end(parts.aclose())
        raise


class _Closing:
    """A context manager that closes."""

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncClient(Waits[LedgerClient], _Closing):
    """``LedgerClient``, waiting. Made by ``connect``."""

    def __init__(self, loop: LoopThread, client: LedgerClient, parts: AsyncExitStack) -> None:
        super().__init__(loop, client)
        self._parts = parts

    delete = waiting(LedgerClient.delete)
    read_metadata = waiting(LedgerClient.read_metadata)

    def create(
        self,
        custom: Mapping[str, bytes] | None = None,
        *,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        deferred_sync_unsafe: bool = False,
    ) -> SyncWriter:
        """As ``LedgerClient.create``."""
        creating = self._part.create(
            custom,
            digest_type=digest_type,
            password=password,
            deferred_sync_unsafe=deferred_sync_unsafe,
        )
        return SyncWriter(self._loop, self._loop.run(creating))

    def open(self, ledger_id: int) -> SyncReader:
        """As ``LedgerClient.open``: takes the ledger from its writer if it is open."""
        return SyncReader(self._loop, self._loop.run(self._part.open(ledger_id)))

    def open_no_recovery(self, ledger_id: int) -> SyncTail:
        """As ``LedgerClient.open_no_recovery``: only looks."""
        return SyncTail(self._loop, self._loop.run(self._part.open_no_recovery(ledger_id)))

    def read_list(self, name: str) -> LedgerIds:
        """As ``LedgerList.read``."""
        return self._loop.run(self._part.ledger_list(name).read())

    def write_list(self, name: str, ledger_ids: Sequence[int], version: int) -> LedgerIds:
        """As ``LedgerList.write``."""
        return self._loop.run(self._part.ledger_list(name).write(ledger_ids, version))

    def close(self) -> None:
        """End the client and its thread; writers that are not closed are given up, calls that
        other threads wait for raise ``LedgerError``. Idempotent."""
        self._loop.end(self._parts.aclose())


class SyncWriter(Waits[LedgerWriter], _Closing):
    """``LedgerWriter``, waiting. As a context manager it closes the ledger, also after an error
    in the block: what was confirmed stays."""

    force = waiting(LedgerWriter.force)
    close = waiting(LedgerWriter.close)
    abandon = waiting(LedgerWriter.abandon)

    @property
    def ledger_id(self) -> int:
        return self._part.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._part.last_add_confirmed

    def add(self, payload: Buffer) -> EntryId:
        """Append one entry; its id once it is confirmed."""
        return self._loop.run(self._part.add([payload]))

    def add_all(self, payloads: Iterable[Buffer]) -> int:
        """Append many entries, several batches under way at once; returns how many when all are
        confirmed. An error means that some of them may not be."""
        under_way: deque[Future[EntryId]] = deque()
        count = 0
        try:
            for batch in _batches(payloads):
                count += len(batch)
                under_way.append(self._loop.begin(self._part.add(batch)))
                if len(under_way) > ADDS_UNDER_WAY:
                    self._loop.result_of(under_way.popleft())
            while under_way:
                self._loop.result_of(under_way.popleft())
        finally:
            for add in under_way:
                add.cancel()
        return count


class SyncReader(Waits[LedgerReader], _Closing):
    """``LedgerReader``, waiting; iterates over all confirmed entries."""

    read_last = waiting(LedgerReader.read_last)

    @property
    def ledger_id(self) -> int:
        return self._part.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._part.metadata

    @property
    def closed(self) -> bool:
        """Whether nothing will ever follow ``last_add_confirmed``."""
        return self._part.closed

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._part.last_add_confirmed

    def read(
        self,
        first_entry_id: EntryId,
        max_entries: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
    ) -> list[Entry]:
        """As ``LedgerReader.read``."""
        return self._loop.run(self._part.read(first_entry_id, max_entries, max_bytes))

    def __iter__(self) -> Iterator[Entry]:
        following = 0
        while following <= self.last_add_confirmed:
            for entry in self.read(following):
                yield entry
                following = entry.entry_id + 1

    def close(self) -> None:
        """Nothing to end."""


class SyncTail(SyncReader):
    """``TailingReader``, waiting."""

    def __init__(self, loop: LoopThread, reader: TailingReader) -> None:
        super().__init__(loop, reader)
        self._tail = reader

    def wait_past(self, entry_id: EntryId, timeout_s: float | None = None) -> EntryId:
        """As ``TailingReader.wait_past``."""
        return self._loop.run(self._tail.wait_past(entry_id, timeout_s))

    def follow(self, first_entry_id: EntryId = 0) -> Iterator[Entry]:
        """As ``TailingReader.follow``: ends when the ledger is closed."""
        following = first_entry_id
        while self.wait_past(following - 1) >= following:
            for entry in self.read(following):
                yield entry
                following = entry.entry_id + 1

    def close(self) -> None:
        """End its watch. Idempotent."""

        async def close() -> None:
            self._tail.close()

        with suppress(LedgerError):  # the client is closed, and its watches with it
            self._loop.run(close())


def _batches(payloads: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    batch: list[Buffer] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += len(payload)
        if len(batch) >= ADD_ENTRIES or size >= ADD_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
