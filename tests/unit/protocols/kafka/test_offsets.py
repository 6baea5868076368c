"""Offsets of groups as records: a replay gives what was known."""

from __future__ import annotations

import json
import random
import uuid

import pytest

from magnetar.model.errors import MessageTooLargeError, ProtocolError
from magnetar.protocols.kafka.consumers.consumer_records import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    ConsumerMemberKey,
    ConsumerMemberRecord,
)
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition
from magnetar.protocols.kafka.coordination.classic_records import (
    ClassicGroupKey,
    ClassicGroupRecord,
    ClassicMemberRecord,
)
from magnetar.protocols.kafka.coordination.coordinator_state import (
    Change,
    CoordinatorState,
    TransactionKey,
    decode_changes,
    encode_changes,
)
from magnetar.protocols.kafka.coordination.group_offsets import (
    Committed,
    GroupOffsets,
    OffsetChange,
    OffsetKey,
    PendingKey,
)
from magnetar.protocols.kafka.coordination.transaction import TransactionRecord
from magnetar.protocols.kafka.coordination.transaction_states import TransactionState
from magnetar.protocols.kafka.shares.share_records import (
    RecordState,
    ShareGroupKey,
    ShareGroupRecord,
    ShareImage,
    ShareStateKey,
    ShareStateRecord,
    StoredRun,
)
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch


def some_offsets(source: random.Random, count: int) -> list[OffsetChange]:
    made: list[OffsetChange] = []
    for _ in range(count):
        key = OffsetKey(f"g{source.randrange(3)}", f"t{source.randrange(2)}", source.randrange(4))
        topic_id = source.choice(["", "74e622ecd9a5011909c841cd13205c9d"])
        value = Committed(source.randrange(1_000), source.randrange(-1, 9), "mä", 17, topic_id)
        made.append((key, value if source.random() < 0.8 else None))
    return made


def some_changes(source: random.Random, count: int) -> list[Change]:
    made: list[Change] = []
    for key, committed in some_offsets(source, count):
        kind = source.randrange(3)
        if kind == 0:
            made.append((key, committed))
        elif kind == 1:
            made.append((PendingKey(source.randrange(5), *key), committed))
        else:
            record = TransactionRecord(
                source.randrange(1_000),
                source.randrange(9),
                60_000,
                source.choice(list(TransactionState)),
                (("t", 1), ("ä/b/c", 0)),
                7,
                8,
            )
            made.append((TransactionKey(key.group), None if committed is None else record))
    return made


@pytest.mark.parametrize("seed", range(10))
def test_a_replay_from_before_a_snapshot_gives_what_was_known(seed: int) -> None:
    source = random.Random(seed)
    known = CoordinatorState()
    batches: list[bytes] = []
    for _ in range(5):
        changes = some_changes(source, source.randint(1, 700))
        known.apply(changes)
        batches += encode_changes(changes, 5, 1 << 20)
    snapshot = encode_changes(known.all(), 5, 1 << 20)
    for log in (batches, snapshot, [*batches, *snapshot]):
        replayed = CoordinatorState()
        for batch in log:
            replayed.apply(decode_changes(memoryview(batch)))
        assert dict(replayed.all()) == dict(known.all())
        said = [known.change_of(key) for key, _ in known.all()]
        assert said == known.all(), "each can be said again alone"


def test_of_every_kind_what_is_known_can_be_said_again_alone() -> None:
    consumer = ConsumerMemberRecord("", "", "c", "h", 5, ("t",), "", "")
    place = TopicIdPartition(uuid.UUID(int=7), 1)
    changes: list[Change] = [
        (ClassicGroupKey("g"), ClassicGroupRecord(1, "consumer", "range", "m", 7, ())),
        (ConsumerGroupKey("g"), ConsumerGroupRecord(3, 2)),
        (ConsumerMemberKey("g", "m"), consumer),
        (ShareGroupKey("g"), ShareGroupRecord(4)),
        (ShareStateKey("g", place), ShareStateRecord(1, 2, ShareImage(5, ()))),
    ]
    known = CoordinatorState()
    for key, _ in changes:
        assert known.change_of(key) == (key, None)
    known.apply(changes)
    for change in changes:
        assert known.change_of(change[0]) == change


EVERY_KIND: list[Change] = [
    (OffsetKey("g", "t", 1), Committed(5, 2, "m", 7, "ab")),
    (PendingKey(9, "g", "t", 1), Committed(6, 2, "m", 7, "ab")),
    (
        TransactionKey("x"),
        TransactionRecord(9, 1, 60_000, TransactionState.ONGOING, (("t", 1),), 5, 6, -1),
    ),
    (
        ClassicGroupKey("g"),
        ClassicGroupRecord(
            3, "consumer", "range", "a", 0,
            (ClassicMemberRecord("a", "", "c", "h", 9, 9, (("range", b"t"),), b"all"),),
        ),
    ),
    (ConsumerGroupKey("g"), ConsumerGroupRecord(3, 2)),
    (ConsumerMemberKey("g", "m"), ConsumerMemberRecord("", "", "c", "h", 5, ("t",), "", "")),
    (ShareGroupKey("g"), ShareGroupRecord(4)),
    (
        ShareStateKey("g", TopicIdPartition(uuid.UUID(int=7), 1)),
        ShareStateRecord(1, 2, ShareImage(5, (StoredRun(6, 8, RecordState.AVAILABLE, 1),))),
    ),
]  # fmt: skip


