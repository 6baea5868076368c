"""``make demo``: the main job on real data, in under four minutes.

Starts the platform, and then

1. publishes 336 776 flights, typed by a schema, to a partitioned topic; meanwhile
2. a Spark stream computes daily delays per airport and carrier into a results topic and Parquet,
   exactly once;
3. makes the topic a table (``magnetar pipeline table``), whose ledgers then leave the bookies;
4. has DuckDB compute the same from the table, and something that the stream does not;
5. has a consumer read the whole topic, of which only the table is left.

Whatever comes out of 1, 2, 4 and 5 is held against the data itself; one row that differs is exit
code 1. Leaves ``out/demo/report.json`` and ``out/demo/delays.png``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the repository, not this folder

import httpx
import pulsar
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import delays, flights, history, picture
from demo.standalone import Platform, refuse_if_one_runs, running

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "out" / "demo"
PARQUET = FOLDER / "delays.parquet"
WAREHOUSE = FOLDER / "warehouse"
TOPIC = "persistent://public/default/flights"
RESULTS = "persistent://public/default/delays"
PARTITIONS = 4
PER_TRIGGER = 60_000

console = Console()


def say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


@dataclass
class Report:
    """What came out; ``differ``: rows that are not those of the data, by where they came from."""

    flights: int = 0
    published: int = 0
    publish_seconds: float = 0.0
    through_spark: int = 0
    spark_seconds: float = 0.0
    result_rows: int = 0
    result_updates: int = 0
    result_messages: int = 0
    ledgers: int = 0
    ledger_bytes: int = 0
    table_seconds: float = 0.0
    table_rows: int = 0
    table_bytes: int = 0
    only_in_table: int = 0
    ledgers_left: int = 0
    query_seconds: float = 0.0
    read_back: int = 0
    read_back_seconds: float = 0.0
    differ: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        counts = (self.published, self.through_spark, self.table_rows, self.read_back)
        return (
            all(count == self.flights > 0 for count in counts)
            and self.result_messages == self.result_updates
            and self.ledgers_left == 0 < self.only_in_table
            and not any(self.differ.values())
        )


class Run:
    """One run: what its steps have in common."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.table = flights.load_flights()
        self.airlines = flights.load_airlines()
        self.report = Report(flights=len(self.table))
        self.course = picture.Course()
        self.client = pulsar.Client(
            platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
        )
        self.begun = time.monotonic()

    def at(self) -> float:
        return round(time.monotonic() - self.begun, 2)

    def note(self, stage: str, count: int) -> None:
        self.course.note(stage, self.at(), count)

    def held(self, what: str, expected: dict[Any, Any], found: dict[Any, Any]) -> None:
        """Hold ``found`` against what the data itself gives."""
        wrong = delays.mismatches(expected, found)
        self.report.differ[what] = len(wrong)
        for key in wrong[:5]:
            say(f"[red]differs[/] {what} {key}: {expected.get(key)} {found.get(key)}")


def create_partitioned(platform: Platform) -> None:
    url = f"{platform.http_url}/admin/v2/{history.path_of(TOPIC)}/partitions"
    answer = httpx.put(url, content=str(PARTITIONS), headers={"content-type": "application/json"})
    if answer.status_code >= 300 and answer.status_code != 409:
        raise SystemExit(f"cannot create the topic: {answer.status_code} {answer.text}")


def start_query(run: Run, spark: SparkSession) -> StreamingQuery:
    """The streaming pipeline; runs in the background while flights arrive."""
    service_url = run.platform.service_url
    stream = delays.read_stream(spark, service_url, TOPIC, PER_TRIGGER)
    results = delays.daily_delays(stream, spark.createDataFrame(run.airlines))
    return (
        results.writeStream.outputMode("update")
        .foreachBatch(
            lambda batch, number: delays.write_batch(batch, number, service_url, RESULTS, PARQUET)
        )
        .option("checkpointLocation", str(FOLDER / "checkpoint"))
        .start()
    )


