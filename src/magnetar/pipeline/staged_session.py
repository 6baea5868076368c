"""What a Spark process keeps between tasks: a ledger client and the metadata store, on a loop in a
thread of their own. One per cluster; it ends with the process."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from magnetar.cluster.topic_name import parse_topic
from magnetar.config import LedgerConfig
from magnetar.env.loop_thread import LoopThread
from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import connect
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.log.managed.records import decode_log, log_path
from magnetar.model.errors import NoNodeError, NoSuchLedgerError
from magnetar.model.ledger import Quorums
from magnetar.staging.queries import Queries

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 15_000
PAYLOAD_BYTES_MAX: Final = 8 << 20
COPIES: Final = 3
COOKIES: Final = f"{DEFAULT_ROOT}/cookies"


class LedgersWith:
    """A ledger client that makes ledgers with these quorums (``staging.seams.StagedLedgers``)."""

    def __init__(self, client: LedgerClient, quorums: Quorums) -> None:
        self._client = client
        self._quorums = quorums
        self.open_no_recovery = client.open_no_recovery
        self.delete = client.delete
        self.read_metadata = client.read_metadata

    async def create(self, custom: Mapping[str, bytes] | None = None) -> LedgerWriter:
        return await self._client.create(custom, quorums=self._quorums)


class StagedSession:
    """Calls wait for their results."""

    def __init__(self, metadata_url: str) -> None:
        self._loop = LoopThread("magnetar-staged", "the connection to metadata and bookies")
        self._parts = AsyncExitStack()
        config = replace(LedgerConfig(), payload_bytes_max=PAYLOAD_BYTES_MAX)
        connecting = connect(metadata_url, config, session_timeout_ms=SESSION_TIMEOUT_MS)
        try:
            self._client = self._loop.run(self._parts.enter_async_context(connecting))
        except BaseException:
            self._loop.end(self._parts.aclose())
            raise
        self.queries = Queries(self._client.metadata)

    def ledgers(self, quorums: Quorums | None, topic: str | None) -> LedgersWith:
        """Makes ledgers with ``quorums``; without, with those of the topic's last ledger, so that
        staged rows are as safe as the topic's; for a topic without ledgers, with ``COPIES``, or as
        many as the cluster has bookies."""
        return LedgersWith(self._client, quorums or self.run(self._quorums_for(topic)))

    async def _quorums_for(self, topic: str | None) -> Quorums:
        found = None if topic is None else await self._quorums_of(topic)
        if found is not None:
            return found
        # Bookies that there ever were, up or not: one that is down makes nothing less safe.
        bookies = len(await self._client.metadata.children(COOKIES))
        size = min(COPIES, max(1, bookies))
        return Quorums(size, size, size // 2 + 1)

    async def _quorums_of(self, topic: str) -> Quorums | None:
        """None if the topic has no ledger yet."""
        name = parse_topic(topic).log_name
        try:
            node = await self._client.metadata.get(log_path(name))
            record = decode_log(name, node.value)
            if not record.ledgers:
                return None
            metadata = await self._client.read_metadata(record.ledgers[-1].ledger_id)
        except (NoNodeError, NoSuchLedgerError):
            return None
        return Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

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
        self._open: dict[str, StagedSession] = {}

    def get(self, metadata_url: str) -> StagedSession:
        with self._lock:
            found = self._open.get(metadata_url)
            if found is None:
                found = self._open[metadata_url] = StagedSession(metadata_url)
            return found


SESSIONS: Final = _Sessions()
