"""A small blocking Pulsar client for the pipeline: whole entries, exact positions.

Planning and splitting need entries (how many messages each holds, where each lies), and a driver
needs the last position without leaving a subscription behind. So reads speak the protocol directly,
through ``wire.pulsar``: lookup, a non-durable reader, flow, messages. Nothing is created on the
broker by a read. One connection serves one reader (``topic_reader.py``).

Every wait has a deadline (``timeout_s``); errors are ``BrokerError`` or ``ProtocolError`` and name
the address and the topic.
"""

from __future__ import annotations

from typing import Final

from magnetar.model.errors import BrokerError, NotAllowedError, TopicNotFoundError
from magnetar.pipeline.brokers.access import TlsAddress
from magnetar.pipeline.brokers.connection import (
    BrokerConnection,
    parse_service_url,
    parse_service_urls,
    refused,
)
from magnetar.pipeline.brokers.topic_reader import TopicReader
from magnetar.pipeline.losses import LogExtent
from magnetar.pipeline.places import START, Place
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
)

REDIRECTS_MAX = 10


class BrokerClient:
    """Look-ups and readers against a cluster's service URL: of its addresses the last good one
    comes first. The connection for questions about names is kept between them, until ``close``."""

    def __init__(self, service_url: str, timeout_s: float = 60.0) -> None:
        self._addresses = parse_service_urls(service_url)
        self.timeout_s = timeout_s
        self._kept: BrokerConnection | None = None

    def partitions(self, topic: str, *, make: bool = False) -> list[str]:
        """The names of the topic's partitions; the topic itself when it has none, or is not there.
        ``make``: for who writes. One that is not there is made with partitions where brokers are
        set to, and ``TopicNotFoundError`` says that it would not be made on its first use either.
        """
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic
        command.partitionMetadata.request_id = 1
        command.partitionMetadata.metadata_auto_creation_enabled = make
        answer = self.ask(command).partitionMetadataResponse
        if answer.response == answer.Failed:
            failure = refused(answer.error, f"topic {topic}: {answer.message}")
            if isinstance(failure, TopicNotFoundError) and not make:
                return [topic]  # whoever opens it hears more
            raise failure
        if not answer.partitions:
            return [topic]
        return [f"{topic}-partition-{number}" for number in range(answer.partitions)]

    def topics(self, namespace: str) -> list[str]:
        """Full names of all topics (and partitions) of a namespace.

        Of all kinds: whoever asks for persistent ones alone is told of none when there is no such
        namespace, and a job with a misspelled one would end well with nothing done.
        """
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.mode = CommandGetTopicsOfNamespace.ALL
        command.getTopicsOfNamespace.namespace = namespace
        command.getTopicsOfNamespace.request_id = 1
        return list(self.ask(command).getTopicsOfNamespaceResponse.topics)

    def reach(self) -> None:
        """Connect to whichever broker answers first. Raises ``BrokerError`` when none does."""
        if self._kept is None:
            self._kept = self._any_broker()

    def ask(self, command: BaseCommand) -> BaseCommand:
        """The answer to a question that any broker of the cluster answers."""
        connection, self._kept = self._kept, None
        if connection is not None:
            try:
                answer = connection.call(command)
            except BrokerError:
                connection.close()  # it was idle for long, or the broker has restarted
            else:
                self._kept = connection
                return answer
        connection = self._any_broker()
        try:
            answer = connection.call(command)
        except BaseException:
            connection.close()
            raise
        self._kept = connection
        return answer

    def _any_broker(self) -> BrokerConnection:
        """Raises ``BrokerError`` when none of the addresses answers."""
        whys = []
        for address in list(self._addresses):
            try:
                connection = BrokerConnection(address, self.timeout_s)
            except NotAllowedError:
                raise  # they all would say so
            except BrokerError as error:
                whys.append(str(error))
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return connection
        raise BrokerError("; ".join(whys))

    def close(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            connection.close()

    def owner(self, topic: str) -> tuple[str, int]:
        """The address of the broker that serves a topic (partition)."""
        address: tuple[str, int] | None = None
        entrance: tuple[str, int] | None = None
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            connection = (
                self._any_broker() if address is None else BrokerConnection(address, self.timeout_s)
            )
            entrance = entrance or connection.address
            command = BaseCommand(type=BaseCommand.LOOKUP)
            command.lookupTopic.topic = topic
            command.lookupTopic.request_id = 1
            command.lookupTopic.authoritative = authoritative
            try:
                answer = connection.call(command).lookupTopicResponse
            finally:
                connection.close()
            if answer.response == answer.Failed:
                raise refused(answer.error, f"topic {topic}: {answer.message}")
            if answer.proxy_through_service_url:
                return entrance
            address = _named(answer, isinstance(connection.address, TlsAddress))
            if answer.response == answer.Connect:
                return address
            authoritative = answer.authoritative
        raise BrokerError(f"topic {topic}: more than {REDIRECTS_MAX} redirects")

    def open(self, topic: str, place: Place = START) -> TopicReader:
        """A reader of a topic partition from the entry of ``place`` on."""
        return TopicReader(BrokerConnection(self.owner(topic), self.timeout_s), topic, place)

    def extent(self, topic: str) -> LogExtent:
        """From where to where a topic partition's log reaches now."""
        with self.open(topic, START) as reader:
            return reader.extent()

    def place_at(self, topic: str, time_ms: int, now_ms: int) -> Place:
        """The place before the first entry published at ``time_ms`` or later.

        For brokers that cannot be asked (``LogQuestion``). Publish times are the producers': the
        broker is asked to go back to a little before, and the entries from there on are looked at
        one by one.
        """
        back_s = max(1, (now_ms - time_ms) // 1000 + 10)
        connection = BrokerConnection(self.owner(topic), self.timeout_s)
        with TopicReader(connection, topic, START, rollback_s=back_s) as reader:
            return reader.first_published_since(time_ms, self.timeout_s)


class KeptClients:
    """Clients that outlive a task, each with its connection for questions about names: a process
    has many small tasks, one after the other."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, float], BrokerClient] = {}

    def get(self, service_url: str, timeout_s: float) -> BrokerClient:
        """To be used by one thread at a time, and not to be closed."""
        found = self._clients.get((service_url, timeout_s))
        if found is None:
            found = BrokerClient(service_url, timeout_s)
            self._clients[service_url, timeout_s] = found
        return found


CLIENTS: Final = KeptClients()
"""Of this process."""


def _named(answer: CommandLookupTopicResponse, by_tls: bool) -> tuple[str, int]:
    """The broker that a lookup names, as the one was reached that was asked."""
    if by_tls and not answer.brokerServiceUrlTls:
        raise BrokerError(
            f"the broker at {answer.brokerServiceUrl} is not reached by TLS (broker.tls_port)"
        )
    return parse_service_url(answer.brokerServiceUrlTls if by_tls else answer.brokerServiceUrl)
