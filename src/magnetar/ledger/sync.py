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

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar

from magnetar.config import LedgerConfig
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

T = TypeVar("T")
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
    return SyncClient(metadata_url, config, session_timeout_ms)


class _Call(Protocol):
    """The part of a ``Future`` that ends it, whatever it gives."""

    def cancel(self) -> bool: ...


class _Loop:
    """An event loop in a thread. Once it ends no call begins any more, and those that other
    threads wait for fail."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._beginning = threading.Lock()
        self._ended = False
        self._under_way: set[_Call] = set()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="magnetar-ledger", daemon=True
        )
        self._thread.start()

    def begin(self, call: Coroutine[object, object, T]) -> Future[T]:
        with self._beginning:
            if self._ended:
                call.close()
                raise LedgerError("the ledger client is closed; connect again")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def run(self, call: Coroutine[object, object, T]) -> T:
        """The call's result; a call that is interrupted (Ctrl-C) is cancelled."""
        return _result_of(self.begin(call))

    def end(self, last: Coroutine[object, object, None]) -> None:
        """Run ``last`` when no other call is under way, then end. Idempotent."""
        with self._beginning:
            ended, self._ended = self._ended, True
        if ended:
            last.close()
            return
        for call in list(self._under_way):
            call.cancel()
        try:
            _result_of(asyncio.run_coroutine_threadsafe(last, self._loop))
        finally:
            _result_of(asyncio.run_coroutine_threadsafe(_end_all(), self._loop))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _result_of(call: Future[T]) -> T:
    """Wait for it; when that is interrupted it is cancelled."""
    try:
        return call.result()
    except CancelledError:
        raise LedgerError(
            "the ledger client was closed while the call was under way, which may or may not have "
            "taken effect; connect again and look"
        ) from None
    finally:
        call.cancel()


async def _end_all() -> None:
    """End what still runs on this loop, which is ours alone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class _Closing:
    """A context manager that closes."""

    def close(self) -> object:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class SyncClient(_Closing):
    """``LedgerClient``, waiting."""

    def __init__(
        self, metadata_url: str, config: LedgerConfig | None, session_timeout_ms: int
    ) -> None:
        self._loop = _Loop()
        self._parts = AsyncExitStack()
        opening = connect_async(metadata_url, config, session_timeout_ms=session_timeout_ms)
        try:
            self._client: LedgerClient = self._loop.run(self._parts.enter_async_context(opening))
        except BaseException:
            self._loop.end(self._parts.aclose())
            raise

    def __enter__(self) -> SyncClient:
        return self

    def create(
        self,
        custom: Mapping[str, bytes] | None = None,
        *,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        deferred_sync_unsafe: bool = False,
    ) -> SyncWriter:
        """As ``LedgerClient.create``."""
        writer = self._loop.run(
            self._client.create(
                custom,
                digest_type=digest_type,
                password=password,
                deferred_sync_unsafe=deferred_sync_unsafe,
            )
        )
        return SyncWriter(self._loop, writer)

    def open(self, ledger_id: int) -> SyncReader:
        """As ``LedgerClient.open``: takes the ledger from its writer if it is open."""
        return SyncReader(self._loop, self._loop.run(self._client.open(ledger_id)))

    def open_no_recovery(self, ledger_id: int) -> SyncTail:
        """As ``LedgerClient.open_no_recovery``: only looks."""
        return SyncTail(self._loop, self._loop.run(self._client.open_no_recovery(ledger_id)))

    def delete(self, ledger_id: int, *, missing_ok: bool = False) -> None:
        """As ``LedgerClient.delete``."""
        self._loop.run(self._client.delete(ledger_id, missing_ok=missing_ok))

    def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        """As ``LedgerClient.read_metadata``."""
        return self._loop.run(self._client.read_metadata(ledger_id))

    def read_list(self, name: str) -> LedgerIds:
        """As ``LedgerList.read``."""
        return self._loop.run(self._client.ledger_list(name).read())

    def write_list(self, name: str, ledger_ids: Sequence[int], version: int) -> LedgerIds:
        """As ``LedgerList.write``."""
        return self._loop.run(self._client.ledger_list(name).write(ledger_ids, version))

    def close(self) -> None:
        """End the client and its thread; writers that are not closed are given up, calls that
        other threads wait for raise ``LedgerError``. Idempotent."""
        self._loop.end(self._parts.aclose())


class SyncWriter(_Closing):
    """``LedgerWriter``, waiting. As a context manager it closes the ledger, also after an error
    in the block: what was confirmed stays."""

    def __init__(self, loop: _Loop, writer: LedgerWriter) -> None:
        self._loop = loop
        self._writer = writer

    def __enter__(self) -> SyncWriter:
        return self

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._writer.last_add_confirmed

    def add(self, payload: Buffer) -> EntryId:
        """Append one entry; its id once it is confirmed."""
        return self._loop.run(self._writer.add([payload]))

    def add_all(self, payloads: Iterable[Buffer]) -> int:
        """Append many entries, several batches under way at once; returns how many when all are
        confirmed. An error means that some of them may not be."""
        under_way: deque[Future[EntryId]] = deque()
        count = 0
        try:
            for batch in _batches(payloads):
                count += len(batch)
                under_way.append(self._loop.begin(self._writer.add(batch)))
                if len(under_way) > ADDS_UNDER_WAY:
                    _result_of(under_way.popleft())
            while under_way:
                _result_of(under_way.popleft())
        finally:
            for add in under_way:
                add.cancel()
        return count

    def force(self) -> None:
        """As ``LedgerWriter.force``."""
        self._loop.run(self._writer.force())

    def close(self) -> LedgerMetadata:
        """As ``LedgerWriter.close``."""
        return self._loop.run(self._writer.close())

    def abandon(self) -> None:
        """As ``LedgerWriter.abandon``."""
        self._loop.run(self._writer.abandon())


class SyncReader(_Closing):
    """``LedgerReader``, waiting; iterates over all confirmed entries."""

    def __init__(self, loop: _Loop, reader: LedgerReader) -> None:
        self._loop = loop
        self._reader = reader

    def __enter__(self) -> SyncReader:
        return self

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        """Whether nothing will ever follow ``last_add_confirmed``."""
        return self._reader.closed

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._reader.last_add_confirmed

    def read(
        self,
        first_entry_id: EntryId,
        max_entries: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
    ) -> list[Entry]:
        """As ``LedgerReader.read``."""
        return self._loop.run(self._reader.read(first_entry_id, max_entries, max_bytes))

    def read_last(self) -> Entry | None:
        """As ``LedgerReader.read_last``."""
        return self._loop.run(self._reader.read_last())

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

    def __init__(self, loop: _Loop, reader: TailingReader) -> None:
        super().__init__(loop, reader)
        self._tail = reader

    def __enter__(self) -> SyncTail:
        return self

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
