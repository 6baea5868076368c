"""``log.seam.Cursors`` and ``log.seam.Cursor``."""

from __future__ import annotations

import pytest

from magnetar.log.seam import WritableLog
from magnetar.model.errors import CursorNotFoundError
from magnetar.model.ids import EARLIEST, LATEST, Position
from tests.unit.log.contract.engines import Engine, each_engine, fill, run_with, with_log
from tests.unit.log.doubles import NAME


@each_engine
def test_a_cursor_is_opened_once_and_listed_until_it_is_deleted(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        await fill(log, 3)
        cursor = await log.cursors.open("c", EARLIEST, {"key": "value"})
        assert await log.cursors.open("c", LATEST) is cursor
        assert dict(log.cursors.durable()) == {"c": cursor}
        assert (cursor.name, cursor.durable, cursor.properties) == ("c", True, {"key": "value"})
        reader = log.cursors.reader("r", EARLIEST)
        assert not reader.durable
        assert list(log.cursors.durable()) == ["c"]
        await log.cursors.delete("c")
        assert not log.cursors.durable()
        with pytest.raises(CursorNotFoundError):
            await log.cursors.delete("c")

    with_log(engine, scenario)


@each_engine
def test_where_new_cursors_stand(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held, order = await fill(log, 7), log.positions
        for number, (start, following) in enumerate(
            (
                (EARLIEST, held[0]),
                (held[0], held[0]),
                (held[4], held[4]),
                (held[5], held[5]),
                (LATEST, order.next_position(held[-1])),
            )
        ):
            for cursor in (
                await log.cursors.open(f"c{number}", start),
                log.cursors.reader("r", start),
            ):
                assert order.next_position(cursor.mark_delete) == following

    with_log(engine, scenario)


@each_engine
def test_acknowledging_moves_mark_delete_over_what_is_whole(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held = await fill(log, 12)
        cursor = await log.cursors.open("c", EARLIEST)
        cursor.acknowledge([held[1], held[2], held[9], held[1]])
        assert log.positions.next_position(cursor.mark_delete) == held[0]
        assert cursor.backlog_entries() == 9
        assert [cursor.is_acknowledged(*p) for p in held[:4]] == [False, True, True, False]
        cursor.acknowledge([held[0]])
        assert cursor.mark_delete == held[2]
        cursor.acknowledge_cumulative(held[8])
        assert cursor.mark_delete == held[9]
        assert cursor.backlog_entries() == 2
        entries = await log.read(held[10], 5, 1 << 20)
        assert cursor.unacknowledged(entries) == entries
        cursor.acknowledge([Position(held[-1].ledger_id, held[-1].entry_id + 5)])
        assert cursor.backlog_entries() == 2, "what is not in the log cannot be acknowledged"

    with_log(engine, scenario)


@each_engine
def test_a_batch_is_acknowledged_message_by_message(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held = await fill(log, 2)
        cursor = await log.cursors.open("c", EARLIEST)
        assert cursor.ack_set(held[0]) is None
        assert not cursor.acknowledge_batch(held[0], 3, [0b110])
        assert cursor.ack_set(held[0]) == [0b110]
        assert not cursor.acknowledge_batch(held[0], 3, [0b101])
        assert cursor.ack_set(held[0]) == [0b100]
        assert cursor.acknowledge_batch(held[0], 3, [0b011])
        assert cursor.mark_delete == held[0]
        assert cursor.ack_set(held[0]) is None

    with_log(engine, scenario)


@each_engine
def test_a_reset_forgets_what_comes_after_it(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held = await fill(log, 8)
        cursor = await log.cursors.open("c", EARLIEST)
        cursor.acknowledge([held[6]])
        cursor.acknowledge_cumulative(held[4])
        await cursor.reset(held[2])
        assert cursor.mark_delete == held[1]
        assert not cursor.is_acknowledged(*held[6])
        await cursor.wait_stored()
        assert cursor.backlog_entries() == 6

    with_log(engine, scenario)


@each_engine
def test_a_note_is_found_again_with_the_position_up_to_which_it_speaks(engine: Engine) -> None:
    async def scenario() -> None:
        store = engine.stores()
        source = await store.open(NAME)
        held = await fill(source, 12)
        cursor = await source.cursors.open("c", EARLIEST)
        assert source.cursors.reader("r", EARLIEST).noted is None
        assert cursor.noted is not None
        assert cursor.noted.value == b""
        for place, value in ((held[2], b"two"), (held[6], b"six"), (held[6], b"x" * 100_000)):
            cursor.noted.take(place, value)
            await cursor.wait_stored()
            assert (cursor.mark_delete, cursor.noted.value) == (place, value)
        await source.close()
        for value in (b"x" * 100_000, b"more"):
            source = await store.open(NAME)
            cursor = source.cursors.durable()["c"]
            assert cursor.noted is not None
            assert (cursor.mark_delete, cursor.noted.value) == (held[6], value)
            cursor.noted.take(held[6], b"more")
            await source.close()
        await store.delete(NAME)

    run_with(engine, scenario)
