"""Topics as tables, and the way back: real brokers and bookies, official clients, DuckDB, Polars.

Standalone on small ledgers; what is in the table leaves the bookies after some milliseconds."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import httpx
import polars
import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pulsar.schema import AvroSchema, Integer, Record, String
from pyiceberg.table import Table

from magnetar.cli.pipeline import pipeline
from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from magnetar.pipeline.jobs.table import TABLE, TableOptions, catalog_of
from magnetar.pipeline.places import START
from magnetar.pipeline.tables import taking as taking_module
from magnetar.pipeline.tables.ledger_writing import LedgerTask
from magnetar.pipeline.tables.small_files import SmallFilesRule
from magnetar.pipeline.tables.taking import (
    Catalog,
    PartitionPort,
    Taking,
    TakingOptions,
    TopicTaken,
    write_here,
)
from magnetar.pipeline.tables.taking_rules import TakenUpTo
from magnetar.pipeline.tables.topic_table import READER, TopicTable, WrittenLedger
from magnetar.pipeline.tables.upkeep import (
    ORPHAN_AGE_MS,
    TableUpkeep,
    compact,
    expire,
    named_metadata,
    remove_orphans,
)
from magnetar.pipeline.writing.entry_sending import EntrySender
from magnetar.tables.layout import TAKEN, UNFIT, ledger_told
from magnetar.tables.warehouse import CATALOGS
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.metadata import Buffer
from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    KafkaStandalone,
    confluent_consumer,
    confluent_producer,
    polled,
)
from tests.standalone import Standalone
from tests.unit.pipeline.entry_building import Layout, Message, batch, single

LEDGER_ENTRIES = 40
WAIT_S = 60.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    settings = (
        f"ledger.ledger_entries_max={LEDGER_ENTRIES}",
        "ledger.tabled_ledger_ms_least=0",
    )
    flags = [word for setting in settings for word in ("--set", setting)]
    with KafkaStandalone(tmp_path_factory.mktemp("tables") / "data", *flags) as running:
        yield running


@pytest.fixture
def client(platform: Standalone) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    connected = pulsar.Client(platform.service_url, logger=logger)
    yield connected
    connected.close()


def catalog_in(folder: Path) -> Catalog:
    return catalog_of(str(folder), None, ())


def taking(platform: Standalone, folder: Path, **more: object) -> Taking:
    options = TakingOptions(platform.service_url, catalog_in(folder), **more)  # type: ignore[arg-type]
    return Taking(options)


def publish(client: pulsar.Client, topic: str, first: int, stop: int, **settings: object) -> None:
    producer = client.create_producer(topic, block_if_queue_full=True, **settings)
    for number in range(first, stop):
        producer.send_async(
            b"%06d" % number + b"x" * (number % 50),
            callback=lambda *_: None,
            partition_key=f"k{number % 7}",
            properties={"n": str(number)},
            event_timestamp=1_700_000_000_000 + number,
        )
        if number % 100 == 99:
            producer.flush()  # so that ledgers are small: one takes all that came before it is full
    producer.flush()
    producer.close()


def take(platform: Standalone, folder: Path, topic: str, **more: object) -> TopicTaken:
    with closing(taking(platform, folder, **more)) as job:
        (done,) = job.take(job.topics([topic]))
    assert done.errors == []
    return done


def rows_of(folder: Path, topic: str) -> pa.Table:
    table = TopicTable(catalog_in(folder).place(full(topic)), full(topic))
    assert table.look()
    return table.main.scan().to_arrow()


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def ledgers(platform: Standalone, topic: str) -> list[dict[str, object]]:
    path = f"/admin/v2/persistent/public/default/{topic}/internalStats"
    found: list[dict[str, object]] = httpx.get(platform.http_url + path).json()["ledgers"]
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.2)


def close_ledgers(platform: Standalone, topic: str) -> None:
    """The last one, too, which is never in a table while it is open: the topic is closed."""
    path = f"/admin/v2/persistent/public/default/{topic}/unload"
    httpx.put(platform.http_url + path).raise_for_status()


def received(client: pulsar.Client, topic: str, count: int) -> list[pulsar.Message]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(timeout_millis=30_000) for _ in range(count)]
    reader.close()
    return found


def told(message: pulsar.Message) -> tuple[object, ...]:
    place = message.message_id()
    return (
        (place.ledger_id(), place.entry_id(), place.batch_index()),
        message.data(),
        message.partition_key(),
        message.properties(),
        message.publish_timestamp(),
        message.event_timestamp(),
    )


KINDS = {
    "single": {"batching_enabled": False},
    "batches": {"batching_enabled": True, "batching_max_messages": 5},
    "packed": {
        "batching_enabled": True,
        "batching_max_messages": 5,
        "compression_type": pulsar.CompressionType.ZSTD,
    },
}


def test_a_name_that_no_topic_has_leaves_no_table(platform: Standalone, tmp_path: Path) -> None:
    """It had one: a misspelt name was a table for good, and ``erase`` found it."""
    topic = full("misspelt")
    with closing(taking(platform, tmp_path)) as job:
        (done,) = job.take([topic])
    assert [error for error in done.errors if f"{topic} does not exist" in error] == done.errors
    assert done.errors
    assert not TopicTable(catalog_in(tmp_path).place(topic), topic).look()
    line = ["table", "misspelt", "--warehouse", str(tmp_path)]
    result = CliRunner().invoke(pipeline, [*line, "--service-url", platform.service_url])
    assert "FAILED" in result.stdout
    assert not TopicTable(catalog_in(tmp_path).place(topic), topic).look()


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_is_a_table_and_consumers_are_served_from_it(
    platform: Standalone, client: pulsar.Client, tmp_path: Path, kind: str
) -> None:
    topic = f"table-{kind}"
    publish(client, topic, 0, 1000, **KINDS[kind])
    before = received(client, topic, 1000)

    done = take(platform, tmp_path, topic, kept_ms=1)
    assert done.ledgers >= 3
    rows = rows_of(tmp_path, topic).sort_by([("ledger_id", "ascending"), ("offset", "ascending")])
    count = rows.num_rows
    assert count == done.rows
    assert done.unfit == 0
    for row, message in zip(rows.to_pylist(), before[:count], strict=True):
        place = message.message_id()
        assert (row["ledger_id"], row["entry_id"], row["batch_index"]) == (
            place.ledger_id(), place.entry_id(), place.batch_index(),
        )  # fmt: skip
        assert (row["payload"], row["key"]) == (message.data(), message.partition_key())
        assert dict(row["properties"]) == message.properties()
    assert pc.all(pc.equal(rows["offset"], pa.array(range(count)))).as_py()

    wait_until(
        lambda: sum(bool(each["offloaded"]) for each in ledgers(platform, topic)) == done.ledgers
    )
    after = received(client, topic, 1000)
    assert [told(message) for message in after] == [told(message) for message in before]


def test_a_subscription_with_holes_goes_on_over_the_border(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic, drawn = "holes", random.Random(7)
    publish(client, topic, 0, 600, batching_enabled=True, batching_max_messages=4)
    shared = pulsar.ConsumerType.Shared
    settings = {
        "consumer_type": shared,
        "initial_position": pulsar.InitialPosition.Earliest,
        "batch_index_ack_enabled": True,
    }
    consumer = client.subscribe(topic, "s", **settings)
    acknowledged = set()
    for _ in range(600):
        message = consumer.receive(timeout_millis=30_000)
        if drawn.random() < 0.5:
            consumer.acknowledge(message)
            acknowledged.add(message.data()[:6])
    consumer.close()
    take(platform, tmp_path, topic, kept_ms=1)
    wait_until(lambda: any(each["offloaded"] for each in ledgers(platform, topic)))
    publish(client, topic, 600, 640, batching_enabled=True, batching_max_messages=4)
    assert not ledgers(platform, topic)[-1]["offloaded"]

    consumer = client.subscribe(topic, "s", **settings)
    left = set()
    while len(left) + len(acknowledged) < 640:
        message = consumer.receive(timeout_millis=30_000)
        consumer.acknowledge(message)
        left.add(message.data()[:6])
    assert not left & acknowledged
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=500)


def test_others_read_the_table(platform: Standalone, client: pulsar.Client, tmp_path: Path) -> None:
    topic = "others"
    publish(client, topic, 0, 300, batching_enabled=False)
    done = take(platform, tmp_path, topic)
    table = TopicTable(catalog_in(tmp_path).place(full(topic)), full(topic))
    assert table.look()
    files = [each.file.file_path.removeprefix("file://") for each in table.main.scan().plan_files()]
    query = f"SELECT count(*), count(DISTINCT payload), min(key) FROM read_parquet({files})"
    assert duckdb.sql(query).fetchall() == [(done.rows, done.rows, "k0")]
    assert polars.read_parquet(files).height == done.rows
    again = take(platform, tmp_path, topic)
    assert (again.ledgers, again.rows) == (0, 0)
    assert rows_of(tmp_path, topic).num_rows == done.rows


class Died(Exception):
    """The job, where a test has it end."""


STEPS = ["write_ledger", "side", "main", "told"]


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_ends_anywhere_takes_each_message_once(
    platform: Standalone,
    client: pulsar.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    topic = f"dies-{step}"
    publish(client, topic, 0, 50, batching_enabled=False)
    chunked(client, topic)
    publish(client, topic, 50, 200, batching_enabled=False)
    with monkeypatch.context() as patched:
        die_after(patched, step)
        with closing(taking(platform, tmp_path, kept_ms=1)) as job, pytest.raises(Died):
            job.take([full(topic)])
    publish(client, topic, 200, 300, batching_enabled=False)
    take(platform, tmp_path, topic, kept_ms=1)
    rows = rows_of(tmp_path, topic)
    ids = list(zip(*(rows[n].to_pylist() for n in ("ledger_id", "entry_id")), strict=True))
    assert len(set(ids)) == len(ids) >= 200
    table = TopicTable(catalog_in(tmp_path).place(full(topic)), full(topic))
    assert table.look()
    assert table.side is not None
    side = table.side.scan().to_arrow()
    assert side.num_rows == len(set(side["entry_id"].to_pylist())) == 2
    unfit = ledger_told(table.main.properties, UNFIT, full(topic))
    assert unfit == max(side["ledger_id"].to_pylist())
    wait_until(lambda: any(each["offloaded"] for each in ledgers(platform, topic)))
    whole = [message.data() for message in received(client, topic, 201)]
    assert whole.pop(50) == random.Random(1).randbytes(6 << 20)
    assert [data[:6] for data in whole] == [b"%06d" % number for number in range(200)]


def chunked(client: pulsar.Client, topic: str) -> None:
    """A message in two chunks, which the side table keeps."""
    producer = client.create_producer(
        topic, chunking_enabled=True, batching_enabled=False, max_pending_messages=10
    )
    producer.send(random.Random(1).randbytes(6 << 20))
    producer.close()


def die_after(patched: pytest.MonkeyPatch, step: str) -> None:
    if step == "write_ledger":
        whole = taking_module.write_ledger

        def written(task: object) -> object:
            whole(task)  # type: ignore[arg-type]
            raise Died

        patched.setattr(taking_module, "write_ledger", written)
    elif step == "told":
        patched.setattr(PartitionPort, "tell", dies_when_told)
    else:
        commit = TopicTable.commit

        def committed(self: TopicTable, *more: object, side: bool) -> None:
            commit(self, *more, side=side)  # type: ignore[arg-type]
            if side == (step == "side"):
                raise Died

        patched.setattr(TopicTable, "commit", committed)


async def dies_when_told(self: PartitionPort, *more: object, attach: bool = False) -> None:
    if not attach:
        raise Died


class Flight(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer()


def test_values_have_their_types_and_what_does_not_fit_is_set_aside(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = "typed"
    producer = client.create_producer(topic, schema=AvroSchema(Flight), batching_enabled=False)
    for number in range(LEDGER_ENTRIES * 2):
        producer.send(Flight(carrier=f"C{number % 3}", delay=number))
    producer.close()
    odd = client.create_producer(topic, batching_enabled=False)
    for _ in range(LEDGER_ENTRIES):
        odd.send(b"\xff\xff\xff no flight")
    odd.close()
    take(platform, tmp_path, topic, kept_ms=1)
    rows = rows_of(tmp_path, topic)
    assert rows["value"].to_pylist()[:2] == [
        {"carrier": "C0", "delay": 0},
        {"carrier": "C1", "delay": 1},
    ]
    assert duckdb.sql("SELECT max(value.delay) FROM rows").fetchall() == [(rows.num_rows - 1,)]
    table = TopicTable(catalog_in(tmp_path).place(full(topic)), full(topic))
    assert table.look()
    assert table.side is not None
    why = table.side.scan().to_arrow()["why"].to_pylist()
    assert set(why) == {
        "the value does not fit the schema (written with version None, read with 0)"
    }
    wait_until(lambda: any(each["offloaded"] for each in ledgers(platform, topic)))
    values = [message.data() for message in received(client, topic, LEDGER_ENTRIES * 3)]
    assert values[-1] == b"\xff\xff\xff no flight"


def test_tombstones_are_rows_without_a_value_and_no_bytes_are_set_aside(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = "tombs"
    client.create_producer(topic, schema=AvroSchema(Flight)).close()
    gone, empty = Message(b"", key="gone", null=True), Message(b"", key="empty")
    form = Layout(checksum=False)
    entries = [batch([gone, gone], form), single(gone, form), batch([empty, gone], form)]
    entries.append(single(empty, form))
    with closing(BrokerClient(platform.service_url, 10.0)) as broker:
        sender = EntrySender(broker, 10.0)
        sender.send(full(topic), entries * LEDGER_ENTRIES)
        sender.finish()
        sender.close()
        done = take(platform, tmp_path, topic, kept_ms=1)
        rows = rows_of(tmp_path, topic)
        assert set(rows["key"].to_pylist()) == {"gone"}
        assert rows["value"].null_count == rows["payload"].null_count == rows.num_rows > 0
        # Of each four entries the first three are 2, 1 and 1 rows, and the last two are set aside;
        # a ledger ends within four where an append of several passed its bound.
        taken = sum(each["entries"] for each in ledgers(platform, topic)[: done.ledgers])
        fours, more = divmod(taken, len(entries))
        assert rows.num_rows == 4 * fours + (0, 2, 3, 4)[more]
        assert done.unfit == 2 * fours + (0, 0, 0, 1)[more]
        wait_until(lambda: any(each["offloaded"] for each in ledgers(platform, topic)))
        with broker.open(full(topic), START) as reader:
            for stored in entries:
                found = reader.entry_within(10.0)
                assert found is not None
                assert _nulls(found.payload) == _nulls(stored), "of the table, as it was"


def _nulls(entry: Buffer) -> list[tuple[str | None, bool, bytes]]:
    return [(info.key, info.null_value, bytes(value)) for info, value in iterate_messages(entry)]


class EarlierFlight(Record):  # type: ignore[misc]
    carrier = String(required=True)
    pilot = String(default="", required_default=True)


class LaterFlight(Record):  # type: ignore[misc]
    gate = String(default="A1", required_default=True)
    carrier = String(required=True)


def test_a_field_that_a_newer_schema_drops_stays_in_the_table(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """Its column stayed, and was null in all that was taken after the newer schema was there,
    whatever it was written with."""
    topic = "evolving"
    earlier = client.create_producer(topic, schema=AvroSchema(EarlierFlight))
    for number in range(60):
        earlier.send(EarlierFlight(carrier=f"C{number}", pilot=f"P{number}"))
    before = take(platform, tmp_path, topic).rows
    assert 0 < before < 60
    later = client.create_producer(topic, schema=AvroSchema(LaterFlight))
    for number in range(60, 80):
        later.send(LaterFlight(carrier=f"C{number}", gate="B2"))
        earlier.send(EarlierFlight(carrier=f"D{number}", pilot=f"Q{number}"))
    earlier.close()
    later.close()
    close_ledgers(platform, topic)
    done = take(platform, tmp_path, topic)
    assert (before + done.rows, done.unfit) == (100, 0)
    values = rows_of(tmp_path, topic).sort_by("offset")["value"].to_pylist()
    for number, value in enumerate(values[:60]):
        gate = None if number < before else "A1"
        assert value == {"carrier": f"C{number}", "pilot": f"P{number}", "gate": gate}
    assert values[60::2] == [
        {"carrier": f"C{number}", "pilot": None, "gate": "B2"} for number in range(60, 80)
    ]
    assert values[61::2] == [
        {"carrier": f"D{number}", "pilot": f"Q{number}", "gate": "A1"} for number in range(60, 80)
    ]


def test_small_files_become_one_and_a_key_is_erased(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = "erased"
    for first in (0, 100, 200, 300, 400):
        settings = KINDS["packed"] if first else KINDS["single"]
        publish(client, topic, first, first + 100, **settings)
        take(platform, tmp_path, topic, kept_ms=1)
    count = rows_of(tmp_path, topic).num_rows
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    whole = [told(each) for each in received(client, topic, count)]
    table = TopicTable(catalog_in(tmp_path).place(full(topic)), full(topic))
    assert table.look()
    kept = TableUpkeep()
    compact(table.main, kept, SmallFilesRule(files_min=2))
    assert kept.files_rewritten > kept.files_written == 1
    expire(table.main, 2**60, kept)
    remove_orphans(table.main, 2**60, kept)
    assert rows_of(tmp_path, topic).num_rows == count
    assert [told(each) for each in received(client, topic, count)] == whole

    flags = ["--warehouse", str(tmp_path), "--service-url", platform.service_url, "--json"]
    done = CliRunner().invoke(pipeline, ["erase", topic, "--key", "k3", *flags])
    assert done.exit_code == 0, done.output + repr(done.exception)
    report = json.loads(done.stdout)
    assert report["topics"][full(topic)]["messages"] == sum(each[2] == "k3" for each in whole)
    assert "k3" not in rows_of(tmp_path, topic)["key"].to_pylist()
    for path in tmp_path.rglob("*.parquet"):
        assert "k3" not in pq.read_table(path, columns=["key"])["key"].to_pylist()
    left = [each for each in whole if each[2] != "k3"]
    # Of an erased message in a batch Python's client shows that it was there, and nothing of it; an
    # entry that held no other message is left out.
    some = {each[0][:2] for each in left}  # type: ignore[index]
    shown = sum(each[0][:2] in some for each in whole)  # type: ignore[index]
    others = [told(each) for each in received(client, topic, shown)]
    assert [each for each in others if each[1]] == left
    assert {each[2] for each in others if not each[1]} <= {""}
    status = CliRunner().invoke(pipeline, ["table", topic, "--status", *flags])
    (told_of,) = json.loads(status.stdout)["topics"]
    assert told_of["errors"] == []
    assert told_of["inTable"] == told_of["onlyInTable"] >= 2


def tables_health(platform: Standalone) -> dict[str, object]:
    parts = httpx.get(platform.http_url + "/health").json()["parts"]
    (found,) = [each for each in parts if each["part"] == "tables"]
    return dict(found)


def metric(platform: Standalone, name: str) -> float:
    lines = httpx.get(platform.http_url + "/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith(f"magnetar_table_{name} ")]
    return float(found.split()[1])


def test_a_table_that_is_gone_is_said_and_the_topic_goes_on_without_it(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = "bereft"
    publish(client, topic, 0, 300, batching_enabled=False)
    done = take(platform, tmp_path, topic, kept_ms=1)
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    publish(client, topic, 300, 400, batching_enabled=False)
    wait_until(lambda: metric(platform, "waiting_ledgers") >= 1)
    assert metric(platform, "waiting_seconds") > 0
    shutil.rmtree(tmp_path / "public_default")
    (tmp_path / "catalog.db").write_bytes(b"no database any more" * 100)

    flags = ["--warehouse", str(tmp_path), "--service-url", platform.service_url, "--json"]
    CATALOGS._open.clear()
    failed = CliRunner().invoke(pipeline, ["table", topic, *flags], standalone_mode=False)
    assert failed.return_value == 1
    health = tables_health(platform)
    assert not health["ok"]
    assert full(topic) in str(health["problem"])
    assert "not a database" in str(health["problem"])
    assert metric(platform, "failing_topics") == 1

    line = ["detach", topic, "--service-url", platform.service_url, "--json"]
    refused = CliRunner().invoke(pipeline, line, standalone_mode=False)
    assert refused.return_value == 1
    (told_of,) = json.loads(refused.stdout)["partitions"]
    assert (told_of["ledgers"], told_of["messages"]) == (done.ledgers, done.rows)
    assert not told_of["detached"]
    tried = CliRunner().invoke(pipeline, [*line, "--yes", "--dry-run"], standalone_mode=False)
    assert not json.loads(tried.stdout)["partitions"][0]["detached"]
    assert ledgers(platform, topic)[0]["offloaded"]
    given_up = CliRunner().invoke(pipeline, [*line, "--yes"], standalone_mode=False)
    assert given_up.return_value == 0, given_up.output
    assert json.loads(given_up.stdout)["partitions"][0]["detached"]
    assert not any(each["inTable"] for each in ledgers(platform, topic))
    assert tables_health(platform)["ok"]
    left = [message.data()[:6] for message in received(client, topic, 400 - done.rows)]
    assert left == [b"%06d" % number for number in range(done.rows, 400)]
    again = CliRunner().invoke(pipeline, line, standalone_mode=False)
    assert json.loads(again.stdout)["partitions"][0]["table"] == ""


def test_a_table_that_was_dropped_can_be_brought_back(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """The job made an empty one in its place, and its upkeep took the files of the dropped one,
    a day old, for some that nobody names: messages that were nowhere else were deleted."""
    topic = "dropped"
    publish(client, topic, 0, 300, batching_enabled=False)
    close_ledgers(platform, topic)
    take(platform, tmp_path, topic, kept_ms=1)
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    table = catalog_in(tmp_path).place(full(topic))
    catalog = CATALOGS.get(table)
    metadata = catalog.load_table(table.table).metadata_location
    catalog.drop_table(table.table)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    words = {"topics": (topic,), "warehouse": str(tmp_path), "service_url": platform.service_url}
    failed = run(TABLE, TableOptions(**words), JobContext())  # type: ignore[arg-type]
    assert "which is not in the catalog; was it dropped or renamed?" in failed.topics[0].errors[0]
    assert "detach" in failed.topics[0].errors[0]
    assert not failed.ok
    catalog.register_table(table.table, metadata)
    assert run(TABLE, TableOptions(**words), JobContext()).ok  # type: ignore[arg-type]
    assert len(received(client, topic, 300)) == 300


def test_files_of_a_table_that_had_the_name_before_stay(tmp_path: Path) -> None:
    """They are no files of jobs that were killed; and what such jobs leave goes, with what says
    which files a commit was to have."""
    place = catalog_in(tmp_path).place(full("renamed"))
    table = TopicTable(place, full("renamed"))
    table.make(None, None, "none")
    folder = Path(table.main.location().removeprefix("file://"))
    for name in ("data/killed.parquet", "metadata/killed-m0.avro", "metadata/9-lost.metadata.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"left")
    kept, former = TableUpkeep(), folder / "data" / "former.parquet"
    former.write_bytes(b"of another table")
    os.utime(former, (1_000_000_000, 1_000_000_000))
    now_ms = time.time_ns() // 10**6
    remove_orphans(table.main, now_ms, kept)
    assert kept.files_removed == 0, "they may be of a job that goes on"
    remove_orphans(table.main, now_ms + 2 * ORPHAN_AGE_MS, kept)
    assert kept.files_removed == 3
    assert former.exists()
    assert table.look()
    assert len(list((folder / "metadata").iterdir())) == len(named_metadata(table.main))


def test_what_kafkas_and_pulsars_clients_wrote_are_rows_and_both_read_it_from_the_table(
    platform: KafkaStandalone, client: pulsar.Client, tmp_path: Path
) -> None:
    topic, partition = "crossing", "crossing-partition-0"
    producer = confluent_producer(platform, **{"compression.type": "lz4", "linger.ms": 50})

    def by_kafka(first: int, stop: int) -> None:
        for number in range(first, stop):
            value = None if number % 10 == 9 else b"kafka %d" % number
            headers = {"number": str(number)}
            producer.produce(
                topic, key=f"k{number % 7}", value=value, timestamp=1_000 + number, headers=headers
            )
            if number % 4 == 3:
                assert producer.flush(DEADLINE_S) == 0

    by_kafka(0, 200)
    publish(client, partition, 200, 260, batching_enabled=True, batching_max_messages=5)
    by_kafka(260, 400)

    def as_kafka(group: str) -> list[tuple[object, ...]]:
        consumer = confluent_consumer(platform, group)
        consumer.subscribe([topic])
        found = polled(consumer, 400)
        consumer.close()
        return [(m.offset(), m.key(), m.value(), m.timestamp(), m.headers()) for m in found]

    before, pulsars = as_kafka("before"), [told(each) for each in received(client, partition, 400)]
    done = take(platform, tmp_path, topic, kept_ms=1)
    # What is left is in the open ledger: fewer entries than fill one, of at most five messages.
    assert (done.unfit, done.rows > 400 - 5 * LEDGER_ENTRIES) == (0, True)
    rows = rows_of(tmp_path, topic).sort_by("offset").to_pylist()
    for row, (place, value, key, properties, _, event_time_ms) in zip(rows, pulsars, strict=False):
        assert (row["ledger_id"], row["entry_id"], row["batch_index"]) == place
        assert (row["payload"] or b"", row["key"]) == (value, key)
        assert dict(row["properties"]) == properties
        assert round(row["event_time"].timestamp() * 1000) == event_time_ms
    assert rows[9]["payload"] is None
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, partition) if e["inTable"]))
    assert any(each["offloaded"] for each in ledgers(platform, partition))
    assert [told(each) for each in received(client, partition, 400)] == pulsars
    assert as_kafka("after") == before


def compacted(platform: Standalone, topic: str) -> None:
    url = f"{platform.http_url}/admin/v2/persistent/public/default/{topic}/compaction"
    httpx.put(url).raise_for_status()
    wait_until(lambda: httpx.get(url).json()["status"] != "RUNNING")
    assert httpx.get(url).json() == {"status": "SUCCESS", "lastError": ""}


def last_of_keys(client: pulsar.Client, topic: str) -> dict[str, int]:
    """By key, as a reader of what is compacted is shown them; each once."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found: dict[str, int] = {}
    while reader.has_message_available():
        message = reader.read_next(30_000)
        found[message.partition_key()] = int(message.data()[:6])
    reader.close()
    return found


