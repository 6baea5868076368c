"""Consumers that do not read share one bound, and cost those who do nothing."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pulsar

from magnetar.env.network.connections import Connections
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.interop.pulsar.services import MemoryService
from tests.interop.pulsar.wire import Wire

MIB = 1 << 20
SLOW = 40
MESSAGES = 60
MESSAGE_BYTES = 256 << 10
BUDGET_BYTES = 4 * MIB
TIMEOUT_MS = 60_000


def test_many_that_do_not_read_are_bounded_together() -> None:
    service = MemoryService(Connections(unsent_bytes_max=BUDGET_BYTES))
    try:
        with ExitStack() as stack:
            for number in range(SLOW):
                wire = stack.enter_context(Wire(service.url))
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                wire.subscribe("slow", f"slow-{number}")
                flow = BaseCommand(type=BaseCommand.FLOW)
                flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
                wire.send(encode_command(flow))
            client = pulsar.Client(service.url)
            reading = client.subscribe("slow", "reading", receiver_queue_size=10)
            producer = client.create_producer("slow", batching_enabled=False)
            most = 0
            for number in range(MESSAGES):
                producer.send(b"%d" % number + bytes(MESSAGE_BYTES))  # its receipt comes
                most = max(most, service.run(unsent_of(service)))
            for number in range(MESSAGES):
                got = reading.receive(TIMEOUT_MS)
                assert got.data().startswith(b"%d\0" % number)
                reading.acknowledge(got)
            most = max(most, service.run(unsent_of(service)))
            client.close()
        assert most > 0, "they did not read"
        # What is given in the turn in which the bound is reached: a message each, at most.
        assert most < BUDGET_BYTES + SLOW * MESSAGE_BYTES, "1 MiB each, without a common bound"
    finally:
        service.close()


async def unsent_of(service: MemoryService) -> int:
    return service.broker.pulsar.unsent_bytes
