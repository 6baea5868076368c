"""What retention deleted before it was read, and topics that are not those of a checkpoint: the
query says so and ends, or goes on as the user asks. So queries hold nothing here, but in the last
test, which is of that."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pulsar
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.source import MagnetarDataSource
from tests.integration.spark import test_batch, test_stream
from tests.integration.spark.test_batch import numbers, publish
from tests.integration.spark.test_stream import Collected, run_available
from tests.standalone import Standalone

pytestmark = pytest.mark.spark

WAIT_S = 90.0
LEDGER_ENTRIES = 10
NO_PINS = {"pinTimeoutMs": "0"}


def read(spark: SparkSession, platform: Standalone, topic: str, **options: str) -> DataFrame:
    return test_batch.read(spark, platform, topic, **NO_PINS, **options)


def stream(spark: SparkSession, platform: Standalone, topic: str, **options: str) -> DataFrame:
    return test_stream.stream(spark, platform, topic, **NO_PINS, **options)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Ledgers of ten entries that are deleted as soon as no subscription needs them."""
    settings = (
        f"ledger.ledger_entries_max={LEDGER_ENTRIES}",
        "ledger.retention_ms=0",
        "ledger.retention_bytes=0",
    )
    arguments = [word for setting in settings for word in ("--set", setting)]
    with Standalone(tmp_path_factory.mktemp("losses") / "data", *arguments) as running:
        yield running


