"""ReadShareGroupState and WriteShareGroupState (KIP-932): what leaders of partitions ask the
coordinator of a group at another broker.
"""

from __future__ import annotations

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.coordination.coordinator import coordinator_error
from magnetar.protocols.kafka.coordination.share_states import ShareStates, batches_of, runs_of
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.shares.share_records import (
    ShareImage,
    ShareStateKey,
    ShareStateRecord,
)
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_state_messages import (
    FoundState,
    FoundStateTopic,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WrittenState,
    WrittenStateTopic,
)


class ShareStateHandlers:
    """One for all sessions of a broker."""

    def __init__(self, states: ShareStates) -> None:
        self._states = states

    async def read(
        self, session: KafkaSession, head: RequestHead, request: ReadShareGroupStateRequest
    ) -> ReadShareGroupStateResponse:
        answer, turns = ReadShareGroupStateResponse(), session.turns()
        for topic in request.topics:
            said = FoundStateTopic(topic.topic_id)
            answer.topics.append(said)
            for part in topic.partitions:
                await turns.next()
                place = TopicIdPartition(topic.topic_id, part.index)
                key = ShareStateKey(request.group_id, place)
                said.partitions.append(await self._read(key, part.leader_epoch))
        return answer

    async def _read(self, key: ShareStateKey, leader_epoch: int) -> FoundState:
        index = key.place.partition
        try:
            kept = await self._states.read_here(key, leader_epoch)
        except MagnetarError as error:
            return FoundState(index, coordinator_error(error), str(error))
        if kept.record is None:
            return FoundState(index, kept.error, kept.why)
        image = kept.record.image
        return FoundState(index, 0, None, kept.record.state_epoch, image.start, batches_of(image))

    async def write(
        self, session: KafkaSession, head: RequestHead, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        answer = WriteShareGroupStateResponse()
        for topic in request.topics:
            said = WrittenStateTopic(topic.topic_id)
            answer.topics.append(said)
            for part in topic.partitions:
                place = TopicIdPartition(topic.topic_id, part.index)
                key = ShareStateKey(request.group_id, place)
                try:
                    image = ShareImage(part.start_offset, runs_of(part.batches))
                    record = ShareStateRecord(part.state_epoch, part.leader_epoch, image)
                    kept = await self._states.write_here(key, record)
                    written = WrittenState(part.index, kept.error, kept.why or None)
                except ValueError as error:  # a state that there is not
                    written = WrittenState(part.index, ErrorCode.INVALID_REQUEST, str(error))
                except MagnetarError as error:
                    written = WrittenState(part.index, coordinator_error(error), str(error))
                said.partitions.append(written)
        return answer
