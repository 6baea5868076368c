"""``SqliteMetadataStore``: the metadata tree of one machine, in one SQLite file.

Owns the file, its lock, and one thread (the lane) that is the only one to touch the connection.

* Whatever waits for the lane goes into one transaction and one fsync (group commit); callers are
  answered after the commit, in order, with one wake-up of the loop.
* WAL with ``synchronous=FULL``: a write that returned survives a power cut. A log that is damaged
  is refused (``sqlite_wal``): SQLite would go on without the changes behind the damage. So is a
  file that is (``SqliteTree.damages``): it has no checksums of its own.
* One process opens the file for writing: it holds ``PATH.lock`` (flock, so a crash releases it)
  and writes its pid there. Any number may read (``read_only=True``) meanwhile.
* The session is the open store: its ephemeral nodes go at ``close``, or after a crash when the
  file is next opened for writing. It never expires; ``watch_session`` reports nothing.

Why SQLite and this shape: docs/adr/0030-embedded-metadata-in-sqlite.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from magnetar.env.files.lock_file import LockHeldError, open_locked, write_owner
from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.metadata_stores.metadata_paths import check_new_path, check_path, check_value
from magnetar.env.metadata_stores.sqlite_tree import SqliteTree
from magnetar.env.metadata_stores.sqlite_wal import damaged_at
from magnetar.env.metadata_stores.watches import PathWatches
from magnetar.model.errors import MetadataError

log = structlog.get_logger(__name__)

R = TypeVar("R")

MEMORY = ":memory:"

PENDING_MAX = 10_000
"""Operations that may wait for the lane before further ones are refused."""

BATCH_MAX = 512
"""Operations of one transaction."""

BELIEVED = ".believed"
"""Behind the file's name: an operator goes on with a damaged one."""

PATH_BYTES_MAX = 504
"""Of the file's path, without symbolic links: SQLite has 512, and adds suffixes of 8."""
_BUSY_TIMEOUT_MS = 5_000  # readers may hold a checkpoint back for a moment

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA journal_size_limit = 16777216",
    # What a crash tore must not stay behind what is written next: with the end that the next crash
    # tears it would look like what follows a commit (``sqlite_wal``).
    "PRAGMA wal_checkpoint(TRUNCATE)",
)


class _Operation(NamedTuple):
    run: Callable[[SqliteTree], object]
    writes: bool
    answer: asyncio.Future[object]


class _Outcome(NamedTuple):
    answer: asyncio.Future[object]
    result: object
    error: Exception | None


