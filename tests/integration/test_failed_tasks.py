"""A defect in what looks after a bookie ends its role; one that goes on unseen would be worse."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.roles import open_bookie
from magnetar.bookie.space.collector import Collector
from magnetar.bookie.space.upkeep import Upkeep
from magnetar.config import BookieConfig, Config, JournalConfig
from magnetar.model.errors import DefectError
from magnetar_sim.cluster_run import run_cluster


async def planted(*_: object) -> None:
    await asyncio.sleep(0.01)
    raise KeyError("planted")


@pytest.mark.parametrize("place", [(Upkeep, "_watch"), (Upkeep, "_compact"), (Collector, "run")])
def test_a_bookie_ends_when_one_of_its_watches_fails(
    place: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = place
    monkeypatch.setattr(owner, name, planted)
    config = Config(
        data_dir=tmp_path,
        bookie=BookieConfig(
            bookie_id="b-1",
            port=0,
            ledger_directories=(tmp_path / "ledgers",),
            journal=JournalConfig(directories=(tmp_path / "journal",)),
        ),
    )

    async def main() -> None:
        fate = Fate(asyncio.Event())
        async with AsyncExitStack() as stack:
            await open_bookie(Process(config, real(), stack, fate), False)
            async with asyncio.timeout(60):
                with pytest.raises(DefectError, match="planted"):
                    await fate.wait()

    asyncio.run(main())


def test_a_simulated_run_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upkeep, "_watch", planted)
    failure = run_cluster(1).failure
    assert failure is not None
    assert "planted" in failure
