"""What a leader knows of producers, for people: DescribeProducers.

`kafka-transactions` finds with it what was left open by a producer whose coordinator knows nothing
of it, and ends that.
"""

from __future__ import annotations

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.handlers.each_once import topics_once
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import error_code
from magnetar.wire.kafka.producer_messages import (
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducersOfPartition,
    ProducersOfTopic,
)


async def describe_producers(
    session: KafkaSession, head: RequestHead, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    answer, turns = DescribeProducersResponse(), session.turns()
    for topic in topics_once(request.topics):
        said = ProducersOfTopic(topic.name)
        answer.topics.append(said)
        for index in topic.partitions:
            await turns.next()
            said.partitions.append(await _of_partition(session.services, topic.name, index))
    return answer


async def _of_partition(services: KafkaServices, name: str, index: int) -> ProducersOfPartition:
    try:
        partition = await services.partition(name, index)
        known = await partition.known_producers()
    except MagnetarError as error:
        return ProducersOfPartition(index, error_code(error), str(error))
    return ProducersOfPartition(index, producers=[DescribedProducer(*each) for each in known])
