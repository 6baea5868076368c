"""What producers of transactions ask of coordinators, coordinators of leaders, people of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from magnetar.cluster.topic_patterns import TopicPattern
from magnetar.model.errors import InvalidTopicNameError, MagnetarError
from magnetar.protocols.kafka.coordination.coordinator import Shard, coordinator_error
from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group_offsets import PendingKey
from magnetar.protocols.kafka.coordination.offset_commits import gathered
from magnetar.protocols.kafka.coordination.transaction import (
    NO_EPOCH,
    NO_PRODUCER,
    Beginning,
    Place,
    TransactionRecord,
)
from magnetar.protocols.kafka.coordination.transaction_states import TransactionState
from magnetar.protocols.kafka.coordination.transactions import Transactions
from magnetar.protocols.kafka.partitions.partition import Ending
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.produce_messages import InitProducerIdRequest, InitProducerIdResponse
from magnetar.wire.kafka.topic_shapes import PartitionResult, TopicPartitions, TopicResults
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionMarker,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)

FENCED_SINCE: Final = 2
"""The version of a producer's requests from which on it knows ``PRODUCER_FENCED``."""
FENCED_SINCE_INIT: Final = 4
MARKERS_AT_ONCE: Final = 256
"""Tasks of one request, which may name a million partitions."""
STATES: Final = frozenset(state.value for state in TransactionState)


