"""Acknowledgements of what a log does not hold: its cursor hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import LogFencedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.acknowledging import Acknowledging
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_managed_log import publish


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
