"""The registry of health checks: every part has its say, whatever the others do."""

from __future__ import annotations

import asyncio

from magnetar.env.health import WELL, Health, PartHealth
from magnetar.model.errors import MetadataUnavailableError
from magnetar_sim.world.virtual_time import run_virtual


def test_no_part_hides_another() -> None:
    async def well() -> PartHealth:
        return WELL

    async def stuck() -> PartHealth:
        await asyncio.Event().wait()
        return WELL

    async def away() -> PartHealth:
        raise MetadataUnavailableError("ZooKeeper did not answer")

    async def broken() -> PartHealth:
        raise KeyError("x")

    async def scenario() -> None:
        health = Health()
        for part, check in (("a", stuck), ("b", away), ("c", broken), ("d", well)):
            health.add(part, check)
        report = await health.report()
        assert list(report) == ["a", "b", "c", "d"]
        assert report["a"].problem == "a did not answer within 5 s"
        assert report["b"].problem == "ZooKeeper did not answer"
        assert "KeyError" in report["c"].problem
        assert report["d"] == WELL
        assert not any(report[part].ok for part in "abc")

    run_virtual(scenario())


def test_a_part_that_ended_is_not_asked() -> None:
    async def scenario() -> None:
        async def gone() -> PartHealth:
            return PartHealth(False, "x")

        health = Health()
        end = health.add("part", gone)
        end()
        assert await health.report() == {}

    run_virtual(scenario())
