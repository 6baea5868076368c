"""The shapes of the real clients that are not a producer's: acknowledgements, a bookie's adds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from bench.acknowledging import AcknowledgePhase, AcknowledgeWorker
from bench.bookie_pieces import PieceWriter
from bench.consuming import Consumed, Consumer
from bench.wire_client import CLIENT_ID
from magnetar.wire.pulsar.commands import decode_command, encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandAck

Handle = Callable[[socket.socket], None]


def serve(handle: Handle) -> tuple[int, threading.Thread]:
    """A server for one connection, in a thread; returns its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listening, listening.accept()[0] as peer:
            handle(peer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return int(listening.getsockname()[1]), thread


def message_frame(entry_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = CLIENT_ID
    command.message.message_id.ledgerId, command.message.message_id.entryId = 7, entry_id
    metadata = b"\x0a\x01p\x10\x00\x18\x01"  # producer_name, sequence_id, publish_time
    return encode_payload_command(command, len(metadata).to_bytes(4, "big") + metadata + b"x")


def commands_in(data: bytes) -> list[BaseCommand]:
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(decode_command(memoryview(data), at + 4, end))
        at = end
    return found


@pytest.mark.parametrize(("mode", "sizes"), [("single", [1, 1, 1]), ("individual", [3])])
def test_one_command_for_each_acknowledgement_or_for_all(mode: str, sizes: list[int]) -> None:
    ours, theirs = socket.socketpair()
    consumer = Consumer(ours, 0, mode)
    theirs.recv(1 << 16)  # its FLOW
    theirs.sendall(b"".join(message_frame(i) for i in range(3)))
    total = Consumed()
    consumer.receive(total)
    assert total.messages == 3
    acks = [command.ack for command in commands_in(theirs.recv(1 << 16))]
    assert [len(ack.message_id) for ack in acks] == sizes
    assert {ack.ack_type for ack in acks} == {CommandAck.Individual}
    assert [item.entryId for ack in acks for item in ack.message_id] == [0, 1, 2]


def test_a_cursor_gets_every_acknowledgement_once_and_says_when_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("bench.acknowledging.open_consumer", lambda *_: ours)
    theirs.sendall(b"".join(message_frame(i) for i in range(5)))
    worker = AcknowledgeWorker("host", 1, "topic", "subscription", 5)
    answer = BaseCommand(type=BaseCommand.ACK_RESPONSE)
    answer.ackResponse.consumer_id, answer.ackResponse.request_id = CLIENT_ID, 99
    theirs.sendall(encode_command(answer))
    assert worker.run(AcknowledgePhase()).messages == 5
    flow, *acks = commands_in(theirs.recv(1 << 16))
    assert flow.flow.messagePermits == 5
    assert [ack.ack.message_id[0].entryId for ack in acks] == [0, 2, 4, 1, 3]
    assert [ack.ack.HasField("request_id") for ack in acks] == [False] * 4 + [True]


def test_adds_in_pieces_are_whole_frames_and_their_answers_are_checked() -> None:
    frames: list[bytes] = []

    def bookie(peer: socket.socket) -> None:
        stream = peer.makefile("rb")
        while size := stream.read(4):
            frame = stream.read(int.from_bytes(size, "big"))
            frames.append(frame)
            code = 101 if len(frames) > 50 else 0
            ids = frame[24:40]
            peer.sendall((24).to_bytes(4, "big") + frame[:4] + code.to_bytes(4, "big") + ids)

    port, thread = serve(bookie)
    writer = PieceWriter(port, entry_bytes=200)
    writer.add(50, depth=7)
    assert [int.from_bytes(frame[32:40], "big") for frame in frames] == list(range(50))
    assert {len(frame) for frame in frames} == {24 + 200}
    with pytest.raises(SystemExit, match="add of entry 50 was answered with 101"):
        writer.add(1)
    writer.close()
    thread.join(30)