class Kept:
    """A topic whose messages stay until ``let_go``: a subscription has not read them."""

    def __init__(self, platform: Standalone, client: pulsar.Client, topic: str) -> None:
        self._platform = platform
        self._consumer = client.subscribe(topic, "keeper")
        self._url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}"

    def _stats(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = httpx.get(
            f"{self._url}/internalStats", timeout=60
        ).json()
        return found

    def ledgers(self) -> list[int]:
        return [ledger["ledgerId"] for ledger in self._stats()["ledgers"]]

    def holders(self) -> list[str]:
        return [hold["holder"] for hold in self._stats()["holds"]]

    def acknowledge(self, last: pulsar.MessageId) -> None:
        """Up to ``last``, for good."""
        self._consumer.acknowledge_cumulative(last)

    def let_go(self, last: pulsar.MessageId) -> None:
        """Acknowledge up to ``last``; returns when the ledgers before its own are deleted."""
        self.acknowledge(last)
        deadline = time.monotonic() + WAIT_S
        while self.ledgers()[0] < last.ledger_id():
            assert time.monotonic() < deadline, self.ledgers()
            time.sleep(0.2)

    def make_anew(self) -> None:
        self._consumer.close()
        assert httpx.delete(f"{self._url}?force=true", timeout=60).status_code < 300


@pytest.fixture
def kept(platform: Standalone, client: pulsar.Client, topic: str) -> Kept:
    return Kept(platform, client, topic)


def send(client: pulsar.Client, topic: str, first: int, count: int) -> list[pulsar.MessageId]:
    """Messages that are entries of their own."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(first, first + count)]
    producer.close()
    return ids


def test_what_was_deleted_between_two_micro_batches_is_a_loss(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    send(client, topic, 0, 13)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    assert sink.values == list(range(13))
    ids = send(client, topic, 13, 50)
    kept.let_go(ids[-8])
    left = [13 + n for n, item in enumerate(ids) if item.ledger_id() >= kept.ledgers()[0]]
    assert 8 <= len(left) < 50
    with pytest.raises(
        StreamingQueryException, match="retention or DeleteRecords has deleted everything from"
    ):
        run_available(stream(spark, platform, topic), sink, checkpoint)
    run_available(stream(spark, platform, topic, failOnDataLoss="false"), sink, checkpoint)
    assert sink.values == [*range(13), *left]
    run_available(stream(spark, platform, topic), sink, checkpoint)  # nothing more is lost
    assert sink.values == [*range(13), *left]


def test_what_was_deleted_is_told_by_rows_as_well(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    """By a micro-batch's offsets alone: one that failed and runs again tells the same. A batch read
    whose start was deleted tells it, too."""
    first = send(client, topic, 0, 13)
    checkpoint = tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), Collected(), checkpoint)
    ids = send(client, topic, 13, 50)
    kept.let_go(ids[-8])
    left = [13 + n for n, item in enumerate(ids) if item.ledger_id() >= kept.ledgers()[0]]
    told: list[Any] = []
    failures = [RuntimeError("planted failure")]

    def collect(frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        if failures and any(row._lost is not None for row in rows):
            raise failures.pop()
        told.extend(rows)

    passing = {"failOnDataLoss": "false", "includeLosses": "true"}
    rows_of = stream(spark, platform, topic, **passing)
    with pytest.raises(StreamingQueryException, match="planted failure"):
        run_available(rows_of, cast(Collected, collect), checkpoint)
    run_available(rows_of, cast(Collected, collect), checkpoint)
    assert sorted(int(row.value) for row in told if row._lost is None) == left
    (loss,) = [row for row in told if row._lost is not None]
    assert (loss.topic, loss._lost.messages) == (
        f"persistent://public/default/{topic}", 50 - len(left)
    )  # fmt: skip
    start = json.dumps({topic: f"{first[5].ledger_id()}:{first[5].entry_id()}:0"})
    batch = read(spark, platform, topic, startingOffsets=start, **passing)
    lost = [row for row in batch.collect() if row._lost is not None]
    assert [row._lost.entry_id for row in lost] == [first[5].entry_id()]


def test_a_reader_that_had_read_everything_lost_nothing(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    """The ledger that its place names is deleted, and what follows is in another one. Batches: the
    place after the last one must not look as if something of it were left."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=3)
    ids: list[pulsar.MessageId] = []
    for number in range(3 * LEDGER_ENTRIES):
        producer.send_async(b"%d" % number, lambda _result, item: ids.append(item))
        if number % 3 == 2:
            producer.flush()
    producer.close()
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    more = send(client, topic, 30, 5)
    assert more[0].ledger_id() > ids[-1].ledger_id()
    kept.let_go(more[0])
    run_available(stream(spark, platform, topic), sink, checkpoint)
    assert sink.values == list(range(35))


def test_a_planned_range_that_was_deleted_fails_at_once_and_has_a_way_out(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    send(client, topic, 0, 25)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    sink.fail_at = 1
    with pytest.raises(StreamingQueryException, match="planted failure"):
        run_available(stream(spark, platform, topic), sink, checkpoint)
    more = send(client, topic, 25, 10)
    kept.let_go(more[-1])
    left = list(range(25, 35))[[m.ledger_id() for m in more].index(kept.ledgers()[0]) :]
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    # A restart plans the same range again: it must not wait for what cannot come.
    never = {"pollTimeoutMs": "3600000"}
    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match="retention or DeleteRecords has deleted everything"
        ):
            run_available(stream(spark, platform, topic, **never), sink, checkpoint)
    skipping = stream(spark, platform, topic, failOnDataLoss="false", **never)
    run_available(skipping, sink, copy)
    assert sink.values == left
    anew = Collected()
    run_available(stream(spark, platform, topic, **never), anew, tmp_path / "new")
    assert anew.values == left


def test_a_topic_made_anew_is_not_read_on_as_if_it_were_the_same(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    send(client, topic, 0, 5)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    kept.make_anew()
    send(client, topic, 100, 5)
    with pytest.raises(StreamingQueryException, match="deleted and made anew at"):
        run_available(stream(spark, platform, topic), sink, checkpoint)
    run_available(stream(spark, platform, topic, failOnDataLoss="false"), sink, checkpoint)
    assert sink.values == [*range(5), *range(100, 105)]
    run_available(stream(spark, platform, topic), sink, checkpoint)


def test_a_checkpoint_of_another_topic_is_refused(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    other = topic + "-other"
    publish(client, topic, 5, batching=False)
    publish(client, other, 5, batching=False)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    with pytest.raises(StreamingQueryException, match="give it a checkpointLocation of its own"):
        run_available(stream(spark, platform, other), sink, checkpoint)


def test_a_checkpoint_of_an_older_release_goes_on(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    """Its offsets have no creation times, and the place after a batch is one inside of it."""
    publish(client, topic, 5, batching=False)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        lines = path.read_text().splitlines()
        offset = json.loads(lines[-1])
        offset.pop("created_ms")
        path.write_text("\n".join([*lines[:-1], json.dumps(offset)]))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    publish(client, topic, 5, batching=False, first=5)
    run_available(stream(spark, platform, topic), sink, checkpoint)
    assert sink.values == list(range(10))


def test_places_outside_of_the_log_are_named(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, kept: Kept
) -> None:
    ids = send(client, topic, 0, 25)
    name = f"persistent://public/default/{topic}"

    def at(ledger_id: int, entry_id: int) -> str:
        return json.dumps({name: f"{ledger_id}:{entry_id}"})

    beyond = at(ids[-1].ledger_id(), ids[-1].entry_id() + 2)
    with pytest.raises(PySparkException, match=r"'startingOffsets'.*is past the end of"):
        read(spark, platform, topic, startingOffsets=beyond).count()
    with pytest.raises(PySparkException, match=r"'endingOffsets'.*is past the end of"):
        read(spark, platform, topic, endingOffsets=beyond).count()
    first = at(ids[0].ledger_id(), ids[0].entry_id())
    assert numbers(read(spark, platform, topic, startingOffsets=first)) == list(range(25))
    kept.let_go(ids[-1])
    with pytest.raises(
        PySparkException, match="retention or DeleteRecords has deleted everything from"
    ):
        read(spark, platform, topic, startingOffsets=first).count()
    left = numbers(read(spark, platform, topic))
    skipping = read(spark, platform, topic, startingOffsets=first, failOnDataLoss="false")
    assert numbers(skipping) == left
    assert left[-1] == 24


def test_what_was_lost_is_counted_in_the_progress(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kept: Kept,
    tmp_path: Path,
) -> None:
    send(client, topic, 0, 10)
    sink, checkpoint = Collected(), tmp_path / "checkpoint"
    run_available(stream(spark, platform, topic), sink, checkpoint)
    ids = send(client, topic, 10, 35)
    kept.let_go(ids[-1])
    skipping = stream(spark, platform, topic, failOnDataLoss="false")
    query = run_available(skipping, sink, checkpoint)
    end = json.loads(query.lastProgress.sources[0].endOffset)
    lost = end["lost"][f"persistent://public/default/{topic}"]
    assert sorted(sink.values) == [*range(10), *range(10 + lost, 45)]
    assert lost >= LEDGER_ENTRIES


def test_what_a_query_reads_is_not_deleted_meanwhile(
    platform: Standalone, client: pulsar.Client, topic: str, kept: Kept
) -> None:
    ids = send(client, topic, 0, 35)
    options = {"service.url": platform.service_url, "topic": topic, "pinTimeoutMs": "20000"}
    reader = MagnetarDataSource(options).reader(spark_schema(["value"]))
    tasks = reader.partitions()
    assert len(kept.holders()) == 1
    assert kept.holders()[0].startswith("spark-")
    kept.acknowledge(ids[-1])
    send(client, topic, 35, 2 * LEDGER_ENTRIES)  # ledgers roll, which is when they are trimmed
    assert kept.ledgers()[0] == ids[0].ledger_id()
    batches = cast("Iterator[pa.RecordBatch]", (b for task in tasks for b in reader.read(task)))
    values = [int(value) for batch in batches for value in batch.column("value").to_pylist()]
    assert values == list(range(35))
    kept.let_go(ids[-1])  # when nobody has asked again for long enough
    assert not kept.holders()
