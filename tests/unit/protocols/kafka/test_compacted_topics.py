"""Topics with ``cleanup.policy=compact``: what is said of them, and what they take."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.cluster.policies.policies import KafkaPolicy, Policies, RetentionPolicy
from magnetar.cluster.topic_name import parse_topic
from magnetar.log.partition.limits import Cleanup
from magnetar.log.partition.serving.keeping import kept_of
from magnetar.log.policy import CleanupRule, LogPolicy, RollRule
from magnetar.model.errors import InvalidPolicyError, ProtocolError
from magnetar.protocols.kafka.topic_settings import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    changes_of,
    check_compacting,
)
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.policy import TopicPolicy, topic_policy
from magnetar.wire.crossing.kafka_to_pulsar import pulsar_entry
from magnetar.wire.kafka.admin_messages import ConfigChange
from magnetar.wire.kafka.batches import build_batch
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.records import KafkaRecord, encode_records, keyless_records
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from tests.unit.protocols.kafka.harness import KafkaWorld, run
from tests.unit.protocols.kafka.test_topic_settings import MOST, changed, described, values

COMPACTED = {
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "5",
    "max.compaction.lag.ms": "7000",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,shred"),
        ("delete.retention.ms", "-1"),
        ("min.compaction.lag.ms", "soon"),
        ("max.compaction.lag.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "-0.1"),
    ],
)
def test_what_is_no_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidPolicyError, match=name):
        changes_of({name: value}, MOST)


def test_on_ledgers_nothing_of_it_is_taken() -> None:
    for name, value in COMPACTED.items():
        changes = changes_of({name: value}, MOST)
        check_compacting(changes, on_ledgers=False)
        with pytest.raises(InvalidPolicyError, match=r"magnetar\.engine=partition"):
            check_compacting(changes, on_ledgers=True)
    check_compacting(changes_of({"cleanup.policy": "delete"}, MOST), on_ledgers=True)
    check_compacting(changes_of(dict.fromkeys(COMPACTED), MOST), on_ledgers=True)


def test_what_is_said_is_what_holds() -> None:
    log = LogPolicy(RollRule(1, 1, 1))
    configured = TopicPolicy(log, DelayPolicy(tick_ms=1))
    said = Policies(
        retention=RetentionPolicy(1, -1), kafka=KafkaPolicy(cleanup="compact", dirty_ratio=0.0)
    )
    kept = kept_of(topic_policy(configured, said).log)
    assert (kept.cleanup, kept.kept_ms, kept.kept_bytes) == (Cleanup.COMPACT, 60_000, -1)
    assert (kept.dirty_ratio_least, kept.tombstones_kept_ms) == (0.0, 86_400_000)
    assert topic_policy(configured, Policies()).log.cleanup == CleanupRule()
    both = Policies(kafka=KafkaPolicy(cleanup="delete,compact", lag_ms_max=9, tombstones_ms=0))
    kept = kept_of(topic_policy(configured, both).log)
    assert kept.cleanup is Cleanup.COMPACT_AND_DELETE
    assert (kept.compaction_lag_ms_max, kept.tombstones_kept_ms) == (9, 0)


def test_it_is_changed_and_described() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        policies = world.services.control.policies
        assert await _errors(peer, ("cleanup.policy", SET, "compact")) == "magnetar.engine"
        await policies.set_topic(parse_topic("t"), "engine", "partition")
        for each, value in COMPACTED.items():
            assert await _errors(peer, (each, SET, value)) == ""
        found = await described(peer)
        assert values(found) == COMPACTED
        assert await _errors(peer, ("cleanup.policy", SUBTRACT, "delete")) == ""
        assert values(await described(peer))["cleanup.policy"] == "compact"
        assert await _errors(peer, ("cleanup.policy", APPEND, "delete")) == ""
        assert values(await described(peer))["cleanup.policy"] == "compact,delete"
        for each in COMPACTED:
            assert await _errors(peer, (each, DELETE, None)) == ""
        assert values(await described(peer)) == {}
        assert {each: (await described(peer))[each].value for each in COMPACTED} == {
            "cleanup.policy": "delete",
            "delete.retention.ms": "86400000",
            "min.cleanable.dirty.ratio": "0.5",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": str(2**63 - 1),
        }

    run(scenario)


def test_a_record_waits_no_longer_than_it_may() -> None:
    """One lag is held against the other as it is said now."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.services.control.policies.set_topic(parse_topic("t"), "engine", "partition")
        least, most = "min.compaction.lag.ms", "max.compaction.lag.ms"
        both = ConfigChange(least, SET, "6"), ConfigChange(most, SET, "5")
        assert (await changed(peer, *both)).error_code == ErrorCode.INVALID_CONFIG
        assert await _errors(peer, (most, SET, " 5 ")) == "", "numbers are trimmed, as with Kafka"
        assert await _errors(peer, (least, SET, "6")) == "other"
        assert await _errors(peer, (least, SET, "5")) == ""
        assert await _errors(peer, (most, SET, "4")) == "other"
        assert await _errors(peer, (most, DELETE, None)) == ""
        assert await _errors(peer, (least, SET, "6")) == ""

    run(scenario)


async def _errors(peer: Any, change: tuple[str, int, str | None]) -> str:
    said = await changed(peer, ConfigChange(*change))
    if said.error_code == ErrorCode.NONE:
        return ""
    assert said.error_code == ErrorCode.INVALID_CONFIG
    return "magnetar.engine" if "magnetar.engine=partition" in said.error_message else "other"


def test_records_without_a_key_are_found() -> None:
    def data(*keys: bytes | None) -> bytes:
        return encode_records([KafkaRecord(i, 0, key, b"v") for i, key in enumerate(keys)])

    assert keyless_records(data(b"a", b""), 2, 9) == []
    assert keyless_records(data(b"a", None, b"b", None), 4, 9) == [1, 3]
    assert keyless_records(data(None, None, None), 3, 2) == [0, 1]
    for cut in range(1, len(data(b"a" * 200))):
        with pytest.raises(ProtocolError):
            keyless_records(data(b"a" * 200)[:cut], 1, 1)


def test_pulsars_consumers_get_what_is_left_where_it_was() -> None:
    records = [KafkaRecord(1, 0, b"k1", b"v1"), KafkaRecord(3, 0, b"k3", None)]
    whole = build_batch(
        encode_records(records), count=2, last_offset_delta=4, base_timestamp_ms=5,
        max_timestamp_ms=5, base_offset=10,
    )  # fmt: skip
    empty = build_batch(b"", count=0, last_offset_delta=2, base_timestamp_ms=5, base_offset=10)
    found = _messages(pulsar_entry(memoryview(whole)))
    assert [(each.compacted_out, each.partition_key) for each in found] == [
        (True, ""), (False, "k1"), (True, ""), (False, "k3"), (True, ""),
    ]  # fmt: skip
    assert [each.compacted_out for each in _messages(pulsar_entry(memoryview(empty)))] == [True] * 3


def _messages(entry: bytes) -> list[Any]:
    """The single metadata of an entry's messages."""
    size = int.from_bytes(entry[6:10], "big")
    metadata = MessageMetadata.FromString(entry[10 : 10 + size])
    at, found = 10 + size, []
    for _ in range(metadata.num_messages_in_batch):
        length = int.from_bytes(entry[at : at + 4], "big")
        each = SingleMessageMetadata.FromString(entry[at + 4 : at + 4 + length])
        at += 4 + length + max(0, each.payload_size)
        found.append(each)
    assert at == len(entry)
    return found
