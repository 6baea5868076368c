"""Acknowledgements on their way to the cursor, and receipts on their way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import LogFencedError, MagnetarError, MetadataError
from magnetar.model.ids import EARLIEST, Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.consuming.acknowledging import Acknowledging
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_log import MemoryLog
from tests.unit.log.doubles import NAME, Outcomes, Process, World
from tests.unit.log.test_managed_log import publish
from tests.unit.protocols.pulsar.harness import batch


class Acked(NamedTuple):
    ledger_id: int
    entry_id: int
    ack_set: Sequence[int] = ()


SHAPES: dict[str, Callable[[Acknowledging, list[Position]], object]] = {
    "whole": lambda taking, news: taking.whole(news),
    "each": lambda taking, news: taking.each([Acked(*each) for each in news]).settled,
    "a part": lambda taking, news: taking.each([Acked(*news[0], [1])]).settled,
    "until": lambda taking, news: taking.until(Acked(*news[1])),
    "until a part": lambda taking, news: taking.until(Acked(*news[1], [1])),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_former_owner_confirms_nothing_of_what_only_a_later_one_has(shape: str) -> None:
    async def scenario() -> None:
        world, config = World(), LedgerConfig(cursor_flush_interval_ms=1)
        old = await Process(world).store(config).open(NAME)
        positions = await publish(old, 0, 3)
        cursor = await old.cursors.open("s", EARLIEST)
        cursor.acknowledge_cumulative(positions[-1])
        await cursor.wait_stored()
        new = await Process(world).store(config).open(NAME)
        news = await publish(new, 3, 2)
        assert min(news) > old.positions.held
        scope = TaskScope("test", awaited(by="the test"))
        taking = Acknowledging("s", old, cursor, scope, PulsarEntryFormat())
        assert not SHAPES[shape](taking, news), "nothing that is out is settled by it"
        assert cursor.mark_delete == positions[-1]
        with pytest.raises(LogFencedError):
            await cursor.wait_stored()
        await scope.close()
        await asyncio.sleep(0)

    run_virtual(scenario())


class Receipts:
    """A client, and what its acknowledgements were answered with."""

    def __init__(self) -> None:
        self.told: list[tuple[int, MagnetarError | None]] = []

    def answer_ack(self, request_id: int, error: MagnetarError | None) -> None:
        self.told.append((request_id, error))


def test_what_could_not_be_stored_has_no_receipt() -> None:
    async def scenario() -> None:
        log = MemoryLog("log", 10)
        scope, cursor = TaskScope("test", awaited(by="the test")), log.cursors.reader("s", EARLIEST)
        taking, client = Acknowledging("s", log, cursor, scope, PulsarEntryFormat()), Receipts()
        failing: list[MagnetarError] = [MetadataError("not now")]

        async def wait_stored() -> None:
            await asyncio.sleep(1)
            if failing:
                raise failing.pop()

        cursor.wait_stored = wait_stored  # type: ignore[method-assign]
        taking.answer_stored(client, 1)  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        taking.answer_stored(client, 2)  # type: ignore[arg-type]  # it waits for the next time
        await asyncio.sleep(5)
        (one, error), (two, nothing) = client.told
        assert (one, two, nothing) == (1, 2, None)
        assert isinstance(error, MetadataError)
        await scope.close()

    run_virtual(scenario())


def test_bits_behind_the_messages_of_an_entry_say_nothing() -> None:
    """Also where the client has them set: the entry is acknowledged whole."""

    async def scenario() -> None:
        log, outcomes = await Process(World()).store().open(NAME), Outcomes()
        log.append([batch(3), batch(3)], outcomes)
        await outcomes.wait(1)
        first, second = outcomes.positions
        scope, cursor = TaskScope("test", awaited(by="the test")), log.cursors.reader("s", EARLIEST)
        taking = Acknowledging("s", log, cursor, scope, PulsarEntryFormat())
        assert taking.each([Acked(*first, [~0b001])]) == ([], None)
        assert cursor.ack_set(first) == [0b110]
        assert taking.each([Acked(*first, [~0b111])]) == ([first], None)
        taking.until(Acked(*second, [~0b111]))
        assert cursor.mark_delete == second
        await scope.close()

    run_virtual(scenario())
