"""One metadata record under compare-and-set, and what losing it means.

Rule: the record has one owner at a time. Whoever opens it writes it first (a new epoch), so that
the former owner's next write loses and tells it so: ``LogFencedError``. Versions of a log that is
deleted and made again begin at 0 anew, so that a former owner's could fit: a write goes out in the
metadata session in which the record was opened, with which ownership ends, or not at all. Two that
open it at once may write the same bytes, so a first write that loses is never taken for ours. A
later write whose outcome is unknown (the store's connection broke) is looked up before the next.

A node without bytes is no record: it was made as the parent of another, by who did not know yet
that the record was deleted.

Why: docs/adr/0136-records-are-written-in-their-session.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from magnetar.env.metadata import MetadataStore, Versioned, has_session_writes
from magnetar.model.errors import (
    BadVersionError,
    LogFencedError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)

R = TypeVar("R")


async def session_of(store: MetadataStore) -> int | None:
    """In which what is read now may be written; None: the store has no sessions."""
    return await store.session_id() if has_session_writes(store) else None


async def stored_record(store: MetadataStore, path: str) -> Versioned:
    """The bytes of the record at ``path``. Raises ``NoNodeError``."""
    stored = await store.get(path)
    if not stored.value:
        raise NoNodeError(f"{path} has no record")
    return stored


class RecordNode(Generic[R]):
    """The node at ``path``; ``record`` is what this process last read or wrote there."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        encode: Callable[[R], bytes],
        record: R,
        stored: Versioned,
        session_id: int | None = None,
    ) -> None:
        self.path = path
        self._session_id = session_id
        self.record = record
        self._store = store
        self._encode = encode
        self._stored = stored  # the bytes of ``record``, which need not encode to the same again
        self._owned = False  # this process wrote the record
        self._attempted: tuple[R, bytes] | None = None  # the last write, while it is in doubt
        self._lock = asyncio.Lock()

    @classmethod
    async def load_or_create(
        cls,
        store: MetadataStore,
        path: str,
        encode: Callable[[R], bytes],
        decode: Callable[[bytes], R],
        initial: R | None,
    ) -> RecordNode[R]:
        """Read the node; create it with ``initial`` if it does not exist (``NoNodeError`` when
        there is none)."""
        session_id = await session_of(store)
        try:
            stored = await stored_record(store, path)
        except NoNodeError:
            if initial is None:
                raise
            return await cls.create(store, path, encode, decode, initial)
        return cls(store, path, encode, decode(stored.value), stored, session_id)

    @classmethod
    async def create(
        cls,
        store: MetadataStore,
        path: str,
        encode: Callable[[R], bytes],
        decode: Callable[[bytes], R],
        initial: R,
        taken: bool = False,
    ) -> RecordNode[R]:
        """Make the node with ``initial``; one that is there after all is read. ``taken``: it is
        made as its owner's, with an epoch that nobody who takes it over writes, and need not be
        taken over by who has made it (``owned``). Raises ``NoNodeError`` if there is a node without
        a record."""
        session_id = await session_of(store)
        stored = Versioned(encode(initial), 0)
        try:
            await store.create(path, stored.value)
        except NodeExistsError:  # ours, answered late, or another's
            stored = await stored_record(store, path)
            return cls(store, path, encode, decode(stored.value), stored, session_id)
        node = cls(store, path, encode, decode(stored.value), stored, session_id)
        # One of a later session was made when ownership had ended: its first write says so.
        node._owned = taken and await session_of(store) == session_id
        return node

    @property
    def owned(self) -> bool:
        """This process wrote the record: others lose by it."""
        return self._owned

    @property
    def stored(self) -> Versioned | None:
        """What the node holds, as this process last read or wrote it; None while that is in
        doubt."""
        return self._stored if self._attempted is None else None

    async def update(self, change: Callable[[R], R]) -> R:
        """Write ``change(record)``. Raises ``LogFencedError`` if somebody else wrote."""
        async with self._lock:
            if self._attempted is not None:
                await self._resolve()
            wanted = change(self.record)
            value = self._encode(wanted)
            self._attempted = wanted, value
            try:
                version = await self._put(value)
            except SessionExpiredError:
                raise self._fenced() from None
            except BadVersionError:
                if not self._owned:
                    raise self._fenced() from None
                await self._resolve()
                if self.record is not wanted:
                    raise self._fenced() from None
            except NoNodeError:
                raise self._fenced() from None
            else:
                self._written(wanted, Versioned(value, version))
            return wanted

    async def _put(self, value: bytes) -> int:
        version = self._stored.version
        if self._session_id is None or not has_session_writes(self._store):
            return await self._store.put(self.path, value, version)
        return await self._store.put_within(self._session_id, self.path, value, version)

    async def confirm_owned(self) -> None:
        """Raises ``LogFencedError`` if somebody else has written the record, or deleted it."""
        async with self._lock:
            if self._attempted is not None:
                await self._resolve()
            try:
                stored = await self._store.get(self.path)
            except NoNodeError:
                raise self._fenced() from None
            if stored != self._stored:
                raise self._fenced()

    def _written(self, record: R, stored: Versioned) -> None:
        self.record, self._stored = record, stored
        self._attempted = None
        self._owned = True

    async def _resolve(self) -> None:
        """Find out whether the attempted write arrived."""
        assert self._attempted is not None
        attempted, value = self._attempted
        try:
            stored = await self._store.get(self.path)
        except NoNodeError:
            raise self._fenced() from None
        if stored == Versioned(value, self._stored.version + 1):
            self._written(attempted, stored)
        elif stored.version != self._stored.version:
            raise self._fenced()
        self._attempted = None

    def _fenced(self) -> LogFencedError:
        return LogFencedError(f"{self.path} was written by another broker, which owns it now")

    async def delete(self) -> None:
        """Delete the node; it is no error if it is gone. Raises ``LogFencedError`` when somebody
        else wrote it, or deleted it and made a new one: versions begin again at 0, so the value
        is looked at as well."""
        async with self._lock:
            try:
                if await self._store.get(self.path) != self._stored:
                    raise self._fenced()
                await self._store.delete(self.path, self._stored.version)
            except NoNodeError:
                return
            except BadVersionError:
                raise self._fenced() from None
