"""A log's process killed at every step: nothing confirmed is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import cursor_path, decode_cursor, decode_log, log_path
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.doubles import NAME, Outcomes, Process, World
from tests.unit.log.test_managed_log import number, publish, read_all, values

CONFIG = LedgerConfig(
    ledger_entries_max=4, cursor_flush_interval_ms=1, retention_ms=0, retention_bytes=0
)


class Life:
    """Publish, acknowledge, roll, trim; remembers what was promised."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.outcomes = Outcomes()
        self.sent = 0
        self.acknowledged = 0

    async def run(self) -> None:
        try:
            log = await self.process.store(CONFIG).open(NAME)
            cursor = await log.cursors.open("s", EARLIEST)
            for _ in range(5):
                await self._publish(log)
                if self.process.crashed:
                    return
                if len(self.outcomes.positions) > 3:
                    self.acknowledged = len(self.outcomes.positions) - 3
                    cursor.acknowledge_cumulative(self.outcomes.positions[-4])
                    await cursor.wait_stored()
            await log.close()
        except MagnetarError:
            assert self.process.crashed

    async def _publish(self, log: ManagedLog) -> None:
        for _ in range(3):
            payloads = [number(self.sent + i) for i in range(2)]
            self.sent += 2
            log.append(payloads, self.outcomes)
        for _ in range(40):
            await asyncio.sleep(0)


async def survivors(world: World, life: Life) -> None:
    store = Process(world).store(CONFIG)
    log = await store.open(NAME)
    await log.cursors.open("s", EARLIEST)
    found = values(await read_all(log))
    confirmed = len(life.outcomes.positions)
    assert found == sorted(set(found)), "in order, once"
    kept = [n for n in range(confirmed) if n >= life.acknowledged]
    assert [n for n in found if life.acknowledged <= n < confirmed] == kept
    assert all(n < life.sent for n in found)
    log.tick()  # what was left over is deleted when there is time
    for _ in range(40):
        await asyncio.sleep(0)
    held = {ledger[0] for ledger in log.stats().ledgers}
    assert held <= world.alive()
    cursor = decode_cursor("s", world.nodes[cursor_path(NAME, "s")].value).ledger_id
    assert len(world.alive() - held - {cursor}) <= 1, "only one created just before the crash"
    await publish(log, 900, 2)
    assert values(await read_all(log))[-2:] == [900, 901]
    await store.close()


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_loses_nothing_confirmed(effect: bool) -> None:
    async def scenario() -> None:
        process = Process(World())
        await Life(process).run()
        assert process.operations > 40
        for step in range(1, process.operations + 1):
            world = World()
            life = Life(Process(world, crash_at=step, effect=effect))
            await life.run()
            assert life.process.crashed
            await survivors(world, life)

    asyncio.run(scenario())


def test_a_ledger_left_empty_by_a_crash_is_deleted() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world, crash_at=4)  # node, ledger, record; then the entry
        log = await process.store().open(NAME)
        log.append([b"lost"], Outcomes())
        for _ in range(1000):
            if process.crashed:
                break
            await asyncio.sleep(0)
        assert process.crashed
        assert world.alive() == {1}
        log = await Process(world).store().open(NAME)
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.alive() == set()
        assert log.stats().ledgers == ()
        await publish(log, 0, 3)
        assert values(await read_all(log)) == [0, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_a_deletion_cut_off_anywhere_is_finished(effect: bool) -> None:
    async def fill(world: World) -> None:
        store = Process(world).store(LedgerConfig(ledger_entries_max=4))
        log = await store.open(NAME)
        positions = await publish(log, 0, 10)
        for name in ("a", "b"):
            cursor = await log.cursors.open(name, EARLIEST)
            cursor.acknowledge(positions[3:5])
            await cursor.wait_stored()
        await store.close()

    async def delete(process: Process) -> None:
        try:
            await process.store().delete(NAME)
        except MagnetarError:
            assert process.crashed

    async def scenario() -> None:
        world = World()
        await fill(world)
        process = Process(world)
        await delete(process)
        assert world.alive() == set()
        for step in range(1, process.operations + 1):
            world = World()
            await fill(world)
            await delete(Process(world, crash_at=step, effect=effect))
            store = Process(world).store()
            names = await store.names("")
            if step > 1:
                assert names == []
            log = await store.open(NAME)
            if step > 1 or effect:
                assert log.stats().entries == 0
                assert not log.cursors.durable()
                assert world.alive() == set()

    asyncio.run(scenario())


def test_trimming_follows_the_slowest_stored_cursor() -> None:
    async def scenario() -> None:
        world = World()
        config = replace(CONFIG, cursor_flush_interval_ms=60_000)  # stored when asked only
        log = await Process(world).store(config).open(NAME)
        one = await log.cursors.open("one", EARLIEST)
        two = await log.cursors.open("two", EARLIEST)
        positions = await publish(log, 0, 18)
        ledgers = list(dict.fromkeys(p.ledger_id for p in positions))

        async def held() -> list[int]:
            for _ in range(30):
                await asyncio.sleep(0)
            return [ledger[0] for ledger in log.stats().ledgers]

        one.acknowledge_cumulative(positions[-1])
        await one.wait_stored()
        assert await held() == ledgers
        two.acknowledge_cumulative(positions[6])
        log.tick()
        assert (await held())[0] == ledgers[0]
        await two.wait_stored()
        assert await held() == ledgers[1:]
        assert ledgers[0] not in world.alive()
        assert log.positions.first == positions[4]
        assert values(await log.read(EARLIEST, 1, 100)) == [4]
        assert log.positions.next_position(Position(ledgers[0], 2)) == positions[4]
        await log.cursors.delete("two")
        assert await held() == ledgers[-1:], "the open ledger stays"
        assert values(await read_all(log)) == [16, 17]
        await publish(log, 18, 8)
        record = decode_log(NAME, world.nodes[log_path(NAME)].value)
        assert not set(record.deleting) & set(ledgers[:-1]), "deleted ones leave the record"

    asyncio.run(scenario())


def test_everything_is_kept_by_default() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(LedgerConfig(ledger_entries_max=4)).open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        await publish(log, 0, 20)
        cursor.acknowledge_cumulative(log.positions.readable)
        await cursor.wait_stored()
        log.tick()
        assert values(await read_all(log)) == list(range(20))

    asyncio.run(scenario())