def processed(query: StreamingQuery) -> int:
    """Rows that finished micro-batches have read."""
    return sum(progress.numInputRows for progress in query.recentProgress)


def bars() -> Progress:
    return Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def stream_all(
    run: Run, spark: SparkSession
) -> tuple[list[flights.Flight], dict[flights.Place, int]]:
    """Publish everything while a query runs, and wait until that has seen it all; what was
    published, and where each message was stored."""
    publisher = flights.Publisher(run.client, TOPIC)  # the topic has its schema from here on
    query = start_query(run, spark)
    rows = flights.messages(run.table)
    report = run.report
    with bars() as progress:
        publishing = progress.add_task("published", total=len(rows))
        computing = progress.add_task("through Spark", total=len(rows))
        run.begun = time.monotonic()

        def seen(published: int | None = None) -> None:
            if published is not None:
                progress.update(publishing, completed=published)
                run.note("published", published)
            progress.update(computing, completed=processed(query))
            run.note("through Spark", processed(query))

        report.published = publisher.publish(rows, seen)
        report.publish_seconds = run.at()
        waiter = threading.Thread(target=query.processAllAvailable, daemon=True)
        waiter.start()
        while waiter.is_alive():
            seen()
            waiter.join(0.5)
        seen()
    if query.exception() is not None:
        raise SystemExit(f"the Spark query failed: {query.exception()}")
    report.spark_seconds = run.at()
    report.through_spark = processed(query)
    query.stop()
    return rows, publisher.stored


def check_stream(run: Run, expected: dict[delays.Key, delays.Row]) -> dict[delays.Key, delays.Row]:
    """Read the results back from both places."""
    found, run.report.result_messages = delays.from_topic(run.client, RESULTS)
    parquet, run.report.result_updates = delays.from_parquet(PARQUET)
    run.report.result_rows = len(found)
    run.held("results topic", expected, found)
    run.held("results in Parquet", expected, parquet)
    return found


def make_table(run: Run) -> tuple[str, history.Stored]:
    """The topic becomes a table; the command that did it, and what the bookies had."""
    report = run.report
    history.close_ledgers(run.platform, TOPIC)
    before = history.stored(run.platform, TOPIC, PARTITIONS)
    begun = run.at()
    run.note("in the table", 0)
    command, taken = history.take_in(run.platform, TOPIC, WAREHOUSE)
    run.note("in the table", taken["rows"])
    report.table_seconds = round(run.at() - begun, 2)
    report.table_rows = taken["rows"]
    report.table_bytes = sum(Path(file).stat().st_size for file in history.files_of(WAREHOUSE))
    report.ledgers, report.ledger_bytes = len(before.ledgers), before.ledger_bytes
    return command, before


def let_ledgers_go(run: Run, before: history.Stored) -> None:
    """Until the bookies have none of what is in the table."""
    report = run.report
    after = history.wait_trimmed(run.platform, TOPIC, PARTITIONS, before)
    report.only_in_table, report.ledgers_left = after.only_in_table, len(after.ledgers)
    run.course.stored_bytes = {
        "bookies\nbefore": report.ledger_bytes,
        "table": report.table_bytes,
        "bookies\nafter": after.ledger_bytes,
    }


def query_table(run: Run, expected: dict[delays.Key, delays.Row]) -> history.Hours:
    """DuckDB computes what the stream did, and one thing more."""
    begun = run.at()
    queries = history.Queries(WAREHOUSE, run.airlines)
    daily, hours = queries.daily_delays(), queries.hours()
    run.report.query_seconds = round(run.at() - begun, 2)
    run.held("DuckDB, daily delays", expected, daily)
    run.held("DuckDB, hours", history.hours_directly(run.table), hours)
    return hours


