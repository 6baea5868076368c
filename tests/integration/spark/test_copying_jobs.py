"""The jobs that copy, on a real platform (``redrive``, ``mirror``, ``backfill``, ``aggregate``):
what goes where, once, also over several runs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import Row, SparkSession

from magnetar.cli.pipeline import SCRIPT
from magnetar.model.errors import ConfigError, JobError
from magnetar.pipeline.jobs.aggregate import AGGREGATE, AggregateOptions
from magnetar.pipeline.jobs.audit import AUDIT, AuditOptions
from magnetar.pipeline.jobs.backfill import BACKFILL, BackfillOptions
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import run
from magnetar.pipeline.jobs.mirror import MIRROR, MirrorOptions
from magnetar.pipeline.jobs.redrive import REDRIVE, RedriveOptions
from tests.spark_cluster import SparkCluster, environment, submit
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RECEIVE_MS = 10_000


def dead_letters(
    client: pulsar.Client, topic: str, letters: Sequence[tuple[str, dict[str, str]]]
) -> None:
    """``letters``: value and properties; the key is the value's first character."""
    producer = client.create_producer(topic)
    for value, properties in letters:
        producer.send(
            value.encode(), partition_key=value[0], properties=properties, event_timestamp=1234
        )
    producer.close()


def read(client: pulsar.Client, topic: str) -> list[Any]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS))
    reader.close()
    return found


def values(client: pulsar.Client, topic: str) -> list[str]:
    return [message.data().decode() for message in read(client, topic)]


def origin(topic: str, **more: str) -> dict[str, str]:
    return {"REAL_TOPIC": f"persistent://public/default/{topic}", "RECONSUMETIMES": "3", **more}


def to_copies(platform: Standalone, topic: str, folder: Path) -> MirrorOptions:
    """Of ``topic``, to ``copy-topic`` of the same platform."""
    return MirrorOptions(
        (topic,),
        service_url=platform.service_url,
        to_service_url=platform.service_url,
        prefix="copy-",
        checkpoint=str(folder / "checkpoint"),
    )


