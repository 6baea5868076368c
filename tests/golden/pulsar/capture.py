"""Writes down what the installed pulsar-client says: one hex file per kind of frame.

Usage, from the project's root::

    python -m tests.golden.pulsar.capture

writes ``tests/golden/pulsar/pulsar-client-VERSION/NAME.hex``: whole frames, total size included,
as the official client sent them to ``stub.py``. The tests decode every one of them. Run it again
with a new version of the client and commit the new folder beside the old.
"""

from __future__ import annotations

import random
import re
import time
from importlib.metadata import version
from pathlib import Path

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

from tests.golden.pulsar.stub import StubBroker, stub_broker

WAIT_S = 5.0
HERE = Path(__file__).parent

COMPRESSIONS = {
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


class Recorder:
    """Takes the frames that a step made the client send."""

    def __init__(self, broker: StubBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.mark = 0

    def skip(self) -> None:
        """Forget what was sent up to now."""
        self.mark = len(self.broker.frames)

    def take(self, kind: str, *names: str) -> None:
        """Store the next frames of ``kind`` since the last ``skip``, one for each name."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = [frame for name, frame in self.broker.frames[self.mark :] if name == kind]
            if len(found) >= len(names):
                for name, frame in zip(names, found, strict=False):
                    (self.folder / f"{name}.hex").write_text(wrapped_hex(frame))
                return
            time.sleep(0.01)
        sent = sorted({name for name, _ in self.broker.frames[self.mark :]})
        raise SystemExit(f"the client sent no {kind} for {names}; it sent {sent}")


def wrapped_hex(frame: bytes) -> str:
    text = frame.hex()
    return "\n".join(text[i : i + 96] for i in range(0, len(text), 96)) + "\n"


def produce(client: pulsar.Client, rec: Recorder) -> None:
    producer = client.create_producer("plain", producer_name="golden", batching_enabled=False)
    rec.take("CONNECT", "connect")
    rec.take("PARTITIONED_METADATA", "partitioned_metadata")
    rec.take("LOOKUP", "lookup")
    rec.take("PRODUCER", "producer")
    rec.skip()
    producer.send(b"hello")
    rec.take("SEND", "send_plain")
    rec.skip()
    producer.send(
        b"keyed",
        partition_key="key-1",
        ordering_key="order-1",
        properties={"a": "1", "ü": "ö"},
        event_timestamp=1_700_000_000_123,
        sequence_id=4_000_000_000,
    )
    rec.take("SEND", "send_properties")
    rec.skip()
    producer.close()
    rec.take("CLOSE_PRODUCER", "close_producer")
    for name, kind in COMPRESSIONS.items():
        produce_compressed(client, rec, name, kind)
    produce_batch(client, rec)


def produce_compressed(
    client: pulsar.Client, rec: Recorder, name: str, kind: pulsar.CompressionType
) -> None:
    rec.skip()
    producer = client.create_producer(
        f"compressed-{name}", compression_type=kind, batching_enabled=False
    )
    producer.send(b"squeeze " * 64)
    rec.take("SEND", f"send_{name}")
    producer.close()
    rec.skip()
    producer = client.create_producer(
        f"compressed-batch-{name}",
        compression_type=kind,
        batching_enabled=True,
        batching_max_publish_delay_ms=1000,
    )
    for i in range(5):
        producer.send_async(b"squeeze %d " % i * 16, lambda *_: None)
    producer.flush()
    rec.take("SEND", f"send_batch_{name}")
    producer.close()


def produce_batch(client: pulsar.Client, rec: Recorder) -> None:
    rec.skip()
    producer = client.create_producer(
        "batched", batching_enabled=True, batching_max_publish_delay_ms=1000
    )
    for i in range(5):
        producer.send_async(
            b"message %d" % i,
            lambda *_: None,
            properties={"i": str(i)},
            partition_key=f"key-{i}",
            event_timestamp=1_700_000_000_000 + i,
        )
    producer.flush()
    rec.take("SEND", "send_batch")
    rec.skip()
    producer.send(b"alone")
    rec.take("SEND", "send_batch_of_one")
    producer.close()


def produce_chunks(folder: Path) -> None:
    """Chunks are as large as the broker allows; a stub that allows little keeps them small."""
    with stub_broker(max_message_size=4096) as broker:
        client = pulsar.Client(f"pulsar://127.0.0.1:{broker.port}", logger=None)
        rec = Recorder(broker, folder)
        producer = client.create_producer("chunked", chunking_enabled=True, batching_enabled=False)
        producer.send(random.Random(1).randbytes(6000))
        rec.take("SEND", "send_chunk_0", "send_chunk_1")
        client.close()


def consume(client: pulsar.Client, rec: Recorder) -> None:
    rec.skip()
    consumer = client.subscribe(
        "batched",
        "sub",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        properties={"p": "q"},
        batch_index_ack_enabled=True,
        receiver_queue_size=100,
        negative_ack_redelivery_delay_ms=100,
    )
    rec.take("SUBSCRIBE", "subscribe_shared")
    messages = [consumer.receive(5000) for _ in range(6)]
    rec.take("FLOW", "flow")
    assert [m.data() for m in messages] == [b"message %d" % i for i in range(5)] + [b"alone"]
    rec.skip()
    consumer.acknowledge(messages[0])
    rec.take("ACK", "ack_batch_index")
    rec.skip()
    consumer.negative_acknowledge(messages[5])
    rec.take("REDELIVER_UNACKNOWLEDGED_MESSAGES", "redeliver")
    rec.skip()
    consumer.seek(pulsar.MessageId.earliest)
    rec.take("SEEK", "seek_earliest")
    rec.skip()
    consumer.seek(1_700_000_000_000)
    rec.take("SEEK", "seek_time")
    rec.skip()
    consumer.get_last_message_id()
    rec.take("GET_LAST_MESSAGE_ID", "get_last_message_id")
    rec.skip()
    consumer.unsubscribe()
    rec.take("UNSUBSCRIBE", "unsubscribe")


def acknowledge(client: pulsar.Client, rec: Recorder) -> None:
    """One plain, several at once, cumulative, and through a key-shared subscription."""
    producer = client.create_producer("acks", batching_enabled=False)
    for i in range(10):
        producer.send(b"%d" % i)
    consumer = client.subscribe(
        "acks", "sub", initial_position=pulsar.InitialPosition.Earliest, consumer_name="c1"
    )
    rec.take("SUBSCRIBE", "subscribe_exclusive")
    messages = [consumer.receive(5000) for _ in range(10)]
    rec.skip()
    consumer.acknowledge(messages[0])
    rec.take("ACK", "ack_one")
    rec.skip()
    for i in (2, 4, 6):
        consumer.acknowledge(messages[i])
    rec.take("ACK", "ack_list")
    rec.skip()
    consumer.acknowledge_cumulative(messages[7])
    rec.take("ACK", "ack_cumulative")
    rec.skip()
    consumer.close()
    rec.take("CLOSE_CONSUMER", "close_consumer")


def cumulative_in_batch(client: pulsar.Client, rec: Recorder) -> None:
    consumer = client.subscribe(
        "batched",
        "sub2",
        batch_index_ack_enabled=True,
        initial_position=pulsar.InitialPosition.Earliest,
        consumer_type=pulsar.ConsumerType.Failover,
    )
    rec.take("SUBSCRIBE", "subscribe_failover")
    messages = [consumer.receive(5000) for _ in range(3)]
    rec.skip()
    consumer.acknowledge_cumulative(messages[2])
    rec.take("ACK", "ack_cumulative_batch_index")
    consumer.close()


def key_shared(client: pulsar.Client, rec: Recorder) -> None:
    rec.skip()
    consumer = client.subscribe(
        "acks",
        "keys",
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=pulsar.InitialPosition.Earliest,
        key_shared_policy=pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 100), (200, 65535)]
        ),
        schema=JsonSchema(Flight),
    )
    rec.take("SUBSCRIBE", "subscribe_key_shared_json")
    rec.skip()
    consumer.redeliver_unacknowledged_messages()
    rec.take("REDELIVER_UNACKNOWLEDGED_MESSAGES", "redeliver_all")
    consumer.close()


def read(client: pulsar.Client, rec: Recorder) -> None:
    rec.skip()
    reader = client.create_reader("acks", pulsar.MessageId.earliest)
    rec.take("SUBSCRIBE", "subscribe_reader")
    first = reader.read_next(5000)
    rec.skip()
    reader.seek(first.message_id())
    rec.take("SEEK", "seek_id")
    rec.skip()
    reader.has_message_available()
    rec.take("GET_LAST_MESSAGE_ID", "get_last_message_id")
    reader.close()


def look(client: pulsar.Client, rec: Recorder) -> None:
    rec.skip()
    consumer = client.subscribe(re.compile("persistent://public/default/a.*"), "pattern")
    rec.take("GET_TOPICS_OF_NAMESPACE", "get_topics_of_namespace")
    consumer.close()
    rec.skip()
    producer = client.create_producer(
        "typed",
        schema=JsonSchema(Flight),
        access_mode=pulsar.ProducerAccessMode.Exclusive,
        properties={"team": "x"},
        initial_sequence_id=41,
    )
    rec.take("PRODUCER", "producer_exclusive_json")
    rec.skip()
    producer.send(Flight(carrier="UA", delay=3))
    rec.take("SEND", "send_json")
    producer.close()


class Flight(Record):
    carrier = String()
    delay = Integer()


def main() -> None:
    folder = HERE / f"pulsar-client-{version('pulsar-client')}"
    folder.mkdir(exist_ok=True)
    with stub_broker() as broker:
        client = pulsar.Client(f"pulsar://127.0.0.1:{broker.port}")
        rec = Recorder(broker, folder)
        for step in (produce, consume, acknowledge, cumulative_in_batch, key_shared, read, look):
            step(client, rec)
        client.close()
    produce_chunks(folder)
    print(f"{len(list(folder.glob('*.hex')))} frames in {folder}")


if __name__ == "__main__":
    main()
