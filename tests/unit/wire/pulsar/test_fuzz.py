"""Any bytes whatever give a value or a ``ProtocolError``, at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.commands import command_type, decode_command
from magnetar.wire.pulsar.hot import decode_ack, decode_flow, decode_send, verify_checksum
from magnetar.wire.pulsar.metadata import batch_size, entry_metadata, publish_time_ms
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.golden.pulsar import frame, names

FRAMES = [frame(name) for name in names() if "chunk" not in name]
PAYLOADS = [data[data.index(b"\x0e\x01") :] for data in FRAMES if b"\x0e\x01" in data]
RELAXED = settings(max_examples=600)
CPU_S_MAX = 2.0
"""Of one input. Its own time, not the clock's: a stall of the machine is no finding."""


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    begun_s = time.thread_time()
    yield
    assert time.thread_time() - begun_s < CPU_S_MAX


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A real frame, spoilt: bytes changed, taken out, put in, or its end cut off."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["set", "cut", "remove", "insert"]))
        if kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


def attempt(call: Callable[[], object]) -> None:
    """The one way to fail is a ProtocolError (ChecksumError is one)."""
    with contextlib.suppress(ProtocolError):
        call()


@at_once()
def decode_all(view: memoryview, start: int, end: int) -> None:
    kind = command_type(view, start)
    attempt(lambda: decode_command(view, start, end))
    attempt(lambda: decode_ack(view, start, end))
    attempt(lambda: decode_flow(view, start, end))
    try:
        send = decode_send(view, start, end)
    except ProtocolError:
        return
    assert start + 4 <= send.payload_start <= send.payload_end == end
    assert kind in (0, BaseCommand.SEND)
    attempt(lambda: verify_checksum(view, send.payload_start, send.payload_end))
    read_payload(bytes(view[send.payload_start : send.payload_end]))


@at_once()
def read_payload(payload: bytes) -> None:
    attempt(lambda: batch_size(payload))
    attempt(lambda: publish_time_ms(payload))
    attempt(lambda: entry_metadata(payload))
    attempt(lambda: list(iterate_messages(payload)))


@given(mutated(FRAMES), st.integers(0, 40))
@RELAXED
def test_spoilt_frames(data: bytes, after: int) -> None:
    """In the middle of a buffer: what follows the frame must not be read as if it were of it."""
    view = memoryview(data + b"\x08" * after)
    decode_all(view, min(4, len(data)), len(data))


@given(st.binary(max_size=64))
@example(b"\x00\x00\x00\x04\x08\x06\x32\x00")
@example(b"\x00\x00\x00\x08\x08\x0a\x52\x04\x08\x01\x10\x00")
@RELAXED
def test_random_frames(data: bytes) -> None:
    decode_all(memoryview(data), 0, len(data))


@given(mutated(PAYLOADS))
@RELAXED
def test_spoilt_entries(payload: bytes) -> None:
    read_payload(payload)


@given(st.binary(max_size=64))
@RELAXED
def test_random_entries(payload: bytes) -> None:
    read_payload(payload)


@given(mutated(FRAMES))
@RELAXED
def test_hot_decoders_accept_nothing_that_protobuf_refuses(data: bytes) -> None:
    view = memoryview(data)
    for decode in (decode_send, decode_ack):
        try:
            decode(view, 4, len(data))
        except ProtocolError:
            continue
        stop = 8 + int.from_bytes(data[4:8], "big")
        parsed = BaseCommand.FromString(data[8:stop])
        assert parsed.IsInitialized()
        assert parsed.HasField("type")
