"""One bookie of three hangs (SIGSTOP: connected, and silent) under full load at Qa 2: the writer
goes on with two, in bounded memory, and when the bookie is back the ledger is made whole.

``STALL_S`` in the environment sets how long the long version takes (60 seconds if it does not);
on a fast machine each second takes up to 300 MB of disk with entries of 1 KiB; ``STALL_BYTES``
makes them smaller. ``STALL_REST_S`` paces the writer: so long a rest after each 16 entries.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.scenarios.cluster import BookieMachine, Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import client, lost, opened
from tests.scenarios.replicas import copies
from tests.scenarios.weighing import Scales
from tests.scenarios.writer import LINE_S, WriterProcess

pytestmark = pytest.mark.zookeeper

QUORUMS = (3, 3, 2)
STALL_S = float(os.environ.get("STALL_S", "60"))
BYTES = int(os.environ.get("STALL_BYTES", "1024"))
REST_S = float(os.environ.get("STALL_REST_S", "0"))
GROWTH_BYTES_MAX = 128 << 20
"""Of a process's resident memory. What may wait in the writer: 32 MiB for the connection of the
bookie that hangs (``ledger.bookie_unsent_bytes_max``), 1 MiB unconfirmed, the same again while it
is being sent, two pieces of 1 MiB for the bookie that missed them, and what the allocator keeps. In
a bookie that goes on: its write cache (twice 16 MiB) and what it reads ahead."""
LONG_S = 10.0
"""So long a stall leaves entries missing: more than what waits in connections and sockets."""
MENDED_SOON_S = 25.0
"""Mending tries again every 15 seconds (``mending.BACKOFF_S_MAX``); a try at a
bookie that hangs takes the add timeout, 3 seconds here."""


class Phase(NamedTuple):
    """What a writer did for a while, and the memory it took; the same of two bookies."""

    seconds: float
    confirmed: int
    mended: int
    writer_bytes: int
    bookies_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.confirmed} entries and {self.mended} copied in {self.seconds:.1f} s, at most "
            f"{self.writer_bytes >> 20} MiB in the writer, {self.bookies_bytes >> 20} in the others"
        )


class Watched:
    """A writer and the bookies that go on, phase by phase."""

    def __init__(self, writer: WriterProcess, bookies: Sequence[BookieMachine]) -> None:
        self._writer = writer
        self._writer_scales = Scales(writer.process.pid)
        self._bookie_scales = Scales(*(bookie.role.process.pid for bookie in bookies))

    def phase(self, seconds: float, until: Callable[[], bool] = lambda: False) -> Phase:
        """Watch for ``seconds``, or ``until`` it is so."""
        return self._phase(lambda past_s: until() or past_s >= seconds)

    def phase_of_load(self, seconds: float) -> Phase:
        """Watch for ``seconds``, and longer if nothing was confirmed by then: not for ever."""
        before = self._writer.confirmed
        return self._phase(
            lambda past_s: past_s >= (seconds if self._writer.confirmed > before else LINE_S)
        )

    def _phase(self, is_over: Callable[[float], bool]) -> Phase:
        """``is_over`` is told how many seconds have gone by."""
        self._writer_scales.begin()
        self._bookie_scales.begin()
        begin, confirmed, mended = time.monotonic(), self._writer.confirmed, self._writer.mended
        while not is_over(time.monotonic() - begin):
            time.sleep(0.1)
        return Phase(
            time.monotonic() - begin,
            self._writer.confirmed - confirmed,
            self._writer.mended - mended,
            self._writer_scales.most_bytes,
            self._bookie_scales.most_bytes,
        )


class Course(NamedTuple):
    """A scenario, phase by phase."""

    before: Phase
    during: Phase  # one bookie hangs
    beside: Phase  # it is back, and mended under the same load
    rest: Phase  # mended alone

    def __str__(self) -> str:
        return (
            f"before: {self.before}; while one hung: {self.during}; back, under load: "
            f"{self.beside}; then: {self.rest}"
        )


def assert_bounded(course: Course) -> None:
    assert course.during.confirmed > 0, "two of three are enough to confirm"
    assert course.beside.confirmed > 0, "mending leaves room for the writer"
    before = course.before
    for phase in (course.during, course.beside, course.rest):
        assert phase.writer_bytes - before.writer_bytes < GROWTH_BYTES_MAX, course
        assert phase.bookies_bytes - before.bookies_bytes < 2 * GROWTH_BYTES_MAX, course


def run_course(
    writer: WriterProcess, hanging: BookieMachine, others: Sequence[BookieMachine], stall_s: float
) -> Course:
    """The writer has closed its ledger then, and nothing is missing; its process is still there."""
    writer.wait_confirmed(2000)
    watched = Watched(writer, others)
    before = watched.phase(min(stall_s / 2, 10))
    hanging.role.pause()
    during = watched.phase_of_load(stall_s)
    hanging.role.resume()
    beside = watched.phase_of_load(MENDED_SOON_S if stall_s >= LONG_S else stall_s / 2)
    writer.close()
    rest = watched.phase(LINE_S + 5 * stall_s, lambda: writer.said("whole") is not None)
    assert writer.said("whole"), rest
    assert stall_s < LONG_S or beside.mended + rest.mended > 0, "it was missing nothing"
    return Course(before, during, beside, rest)


def hangs_and_comes_back(
    cluster: Cluster, folder: Path, stall_s: float, size: int, counts: Counts, rest_s: float = 0.0
) -> None:
    hanging, *others = cluster.bookies
    writer = WriterProcess(folder, cluster.metadata_url, QUORUMS, size, rest_s)
    try:
        course = run_course(writer, hanging, others, stall_s)
        last = int(writer.wait_for(r"closed (\d+)")[1])
        acknowledged = writer.confirmed
    finally:
        writer.kill()
    print(course)
    assert_bounded(course)
    assert last == acknowledged - 1
    began = time.monotonic()
    asyncio.run(is_whole(cluster, writer.ledger_id, last, size))
    counts(
        f"entries of {size} bytes; {course}; all of {last + 1} on 3 bookies, read and compared in "
        f"{time.monotonic() - began:.0f} s"
    )


async def is_whole(cluster: Cluster, ledger_id: int, last: int, size: int) -> None:
    async with client(cluster.metadata_url, QUORUMS) as reading:
        reader = await reading.ledgers.open(ledger_id)
        assert reader.last_add_confirmed == last
        assert len(reader.metadata.fragments) == 1, "nobody could take its place"
        missing, counts = await asyncio.gather(
            lost(reader, size), copies(reading.pool, reader.metadata, last + 1, size)
        )
        assert missing == {}
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
    hangs_and_comes_back(start_cluster(3), tmp_path, STALL_S, BYTES, counts, REST_S)


def test_a_writer_killed_while_a_bookie_is_missing_entries_leaves_qa_copies_and_a_line_in_its_log(
    start_cluster: Callable[[int], Cluster], tmp_path: Path, counts: Counts
) -> None:
    """What a bookie missed is known to the writer alone, so it stays missing; the log has where it
    begins."""
    cluster = start_cluster(3)
    writer = WriterProcess(tmp_path, cluster.metadata_url, QUORUMS, 1024, rest_s=0.002)
    try:
        writer.wait_confirmed(1000)
        hanging = cluster.bookies[0]
        hanging.role.pause()
        missing = writer.wait_for(r".*bookie lacks confirmed entries.* first_entry=(\d+) .*")
        writer.wait_confirmed(1000)
    finally:
        writer.kill()
    assert f"bookie={hanging.bookie_id} " in missing[0]
    hanging.role.resume()

    async def judged() -> tuple[int, list[int]]:
        async with client(cluster.metadata_url, QUORUMS) as other:
            reader = await opened(other, writer.ledger_id)
            last = reader.last_add_confirmed
            assert last >= writer.confirmed - 1
            assert await lost(reader, 1024) == {}
            found = await copies(other.pool, reader.metadata, last + 1, 1024)
            assert min(found) >= 2
            return last, [entry_id for entry_id in range(last + 1) if found[entry_id] < 3]

    last, short = asyncio.run(judged())
    assert all(entry_id >= int(missing[1]) for entry_id in short)
    counts(
        f"{writer.confirmed} confirmed, {last + 1} recovered: lost 0; {len(short)} on two bookies "
        f"only, the first of them {short[:1]}, missing from {missing[1]} on as the log says"
    )
