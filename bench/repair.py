"""How fast ledgers become whole again when a bookie is lost with its disk, under load.

    python -m bench.repair [--mb 400] [--rounds 3] [--bookies 5] [--directory out]

Bookies and a ZooKeeper as processes, auto-recovery beside each bookie, without a bound on its pace.
Closed ledgers are written; then a writer goes on with others while one bookie is wiped. Counted is
from the first ledger that is marked until none of the closed ones names the bookie that is lost:
the bytes that it held of them, over that time. Before it lies the session of the bookie and the
delay, which are settings.

In the same run, before and after: what the disk allows of the same, a file copied block by block
that is not in memory, with fdatasync. Bookies write each byte twice (journal, entry log).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import machine
from bench.results import store, table
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.ids import BookieId
from magnetar.repair.marks import ShortageMarks
from tests.scenarios.cluster import SETTINGS, Cluster
from tests.scenarios.repairs import Load, fill, survey

MB = 1_000_000
BLOCK_BYTES = 1 << 20
QUORUMS = (3, 3, 2)
LEDGER_ENTRIES = 2000
ENTRY_BYTES = 10_240
DELAY_S = 1
LOOK_S = 0.1
PATIENCE_S = 600.0
REPAIR = (
    "--set", f"repair.lost_bookie_delay_ms={DELAY_S * 1000}",
    "--set", "repair.look_interval_ms=200",
    "--set", "repair.open_ledger_grace_ms=1000",
    "--set", "repair.copy_bytes_per_s=0",
)  # fmt: skip


def copied_mb_per_s(directory: Path, byte_count: int) -> float:
    """A file copied on that disk, from the disk and to it."""
    source, target = directory / "copy.source", directory / "copy.target"
    block = os.urandom(BLOCK_BYTES)
    with source.open("wb") as file:
        for _ in range(byte_count // BLOCK_BYTES):
            file.write(block)
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun_s = time.monotonic()
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while found := reading.read(BLOCK_BYTES):
            writing.write(found)
        os.fdatasync(writing.fileno())
    took_s = time.monotonic() - begun_s
    source.unlink()
    target.unlink()
    return byte_count / took_s / MB


async def wait_repaired(url: str, lost: BookieId, ledger_ids: Sequence[int]) -> tuple[float, float]:
    """When there was no sign of repair for the last time, and when none of these ledgers named the
    bookie any more."""
    begun_s, deadline_s = time.monotonic(), time.monotonic() + PATIENCE_S
    store = await ZooKeeperMetadataStore.open(url)
    try:
        manager, marks = LedgerManager(store), ShortageMarks(store)
        await manager.initialize(create=False)
        left, begun = list(ledger_ids), False
        while left:
            assert time.monotonic() < deadline_s, f"not repaired {PATIENCE_S:.0f} s after the loss"
            looked_s = time.monotonic()
            begun = begun or await anext(marks.ledgers(), None) is not None
            read = await asyncio.gather(*(manager.read(each) for each in left))
            left = [m.ledger_id for m, _ in read if any(lost in f.bookies for f in m.fragments)]
            begun = begun or len(left) < len(ledger_ids)
            begun_s = begun_s if begun else looked_s
            await asyncio.sleep(LOOK_S)
        return begun_s, time.monotonic()
    finally:
        await store.close()


def wait_whole(url: str) -> None:
    """Also of what was written meanwhile."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := survey(url)).whole:
        assert time.monotonic() < deadline_s, f"not every ledger is whole: {found.lacking}"
        time.sleep(1.0)


def one(directory: Path, byte_count: int, bookies: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="repair-", dir=directory) as name,
        ZooKeeperServer(Path(name) / "zookeeper") as zookeeper,
    ):
        folder, url = Path(name), f"zk://{zookeeper.address}/repair"
        cluster = Cluster(folder, url, bookies, (*SETTINGS, *REPAIR))
        try:
            cluster.start_bookies()
            ledgers = max(1, byte_count // (LEDGER_ENTRIES * ENTRY_BYTES))
            fill(url, QUORUMS, ledgers, LEDGER_ENTRIES)
            before = survey(url)
            limit = copied_mb_per_s(folder, min(byte_count, 256 * MB))
            lost = BookieId(max(before.naming, key=lambda each: before.naming[each]))
            held = [each for each in before.ledgers if lost in each.fragments[0].bookies]
            held_mb = sum(each.length for each in held) / MB
            with Load(url, QUORUMS, 200, 2000) as load:
                time.sleep(2)
                wiped_s = time.monotonic()
                cluster.bookie(lost).wipe()
                waiting = wait_repaired(url, lost, [each.ledger_id for each in held])
                begun_s, ended_s = asyncio.run(waiting)
            load.check()
            wait_whole(url)
            whole_s = time.monotonic()
            limits = (limit, copied_mb_per_s(folder, min(byte_count, 256 * MB)))
            return {
                "ledgers": len(held),
                "copied_mb": held_mb,
                "marked_after_s": begun_s - wiped_s,
                "took_s": ended_s - begun_s,
                "whole_after_s": whole_s - wiped_s,
                "mb_per_s": held_mb / (ended_s - begun_s),
                "disk_before_mb_per_s": limits[0],
                "disk_after_mb_per_s": limits[1],
                "written_meanwhile": sum(load.written.values()),
            }
        finally:
            cluster.end()


def row(found: dict[str, float]) -> list[object]:
    limits = found["disk_before_mb_per_s"], found["disk_after_mb_per_s"]
    shown = (found["copied_mb"], found["marked_after_s"], found["took_s"], found["mb_per_s"])
    ratio = 2 * found["mb_per_s"] / sum(limits)
    return [found["ledgers"], *(f"{each:.1f}" for each in (*shown, *limits)), f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("out"))
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    where = machine()
    rounds = [one(args.directory, args.mb * MB, args.bookies) for _ in range(args.rounds)]
    columns = (
        "ledgers", "MB copied", "marked after s", "whole after s more", "MB/s",
        "disk copies MB/s, before", "after", "of that",
    )  # fmt: skip
    rows = [row(each) for each in rounds]
    text = (
        f"One of {args.bookies} bookies wiped while a writer goes on; E3 Qw3 Qa2, entries of "
        f"{ENTRY_BYTES} B; auto-recovery beside each bookie, no bound on its pace.\n\n"
        + table(columns, rows)
    )
    store("repair", {"rounds": rounds}, text, where)


if __name__ == "__main__":
    main()
