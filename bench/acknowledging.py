"""The acknowledging part of the load generator: what a cursor costs, by itself.

A consumer receives messages without acknowledging any; then each is acknowledged with a command of
its own, written by itself, and the last one asks to be told when all are stored. Only the second
half is a phase. Every second message first, then the others: a cursor that is consumed by several
does not move on in order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.consuming import ack_frame, message_id
from bench.wire_client import CLIENT_ID, RefusedError, open_consumer
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

TIMEOUT_S = 60.0
LAST_REQUEST_ID = 99


@dataclass(frozen=True)
class AcknowledgePhase:
    """Acknowledge everything that was received."""


@dataclass
class Acknowledged:
    messages: int = 0
    seconds: float = 0.0


class AcknowledgeWorker:
    """One consumer with ``count`` unacknowledged messages."""

    def __init__(self, host: str, port: int, topic: str, subscription: str, count: int) -> None:
        self._sock = open_consumer(host, port, topic, subscription)
        self._sock.settimeout(TIMEOUT_S)
        self._stream = self._sock.makefile("rb")
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = CLIENT_ID, count
        self._sock.sendall(encode_command(command))
        self._ids: list[tuple[int, int]] = []
        while len(self._ids) < count:
            frame = self._frame()
            if frame[9] == BaseCommand.MESSAGE:
                self._ids.append(message_id(frame, 0))

    def _frame(self) -> memoryview:
        """The next frame, its size included."""
        size = self._stream.read(4)
        if len(size) < 4:
            raise RefusedError("the broker closed the connection")
        return memoryview(size + self._stream.read(int.from_bytes(size, "big")))

    def run(self, _phase: AcknowledgePhase) -> Acknowledged:
        """One command for each message; ends when all are stored."""
        start = time.perf_counter()
        order = [*self._ids[::2], *self._ids[1::2]]
        for item in order[:-1]:
            self._sock.sendall(ack_frame([item]))
        self._sock.sendall(ack_frame(order[-1:], request_id=LAST_REQUEST_ID))
        while True:
            frame = self._frame()
            command = decode_command(frame, 4, len(frame))
            if command.type == BaseCommand.ACK_RESPONSE:
                break
        if command.ackResponse.HasField("error"):
            raise RefusedError(f"the broker said: {str(command).strip()}")
        return Acknowledged(len(order), time.perf_counter() - start)

    def close(self) -> None:
        self._sock.close()
