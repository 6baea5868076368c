"""The disks of all bookies fill up to the last byte under load: writes are refused with a clear
error, reads are served, the space of deleted ledgers comes back without a restart, nothing is lost.

Each bookie is a process on a small file system of its own. Needs the right to mount; skipped
without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar.bookie.space.reserve import RESERVE_NAME
from magnetar.model.errors import NotEnoughBookiesError
from tests.scenarios.cluster import SESSION_MS, Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import Client, Load, client, lost
from tests.scenarios.replicas import copies
from tests.small_disk import KINDS, fill_up, free_bytes, small_disk

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

DISK_BYTES = 160 << 20
ENTRY_BYTES = 16 << 10
LEDGERS = 6
SOME = 50
"""Entries of each ledger before the disks are filled; all ledgers together fill them with 5000."""
MANY = 500
"""So that five of six ledgers are more than a bookie wants to have free, to take entries again."""
FLUSHED_BYTES = LEDGERS * MANY * ENTRY_BYTES - (8 << 20)
"""Of these in entry logs at least: the rest may be in write caches."""
ALONE_BYTES = 32 << 20
ROOM_S = 120.0
RESERVED_BYTES = 24 << 20
"""A bookie stops taking entries when twice its write cache and two journal files are left."""
SETTINGS = (
    "--set", f"metadata.session_timeout_ms={SESSION_MS}",
    "--set", "bookie.journal.file_bytes=6MiB",
    "--set", "bookie.write_cache_bytes=4MiB",
    "--set", "bookie.entry_log_bytes_max=4MiB",
    "--set", "bookie.flush_interval_ms=100",
    "--set", "bookie.disk_check_interval_ms=50",
    "--set", "bookie.disk_reserve_bytes=2MiB",
    "--set", "bookie.collect_interval_ms=200",
    "--set", "bookie.collect_grace_ms=200",
)  # fmt: skip


class Filled(NamedTuple):
    """A cluster and the disks of its bookies."""

    cluster: Cluster
    disks: list[Path]


@pytest.fixture(params=KINDS)
def on_small_disks(
    tmp_path: Path, zookeeper_url: str, request: pytest.FixtureRequest
) -> Iterator[Filled]:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, zookeeper_url, 3, SETTINGS)
        disks = []
        for bookie in cluster.bookies:
            folder = tmp_path / f"machine-{bookie.port}"
            disks.append(stack.enter_context(small_disk(folder, request.param, DISK_BYTES)))
            bookie.data_dir = disks[-1] / "bookie"
        stack.callback(cluster.end)
        cluster.start_bookies()
        yield Filled(cluster, disks)


async def written_alone(owner: Client) -> tuple[int, int]:
    """(ledger id, entries confirmed) of a ledger with entry logs for itself: they can be removed as
    they are, on a disk without a byte to copy anything to."""
    writer = await owner.ledgers.create()
    load = Load(writer, ENTRY_BYTES, ENTRY_BYTES * 16)
    await load.wait_confirmed(ALONE_BYTES // ENTRY_BYTES)
    await load.stop()
    return writer.ledger_id, (await writer.close()).last_entry_id + 1


async def load_until_refused(
    owner: Client, disturb: Callable[[], None], some: int = SOME
) -> dict[int, int]:
    """Ledger id -> entries confirmed, of ledgers that grow together until their writers fail."""
    writers = [await owner.ledgers.create() for _ in range(LEDGERS)]
    loads = [Load(writer, ENTRY_BYTES, ENTRY_BYTES * 16) for writer in writers]
    await asyncio.gather(*(load.wait_confirmed(some) for load in loads))
    await asyncio.to_thread(disturb)
    for load in loads:
        error = await load.wait_failed()
        assert isinstance(error, NotEnoughBookiesError), error
        assert "takes no new entries (its disks are nearly full" in str(error)
        await load.stop()
        assert (await load.writer.close()).last_entry_id == load.confirmed - 1
    return {load.writer.ledger_id: load.confirmed for load in loads}


async def is_sound(cluster: Cluster, held: dict[int, int]) -> None:
    """A new client gets every entry, and finds it on two bookies at least."""
    async with client(cluster.metadata_url) as reading:
        for ledger_id, count in held.items():
            reader = await reading.ledgers.open(ledger_id)
            assert reader.last_add_confirmed == count - 1
            assert await lost(reader, ENTRY_BYTES) == {}
            found = await copies(reading.pool, reader.metadata, count, ENTRY_BYTES)
            assert min(found) >= reader.metadata.ack_quorum


async def written_when_there_is_room(owner: Client, entries: int) -> tuple[int, int]:
    """(ledger id, entries confirmed), as soon as the bookies take a ledger again."""
    async with asyncio.timeout(ROOM_S):
        while True:
            try:
                load = Load(await owner.ledgers.create(), ENTRY_BYTES)
                await load.wait_confirmed(entries)
                break
            except NotEnoughBookiesError:
                await asyncio.sleep(0.2)
    await load.stop()
    closed = await load.writer.close()
    return load.writer.ledger_id, closed.last_entry_id + 1


def fills_and_gets_room(
    filled: Filled,
    fill: Callable[[], None],
    left_bytes_max: int,
    counts: Counts,
    with_alone: bool = True,
) -> None:
    """``with_alone``: one of the deleted ledgers has entry logs for itself."""
    cluster = filled.cluster
    processes = [bookie.role.process.pid for bookie in cluster.bookies]

    async def scenario() -> None:
        async with client(cluster.metadata_url) as owner:
            alone = dict([await written_alone(owner)] if with_alone else [])
            held = await load_until_refused(owner, fill, SOME if with_alone else MANY)
            with pytest.raises(NotEnoughBookiesError):
                await owner.ledgers.create()
            await asyncio.to_thread(fill)  # what was reserved too, if it was given up
            left = [free_bytes(disk) for disk in filled.disks]
            assert max(left) < left_bytes_max
            confirmed = sum(held.values())
            await is_sound(cluster, alone | held)  # served from full disks

            others = list(held)[1:]  # their entries lie among those of the first
            for ledger_id in (*alone, *others):
                await owner.ledgers.delete(ledger_id)
                held.pop(ledger_id, None)
            ledger_id, count = await written_when_there_is_room(owner, 300)
            held[ledger_id] = count
            await is_sound(cluster, held)

        assert [bookie.role.process.pid for bookie in cluster.bookies] == processes
        assert all(bookie.role.running for bookie in cluster.bookies), "no restart"
        for bookie in cluster.bookies:
            bookie.kill()
        cluster.start_bookies()
        await is_sound(cluster, held)
        counts(
            f"{confirmed} confirmed until refused, {[n >> 10 for n in left]} KiB left; after "
            f"{len(alone) + len(others)} of {len(alone) + LEDGERS} ledgers were deleted {count} "
            "more, without a restart: "
            "lost 0"
        )

    asyncio.run(scenario())


def test_disks_filled_by_the_load_itself(on_small_disks: Filled, counts: Counts) -> None:
    fills_and_gets_room(on_small_disks, lambda: None, RESERVED_BYTES, counts)


def test_disks_filled_to_the_last_byte_under_load(on_small_disks: Filled, counts: Counts) -> None:
    """By somebody else, and left so: room comes from deleted ledgers alone."""

    def fill() -> None:
        for disk in on_small_disks.disks:
            fill_up(disk)

    fills_and_gets_room(on_small_disks, fill, 1 << 20, counts)


def test_disks_filled_to_the_last_byte_with_every_log_mixed(
    on_small_disks: Filled, counts: Counts
) -> None:
    """Every log has living entries, and there is nowhere to copy them to: not the reserves
    either."""

    logs = [disk / "bookie" / "ledgers" for disk in on_small_disks.disks]

    def fill() -> None:
        until_s = time.monotonic() + ROOM_S
        # Two of three have confirmed: the third may be far behind.
        while min(map(bytes_of_logs, logs)) < FLUSHED_BYTES and time.monotonic() < until_s:
            time.sleep(0.05)
        for each in logs:
            (each / RESERVE_NAME).unlink(missing_ok=True)
        for disk in on_small_disks.disks:
            fill_up(disk)

    fills_and_gets_room(on_small_disks, fill, 1 << 20, counts, with_alone=False)


def bytes_of_logs(directory: Path) -> int:
    found = 0
    for log in directory.glob("*.log"):
        with suppress(FileNotFoundError):  # compaction has removed it
            found += log.stat().st_size
    return found
