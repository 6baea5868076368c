"""The write-ahead log: group commits in a thread of its own.

Adds on the loop queue requests; the thread takes all that wait (up to ``group_bytes_max``),
writes them through to the device with one ``pwritev``, and tells the loop with one
``call_soon_threadsafe`` per commit. There is nothing per entry but its checksum.

Invariants:

* A request is acknowledged only when the one file that holds all of it has it on the device: a
  commit never spans files, and a roll happens between commits only.
* After a write or sync error the journal is broken until restart: the requests of that commit,
  all that wait and all that come are refused; nothing uncertain is ever acknowledged later.
* A full disk is no such error: the entries of that commit are refused, and the next commit is
  written over it. What others depend on (``NEEDED``) is not given up but written with the next
  commit. A prepared file keeps its last ``CONTROL_BYTES`` for what is not entries, so that fences
  and deletions find room on a full disk.
* Nor is a process that may open no more files: the file that is open grows past its size.
* ``committed`` only moves forward, and every record before it was queued (so is in the write
  cache and the ledger states) before it moved.
* Waiting bytes are bounded by ``pending_bytes_max``.

The thread needs the interpreter back after each write; the process should run with
``sys.setswitchinterval(0.0001)``, which ``app.py`` sets.

Why: docs/adr/0011-journal-commits.md.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import structlog

from magnetar.bookie.journal.journal_blocks import BLOCK_BYTES
from magnetar.bookie.journal.journal_files import JournalDirectory, JournalFile
from magnetar.bookie.journal.journal_format import (
    ENTRY,
    LEDGER,
    NOOP,
    REVIVE,
    FileHeader,
    JournalPosition,
    commit_bytes,
    encode_commit,
    encode_file_header,
    seed_of,
)
from magnetar.config import JournalConfig
from magnetar.env.files.disk import Buffer, Disk
from magnetar.env.files.disk_space import is_no_descriptor, is_no_space
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieError, BookieIOError, MagnetarError, ReadOnlyBookieError

log = structlog.get_logger(__name__)

Done: TypeAlias = Callable[[MagnetarError | None, Sequence[int]], None]

CONTROL_BYTES = 64 << 10
"""At the end of a journal file, not for entries."""

NEEDED = (LEDGER, REVIVE)
"""Kinds of records without which a replay makes something else of the entries behind them. Nobody
waits for their answer."""

PLAIN_FILE_BYTES_MAX = 1 << 20
"""A file without prepared blocks gets at most this much before a prepared one is asked for."""

GROWN_BYTES = 1 << 20
"""A file that could not be rolled for want of a descriptor takes so much more before the next try,
which waits for one (``env/files/disk.py``)."""


class Request:
    """Records of one kind that are committed together, and who wants to know."""

    __slots__ = ("byte_count", "done", "entry_ids", "kind", "payloads", "sync")

    def __init__(
        self,
        kind: int,
        payloads: Sequence[bytes],
        byte_count: int,
        done: Done | None,
        entry_ids: Sequence[int],
        sync: bool = False,
    ) -> None:
        self.kind = kind
        self.payloads = payloads
        self.byte_count = byte_count
        self.done = done
        self.entry_ids = entry_ids
        self.sync = sync


class Journal:
    """One journal directory. All methods are called on the loop."""

    def __init__(
        self,
        index: int,
        directory: JournalDirectory,
        disk: Disk,
        config: JournalConfig,
        metrics: Metrics,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.index = index
        self.pending_bytes = 0
        self.appended_bytes = 0
        """Since the start; tells how much a replay would have to read."""
        self.broken: BookieIOError | None = None
        self.out_of_space = False
        """The disk was full at the last try: whoever adds entries is to be refused."""
        self.state_changed: Callable[[], None] = lambda: None
        """Called on the loop when the journal breaks or finds no room."""
        self.path = directory.path
        self.committed = JournalPosition(0, 0)
        self._directory = directory
        self._config = config
        self._metrics = metrics
        self._sleep = sleep
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._lane = disk.lane(f"journal-{index}")
        self._housekeeping = disk.lane(f"journal-{index}-files")
        self._queued: list[Request] = []  # in this turn of the loop
        # shared with the thread, under the lock
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._active = False
        self._prepared: JournalFile | None = None
        self._preparing = False
        self._next_id = 1
        # the thread's own
        self._file: JournalFile | None = None
        self._header = b""
        self._seed = 0
        self._offset = 0
        self._sequence = 0
        self._attempts = 0  # at this offset: what the disk had no room for lies there
        self._grows_to = 0  # there was no descriptor for the next file
        self._not_written: list[Request] = []  # to be written with the next commit
        self._not_prepared_after = 0
        self._files: list[int] = []  # the loop's: files that are not spent yet

    # -- start and end ------------------------------------------------------------------------

    def open(self, files: Sequence[int], last_id: int, next_id: int) -> None:
        """Begin a new file. Blocking; before any append.

        ``files``: ids that exist, ascending, spent ones too; ``last_id``: the last that holds
        commits (0: none); ``next_id``: higher than any id ever used here.
        """
        self._files = list(files)
        self._next_id = next_id + 1
        directory = self._directory
        make = directory.create_prepared if directory.has_spare else directory.create_plain
        file = make(next_id)
        self._switch(file, last_id, 0)
        file.file.pwritev([self._header], 0)
        file.file.datasync()
        self._header = b""
        self._files.append(next_id)
        self.committed = JournalPosition(next_id, BLOCK_BYTES)

    async def close(self) -> None:
        """Commit what waits, then end the threads. Idempotent."""
        if self.broken is None and self._file is not None:
            try:
                await self.barrier()
            except BookieError as error:  # whoever waited was told
                log.error("journal closed without its last commit", error=str(error))
        await self._lane.close()
        await self._housekeeping.close()
        for file in (self._file, self._prepared):
            if file is not None:
                file.file.close()
        self._file = self._prepared = None
        self.broken = self.broken or BookieIOError(f"journal {self._directory.path} is closed")

    # -- the loop's side ----------------------------------------------------------------------

    def append(self, request: Request) -> None:
        """Queue a request; its ``done`` is called on the loop, later, once."""
        if self.broken is not None:
            self._loop.call_soon(self._answer, iter((request,)), self.broken)
            return
        self.pending_bytes += request.byte_count
        self.appended_bytes += request.byte_count
        if not self._queued:
            self._loop.call_soon(self._hand_over)
        self._queued.append(request)

    def _hand_over(self) -> None:
        """At the end of the loop's turn, so that one commit takes the adds of every connection
        that was read in it, and the lock is taken once for all of them."""
        queued, self._queued = self._queued, []
        if self.broken is not None:
            self._answer(iter(queued), self.broken)
            return
        with self._lock:
            self._waiting.extend(queued)
            wake = not self._active
            self._active = True
        if wake:
            self._lane.submit(self._commit_waiting)

    async def write(self, kind: int, *payloads: bytes) -> None:
        """Append a record of each, and wait until they are durable. Raises ``BookieIOError``;
        ``ReadOnlyBookieError`` if there is no room."""
        await self._durable(Request(kind, payloads, sum(map(len, payloads)), None, ()))

    async def barrier(self) -> None:
        """Return when everything appended before is on the device, even where ``sync`` is off (but
        for entries that were refused for want of room). Raises as ``write``."""
        await self._durable(Request(NOOP, (), 0, None, (), sync=True))

    async def _durable(self, request: Request) -> None:
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        request.done = done
        self.append(request)
        await future

    def _committed(
        self, requests: list[Request], position: JournalPosition, seconds: float
    ) -> None:
        byte_count = sum([request.byte_count for request in requests])
        self.pending_bytes -= byte_count
        if position.file_id != self.committed.file_id:
            self._files.append(position.file_id)
        self.committed = position
        metrics = self._metrics
        metrics.journal_commit_seconds.observe(seconds)
        metrics.journal_bytes_total.inc(byte_count)
        metrics.journal_entries_total.inc(sum([len(request.payloads) for request in requests]))
        self._answer(iter(requests), None)

    def _failed(self, requests: list[Request], error: BookieIOError) -> None:
        self.broken = error
        log.error("journal broken; restart the bookie", error=str(error))
        with self._lock:
            requests = [*requests, *self._waiting]
            self._waiting.clear()
        self.pending_bytes = 0
        self._answer(iter(requests), error)
        self.state_changed()

    def _refused(self, requests: list[Request], error: MagnetarError) -> None:
        """The disk is full; nothing else is wrong."""
        if not self.out_of_space:
            log.error("journal has no room; entries are refused", error=str(error))
        self.out_of_space = True
        self.pending_bytes -= sum([request.byte_count for request in requests])
        self._answer(iter(requests), error)
        self.state_changed()

    def try_space(self) -> None:
        """After a refusal: take entries again if there may be room. Call it now and then."""
        if not self.out_of_space:
            return
        try:
            free_bytes = self._disk.space(self.path).free_bytes
        except OSError:
            return  # later, then
        if self._prepared is not None or free_bytes >= self._config.file_bytes // 4:
            self._not_prepared_after = 0
            self.out_of_space = False

    def _answer(self, requests: Iterator[Request], error: MagnetarError | None) -> None:
        """Call every ``done``; one that raises does not keep the others from theirs."""
        try:
            for request in requests:
                if request.done is not None:
                    request.done(error, request.entry_ids)
        finally:
            left = list(requests)  # not empty only when a ``done`` raised
            if left:
                self._loop.call_soon(self._answer, iter(left), error)

    def trim(self, mark: JournalPosition) -> None:
        """Files wholly before ``mark`` are spent: recycle or remove them."""
        spent = [file_id for file_id in self._files if file_id < mark.file_id]
        if spent:
            self._files = self._files[len(spent) :]
            self._housekeeping.submit(lambda: self._retire(spent))

    def _retire(self, spent: list[int]) -> None:
        """In the housekeeping lane. What stays is found spent by the next start."""
        try:
            self._directory.retire(spent)
        except OSError as error:
            log.warning("cannot put spent journal files away", files=spent, error=str(error))

    # -- the thread's side --------------------------------------------------------------------

    def _commit_waiting(self) -> None:
        if self._config.group_wait_us:
            self._sleep(self._config.group_wait_us / 1e6)
        while requests := self._take():
            started = time.perf_counter()
            requests, self._not_written = [*self._not_written, *requests], []
            try:
                position = self._write(requests)
            except Exception as error:  # noqa: BLE001 - this commit is uncertain now
                if not is_no_space(error):
                    self._break(requests, error)
                elif self._refuse(requests, error):
                    continue
                return  # _active stays set: this thread is never woken again
            seconds = time.perf_counter() - started
            self._lane.post(self._committed, requests, position, seconds)

    def _break(self, requests: list[Request], error: BaseException) -> None:
        reason = BookieIOError(
            f"journal {self._directory.path} cannot write: {error!r}; nothing more is "
            "acknowledged until the bookie is restarted on a sound disk"
        )
        self._lane.post(self._failed, requests, reason)

    def _refuse(self, requests: list[Request], error: BaseException) -> bool:
        """The disk had no room for a commit: try again with what is not entries. False: that
        failed for another reason, and the journal is broken."""
        reason = ReadOnlyBookieError(
            f"journal {self.path} has no room ({error}); free space, the bookie takes entries "
            "again by itself"
        )
        self._lane.post(self._refused, [r for r in requests if r.kind == ENTRY], reason)
        control = [r for r in requests if r.kind != ENTRY]
        if not control:
            return True
        started = time.perf_counter()
        try:
            position = self._write(control)
        except Exception as again:  # noqa: BLE001 - this commit is uncertain now
            if not is_no_space(again):
                self._break(control, again)
                return False
            self._not_written = [r for r in control if r.kind in NEEDED]
            self._lane.post(self._refused, [r for r in control if r.kind not in NEEDED], reason)
            return True
        self._lane.post(self._committed, control, position, time.perf_counter() - started)
        return True

    def _take(self) -> list[Request]:
        """All that waits, up to one commit's bytes; at least one request if there is one."""
        limit = self._config.group_bytes_max
        with self._lock:
            waiting = self._waiting
            if not waiting:
                self._active = False
                return []
            taken = [waiting.popleft()]
            size = taken[0].byte_count
            while waiting and size + waiting[0].byte_count <= limit:
                taken.append(waiting.popleft())
                size += taken[-1].byte_count
            return taken

    def _write(self, requests: list[Request]) -> JournalPosition:
        records = sum([len(request.payloads) for request in requests])
        payload_bytes = sum([request.byte_count for request in requests])
        entries = any(request.kind == ENTRY for request in requests)
        # Roll before encoding: a commit carries its block's number and the file's seed. Room for
        # control records is kept behind entries, so that a fence fits when no entry does.
        self._roll_if_full(commit_bytes(records, payload_bytes) + CONTROL_BYTES * entries)
        assert self._file is not None
        groups = [(request.kind, request.payloads) for request in requests]
        block = self._offset // BLOCK_BYTES
        commit = encode_commit(groups, self._sequence, self._seed, block, self._attempts)
        header = self._header
        parts: list[Buffer] = [header, commit] if header else [commit]
        file, start = self._file.file, self._offset - len(header)
        # Counted before the write: what a failed one left on disk must not be taken for a commit
        # of the next, which has another number of attempts in it.
        self._attempts += 1
        if self._config.sync:
            file.write_through(parts, start)
        else:
            file.pwritev(parts, start)
            if any(request.sync for request in requests):
                file.datasync()
        # Only a write that returned moves the place: the next commit overwrites a failed one.
        self._attempts = 0
        self._header = b""
        self._sequence += 1
        self._offset += len(commit)
        self._prepare_next()
        return JournalPosition(self._file.file_id, self._offset)

    def _roll_if_full(self, size: int) -> None:
        """Go to the next file if ``size`` more bytes do not fit, or if this one was never
        prepared and the next one is. A commit larger than a file gets a file that grows."""
        file = self._file
        assert file is not None
        most = max(self._config.file_bytes, self._grows_to)
        full = self._offset + size > most and self._offset > BLOCK_BYTES
        if not full and (file.prepared or self._prepared is None):
            return
        if self._offset == BLOCK_BYTES:
            return  # nothing in it yet
        with self._lock:
            following, self._prepared = self._prepared, None
            if following is None:
                file_id, self._next_id = self._next_id, self._next_id + 1
        # The old file before the new one is begun: replay takes a file that has a successor for
        # whole, and would call a tail that was never synced damage.
        if not self._config.sync:
            file.file.datasync()
        if following is None:
            try:
                following = self._directory.create_plain(file_id)
            except OSError as error:
                if not is_no_descriptor(error):
                    raise
                log.warning(
                    "no descriptor for a journal file; the one before grows", error=str(error)
                )
                self._grows_to = self._offset + size + GROWN_BYTES
                return
        file.file.close()
        self._switch(following, file.file_id, 0 if self._attempts else self._offset)

    def _switch(self, file: JournalFile, previous_id: int, previous_end: int) -> None:
        self._file = file
        self._header = encode_file_header(FileHeader(file.file_id, previous_id, previous_end))
        self._seed = seed_of(file.file_id)
        self._offset = BLOCK_BYTES
        self._sequence = 0
        self._attempts = 0
        self._grows_to = 0

    def _prepare_next(self) -> None:
        assert self._file is not None
        threshold = self._config.file_bytes // 4
        if not self._file.prepared:
            threshold = min(threshold, PLAIN_FILE_BYTES_MAX)
        if self._offset < threshold or self._preparing or self._prepared is not None:
            return
        if self._not_prepared_after == self._file.file_id:
            return  # tried and failed; again with the next file
        with self._lock:
            self._preparing = True
            file_id, self._next_id = self._next_id, self._next_id + 1
        self._housekeeping.submit(lambda: self._prepare(file_id))

    def _prepare(self, file_id: int) -> None:
        """In the housekeeping lane. A file that is ready too late becomes a spare."""
        try:
            file = self._directory.create_prepared(file_id)
        except OSError as error:
            log.warning("cannot prepare a journal file", file_id=file_id, error=str(error))
            assert self._file is not None
            self._not_prepared_after = self._file.file_id
            self._preparing = False
            return
        with self._lock:
            self._preparing = False
            late = self._next_id != file_id + 1
            if not late:
                self._prepared = file
        if late:
            file.file.close()
            self._directory.retire([file_id])