class SqliteMetadataStore:
    """A ``MetadataStore`` in one file; ``await SqliteMetadataStore.open(path)`` makes one."""

    def __init__(self, path: str, read_only: bool, loop: asyncio.AbstractEventLoop) -> None:
        """Use ``open``."""
        self.path = path
        self.read_only = read_only
        self._loop = loop
        self._watches = PathWatches()
        self._pending = 0
        self._closing: asyncio.Future[object] | None = None
        self._lock_file: int | None = None
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._lane, name=f"metadata {Path(path).name}", daemon=True
        )
        self._opened: asyncio.Future[object] = loop.create_future()

    @classmethod
    async def open(cls, path: Path | str, *, read_only: bool = False) -> SqliteMetadataStore:
        """Open the store in the file ``path`` (made if missing; ``:memory:`` keeps nothing).

        Raises ``MetadataError`` if another process has it open for writing, if the file is not a
        metadata store, or if it cannot be opened. ``read_only`` takes no lock, refuses writes and
        watches, and shows what is stored, the ephemeral nodes of a crashed process included.
        """
        store = cls(str(path), read_only, asyncio.get_running_loop())
        if not read_only and store.path != MEMORY:
            store._lock_file = _take_lock(store.path)
        store._thread.start()
        try:
            await store._opened
        except MetadataError:
            _release_lock(store._lock_file)
            raise
        return store

    # -- MetadataStore ------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return await self._submit(lambda tree: tree.get(path), writes=False)

    async def create(
        self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
    ) -> str:
        sequential = mode in (CreateMode.SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
        check_new_path(path, sequential)
        check_value(path, value)
        return await self._submit(lambda tree: tree.create(path, value, mode))

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        return await self._submit(lambda tree: tree.put(path, value, version))

    async def delete(self, path: str, version: int = -1) -> None:
        check_path(path)
        return await self._submit(lambda tree: tree.delete(path, version))

    async def session_id(self) -> int:
        """There is one, as long as the store is open."""
        return 0

    async def delete_within(self, session_id: int, path: str, version: int = -1) -> None:
        await self.delete(path, version)

    async def put_within(self, session_id: int, path: str, value: bytes, version: int) -> int:
        return await self.put(path, value, version)

    async def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        check_path(other)
        check_path(path)
        check_value(path, value)
        return await self._submit(lambda tree: tree.put_beside(other, path, value, version))

    async def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        check_new_path(path, sequential=False)
        check_path(other)
        check_value(path, value)
        check_value(other, other_value)
        return await self._submit(
            lambda tree: tree.create_and_put(path, value, other, other_value, version)
        )

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._submit(lambda tree: tree.children(path), writes=False)

    async def children_stamp(self, path: str) -> int:
        if self.read_only:
            raise MetadataError(
                f"{self.path} is open read-only and cannot tell whether the children of {path} "
                "have changed: another process changes them"
            )
        check_path(path)
        return await self._submit(lambda tree: tree.children_stamp(path), writes=False)

    async def sync(self) -> None:
        """There is one copy; what is asked for before this has been carried out."""
        await self._submit(lambda tree: None, writes=False)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        if self.read_only:
            raise MetadataError(
                f"{self.path} is open read-only and cannot watch {path}: the changes happen in "
                f"another process"
            )
        return self._watches.add(check_path(path), changed)

    watch_value = watch  # to be told of more costs nothing here

    def watch_session(self, changed: Callable[[SessionState], None]) -> Callable[[], None]:
        """Nothing to report: the session lives as long as the store is open."""
        return lambda: None

    async def close(self) -> None:
        """Answer what waits, end the session, release the file. Idempotent."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            if not self.read_only:
                end = _Operation(SqliteTree.end_session, True, self._loop.create_future())
                self._queue.put(end)
            self._queue.put(None)
        await asyncio.shield(self._closing)
        self._thread.join()  # it has said its last word; this does not wait
        _release_lock(self._lock_file)
        self._lock_file = None

    # -- the loop's side ----------------------------------------------------------------------

    async def _submit(self, run: Callable[[SqliteTree], R], writes: bool = True) -> R:
        if self._closing is not None:
            raise MetadataError(f"the metadata store {self.path} is closed")
        if writes and self.read_only:
            raise MetadataError(
                f"{self.path} is open read-only; stop the process that owns it, or write through it"
            )
        if self._pending >= PENDING_MAX:
            raise MetadataError(
                f"{PENDING_MAX} operations wait for the metadata store {self.path}; its disk is "
                f"too slow or stuck, try again later"
            )
        self._pending += 1
        answer: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(_Operation(run, writes, answer))
        try:
            return await answer  # type: ignore[return-value]  # the lane answers with run's result
        finally:
            del answer  # it holds its error, whose traceback holds this frame

    def _deliver(self, outcomes: list[_Outcome], changed: list[str]) -> None:
        self._pending -= len(outcomes)
        for outcome in outcomes:
            _settle(outcome)
        self._watches.notify(self._loop, changed)

    # -- the lane's side ----------------------------------------------------------------------

    def _lane(self) -> None:
        try:
            db = _connect(self.path, self.read_only)
            tree = SqliteTree(db, self.path)
            tree.prepare(self.read_only)
            if not self.read_only:
                _check_sound(self.path, tree)
                tree.end_former_session()
        except (sqlite3.Error, MetadataError) as error:
            self._tell(_settle, _Outcome(self._opened, None, _as_metadata_error(self.path, error)))
            return
        self._tell(_settle, _Outcome(self._opened, None, None))
        while batch := self._next_batch():
            outcomes, changed = self._transact(db, tree, batch)
            self._tell(self._deliver, outcomes, changed)
        db.close()
        assert self._closing is not None
        self._tell(_settle, _Outcome(self._closing, None, None))

    def _next_batch(self) -> list[_Operation]:
        """What waits now, at least one operation; empty when the store closes. The closing mark
        is the last thing in the queue, so putting it back loses no order."""
        batch: list[_Operation] = []
        operation = self._queue.get()
        while operation is not None:
            batch.append(operation)
            if len(batch) == BATCH_MAX or self._queue.empty():
                return batch
            operation = self._queue.get()
        if batch:
            self._queue.put(None)
        return batch

    def _transact(
        self, db: sqlite3.Connection, tree: SqliteTree, batch: list[_Operation]
    ) -> tuple[list[_Outcome], list[str]]:
        writes = any(operation.writes for operation in batch)
        try:
            db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            outcomes = [_run(tree, operation) for operation in batch]
            db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # the lane lives on; the next one fails too
                db.rollback()
            tree.take_changed()
            failure = _as_metadata_error(self.path, error)
            return [_Outcome(operation.answer, None, failure) for operation in batch], []
        return outcomes, tree.take_changed()

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed without closing the store; nobody listens
            log.warning("metadata store outlives its loop", path=self.path)


def _run(tree: SqliteTree, operation: _Operation) -> _Outcome:
    try:
        return _Outcome(operation.answer, operation.run(tree), None)
    except sqlite3.Error:
        raise  # the disk's fault: the whole transaction fails
    except MetadataError as error:  # its traceback holds this frame, which holds the answer
        return _Outcome(operation.answer, None, error.with_traceback(None))
    except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
        return _Outcome(operation.answer, None, error)


def _settle(outcome: _Outcome) -> None:
    if outcome.answer.done():  # its caller was cancelled
        return
    if outcome.error is not None:
        outcome.answer.set_exception(outcome.error)
    else:
        outcome.answer.set_result(outcome.result)


def _connect(path: str, read_only: bool) -> sqlite3.Connection:
    if path == MEMORY:
        return sqlite3.connect(MEMORY, isolation_level=None)
    if len(os.fsencode(os.path.realpath(path))) > PATH_BYTES_MAX:
        raise MetadataError(
            f"the metadata store {path} has a path of more than {PATH_BYTES_MAX} bytes, which "
            "SQLite does not open; choose a data directory whose path is shorter"
        )
    if not read_only:
        _check_log(path)
    name = f"{Path(path).absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    db = sqlite3.connect(name, isolation_level=None, uri=True, timeout=_BUSY_TIMEOUT_MS / 1000)
    if not read_only:
        for pragma in _PRAGMAS:
            db.execute(pragma)
    return db


def _check_log(path: str) -> None:
    """Before SQLite writes over what is behind the damage. Raises ``MetadataError``."""
    try:
        at = damaged_at(Path(f"{path}-wal"))
    except OSError as error:
        raise _as_metadata_error(path, error) from error
    if at is not None:
        raise MetadataError(
            f"the metadata store {path} is not opened: {path}-wal is damaged at byte {at}, and "
            f"would end there, without the changes that were committed behind it. Restore both "
            f"files from a copy; to go on without those changes, move {path}-wal away"
        )


def _check_sound(path: str, tree: SqliteTree) -> None:
    """Raises ``MetadataError``; ``PATH.believed`` is an operator's word that it is to go on."""
    found = tree.damages()
    if not found:
        return
    believed = Path(f"{path}{BELIEVED}")
    if path == MEMORY or not believed.exists():
        raise MetadataError(
            f"the metadata store {path} is not opened: it is damaged ({'; '.join(found)}). Restore "
            f"it from a copy; to go on with what it says, which is wrong there, create the file "
            f"{believed} and start once more"
        )
    tree.believe()
    believed.unlink()
    log.warning("a damaged metadata store is believed", path=path, damaged=found)


def _as_metadata_error(path: str, error: Exception) -> MetadataError:
    if isinstance(error, MetadataError):
        return error
    return MetadataError(
        f"the metadata store {path} failed: {error}; check that the file is a metadata store, "
        f"that its directory exists and is writable, and that the disk has room"
    )


def _take_lock(path: str) -> int:
    """The descriptor that holds ``PATH.lock``; the kernel releases it when the process ends."""
    lock_path = f"{path}.lock"
    try:
        descriptor = open_locked(lock_path)
        write_owner(descriptor, str(os.getpid()))
    except OSError as error:
        raise MetadataError(
            f"the metadata store {path} cannot be locked: {error.strerror} ({lock_path})"
        ) from error
    except LockHeldError as error:
        raise MetadataError(
            f"the metadata store {path} is open in process {error.owner or 'unknown'} (lock "
            f"{lock_path}); stop that process, or use another data directory"
        ) from error
    return descriptor


def _release_lock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
