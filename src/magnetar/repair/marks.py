"""Ledgers that lack copies, as they are marked in the metadata store, and who repairs which.

Owns the nodes below ``underreplication`` (their places and texts:
``wire.bookie.underreplication``). They are BookKeeper's, so that its auditors and workers and ours
do with them the same:

* A ledger's mark names bookies that lack copies. Whoever finds it lacking adds to it; every such
  finding changes the mark's version, also one that adds no name: a worker that has just found the
  ledger whole by what was true before must not take away what was found since.
* A mark goes on the version that it had before the ledger was looked at, and on no other. The
  version alone does not say which mark it is: one that went and was made again begins at 0 as every
  other. So only the holder of the ledger's lock takes a mark away, in the session that holds the
  lock: nobody else can have taken it away since it was read
  (docs/adr/0133-a-mark-goes-under-its-lock.md).
* A mark that cannot be read (it is damaged, or of another release) says that its ledger lacks
  copies, and names nobody: the ledger is repaired, and the mark goes, as of any other. A lock that
  cannot be read is another's.
* A lock is an ephemeral node: it goes with its holder's session, and nobody else takes it away. It
  keeps two workers from doing the same work; what must be true of a ledger's copies does not rest
  on it (docs/adr/0095-repair.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Container
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog

from magnetar.env.metadata import CreateMode, MetadataStore, SessionWrites
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from magnetar.wire.bookie.underreplication import (
    DEPTH,
    DIRECTORY,
    UNREADABLE,
    Shortage,
    check_layout,
    decode_lock,
    decode_shortage,
    encode_layout,
    encode_lock,
    encode_shortage,
    ledger_of_node,
    node_name,
    node_path,
)

log = structlog.get_logger(__name__)

ATTEMPTS = 20
"""Of one change, while others change the same node."""


class ShortageMark(NamedTuple):
    """``bookies``: who lacks copies, as far as its writers knew. ``version`` is to go with
    ``unmark``."""

    bookies: tuple[str, ...]
    since_ms: int
    version: int


class Lock(NamedTuple):
    """A lock that is held, or was, while ``session_id`` lasted. ``holder`` tells others who."""

    ledger_id: int
    holder: str
    session_id: int


class ShortageMarks:
    """Below ``root`` (of the ledgers). All methods may raise ``MetadataError``."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        assert isinstance(store, SessionWrites), "a store of another package"
        self._store = store
        self._sessions: SessionWrites = store
        self.base = f"{root}/{DIRECTORY}"
        self._ledgers = f"{self.base}/ledgers"
        self._locks = f"{self.base}/locks"

    async def initialize(self) -> None:
        """Make what BookKeeper's tools expect to be there. Raises ``MetadataFormatError`` for a
        layout that is not known."""
        for path, value in (
            (f"{self.base}/LAYOUT", encode_layout()),
            (self._ledgers, b""),
            (self._locks, b""),
        ):
            try:
                await self._store.create(path, value)
            except NodeExistsError:
                continue
        layout = f"{self.base}/LAYOUT"
        check_layout((await self._store.get(layout)).value, layout)

    # -- marks --------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, bookies: Collection[str], now_ms: int) -> bool:
        """``bookies`` lack copies of the ledger. Returns whether it was not marked before."""
        path = self._ledgers + node_path(ledger_id)
        for _ in range(ATTEMPTS):
            known = await self.read(ledger_id)
            try:
                if known is None:
                    value = encode_shortage(Shortage(tuple(bookies), now_ms))
                    await self._store.create(path, value)
                    return True
                names = tuple(dict.fromkeys((*known.bookies, *bookies)))
                value = encode_shortage(Shortage(names, known.since_ms or now_ms))
                await self._store.put(path, value, known.version)  # also if it says no more
                return False
            except (NodeExistsError, NoNodeError, BadVersionError):
                continue
        raise MetadataError(f"{path} changed {ATTEMPTS} times while it was written; try again")

    async def read(self, ledger_id: int) -> ShortageMark | None:
        """None: the ledger is not marked. One that cannot be read names nobody."""
        path = self._ledgers + node_path(ledger_id)
        try:
            found = await self._store.get(path)
        except NoNodeError:
            return None
        try:
            shortage = decode_shortage(found.value, path)
        except MetadataFormatError as error:
            log.warning("the mark of a ledger that lacks copies names nobody", error=str(error))
            shortage = Shortage(())
        return ShortageMark(shortage.bookies, shortage.since_ms, found.version)

    async def unmark(self, lock: Lock, version: int) -> bool:
        """The ledger is whole. False: it was marked again since ``version`` was read, under the
        lock, and stays marked. Raises ``SessionExpiredError`` if the lock has gone with its
        session: another worker may have taken away the mark that was read, and the one that is
        there be a new one."""
        path = self._ledgers + node_path(lock.ledger_id)
        try:
            await self._sessions.delete_within(lock.session_id, path, version)
        except BadVersionError:
            return False
        except NoNodeError:
            return True
        for _ in range(DEPTH):
            path = path.rpartition("/")[0]
            try:
                await self._store.delete(path)
            except MetadataError:
                break  # in use, or gone; an empty one left behind is no harm
        return True

    async def ledgers(self) -> AsyncIterator[int]:
        """The ids of all that are marked, ascending, a directory in memory at a time."""
        async for ledger_id in self._walk(self._ledgers, DEPTH):
            yield ledger_id

    async def _walk(self, path: str, depth: int) -> AsyncIterator[int]:
        try:
            names = await self._store.children(path)
        except NoNodeError:
            return  # pruned meanwhile
        for name in names:
            if depth > 0:
                async for ledger_id in self._walk(f"{path}/{name}", depth - 1):
                    yield ledger_id
            elif (found := ledger_of_node(name)) is not None:
                yield found

    # -- locks --------------------------------------------------------------------------------

    async def lock(self, ledger_id: int, holder: str) -> Lock | None:
        """Be the one who repairs the ledger; None: somebody is. ``holder`` tells others who."""
        path = self._lock(ledger_id)
        # Before the node is made: it can then not be of an earlier session.
        lock = Lock(ledger_id, holder, await self._sessions.session_id())
        try:
            await self._store.create(path, encode_lock(holder), CreateMode.EPHEMERAL)
        except NodeExistsError:
            # Ours, from an attempt whose answer was lost, or another's.
            return lock if await self.holder(ledger_id) == holder else None
        return lock

    async def unlock(self, lock: Lock) -> None:
        """Let others repair it; another's lock is left alone. Idempotent."""
        if await self.holder(lock.ledger_id) == lock.holder:
            try:
                # It may be another's as soon as our session is over.
                path = self._lock(lock.ledger_id)
                await self._sessions.delete_within(lock.session_id, path)
            except (NoNodeError, SessionExpiredError):
                return  # gone, or gone with its session

    async def holder(self, ledger_id: int) -> str | None:
        """Who repairs the ledger; None: nobody; ``UNREADABLE``: somebody else."""
        path = self._lock(ledger_id)
        try:
            return decode_lock((await self._store.get(path)).value, path)
        except NoNodeError:
            return None
        except MetadataFormatError:
            return UNREADABLE

    async def locked(self) -> dict[int, None]:
        """The ledgers that somebody repairs now."""
        try:
            names = await self._store.children(self._locks)
        except NoNodeError:
            return {}
        found = (ledger_of_node(name) for name in names)
        return {ledger_id: None for ledger_id in found if ledger_id is not None}

    def _lock(self, ledger_id: int) -> str:
        return f"{self._locks}/{node_name(ledger_id)}"


class HeldLocks:
    """The locks of one holder. ``perhaps``: of ledgers whose lock may be ours: the store did not
    answer when it was taken, or given up. Nobody else repairs those until our session is over."""

    def __init__(self, marks: ShortageMarks, holder: str) -> None:
        self.perhaps: dict[int, None] = {}
        self._marks = marks
        self._holder = holder

    @asynccontextmanager
    async def held(self, ledger_id: int) -> AsyncIterator[Lock | None]:
        """None: somebody else has it. Raises ``MetadataError``: then it may be held still."""
        self.perhaps[ledger_id] = None
        lock = await self._marks.lock(ledger_id, self._holder)
        if lock is None:
            del self.perhaps[ledger_id]
            yield None
            return
        try:
            yield lock
        finally:
            await self._marks.unlock(lock)
            del self.perhaps[ledger_id]

    async def let_go(self, but: Container[int] = ()) -> None:
        """Of what may be held still, ``but`` those. Raises ``MetadataError``."""
        for ledger_id in [each for each in self.perhaps if each not in but]:
            if await self._marks.holder(ledger_id) == self._holder:
                lock = await self._marks.lock(ledger_id, self._holder)
                if lock is not None:
                    await self._marks.unlock(lock)
            del self.perhaps[ledger_id]
