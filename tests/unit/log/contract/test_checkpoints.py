"""``log.seam.Checkpoints``."""

from __future__ import annotations

import asyncio

from magnetar.log.seam import Checkpoint, WritableLog
from tests.unit.log.contract.engines import Engine, each_engine, fill, run_with, with_log
from tests.unit.log.doubles import NAME


@each_engine
def test_a_new_log_has_none(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        assert log.checkpoints.stored is None

    with_log(engine, scenario)


@each_engine
def test_what_was_saved_is_what_the_next_owner_finds(engine: Engine) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            log = await engine.stores().open(NAME)
            await fill(log, 3)
            kept = Checkpoint(log.positions.readable, b"state")
            log.checkpoints.keep(lambda: kept)
            assert log.checkpoints.stored is None, "kept is not stored"
            await log.checkpoints.save()
            assert log.checkpoints.stored == kept
            again = await engine.stores().open(NAME)
            assert again.checkpoints.stored == kept
            again.checkpoints.keep(lambda: None)
            await again.checkpoints.save()
            assert again.checkpoints.stored is None
            await again.close()

    run_with(engine, main)
