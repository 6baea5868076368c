"""``log.seam.CursorLending`` and ``log.seam.FollowedCursors``: a cursor that another process
serves."""

from __future__ import annotations

import asyncio

import pytest
from pyroaring import BitMap

from magnetar.log.ack_store import NullAckStore
from magnetar.log.acknowledgements import AckImage
from magnetar.log.seam import Binding
from magnetar.model.errors import LogClosedError, LogError
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.contract.engines import (
    Engine,
    append,
    each_engine,
    each_followed_engine,
    fill,
    run_with,
)
from tests.unit.log.doubles import NAME

BOUND = Binding(3, "a:8080", 7, "pulsar://a:6650")


@each_engine
def test_who_has_a_cursor_and_what_it_acknowledges_is_found_by_the_next_owner(
    engine: Engine,
) -> None:
    async def scenario() -> None:
        store = engine.stores()
        log = await store.open(NAME)
        held = await fill(log, 9)
        cursor = await log.cursors.open("c", EARLIEST)
        lending = cursor.lending
        assert lending is not None
        assert log.cursors.reader("r", EARLIEST).lending is None
        assert (lending.binding, bool(lending.binding)) == (Binding(), False)
        await lending.bind(BOUND)
        holes = {held[6].ledger_id: BitMap([held[6].entry_id])}
        image = AckImage(held[2], holes, {held[4]: 0b0110})
        for _ in range(2):
            lending.merge(image)
        await cursor.wait_stored()
        assert lending.image() == image
        await log.close()

        log = await engine.stores().open(NAME)
        found = log.cursors.durable()["c"]
        assert found.lending is not None
        assert found.lending.binding == BOUND
        assert found.lending.image() == image
        await found.lending.bind(Binding(4))
        assert not found.lending.binding
        await found.reset(held[1])
        found.lending.merge(image)
        assert found.mark_delete == held[0], "of before the reset"
        later = AckImage(held[7], reset_epoch=found.lending.image().reset_epoch + 1)
        found.lending.merge(later)
        assert found.mark_delete == held[7], "of a reset there"
        await log.close()
        await engine.stores().delete(NAME)

    run_with(engine, scenario)


@each_followed_engine
def test_a_lent_cursor_begins_when_the_log_is_seen_as_far_as_it_is_acknowledged(
    engine: Engine,
) -> None:
    async def scenario() -> None:
        owner = engine.stores()
        log = await owner.open(NAME)
        held = await fill(log, 6)
        source = await engine.stores().follow(NAME)
        ended: list[LogError] = []
        source.watch_ended(ended.append)
        following = log.positions.next_position(held[-1])
        image = AckImage(held[1], {following.ledger_id: BitMap([following.entry_id])})
        lent = asyncio.ensure_future(source.cursors.lent("c", image, {"k": "v"}, NullAckStore))
        await asyncio.sleep(0.05)
        assert not lent.done()
        assert await append(log, [b"more"]) == [following]
        async with asyncio.timeout(30):
            cursor = await lent
        assert (cursor.mark_delete, cursor.properties) == (held[1], {"k": "v"})
        assert cursor.is_acknowledged(*following)
        assert not cursor.is_acknowledged(*held[3])
        assert cursor.lending is None
        reader = source.cursors.reader("r", held[2])
        assert source.positions.next_position(reader.mark_delete) == held[2]

        never = asyncio.ensure_future(source.wait_seen(Position(held[-1].ledger_id + 9, 0)))
        await log.close()
        await owner.delete(NAME)
        async with asyncio.timeout(30):
            while not ended:  # noqa: ASYNC110 (told on the loop, whenever it is seen)
                await asyncio.sleep(0.005)
        if engine.name == "managed":  # the double knows no end of waiting
            with pytest.raises(LogClosedError):
                await never
        never.cancel()
        await source.close()
        assert len(ended) == 1

    run_with(engine, scenario)
