"""ShareFetch and ShareAcknowledge (KIP-932): records that members of a share group take in turns.

Rules:

* What a request acknowledges is kept before it is answered; what it says of one partition counts
  whole, or not at all, and other partitions do not mind.
* A fetch is answered as soon as there are records for the member, whatever ``bytes_min`` says:
  their locks run from then on. Else it waits until one of its logs grows, somebody else's records
  come back, or ``wait_ms_max`` is over. Nothing is polled.
* Partitions take turns at being the first. The first one that has something gives a batch at
  least, however large; the others keep to what is left of the bounds, of which that on records
  takes whole batches.
* A partition is answered if it has records or an error, or something of it was acknowledged.
* Nobody acquires for a connection that is over.
* Of a topic whose dispatch rate is used up nothing is acquired; who waits looks again when
  something may pass.

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from magnetar.cluster.security.permissions import Action
from magnetar.model.errors import MagnetarError, UnknownTopicIdError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.handlers.fetch import WAIT_S_MAX
from magnetar.protocols.kafka.handlers.led_share_partition import (
    LedSharePartition,
    SharedRecords,
    WantedRecords,
)
from magnetar.protocols.kafka.handlers.share_leader import ShareLeader, StateRefusedError
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.shares.share_partition import Acknowledgement
from magnetar.protocols.kafka.shares.share_records import ShareStateKey
from magnetar.protocols.kafka.shares.share_sessions import (
    PARTITIONS_MAX,
    SessionKey,
    ShareSession,
)
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code, fetch_error_code, known_to_fetch
from magnetar.wire.kafka.share_fetch_messages import (
    CLOSE_EPOCH,
    OPEN_EPOCH,
    AcquiredRecords,
    ForgottenSharedTopic,
    ShareAcknowledgedPartition,
    ShareAcknowledgedTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    SharedTopic,
    ShareFetchedPartition,
    ShareFetchedTopic,
    ShareFetchRequest,
    ShareFetchResponse,
    no_leader,
)

log = structlog.get_logger(__name__)

ID_CHARS_MAX: Final = 1_024
ERROR_PAUSE_S: Final = 0.1
"""Clients ask again at once for what is an error."""
WRITES_AT_ONCE: Final = 64


@dataclass(slots=True)
class _Said:
    """What a partition's part of an answer says."""

    error: ErrorCode = ErrorCode.NONE
    why: str | None = None
    acknowledge_error: ErrorCode = ErrorCode.NONE
    acknowledge_why: str | None = None
    records: SharedRecords | None = None


_Answers = dict[TopicIdPartition, _Said]


@dataclass(slots=True)
class _Round:
    """What a fetch has found, and by whom it is woken."""

    answers: _Answers = field(default_factory=dict)
    led: list[LedSharePartition] = field(default_factory=list)
    records_left: int = 0
    bytes_left: int = 0
    found: bool = False
    failed: bool = False
    wait_s: float = 0.0
    """Until something of a topic with a limited rate may pass; 0: none was used up."""


