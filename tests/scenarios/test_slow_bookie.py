"""One bookie of three hangs (SIGSTOP: connected, and silent) under full load at Qa 2: the writer
goes on with two, in bounded memory, and when the bookie is back the ledger is made whole.

``STALL_S`` in the environment sets how long the long version takes (60 seconds if it does not);
on a fast machine each second takes 150 MB of disk. ``STALL_REST_S`` paces the writer: so long a
rest after each 16 entries.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.cluster import Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import client, copies, lost
from tests.scenarios.writer import WriterProcess

pytestmark = pytest.mark.zookeeper

QUORUMS = (3, 3, 2)
STALL_S = float(os.environ.get("STALL_S", "60"))
REST_S = float(os.environ.get("STALL_REST_S", "0"))
GROWTH_BYTES_MAX = 128 << 20
"""Of the writer's resident memory. What may wait: 32 MiB for the connection of the bookie that
hangs (``ledger.bookie_unsent_bytes_max``), 1 MiB unconfirmed, the same again while it is being
sent, and what the allocator keeps."""


def measured(writer: WriterProcess, seconds: float) -> tuple[int, int]:
    """(most resident bytes, entries confirmed) of the next ``seconds``."""
    before = writer.confirmed
    most = writer.resident_bytes
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        most = max(most, writer.resident_bytes)
    return most, writer.confirmed - before


def hangs_and_comes_back(
    cluster: Cluster, folder: Path, stall_s: float, size: int, counts: Counts, rest_s: float = 0.0
) -> None:
    writer = WriterProcess(folder, cluster.metadata_url, QUORUMS, size, rest_s)
    try:
        writer.wait_confirmed(2000)
        before, _ = measured(writer, 0.5)
        cluster.bookies[1].role.pause()
        during, confirmed = measured(writer, stall_s)
        cluster.bookies[1].role.resume()
        after, _ = measured(writer, 0.5)
        last = writer.close(seconds=60)
        acknowledged = writer.confirmed
        writer.wait_for("whole", seconds=60 + 5 * stall_s)
    finally:
        writer.kill()
    figures = (
        f"resident MiB: {before >> 20} before, {during >> 20} at most while it hung, "
        f"{after >> 20} after; {confirmed} entries of {size} bytes confirmed in {stall_s:g} s"
    )
    assert confirmed > 0, "two of three are enough to confirm"
    assert max(during, after) - before < GROWTH_BYTES_MAX, figures
    assert last == acknowledged - 1
    asyncio.run(is_whole(cluster, writer.ledger_id, last, size))
    counts(f"{figures}; all of {last + 1} entries on 3 bookies afterwards")


async def is_whole(cluster: Cluster, ledger_id: int, last: int, size: int) -> None:
    async with client(cluster.metadata_url, QUORUMS) as reading:
        reader = await reading.ledgers.open(ledger_id)
        assert reader.last_add_confirmed == last
        assert len(reader.metadata.fragments) == 1, "nobody could take its place"
        assert await lost(reader, size) == {}
        counts = await copies(reading.pool, reader.metadata, last + 1)
        assert set(counts) == {3}, "what it missed was given to it"


def test_a_bookie_that_hangs_for_seconds(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, counts: Counts
) -> None:
    hangs_and_comes_back(start_cluster(3), tmp_path, 1, 16 << 10, counts)


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * STALL_S)
def test_a_bookie_that_hangs_for_a_minute_or_more(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, counts: Counts
) -> None:
    hangs_and_comes_back(start_cluster(3), tmp_path, STALL_S, 1024, counts, REST_S)
