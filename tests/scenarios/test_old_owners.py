"""Owners that are paused and come back after another has taken over: nobody confirms twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.model.ledger import LedgerState
from tests.roles import END_S
from tests.scenarios.cluster import Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import append, client, lost
from tests.scenarios.writer import WriterProcess

pytestmark = pytest.mark.zookeeper


def resumed_owner_is_fenced(cluster: Cluster, folder: Path, pause_s: float, counts: Counts) -> None:
    url = cluster.metadata_url
    old = WriterProcess(folder, url, (3, 3, 2))
    old.wait_confirmed(500)
    old.pause()
    paused_at = time.monotonic()

    async def take_over() -> tuple[int, int]:
        async with client(url) as new:
            reader = await new.ledgers.open(old.ledger_id)  # fences, recovers, closes
            assert reader.metadata.state is LedgerState.CLOSED
            assert await lost(reader) == {}
            writer = await new.ledgers.create()
            await append(writer, 100)
            assert (await writer.close()).last_entry_id == 99
            return reader.last_add_confirmed, writer.ledger_id

    async def still_there(ledger_id: int, last: int) -> None:
        async with client(url) as reading:
            reader = await reading.ledgers.open(ledger_id)
            assert reader.last_add_confirmed == last
            assert await lost(reader) == {}

    try:
        last, following = asyncio.run(take_over())
        assert last >= old.confirmed - 1, "an acknowledged entry was cut off"
        time.sleep(max(0.0, paused_at + pause_s - time.monotonic()))
        old.resume()
        failure = old.wait_for(r"failed (\w+) (.*)")
        old.process.wait(END_S)

        assert failure[1] == "LedgerFencedError", failure[0]
        confirmed_past_the_close = max(0, old.confirmed - 1 - last)
        assert confirmed_past_the_close == 0
        appended_before = int(old.wait_for(r"paused (\d+)")[1])
        assert last <= appended_before, "the ledger ends with what was sent before the fence"
    finally:
        old.kill()
    asyncio.run(still_there(old.ledger_id, last))
    asyncio.run(still_there(following, 99))
    counts(
        f"{old.confirmed} confirmed to the old owner, closed at {last}: past the close 0, lost 0"
    )


def test_an_owner_paused_for_seconds_confirms_nothing_after_the_fence(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, counts: Counts
) -> None:
    resumed_owner_is_fenced(start_cluster(3), tmp_path, 3, counts)


@pytest.mark.slow
def test_an_owner_paused_for_minutes_confirms_nothing_after_the_fence(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, counts: Counts
) -> None:
    resumed_owner_is_fenced(start_cluster(3), tmp_path, 150, counts)
