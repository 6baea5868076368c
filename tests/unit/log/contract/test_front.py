"""``log.seam.LogFront``."""

from __future__ import annotations

from itertools import accumulate

import pytest

from magnetar.log.seam import Content, ReadableLog, WritableLog
from magnetar.model.errors import OffsetOutOfRangeError
from magnetar.model.ids import EARLIEST, LATEST, Position
from tests.unit.log.contract.engines import (
    ENGINES,
    Engine,
    append,
    fill,
    read_all,
    run_with,
    seen,
    with_log,
)
from tests.unit.log.doubles import NAME

MESSAGES = [1, 5, 1, 1, 30, 2, 2, 2, 2, 2, 1, 1, 9]  # two ledgers and a half
OFFSETS = [0, *accumulate(MESSAGES)]

each_front = pytest.mark.parametrize(
    "engine",
    [each for each in (make() for make in ENGINES) if each.name != "memory"],
    ids=lambda e: e.name,
)


async def fill_batches(source: WritableLog) -> list[Position]:
    content = Content(MESSAGES, [10 * number + 10 for number in range(len(MESSAGES))])
    return await append(source, [b"%d" % number for number in range(len(MESSAGES))], content)


@each_front
@pytest.mark.parametrize("offset", range(OFFSETS[-1] + 1))
def test_a_log_begins_at_any_offset(engine: Engine, offset: int) -> None:
    """An entry goes when all its messages are gone; those that are left are where they were."""

    async def scenario(source: WritableLog) -> None:
        held = await fill_batches(source)
        assert source.front.offset == 0
        assert await source.front.delete_before(offset) == offset
        gone = max(0, sum(each <= offset for each in OFFSETS) - 1)
        assert await read_all(source) == [b"%d" % number for number in range(gone, len(MESSAGES))]
        positions = source.positions
        left = held[gone:]
        if offset:
            assert source.front.offset == offset
        assert positions.entries_between(EARLIEST, LATEST) == len(left)
        assert positions.end_offset == OFFSETS[-1]
        assert await positions.offset_of(EARLIEST) == OFFSETS[gone]
        for number, place in enumerate(left, gone):
            assert await positions.offset_of(place) == OFFSETS[number]
            assert await positions.position_of(OFFSETS[number + 1] - 1) == place
        assert await positions.position_of(0) == (left[0] if left else positions.first)
        if left:
            assert positions.first == left[0]
            assert await source.first_at(0) == left[0]
            assert await source.first_at(10 * len(MESSAGES)) == left[-1]
        (further,) = await fill(source, 1)
        assert await positions.offset_of(further) == OFFSETS[-1]
        assert (await read_all(source))[-1:] == [b"0"]
        assert positions.first == (left[0] if left else further)

    with_log(engine, scenario)


@each_front
def test_it_never_begins_sooner_again(engine: Engine) -> None:
    async def scenario(source: WritableLog) -> None:
        await fill_batches(source)
        for offset in (OFFSETS[-1] + 1, -2, 1 << 62):
            with pytest.raises(OffsetOutOfRangeError):
                await source.front.delete_before(offset)
        assert source.front.offset == 0
        assert await source.front.delete_before(0) == 0
        assert await source.front.delete_before(12) == 12
        assert await source.front.delete_before(11) == 12
        assert await source.front.delete_before(0) == 12
        assert await source.front.delete_before(13) == 13, "of the same entry"
        assert await source.front.delete_before(-1) == OFFSETS[-1]
        assert await source.front.delete_before(-1) == OFFSETS[-1]
        assert await read_all(source) == []

    with_log(engine, scenario)


@each_front
def test_another_owner_begins_where_the_last_one_did(engine: Engine) -> None:
    async def scenario() -> None:
        store = engine.stores()
        source = await store.open(NAME)
        await fill_batches(source)
        assert await source.front.delete_before(20) == 20
        again = await engine.stores().open(NAME)
        assert again.front.offset == 20
        assert await read_all(again) == [b"%d" % number for number in range(4, len(MESSAGES))]
        assert await again.front.delete_before(-1) == OFFSETS[-1]
        await again.close()
        store = engine.stores()
        again = await store.open(NAME)
        assert await again.positions.offset_of(EARLIEST) == OFFSETS[-1]
        assert again.front.offset == OFFSETS[-1]
        assert await read_all(again) == []
        await fill(again, 2)
        assert await read_all(again) == [b"0", b"1"]
        await again.close()
        await store.delete(NAME)

    run_with(engine, scenario)


@each_front
def test_what_cursors_have_not_acknowledged_is_gone_for_them(engine: Engine) -> None:
    async def scenario(source: WritableLog) -> None:
        held = await fill(source, 12)
        behind = await source.cursors.open("behind", EARLIEST)
        holes = await source.cursors.open("holes", EARLIEST)
        ahead = await source.cursors.open("ahead", EARLIEST)
        holes.acknowledge([held[1], held[5], held[9]])
        ahead.acknowledge_cumulative(held[9])
        assert (behind.backlog_entries(), holes.backlog_entries()) == (12, 9)
        await source.front.delete_before(7)
        assert behind.backlog_entries() == 5
        assert holes.backlog_entries() == 4, "what was acknowledged behind it counts still"
        assert ahead.backlog_entries() == 2
        for cursor in (behind, holes, ahead):
            await cursor.wait_stored()
        assert source.positions.next_position(behind.mark_delete) == held[7]
        fresh = await source.cursors.open("fresh", EARLIEST)
        assert fresh.backlog_entries() == 5
        await behind.reset(EARLIEST)
        assert behind.backlog_entries() == 5, "a seek finds nothing of it"

    with_log(engine, scenario)


def test_followers_see_it_begin_later() -> None:
    engine = next(each for each in (make() for make in ENGINES) if each.followed)

    async def scenario() -> None:
        store = engine.stores()
        writer = await store.open(NAME)
        held = await fill(writer, 7)
        followed: ReadableLog = await engine.stores().follow(NAME)
        await seen(followed, held[-1])
        assert len(await read_all(followed)) == 7
        await writer.front.delete_before(6)
        held += await fill(writer, 5)  # a new ledger, so that the follower has read the record
        await seen(followed, held[-1])
        assert followed.positions.first == held[6]
        assert await read_all(followed) == [b"6", b"0", b"1", b"2", b"3", b"4"]
        assert followed.stats().trimmed == held[5]
        await followed.close()
        await writer.close()

    run_with(engine, scenario)
