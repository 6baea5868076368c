"""A consumer in a share group (KIP-932), as the official client is: it is told by heartbeats which
partitions to read, fetches them by a share session at each leader, and says of every record what
has become of it, with the next fetch or by itself.

It accepts most records, gives some back, rejects a few, and now and then says nothing of what it
was given, until its locks are over. A session begins anew when a leader does not know it, and when
its connection is gone; what it held is another's then.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import split
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.records import read_batch
from magnetar.wire.kafka.share_fetch_messages import (
    CLOSE_EPOCH,
    OPEN_EPOCH,
    AcknowledgedBatch,
    AcknowledgeType,
    ForgottenSharedTopic,
    ShareAcknowledgeRequest,
    SharedPartition,
    SharedTopic,
    ShareFetchedPartition,
    ShareFetchRequest,
)
from magnetar_sim.kafka.kafka_client import REQUEST_S, KafkaClient, Place
from magnetar_sim.kafka.kafka_history import KafkaHistory
from magnetar_sim.kafka.kafka_link import KafkaLink, LinkError
from magnetar_sim.kafka.kafka_reader import AGAIN, shown_of
from magnetar_sim.kafka.share_history import Record, ShareHistory
from magnetar_sim.kafka.share_membership import ShareMembership

VERSION: Final = 1
LANE: Final = "share"
NO_SESSION: Final = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
)
SETTLES: Final = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
_Said = dict[Place, list[tuple[int, AcknowledgeType]]]
"""Offsets, and what has become of them."""
PARTITION_AGAIN: Final = (*AGAIN, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True)
class SharePlan:
    """``releases``, ``rejects``: how likely of a record; ``silent``: of all that a fetch gave;
    ``apart``: that it acknowledges by a request of its own; ``leaves``: after a turn."""

    topics: tuple[str, ...]
    records_max: int
    bytes_max: int
    batch_size: int
    wait_ms: int
    think_s: float
    releases: float
    rejects: float
    silent: float
    apart: float
    leaves: float


@dataclass(eq=False)
class ShareSessionAt:
    """At one leader. ``epoch``: of its next request."""

    link: KafkaLink
    epoch: int = OPEN_EPOCH
    places: frozenset[Place] = frozenset()
    said: _Said = field(default_factory=dict)
    """What it has not been told yet."""

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch - 1


class ShareConsumer:
    """``over``: it leaves for good."""

    def __init__(
        self,
        client: KafkaClient,
        history: KafkaHistory,
        share: ShareHistory,
        name: str,
        plan: SharePlan,
    ) -> None:
        self.client = client
        self.name = name
        self.over = False
        self.ended = False
        self.share = share
        self.member = ShareMembership(client, history, share.name, name, plan.topics)
        self._history = history
        self._plan = plan
        self._sessions: dict[KafkaLink, ShareSessionAt] = {}

    @property
    def settled(self) -> bool:
        return self.ended or not self.client.host.process.alive

    @property
    def _now_s(self) -> float:
        return self.client.loop.time()

    async def run(self) -> None:
        beats = self.client.host.process.spawn(self.member.beat(), f"{self.name} beats")
        while not self.over:
            await self._turn()
            if self.client.random.random() < self._plan.leaves:
                await self._leave()
                await asyncio.sleep(self.client.random.uniform(0.05, 1.0))
                self.member.comes_back()
        await self._leave()
        beats.cancel()
        self.ended = True

    async def _leave(self) -> None:
        for session in list(self._sessions.values()):
            await self._acknowledge(session, closes=True)
        self._sessions = {}
        await self.member.leave()

    # -- one look at all leaders --------------------------------------------------------------

    async def _turn(self) -> None:
        by_link: dict[KafkaLink, set[Place]] = {}
        for place in sorted(self.member.places):
            with suppress(LinkError):
                link = await self.client.at_leader(place, LANE)
                by_link.setdefault(link, set()).add(place)
        for link in [link for link in self._sessions if link.gone]:
            del self._sessions[link]
        for link in [link for link in self._sessions if link not in by_link]:
            await self._acknowledge(self._sessions.pop(link), closes=True)
        if not by_link:
            await self.client.pause()
        for link, places in by_link.items():
            session = self._sessions.get(link)
            if session is None:
                session = self._sessions[link] = ShareSessionAt(link)
            if session.said and self.client.random.random() < self._plan.apart:
                await self._acknowledge(session, closes=False)
            await self._fetch(session, frozenset(places))

    async def _fetch(self, session: ShareSessionAt, places: frozenset[Place]) -> None:
        plan, asked_s = self._plan, self._now_s
        ids = await self.client.topic_ids(plan.topics)
        opens = session.epoch == OPEN_EPOCH
        said, session.said = session.said, {}
        request = ShareFetchRequest(
            self.share.name, self.member.member_id, session.next_epoch(), plan.wait_ms, 1,
            plan.bytes_max, plan.records_max, plan.batch_size,
        )  # fmt: skip
        assert not (opens and said), "who opens a session has nothing to say"
        request.topics = _topics(ids, (places - session.places) | said.keys(), said)
        for name, index in sorted(session.places - places):
            request.forgotten.append(ForgottenSharedTopic(ids[name], [index]))
        session.places = places
        answer = await self._ask(session, ApiKey.SHARE_FETCH, request, said, plan.wait_ms / 1000)
        if answer is None:
            return
        names = {topic_id: name for name, topic_id in ids.items()}
        parts = {
            (names[topic.topic_id], part.index): part
            for topic in answer.topics
            for part in topic.partitions
        }
        self._hear(said, {at: part.acknowledge_error_code for at, part in parts.items()})
        given = [
            (place, offset)
            for place, part in parts.items()
            for offset in self._take(place, part, asked_s)
        ]
        if any(part.error_code for part in parts.values()):
            await self.client.pause()
        await self._do(session, given)

    def _take(self, place: Place, said: ShareFetchedPartition, asked_s: float) -> list[int]:
        """Offsets that it has acquired, those without a record as well (-1 - offset)."""
        if said.error_code != ErrorCode.NONE:
            self.client.note(f"{self.name} fetches {place}: {said.error_code} {said.error_message}")
            if said.error_code == ErrorCode.CORRUPT_MESSAGE and not self._history.healed:
                self._history.count("reads that disks have failed")  # of an entry's only copy
            elif said.error_code not in PARTITION_AGAIN:
                what = f"{said.error_code} ({said.error_message})"
                self._history.broken(f"{self.name} is told {what} of {place}")
            self.client.moved(place)
            return []
        acquired = {
            offset: run.delivery_count
            for run in said.acquired
            for offset in range(run.first_offset, run.last_offset + 1)
        }
        records = said.records
        assert records is None or isinstance(records, memoryview | bytes)
        found: set[int] = set()
        for batch in split(memoryview(records or b"")):
            header, parsed = read_batch(batch)
            for record in parsed:
                offset = header.base_offset + record.offset_delta
                if offset not in acquired:
                    continue
                shown = shown_of(header, record, record.value or b"")
                written = self._history.show(place, offset, shown, self.name)
                if written is not None and self.share.committed:
                    self._history.commit(written, self.name)
                self.share.deliver((place, offset), acquired[offset], asked_s, self.name)
                found.add(offset)
        return [offset if offset in found else -1 - offset for offset in acquired]

    async def _do(self, session: ShareSessionAt, given: Sequence[tuple[Place, int]]) -> None:
        """What it says of each is told with its next request to that leader."""
        rng, plan = self.client.random, self._plan
        if not given:
            return
        await asyncio.sleep(self._history.think_s(plan.think_s) * rng.uniform(0.5, 1.5))
        if rng.random() < plan.silent:
            self._history.count("fetches of share groups of which nothing is said")
            return
        for place, offset in given:
            if offset < 0:
                session.said.setdefault(place, []).append((-1 - offset, AcknowledgeType.GAP))
                continue
            lot = rng.random()
            how = AcknowledgeType.ACCEPT
            if lot < plan.releases:
                how = AcknowledgeType.RELEASE
            elif lot < plan.releases + plan.rejects:
                how = AcknowledgeType.REJECT
            session.said.setdefault(place, []).append((offset, how))

    # -- what it says -------------------------------------------------------------------------

    async def _acknowledge(self, session: ShareSessionAt, closes: bool) -> None:
        if session.link.gone or session.epoch == OPEN_EPOCH:
            return
        ids = await self.client.topic_ids(self._plan.topics)
        said, session.said = session.said, {}
        topics = _topics(ids, said, said)
        epoch = CLOSE_EPOCH if closes else session.next_epoch()
        request = ShareAcknowledgeRequest(self.share.name, self.member.member_id, epoch, topics)
        answer = await self._ask(session, ApiKey.SHARE_ACKNOWLEDGE, request, said, 0)
        if answer is None:
            return
        names = {topic_id: name for name, topic_id in ids.items()}
        codes = {
            (names[topic.topic_id], part.index): part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }
        self._hear(said, codes)

    async def _ask(
        self,
        session: ShareSessionAt,
        api: ApiKey,
        request: Any,
        said: _Said,
        more_s: float,
    ) -> Any:
        """None: there is no answer that says what became of it."""
        for record in _settled_by(said):
            self.share.say(record)
        try:
            answer = await session.link.ask(api, VERSION, request, REQUEST_S + more_s)
        except LinkError as error:
            self.client.note(f"{self.name} {api.name}: {error}")
            for place in session.places:
                self.client.moved(place)
            return None
        if answer.error_code == ErrorCode.NONE:
            return answer
        self.client.note(f"{self.name} {api.name}: {answer.error_code} {answer.error_message}")
        self._sessions.pop(session.link, None)
        if answer.error_code in NO_SESSION:
            self._history.count("share sessions that were not known")
            for record in _settled_by(said):
                self.share.refused(record)
        else:
            await self.client.pause()
        return None

    def _hear(self, said: _Said, codes: dict[Place, int]) -> None:
        for place, each in said.items():
            code = codes.get(place)
            if code is None:
                self._history.broken(f"{self.name} is not told what became of {each} in {place}")
            elif code == ErrorCode.INVALID_RECORD_STATE:
                self._history.count("acknowledgements of share groups that come too late")
                for record in _settled_by({place: each}):
                    self.share.refused(record)
            elif code != ErrorCode.NONE:
                self.client.note(f"{self.name} acknowledges {each} of {place}: {code}")
            else:
                for record in _settled_by({place: each}):
                    self.share.settle(record, self.name, self._now_s)


def _settled_by(said: _Said) -> list[Record]:
    return [
        (place, offset) for place, each in said.items() for offset, how in each if how in SETTLES
    ]


def _topics(
    ids: Mapping[str, uuid.UUID], places: Iterable[Place], said: _Said
) -> list[SharedTopic]:
    found: dict[str, SharedTopic] = {}
    for name, index in sorted(places):
        topic = found.setdefault(name, SharedTopic(ids[name]))
        topic.partitions.append(SharedPartition(index, _batches(said.get((name, index), []))))
    return [*found.values()]


def _batches(said: Sequence[tuple[int, AcknowledgeType]]) -> list[AcknowledgedBatch]:
    """Runs of offsets, with one type where that is enough."""
    found: list[AcknowledgedBatch] = []
    for offset, how in sorted(said):
        if found and found[-1].last_offset == offset - 1:
            found[-1].last_offset = offset
            found[-1].types.append(how)
        else:
            found.append(AcknowledgedBatch(offset, offset, [how]))
    for each in found:
        if len(set(each.types)) == 1:
            each.types = each.types[:1]
    return found
