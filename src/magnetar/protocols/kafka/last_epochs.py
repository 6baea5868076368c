"""Leader epochs of logs that are not open here, as Metadata tells them: those of their last
opening, which the metadata store has, one node for each log.

A topic of a thousand partitions costs a thousand reads, and each client asks for all of it when it
starts, and again whenever a leader has moved. So an epoch is kept for ``KEPT_S``, and of one log
one read is under way.

Rules:

* What is told is never later than the log's epoch: it only grows, and a topic that is made anew has
  another id.
* A client passes over an epoch that is older than one that it has seen, and keeps the leader that
  it knows. So an epoch counts for the leader that was there when it was read: where another leads
  now, it is read again.
* That a log was never opened is kept for a moment only: clients that have seen an epoch take it for
  a partition without a leader.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final, NamedTuple

from magnetar.cluster.topic_name import TopicName
from magnetar.env.keyed_locks import KeyedLocks
from magnetar.model.errors import NoSuchLogError
from magnetar.topics.registry import Topics

KEPT_S: Final = 10.0
NEVER_OPENED_KEPT_S: Final = 1.0
KEPT_MAX: Final = 50_000
"""About 300 bytes each."""
NEVER_OPENED: Final = -1


class LeaderOf(NamedTuple):
    topic_id: uuid.UUID
    node_id: int


class KnownEpoch(NamedTuple):
    of: LeaderOf
    epoch: int
    until_s: float


class LastEpochs:
    """See the module's text."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._kept: dict[TopicName, KnownEpoch] = {}
        self._locks: KeyedLocks[TopicName] = KeyedLocks()

    async def of(self, log: TopicName, leader: LeaderOf) -> int:
        """-1: it was never opened, or is not on ledgers. Raises ``MetadataError``."""
        opened = self._topics.find(log)
        if opened is not None:  # and so it is known when it is not any more
            return self._keep(log, leader, opened.log.epoch)
        kept = self._known(log, leader)
        if kept is not None:
            return kept
        async with self._locks.held(log):
            kept = self._known(log, leader)
            if kept is not None:
                return kept
            return self._keep(log, leader, await self._read(log))

    def last(self, log: TopicName, leader: LeaderOf) -> int:
        """As ``of``, by what was known last: nobody is asked."""
        opened, kept = self._topics.find(log), self._kept.get(log)
        if opened is not None:
            return opened.log.epoch
        return kept.epoch if kept is not None and kept.of == leader else NEVER_OPENED

    async def _read(self, log: TopicName) -> int:
        try:
            return await self._topics.last_epoch(log)
        except NoSuchLogError:
            return NEVER_OPENED

    def _known(self, log: TopicName, leader: LeaderOf) -> int | None:
        kept = self._kept.get(log)
        if kept is None or kept.of != leader or kept.until_s <= _now_s():
            return None
        return kept.epoch

    def _keep(self, log: TopicName, leader: LeaderOf, epoch: int) -> int:
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        rest_s = NEVER_OPENED_KEPT_S if epoch == NEVER_OPENED else KEPT_S
        self._kept[log] = KnownEpoch(leader, epoch, _now_s() + rest_s)
        return epoch


def _now_s() -> float:
    return asyncio.get_running_loop().time()
