"""Records of queries in the metadata store: read, and changed under compare-and-set.

Rule: a change is decided on what was read (``commit_rules``) and written on top of exactly that. A
write that lost, or whose answer was lost, is decided again on what is there then; the rules give
the same answer to whoever asks twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from magnetar.env.metadata import MetadataStore, Versioned
from magnetar.model.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    StagedWriteError,
    StaleRunError,
)
from magnetar.staging.commit_rules import begin_run, is_over
from magnetar.staging.records import (
    ROOT,
    QueryRecord,
    decode_query,
    encode_query,
    query_of,
    query_path,
)

T = TypeVar("T")

RACES_MAX: Final = 200
"""Compare-and-sets that may lose in a row before a change gives up."""

OUTAGES_MAX: Final = 20
OUTAGE_WAIT_S: Final = 0.5
"""The store was out of reach, or its answer was lost: so often it is asked again, so far apart."""


class Queries:
    """All queries of a metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.metadata = metadata

    async def names(self) -> list[str]:
        try:
            return [query_of(segment) for segment in await self.metadata.children(ROOT)]
        except NoNodeError:
            return []

    async def read(self, query: str) -> QueryRecord | None:
        """None if there is no such query. May be a little old; see ``MetadataStore.sync``."""
        path = query_path(query)
        try:
            return decode_query(path, (await self.metadata.get(path)).value)
        except NoNodeError:
            return None

    async def begin(self, query: str, run: str, expires_ms: int = 0) -> QueryRecord:
        """The run may commit from now on, unless another has begun after it: ``StaleRunError``.
        ``expires_ms``: of a record that is new."""

        def decide(record: QueryRecord | None) -> tuple[QueryRecord, QueryRecord | None]:
            begun = begin_run(record, query, run, expires_ms)
            return begun, begun

        return await self._decided(query, decide)

    async def delete_if_over(self, query: str, now_ms: int) -> bool:
        """Delete the record if it may go (``commit_rules.is_over``), as it was read."""
        path = query_path(query)
        try:
            node = await self.metadata.get(path)
            if not is_over(decode_query(path, node.value), now_ms):
                return False
            await self.metadata.delete(path, node.version)
        except (NoNodeError, BadVersionError):
            return False
        return True

    async def change(self, query: str, decide: Callable[[QueryRecord], tuple[T, QueryRecord]]) -> T:
        """Write what ``decide`` makes of the record, and return what else it says. Raises what it
        raises, and ``StagedWriteError`` if the query is gone: nothing but a beginning run makes
        it."""

        def of_one_that_exists(record: QueryRecord | None) -> tuple[T, QueryRecord | None]:
            if record is None:
                raise StagedWriteError(f"there is no query {query}; it was deleted, or never began")
            return decide(record)

        return await self._decided(query, of_one_that_exists)

    async def _decided(
        self, query: str, decide: Callable[[QueryRecord | None], tuple[T, QueryRecord | None]]
    ) -> T:
        outages = 0
        refused = False
        for _ in range(RACES_MAX):
            try:
                return await self._decide_once(query, decide)
            except (BadVersionError, NodeExistsError, NoNodeError):
                await self._sync()  # else an old record could be read, and lose, again
            except StaleRunError:
                if refused:
                    raise
                refused = True  # by a record that may be older than the run
                await self._sync()
            except MetadataUnavailableError:
                outages += 1
                if outages == OUTAGES_MAX:
                    raise
                await asyncio.sleep(OUTAGE_WAIT_S)
        raise StagedWriteError(f"the record of query {query} is changed by many at once; try again")

    async def _sync(self) -> None:
        with contextlib.suppress(MetadataUnavailableError):  # the next read will tell
            await self.metadata.sync()

    async def _decide_once(
        self, query: str, decide: Callable[[QueryRecord | None], tuple[T, QueryRecord | None]]
    ) -> T:
        path, store = query_path(query), self.metadata
        node: Versioned | None = None
        for _ in range(2):
            try:
                node = await store.get(path)
                break
            except NoNodeError:
                await store.sync()  # it may be there, and not be seen yet
        before = None if node is None else decode_query(path, node.value)
        answer, after = decide(before)
        if after is None or after == before:
            return answer
        if node is None:
            await store.create(path, encode_query(after))
        else:
            await store.put(path, encode_query(after), node.version)
        return answer