def test_a_topic_with_a_table_is_compacted_and_what_was_erased_stays_gone(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """Compaction reads ledgers that are in the table only, entries of which nothing is left
    included; who reads compacted goes on from what is left into the table."""
    topic = "kept-by-key"
    flags = ["--warehouse", str(tmp_path), "--service-url", platform.service_url, "--json"]
    publish(client, topic, 0, 200, batching_enabled=False)
    close_ledgers(platform, topic)  # erasing leaves what is in no table yet
    assert take(platform, tmp_path, topic, kept_ms=1).rows == 200
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    done = CliRunner().invoke(pipeline, ["erase", topic, "--key", "k3", *flags])
    assert done.exit_code == 0, done.output + repr(done.exception)
    compacted(platform, topic)
    last = {f"k{number % 7}": number for number in range(200)}
    del last["k3"]
    assert last_of_keys(client, topic) == last
    publish(client, topic, 203, 283, batching_enabled=False)
    take(platform, tmp_path, topic, kept_ms=1)
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    last |= {f"k{number % 7}": number for number in range(203, 283)}
    assert last_of_keys(client, topic) == last, "what came since is in the table"
    compacted(platform, topic)
    assert last_of_keys(client, topic) == last

    done = CliRunner().invoke(pipeline, ["erase", topic, "--key", "k5", *flags])
    report = json.loads(done.stdout)
    assert (report["ok"], report["compacted"]) == (False, {full(topic): [full(topic)]}), (
        "compaction has left a message of it"
    )
    producer = client.create_producer(topic)
    producer.send(b"", partition_key="k5")
    producer.close()
    compacted(platform, topic)
    del last["k5"]
    assert last_of_keys(client, topic) == last


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def rubbish(path: Path) -> None:
    path.write_bytes(b"rubbish" * 100)


def damaged_file(main: Table, what: str) -> Path:
    snapshot = main.metadata.current_snapshot()
    assert snapshot is not None
    paths = {
        "metadata": main.metadata_location,
        "list": snapshot.manifest_list,
        "manifest": snapshot.manifests(main.io)[0].manifest_path,
    }
    return Path(paths[what].removeprefix("file://"))


@pytest.mark.parametrize("damage", [cut, empty, rubbish])
@pytest.mark.parametrize("what", ["metadata", "list", "manifest"])
def test_a_damaged_file_is_said_and_keeps_no_other_topic_back(
    platform: Standalone,
    client: pulsar.Client,
    tmp_path: Path,
    what: str,
    damage: Callable[[Path], None],
) -> None:
    """It ended the job: with an internal error, or, where the file was empty, as if somebody had
    interrupted it (130), without a word."""
    harmed, other = (f"file-{what}-{damage.__name__}-{name}" for name in ("harmed", "other"))
    for topic in (harmed, other):
        publish(client, topic, 0, 100, batching_enabled=False)
        take(platform, tmp_path, topic)
    table = TopicTable(catalog_in(tmp_path).place(full(harmed)), full(harmed))
    assert table.look()
    damage(damaged_file(table.main, what))
    for topic in (harmed, other):
        publish(client, topic, 100, 200, batching_enabled=False)
        close_ledgers(platform, topic)
    flags = ["--warehouse", str(tmp_path), "--service-url", platform.service_url, "--json"]
    done = CliRunner().invoke(pipeline, ["table", harmed, other, *flags], standalone_mode=False)
    assert done.return_value == 1, (done.output, done.exception)
    of_harmed, of_other = json.loads(done.stdout)["topics"]
    assert of_harmed["errors"]
    assert (of_other["errors"], of_other["ledgers"] >= 1) == ([], True)
    line = ["erase", harmed, other, "--key", "k3", *flags]
    done = CliRunner().invoke(pipeline, line, standalone_mode=False)
    assert done.return_value == 1, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert (list(told["errors"]), list(told["topics"])) == ([full(harmed)], [full(other)])
    assert "k3" not in rows_of(tmp_path, other)["key"].to_pylist()


@pytest.mark.parametrize(
    "told", [{TAKEN: "rubbish"}, {TAKEN: '{"ledger": "7", "recent": []}'}, {READER: "rubbish"}]
)
def test_a_property_that_cannot_be_read_keeps_no_other_topic_back(
    platform: Standalone, client: pulsar.Client, tmp_path: Path, told: dict[str, str]
) -> None:
    """It ended the job with an internal error."""
    harmed, other = (f"{tmp_path.name}-{name}" for name in ("harmed", "other"))
    for topic in (harmed, other):
        publish(client, topic, 0, 100, batching_enabled=False)
        close_ledgers(platform, topic)
    take(platform, tmp_path, harmed)
    table = TopicTable(catalog_in(tmp_path).place(full(harmed)), full(harmed))
    assert table.look()
    with table.main.transaction() as change:
        change.set_properties(
            {name + full(harmed) if name == TAKEN else name: text for name, text in told.items()}
        )
    with closing(taking(platform, tmp_path)) as job:
        of_harmed, of_other = job.take([full(harmed), full(other)])
    assert any("put back what it was" in error for error in of_harmed.errors)
    assert (of_other.errors, of_other.ledgers >= 1) == ([], True)


def test_files_that_only_another_machine_has_are_not_taken(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """Executors of other machines wrote to their own disks; it was committed, and the bookies
    deleted the only copy that there was."""
    topic = "other-machines"
    publish(client, topic, 0, 200, batching_enabled=False)
    close_ledgers(platform, topic)

    def elsewhere(tasks: Sequence[LedgerTask]) -> list[WrittenLedger]:
        written = write_here(tasks)
        for each in written:
            for file in each.main:
                path = Path(file.path.removeprefix("file://"))
                path.rename(path.with_suffix(".elsewhere"))
        return written

    options = TakingOptions(platform.service_url, catalog_in(tmp_path), kept_ms=1)
    with closing(Taking(options, elsewhere)) as job:
        (done,) = job.take([full(topic)])
    assert "is not there; nothing is taken" in done.errors[0]
    assert rows_of(tmp_path, topic).num_rows == 0
    assert not any(each["inTable"] for each in ledgers(platform, topic))
    assert take(platform, tmp_path, topic, kept_ms=1).rows == 200


def test_a_topic_with_the_name_of_a_side_table_is_refused(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """What did not fit of the one was put among the other's messages."""
    publish(client, "named__unfit", 0, 100, batching_enabled=False)
    take(platform, tmp_path, "named__unfit")
    before = rows_of(tmp_path, "named__unfit").num_rows
    chunked(client, "named")
    publish(client, "named", 0, 100, batching_enabled=False)
    with closing(taking(platform, tmp_path)) as job:
        (done,) = job.take([full("named")])
    assert f"is that of {full('named__unfit')}, not of {full('named')}" in done.errors[0]
    assert rows_of(tmp_path, "named__unfit").num_rows == before


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_a_warehouse_whose_files_would_not_be_found_is_refused(tmp_path: Path, name: str) -> None:
    """All files of all tables were written to the one ``a``, each over the one before."""
    with pytest.raises(ConfigError, match="choose a path without"):
        catalog_of(str(tmp_path / name), None, ())
    assert not list(tmp_path.iterdir())


def test_a_table_is_attached_again(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """The owner was told of what the last run had taken: ledgers before it stayed at the bookies
    for ever, as ones that are not in the table, and the report said that they were."""
    topic = "attached-again"
    chunked(client, topic)
    for first in (0, 100, 200):
        publish(client, topic, first, first + 100, batching_enabled=False)
        close_ledgers(platform, topic)
        take(platform, tmp_path, topic)
    line = ["detach", topic, "--service-url", platform.service_url]
    assert CliRunner().invoke(pipeline, line, standalone_mode=False).return_value == 0
    assert not any(each["inTable"] for each in ledgers(platform, topic))
    done = take(platform, tmp_path, topic, kept_ms=1)
    closed = [each for each in ledgers(platform, topic) if each["inTable"]]
    assert (done.ledgers, done.in_table) == (0, len(closed))
    assert len(closed) >= 3
    wait_until(lambda: all(e["offloaded"] for e in ledgers(platform, topic) if e["inTable"]))
    assert received(client, topic, 301)[300].data()[:6] == b"%06d" % 299


def test_a_table_of_another_log_is_not_attached(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """Ids of ledgers begin anew in a cluster that is made anew; here the topic's own are counted
    for those of a former one."""
    topic = "another-log"
    publish(client, topic, 0, 100, batching_enabled=False)
    close_ledgers(platform, topic)
    table = TopicTable(catalog_in(tmp_path).place(full(topic)), full(topic))
    table.make(None, None, "day")
    greatest = max(int(str(each["ledgerId"])) for each in ledgers(platform, topic))
    with table.main.transaction() as change:
        change.set_properties({TAKEN + full(topic): TakenUpTo(greatest).to_text()})
    with closing(taking(platform, tmp_path, kept_ms=1)) as job:
        (done,) = job.take([full(topic)])
    assert "0 of its" in done.errors[0]
    assert "Is it the table of this cluster's topic?" in done.errors[0]
    assert not any(each["inTable"] for each in ledgers(platform, topic))


def test_what_is_erased_is_in_the_report_whatever_fails_behind_it(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """A second topic without a table, or that failed, ended the job (as one that was asked for what
    cannot be), when the first had been erased from; nothing said so."""
    topic = "erased-first"
    publish(client, topic, 0, 100, batching_enabled=False)
    publish(client, "never-taken", 0, 10)
    close_ledgers(platform, topic)
    take(platform, tmp_path, topic)
    flags = ["--key", "k3", "--warehouse", str(tmp_path), "--service-url", platform.service_url]
    done = CliRunner().invoke(pipeline, ["erase", topic, "never-taken", *flags])
    assert isinstance(done.exception, ConfigError)
    assert f"{full('never-taken')}: no table" in str(done.exception)
    assert "k3" in rows_of(tmp_path, topic)["key"].to_pylist(), "nothing was erased"
    tried = CliRunner().invoke(pipeline, ["erase", topic, *flags, "--dry-run"])
    assert "would be erased" in tried.stdout


def test_a_topic_that_was_made_anew_is_said_and_its_table_goes_on_if_told(
    platform: Standalone, client: pulsar.Client, tmp_path: Path
) -> None:
    """Messages of both were in one table, and of those that it had not taken nobody heard."""
    topic = "made-anew"
    publish(client, topic, 0, 250)
    close_ledgers(platform, topic)
    assert take(platform, tmp_path, topic).rows == 250
    publish(client, topic, 250, 300)  # never taken
    path = f"/admin/v2/persistent/public/default/{topic}"
    httpx.delete(platform.http_url + path, params={"force": "true"}).raise_for_status()
    publish(client, topic, 300, 500)
    close_ledgers(platform, topic)
    words = {"topics": (topic,), "warehouse": str(tmp_path), "service_url": platform.service_url}
    for _ in range(2):
        failed = run(TABLE, TableOptions(**words), JobContext())  # type: ignore[arg-type]
        assert "the topic was deleted and made anew" in failed.topics[0].errors[0]
        assert not failed.ok
        assert rows_of(tmp_path, topic).num_rows == 250
    passing = TableOptions(**words, fail_on_data_loss=False)  # type: ignore[arg-type]
    went_on = run(TABLE, passing, JobContext())
    assert (went_on.topics[0].errors, went_on.topics[0].rows, went_on.losses) == ([], 200, 1)
    assert "made anew" in went_on.passed[0].why
    for options in (passing, TableOptions(**words)):  # type: ignore[arg-type]
        assert run(TABLE, options, JobContext()).ok, "it is told once"
    assert rows_of(tmp_path, topic).num_rows == 450
    assert len(received(client, topic, 200)) == 200
