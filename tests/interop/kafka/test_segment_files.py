"""Kafka 4 reads our partitions, and we read Kafka's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.env.files.disk import RealDisk
from magnetar.log.partition.compacting import LogCompactor
from magnetar.log.partition.limits import Kept, PartitionPolicy, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.log_directory import LogDirectory
from tests.interop.kafka.conftest import KafkaPeer
from tests.unit.log.partition.kit import NOW_MS, batch, marker, offsets, read_all

pytestmark = pytest.mark.peer

confluent_kafka = pytest.importorskip("confluent_kafka")
admin_client = pytest.importorskip("confluent_kafka.admin")
TOPIC = ("t", 0)
POLICY = PartitionPolicy(segments=SegmentLimits(segment_bytes_max=16_384, index_interval_bytes=500))
WAIT_S = 120.0


def _directory(path: Path) -> LogDirectory:
    return LogDirectory.open(RealDisk(), path, POLICY, lambda: 1)


def _fill(log: LocalLog, first: int, count: int, epoch: int) -> None:
    for i in range(first, first + count):
        values = [b"ours-%d-%d" % (i, j) + bytes(100) for j in range(1 + i % 3)]
        log.append_as_leader(batch(values, time_ms=NOW_MS + 10 * i), epoch, NOW_MS)


def _transactions(log: LocalLog, epoch: int) -> None:
    for producer, commits in ((7, True), (8, False)):
        for sequence in range(3):
            data = batch(
                [b"tx-%d-%d" % (producer, sequence)],
                producer=(producer, 0, sequence), attributes=0x10, time_ms=NOW_MS,
            )  # fmt: skip
            log.append_as_leader(data, epoch, NOW_MS)
        log.append_as_leader(marker(producer, 0, commits=commits), epoch, NOW_MS)


def test_its_tools_find_nothing_wrong_with_our_files(kafka: KafkaPeer) -> None:
    directory = _directory(kafka.log_dir)
    log = directory.open_log(TOPIC, NOW_MS)
    _fill(log, 0, 150, epoch=0)
    _transactions(log, epoch=2)
    _fill(log, 150, 150, epoch=5)
    assert len(log.segments) > 3
    ends = [last for _, last in offsets(log)]
    directory.close()
    told = _dumped(kafka, kafka.log_dir / "t-0", (".snapshot", ".txnindex"))
    assert told.count("isvalid: true") == len(ends)
    assert f"lastOffset: {ends[-1]} " in told
    assert "endTxnMarker: ABORT" in told
    assert "producerId: 8 " in told


def test_its_tools_find_nothing_wrong_with_a_compacted_log(kafka: KafkaPeer) -> None:
    directory = _directory(kafka.log_dir)
    log = directory.open_log(TOPIC, NOW_MS)
    for i in range(600):
        values = [b"value-%d-%d" % (i, j) + bytes(60) for j in range(1 + i % 3)]
        keys = [b"key-%d" % (i * j % 50) for j in range(len(values))]
        last = [None if i % 7 == 0 else values[-1]]
        data = batch([*values[:-1], *last], keys=keys, time_ms=NOW_MS + i)
        log.append_as_leader(data, 0, NOW_MS)
    log.roll(log.log_end, NOW_MS)
    before = len(offsets(log))
    compactor = LogCompactor(log)
    assert compactor.compact(Kept(), committed_end=log.log_end, now_ms=NOW_MS) > 10_000
    left = len(offsets(log))
    assert left < before / 3
    directory.close()
    told = _dumped(kafka, kafka.log_dir / "t-0", (".snapshot",), gaps=True)
    assert told.count("isvalid: true") == left
    assert "deleteHorizonMs: OptionalLong[" in told


def _dumped(kafka: KafkaPeer, folder: Path, more: Sequence[str], *, gaps: bool = False) -> str:
    """What its dump tool says of a partition's files, which is nothing bad. ``gaps``: between
    offsets, as compaction leaves them."""
    endings = (".log", ".index", ".timeindex", *more)
    files = sorted(path for path in folder.iterdir() if path.suffix in endings)
    assert {path.suffix for path in files} == set(endings)
    dump = "kafka.tools.DumpLogSegments"
    told = kafka.tool(dump, "--deep-iteration", "--files", ",".join(map(str, files)))
    for trouble in ("Mismatch", "mismatch", "isvalid: false", "not valid", "could not",
                    "Could not", "unordered", "Exception"):  # fmt: skip
        assert trouble not in told, told[told.index(trouble) - 500 :][:2000]
    assert ("Non-consecutive" in told) == gaps
    indexes = [path for path in files if path.suffix == ".index"]
    sane = kafka.tool(dump, "--index-sanity-check", "--files", ",".join(map(str, indexes)))
    assert sane.count("passed sanity check") + sane.count(" is empty.") == len(indexes)
    return told


def _produce(kafka: KafkaPeer, values: Sequence[bytes], **settings: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address, **settings})
    failed = []

    def told(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(TOPIC[0], value, partition=0, on_delivery=told)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert not failed


def _consume(kafka: KafkaPeer, count: int) -> list[tuple[int, bytes]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.address, "group.id": "g", "auto.offset.reset": "earliest",
         "check.crcs": "true", "enable.auto.commit": "false"}
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(TOPIC[0], 0, 0)])
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), WAIT_S)
        assert messages, f"{len(found)} of {count} messages"
        for message in messages:
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
    consumer.close()
    return found


def _create_topic(kafka: KafkaPeer) -> None:
    admin = admin_client.AdminClient({"bootstrap.servers": kafka.address})
    topic = admin_client.NewTopic(TOPIC[0], num_partitions=1, replication_factor=1)
    for future in admin.create_topics([topic]).values():
        future.result(WAIT_S)


@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_a_directory_goes_to_and_fro(kafka: KafkaPeer, kill: bool) -> None:
    """A broker's messages are read here, ours are added, and the broker serves them all."""
    kafka.format()
    kafka.start()
    try:
        _create_topic(kafka)
        theirs = [b"theirs-%d" % i + bytes(8000) for i in range(600)]
        _produce(kafka, theirs[:300], **{"enable.idempotence": "true", "linger.ms": "2"})
        _produce(kafka, theirs[300:], **{"compression.type": "gzip", "batch.size": "5000"})
    finally:
        kafka.stop(kill=kill)
    directory = _directory(kafka.log_dir)
    assert TOPIC in directory.partitions()
    assert directory.clean is not kill
    log = directory.open_log(TOPIC, NOW_MS)
    recovered = directory.recovered[TOPIC]
    assert len(log.segments) > 2
    assert (log.log_start, log.log_end, recovered.cuts) == (0, 600, [])
    assert bool(recovered.segments_read) is kill
    assert read_all(log, 0) == [base for base, _ in offsets(log)]
    assert log.epochs.starts[0].first_offset == 0
    assert len(log.producers.producers) >= 1, "its idempotent producer is known"
    _fill(log, 0, 100, epoch=log.epochs.last)
    end = log.log_end
    directory.close()
    kafka.start()
    try:
        found = _consume(kafka, end)
        _produce(kafka, [b"last"])
        assert _consume(kafka, end + 1)[-1] == (end, b"last")
    finally:
        kafka.stop()
    assert [offset for offset, _ in found] == list(range(end))
    assert [value for _, value in found[:600]] == theirs
    assert all(value.startswith(b"ours-") for _, value in found[600:])
    directory = _directory(kafka.log_dir)
    assert directory.open_log(TOPIC, NOW_MS).log_end == end + 1
    directory.close()
