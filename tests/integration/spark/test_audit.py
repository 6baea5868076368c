"""``magnetar pipeline audit`` on bookies as processes and a real ZooKeeper: what is planted is
found, by id, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.records import LogRecord, decode_log, encode_log, log_path
from magnetar.model.ids import BookieId
from magnetar.pipeline.jobs.audit import AUDIT, AuditOptions, AuditReport
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from tests.integration.test_operators import all_named, damage
from tests.scenarios.cluster import SETTINGS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = ("sound", "missing", "damaged", "gap", "duplicate", "count")
MESSAGES = 60


class Planted:
    """A cluster of four bookies and a broker that keeps three copies, with one topic of each
    name."""

    def __init__(self, folder: Path, metadata_url: str) -> None:
        self.bookies = Cluster(
            folder, metadata_url, 4, (*SETTINGS, "--set", "repair.in_bookies=false")
        )
        self.port = free_port()
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.bookies.start_bookies()

    def start(self) -> None:
        self.bookies.begin_broker(self.port, (3, 3, 2)).wait_ready()

    def end_broker(self) -> None:
        """In order, so that ledgers are closed."""
        self.bookies.brokers.pop().end()

    def publish(self) -> None:
        client = pulsar.Client(self.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for topic in TOPICS:
            producer = client.create_producer(topic, producer_name="p")
            for number in range(MESSAGES):
                sequence_id = number
                if topic == "gap" and number >= 40:
                    sequence_id += 2
                if topic == "duplicate" and number >= 30:
                    sequence_id -= 1
                producer.send(f"{topic} {number:05}".encode(), sequence_id=sequence_id)
            producer.close()
            batching = client.create_producer(
                topic, producer_name="q", batching_enabled=True, batching_max_publish_delay_ms=50
            )
            for number in range(MESSAGES):
                batching.send_async(f"{topic} batch {number:05}".encode(), None)
            batching.flush()
            batching.close()
        client.close()

    def ledgers(self) -> dict[str, int]:
        """The first ledger of each topic."""
        return {topic: asyncio.run(self._record(topic)).ledgers[0].ledger_id for topic in TOPICS}

    async def _record(
        self, topic: str, change: Callable[[LogRecord], LogRecord] | None = None
    ) -> LogRecord:
        store = await ZooKeeperMetadataStore.open(self.bookies.metadata_url)
        try:
            path = log_path(f"public/default/persistent/{topic}")
            found = await store.get(path)
            record = decode_log(topic, found.value)
            if change is not None:
                await store.put(path, encode_log(change(record)), found.version)
            return record
        finally:
            await store.close()

    def miscount(self, topic: str) -> None:
        """The broker's record of the topic has a message and a byte more than there are."""

        def change(record: LogRecord) -> LogRecord:
            first, *others = record.ledgers
            return replace(record, ledgers=(more(first), *others))

        def more(info: LedgerInfo) -> LedgerInfo:
            return replace(info, messages=info.messages + 1, stored_bytes=info.stored_bytes + 1)

        asyncio.run(self._record(topic, change))

    async def misplace(self, ledger_id: int) -> str:
        """The ledger's metadata names a bookie that has nothing of it; returns which."""
        store = await ZooKeeperMetadataStore.open(self.bookies.metadata_url)
        try:
            manager = LedgerManager(store)
            await manager.initialize(create=False)
            metadata, version = await manager.read(ledger_id)
            (fragment,) = metadata.fragments
            named = fragment.bookies
            ids = [each.bookie_id for each in self.bookies.bookies]
            other = next(each for each in ids if each not in named)
            changed = replace(fragment, bookies=(BookieId(other), *named[1:]))
            await manager.write(replace(metadata, fragments=(changed,)), version)
            return other
        finally:
            await store.close()


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer
) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("audit")
    cluster = Planted(folder, f"zk://{zookeeper.address}/audit")
    try:
        cluster.start()
        cluster.publish()
        yield cluster
    finally:
        cluster.bookies.end()


def audited(spark: SparkSession, planted: Planted, *topics: str, **more: object) -> AuditReport:
    heard: list[tuple[int, int]] = []
    context = JobContext(spark, progress=lambda done, total, what: heard.append((done, total)))
    options = AuditOptions(topics, service_url=planted.url, timeout=10_000, **more)  # type: ignore[arg-type]
    report = run(AUDIT, options, context)
    assert heard[-1] == (report.pieces, report.pieces)
    return report


def test_what_is_planted_is_found_by_id_and_nothing_else(
    spark: SparkSession, planted: Planted
) -> None:
    report = audited(spark, planted, *TOPICS, ignore=("gap", "duplicate"))
    assert report.ok, report.findings
    assert report.messages == len(TOPICS) * 2 * MESSAGES
    assert report.copies == 3 * report.entries
    assert (report.partitions, report.producers) == (len(TOPICS), 2 * len(TOPICS))

    ledgers = planted.ledgers()
    planted.end_broker()  # the ledgers are closed
    planted.miscount("count")
    other = asyncio.run(planted.misplace(ledgers["missing"]))
    victim = all_named(planted.bookies, ledgers["damaged"])[0][0]
    damage(planted.bookies, victim, b"damaged 00017")
    planted.start()

    report = audited(spark, planted, *TOPICS)
    assert not report.ok
    assert report.unchecked == []
    by_topic: dict[str, list[tuple[object, ...]]] = {topic: [] for topic in TOPICS}
    for each in report.findings:
        topic = each.topic.rpartition("/")[2]
        assert each.ledger_id == ledgers[topic], each
        about = each.first_entry_id, each.last_entry_id, each.bookie_id
        ids = each.first_sequence_id, each.last_sequence_id
        by_topic[topic].append((each.fault, *about, each.producer, *ids))
    assert by_topic["sound"] == []
    last = by_topic["missing"][0][2]
    assert by_topic["missing"] == [("missing", 0, last, other, "", -1, -1)]
    assert isinstance(last, int)
    assert last >= MESSAGES
    assert by_topic["damaged"] == [("damaged", 17, 17, victim, "", -1, -1)]
    assert by_topic["gap"] == [("gap", 40, 40, "", "p", 40, 41)]
    assert by_topic["duplicate"] == [("duplicate", 30, 30, "", "p", 29, 29)]
    assert {each[0] for each in by_topic["count"]} == {"count"}
    whys = [each.why for each in report.findings if each.fault == "count"]
    messages = 2 * MESSAGES
    assert (
        f"the broker counts {messages + 1} messages, its readable entries hold {messages}" in whys
    )
    assert any(why.startswith("the broker counts") and "bytes, its ledger" in why for why in whys)

    line = (sys.executable, "-m", "magnetar", "pipeline", "audit", "--service-url", planted.url)
    shown = subprocess.run([*line, "gap", "--dry-run"], capture_output=True, text=True, check=True)
    assert "would be read in 1 tasks" in shown.stdout, shown
    done = subprocess.run(
        [*line, "gap", "sound", "--json", "--master", "local[1]"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [(each["fault"], each["firstSequenceId"]) for each in told["findings"]] == [("gap", 40)]
    assert "of 2 groups of ledgers" in done.stderr


def test_a_bookie_that_is_away_leaves_copies_unchecked(
    spark: SparkSession, planted: Planted
) -> None:
    """Behind the other test, on its cluster."""
    named = all_named(planted.bookies, planted.ledgers()["sound"])[0]
    planted.bookies.bookie(named[0]).kill()
    report = audited(spark, planted, "sound")
    assert not report.ok
    assert report.findings == []
    assert {(each.fault, each.bookie_id) for each in report.unchecked} == {("unchecked", named[0])}
