"""CPU microseconds per entry of dispatch alone: no socket, a log in memory.

A subscription with a backlog of 1 KiB entries is drained by one consumer that has permits for all
of it; then the acknowledgements of it are taken, 100 ids a command.

    .venv/bin/python -m bench.broker_dispatch
"""

from __future__ import annotations

import asyncio
import time

from bench.broker_publish import MESSAGE_BYTES, NullTransport, connected, feed, send_frame
from magnetar.app.broker import Broker
from magnetar.config import BrokerConfig
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.doubles.memory_log import MemoryLogStore
from tests.doubles.memory_metadata import MemoryMetadata
from tests.doubles.memory_values import MemoryValues

ENTRIES = 50_000
IDS = 100


async def fill(session: Session) -> None:
    """Publish the backlog."""
    data = bytes(MESSAGE_BYTES)
    for first in range(0, ENTRIES, 1000):
        feed(session, b"".join(send_frame(1, first + i, data) for i in range(1000)))
        await asyncio.sleep(0)


async def drain(session: Session, transport: NullTransport, kind: int) -> tuple[float, float]:
    """CPU microseconds per entry: dispatch, acknowledgement."""
    ask = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = ask.subscribe
    request.topic, request.subscription, request.subType = "bench-0", f"s{kind}", kind
    request.consumer_id = request.request_id = kind + 1
    request.initialPosition = CommandSubscribe.Earliest
    feed(session, encode_command(ask))
    while kind + 1 not in session.consumers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    flow = BaseCommand(type=BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = kind + 1, ENTRIES
    consumer = session.consumers[kind + 1].consumer
    begun = time.process_time()
    feed(session, encode_command(flow))
    while consumer.entries_out < ENTRIES:  # noqa: ASYNC110
        await asyncio.sleep(0)
    dispatched = time.process_time()
    for first in range(0, ENTRIES, IDS):
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id, ack.ack.ack_type = kind + 1, 0
        for number in range(first, first + IDS):
            ack.ack.message_id.add(ledgerId=1, entryId=number)
        feed(session, encode_command(ack))
    acknowledged = time.process_time()
    assert transport.written > ENTRIES * MESSAGE_BYTES
    scale = 1e6 / ENTRIES
    return (dispatched - begun) * scale, (acknowledged - dispatched) * scale


async def measure() -> None:
    config = BrokerConfig(port=0, unacknowledged_per_consumer_max=ENTRIES)
    broker = Broker(config, MemoryLogStore(1_000_000), MemoryMetadata(), MemoryValues())
    await broker.start()
    session, transport = await connected(broker, "bench-0")
    await fill(session)
    for kind, name in ((0, "exclusive"), (1, "shared")):
        dispatch, acks = await drain(session, transport, kind)
        print(f"{name}: dispatch {dispatch:.2f} us, acknowledgement {acks:.2f} us an entry")
    await broker.close()


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()
