"""An entry of which no sound copy is left: reads and jobs end with an error that names it, and with
``failOnDataLoss=false`` go on behind it and say what they passed over, where, and how much."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from magnetar.cli.pipeline import pipeline
from magnetar.pipeline.jobs.compact import COMPACT, CompactOptions
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from magnetar.pipeline.jobs.mirror import MIRROR, MirrorOptions
from magnetar.pipeline.jobs.table import TABLE, TableOptions, catalog_of
from magnetar.pipeline.tables.topic_table import TopicTable
from tests.integration.spark.test_batch import read
from tests.integration.spark.test_stream import run_available, stream
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "wounded"
FULL = f"persistent://public/default/{TOPIC}"
LOST = (13, 14, 27)
MESSAGES = 45
LEDGER_ENTRIES = 10
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def value(number: int) -> bytes:
    return b"message %05d of the wounded" % number


def damage(data_dir: Path, payload: bytes) -> None:
    """Turn a byte of an entry wherever bookies keep it, while nothing runs."""
    turned = 0
    for path in data_dir.rglob("*"):
        if path.is_file() and payload in (content := path.read_bytes()):
            path.write_bytes(content.replace(payload, bytes([payload[0] ^ 0xFF]) + payload[1:]))
            turned += 1
    assert turned, f"{payload!r} is nowhere"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """With a topic of five ledgers, three entries of which are lost."""
    folder = tmp_path_factory.mktemp("wounded") / "data"
    settings = (f"ledger.ledger_entries_max={LEDGER_ENTRIES}", "ledger.tabled_ledger_ms_least=0")
    running = Standalone(folder, *(word for each in settings for word in ("--set", each)))
    with running:
        client = pulsar.Client(running.service_url, logger=QUIET)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(MESSAGES):
            producer.send(value(number), partition_key=f"k{number % 5}")
        client.close()
        path = f"/admin/v2/persistent/public/default/{TOPIC}/unload"
        assert httpx.put(running.http_url + path, timeout=60).status_code < 300
        assert running.stop() == 0
        for number in LOST:
            damage(folder, value(number))
        running.start()
        yield running


@pytest.fixture(scope="module")
def left() -> list[bytes]:
    return [value(number) for number in range(MESSAGES) if number not in LOST]


@pytest.mark.parametrize("mode", ["broker", "storage"])
def test_a_read_gives_rows_of_what_it_passed_over(
    spark: SparkSession, platform: Standalone, left: list[bytes], mode: str
) -> None:
    with pytest.raises(PySparkException, match="is lost"):
        read(spark, platform, TOPIC, readMode=mode).collect()
    frame = read(
        spark, platform, TOPIC, readMode=mode, failOnDataLoss="false", includeLosses="true"
    )
    rows = frame.collect()
    assert [bytes(row.value) for row in rows if row._lost is None] == left
    lost = [row for row in rows if row._lost is not None]
    assert [(row._lost.entry_id, row._lost.entries) for row in lost] == [(3, 1), (4, 1), (7, 1)]
    assert {row.topic for row in lost} == {FULL}
    assert all("is lost" in row._lost.why for row in lost)


def test_a_stream_gives_them_once(
    spark: SparkSession, platform: Standalone, left: list[bytes], tmp_path: Path
) -> None:
    found: list[tuple[bytes | None, object]] = []

    def collect(frame: object, number: int) -> None:
        found.extend((row.value, row._lost) for row in frame.collect())  # type: ignore[attr-defined]

    frame = stream(spark, platform, TOPIC, failOnDataLoss="false", includeLosses="true")
    for _ in range(2):
        run_available(frame, collect, tmp_path / "checkpoint")  # type: ignore[arg-type]
    assert [bytes(each) for each, lost in found if lost is None and each is not None] == left
    assert sum(lost is not None for _, lost in found) == len(LOST)


def test_a_mirror_passes_over_them_and_says_so(
    spark: SparkSession, platform: Standalone, left: list[bytes], tmp_path: Path
) -> None:
    options = MirrorOptions(
        (TOPIC,),
        service_url=platform.service_url,
        prefix="copy-",
        checkpoint=str(tmp_path / "checkpoint"),
        fail_on_data_loss=False,
    )
    report = run(MIRROR, options, JobContext(spark))
    assert (report.copied, report.losses, report.ok) == (len(left), len(LOST), False)
    assert [(each.topic, each.entry_id) for each in report.passed] == [
        (FULL, 3), (FULL, 4), (FULL, 7)
    ]  # fmt: skip
    client = pulsar.Client(platform.service_url, logger=QUIET)
    reader = client.create_reader(f"copy-{TOPIC}", pulsar.MessageId.earliest)
    copied = []
    while reader.has_message_available():
        copied.append(reader.read_next(10_000).data())
    client.close()
    assert sorted(copied) == left
    again = run(MIRROR, options, JobContext(spark))
    assert (again.copied, again.losses, again.ok) == (0, 0, True)


def test_a_compaction_passes_over_them(spark: SparkSession, platform: Standalone) -> None:
    told = {"topics": (TOPIC,), "service_url": platform.service_url}
    failed = run(COMPACT, CompactOptions(**told), JobContext(spark))  # type: ignore[arg-type]
    assert "no replica has a sound copy" in failed.topics[0].error
    passing = CompactOptions(**told, fail_on_data_loss=False)  # type: ignore[arg-type]
    report = run(COMPACT, passing, JobContext(spark))
    assert [each.error for each in report.topics] == [""]
    assert (report.lost_entries, report.ok) == (len(LOST), False)
    assert [(each.entry_id, each.last_entry_id) for each in report.passed] == [(3, 4), (7, 7)]
    client = pulsar.Client(platform.service_url, logger=QUIET)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = [reader.read_next(10_000).data() for _ in range(5)]
    assert not reader.has_message_available()
    client.close()
    assert found == [value(number) for number in range(MESSAGES - 5, MESSAGES)]


def test_a_table_takes_the_rest_and_its_consumers_go_on(
    platform: Standalone, left: list[bytes], tmp_path: Path
) -> None:
    """The last one: what is in the table leaves the bookies then."""
    warehouse = tmp_path / "tables"
    told = {"topics": (TOPIC,), "warehouse": str(warehouse), "service_url": platform.service_url}
    with closing(JobContext()) as context:
        report = run(TABLE, TableOptions(**told), context)  # type: ignore[arg-type]
    assert not report.ok
    assert report.topics[0].waiting_ledgers, report
    assert "no replica has a sound copy" in report.topics[0].errors[0]
    words = ["table", TOPIC, "--warehouse", str(warehouse), "--service-url", platform.service_url]
    ended = CliRunner().invoke(
        pipeline,
        [*words, "--fail-on-data-loss", "false", "--keep-ledgers", "1", "--json"],
        standalone_mode=False,
    )
    assert ended.return_value == 1, ended.output
    found = json.loads(ended.stdout)
    assert (found["losses"], found["lostEntries"], found["lostMessages"]) == (2, 3, 3)
    assert [each["entryId"] for each in found["passed"]] == [3, 7]
    assert found["topics"][0]["errors"] == []
    assert found["topics"][0]["waitingLedgers"] == 0
    table = TopicTable(catalog_of(str(warehouse), None, ()).place(FULL), FULL)
    assert table.look()
    payloads = table.main.scan().to_arrow()["payload"].to_pylist()
    assert sorted(payloads) == left
    assert table.side is not None
    assert [each.split(":")[0] for each in table.side.scan().to_arrow()["why"].to_pylist()] == [
        "lost, up to entry 4", "lost, up to entry 7"
    ]  # fmt: skip
    _only_in_the_table(platform)
    client = pulsar.Client(platform.service_url, logger=QUIET)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    served = []
    while reader.has_message_available():
        served.append(reader.read_next(10_000).data())
    client.close()
    assert served == left
    assert (
        CliRunner().invoke(pipeline, [*words, "--status"], standalone_mode=False).return_value == 0
    )


def _only_in_the_table(platform: Standalone) -> None:
    """The ledgers that have lost entries."""
    path = f"/admin/v2/persistent/public/default/{TOPIC}/internalStats"
    deadline = time.monotonic() + 60
    while True:
        ledgers = httpx.get(platform.http_url + path).json()["ledgers"]
        if all(each["offloaded"] for each in ledgers[1:3]):
            return
        assert time.monotonic() < deadline, str(ledgers)
        time.sleep(0.2)