@pytest.mark.parametrize("change", EVERY_KIND, ids=lambda change: type(change[0]).__name__)
def test_fields_that_a_newer_release_has_added_are_left_out(change: Change) -> None:
    """In the record, and in what is repeated in it."""
    (batch,) = encode_changes([change], 5, 1 << 20)
    (record,) = read_batch(memoryview(batch))[1]
    assert record.value is not None
    longer = json.dumps([*json.loads(record.value), {"new": [1]}, "more"]).encode()
    assert decode_changes(memoryview(batch_of([record._replace(value=longer)], 0))) == [change]


@pytest.mark.parametrize("at", [("ClassicGroupKey", 7), ("ShareStateKey", 3)])
def test_the_same_of_what_is_repeated_in_a_record(at: tuple[str, int]) -> None:
    kind, field = at
    change = next(each for each in EVERY_KIND if type(each[0]).__name__ == kind)
    (batch,) = encode_changes([change], 5, 1 << 20)
    (record,) = read_batch(memoryview(batch))[1]
    said = json.loads(record.value or b"")
    said[field] = [[*each, "new"] for each in said[field]]
    longer = record._replace(value=json.dumps(said).encode())
    assert decode_changes(memoryview(batch_of([longer], 0))) == [change]


@pytest.mark.parametrize("key", ['["new kind","g"]', '["pending","g"]', '["g","t","x"]'])
def test_records_that_only_a_newer_release_knows_are_kept_as_they_are(key: str) -> None:
    value = '{"of": ["another", "shape"]}'
    record = KafkaRecord(0, 0, key.encode(), value.encode())
    known = CoordinatorState()
    known.apply(decode_changes(memoryview(batch_of([record], 0))))
    assert len(known) == 1
    assert [known.change_of(each) for each, _ in known.all()] == known.all()
    (snapshot,) = encode_changes(known.all(), 5, 1 << 20)
    (kept,) = read_batch(memoryview(snapshot))[1]
    assert (kept.key, kept.value) == (record.key, record.value)
    known.apply(decode_changes(memoryview(batch_of([record._replace(value=None)], 0))))
    assert known.all() == []


def test_batches_are_bounded_in_bytes_and_what_fits_nowhere_is_refused() -> None:
    long = Committed(1, 2, "m" * 4_000, 3)
    changes: list[Change] = [(OffsetKey("g", "t", number), long) for number in range(100)]
    batches = encode_changes(changes, 5, 10_000)
    assert len(batches) == 50
    assert max(map(len, batches)) <= 10_000
    assert [each for one in batches for each in decode_changes(memoryview(one))] == changes
    with pytest.raises(MessageTooLargeError, match="4"):
        encode_changes(changes, 5, 4_000)


def test_a_group_is_forgotten_as_a_whole() -> None:
    known = GroupOffsets()
    known.apply(some_offsets(random.Random(1), 100))
    known.apply(known.forgotten("g1"))
    assert known.of("g1") == {}
    assert "g1" not in known.groups
    assert len(known) > 0


@pytest.mark.parametrize("key", [b"", b"[]", b"[1]", b'[1,"t",2]', b"{}"])
def test_what_is_no_record_of_offsets(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_changes(memoryview(batch_of([KafkaRecord(0, 0, key, b"[1,2,3,4]")], 0)))


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    known = CoordinatorState()
    committed = Committed(5, -1, "", 1)
    for number in (1, 2):
        known.apply([(PendingKey(number, "g", "t", 0), committed._replace(offset=number))])
    assert known.pending.waits(OffsetKey("g", "t", 0))
    assert known.offsets.of("g") == {}
    changes = known.pending.ended(1, True, 9)
    for change in changes:  # and each may be the last that is stored
        known.apply([change])
        assert known.offsets.of("g") == {("t", 0): Committed(1, -1, "", 9)}
    assert [change for change in known.pending.all() if change[0].producer_id == 1] == []
    assert known.pending.waits(OffsetKey("g", "t", 0)), "the other one has no outcome yet"
    known.apply(known.pending.ended(2, False, 9))
    assert known.offsets.of("g")["t", 0].offset == 1
    assert not known.pending.waits(OffsetKey("g", "t", 0))
    assert known.pending.ended(1, True, 9) == [], "a marker that comes twice changes nothing"
