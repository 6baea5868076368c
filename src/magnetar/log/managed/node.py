"""One metadata record under compare-and-set, and what losing it means.

Rule: the record has one owner at a time. Whoever opens it writes it first (a new epoch), so that
the former owner's next write loses and tells it so: ``LogFencedError``. Two that open it at once
may write the same bytes, so a first write that loses is never taken for ours. A later write whose
outcome is unknown (the store's connection broke) is looked up before the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    LogFencedError,
    NodeExistsError,
    NoNodeError,
)

R = TypeVar("R")


class RecordNode(Generic[R]):
    """The node at ``path``; ``record`` is what this process last read or wrote there."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        encode: Callable[[R], bytes],
        record: R,
        version: int,
    ) -> None:
        self.path = path
        self.record = record
        self._store = store
        self._encode = encode
        self._version = version
        self._owned = False  # this process wrote the record
        self._attempted: R | None = None  # the last write, while its outcome is unknown
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
        try:
            value, version = await store.get(path)
        except NoNodeError:
            if initial is None:
                raise
            with contextlib.suppress(NodeExistsError):  # ours, answered late, or another's
                await store.create(path, encode(initial))
            value, version = await store.get(path)
        return cls(store, path, encode, decode(value), version)

    async def update(self, change: Callable[[R], R]) -> R:
        """Write ``change(record)``. Raises ``LogFencedError`` if somebody else wrote."""
        async with self._lock:
            if self._attempted is not None:
                await self._resolve()
            wanted = change(self.record)
            self._attempted = wanted
            try:
                self._version = await self._store.put(
                    self.path, self._encode(wanted), self._version
                )
            except BadVersionError:
                if not self._owned:
                    raise self._fenced() from None
                await self._resolve()
                if self.record is not wanted:
                    raise self._fenced() from None
            except NoNodeError:
                raise self._fenced() from None
            self.record = wanted
            self._owned = True
            self._attempted = None
            return wanted

    async def _resolve(self) -> None:
        """Find out whether the attempted write arrived."""
        attempted = self._attempted
        assert attempted is not None
        try:
            value, version = await self._store.get(self.path)
        except NoNodeError:
            raise self._fenced() from None
        if version == self._version + 1 and value == self._encode(attempted):
            self.record, self._version = attempted, version
        elif version != self._version:
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
                value, version = await self._store.get(self.path)
                if version != self._version or value != self._encode(self.record):
                    raise self._fenced()
                await self._store.delete(self.path, version)
            except NoNodeError:
                return
            except BadVersionError:
                raise self._fenced() from None
