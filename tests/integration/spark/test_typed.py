"""Values as columns with a real Spark, and the official client's typed producers and consumers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Double,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import concat, lit
from pyspark.sql.streaming.query import StreamingQuery

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.standalone import Standalone

pytestmark = pytest.mark.spark


class Plane(Record):
    tail = String()
    seats = Integer()


class Flight(Record):
    carrier = String(required=True)
    number = Integer()
    delay = Double()
    late = Boolean()
    stops = Array(String())
    counts = Map(Long())
    plane = Plane()


class EarlierFlight(Record):
    carrier = String(required=True)
    number = Integer()
    pilot = String(default="", required_default=True)


class LaterFlight(Record):
    carrier = String(required=True)
    number = Integer()
    gate = String(default="A1", required_default=True)


class OtherFlight(Record):
    carrier = Integer(required=True)


def publish(client: pulsar.Client, topic: str, schema: Any, values: Sequence[Any]) -> None:
    producer = client.create_producer(topic, schema=schema, batching_enabled=True)
    for number, value in enumerate(values):
        producer.send_async(value, lambda _result, _id: None, partition_key=f"k{number % 3}")
    producer.flush()
    producer.close()


def read(spark: SparkSession, platform: Standalone, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("magnetar").option("service.url", platform.service_url)
    for name, value in ({"valueFormat": "schema"} | options).items():
        reader = reader.option(name, value)
    return reader.option("topic", topic).load()


def flights(count: int) -> list[Flight]:
    return [
        Flight(
            carrier=f"C{n}",
            number=n if n % 4 else None,
            delay=n / 2,
            late=n % 2 == 0,
            stops=[f"s{i}" for i in range(n % 3)],
            counts={"a": 2**40 + n},
            plane=Plane(tail=f"N{n}", seats=n) if n % 5 else None,
        )
        for n in range(count)
    ]


def of_flight(n: int) -> Row:
    return Row(
        carrier=f"C{n}",
        number=n if n % 4 else None,
        delay=n / 2,
        late=n % 2 == 0,
        stops=[f"s{i}" for i in range(n % 3)],
        counts={"a": 2**40 + n},
        plane=Row(tail=f"N{n}", seats=n) if n % 5 else None,
    )


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
@pytest.mark.parametrize("mode", ["storage", "broker"])
def test_what_typed_producers_write_is_columns(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kind: Any,
    mode: str,
) -> None:
    publish(client, topic, kind(Flight), flights(50))
    frame = read(spark, platform, topic, readMode=mode)
    by_name = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    assert by_name["value"] == (
        "struct<carrier:string,number:int,delay:double,late:boolean,stops:array<string>,"
        "counts:map<string,bigint>,plane:struct<tail:string,seats:int>>"
    ), "in the order of the schema"
    rows = frame.orderBy("message_id").collect()
    assert [row.value.asDict(True) for row in rows] == [
        of_flight(n).asDict(True) for n in range(50)
    ]
    assert [row.key for row in rows[:3]] == ["k0", "k1", "k2"]
    assert frame.where("value.late").select("value.carrier").count() == 25


def test_versions_are_read_as_one(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    """The schema is the newest; what older ones wrote is resolved to it: a field that was
    not there is its default, fields that are gone are left out."""
    early = [EarlierFlight(carrier=f"C{n}", number=n or None, pilot="P") for n in range(3)]
    publish(client, topic, AvroSchema(EarlierFlight), early)
    publish(client, topic, AvroSchema(LaterFlight), [LaterFlight(carrier="Z", number=7, gate="B")])
    publish(client, topic, AvroSchema(EarlierFlight), early[:2])
    columns = "value,schema_version,message_id"
    frame = read(spark, platform, topic, columns=columns).orderBy("message_id")
    rows = frame.select("schema_version", "value.*").collect()
    assert [tuple(row) for row in rows] == [
        (0, "C0", None, "A1"),
        (0, "C1", 1, "A1"),
        (0, "C2", 2, "A1"),
        (1, "Z", 7, "B"),
        (0, "C0", None, "A1"),
        (0, "C1", 1, "A1"),
    ]


def test_what_cannot_be_read(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, AvroSchema(Flight), flights(2))
    client.create_producer(topic).send(b"\xff\xffno flight")
    with pytest.raises(PySparkException, match=rf"{topic}: message \d+:\d+:-?\d+: its value"):
        read(spark, platform, topic).collect()
    frame = read(spark, platform, topic, mode="PERMISSIVE").orderBy("message_id")
    rows = frame.select("value.carrier", "_corrupt_record").collect()
    assert [tuple(row) for row in rows] == [
        ("C0", None),
        ("C1", None),
        (None, bytearray(b"\xff\xffno flight")),
    ]


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_a_tombstone_is_a_null_and_no_bytes_are_no_value(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, kind: Any
) -> None:
    """A message says that it has no value; one of zero bytes that does not is none that a schema
    can have written."""
    publish(client, topic, kind(EarlierFlight), [EarlierFlight(carrier="A", number=1, pilot="")])
    rows = [
        Row(key="A", value=None),
        Row(key="B", value=Row(carrier="B", number=2)),
        Row("C", None),
    ]
    for guarantee in ("exactly-once", "at-least-once"):
        frame = spark.createDataFrame(rows, COLUMNS).coalesce(1)
        write(frame, platform, topic, deliveryGuarantee=guarantee)
    wanted = [("k0", "A"), *2 * [("A", None), ("B", "B"), ("C", None)]]
    for mode in ("storage", "broker"):
        frame = read(spark, platform, topic, readMode=mode).orderBy("message_id")
        found = frame.select("key", "value", "value.carrier").collect()
        assert [(row.key, row.carrier) for row in found] == wanted
        assert [row.value is None for row in found] == [each is None for _, each in wanted]
    client.create_producer(topic).send(b"", partition_key="D")
    with pytest.raises(PySparkException, match="it has no bytes, and does not say that it is null"):
        read(spark, platform, topic).collect()
    frame = read(spark, platform, topic, mode="PERMISSIVE").orderBy("message_id")
    last = frame.collect()[-1]
    assert (last.key, last.value, last._corrupt_record) == ("D", None, bytearray())


def test_types_without_a_definition_and_topics_without_a_schema(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, StringSchema(), ["a", "ä"])
    assert [row.value for row in read(spark, platform, topic, columns="value").collect()] == [
        "a",
        "ä",
    ]
    client.create_producer(f"{topic}-bytes").send(b"x")
    with pytest.raises(PySparkException, match="has no schema"):
        read(spark, platform, f"{topic}-bytes")
    frame = read(spark, platform, f"{topic}-bytes", valueFormat="auto")
    assert dict(frame.dtypes)["value"] == "binary"
    publish(client, f"{topic}-2", AvroSchema(Flight), [])
    with pytest.raises(PySparkException, match="make different columns"):
        read(spark, platform, f"{topic},{topic}-2")


def test_a_stream_of_typed_values_and_a_table(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Any
) -> None:
    early = [EarlierFlight(carrier=f"C{n}", number=n, pilot="P") for n in range(5)]
    publish(client, topic, AvroSchema(EarlierFlight), early)
    stream = (
        spark.readStream.format("magnetar")
        .option("service.url", platform.service_url)
        .option("topic", topic)
        .option("valueFormat", "schema")
        .load()
    )
    name = topic.replace("-", "_")
    query = (
        stream.select("value.*")
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert spark.table(name).count() == 5
    spark.sql(
        f"CREATE TABLE t_{name} USING magnetar OPTIONS ('service.url' '{platform.service_url}', "
        f"topic '{topic}', valueFormat 'schema')"
    )
    found = spark.sql(f"SELECT value.carrier FROM t_{name} WHERE value.number = 3").collect()
    assert [row.carrier for row in found] == ["C3"]
    later = [LaterFlight(carrier="Z", number=7, gate="B")]
    publish(client, topic, AvroSchema(LaterFlight), later)
    rows = spark.sql(f"SELECT value.* FROM t_{name}").collect()
    assert len(rows) == 6, "the table's own schema, which reads what is written with newer ones"
    spark.sql(f"DROP TABLE t_{name}")


# -- writes -----------------------------------------------------------------------------------


def consumed(client: pulsar.Client, topic: str, schema: Any, count: int) -> list[Any]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    found = [reader.read_next(60_000) for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return found


def version_of(message: Any) -> int:
    found: int = message._message.int_schema_version()
    return found


def write(frame: DataFrame, platform: Standalone, topic: str, **options: str) -> None:
    writer = frame.write.format("magnetar").option("service.url", platform.service_url)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.option("topic", topic).mode("append").save()


ROWS = [Row(key=f"k{n}", value=Row(carrier=f"C{n}", number=n if n % 2 else None)) for n in range(6)]
COLUMNS = "key string, value struct<carrier: string, number: int>"


@pytest.mark.parametrize(
    ("kind", "guarantee"),
    [
        (AvroSchema, "exactly-once"),
        (JsonSchema, "exactly-once"),
        (AvroSchema, "at-least-once"),
    ],
)
def test_typed_consumers_read_what_is_written_by_the_topics_schema(
    spark: SparkSession,
    platform: Standalone,
    client: pulsar.Client,
    topic: str,
    kind: Any,
    guarantee: str,
) -> None:
    """A field that the rows do not have is as by default; the version is on every message."""
    publish(client, topic, kind(EarlierFlight), [EarlierFlight(carrier="A", number=1, pilot="")])
    publish(client, topic, kind(LaterFlight), [])
    frame = spark.createDataFrame(ROWS, COLUMNS)
    write(frame.coalesce(1), platform, topic, deliveryGuarantee=guarantee)
    found = consumed(client, topic, kind(LaterFlight), 7)
    assert [version_of(each) for each in found] == [0] + [1] * 6
    written = [(f"k{n}", f"C{n}", n if n % 2 else None, "A1") for n in range(6)]
    values = [(each.partition_key(), each.value()) for each in found[1:]]
    assert [(key, v.carrier, v.number, v.gate) for key, v in values] == written


def test_a_topic_without_a_schema_gets_that_of_the_rows(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    frame = spark.createDataFrame(ROWS, COLUMNS)
    write(frame, platform, topic)
    found = consumed(client, topic, AvroSchema(None, _definition(client, topic)), 6)
    assert {version_of(each) for each in found} == {0}
    assert sorted(each.value()["carrier"] for each in found) == [f"C{n}" for n in range(6)]
    rows = read(spark, platform, topic).orderBy("key").collect()
    assert [row.value for row in rows] == [row.value for row in ROWS]
    plain = spark.createDataFrame([("X", 1.5)], "carrier string, fare double")
    write(plain, platform, f"{topic}-json", valueFormat="json")
    (row,) = read(spark, platform, f"{topic}-json", valueFormat="json").select("value.*").collect()
    assert tuple(row) == ("X", 1.5), "columns make a value"


def _definition(client: pulsar.Client, topic: str) -> Any:
    return json.loads(client._client.get_schema_info(topic, 0).schema())


def test_rows_that_the_registry_refuses_are_refused_when_the_write_is_planned(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, AvroSchema(EarlierFlight), [])
    frame = spark.createDataFrame([Row(value=Row(carrier=5))], "value struct<carrier: int>")
    with pytest.raises(PySparkException, match="incompatible with version 0") as refused:
        write(frame, platform, topic)
    assert "EarlierFlight.carrier: int is not written as string" in str(refused.value)
    wrong = spark.createDataFrame([Row(value=Row(carrier=None))], "value struct<carrier: string>")
    with pytest.raises(PySparkException, match=r"EarlierFlight\.carrier: a row has a null there"):
        write(wrong, platform, topic)
    assert not client.create_reader(topic, pulsar.MessageId.earliest).has_message_available()


def test_typed_rows_go_into_a_table_and_through_a_stream(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Any
) -> None:
    name = topic.replace("-", "_")
    publish(client, topic, AvroSchema(LaterFlight), [])
    spark.sql(
        f"CREATE TABLE {name} USING magnetar OPTIONS ('service.url' '{platform.service_url}', "
        f"topic '{topic}', valueFormat 'schema')"
    )
    value = "named_struct('carrier', 'AA', 'number', 1, 'gate', 'G')"
    spark.sql(f"INSERT INTO {name} (key, value) VALUES ('k', {value})")
    stream = (
        spark.readStream.format("magnetar")
        .option("service.url", platform.service_url)
        .option("topic", topic)
        .option("valueFormat", "schema")
        .load()
    )
    changed = stream.selectExpr("key", "named_struct('carrier', value.gate) AS value")
    query = (
        changed.writeStream.format("magnetar")
        .option("service.url", platform.service_url)
        .option("topic", f"{topic}-out")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    (row,) = read(spark, platform, f"{topic}-out").collect()
    assert (row.key, row.value) == ("k", Row(carrier="G"))
    spark.sql(f"DROP TABLE {name}")


# -- exactly once -----------------------------------------------------------------------------


@pytest.mark.zookeeper
def test_typed_rows_written_exactly_once_carry_their_version(
    spark: SparkSession, zookeeper: ZooKeeperServer, tmp_path: Any, topic: str
) -> None:
    url = f"zk://{zookeeper.address}/typed"
    with Standalone(tmp_path / "data", "--metadata", url) as platform:
        connected = pulsar.Client(
            platform.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        publish(connected, topic, AvroSchema(EarlierFlight), [])
        publish(connected, topic, AvroSchema(LaterFlight), [])
        frame = spark.createDataFrame(ROWS, COLUMNS).coalesce(1)
        once = {"metadata.url": url, "commitWait": "taken-in"}
        write(frame, platform, topic, **once)
        found = consumed(connected, topic, AvroSchema(LaterFlight), 6)
        assert {version_of(each) for each in found} == {1}
        assert [each.value().carrier for each in found] == [f"C{n}" for n in range(6)]
        rows = read(spark, platform, topic).orderBy("message_id").select("value.*").collect()
        assert [row.gate for row in rows] == ["A1"] * 6
        several = frame.withColumn("topic", concat(lit(f"{topic}-"), "key"))
        writer = several.write.format("magnetar").option("service.url", platform.service_url)
        writer.options(**once).mode("append").save()
        own = AvroSchema(None, _definition(connected, f"{topic}-k3"))
        (one,) = consumed(connected, f"{topic}-k3", own, 1)
        assert (version_of(one), one.value()["number"]) == (0, 3), "each topic has got it"
        connected.close()


def test_a_broker_that_restarts_ends_no_stream_of_typed_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its writer is made anew for each micro-batch, and asked for the schema once: the first one
    that was planned meanwhile ended the query."""
    with Standalone(tmp_path / "own") as own:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        query = (
            rows.selectExpr("named_struct('n', value) AS value")
            .writeStream.format("magnetar")
            .options(**{"service.url": own.service_url, "topic": "restarted"})
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            _wait_for_batch(query, 2)
            own.kill()
            time.sleep(2)
            own.start()
            before = query.lastProgress.batchId
            _wait_for_batch(query, before + 3)
        finally:
            query.stop()
        found = [row.value.n for row in read(spark, own, "restarted").collect()]
        assert sorted(found) == list(range(len(found)))


def _wait_for_batch(query: StreamingQuery, number: int) -> None:
    deadline = time.monotonic() + 120
    while query.lastProgress is None or query.lastProgress.batchId < number:
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
