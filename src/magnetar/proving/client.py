"""Kafka's protocol as a producer and a reader of one partition need it (``speaking``).

With acks=all the producer is idempotent, as clients are by default; else it is not, as theirs
cannot be. The versions are those that Kafka 4 and this broker both serve.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from magnetar.proving.network import CLIENT_HOST
from magnetar.proving.speaking import (
    ALL,
    CONNECT_S,
    LOOK_S,
    Address,
    PartitionView,
    Protocol,
    ReadMessage,
    RefusedError,
    Speaker,
    TopicLine,
)
from magnetar.wire.kafka.admin_messages import CreateTopicsRequest, NewTopic, TopicConfig
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.batches import NO_PRODUCER, build_batch, read_batch_header, split
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    FetchPartition,
    FetchTopic,
)
from magnetar.wire.kafka.primitives import FieldReader
from magnetar.wire.kafka.produce_messages import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.records import KafkaRecord, encode_records, read_batch

VERSIONS: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 11,
    ApiKey.METADATA: 9,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.INIT_PRODUCER_ID: 2,
}
FETCH_BYTES: Final = 1 << 20
ASK_S: Final = 5.0
CREATE_S: Final = 30.0
TOO_FEW: Final = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
SEQUENCE_LOST: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


def refused(code: int, why: str = "") -> RefusedError:
    """What a broker's error says."""
    name = ErrorCode(code).name if code in set(ErrorCode) else str(code)
    return RefusedError(f"{name} {why}".strip(), stays=code in TOO_FEW)


class BrokerLine:
    """A connection to one broker."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, CONNECT_S, (CLIENT_HOST, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def send(self, key: ApiKey, request: Any) -> int:
        """Returns the number that ``answer`` takes. Raises ``OSError``."""
        self._number += 1
        self._socket.sendall(encode_request(key, VERSIONS[key], self._number, "prove", request))
        return self._number

    def answer(self, key: ApiKey, number: int, within_s: float) -> Any:
        """Raises ``OSError`` (``TimeoutError`` too); the connection is of no use then."""
        self._socket.settimeout(within_s)
        size = int.from_bytes(self._read(4), "big")
        frame = FieldReader(memoryview(self._read(size)))
        told, response = read_response(key, VERSIONS[key], frame)
        assert told == number, "answers come in the order of the requests"
        return response

    def ask(self, key: ApiKey, request: Any, within_s: float = ASK_S) -> Any:
        return self.answer(key, self.send(key, request), within_s)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionResetError("the broker has closed the connection")
            found += part
        return bytes(found)

    def close(self) -> None:
        self._socket.close()


class Producing(NamedTuple):
    """An idempotent producer's id."""

    producer_id: int = NO_PRODUCER
    epoch: int = -1


NOBODY: Final = Producing()


def new_producer(line: BrokerLine) -> Producing:
    """Raises ``OSError``, ``RefusedError``."""
    answer = line.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 60_000))
    if answer.error_code:
        raise refused(answer.error_code)
    return Producing(answer.producer_id, answer.producer_epoch)


def produce_request(
    topic: str, number: int, acks: int, producing: Producing, sequence: int, within_ms: int
) -> ProduceRequest:
    """One message, whose value is ``number``, as a batch."""
    records = encode_records([KafkaRecord(0, 0, None, b"%d" % number)])
    now_ms = int(time.time() * 1000)
    batch = build_batch(
        records,
        count=1,
        last_offset_delta=0,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producing.producer_id,
        producer_epoch=producing.epoch,
        base_sequence=sequence if producing.producer_id != NO_PRODUCER else -1,
    )
    part = ProducePartition(0, memoryview(batch))
    return ProduceRequest(None, acks, within_ms, [ProduceTopic(topic, [part])])


