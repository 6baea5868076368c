"""What a reconnected producer sends again is recognised, and nothing else is."""

from __future__ import annotations

import asyncio

from magnetar.model.ids import Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.resend import STEP_ENTRIES, ResendWindow, stored_frames
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.doubles.memory_log import MemoryLog

FORMAT = PulsarEntryFormat()


def frame(name: str, sequence_id: int, body: bytes = b"x", published_ms: int = 1) -> bytes:
    metadata = MessageMetadata(
        producer_name=name, sequence_id=sequence_id, publish_time=published_ms
    ).SerializeToString()
    rest = len(metadata).to_bytes(4, "big") + metadata + body
    return b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest


async def log_of(*frames: bytes) -> MemoryLog:
    log = MemoryLog("t", 700)
    for item in frames:
        log.append([item], lambda *_: None)
    await asyncio.sleep(0.01)
    return log


def view(data: bytes) -> memoryview:
    return memoryview(data)


def test_stored_frames_are_found_in_order_with_their_positions() -> None:
    async def scenario() -> None:
        frames = [frame("p", n) for n in range(5)]
        log = await log_of(*frames)
        window = await stored_frames(log, "p", FORMAT)
        found = [window.find(n, view(frames[n])) for n in range(5)]
        assert found == sorted(p for p in found if p is not None)
        assert len(set(found)) == 5

    asyncio.run(scenario())


def test_the_first_unknown_frame_closes_the_window() -> None:
    async def scenario() -> None:
        log = await log_of(frame("p", 0), frame("p", 1))
        window = await stored_frames(log, "p", FORMAT)
        assert window.find(0, view(frame("p", 0))) is not None
        assert window.find(7, view(frame("p", 7))) is None
        assert window.find(1, view(frame("p", 1))) is None

    asyncio.run(scenario())


def test_other_producers_other_contents_and_plain_frames_are_no_repeats() -> None:
    async def scenario() -> None:
        plain = frame("p", 3)[6:]
        log = await log_of(frame("other", 1), frame("p", 2, b"old"), plain, b"garbage")
        window = await stored_frames(log, "p", FORMAT)
        assert len(window) == 1
        for sequence_id, data in (
            (1, frame("p", 1)),
            (2, frame("p", 2, b"new")),
            (2, frame("p", 2, b"old", published_ms=2)),
            (3, plain),
        ):
            window = await stored_frames(log, "p", FORMAT)
            assert window.find(sequence_id, view(data)) is None

    asyncio.run(scenario())


def test_a_frame_is_a_repeat_once_only() -> None:
    data = frame("p", 0)
    key = FORMAT.fingerprint(0, view(data))
    assert key is not None
    window = ResendWindow({key: Position(1, 0)}, FORMAT)
    assert window.find(0, view(data)) == Position(1, 0)
    assert window.find(0, view(data)) is None


def test_the_whole_end_of_the_log_is_searched_over_many_steps() -> None:
    async def scenario() -> None:
        count = STEP_ENTRIES * 3 + 17
        log = await log_of(*(frame("p", n) for n in range(count)))
        assert len(await stored_frames(log, "p", FORMAT)) == count

    asyncio.run(scenario())


def test_an_empty_log_has_nothing() -> None:
    async def scenario() -> None:
        assert len(await stored_frames(await log_of(), "p", FORMAT)) == 0

    asyncio.run(scenario())
