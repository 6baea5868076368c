"""The load generator against the null broker, and against brokers that misbehave."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.loadgen import ConsumeLoad, PublishLoad, Target, consume, publish
from bench.publishing import HEAD_BYTES, PiecePublisher, Publisher
from bench.wire_client import CLIENT_ID, FIRST_SEQUENCE_ID, RefusedError, send_frame
from magnetar.wire.pulsar import replies
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.commands import encode_command
from magnetar.wire.pulsar.encoders import ReceiptEncoder
from magnetar.wire.pulsar.hot import decode_send, verify_checksum
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.null_broker"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield Target("127.0.0.1", port, "topic", (process.pid,))
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "load",
    [
        PublishLoad(connections=3, depth=100, entries=5000, warmup_entries=300),
        PublishLoad(connections=5, depth=1, entries=501),
        PublishLoad(connections=2, depth=4, entries=300, batch=7, processes=2),
        PublishLoad(connections=1, depth=3, entries=20, message_bytes=500_000),
        PublishLoad(connections=3, rate=5000.0, entries=1000),
        PublishLoad(connections=2, depth=100, entries=500, pieces=True),
        PublishLoad(depth=10, entries=100, batch=100, message_bytes=1000, pieces=True),
    ],
)
def test_every_entry_is_acknowledged_and_counted(target: Target, load: PublishLoad) -> None:
    report = publish(target, load)
    assert report["entries"] == load.entries
    latency = report["latency_ms"]
    assert isinstance(latency, dict)
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert float(str(report["generator_cpu_us_per_entry"])) >= 0


def test_a_rate_is_kept(target: Target) -> None:
    """Never faster; slower now and then, on a machine that has no time for it."""
    runs: list[float] = []
    while len(runs) < 5 and (not runs or runs[-1] > 1.5):
        report = publish(target, PublishLoad(connections=2, rate=2000.0, seconds=0.5))
        assert report["entries"] == 1000
        runs.append(float(str(report["seconds"])))
        assert runs[-1] >= 0.45
    assert runs[-1] <= 1.5, runs


def test_consuming(target: Target) -> None:
    publish(target, PublishLoad(entries=1))
    report = consume(target, ConsumeLoad(connections=2, messages=5000, acknowledge="cumulative"))
    assert int(str(report["messages"])) >= 10_000


def publisher() -> tuple[Publisher, socket.socket]:
    ours, theirs = socket.socketpair()
    frame, offset = send_frame(100, 0)
    made = Publisher(ours, frame, offset)
    made.send(3)
    return made, theirs


def test_the_frames_are_good_sends() -> None:
    _, theirs = publisher()
    data = theirs.recv(1 << 16)
    at, sequences = 0, []
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        send = decode_send(memoryview(data), at + 4, end)
        verify_checksum(memoryview(data), send.payload_start, send.payload_end)
        [(_, value)] = iterate_messages(data[send.payload_start : send.payload_end])
        assert len(value) == 100
        sequences.append(send.sequence_id)
        at = end
    assert sequences == [FIRST_SEQUENCE_ID + i for i in range(3)]


class Pieces(socket.socket):
    """Notes what each write asks for, and takes only part of a large one."""

    asked: list[int]

    def send(self, data: bytes, flags: int = 0) -> int:  # type: ignore[override]
        self.asked.append(len(data))
        return super().send(data[:50_000], flags)


def test_small_pieces_are_a_head_and_the_rest_of_each_frame() -> None:
    ours, theirs = socket.socketpair()
    noting = Pieces(fileno=ours.detach())
    noting.asked = []
    frame, offset = send_frame(1000, 0)
    made = PiecePublisher(noting, frame, offset)
    made.send(3)
    assert noting.asked == [HEAD_BYTES, len(frame) - HEAD_BYTES] * 3
    assert len(theirs.recv(1 << 16)) == 3 * len(frame)


def test_a_piece_that_the_kernel_takes_half_of_goes_on_where_it_stopped() -> None:
    ours, theirs = socket.socketpair()
    noting = Pieces(fileno=ours.detach())
    noting.asked = []
    frame, offset = send_frame(60_000, 0)
    made = PiecePublisher(noting, frame, offset)
    made.send(1)
    rest = len(frame) - HEAD_BYTES
    assert noting.asked == [HEAD_BYTES, rest, rest - 50_000]
    data = bytearray()
    while len(data) < len(frame):
        data += theirs.recv(1 << 16)
    assert data[offset + 4 :] == frame[offset + 4 :]


def receipts(*offsets: int) -> bytes:
    encoder = ReceiptEncoder(CLIENT_ID)
    return b"".join(encoder.encode(FIRST_SEQUENCE_ID + i, 7, i) for i in offsets)


def test_receipts_in_pieces() -> None:
    made, theirs = publisher()
    data = receipts(0, 1, 2)
    for i in range(0, len(data), 10):
        theirs.sendall(data[i : i + 10])
        made.receive()
    assert made.outstanding == 0


@pytest.mark.parametrize("offsets", [(1,), (0, 0), (0, 2)])
def test_receipts_out_of_order_end_the_run(offsets: tuple[int, ...]) -> None:
    made, theirs = publisher()
    theirs.sendall(receipts(*offsets))
    with pytest.raises(RefusedError, match="was due"):
        made.receive()


def test_an_error_ends_the_run() -> None:
    made, theirs = publisher()
    theirs.sendall(replies.send_error(CLIENT_ID, FIRST_SEQUENCE_ID, 9, "bad checksum"))
    with pytest.raises(RefusedError, match="bad checksum"):
        made.receive()


def test_a_closed_connection_ends_the_run() -> None:
    made, theirs = publisher()
    theirs.close()
    with pytest.raises((RefusedError, ConnectionResetError)):
        made.receive()


def test_ping_is_answered() -> None:
    made, theirs = publisher()
    theirs.recv(1 << 16)
    ping = BaseCommand(type=BaseCommand.PING)
    ping.ping.SetInParent()
    pong = BaseCommand(type=BaseCommand.PONG)
    pong.pong.SetInParent()
    theirs.sendall(receipts(0) + encode_command(ping) + receipts(1))
    assert made.receive() == 2
    assert theirs.recv(1 << 16) == encode_command(pong)
