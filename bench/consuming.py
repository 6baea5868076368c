"""The consuming half of the load generator: counts messages from a topic's start.

One process, many consumers, each exclusive on a subscription of its own. Permits are renewed at
half. Acknowledgements: none, one command for the entries of a received chunk (individual or
cumulative), or ("single") a command for each entry, written by itself, as a Java client that does
not group them.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

from bench.wire_client import CLIENT_ID, RefusedError, open_consumer
from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.metadata import batch_size
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandAck

BUFFER_BYTES = 1 << 20
PERMITS = 2000


@dataclass(frozen=True)
class ConsumePhase:
    """Until ``messages`` have come over all connections, or nothing for ``idle_s``."""

    messages: int
    idle_s: float = 5.0
    acknowledge: str = "none"  # none, individual, cumulative, single


@dataclass
class Consumed:
    """What came. ``seconds`` ends with the last message."""

    messages: int = 0
    entries: int = 0
    received_bytes: int = 0
    seconds: float = 0.0


class Consumer:
    """One connection. ``batch``: messages per entry, 0 to read it from each entry."""

    def __init__(self, sock: socket.socket, batch: int, acknowledge: str) -> None:
        self.sock = sock
        self._batch = batch
        self._acknowledge = acknowledge
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._permits_used = 0
        self._flow(PERMITS)

    def _flow(self, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = CLIENT_ID
        command.flow.messagePermits = permits
        self.sock.sendall(encode_command(command))

    def receive(self, total: Consumed) -> None:
        """Read what is there and add it to ``total``."""
        view = memoryview(self._buffer)
        count = self.sock.recv_into(view[self._filled :])
        if not count:
            raise RefusedError("the broker closed the connection")
        end = self._filled + count
        at = self._take_frames(view, end, total)
        self._buffer[: end - at] = self._buffer[at:end]
        self._filled = end - at
        if at == 0 and end > len(self._buffer) // 2:
            self._buffer = self._buffer + bytes(len(self._buffer))

    def _take_frames(self, view: memoryview, end: int, total: Consumed) -> int:
        at, messages, entries = 0, 0, []
        while end - at >= 12:
            stop = at + 4 + int.from_bytes(view[at : at + 4], "big")
            if stop > end:
                break
            if view[at + 9] == BaseCommand.MESSAGE:
                start = at + 8 + int.from_bytes(view[at + 4 : at + 8], "big")
                messages += self._batch or batch_size(view[start:stop])
                entries.append(at)
            else:
                self._other_command(view, at, stop)
            at = stop
        if entries:
            self._acknowledge_entries(view, entries)
            total.messages += messages
            total.entries += len(entries)
            total.received_bytes += at
            self._permits_used += messages
            if self._permits_used >= PERMITS // 2:
                self._flow(self._permits_used)
                self._permits_used = 0
        return at

    def _acknowledge_entries(self, view: memoryview, entries: list[int]) -> None:
        """Acknowledge the entries whose frames start at these places."""
        if self._acknowledge == "none":
            return
        cumulative = self._acknowledge == "cumulative"
        ids = [message_id(view, at) for at in (entries[-1:] if cumulative else entries)]
        if self._acknowledge == "single":
            for item in ids:
                self.sock.sendall(ack_frame([item]))
        else:
            self.sock.sendall(ack_frame(ids, cumulative=cumulative))

    def _other_command(self, view: memoryview, at: int, stop: int) -> None:
        command = decode_command(view, at + 4, stop)
        if command.type == BaseCommand.PING:
            pong = BaseCommand(type=BaseCommand.PONG)
            pong.pong.SetInParent()
            self.sock.sendall(encode_command(pong))
        elif command.type != BaseCommand.ACTIVE_CONSUMER_CHANGE:
            raise RefusedError(f"the broker said: {str(command).strip()}")


def message_id(view: memoryview, at: int) -> tuple[int, int]:
    """Ledger and entry of the MESSAGE whose frame starts at ``at``."""
    stop = at + 8 + int.from_bytes(view[at + 4 : at + 8], "big")
    found = BaseCommand.FromString(bytes(view[at + 8 : stop])).message.message_id
    return found.ledgerId, found.entryId


def ack_frame(
    ids: list[tuple[int, int]], *, cumulative: bool = False, request_id: int | None = None
) -> bytes:
    """An ACK of entries; one with ``request_id`` is answered when it is stored."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = CLIENT_ID
    command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
    for ledger_id, entry_id in ids:
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    if request_id is not None:
        command.ack.request_id = request_id
    return encode_command(command)


class ConsumeWorker:
    """All consumers of one process."""

    def __init__(
        self,
        host: str,
        port: int,
        topics: list[str],
        subscriptions: list[str],
        batch: int,
        shared: bool = False,
        lookup: bool = True,
    ) -> None:
        how = (shared, lookup)
        pairs = zip(topics, subscriptions, strict=True)
        self._socks = [open_consumer(host, port, topic, name, *how) for topic, name in pairs]
        self._batch = batch

    def run(self, phase: ConsumePhase) -> Consumed:
        """Consume as ``phase`` says; once per worker."""
        total = Consumed()
        start = time.perf_counter()
        poll = select.epoll()
        by_fd = {}
        for sock in self._socks:
            by_fd[sock.fileno()] = Consumer(sock, self._batch, phase.acknowledge)
            poll.register(sock.fileno(), select.EPOLLIN)
        while total.messages < phase.messages:
            events = poll.poll(phase.idle_s)
            if not events:
                raise RefusedError(
                    f"{total.messages} messages came, then none for {phase.idle_s} s; "
                    f"{phase.messages} were expected"
                )
            for fd, _ in events:
                by_fd[fd].receive(total)
        total.seconds = time.perf_counter() - start
        return total

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
