"""The ledger store over TCP: three bookies and a ZooKeeper, processes of their own on a real disk,
journal sync on; the clients are processes of their own too and use ``magnetar.ledger``.

    python -m bench.ledger_store [--quick]

Adds (closed loop, pipelines full) at two quorums, small and large entries, one and many ledgers;
the commit latency of a single writer against the disk's own; cold catch-up reads against ``cat``;
adds beside a reader; recovery. Results: ``bench/results/ledger_store.json`` and ``.md``
(not of ``--quick``, which says whether it runs).

Everything shares one machine and one disk: all three copies, each written twice. CPU is from /proc,
user and system, all threads, in a steady state after a warm-up; a bookie's is the sum over the
bookies divided by the entries and by the copies of each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.ledger_clients import Child, Quorums, Report, run
from bench.ledger_disk import cat_mb_per_s, commits_at_once, make_cold
from bench.ledger_reading import CatchUpLoad, RecoverLoad
from bench.ledger_store_text import Row, as_text
from bench.ledger_writing import PacedLoad, PipelinedLoad
from bench.loopback import round_trips
from bench.measure import machine
from bench.results import store as store_results
from bench.server import WORK_DIR, Store, ledger_store

ALL_COPIES: Quorums = (3, 3, 2)
STRIPED: Quorums = (3, 2, 2)
WRITING, READING = "bench.ledger_writing", "bench.ledger_reading"
SMALL_BYTES, LARGE_BYTES = 1 << 10, 128 << 10


@dataclass(frozen=True)
class Shape:
    """A load of adds: the pipeline holds ``depth`` entries."""

    name: str
    payload_bytes: int
    many: bool
    batch: int
    depth: int


SHAPES = (
    Shape("1 KiB, 64 an append", SMALL_BYTES, False, 64, 2048),
    Shape("1 KiB, 1 an append", SMALL_BYTES, False, 1, 1000),
    Shape("1 KiB, 1 an append", SMALL_BYTES, True, 1, 1000),
    Shape("128 KiB", LARGE_BYTES, False, 1, 64),
    Shape("128 KiB", LARGE_BYTES, True, 1, 64),
)


@dataclass(frozen=True)
class Sizes:
    """How long and how much."""

    shapes: tuple[Shape, ...]
    add_s: float
    warmup_s: float
    many_ledgers: int
    commit_rounds: int
    commit_s: float
    read_mib: int
    parallels: tuple[int, ...]
    beside_rounds: int
    beside_s: float
    beside_rate: int
    recoveries: int
    recovered_entries: int


FULL = Sizes(SHAPES, 7.0, 2.5, 1000, 3, 4.0, 512, (1, 4), 3, 8.0, 2000, 3, 10_000)
QUICK = Sizes((SHAPES[0], SHAPES[4]), 0.7, 0.3, 50, 1, 0.6, 32, (1,), 1, 1.0, 1000, 1, 1000)


def adds(sizes: Sizes) -> list[Row]:
    """Every shape at both quorums; a new store for each quorum."""
    rows: list[Row] = []
    for quorums in (ALL_COPIES, STRIPED):
        with ledger_store() as store:
            _add(store, quorums, SHAPES[0], sizes)  # new journal files are being filled: not kept
            rows += [_add(store, quorums, shape, sizes) for shape in sizes.shapes]
    return rows


def _add(store: Store, quorums: Quorums, shape: Shape, sizes: Sizes) -> Row:
    ledgers = sizes.many_ledgers if shape.many else 1
    load = PipelinedLoad(
        store.metadata_url,
        quorums,
        shape.payload_bytes,
        ledgers,
        shape.batch,
        shape.depth,
        sizes.add_s,
        sizes.warmup_s,
        pids=store.pids,
    )
    found = run(WRITING, "pipelined", load)
    row: Row = {"quorums": "/".join(map(str, quorums)), "load": shape.name, "ledgers": ledgers}
    return {**row, **_without(found, "ledger_id")}


def _without(report: Report, name: str) -> Report:
    return {key: value for key, value in report.items() if key != name}


def group_commit(store: Store, sizes: Sizes) -> list[Row]:
    """One writer with one entry outstanding, on one bookie and on all, against as many raw writers
    as there are journals, and against a bare round trip between two processes; rounds of all
    alternate, as a machine drifts."""
    rows: list[Row] = []
    _add(store, ALL_COPIES, SHAPES[0], sizes)  # as above
    for quorums in ((1, 1, 1), ALL_COPIES):
        raw, added, trips = [], [], []
        for _ in range(sizes.commit_rounds):
            trips.append(round_trips(sizes.commit_s / 2))
            raw.append(commits_at_once(WORK_DIR, quorums[0], sizes.commit_s))
            load = PipelinedLoad(
                store.metadata_url, quorums, SMALL_BYTES, 1, 1, 1, sizes.commit_s, 0.3
            )
            added.append(run(WRITING, "pipelined", load))
        row: Row = {"quorums": "/".join(map(str, quorums)), "writers": quorums[0]}
        for name in ("p50_ms", "p99_ms", "fdatasync_p50_ms", "fdatasync_p99_ms"):
            row[f"raw_{name}"] = _median(raw, name)
        row |= {"p50_ms": _median(added, "p50_ms"), "p99_ms": _median(added, "p99_ms")}
        row["trip_p50_ms"] = _median(trips, "p50_ms")
        row["ratio"] = round(_median(added, "p50_ms") / _median(raw, "p50_ms"), 2)
        bare_ms = _median(raw, "p50_ms") + _median(trips, "p50_ms")
        row["ratio_with_trip"] = round(_median(added, "p50_ms") / bare_ms, 2)
        rows.append(row)
    return rows


def _median(reports: Sequence[Report], name: str) -> float:
    return round(statistics.median(report[name] for report in reports), 3)


def cold_reads(store: Store, sizes: Sizes, ledger_ids: Sequence[tuple[int, int]]) -> list[Row]:
    """``ledger_ids``: with the bytes of their entries. Before each read the bookies restart (their
    caches are empty) and their files leave the page cache."""
    store.stop()
    bookie = store.bookies[0].data_dir
    cat = cat_mb_per_s(sorted(bookie.rglob("*.log")))
    rows: list[Row] = []
    for ledger_id, entry_bytes in ledger_ids:
        for parallel in sizes.parallels:
            store.stop()
            for each in store.bookies:
                make_cold([path for path in each.data_dir.rglob("*") if path.is_file()])
            store.start()
            load = CatchUpLoad(store.metadata_url, ALL_COPIES, ledger_id, parallel, pids=store.pids)
            row: Row = {"entry_bytes": entry_bytes, "parallel": parallel, "cat_mb_per_s": cat}
            row |= run(READING, "catch_up", load)
            rows.append(row)
    return rows


def fill(store: Store, sizes: Sizes, payload_bytes: int) -> int:
    """A closed ledger to read; returns its id."""
    large = payload_bytes == LARGE_BYTES
    load = PipelinedLoad(
        store.metadata_url,
        ALL_COPIES,
        payload_bytes,
        1,
        1 if large else 64,
        64 if large else 2048,
        seconds=120.0,
        warmup_s=0.0,
        entries_max=(sizes.read_mib << 20) // payload_bytes,
        close=True,
    )
    return int(run(WRITING, "pipelined", load)["ledger_id"])


def beside_reader(store: Store, sizes: Sizes, ledger_id: int) -> Row:
    """Adds at a fixed rate without and with a reader at full speed, in turn; medians."""
    alone, beside, read = [], [], []
    load = PacedLoad(store.metadata_url, ALL_COPIES, SMALL_BYTES, sizes.beside_rate, sizes.beside_s)
    for _ in range(sizes.beside_rounds):
        alone.append(run(WRITING, "paced", load))
        reader = CatchUpLoad(store.metadata_url, ALL_COPIES, ledger_id, again=True)
        with Child(READING, "catch_up", reader) as child:
            child.wait_begun()
            beside.append(run(WRITING, "paced", load))
            read.append(child.end())
    row: Row = {"rate": sizes.beside_rate, "reader_mb_per_s": _median(read, "mb_per_s")}
    for name in ("p50_ms", "p99_ms"):
        row[f"alone_{name}"] = _median(alone, name)
        row[f"beside_{name}"] = _median(beside, name)
    row["ratio"] = round(_median(beside, "p99_ms") / _median(alone, "p99_ms"), 2)
    return row


def recoveries(store: Store, sizes: Sizes) -> list[Row]:
    """Median of some."""
    rows: list[Row] = []
    for quorums in (ALL_COPIES, STRIPED):
        load = RecoverLoad(store.metadata_url, quorums, sizes.recovered_entries, SMALL_BYTES)
        found = [run(READING, "recover", load) for _ in range(sizes.recoveries)]
        row: Row = {"quorums": "/".join(map(str, quorums))}
        rows.append(row | {name: _median(found, name) for name in found[0]})
    return rows


def measure(sizes: Sizes) -> dict[str, list[Row]]:
    """Every part; tells which, and when it began."""
    began = time.monotonic()

    def tell(part: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {part}", flush=True)

    tell("adds")
    report = {"adds": adds(sizes)}
    with ledger_store() as store:
        tell("group commit")
        report["group_commit"] = group_commit(store, sizes)
        tell("recovery")
        report["recovery"] = recoveries(store, sizes)
    with ledger_store() as store:
        tell("filling ledgers to read")
        ledger_ids = [(fill(store, sizes, size), size) for size in (SMALL_BYTES, LARGE_BYTES)]
        tell("cold catch-up reads")
        report["cold_reads"] = cold_reads(store, sizes, ledger_ids)
        tell("adds beside a reader")
        report["beside_reader"] = [beside_reader(store, sizes, ledger_ids[0][0])]
    tell("done")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="does it run; no figures to quote")
    quick = parser.parse_args().quick
    where = machine()
    report = measure(QUICK if quick else FULL)
    text = as_text(report)
    if quick:
        print(f"A smoke run, nothing to quote and not kept.\n\n{text}")
    else:
        store_results("ledger_store", dict(report), text, where)


if __name__ == "__main__":
    main()
