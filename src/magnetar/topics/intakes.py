"""What queries have committed is taken into the topics that this broker serves.

One node per query says what is to be taken in (``staging.records``). Each is watched, by a task of
its own: it takes in a query's batches one after the other, the topics of a batch at once, and says
so in the record when a topic's share is confirmed. The last of them deletes the staged ledgers.

* A watch is told of at least once after the last change, a lost session included; besides, all is
  looked at again every ``LOOK_AGAIN_S``.
* A record that was written through this broker is told at once, as it stands then (``told``); the
  watch would come a moment later, and a read after it. It is taken in only by who waits: whoever
  is in the middle of an older one reads what is there afterwards.
* What fails is tried again, later each time. A topic whose append failed is opened again first.
* Topics of other brokers are theirs to take in. A query's node may be read late, or by two brokers:
  what is in the log already is known from the log (``intake``).
* A share for a topic that does not exist makes it, as a producer would.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from magnetar.cluster.ownership import Ownership
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.node_changes import NodeChanges
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import LogClosedError, MagnetarError, ServiceNotReadyError
from magnetar.staging.commit_rules import collected, taken_in
from magnetar.staging.queries import Queries
from magnetar.staging.reading import StagedReading
from magnetar.staging.records import ROOT, Commit, QueryRecord, decode_query, query_path
from magnetar.topics.quota_keeping import check_quota
from magnetar.topics.registry import Topics

log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 20.0
RETRY_FIRST_S: Final = 0.2
RETRY_S_MAX: Final = 10.0


class _Idle:
    """A query whose last record is taken in: what wakes it, and the record that did."""

    def __init__(self, changes: NodeChanges) -> None:
        self._changes = changes
        self.told: QueryRecord | None = None

    def wake(self, record: QueryRecord) -> None:
        self.told = record
        self._changes.wake()


class Intakes:
    """Of one broker."""

    def __init__(
        self,
        queries: Queries,
        reading: StagedReading,
        topics: Topics,
        ownership: Ownership,
        scope: TaskScope,
    ) -> None:
        self._queries = queries
        self._reading = reading
        self._topics = topics
        self._ownership = ownership
        self._scope = scope
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._keys: dict[str, str] = {}
        self._idle: dict[str, _Idle] = {}

    async def run(self) -> None:
        """Serve every query there is, until cancelled."""
        with NodeChanges(self._queries.metadata, ROOT) as changes:
            while True:
                try:
                    names = await self._queries.names()
                except MagnetarError as error:
                    log.warning("staged writes cannot be listed", error=str(error))
                    await changes.wait(RETRY_S_MAX)
                    continue
                for name in names:
                    if name not in self._serving:
                        self._serve_from_now(name)
                await changes.wait(LOOK_AGAIN_S)

    def _serve_from_now(self, query: str) -> None:
        serving = self._scope.spawn(self._serve(query), f"staged writes of {query}")
        self._serving[query] = serving
        serving.add_done_callback(lambda _: self._serving.pop(query, None))

    def told(self, query: str, value: bytes) -> None:
        """The query's record was written, and is ``value`` now. Raises ``StagedWriteError`` for
        bytes that are no record."""
        idle = self._idle.get(query)
        if idle is not None:
            idle.wake(decode_query(query_path(query), value))

    async def _serve(self, query: str) -> None:
        """Until the query is gone."""
        retry_s = RETRY_FIRST_S
        told: QueryRecord | None = None
        with NodeChanges(self._queries.metadata, query_path(query)) as changes:
            while True:
                try:
                    record = told or await self._read(query)
                    self._forget(query, record)
                    if record is None:
                        return
                    await self._take_in(query, record)
                    retry_s = RETRY_FIRST_S
                    wait_s = LOOK_AGAIN_S
                except MagnetarError as error:
                    log.warning("not taken in yet", query=query, error=str(error))
                    wait_s, retry_s = retry_s, min(retry_s * 2, RETRY_S_MAX)
                told = await self._wait(query, changes, wait_s)

    async def _wait(self, query: str, changes: NodeChanges, at_most_s: float) -> QueryRecord | None:
        """Until the record may have changed; the record if it was told, and is the last one."""
        idle = self._idle[query] = _Idle(changes)
        try:
            await changes.wait(at_most_s)
        finally:
            del self._idle[query]
        if idle.told is not None:
            changes.wake()  # the store may have told of a later one in the same moment
        return idle.told

    async def _read(self, query: str) -> QueryRecord | None:
        """None only if it is gone for certain."""
        record = await self._queries.read(query)
        if record is None:
            await self._queries.metadata.sync()
            record = await self._queries.read(query)
        return record

    def _forget(self, query: str, record: QueryRecord | None) -> None:
        """What topics know of the query, and of those that had its name before."""
        key = None if record is None else record.key(query)
        if key is None or self._keys.get(query) != key:
            for topic in self._topics.loaded():
                topic.intake.forget(query, key)
        if key is None:
            self._keys.pop(query, None)
        else:
            self._keys[query] = key

    async def _take_in(self, query: str, record: QueryRecord) -> None:
        elsewhere: set[str] = set()
        for commit in record.commits:
            await self._take_commit(query, record.key(query), commit, elsewhere)
        if record.garbage:
            await self._collect(query, record.garbage)

    async def _take_commit(self, query: str, key: str, commit: Commit, elsewhere: set[str]) -> None:
        """The topics of a batch at once; the next batch only when all have theirs. A topic that
        is another broker's is so for the batches after it too (``elsewhere``), also if it comes
        here meanwhile: a topic that has a later batch takes in no earlier one any more."""
        here = [topic for topic in commit.shares if topic not in elsewhere]
        shares = (self._take(query, key, commit, topic) for topic in here)
        outcomes = await asyncio.gather(*shares, return_exceptions=True)  # each to its end
        for topic, outcome in zip(here, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if not outcome:
                elsewhere.add(topic)

    async def _take(self, query: str, key: str, commit: Commit, topic_name: str) -> bool:
        """False: it is another broker's topic, which takes it in."""
        name = parse_topic(topic_name)
        try:
            await self._ownership.claim(name)  # nobody else may ever ask for it
        except ServiceNotReadyError:
            return False
        topic = await self._topics.get(name, create=True)
        with topic.held():
            topic.check_takes()
            # An append that fails for want of space would end the topic, for its readers too.
            await self._topics.check_space(topic)
            await check_quota(topic)
            try:
                await topic.intake.take(key, commit, self._reading)
            except MagnetarError as error:
                lost = isinstance(error, LogClosedError)
                if lost or topic.intake.broken is not None:
                    topic.fail(error)
                raise
        ledgers = await self._queries.change(
            query, partial(_without_share, commit.batch, topic_name)
        )
        if ledgers:
            await self._collect(query, ledgers)
        return True

    async def _collect(self, query: str, ledger_ids: tuple[int, ...]) -> None:
        """Delete, then forget: what is not deleted stays named."""
        for ledger_id in ledger_ids:
            await self._reading.delete(ledger_id)
        await self._queries.change(query, lambda record: (None, collected(record, ledger_ids)))


def _without_share(
    batch: int, topic: str, record: QueryRecord
) -> tuple[tuple[int, ...], QueryRecord]:
    after = taken_in(record, batch, topic)
    return after.garbage, after
