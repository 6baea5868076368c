"""Records of queries in the metadata store: read, and changed under compare-and-set.

Rules:

* A change is decided on what was read (``commit_rules``) and written on top of exactly that. A
  write that lost, or whose answer was lost, is decided again on what is there then; the rules give
  the same answer to whoever asks twice.
* Who has seen a record a moment ago may decide on that first. It saves the read, and what is
  written has passed the compare-and-set all the same. Nothing else is believed of it: a decision
  that writes nothing, or refuses, is taken again on what is read now.

Why: docs/adr/0184-fewer-questions-on-the-way-of-a-micro-batch.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol, TypeVar

from magnetar.env.metadata import MetadataStore, Versioned
from magnetar.env.node_changes import NodeChanges
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

FIRST_VERSION: Final = 0
"""Of a node that was made."""

OUTAGES_MAX: Final = 20
OUTAGE_WAIT_S: Final = 0.5
"""The store was out of reach, or its answer was lost: so often it is asked again, so far apart."""


class RunBegun(NamedTuple):
    """A run may commit. ``seen``: the record as it stood then."""

    record: QueryRecord
    seen: Versioned


class Changes(Protocol):
    """Of one record, as ``env.node_changes``."""

    async def wait(self, at_most_s: float) -> None: ...


class RecordStore(Protocol):
    """Where records are, by query: the metadata store (``MetadataRecords``), or a broker that has
    one (``pipeline.brokers.staging``). Its methods raise as those of ``MetadataStore``."""

    async def get(self, query: str) -> Versioned: ...

    async def create(self, query: str, value: bytes) -> object:
        """Its version is ``FIRST_VERSION``."""
        ...

    async def put(self, query: str, value: bytes, version: int) -> int:
        """Returns the new version."""
        ...

    async def sync(self) -> None: ...

    def changes(self, query: str) -> AbstractContextManager[Changes]: ...


class MetadataRecords:
    """``RecordStore`` in a metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, query: str) -> Versioned:
        return await self._metadata.get(query_path(query))

    async def create(self, query: str, value: bytes) -> str:
        return await self._metadata.create(query_path(query), value)

    async def put(self, query: str, value: bytes, version: int) -> int:
        return await self._metadata.put(query_path(query), value, version)

    async def sync(self) -> None:
        await self._metadata.sync()

    def changes(self, query: str) -> NodeChanges:
        return NodeChanges(self._metadata, query_path(query))


class QueryRecords:
    """The records of queries: all that drivers and tasks need to know of them."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def read(self, query: str) -> QueryRecord | None:
        """None if there is no such query. May be a little old; see ``MetadataStore.sync``."""
        try:
            return decode_query(query_path(query), (await self._records.get(query)).value)
        except NoNodeError:
            return None

    def changes(self, query: str) -> AbstractContextManager[Changes]:
        """To wait for the next change of the record."""
        return self._records.changes(query)

    async def sync(self) -> None:
        """What is read after this is no older than this call."""
        await self._records.sync()

    async def begin(self, query: str, run: str, expires_ms: int = 0) -> RunBegun:
        """The run may commit from now on, unless another has begun after it: ``StaleRunError``.
        ``expires_ms``: of a record that is new."""

        def decide(record: QueryRecord | None) -> tuple[QueryRecord, QueryRecord | None]:
            begun = begin_run(record, query, run, expires_ms)
            return begun, begun

        record, seen = await self._decided(query, decide)
        assert seen is not None, "a run that begins leaves a record"
        return RunBegun(record, seen)

    async def change(
        self,
        query: str,
        decide: Callable[[QueryRecord], tuple[T, QueryRecord]],
        seen: Versioned | None = None,
    ) -> T:
        """Write what ``decide`` makes of the record, and return what else it says. ``seen``: the
        record as it was a moment ago, to be tried first. Raises what ``decide`` raises, and
        ``StagedWriteError`` if the query is gone: nothing but a beginning run makes it."""
        if seen is not None:
            written = await self._on_top_of(query, seen, decide)
            if written is not None:
                return written[0]

        def of_one_that_exists(record: QueryRecord | None) -> tuple[T, QueryRecord | None]:
            if record is None:
                raise StagedWriteError(f"there is no query {query}; it was deleted, or never began")
            return decide(record)

        answer, _ = await self._decided(query, of_one_that_exists)
        return answer

    async def _on_top_of(
        self,
        query: str,
        seen: Versioned,
        decide: Callable[[QueryRecord], tuple[T, QueryRecord]],
    ) -> tuple[T] | None:
        """What ``decide`` says if its change was written on top of ``seen``, else None: whatever
        was found out by an old record, what is there now is to be asked."""
        before = decode_query(query_path(query), seen.value)
        try:
            answer, after = decide(before)
            if after == before:
                return None
            await self._records.put(query, encode_query(after), seen.version)
        except (StaleRunError, BadVersionError, NoNodeError):
            await self._sync()
            return None
        except MetadataUnavailableError:
            return None  # perhaps it is written: the record will tell
        return (answer,)

    async def _decided(
        self, query: str, decide: Callable[[QueryRecord | None], tuple[T, QueryRecord | None]]
    ) -> tuple[T, Versioned | None]:
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
            await self.sync()

    async def _decide_once(
        self, query: str, decide: Callable[[QueryRecord | None], tuple[T, QueryRecord | None]]
    ) -> tuple[T, Versioned | None]:
        """What ``decide`` says, and the record as it stands then."""
        records = self._records
        node: Versioned | None = None
        for _ in range(2):
            try:
                node = await records.get(query)
                break
            except NoNodeError:
                await records.sync()  # it may be there, and not be seen yet
        before = None if node is None else decode_query(query_path(query), node.value)
        answer, after = decide(before)
        if after is None or after == before:
            return answer, node
        value = encode_query(after)
        if node is None:
            await records.create(query, value)
            return answer, Versioned(value, FIRST_VERSION)
        return answer, Versioned(value, await records.put(query, value, node.version))


class Queries(QueryRecords):
    """All queries of a metadata store, as brokers see them."""

    def __init__(self, metadata: MetadataStore) -> None:
        super().__init__(MetadataRecords(metadata))
        self.metadata = metadata

    async def names(self) -> list[str]:
        try:
            return [query_of(segment) for segment in await self.metadata.children(ROOT)]
        except NoNodeError:
            return []

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
