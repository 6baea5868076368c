"""The tables of ``bench.ledger_store``, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bench.results import table

Row: TypeAlias = dict[str, str | int | float]
Columns: TypeAlias = Mapping[str, str]

ADDS: Columns = {
    "quorums": "E/Qw/Qa",
    "load": "entries",
    "ledgers": "ledgers",
    "entries_per_s": "entries/s",
    "mb_per_s": "MB/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "bookie_cpu_us": "bookie us/copy",
    "bookie_system_us": "of it system",
    "writer_cpu_us": "writer us/entry",
    "writer_system_us": "of it system",
    "bookie_resident_mib": "largest bookie MiB",
    "writer_resident_mib": "writer MiB",
}
GROUP_COMMIT: Columns = {
    "quorums": "E/Qw/Qa",
    "p50_ms": "add p50 ms",
    "p99_ms": "add p99 ms",
    "writers": "raw writers at once",
    "raw_p50_ms": "written through p50 ms",
    "raw_p99_ms": "p99 ms",
    "raw_fdatasync_p50_ms": "fdatasync p50 ms",
    "raw_fdatasync_p99_ms": "p99 ms",
    "ratio": "add / written through",
    "trip_p50_ms": "bare round trip p50 ms",
    "ratio_with_trip": "add / (written through + round trip)",
}
COLD_READS: Columns = {
    "entry_bytes": "entry bytes",
    "parallel": "ranges at once",
    "mb_per_s": "MB/s",
    "cat_mb_per_s": "`cat` MB/s",
    "from_disk_percent": "from the disk %",
    "bookie_cpu_s_per_gb": "bookie CPU s/GB",
    "reader_cpu_s_per_gb": "reader CPU s/GB",
}
BESIDE: Columns = {
    "rate": "adds/s",
    "alone_p50_ms": "alone p50 ms",
    "alone_p99_ms": "alone p99 ms",
    "beside_p50_ms": "beside p50 ms",
    "beside_p99_ms": "beside p99 ms",
    "ratio": "p99 ratio",
    "reader_mb_per_s": "reader MB/s",
}
RECOVERY: Columns = {
    "quorums": "E/Qw/Qa",
    "entries": "entries",
    "seconds": "seconds",
    "us_per_entry": "us/entry",
    "recoverer_cpu_us": "recoverer's CPU us/entry",
}


def as_text(report: Mapping[str, Sequence[Row]]) -> str:
    parts = [
        "Three bookies, a ZooKeeper and the clients, processes of one machine and one disk, "
        "journal sync on.",
        "## Adds\n\nClosed loop, full pipelines (1000 to 2048 entries of 1 KiB, 64 of 128 KiB): "
        "latency is mostly waiting behind one's own entries. Goals at 1 KiB pipelined: bookie 2 us "
        "a copy, writer 4 us an entry, with what the load itself costs.",
        _table(ADDS, report["adds"]),
        "## Group commit\n\nOne writer, one entry of 1 KiB outstanding; beside it the disk itself, "
        "as many writers at once as journals, and a bare round trip of such an entry between two "
        "processes that do nothing else. Goal: within 1.5 times.",
        _table(GROUP_COMMIT, report["group_commit"]),
        "## Cold catch-up reads\n\nThe bookies restarted, their files out of the page cache "
        "(`POSIX_FADV_DONTNEED`; a host's cache beneath a virtual machine is not reached). `cat` "
        "reads the entry logs of one bookie, just as cold. One bookie serves a reader of such a "
        "ledger. 'From the disk': what the bookies read from storage, of the payload; above 100: "
        "headers, and what was read ahead in vain.",
        _table(COLD_READS, report["cold_reads"]),
        "## Adds beside a reader\n\n1 KiB at a fixed rate to 3/3/2, each entry timed from when it "
        "was due, without and with a reader of a ledger of 1 KiB entries at full speed. Medians of "
        "alternating rounds. Goal: p99 moves by no more than half.",
        _table(BESIDE, report["beside_reader"]),
        "## Recovery\n\nTime of `open` of a ledger with so many entries of 1 KiB past its last "
        "confirmed one: fenced, read, written again to all copies, closed.",
        _table(RECOVERY, report["recovery"]),
    ]
    return "\n\n".join(parts)


def _table(columns: Columns, rows: Sequence[Row]) -> str:
    return table(list(columns.values()), [[row[name] for name in columns] for row in rows])