def test_dead_letters_go_back_to_where_they_came_from(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    letters, one, two = f"{topic}-DLQ", f"{topic}-one", f"{topic}-two"
    dead_letters(
        client,
        letters,
        [
            ("a1", origin(one, reason="timeout")),
            ("b2", origin(two, reason="timeout")),
            ("c3", origin(f"{one}-partition-0", reason="parse")),
            ("d4", {"reason": "timeout"}),
        ],
    )
    where = {"service_url": platform.service_url}
    tried = run(REDRIVE, RedriveOptions((letters,), **where), JobContext(spark, dry_run=True))
    wanted = {f"persistent://public/default/{name}": n for name, n in ((one, 2), (two, 1))}
    assert (tried.by_topic, tried.without_origin, tried.ok) == (wanted, 1, False)
    with pytest.raises(ConfigError, match="--checkpoint"):
        run(REDRIVE, RedriveOptions((letters,), **where), JobContext(spark))

    chosen = RedriveOptions(
        (letters,),
        with_property=("reason=timeout",),
        checkpoint=str(tmp_path / "checkpoint"),
        **where,
    )
    told: list[tuple[int, int, str]] = []
    context = JobContext(spark, progress=lambda *each: told.append(each))
    report = run(REDRIVE, chosen, context)
    counts = report.read, report.redriven, report.passed_over, report.without_origin
    assert counts == (4, 2, 1, 1)
    assert not report.ok
    assert values(client, one) == ["a1"]
    (back,) = read(client, two)
    assert (back.data(), back.partition_key(), back.event_timestamp()) == (b"b2", "b", 1234)
    properties = back.properties()
    assert properties.pop("REDRIVEN_FROM").startswith(f"persistent://public/default/{letters} ")
    assert properties == {"reason": "timeout"}, "what is about the letter is left out"

    once_more = {**back.properties(), **origin(one), "reason": "timeout"}
    assert "REDRIVEN_FROM" in once_more, "it was a dead letter before"
    dead_letters(client, letters, [("e5", once_more)])
    again = run(REDRIVE, chosen, JobContext(spark))
    assert (again.read, again.redriven) == (1, 1)
    assert values(client, one) == ["a1", "e5"], "each once, over two runs"
    assert values(client, letters) == ["a1", "b2", "c3", "d4", "e5"]


def test_dead_letters_by_key_and_condition_and_at_a_rate(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    letters, back = f"{topic}-DLQ", f"{topic}-back"
    dead_letters(client, letters, [(f"{'ab'[n % 2]}{n}", {}) for n in range(10)])
    options = RedriveOptions(
        (letters,),
        service_url=platform.service_url,
        checkpoint=str(tmp_path / "checkpoint"),
        to=back,
        key=("a",),
        where="cast(substring(cast(value as string), 2) as int) >= 4",
        since="2020-01-01 00:00:00",
        until="2100-01-01 00:00:00",
        rate=4,
    )
    report = run(REDRIVE, options, JobContext(spark))
    assert (report.read, report.redriven, report.ok) == (10, 3, True)
    assert report.batches >= 3, "four messages a second"
    assert values(client, back) == ["a4", "a6", "a8"]


def test_letters_that_cannot_be_sent_keep_no_other_back(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """One of them ended every run, before it had redriven anything, and a run that only tried said
    that all would go."""
    letters, back = f"{topic}-DLQ", f"{topic}-back"
    odd = ("persistent://no/such/topic", "non-persistent://public/default/t", "a/b/c/d", "")
    dead_letters(
        client,
        letters,
        [("a1", origin(back)), *((f"o{name}", {"REAL_TOPIC": name}) for name in odd)],
    )
    dead_letters(client, letters, [("loop", origin(letters)), ("b2", origin(back))])
    options = RedriveOptions(
        (letters,), service_url=platform.service_url, checkpoint=str(tmp_path / "checkpoint")
    )
    for dry_run in (True, False):
        report = run(REDRIVE, options, JobContext(spark, dry_run=dry_run))
        counts = report.read, report.redriven, report.without_origin, report.undeliverable
        assert (counts, report.ok) == ((7, 2, 1, 4), False)
    assert values(client, back) == ["a1", "b2"]


def test_a_message_that_came_in_chunks_is_copied_in_chunks(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """It ended each run of a mirror, and stayed a dead letter."""
    large, back = random.Random(1).randbytes(12 << 20), f"{topic}-back"
    dead_letters(client, topic, [("a1", origin(back))])
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(large, properties=origin(back, n="1"), partition_key="b", event_timestamp=1234)
    producer.close()
    dead_letters(client, topic, [("c2", origin(back))])
    where = {"service_url": platform.service_url, "checkpoint": str(tmp_path / "redrive")}
    redriven = run(REDRIVE, RedriveOptions((topic,), **where), JobContext(spark))
    assert (redriven.redriven, redriven.ok) == (3, True)
    where["checkpoint"] = str(tmp_path / "mirror")
    mirrored = run(MIRROR, MirrorOptions((topic,), prefix="copy-", **where), JobContext(spark))
    assert mirrored.copied == 3
    for copy in (back, f"copy-{topic}"):
        found = read(client, copy)
        assert [each.data() for each in found] == [b"a1", large, b"c2"]
        assert (found[1].partition_key(), found[1].event_timestamp()) == ("b", 1234)
        assert found[1].properties()["n"] == "1"
    audited = run(AUDIT, AuditOptions((back,), service_url=platform.service_url), JobContext(spark))
    assert audited.ok, audited.findings


def test_letters_do_not_go_where_they_come_from(spark: SparkSession, tmp_path: Path) -> None:
    """Each run had written those of the run before once more; and times that choose nothing passed
    over all of them, for good."""
    options = RedriveOptions(("letters",), checkpoint=str(tmp_path / "checkpoint"))
    wrong = [
        ({"to": "persistent://public/default/letters"}, "where dead letters are read"),
        ({"to": ""}, "cannot be"),
        ({"since": "2030-01-01", "until": "2020-01-01"}, "is not before --until"),
        ({"until": "soon"}, "'soon' is no timestamp"),
    ]
    for given, said in wrong:
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match=said):
                run(REDRIVE, replace(options, **given), JobContext(spark, dry_run=dry_run))
    assert not list(tmp_path.iterdir())


def test_topics_are_mirrored_and_gone_on_with(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    dead_letters(client, topic, [(f"k{n}", {"n": str(n)}) for n in range(20)])
    options = to_copies(platform, topic, tmp_path)
    tried = run(MIRROR, options, JobContext(spark, dry_run=True))
    assert tried.by_topic == {f"persistent://public/default/copy-{topic}": 20}
    assert run(MIRROR, options, JobContext(spark)).copied == 20
    dead_letters(client, topic, [("k20", {"n": "20"})])
    assert run(MIRROR, options, JobContext(spark)).copied == 1
    assert run(MIRROR, options, JobContext(spark)).copied == 0
    copies = read(client, f"copy-{topic}")
    assert [each.data().decode() for each in copies] == [f"k{n}" for n in range(21)]
    assert copies[7].properties() == {"n": "7"}
    assert (copies[7].partition_key(), copies[7].event_timestamp()) == ("k", 1234)
    with pytest.raises(ConfigError, match="come from"):
        run(
            MIRROR,
            MirrorOptions(
                (topic,),
                service_url=platform.service_url,
                to_service_url=platform.service_url,
                checkpoint=str(tmp_path / "other"),
            ),
            JobContext(spark),
        )


class Early(Record):  # type: ignore[misc]
    name = String(required=True)


class Late(Record):  # type: ignore[misc]
    name = String(required=True)
    more = String(default="", required_default=True)


class Other(Record):  # type: ignore[misc]
    name = Integer(required=True)


def publish_typed(
    client: pulsar.Client, topic: str, schema: Any, values: Sequence[Any], **properties: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(schema))
    for value in values:
        producer.send(value, properties=properties)
    producer.close()


def typed(client: pulsar.Client, topic: str, schema: Any) -> list[tuple[int, Any]]:
    """Version and value of each message, as a typed consumer has them."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(schema))
    found = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        found.append((message._message.int_schema_version(), message.value()))
    reader.close()
    return found


def test_copies_are_read_by_the_schemas_that_wrote_them(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Copies said nothing of a schema, and the other topic had none: who read values by one read
    all copies by the same, and of those with another one other values, or none."""
    publish_typed(client, topic, Early, [Early(name="a")])
    publish_typed(client, topic, Late, [Late(name="b", more="m")])
    client.create_producer(topic).send(AvroSchema(Late).encode(Late(name="x", more="y")))
    publish_typed(client, topic, Early, [Early(name="c")])
    options = to_copies(platform, topic, tmp_path)
    report = run(MIRROR, options, JobContext(spark))
    assert (report.copied, report.of_unknown_versions, report.ok) == (4, 0, True)
    publish_typed(client, topic, Late, [Late(name="d", more="n")])
    assert run(MIRROR, options, JobContext(spark)).copied == 1, "with its checkpoint"
    copies = {
        name: (version, value.more)
        for version, value in typed(client, f"copy-{topic}", Late)
        for name in [value.name]
    }
    assert copies == {"a": (0, ""), "b": (1, "m"), "c": (0, ""), "d": (1, "n"), "x": (-1, "y")}
    reader = spark.read.format("magnetar").option("service.url", platform.service_url)
    frame = reader.option("topic", f"copy-{topic}").option("valueFormat", "schema").load()
    rows = frame.orderBy("message_id").select("value.*").collect()
    assert [tuple(row) for row in rows] == [
        ("a", ""), ("b", "m"), ("x", "y"), ("c", ""), ("d", "n"),
    ], "in order, whatever versions they have"  # fmt: skip


def test_copies_that_nobody_could_read_are_refused(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish_typed(client, topic, Early, [Early(name="a")])
    publish_typed(client, f"copy-{topic}", Other, [])
    options = to_copies(platform, topic, tmp_path)
    with pytest.raises(JobError, match=r"version 0 of its schema \(AVRO\) cannot be copied to"):
        run(MIRROR, options, JobContext(spark))
    assert not read(client, f"copy-{topic}")


def test_letters_are_read_by_the_schemas_that_wrote_them(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """They came back without one. Here the numbers differ: the topic has had both versions, dead
    letters are of the second. One that its topic refuses stays, as others do that cannot be
    sent."""
    letters, other = f"{topic}-DLQ", f"{topic}-other"
    publish_typed(client, topic, Early, [Early(name="a")])
    publish_typed(client, topic, Late, [])
    publish_typed(client, other, Other, [])
    publish_typed(client, letters, Late, [Late(name="b", more="m")], **origin(topic))
    publish_typed(client, letters, Late, [Late(name="c", more="m")], **origin(other))
    options = RedriveOptions(
        (letters,), service_url=platform.service_url, checkpoint=str(tmp_path / "checkpoint")
    )
    report = run(REDRIVE, options, JobContext(spark))
    assert (report.read, report.redriven, report.undeliverable) == (2, 1, 1)
    found = [(version, value.name, value.more) for version, value in typed(client, topic, Late)]
    assert found == [(0, "a", ""), (1, "b", "m")]
    assert not read(client, other)


def test_a_topic_is_not_mirrored_into_itself(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """Also not by its own namespace, or by another address of the cluster: with each run it was
    twice as long. A run that only tries had been well with it."""
    dead_letters(client, topic, [("k", {})])
    other_address = platform.service_url.replace("127.0.0.1", "localhost")
    here = MirrorOptions(
        (topic,), service_url=platform.service_url, checkpoint=str(tmp_path / "checkpoint")
    )
    full = f"persistent://public/default/{topic}"
    for given in (
        {},
        {"to_namespace": "public/default"},
        {"to_service_url": other_address},
        {"to_service_url": other_address, "topics": (), "pattern": full},
    ):
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match=r"where they come from|that they come from"):
                run(MIRROR, replace(here, **given), JobContext(spark, dry_run=dry_run))
    with pytest.raises(ConfigError, match="give TENANT/NAMESPACE"):
        run(MIRROR, replace(here, to_namespace="default"), JobContext(spark))
    assert values(client, topic) == ["k"]


def test_a_checkpoint_is_of_one_destination(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """With another one the job said that all was well, and had copied nothing of what was there."""
    dead_letters(client, topic, [("k", {})])
    options = MirrorOptions(
        (topic,), service_url=platform.service_url, prefix="first-", rate=10,
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    assert run(MIRROR, options, JobContext(spark)).copied == 1
    with pytest.raises(ConfigError, match="prefix was 'first-', and is 'second-'"):
        run(MIRROR, replace(options, prefix="second-"), JobContext(spark))
    redrive = RedriveOptions(
        (topic,), service_url=platform.service_url, to=f"{topic}-back",
        checkpoint=options.checkpoint,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="job was 'mirror', and is 'redrive'"):
        run(REDRIVE, redrive, JobContext(spark))
    dead_letters(client, topic, [("l", {})])
    assert run(MIRROR, replace(options, rate=0), JobContext(spark)).copied == 1
    (tmp_path / "checkpoint" / "magnetar.json").unlink()  # as of an earlier release
    assert run(MIRROR, options, JobContext(spark)).copied == 0
    with pytest.raises(ConfigError, match="is of something else"):
        run(MIRROR, replace(options, prefix="second-"), JobContext(spark))


def test_keys_of_bytes_and_names_that_come_twice_are_copied(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """And an audit finds each message of a job on Spark once, whose batches are numbered."""
    letters, back = f"{topic}-DLQ", f"{topic}-back"
    cluster = {"service.url": platform.service_url}
    twice = [Row(key="a", value=b"1"), Row(key="a", value=b"2")]
    rows = [("/wA=", n % 2 == 0, f"v{n}", twice) for n in range(50)]
    columns = "key string, key_is_base64 boolean, value string"
    made = spark.createDataFrame(
        rows, f"{columns}, headers array<struct<key: string, value: binary>>"
    )
    made = made.coalesce(1).write.format("magnetar").mode("append").options(**cluster)
    made.option("topic", letters).option("batchingMaxMessages", 10).save()
    where = {"service_url": platform.service_url}
    run(
        MIRROR,
        MirrorOptions((letters,), prefix="copy-", checkpoint=str(tmp_path / "one"), **where),
        JobContext(spark),
    )
    options = RedriveOptions(
        (f"copy-{letters}",),
        to=back,
        with_property=("a=2",),
        checkpoint=str(tmp_path / "two"),
        **where,
    )
    assert run(REDRIVE, options, JobContext(spark)).redriven == 50
    wanted = "key,key_is_base64,value,properties,headers"
    found = spark.read.format("magnetar").options(**cluster, columns=wanted)
    for row, (key, encoded, value, _) in zip(
        found.option("topic", back).load().collect(), rows, strict=True
    ):
        assert (row.key, row.key_is_base64, bytes(row.value)) == (key, encoded, value.encode())
        assert [(each.key, bytes(each.value)) for each in row.headers[:2]] == [
            ("a", b"1"),
            ("a", b"2"),
        ]
        assert [each.key for each in row.headers[2:]] == ["REDRIVEN_FROM"]
        assert row.properties["a"] == "2", "the last of a name"
    as_kafka = spark.read.format("magnetar").options(**cluster, columnNames="kafka")
    keys = as_kafka.option("topic", letters).option("filter", "key = X'FF00'").load()
    assert {bytes(row.key) for row in keys.collect()} == {b"\xff\0"}
    report = run(AUDIT, AuditOptions((letters, back), **where), JobContext(spark))
    assert report.ok, report.findings
    assert report.messages == 100


def test_copies_are_not_copied_again(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    """A pattern that matches its own copies had copies of copies made, for ever."""
    dead_letters(client, topic, [("k", {"n": "1"})])
    options = MirrorOptions(
        pattern=f"persistent://public/default/.*{topic}",
        service_url=platform.service_url,
        prefix="again-",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    for dry_run in (True, False):
        with pytest.raises(Exception, match=f"copied again.*again-{topic} matches"):
            run(MIRROR, options, JobContext(spark, dry_run=dry_run))
    apart = replace(options, pattern=f"persistent://public/default/{topic}")
    assert run(MIRROR, apart, JobContext(spark)).copied == 1


def test_files_become_messages_once(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    rows = [(f"k{n % 3}", n, f"value {n}") for n in range(50)]
    path = str(tmp_path / "rows")
    spark.createDataFrame(rows, "name string, number int, text string").write.parquet(path)
    options = BackfillOptions(
        path,
        topic,
        service_url=platform.service_url,
        key="name",
        value="concat(number, ' ', text)",
        where="number < 40",
        order_by=("number",),
        event_time="timestamp_millis(number)",
    )
    tried = run(BACKFILL, options, JobContext(spark, dry_run=True))
    assert tried.rows == 40
    report = run(BACKFILL, options, JobContext(spark))
    assert (report.rows, report.name) == (40, tried.name)
    found = read(client, topic)
    assert sorted(int(each.data().split()[0]) for each in found) == list(range(40))
    for key in ("k0", "k1", "k2"):
        numbers = [int(m.data().split()[0]) for m in found if m.partition_key() == key]
        assert numbers == sorted(numbers), "in order, by key"
    assert {each.event_timestamp() for each in found[:1]} <= set(range(40))
    again = run(BACKFILL, options, JobContext(spark))
    assert again.passed_over
    assert len(read(client, topic)) == 40, "once, however often it is run"
    other = replace(options, key="text")
    assert not run(BACKFILL, other, JobContext(spark)).passed_over
    assert len(read(client, topic)) == 80, "with another key it is something else"
    with pytest.raises(ConfigError, match=r"could not be backfilled.*nosuch"):
        run(BACKFILL, replace(options, key="nosuch"), JobContext(spark))
    spark.createDataFrame([(1,)], "value int").write.parquet(path + "-2")
    odd = BackfillOptions(path + "-2", topic, service_url=platform.service_url)
    with pytest.raises(ConfigError, match="columns value"):
        run(BACKFILL, odd, JobContext(spark))


WINDOWS = """
[source]
topic = "{topic}"
values = "json"
columns = "carrier string, delay int"
time = "event_time"

[window]
size = "10 seconds"
late = "5 seconds"

[group]
carrier = "value.carrier"

[aggregates]
flights = "count(*)"
delay = "sum(value.delay)"

[sink]
topic = "{topic}-delays"
"""


def publish_timed(client: pulsar.Client, topic: str, *messages: tuple[int, str, int]) -> None:
    """A message: at which second of event time, carrier, delay."""
    producer = client.create_producer(topic)
    for second, carrier, delay in messages:
        value = json.dumps({"carrier": carrier, "delay": delay}).encode()
        producer.send(value, event_timestamp=second * 1000)
    producer.close()


def test_windows_that_a_file_declares(
    spark: SparkSession, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "delays.toml"
    path.write_text(WINDOWS.format(topic=topic))
    flown = (1, "AA", 5), (2, "AA", 7), (3, "BA", 1), (12, "AA", 2), (40, "AA", 0)
    publish_timed(client, topic, *flown)
    options = AggregateOptions(
        str(path), service_url=platform.service_url, checkpoint=str(tmp_path / "checkpoint")
    )
    tried = run(AGGREGATE, options, JobContext(spark, dry_run=True))
    assert len(tried.sample) == 4
    assert "0 messages read" not in " ".join(tried.lines())
    report = run(AGGREGATE, options, JobContext(spark))
    assert report.read == 5
    publish_timed(client, topic, (60, "AA", 3), (4, "LATE", 1))
    again = run(AGGREGATE, options, JobContext(spark))
    assert (again.read, again.late) == (2, 1), "it is said that one was left out"
    found = [json.loads(each.data()) for each in read(client, f"{topic}-delays")]
    by_window = {(each["window_start"][17:19], each["carrier"]): each for each in found}
    assert len(by_window) == len(found), "each result once"
    wanted = {("00", "AA"): (2, 12), ("00", "BA"): (1, 1), ("10", "AA"): (1, 2)}
    for place, (flights, delay) in wanted.items():
        assert (by_window[place]["flights"], by_window[place]["delay"]) == (flights, delay)
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace("sum(value.delay)", "max(value.delay)"))
    with pytest.raises(ConfigError, match=r"sum.value.delay.*max.value.delay"):
        # It went on in the sums, and gave them for the greatest.
        run(AGGREGATE, replace(options, declared=str(other)), JobContext(spark))
    (late,) = [each for each in read(client, f"{topic}-delays") if b'"BA"' in each.data()]
    assert (late.partition_key(), late.event_timestamp()) == ("BA", 10_000)


def test_a_session_that_is_active_goes_on_behind_a_job(spark: SparkSession) -> None:
    """A job that was told a master, which an active session does not mind, had ended it."""
    with JobContext(master="local[1]") as context:
        assert context.spark.range(3).count() == 3
    assert spark.range(3).count() == 3


def test_a_job_as_a_command(
    platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    dead_letters(client, f"{topic}-DLQ", [("a1", origin(topic))])
    command = (
        sys.executable, "-m", "magnetar", "pipeline", "redrive", f"{topic}-DLQ",
        "--service-url", platform.service_url, "--checkpoint", str(tmp_path / "checkpoint"),
        "--master", "local[1]", "--json", "--conf", "spark.driver.bindAddress=127.0.0.1",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["redriven"], told["ok"], told["job"]) == (1, True, "redrive")
    assert values(client, topic) == ["a1"]


def test_a_job_that_spark_submit_runs_on_a_cluster(
    platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    dead_letters(client, topic, [(f"k{n}", {}) for n in range(30)])
    with SparkCluster(tmp_path) as cluster:
        command = submit(
            cluster.url, ("spark.executor.memory=512m",), SCRIPT,
            "audit", topic, "--service-url", platform.service_url,
            "--report", str(tmp_path / "report.json"), "--progress", "none",
        )  # fmt: skip
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=400, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "everything is there, once" in done.stdout
    told = json.loads((tmp_path / "report.json").read_text())
    assert (told["ok"], told["messages"], told["copies"]) == (True, 30, told["entries"])
