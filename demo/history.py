"""The topic's history: as a table that DuckDB queries, and read back by a consumer from the table.

``magnetar pipeline table`` makes the table, and brokers serve consumers from it as soon as the
ledgers have left the bookies. Here is what is done with both, and the same figures computed from
the data itself, to compare: all are whole numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import httpx
import pandas as pd
import pulsar
from pyiceberg.catalog import load_catalog

from demo.delays import LATE_MINUTES, Key, Row
from demo.flights import COLUMNS, Flight, Place, avro, place_of
from demo.standalone import Platform

TABLE: Final = "public_default.flights"
TRIMMED_SECONDS_MAX: Final = 120.0

Hours: TypeAlias = dict[tuple[int, int], tuple[int, int]]
"""(month, hour of the day) -> flights, and those of them that left late."""


# -- the table ------------------------------------------------------------------------------------


def close_ledgers(platform: Platform, topic: str) -> None:
    """What is still open is closed, as by a day without messages: tables take whole ledgers."""
    answer = httpx.put(f"{platform.http_url}/admin/v2/{path_of(topic)}/unload", timeout=60)
    answer.raise_for_status()


def take_in(platform: Platform, topic: str, warehouse: Path) -> tuple[str, dict[str, Any]]:
    """Run the job as a user would; the command, and what its report says of the topic."""
    words = ["magnetar", "pipeline", "table", topic.rpartition("/")[2]]
    words += ["--warehouse", str(warehouse), "--keep-ledgers", "1ms", "--json"]
    words += ["--service-url", platform.service_url, "--progress", "none"]
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, check=False, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"the job ended with {done.returncode}: {done.stdout}")
    (found,) = json.loads(done.stdout)["topics"]
    return " ".join(words[:6]), found


def files_of(warehouse: Path) -> list[str]:
    """The table's files, by its Iceberg catalog."""
    catalog = load_catalog("magnetar", type="sql", uri=f"sqlite:///{warehouse}/catalog.db")
    tasks = catalog.load_table(TABLE).scan().plan_files()
    return sorted(task.file.file_path.removeprefix("file://") for task in tasks)


class Queries:
    """DuckDB on the table's files; nothing of the platform is asked."""

    def __init__(self, warehouse: Path, airlines: pd.DataFrame) -> None:
        self.files = files_of(warehouse)
        self._duckdb = duckdb.connect()
        self._duckdb.register("airlines", airlines)

    def _ask(self, text: str) -> list[tuple[Any, ...]]:
        return self._duckdb.execute(text, [self.files]).fetchall()

    def daily_delays(self) -> dict[Key, Row]:
        """What the Spark stream computes, in one query."""
        rows = self._ask(f"""
            SELECT strftime(event_time::TIMESTAMP, '%Y-%m-%d') AS day, value.origin, name,
                count(*), count(*) FILTER (value.dep_delay IS NULL),
                count(*) FILTER (value.dep_delay >= {LATE_MINUTES}),
                coalesce(sum(value.dep_delay), 0)::BIGINT, max(value.dep_delay)
            FROM read_parquet(?) JOIN airlines ON airlines.carrier = value.carrier
            GROUP BY ALL""")
        return {row[:3]: row[3:] for row in rows}

    def hours(self) -> Hours:
        """What nobody thought of while the flights came in: when should one fly?"""
        rows = self._ask(f"""
            SELECT value.month, value.hour, count(*),
                count(*) FILTER (value.dep_delay >= {LATE_MINUTES})
            FROM read_parquet(?) GROUP BY ALL""")
        return {row[:2]: row[2:] for row in rows}


def hours_directly(flights: pd.DataFrame) -> Hours:
    """``Queries.hours`` of the data itself."""
    late = flights["dep_delay"] >= LATE_MINUTES
    found = late.groupby([flights["month"], flights["hour"]]).agg(["size", "sum"])
    return {
        (int(month), int(hour)): (int(flights), int(late))
        for (month, hour), flights, late in found.itertuples(name=None)
    }


# -- the ledgers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """Where a topic's messages lie: ledgers at the bookies, and what only the table has."""

    ledgers: frozenset[int]
    ledger_bytes: int
    only_in_table: int


def stored(platform: Platform, topic: str, partitions: int) -> Stored:
    """By the broker's own account, empty ledgers left out."""
    there: set[int] = set()
    ledger_bytes = gone = 0
    for number in range(partitions):
        url = f"{platform.http_url}/admin/v2/{path_of(topic)}-partition-{number}/internalStats"
        for each in httpx.get(url, timeout=60).raise_for_status().json()["ledgers"]:
            if each["offloaded"]:
                gone += 1
            elif each["entries"]:
                there.add(each["ledgerId"])
                ledger_bytes += each["size"]
    return Stored(frozenset(there), ledger_bytes, gone)


def wait_trimmed(platform: Platform, topic: str, partitions: int, before: Stored) -> Stored:
    """Until the bookies have none of the ledgers that the topic had; asked of both."""
    deadline = time.monotonic() + TRIMMED_SECONDS_MAX
    while True:
        now = stored(platform, topic, partitions)
        left = now.ledgers | (before.ledgers & ledger_ids(platform))
        if not left:
            return now
        if time.monotonic() > deadline:
            raise SystemExit(f"ledgers {sorted(left)} did not leave the bookies")
        time.sleep(0.1)


def ledger_ids(platform: Platform) -> frozenset[int]:
    """All ledgers of the cluster."""
    found: set[int] = set()
    after = -1
    while True:
        url = f"{platform.http_url}/magnetar/v1/ledgers?after={after}&limit=1000"
        page = httpx.get(url, timeout=60).raise_for_status().json()
        if not page:
            return frozenset(found)
        found |= {each["ledgerId"] for each in page}
        after = max(found)


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


# -- a consumer of what is gone -------------------------------------------------------------------


def read_back(
    client: pulsar.Client,
    topic: str,
    rows: Sequence[Flight],
    places: dict[Place, int],
    progress: Callable[[int], None],
) -> tuple[int, int]:
    """All messages from the first on; how many came, and how many differ from what was published:
    another value, key, time or place, one too many, one too few, or out of its key's order."""
    consumer = client.subscribe(
        topic,
        "late-comer",
        schema=avro(),
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5000,
    )
    left = dict(places)
    last: dict[str, int] = {}
    differ = 0
    while left:
        try:
            message = consumer.receive(timeout_millis=20_000)
        except pulsar.Timeout:
            break
        number = left.pop(place_of(message.message_id()), None)
        differ += number is None or not _same(message, rows[number], last, number)
        count = len(places) - len(left)
        if count % 1000 == 0:
            progress(count)
    consumer.close()
    progress(len(places) - len(left))
    return len(places) - len(left), differ + len(left)


def _same(message: pulsar.Message, flight: Flight, last: dict[str, int], number: int) -> bool:
    in_order = last.get(flight.carrier, -1) < number
    last[flight.carrier] = number
    value = message.value()
    return (
        in_order
        and tuple(value[name] for name in COLUMNS) == flight.values
        and message.partition_key() == flight.carrier
        and message.event_timestamp() == flight.scheduled_ms
    )
