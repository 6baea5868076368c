"""What a reconnected producer sends again is recognised, and nothing else is."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.model.ids import Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.publishing import resend
from magnetar.topics.publishing.resend import (
    ENTRIES_MAX,
    FIRST_STEP_ENTRIES,
    KEEP_S,
    STEP_ENTRIES,
    KeptFrames,
    Resends,
    ResendWindow,
    StoredFrames,
)
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_log import MemoryLog

FORMAT = PulsarEntryFormat()
FIRST = 0
"""The client has seen no receipt: no lower id is met, and all is looked through."""


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


def frames_of(log: MemoryLog, kept: KeptFrames | None = None) -> StoredFrames:
    return StoredFrames(log, FORMAT, kept or KeptFrames())


async def stored_frames(log: MemoryLog, name: str) -> ResendWindow:
    """What one producer that comes back first finds."""
    return await frames_of(log).search(name, FIRST)


def view(data: bytes) -> memoryview:
    return memoryview(data)


def test_stored_frames_are_found_in_order_with_their_positions() -> None:
    async def scenario() -> None:
        frames = [frame("p", n) for n in range(5)]
        log = await log_of(*frames)
        window = await stored_frames(log, "p")
        found = [window.find(n, view(frames[n])) for n in range(5)]
        assert found == sorted(p for p in found if p is not None)
        assert len(set(found)) == 5

    asyncio.run(scenario())


def test_the_first_unknown_frame_closes_the_window() -> None:
    async def scenario() -> None:
        log = await log_of(frame("p", 0), frame("p", 1))
        window = await stored_frames(log, "p")
        assert window.find(0, view(frame("p", 0))) is not None
        assert window.find(7, view(frame("p", 7))) is None
        assert window.find(1, view(frame("p", 1))) is None

    asyncio.run(scenario())


def test_other_producers_other_contents_and_plain_frames_are_no_repeats() -> None:
    async def scenario() -> None:
        plain = frame("p", 3)[6:]
        log = await log_of(frame("other", 1), frame("p", 2, b"old"), plain, b"garbage")
        window = await stored_frames(log, "p")
        assert len(window) == 1
        for sequence_id, data in (
            (1, frame("p", 1)),
            (2, frame("p", 2, b"new")),
            (2, frame("p", 2, b"old", published_ms=2)),
            (3, plain),
        ):
            window = await stored_frames(log, "p")
            assert window.find(sequence_id, view(data)) is None

    asyncio.run(scenario())


def test_all_chunks_of_the_first_message_are_searched_for() -> None:
    """They have one sequence id; the first step of the search meets the later ones only."""

    async def scenario() -> None:
        chunks = [frame("p", 7, b"%d" % index) for index in range(FIRST_STEP_ENTRIES + 3)]
        window = await frames_of(await log_of(frame("p", 6), *chunks)).search("p", 7)
        assert None not in [window.find(7, view(chunk)) for chunk in chunks]

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
        assert len(await stored_frames(log, "p")) == count

    asyncio.run(scenario())


def test_an_empty_log_has_nothing() -> None:
    async def scenario() -> None:
        assert len(await stored_frames(await log_of(), "p")) == 0

    asyncio.run(scenario())


def test_the_end_of_the_log_is_read_once_for_all_producers() -> None:
    async def scenario() -> None:
        count = STEP_ENTRIES * 2
        log = await log_of(*(frame(f"p{n % 100}", n) for n in range(count)))
        log.cached = False
        frames = frames_of(log)
        windows = await asyncio.gather(*(frames.search(f"p{n}", FIRST) for n in range(100)))
        assert [len(window) for window in windows] == [count // 100] * 100
        reads = log.reads
        assert len(await frames.search("nobody", FIRST)) == 0
        assert log.reads == reads

    asyncio.run(scenario())


def test_what_came_since_is_read_on() -> None:
    async def scenario() -> None:
        log = await log_of(*(frame("p", n) for n in range(1000)))
        frames = frames_of(log)
        first = await frames.search("p", FIRST)
        assert len(first) == 1000
        later = frame("p", 1000)
        log.append([later], lambda *_: None)
        await asyncio.sleep(0.01)
        second = await frames.search("p", FIRST)
        assert second.find(1000, view(later)) == log.positions.readable
        assert first.find(1000, view(later)) is None, "an earlier window is its own"

    asyncio.run(scenario())


def test_the_search_is_bounded_and_the_newest_are_found() -> None:
    async def scenario() -> None:
        count = ENTRIES_MAX + 300
        log = await log_of(*(frame("p", n) for n in range(count)))
        frames = frames_of(log)
        assert await frames.search("p", FIRST)
        assert len(frames) == ENTRIES_MAX
        more = [frame("p", count + n) for n in range(200)]
        log.append(more, lambda *_: None)
        await asyncio.sleep(0.01)
        window = await frames.search("p", FIRST)
        assert len(window) == len(frames) == ENTRIES_MAX
        assert window.find(count + 199, view(more[199])) == log.positions.readable

    asyncio.run(scenario())


def test_bytes_bound_the_search_too() -> None:
    async def scenario(bound: int) -> None:
        log = await log_of(*(frame("p", n, bytes(bound // 10)) for n in range(200)))
        assert 10 <= len(await stored_frames(log, "p")) < 60

    before = resend.BYTES_MAX
    try:
        resend.BYTES_MAX = 100_000  # type: ignore[misc]
        asyncio.run(scenario(resend.BYTES_MAX))
    finally:
        resend.BYTES_MAX = before  # type: ignore[misc]


def test_a_frame_that_is_stored_twice_is_the_later_one() -> None:
    async def scenario() -> None:
        data = frame("p", 1)
        log = await log_of(data, frame("q", 1), data)
        window = await stored_frames(log, "p")
        assert window.find(1, view(data)) == log.positions.readable

    asyncio.run(scenario())


def test_frames_are_forgotten_after_a_while() -> None:
    async def scenario() -> None:
        kept = KeptFrames()
        frames = frames_of(await log_of(frame("p", 0)), kept)
        assert await frames.search("p", FIRST)
        assert kept.count == 1
        await asyncio.sleep(2 * KEEP_S)
        assert (kept.count, len(frames)) == (0, 0)
        assert await frames.search("p", FIRST), "and read again"

    run_virtual(scenario())


@pytest.mark.parametrize("searching", [False, True])
def test_a_topic_that_ended_is_not_held_for_its_frames(searching: bool) -> None:
    """Else brokers that let go of many topics have them all in memory for a minute more."""

    async def scenario() -> None:
        kept = KeptFrames()
        log = await log_of(frame("p", 0))
        log.cached = False
        frames = frames_of(log, kept)
        if searching:
            asked = asyncio.ensure_future(frames.search("p", FIRST))
            await asyncio.sleep(0)
            frames.close()
            assert await asked, "who asked before has an answer"
        else:
            assert await frames.search("p", FIRST)
            frames.close()
        assert (kept.count, len(frames)) == (0, 0)
        gone = weakref.ref(frames)
        del frames
        if searching:
            del asked
        gc.collect()
        assert gone() is None

    asyncio.run(scenario())


def test_frames_of_all_topics_are_bounded() -> None:
    async def scenario() -> None:
        kept = KeptFrames()
        log = await log_of(*(frame("p", n) for n in range(ENTRIES_MAX)))
        topics = [frames_of(log, kept) for _ in range(25)]
        for frames in topics:
            assert await frames.search("p", FIRST)
        assert kept.count == resend.KEPT_ENTRIES_MAX
        assert [len(frames) for frames in topics[:5]] == [0] * 5
        window = await topics[0].search("p", FIRST)
        assert len(window) == ENTRIES_MAX
        kept.close()
        assert kept.count == 0

    asyncio.run(scenario())


def test_frames_forgotten_while_they_are_read_on_are_read_whole() -> None:
    """Else only what came since would be found, and the rest be stored twice."""

    async def scenario() -> None:
        log = await log_of(*(frame("p", n) for n in range(1000)))
        log.cached = False
        frames = frames_of(log)
        await frames.search("p", FIRST)
        log.append([frame("p", 1000)], lambda *_: None)
        await asyncio.sleep(0.01)
        asking = asyncio.ensure_future(frames.search("p", FIRST))
        await asyncio.sleep(0)
        frames.forget()  # as another topic's use may make it
        window = await asking
        assert len(window) == 1001

    asyncio.run(scenario())


def test_who_has_all_receipts_has_little_read() -> None:
    """A topic that comes to another broker in order: its producers are not to wait for the whole
    end of its log."""

    async def scenario() -> None:
        log = await log_of(*(frame("p", n) for n in range(ENTRIES_MAX)))
        frames = frames_of(log)
        await frames.catch_up()
        assert len(frames) == FIRST_STEP_ENTRIES
        resends = Resends(frames, "p")
        assert resends.searched(ENTRIES_MAX)
        assert resends.find(ENTRIES_MAX, view(frame("p", ENTRIES_MAX))) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", [1, FIRST_STEP_ENTRIES, 700, 2500])
def test_who_misses_some_has_them_all_found(missing: int) -> None:
    async def scenario() -> None:
        count = 3000
        # Another producer's entries lie between.
        log = await log_of(*(frame("pq"[n % 2], n // 2) for n in range(2 * count)))
        frames = frames_of(log)
        await frames.catch_up()
        resends = Resends(frames, "p")
        first = count - missing
        if not resends.searched(first):
            assert missing >= FIRST_STEP_ENTRIES // 2
            await resends.search(first)
        for number in range(first, count):
            assert resends.find(number, view(frame("p", number))) is not None
        assert resends.find(count, view(frame("p", count))) is None
        assert len(frames) < 8 * missing + 4 * FIRST_STEP_ENTRIES

    asyncio.run(scenario())


def test_an_earlier_life_of_the_same_name_is_no_reason_to_stop() -> None:
    """Ids begin again with each life; what was stored in this one is found."""

    async def scenario() -> None:
        lives = [frame("p", n, b"old") for n in range(100)] + [frame("p", n) for n in range(40)]
        log = await log_of(*lives)
        window = await frames_of(log).search("p", 5)
        found = [window.find(n, view(frame("p", n))) for n in range(5, 40)]
        assert None not in found
        assert len(set(found)) == 35

    asyncio.run(scenario())


def test_a_reading_that_fails_is_begun_anew() -> None:
    async def scenario() -> None:
        log = await log_of(*(frame("p", n) for n in range(1000)))
        log.cached = False
        frames = frames_of(log)
        read, log.read = log.read, fail  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(LogError):
                await frames.search("p", 900)
        log.read = read  # type: ignore[method-assign]
        window = await frames.search("p", 900)
        assert window.find(900, view(frame("p", 900))) is not None

    async def fail(*_: object) -> list[Entry]:
        raise LogError("not now")

    asyncio.run(scenario())
