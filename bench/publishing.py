"""The publishing half of the load generator: one process, many connections, one epoll loop.

A connection owns a buffer of ready frames; to send n entries it writes n sequence ids into the
first n frames and gives the kernel one slice. Receipts are read by their fixed places. So an entry
costs the generator about a microsecond besides the kernel's copy. Whatever is not a receipt in
order ends the run with an error.

``pieces`` sends as a Java client does: every SEND written by itself, in two pieces (its head, then
the rest), as soon as a receipt makes room for it. The broker then finds little in each chunk.

Closed loop: each connection keeps at most ``depth`` entries outstanding. Open loop: entry i is
due at start + i / rate whatever happened to those before it, and its latency counts from then.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from bench.measure import Histogram
from bench.wire_client import CLIENT_ID, FIRST_SEQUENCE_ID, RefusedError, open_producer, send_frame
from magnetar.wire.pulsar.commands import decode_command

BUFFER_BYTES = 256 * 1024
STALL_S = 30.0
HEAD_BYTES = 64  # of a SEND, about: its command and metadata, which a Java client writes first
TICK_S = 50e-6  # the open loop sends at most this often: bounds the generator's own CPU
_RECEIPT = struct.Struct(">IIHBBHBI")  # sizes, type, body tag and size, producer, tag, sequence id
_SEQUENCE = struct.Struct("<I")


@dataclass(frozen=True)
class Phase:
    """How much to publish: ``entries`` in all, or for ``seconds``; at ``rate`` entries/s or, with
    0, as fast as ``depth`` outstanding entries per connection allow."""

    entries: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    depth: int = 1


@dataclass
class Outcome:
    """What a phase did. ``lag``: how late the generator itself was in sending (open loop)."""

    entries: int = 0
    seconds: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)


class Publisher:
    """One connection."""

    def __init__(self, sock: socket.socket, frame: bytes, sequence_offset: int) -> None:
        self.sock = sock
        self.frame_bytes = len(frame)
        self.capacity = max(1, BUFFER_BYTES // len(frame))
        self._buffer = bytearray(frame * self.capacity)
        self._view = memoryview(self._buffer)
        self._places = [i * len(frame) + sequence_offset for i in range(self.capacity)]
        self._unsent = self._view[:0]
        self._received = bytearray(64 * 1024)
        self._received_bytes = 0
        self.sent = FIRST_SEQUENCE_ID  # next sequence id to send
        self.acked = FIRST_SEQUENCE_ID  # next sequence id to be acknowledged
        self.due: deque[tuple[int, float]] = deque()  # (end of sequence ids, when they were due)
        self.backlog: deque[float] = deque()  # due and not sent (open loop)
        self._settled = FIRST_SEQUENCE_ID

    @property
    def outstanding(self) -> int:
        return self.sent - self.acked

    @property
    def blocked(self) -> bool:
        """The kernel has not taken the last burst yet."""
        return len(self._unsent) > 0

    def send(self, count: int) -> None:
        """Send ``count`` entries, ``capacity`` at most; must not be ``blocked``."""
        pack, buffer, sequence = _SEQUENCE.pack_into, self._buffer, self.sent
        for place in self._places[:count]:
            bits = (
                sequence & 127
                | (sequence & 0x3F80) << 1
                | (sequence & 0x1FC000) << 2
                | (sequence & 0xFE00000) << 3
                | 0x808080
            )
            pack(buffer, place, bits)
            sequence += 1
        self.sent = sequence
        self._unsent = self._view[: count * self.frame_bytes]
        self.flush()

    def flush(self) -> None:
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            return

    def receive(self) -> int:
        """Read what is there; how many entries it acknowledged."""
        view = memoryview(self._received)
        count = self.sock.recv_into(view[self._received_bytes :])
        if not count:
            raise RefusedError("the broker closed the connection")
        end = self._received_bytes + count
        before = self.acked
        at = self._take_receipts(end)
        self._received[: end - at] = self._received[at:end]
        self._received_bytes = end - at
        return self.acked - before

    def settle(self, now: float, latency: Histogram) -> None:
        """Record the latencies of what was acknowledged since the last call."""
        while self.due and self._settled < self.acked:
            end, due = self.due[0]
            upto = min(end, self.acked)
            latency.record(now - due, upto - self._settled)
            self._settled = upto
            if upto == end:
                self.due.popleft()

    def _take_receipts(self, end: int) -> int:
        """Walk the whole frames of the buffer; where the first partial one starts."""
        at, buffer, acked = 0, self._received, self.acked
        unpack = _RECEIPT.unpack_from
        while end - at >= 19:
            total, _, kind, _, _, producer, _, bits = unpack(buffer, at)
            if end - at < 4 + total:
                break
            if kind != 0x0807 or producer != 0x0800 | CLIENT_ID:
                self._other_command(at, at + 4 + total)
            else:
                sequence = (
                    bits >> 24 & 127
                    | (bits >> 16 & 127) << 7
                    | (bits >> 8 & 127) << 14
                    | (bits & 127) << 21
                )
                if sequence != acked:
                    raise RefusedError(f"receipt for {sequence} where {acked} was due")
                acked += 1
            at += 4 + total
        if 4 <= end - at < 19:  # a short frame: PING is one
            total = int.from_bytes(buffer[at : at + 4], "big")
            if end - at >= 4 + total:
                self._other_command(at, at + 4 + total)
                at += 4 + total
        self.acked = acked
        return at

    def _other_command(self, start: int, end: int) -> None:
        command = decode_command(memoryview(self._received[start:end]), 4, end - start)
        if command.type != command.PING:
            raise RefusedError(f"the broker said: {str(command).strip()}")
        # PONG: a handful of bytes, which may only go between whole SENDs
        if not self.blocked:
            self.sock.send(b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x13\x9a\x01\x00")


class PiecePublisher(Publisher):
    """As ``Publisher``, but every frame goes out by itself, in two writes."""

    def flush(self) -> None:
        """Write piece by piece what is unsent, as far as the kernel takes it."""
        size = self.frame_bytes
        try:
            while len(self._unsent) > 0:
                left = len(self._unsent) % size or size  # of the frame that comes next
                piece = HEAD_BYTES - (size - left)
                piece = piece if piece > 0 else left
                self._unsent = self._unsent[self.sock.send(self._unsent[:piece]) :]
        except BlockingIOError:
            return


class PublishWorker:
    """All connections of one process."""

    def __init__(
        self,
        host: str,
        port: int,
        topics: list[str],
        message_bytes: int,
        batch: int,
        pieces: bool = False,
    ) -> None:
        frame, offset = send_frame(message_bytes, batch)
        kind = PiecePublisher if pieces else Publisher
        self._as_they_come = pieces
        self._poll = select.epoll()
        self._by_fd: dict[int, Publisher] = {}
        for topic in topics:
            sock = open_producer(host, port, topic)
            sock.setblocking(False)
            self._by_fd[sock.fileno()] = kind(sock, frame, offset)
            self._poll.register(sock.fileno(), select.EPOLLIN)
        self._publishers = list(self._by_fd.values())
        self.entry_bytes = len(frame)

    def run(self, phase: Phase) -> Outcome:
        """Publish as ``phase`` says and wait for every receipt."""
        return self._open_loop(phase) if phase.rate else self._closed_loop(phase)

    def _closed_loop(self, phase: Phase) -> Outcome:
        outcome = Outcome()
        start = time.perf_counter()
        stop = start + phase.seconds if phase.seconds else float("inf")
        left = phase.entries or 1 << 62
        for publisher in self._publishers:
            left -= self._refill(publisher, min(phase.depth, left))
        few = max(1, min(phase.depth, self._publishers[0].capacity) // 4)
        if self._as_they_come:
            few = 1
        while any(publisher.outstanding for publisher in self._publishers):
            for publisher in self._wait(STALL_S, outcome, must_hear=True):
                room = phase.depth - publisher.outstanding
                if room >= few and left and time.perf_counter() < stop:
                    left -= self._refill(publisher, min(room, left))
        outcome.seconds = time.perf_counter() - start
        return outcome

    def _refill(self, publisher: Publisher, room: int) -> int:
        """Send what fits into ``room``; how many entries that was."""
        sent = 0
        while sent < room and not publisher.blocked:
            count = min(room - sent, publisher.capacity)
            publisher.due.append((publisher.sent + count, time.perf_counter()))
            self._send(publisher, count)
            sent += count
        return sent

    def _open_loop(self, phase: Phase) -> Outcome:
        outcome = Outcome()
        total = phase.entries or int(phase.seconds * phase.rate)
        issued = 0
        start = time.perf_counter()
        while issued < total or any(publisher.outstanding for publisher in self._publishers):
            now = time.perf_counter()
            due = min(total, int((now - start) * phase.rate) + 1)
            for entry in range(issued, due):
                publisher = self._publishers[entry % len(self._publishers)]
                publisher.backlog.append(start + entry / phase.rate)
            issued = max(issued, due)
            for publisher in self._publishers:
                self._send_backlog(publisher, outcome)
            if issued < total:
                next_s = start + issued / phase.rate - time.perf_counter()
                self._wait(max(next_s, TICK_S), outcome, must_hear=False)
            else:
                self._wait(STALL_S, outcome, must_hear=True)
        outcome.seconds = time.perf_counter() - start
        return outcome

    def _send_backlog(self, publisher: Publisher, outcome: Outcome) -> None:
        """Send the entries that are due, as far as the kernel takes them."""
        while publisher.backlog and not publisher.blocked:
            count = min(len(publisher.backlog), publisher.capacity)
            now = time.perf_counter()
            for i in range(count):
                due = publisher.backlog.popleft()
                outcome.lag.record(now - due)
                publisher.due.append((publisher.sent + i + 1, due))
            self._send(publisher, count)

    def _send(self, publisher: Publisher, count: int) -> None:
        publisher.send(count)
        if publisher.blocked:
            self._poll.modify(publisher.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _wait(self, timeout_s: float, outcome: Outcome, must_hear: bool) -> list[Publisher]:
        """Read and write what is possible; the publishers that may send more.

        ``select`` waits with a microsecond's resolution, which epoll has not.
        """
        select.select((self._poll.fileno(),), (), (), timeout_s)
        events = self._poll.poll(0)
        if not events and must_hear:
            raise RefusedError(f"no receipt for {timeout_s:.0f} s")
        ready = []
        for fd, event in events:
            publisher = self._by_fd[fd]
            if event & select.EPOLLOUT:
                publisher.flush()
                if not publisher.blocked:
                    self._poll.modify(fd, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                outcome.entries += publisher.receive()
                publisher.settle(time.perf_counter(), outcome.latency)
            if not publisher.blocked:
                ready.append(publisher)
        return ready

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.sock.close()
        self._poll.close()
