"""``make demo``: the main job on real data, in under four minutes.

Starts the platform, streams 336 776 flights through a partitioned topic, lets a Spark stream
compute daily delays per airport and carrier into a results topic and Parquet, reads the results
back, compares them with the same computation done directly, and draws them. Leaves
``out/demo/report.json`` and ``out/demo/delays.png``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the repository, not this folder

import httpx
import pandas as pd
import pulsar
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import delays, flights, picture
from demo.standalone import Platform, refuse_if_one_runs, running

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "out" / "demo"
TOPIC = "persistent://public/default/flights"
RESULTS = "persistent://public/default/delays"
PARTITIONS = 4
PER_TRIGGER = 60_000

console = Console()


def say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def create_partitioned(platform: Platform) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/flights/partitions"
    answer = httpx.put(url, content=str(PARTITIONS), headers={"content-type": "application/json"})
    if answer.status_code >= 300 and answer.status_code != 409:
        raise SystemExit(f"cannot create the topic: {answer.status_code} {answer.text}")


def start_query(spark: SparkSession, platform: Platform) -> StreamingQuery:
    """The streaming pipeline; runs in the background while flights arrive."""
    airlines = spark.createDataFrame(flights.load_airlines())
    stream = delays.read_stream(spark, platform.service_url, TOPIC, PER_TRIGGER)
    results = delays.daily_delays(stream, airlines)
    parquet = FOLDER / "delays.parquet"
    return (
        results.writeStream.outputMode("update")
        .foreachBatch(
            lambda batch, number: delays.write_batch(
                batch, number, platform.service_url, RESULTS, parquet
            )
        )
        .option("checkpointLocation", str(FOLDER / "checkpoint"))
        .start()
    )


def processed(query: StreamingQuery) -> int:
    """Rows that finished micro-batches have read."""
    return sum(progress.numInputRows for progress in query.recentProgress)


def stream_all(platform: Platform, query: StreamingQuery, table: pd.DataFrame) -> dict[str, float]:
    """Publish everything while the query runs, then wait until it has seen it all."""
    client = pulsar.Client(
        platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    )
    publisher = flights.Publisher(client, TOPIC)
    columns = (
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        publishing = progress.add_task("published", total=len(table))
        computing = progress.add_task("through Spark", total=len(table))
        begun = time.monotonic()
        count = publisher.publish(
            table,
            lambda done: (
                progress.update(publishing, completed=done),
                progress.update(computing, completed=processed(query)),
            )[0],
        )
        publish_seconds = time.monotonic() - begun
        waiter = threading.Thread(target=query.processAllAvailable, daemon=True)
        waiter.start()
        while waiter.is_alive():
            progress.update(computing, completed=processed(query))
            waiter.join(0.5)
        progress.update(computing, completed=processed(query))
    client.close()
    if query.exception() is not None:
        raise SystemExit(f"the Spark query failed: {query.exception()}")
    return {
        "published": count,
        "publish_seconds": round(publish_seconds, 2),
        "spark_seconds": round(time.monotonic() - begun, 2),
        "through_spark": processed(query),
    }


def compare(platform: Platform, table: pd.DataFrame, report: dict[str, object]) -> None:
    """Read the results back from both places, compare with the direct computation, draw."""
    expected = delays.direct(table, flights.load_airlines())
    client = pulsar.Client(
        platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    )
    found, messages = delays.from_topic(client, RESULTS)
    client.close()
    parquet, rows = delays.from_parquet(FOLDER / "delays.parquet")
    report["result_messages"], report["result_updates"] = messages, rows
    wrong = delays.mismatches(expected, found) + delays.mismatches(expected, parquet)
    report["consumed"] = sum(row[0] or 0 for row in found.values())
    report["result_rows"] = len(found)
    report["mismatches"] = len(wrong)
    for key in wrong[:5]:
        say(f"[red]differs[/] {key}: {expected.get(key)} {found.get(key)} {parquet.get(key)}")
    picture.draw(found, FOLDER / "delays.png")


def tell(platform: Platform, report: dict[str, object], keep: bool) -> None:
    rate = int(report["published"]) / float(report["publish_seconds"])  # type: ignore[call-overload,arg-type]
    say(
        f"published   {report['published']:,} flights in {report['publish_seconds']} s "
        f"({rate:,.0f}/s) to {PARTITIONS} partitions, every one acknowledged after fsync"
    )
    say(f"streamed    {report['consumed']:,} flights through Spark in {report['spark_seconds']} s")
    say(
        f"results     {report['result_rows']:,} (day, airport, airline) rows, read back from the "
        f"topic and from Parquet; {report['mismatches']} differ from the direct computation"
    )
    say(
        f"once        {report['result_updates']:,} updates of them were written; the topic holds "
        f"{report['result_messages']:,}"
    )
    where = FOLDER.relative_to(ROOT)
    say(f"picture     {where}/delays.png\nreport      {where}/report.json\ndata        {where}/")
    say(f"total       {report['seconds']} s")
    if keep:
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
    report: dict[str, object] = {}
    with running(FOLDER, keep=args.keep) as platform:
        say(f"platform    ready at {platform.service_url}, {platform.http_url}")
        create_partitioned(platform)
        table = flights.load_flights()
        spark = delays.session(FOLDER / "warehouse")
        query = start_query(spark, platform)
        report |= stream_all(platform, query, table)
        query.stop()
        compare(platform, table, report)
        spark.stop()
        report["seconds"] = round(time.monotonic() - begun, 1)
        (FOLDER / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        tell(platform, report, args.keep)
    good = report["mismatches"] == 0 and report["consumed"] == report["published"] == len(table)
    good = good and report["result_messages"] == report["result_updates"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