def fetch(line: BrokerLine, topic: str, offset: int) -> tuple[list[ReadMessage], int, int]:
    """(what is there from ``offset`` on, the next offset, the high watermark). Raises ``OSError``,
    ``RefusedError``."""
    part = FetchPartition(0, fetch_offset=offset, partition_bytes_max=FETCH_BYTES)
    request = ClientFetchRequest(
        wait_ms_max=100,
        bytes_min=1,
        bytes_max=FETCH_BYTES,
        topics=[FetchTopic(topic, partitions=[part])],
    )
    (told,) = line.ask(ApiKey.FETCH, request).topics[0].partitions
    if told.error_code:
        raise refused(told.error_code)
    found: list[ReadMessage] = []
    at = offset
    records = b"" if told.records is None else b"".join(map(bytes, _parts(told.records)))
    for batch in split(memoryview(records)):
        header = read_batch_header(batch)
        if header.base_offset + header.last_offset_delta < offset:
            continue
        found += [
            ReadMessage(
                int(each.value or b"-1"),
                header.base_offset + each.offset_delta,
                header.leader_epoch,
            )
            for each in read_batch(batch)[1]
        ]
        at = header.base_offset + header.last_offset_delta + 1
    return found, at, told.high_watermark


def _parts(records: Any) -> Sequence[Any]:
    return records if isinstance(records, list) else [records]


@dataclass(slots=True)
class _Identity:
    """Of a producer. ``first``: the message that has the sequence number 0: they ascend without a
    gap."""

    producing: Producing = NOBODY
    first: int | None = None


class PartitionLine(TopicLine):
    """Of a ``KafkaSpeaker``, as whom it was when the line was made."""

    def __init__(self, speaker: KafkaSpeaker, address: Address) -> None:
        self._speaker = speaker
        self._who = speaker.who
        self._line = BrokerLine(address)

    def begin(self) -> None:
        if self._speaker.acks == ALL and self._who.producing == NOBODY:
            self._who.producing = new_producer(self._line)

    def send(self, number: int, within_s: float) -> int:
        speaker, who = self._speaker, self._who
        if who.first is None:
            who.first = number
        sequence, within_ms = number - who.first, int(within_s * 1000)
        request = produce_request(
            speaker.topic, number, speaker.acks, who.producing, sequence, within_ms
        )
        return self._line.send(ApiKey.PRODUCE, request)

    def answer(self, sent: int, within_s: float) -> int:
        (part,) = self._line.answer(ApiKey.PRODUCE, sent, within_s).topics[0].partitions
        if part.error_code in SEQUENCE_LOST:
            self._speaker.begin_anew()
        if part.error_code:
            raise refused(part.error_code, part.error_message or "")
        offset: int = part.base_offset
        return offset

    def close(self) -> None:
        self._line.close()


class KafkaSpeaker(Speaker):
    """See ``Speaker``."""

    def __init__(self, topic: str, acks: int) -> None:
        self.topic = topic
        self.acks = acks
        self.who = _Identity()

    def connect(self, address: Address) -> TopicLine:
        return PartitionLine(self, address)

    def begin_anew(self) -> None:
        self.who = _Identity()

    def read(self, address: Address, offset: int = 0) -> tuple[list[ReadMessage], int]:
        found: list[ReadMessage] = []
        with contextlib.closing(BrokerLine(address)) as line:
            while True:
                some, offset, end = fetch(line, self.topic, offset)
                found += some
                if offset >= end:
                    return found, end


class KafkaProtocol(Protocol):
    """See ``Protocol``."""

    def look(self, address: Address, topic: str) -> PartitionView:
        with contextlib.closing(BrokerLine(address)) as line:
            request = MetadataRequest([MetadataTopic(name=topic)], allow_auto_topic_creation=False)
            answer = line.ask(ApiKey.METADATA, request, LOOK_S)
        nodes = {each.node_id: (each.host, each.port) for each in answer.brokers}
        (said,) = answer.topics
        if said.error_code:
            raise refused(said.error_code)
        (part,) = said.partitions
        return PartitionView(part.leader_id, part.leader_epoch, part.replicas, part.in_sync, nodes)

    def create_topic(
        self, address: Address, topic: str, replicas: int, configs: Mapping[str, str]
    ) -> None:
        said = [TopicConfig(name, value) for name, value in configs.items()]
        request = CreateTopicsRequest([NewTopic(topic, 1, replicas, [], said)], 20_000)
        with contextlib.closing(BrokerLine(address)) as line:
            (answer,) = line.ask(ApiKey.CREATE_TOPICS, request, CREATE_S).topics
        if answer.error_code:
            raise refused(answer.error_code, answer.error_message or "")

    def speaker(self, topic: str, acks: int) -> Speaker:
        return KafkaSpeaker(topic, acks)
