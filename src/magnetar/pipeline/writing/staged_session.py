"""What a Spark process keeps between tasks: who answers for metadata, and a ledger client, on a
loop in a thread of their own. One per cluster; it ends with the process.

Metadata are asked of the brokers (``brokers/staging.py``), or of the store itself if its address is
given; entries go to the bookies either way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from magnetar.cluster.topic_name import parse_topic
from magnetar.config import LedgerConfig
from magnetar.env.loop_thread import LoopThread
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.ledger.client import CatalogClient, LedgerClient
from magnetar.ledger.connecting import connect, open_by_catalog
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.log.managed.quorums import quorums_of_logs
from magnetar.model.errors import NoSpaceError, NotEnoughBookiesError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.brokers.connection import PORTS, parse_service_urls
from magnetar.pipeline.brokers.link import BrokerLink
from magnetar.pipeline.brokers.staging import (
    BrokerBookies,
    BrokerCatalog,
    query_records,
    quorums_told,
)
from magnetar.staging.queries import Queries, QueryRecords

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 15_000
PATIENCE_MS: Final = 60_000
BOOKIES_PAUSE_S: Final = 0.5
PAYLOAD_BYTES_MAX: Final = 8 << 20
COPIES: Final = 3
COOKIES: Final = f"{DEFAULT_ROOT}/cookies"


class LedgersWith:
    """A ledger client that makes ledgers with the quorums that ``quorums`` tells when the first is
    made (``staging.seams.StagedLedgers``): few rows need none. A bookie that restarts is waited
    for: of three with three copies each, the others do not do, and neither the engine nor its user
    would try again."""

    def __init__(
        self, client: CatalogClient, quorums: Callable[[], Awaitable[Quorums]], patience_s: float
    ) -> None:
        self._client = client
        self._quorums = quorums
        self._patience_s = patience_s
        self.delete = client.delete

    async def create(self, custom: Mapping[str, bytes] | None = None) -> LedgerWriter:
        quorums = await self._quorums()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience_s
        while True:
            try:
                return await self._client.create(custom, quorums=quorums)
            except NotEnoughBookiesError as error:
                # Those that are full stay so.
                if isinstance(error, NoSpaceError) or clock() + BOOKIES_PAUSE_S > deadline:
                    raise
            await asyncio.sleep(BOOKIES_PAUSE_S)


class ClusterReach(Protocol):
    """Who answers. ``quorums_for(topic)``: those of the topic's last ledger, so that what is
    written beside it is as safe as it; for a topic without, or none, what is usual in the cluster.
    """

    @property
    def queries(self) -> QueryRecords: ...

    @property
    def client(self) -> CatalogClient: ...

    async def quorums_for(self, topic: str | None) -> Quorums: ...


class _ByBrokers:
    """Implements ``ClusterReach``."""

    def __init__(
        self, service_url: str, patience_ms: int, parts: AsyncExitStack, config: LedgerConfig
    ) -> None:
        self._link = BrokerLink(parse_service_urls(service_url), patience_ms / 1000)
        parts.callback(self._link.close)
        self.queries = query_records(self._link)
        catalog, bookies = BrokerCatalog(self._link), BrokerBookies(self._link)
        self.client = open_by_catalog(parts, catalog, bookies, config)

    async def quorums_for(self, topic: str | None) -> Quorums:
        return await quorums_told(self._link, topic)


class _ByMetadata:
    """Implements ``ClusterReach``."""

    def __init__(self, client: LedgerClient) -> None:
        self.client = client
        self.queries = Queries(client.metadata)

    async def quorums_for(self, topic: str | None) -> Quorums:
        names = () if topic is None else parse_topic(topic).first_logs
        found = await quorums_of_logs(self.client.metadata, self.client, names)
        if found is not None:
            return found
        # Bookies that there ever were, up or not: one that is down makes nothing less safe.
        bookies = len(await self.client.metadata.children(COOKIES))
        size = min(COPIES, max(1, bookies))
        return Quorums(size, size, size // 2 + 1)


async def _open(url: str, patience_ms: int, parts: AsyncExitStack) -> ClusterReach:
    config = replace(LedgerConfig(), payload_bytes_max=PAYLOAD_BYTES_MAX)
    if url.partition("://")[0] in PORTS:
        return _ByBrokers(url, patience_ms, parts, config)
    connecting = connect(url, config, session_timeout_ms=SESSION_TIMEOUT_MS)
    return _ByMetadata(await parts.enter_async_context(connecting))


class StagedSession:
    """Calls wait for their results. ``url``: of the cluster's brokers (``pulsar://``,
    ``pulsar+ssl://``), or of its metadata store. Brokers and bookies are waited for as long as
    ``patience_ms``."""

    def __init__(self, url: str, patience_ms: int = PATIENCE_MS) -> None:
        self._loop = LoopThread("magnetar-staged", "the connection to the cluster and its bookies")
        self._parts = AsyncExitStack()
        self._patience_s = patience_ms / 1000
        try:
            self._cluster = self._loop.run(_open(url, patience_ms, self._parts))
        except BaseException:
            self._loop.end(self._parts.aclose())
            raise
        self.queries = self._cluster.queries

    @property
    def client(self) -> CatalogClient:
        """On the session's loop (``run``)."""
        return self._cluster.client

    def ledgers(self, quorums: Quorums | None, topic: str | None) -> LedgersWith:
        """Makes ledgers with ``quorums``; without, with those of ``ClusterReach.quorums_for``."""

        async def chosen() -> Quorums:
            return quorums or await self._cluster.quorums_for(topic)

        return LedgersWith(self._cluster.client, chosen, self._patience_s)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(call)

    def begin(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        return self._loop.begin(call)

    def result_of(self, call: Future[T]) -> T:
        return self._loop.result_of(call)

    def close(self) -> None:
        self._loop.end(self._parts.aclose())


class _Sessions:
    """Those of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], StagedSession] = {}

    def get(self, url: str, patience_ms: int) -> StagedSession:
        with self._lock:
            found = self._open.get((url, patience_ms))
            if found is None:
                found = self._open[url, patience_ms] = StagedSession(url, patience_ms)
            return found


SESSIONS: Final = _Sessions()