class ShareFetchHandlers:
    """One for all sessions of a broker."""

    def __init__(self, leader: ShareLeader) -> None:
        self._leader = leader

    # -- ShareFetch ---------------------------------------------------------------------------

    async def fetch(
        self, session: KafkaSession, head: RequestHead, request: ShareFetchRequest
    ) -> ShareFetchResponse:
        key, wrong = _key(request.group_id, request.member_id)
        if not wrong and request.session_epoch == OPEN_EPOCH and _acknowledges(request.topics):
            wrong = "a request that opens a session acknowledges nothing"
        if wrong:
            return ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=wrong)
        share = self._session(session, key, request.session_epoch)
        if isinstance(share, ErrorCode):
            return ShareFetchResponse(error_code=share, error_message=_why(share, key))
        if request.session_epoch != CLOSE_EPOCH:
            self._leader.change(share, _places(request.topics), _forgotten(request.forgotten))
            if len(share.places) > PARTITIONS_MAX:
                await self._leader.end(share, looked_at=False)
                why = f"the session has more than {PARTITIONS_MAX} partitions"
                return ShareFetchResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=why)
        answers = await self._acknowledged(session, key.group_id, key.member_id, request.topics)
        if request.session_epoch == CLOSE_EPOCH:  # whatever becomes of the answer: nobody else does
            await self._leader.end(share, looked_at=False)
        try:
            settings = await self._leader.settings(key.group_id)
        except MagnetarError as error:
            return ShareFetchResponse(error_code=error_code(error), error_message=str(error))
        wants = request.records_max > 0 and request.bytes_max > 0
        if wants and request.session_epoch != CLOSE_EPOCH:
            await self._wait(session, share, request, answers)
        answer = ShareFetchResponse(lock_timeout_ms=settings.limits.lock_ms)
        for topic_id, parts in _by_topic(answers):
            told = [_fetched(index, said) for index, said in parts]
            answer.topics.append(ShareFetchedTopic(topic_id, told))
        return answer

    def _session(
        self, session: KafkaSession, key: SessionKey, epoch: int
    ) -> ShareSession | ErrorCode:
        if epoch == OPEN_EPOCH:
            return self._leader.begun(key, session)
        return self._leader.used(key, epoch, session)

    async def _wait(
        self,
        session: KafkaSession,
        share: ShareSession,
        request: ShareFetchRequest,
        answers: _Answers,
    ) -> None:
        """Records for the member, or none within the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(0, request.wait_ms_max) / 1000, WAIT_S_MAX)
        grown = asyncio.Event()
        session.at_end(self, grown.set)
        watches: dict[Hashable, Callable[[], None]] = {}
        try:
            while True:
                grown.clear()
                found = await self._round(session, share, request)
                left_s = deadline - loop.time()
                if found.failed and not found.found:
                    await asyncio.sleep(max(0.0, min(ERROR_PAUSE_S, left_s)))
                if found.found or found.failed or left_s <= 0 or session.closed:
                    break
                if _watched(found.led, watches, grown.set):
                    continue  # what came before the watch began is found now
                timer = loop.call_later(min(left_s, found.wait_s or left_s), grown.set)
                try:
                    await grown.wait()
                finally:
                    timer.cancel()
        finally:
            for end in watches.values():
                end()
        session.services.traffic.fetched_bytes += sum(
            said.records.size for said in found.answers.values() if said.records is not None
        )
        for place, said in found.answers.items():
            told = answers.setdefault(place, said)
            told.error, told.why, told.records = said.error, said.why, said.records

    async def _round(
        self, session: KafkaSession, share: ShareSession, request: ShareFetchRequest
    ) -> _Round:
        """One look at all partitions of the session."""
        services = session.services
        most = max(services.connections.turn_bytes, 1)
        found = _Round(
            records_left=request.records_max,
            bytes_left=min(request.bytes_max, services.config.fetch_bytes_max, most),
        )
        share.rotate()
        for place in list(share.places):
            if found.records_left <= 0 or (found.found and found.bytes_left <= 0):
                break
            said = _Said()
            try:
                await self._one(session, share, place, request, found, said)
            except MagnetarError as error:
                said.error, said.why = _fetch_code(error), str(error)
            if said.error:
                found.failed = True
                session.services.connections.refusals.say(
                    "share fetch refused",
                    session.peer,
                    group=share.key.group_id,
                    error=said.why or "",
                )
            if said.error or said.records is not None:
                found.answers[place] = said
        return found

    async def _one(
        self,
        session: KafkaSession,
        share: ShareSession,
        place: TopicIdPartition,
        request: ShareFetchRequest,
        found: _Round,
        said: _Said,
    ) -> None:
        partition = await _partition(session, place)
        key = ShareStateKey(share.key.group_id, place)
        led = await self._leader.led(key, partition, await self._leader.settings(key.group))
        found.led.append(led)
        records_max, bytes_max = found.records_left, max(found.bytes_left, 1)
        throttle = partition.topic.dispatch_throttle
        if throttle is not None:
            may_pass = throttle.left()
            if may_pass is None:
                wait_s = throttle.wait_s()
                found.wait_s = min(found.wait_s or wait_s, wait_s)
                return
            records_max = min(records_max, may_pass.messages)
            bytes_max = min(bytes_max, may_pass.byte_count)
        wanted = WantedRecords(
            share.key.member_id,
            records_max,
            bytes_max,
            request.batch_size,
            lambda: not session.closed and place in share.places,
        )
        records = await led.fetch(wanted)
        if throttle is not None:
            throttle.take(records.number, records.size)
        if records.acquired:
            said.records = records
            found.found = True
            found.records_left -= records.number
            found.bytes_left -= records.size

    # -- ShareAcknowledge ---------------------------------------------------------------------

    async def acknowledge(
        self, session: KafkaSession, head: RequestHead, request: ShareAcknowledgeRequest
    ) -> ShareAcknowledgeResponse:
        key, wrong = _key(request.group_id, request.member_id)
        if wrong:
            error = ErrorCode.INVALID_REQUEST
            return ShareAcknowledgeResponse(error_code=error, error_message=wrong)
        refused = ErrorCode.INVALID_SHARE_SESSION_EPOCH
        if request.session_epoch == OPEN_EPOCH:
            why = "a session is opened by a fetch"
            return ShareAcknowledgeResponse(error_code=refused, error_message=why)
        share = self._leader.used(key, request.session_epoch, session)
        if isinstance(share, ErrorCode):
            return ShareAcknowledgeResponse(error_code=share, error_message=_why(share, key))
        answers = await self._acknowledged(session, key.group_id, key.member_id, request.topics)
        if request.session_epoch == CLOSE_EPOCH:
            await self._leader.end(share, looked_at=False)
        answer = ShareAcknowledgeResponse()
        for topic_id, parts in _by_topic(answers):
            told = [
                ShareAcknowledgedPartition(
                    index, said.acknowledge_error, said.acknowledge_why, no_leader()
                )
                for index, said in parts
            ]
            answer.topics.append(ShareAcknowledgedTopic(topic_id, told))
        return answer

    async def _acknowledged(
        self, session: KafkaSession, group_id: str, member_id: str, topics: Iterable[SharedTopic]
    ) -> _Answers:
        """What became of all that a request acknowledges."""
        said: dict[TopicIdPartition, list[Acknowledgement]] = {}
        for topic in topics:
            for part in topic.partitions:
                place = TopicIdPartition(topic.topic_id, part.index)
                for each in part.acknowledged:
                    one = Acknowledgement(each.first_offset, each.last_offset, each.types)
                    said.setdefault(place, []).append(one)
        answers: _Answers = {}

        async def one_place(place: TopicIdPartition) -> _Said:
            key = ShareStateKey(group_id, place)
            return await self._acknowledge(session, key, member_id, said[place])

        places = list(said)
        for start in range(0, len(places), WRITES_AT_ONCE):
            some = places[start : start + WRITES_AT_ONCE]
            answers.update(zip(some, await asyncio.gather(*map(one_place, some)), strict=True))
        return answers

    async def _acknowledge(
        self,
        session: KafkaSession,
        key: ShareStateKey,
        member_id: str,
        said: Sequence[Acknowledgement],
    ) -> _Said:
        found = _Said()
        try:
            await _partition(session, key.place)
            led = self._leader.known(key)
            if led is None:  # nobody has acquired anything here since it was read, or ever
                found.acknowledge_error = ErrorCode.INVALID_RECORD_STATE
            else:
                found.acknowledge_error = await led.acknowledge(member_id, said)
        except MagnetarError as error:
            found.acknowledge_error, found.acknowledge_why = _code(error), str(error)
        if found.acknowledge_error and found.acknowledge_why is None:
            found.acknowledge_why = "records that the member does not hold, or no longer"
        return found


async def _partition(session: KafkaSession, place: TopicIdPartition) -> Partition:
    """Raises ``UnknownTopicIdError``, ``StateRefusedError``, and as
    ``KafkaServices.partition_by_id``."""
    services, topic_id = session.services, place.topic_id
    name = services.topic_ids.told(topic_id)
    if name is None:
        name = (await services.topic_ids.names([topic_id])).get(topic_id)
    if name is None:
        raise UnknownTopicIdError(f"no topic has the id {topic_id}")
    if session.gate is not None and not await session.grants.topic(Action.CONSUME, name):
        why = "the role may not do this with the topic"
        raise StateRefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
    return await services.partition_by_id(topic_id, name, place.partition, session)


def _code(error: MagnetarError) -> ErrorCode:
    return error.code if isinstance(error, StateRefusedError) else error_code(error)


def _fetch_code(error: MagnetarError) -> ErrorCode:
    if isinstance(error, StateRefusedError):
        return known_to_fetch(error.code)
    return fetch_error_code(error)


def _key(group_id: str | None, member_id: str | None) -> tuple[SessionKey, str]:
    """Whose session it is, and what is wrong with that; empty: nothing."""
    for what, value in (("GroupId", group_id), ("MemberId", member_id)):
        if not value:
            return SessionKey("", ""), f"{what} is missing"
        if len(value) > ID_CHARS_MAX:
            return SessionKey("", ""), f"{what} has more than {ID_CHARS_MAX} characters"
    assert group_id is not None
    assert member_id is not None
    return SessionKey(group_id, member_id), ""


def _why(error: ErrorCode, key: SessionKey) -> str:
    return f"{error.name}: member {key.member_id} of group {key.group_id} begins a new session"


def _acknowledges(topics: Iterable[SharedTopic]) -> bool:
    return any(part.acknowledged for topic in topics for part in topic.partitions)


def _places(topics: Iterable[SharedTopic]) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic.topic_id, part.index)
        for topic in topics
        for part in topic.partitions
    ]


def _forgotten(topics: Iterable[ForgottenSharedTopic]) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic.topic_id, index) for topic in topics for index in topic.partitions
    ]


def _watched(
    led: Iterable[LedSharePartition],
    watches: dict[Hashable, Callable[[], None]],
    changed: Callable[[], None],
) -> bool:
    """Whether there was something that was not watched yet."""
    new = False
    for each in led:
        if each in watches:
            continue
        new = True
        watches[each] = each.watch(changed)
        log_of = each.partition.log
        watches[each, log_of] = log_of.watch_readable(changed)
    return new


def _by_topic(answers: _Answers) -> list[tuple[uuid.UUID, list[tuple[int, _Said]]]]:
    found: dict[uuid.UUID, list[tuple[int, _Said]]] = {}
    for place, said in answers.items():
        found.setdefault(place.topic_id, []).append((place.partition, said))
    return list(found.items())


def _fetched(index: int, said: _Said) -> ShareFetchedPartition:
    told = ShareFetchedPartition(
        index,
        said.error,
        said.why,
        said.acknowledge_error,
        said.acknowledge_why,
        no_leader(),
        records=[],
    )
    if said.records is not None:
        told.records = said.records.parts
        told.acquired = [AcquiredRecords(*each) for each in said.records.acquired]
    return told
