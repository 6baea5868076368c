"""What jobs ask brokers about logs, as the pipeline's ``LogWatch`` does: by a reader that reads
nothing, on a connection to the topic's owner."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.model.errors import BrokerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe, LogExtent, LogQuestion
from magnetar_sim.brokers.pulsar_client import Link, LinkError, PulsarClient, RefusedError
from magnetar_sim.brokers.topic_consumers import message_id
from magnetar_sim.brokers.topic_history import LOWEST
from magnetar_sim.brokers.watched_connection import PIPELINE

PATIENCE_S: Final = 3.0


class LogAsker:
    """Of one process, that of ``client``."""

    def __init__(self, client: PulsarClient) -> None:
        self._client = client
        self._readers: dict[tuple[Link, str], int] = {}

    async def ask(self, partition: str, question: LogQuestion) -> LogExtent:
        """Raises ``BrokerError``: it was refused, or nobody knows whether it was heard."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                link = await self._client.link(partition)
                command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
                request = command.getLastMessageId
                request.consumer_id = await self._reader(link, partition)
                request.request_id = link.next_request()
                request.log_question.CopyFrom(question)
                answer = await link.ask(command)
        except TimeoutError:
            raise BrokerError(f"{partition}: no answer in {PATIENCE_S} s") from None
        except (LinkError, RefusedError) as error:
            raise BrokerError(f"{partition}: {error}") from error
        return answer.getLastMessageIdResponse.log_extent

    async def _reader(self, link: Link, partition: str) -> int:
        found = self._readers.get((link, partition))
        if found is not None:
            return found
        consumer_id = self._client.new_id()
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subType = partition, CommandSubscribe.Exclusive
        request.subscription = f"{PIPELINE}{self._client.name}-{consumer_id}"
        request.consumer_id, request.request_id = consumer_id, link.next_request()
        request.durable = False
        request.start_message_id.CopyFrom(message_id(LOWEST))

        def closed(command: BaseCommand, _payload: memoryview) -> None:
            self._readers.pop((link, partition), None)
            self._client.moved(partition, command.close_consumer.assignedBrokerServiceUrl)

        link.on[BaseCommand.CLOSE_CONSUMER, consumer_id] = closed
        await link.ask(command)
        self._readers[link, partition] = consumer_id
        return consumer_id

    async def leave(self) -> None:
        """Close the readers: idle topics are to be unloaded. What cannot be told ends with its
        connection."""
        readers, self._readers = self._readers, {}
        for (link, partition), consumer_id in readers.items():
            command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = consumer_id
            command.close_consumer.request_id = link.next_request()
            try:
                await link.ask(command)
            except (LinkError, RefusedError) as error:
                self._client.cluster.trace.note(self._client.name, f"{partition}: {error}")