def read_back(run: Run, rows: list[flights.Flight], places: dict[flights.Place, int]) -> None:
    """A consumer reads the topic from its first message on."""
    report = run.report
    begun = run.at()
    run.note("read back", 0)
    with bars() as progress:
        task = progress.add_task("read back from the table", total=len(rows))

        def seen(count: int) -> None:
            progress.update(task, completed=count)
            run.note("read back", count)

        report.read_back, report.differ["consumer"] = history.read_back(
            run.client, TOPIC, rows, places, seen
        )
    report.read_back_seconds = round(run.at() - begun, 2)


def tell(run: Run, command: str) -> None:
    report = run.report
    rate = report.published / report.publish_seconds
    differ = report.differ
    results = differ["results topic"] + differ["results in Parquet"]
    queries = differ["DuckDB, daily delays"] + differ["DuckDB, hours"]
    say(
        f"published   {report.published:,} flights in {report.publish_seconds} s ({rate:,.0f}/s) "
        f"to {PARTITIONS} partitions, typed by a schema, every one acknowledged after fsync"
    )
    say(
        f"streamed    {report.through_spark:,} flights through Spark in {report.spark_seconds} s: "
        f"{report.result_rows:,} (day, airport, airline) rows\n"
        f"            in the results topic and in Parquet; rows that differ: {results}\n"
        f"            {report.result_updates:,} updates of them were written; the topic holds "
        f"{report.result_messages:,}"
    )
    say(
        f"table       {report.table_rows:,} rows in {report.table_seconds} s by `{command}`\n"
        f"            {report.ledgers} ledgers of {report.ledger_bytes / 1e6:.1f} MB are "
        f"{report.table_bytes / 1e6:.1f} MB of Parquet; the bookies have "
        f"{report.ledgers_left} of the ledgers"
    )
    say(
        f"DuckDB      the same {report.result_rows:,} rows by SQL on the table, and late flights "
        f"by month and hour, in {report.query_seconds} s; rows that differ: {queries}"
    )
    say(
        f"read back   {report.read_back:,} flights by a consumer in {report.read_back_seconds} s, "
        f"from the table alone: same ids, keys, times, values, order;\n"
        f"            rows that differ: {differ['consumer']}"
    )
    where = FOLDER.relative_to(ROOT)
    say(f"picture     {where}/delays.png\nreport      {where}/report.json\ndata        {where}/")
    say(f"total       {report.seconds} s, rows that differ: {sum(differ.values())}")


def tell_kept(platform: Platform) -> None:
    assert platform.process is not None
    say(
        f"\nThe platform goes on at {platform.service_url} and {platform.http_url} "
        f"(process {platform.process.pid}):\n"
        f"  .venv/bin/magnetar topics list --url {platform.http_url}\n"
        f"  .venv/bin/magnetar consume delays --subscription me --from earliest --count 5 "
        f"--service-url {platform.service_url}\n"
        f"  kill {platform.process.pid}        # ends it"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="The main job on real data.")
    parser.add_argument("--keep", action="store_true", help="leave the platform running")
    args = parser.parse_args()
    begun = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    refuse_if_one_runs(FOLDER)
    shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    with running(FOLDER, keep=args.keep) as platform:
        say(f"platform    ready at {platform.service_url}, {platform.http_url}")
        create_partitioned(platform)
        run = Run(platform)
        spark = delays.session(FOLDER / "spark-warehouse")
        rows, places = stream_all(run, spark)
        expected = delays.direct(run.table, run.airlines)
        results = check_stream(run, expected)
        spark.stop()
        command, before = make_table(run)
        hours = query_table(run, expected)
        let_ledgers_go(run, before)
        read_back(run, rows, places)
        run.client.close()
        picture.draw(results, hours, run.course, FOLDER / "delays.png")
        run.report.seconds = round(time.monotonic() - begun, 1)
        (FOLDER / "report.json").write_text(json.dumps(asdict(run.report), indent=2) + "\n")
        tell(run, command)
        if args.keep:
            tell_kept(platform)
    return 0 if run.report.good else 1


if __name__ == "__main__":
    sys.exit(main())