class TransactionHandlers:
    """One for all sessions of a broker."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions

    # -- the producer's requests --------------------------------------------------------------

    async def begin(
        self, session: KafkaSession, head: RequestHead, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        name = request.transactional_id
        alone = (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_EPOCH)
        if name == "" or alone:  # one of the two says nothing, and no epoch would fence nobody
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        if name is None:
            return await _new_id(session)
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= session.services.config.transaction_timeout_max_ms:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        said = Beginning(timeout_ms, request.producer_id, request.producer_epoch)
        try:
            error, record = await self.transactions.begin(name, said)
        except MagnetarError as refused:
            return InitProducerIdResponse(error_code=coordinator_error(refused))
        if error is not ErrorCode.NONE or record is None:
            return InitProducerIdResponse(error_code=_known(error, head, FENCED_SINCE_INIT))
        return InitProducerIdResponse(producer_id=record.producer_id, producer_epoch=record.epoch)

    async def add_partitions(
        self, session: KafkaSession, head: RequestHead, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """All of them or none, as in Kafka: beside a partition that is not there the others are
        ``OPERATION_NOT_ATTEMPTED``; what the coordinator says is said of each."""
        answer = AddPartitionsToTxnResponse()
        places: list[Place] = []
        asked: list[PartitionResult] = []
        missing, turns = False, session.turns()
        for topic in request.topics:
            said = TopicResults(topic.name)
            answer.topics.append(said)
            for index in topic.partitions:
                await turns.next()
                where = PartitionResult(index)
                said.partitions.append(where)
                if await session.services.has(topic.name, index):
                    asked.append(where)
                    places.append((topic.name, index))
                else:
                    where.error_code, missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        if not missing:
            error = await self._add(
                request.transactional_id, request.producer_id, request.producer_epoch, places
            )
        for where in asked:
            where.error_code = _known(error, head)
        return answer

    async def add_offsets(
        self, session: KafkaSession, head: RequestHead, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        if not request.group_id:
            return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        place = self.transactions.offsets_place(request.group_id)
        error = await self._add(
            request.transactional_id, request.producer_id, request.producer_epoch, [place]
        )
        return AddOffsetsToTxnResponse(error_code=_known(error, head))

    async def _add(self, name: str, producer_id: int, epoch: int, places: list[Place]) -> ErrorCode:
        try:
            return await self.transactions.add(name, producer_id, epoch, places)
        except MagnetarError as refused:
            return coordinator_error(refused)

    async def end(
        self, session: KafkaSession, head: RequestHead, request: EndTxnRequest
    ) -> EndTxnResponse:
        try:
            error = await self.transactions.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.commits,
            )
        except MagnetarError as refused:
            error = coordinator_error(refused)
        return EndTxnResponse(error_code=_known(error, head))

    async def commit_offsets(
        self, session: KafkaSession, head: RequestHead, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        key_of = partial(PendingKey, request.producer_id, request.group_id)
        found = await gathered(session.services, session.turns(), request.topics, key_of)
        for some in found.parts():
            error = await self._commit_offsets(request, some, session.services.steady_ms)
            if error is not ErrorCode.NONE:
                break
        return TxnOffsetCommitResponse(topics=found.answered(_known(error, head)))

    async def _commit_offsets(
        self, request: TxnOffsetCommitRequest, changes: list[Change], now_ms: Callable[[], int]
    ) -> ErrorCode:
        """``now_ms``: by what groups wait."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        coordinator = self.transactions.coordinator
        member = request.member_id, request.instance_id, request.generation

        def refusal(shard: Shard) -> ErrorCode:
            if member == ("", None, -1):  # who says nothing of a member is in no group protocol
                return ErrorCode.NONE
            live = shard.consumer(request.group_id)
            if live is None:
                group = coordinator.group_in(shard, request.group_id)
                return group.check_commit(*member, now_ms())
            refused = live.group.check_commit(request.member_id, request.generation)
            # Producers know no epochs of members: to them it is a generation.
            stale = refused is ErrorCode.STALE_MEMBER_EPOCH
            return ErrorCode.ILLEGAL_GENERATION if stale else refused

        try:
            return await self.transactions.keep_offsets(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.group_id,
                changes,
                refusal,
            )
        except MagnetarError as error:
            return coordinator_error(error)

    # -- the coordinator's requests -----------------------------------------------------------

    async def write_markers(
        self, session: KafkaSession, head: RequestHead, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        answer = WriteTxnMarkersResponse()
        for marker in request.markers:
            said = WrittenMarker(marker.producer_id)
            answer.markers.append(said)
            for topic in marker.topics:
                said.topics.append(await self._write(session, marker, topic))
        return answer

    async def _write(
        self, session: KafkaSession, marker: TransactionMarker, topic: TopicPartitions
    ) -> TopicResults:
        def asked() -> bool:
            return not session.closed

        ending = Ending(
            marker.producer_id, marker.producer_epoch, marker.commits, marker.coordinator_epoch
        )
        found = TopicResults(topic.name)
        for start in range(0, len(topic.partitions), MARKERS_AT_ONCE):
            some = topic.partitions[start : start + MARKERS_AT_ONCE]
            errors = await asyncio.gather(
                *(self.transactions.end_in((topic.name, each), ending, asked) for each in some)
            )
            found.partitions += [PartitionResult(*each) for each in zip(some, errors, strict=True)]
        return found

    # -- for people ---------------------------------------------------------------------------

    async def describe(
        self, session: KafkaSession, head: RequestHead, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        answer = DescribeTransactionsResponse()
        for name in dict.fromkeys(request.transactional_ids):
            try:
                record = await self.transactions.find(name)
            except MagnetarError as refused:
                answer.transactions.append(DescribedTransaction(coordinator_error(refused), name))
            else:
                answer.transactions.append(_described(name, record))
        return answer

    async def list_transactions(
        self, session: KafkaSession, head: RequestHead, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        """Those of the logs that this broker has open: clients ask every broker."""
        answer = ListTransactionsResponse()
        answer.unknown_states = [each for each in request.states if each not in STATES]
        wanted, producer_ids = set(request.states) & STATES, set(request.producer_ids)
        now_ms = session.services.now_ms()
        found = await self.transactions.all()
        try:
            names = _matching(found, request.id_pattern)
        except InvalidTopicNameError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        for name in names:
            record = found[name]
            open_ms = now_ms - record.started_ms if record.started_ms >= 0 else -1
            if (wanted or request.states) and record.state.value not in wanted:
                continue
            if producer_ids and record.producer_id not in producer_ids:
                continue
            if request.duration_ms >= 0 and open_ms < request.duration_ms:
                continue
            listed = ListedTransaction(name, record.producer_id, record.state.value)
            answer.transactions.append(listed)
        return answer


def _matching(names: Iterable[str], pattern: str | None) -> list[str]:
    """Raises ``InvalidTopicNameError``: it is no pattern."""
    return TopicPattern(pattern).matching(names) if pattern else list(names)


def _described(name: str, record: TransactionRecord | None) -> DescribedTransaction:
    if record is None:
        return DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
    topics: dict[str, list[int]] = {}
    for topic, index in record.partitions:
        topics.setdefault(topic, []).append(index)
    return DescribedTransaction(
        ErrorCode.NONE,
        name,
        record.state.value,
        record.timeout_ms,
        record.started_ms,
        record.producer_id,
        record.epoch,
        [TopicPartitions(topic, indexes) for topic, indexes in topics.items()],
    )


def _known(error: ErrorCode, head: RequestHead, since: int = FENCED_SINCE) -> ErrorCode:
    """As clients of that version know it."""
    if error is ErrorCode.PRODUCER_FENCED and head.version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


async def _new_id(session: KafkaSession) -> InitProducerIdResponse:
    try:
        producer_id = await session.services.new_producer_id()
    except MagnetarError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
