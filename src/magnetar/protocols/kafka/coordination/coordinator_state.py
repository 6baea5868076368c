"""What a coordinator keeps in its log, and the records that keep it there: offsets of groups,
offsets of open transactions, transactional ids, members of groups, and what share groups have done
with records.

=====================================================  =========================================
a record's key (JSON)                                  its value
=====================================================  =========================================
``[group, topic, partition]``                          what is committed there
``["pending", producer id, group, topic, partition]``  what its transaction is to commit there
``["transaction", transactional id]``                  how its transaction goes (``transaction``)
``["classic-group", group]``                           its members (``classic_records``)
``["consumer-group", group]``                          epochs (``consumers.consumer_records``)
``["consumer-group", group, "member", member id]``     the member, and what it holds
``["share-group", group]``                             its epoch (``shares.share_records``)
``["share-state", group, topic id, partition]``        what has become of the records
=====================================================  =========================================

Of a value the fields that are known here are read, and what follows them is left out: a broker of a
newer release may have written it. So a field is added at the end, and means what it means where
nobody knows of it. A record with another key is kept as it is, and stands in snapshots too; no
such kind may have three fields of which the last is a number.

Without a value what the key says is forgotten. Records are set, not added to: of two with one key
the later counts. So a replay may begin anywhere before the newest record of every key, and writing
all that is known once more (a snapshot) makes everything before it superfluous.

Pure.

Why records of other releases: docs/adr/0216-an-older-release-reads-what-it-knows.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.model.errors import MessageTooLargeError, ProtocolError
from magnetar.protocols.kafka.consumers.consumer_records import (
    ConsumerChange,
    ConsumerGroupKey,
    ConsumerGroupRecord,
    ConsumerMemberKey,
    ConsumerMemberRecord,
    ConsumerRecords,
    member_from_json,
    member_to_json,
)
from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.coordination.classic_records import (
    ClassicGroupChange,
    ClassicGroupKey,
    ClassicGroupRecord,
    classic_from_json,
    classic_to_json,
)
from magnetar.protocols.kafka.coordination.group_offsets import (
    Committed,
    GroupOffsets,
    OffsetChange,
    OffsetKey,
    PendingChange,
    PendingKey,
    PendingOffsets,
)
from magnetar.protocols.kafka.coordination.transaction import TransactionRecord
from magnetar.protocols.kafka.shares.share_records import (
    ShareChange,
    ShareGroupKey,
    ShareGroupRecord,
    ShareRecords,
    ShareStateKey,
    ShareStateRecord,
    place_from_json,
    place_to_json,
    state_from_json,
    state_to_json,
)
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch

RECORDS_PER_BATCH: Final = 500
BATCH_BYTES_MAX: Final = 1 << 20
"""Of more than one record."""
RECORD_SLACK_BYTES: Final = 200
"""What surrounds a record's key and value, its batch included, at most."""
PENDING, TRANSACTION = "pending", "transaction"
CLASSIC_GROUP, CONSUMER_GROUP, MEMBER = "classic-group", "consumer-group", "member"
SHARE_GROUP, SHARE_STATE = "share-group", "share-state"


class TransactionKey(NamedTuple):
    transactional_id: str


class UnknownKey(NamedTuple):
    """Of a record that a newer release has written."""

    text: str


class UnknownRecord(NamedTuple):
    text: str


UnknownChange = tuple[UnknownKey, UnknownRecord | None]
TransactionChange = tuple[TransactionKey, TransactionRecord | None]
Change: TypeAlias = (
    OffsetChange
    | PendingChange
    | TransactionChange
    | ClassicGroupChange
    | ConsumerChange
    | ShareChange
    | UnknownChange
)
Key: TypeAlias = (
    OffsetKey
    | PendingKey
    | TransactionKey
    | ClassicGroupKey
    | ConsumerGroupKey
    | ConsumerMemberKey
    | ShareGroupKey
    | ShareStateKey
    | UnknownKey
)
Value: TypeAlias = (
    Committed
    | TransactionRecord
    | ClassicGroupRecord
    | ConsumerGroupRecord
    | ConsumerMemberRecord
    | ShareGroupRecord
    | ShareStateRecord
    | UnknownRecord
)


class CoordinatorState:
    """All that is known of one log."""

    def __init__(self) -> None:
        self.offsets = GroupOffsets()
        self.pending = PendingOffsets()
        self.transactions: dict[str, TransactionRecord] = {}
        self.classics: dict[str, ClassicGroupRecord] = {}
        self.consumers = ConsumerRecords()
        self.shares = ShareRecords()
        self.unknown: dict[str, UnknownRecord] = {}

    def __len__(self) -> int:
        said = len(self.offsets) + len(self.pending) + len(self.transactions)
        more = len(self.classics) + len(self.consumers) + len(self.shares)
        return said + more + len(self.unknown)

    def apply(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            match key:
                case TransactionKey():
                    self._apply_transaction(key, value)
                case ClassicGroupKey():
                    self._apply_classic(key, value)
                case ConsumerGroupKey():
                    assert value is None or isinstance(value, ConsumerGroupRecord)
                    self.consumers.set_group(key, value)
                case ConsumerMemberKey():
                    assert value is None or isinstance(value, ConsumerMemberRecord)
                    self.consumers.set_member(key, value)
                case ShareGroupKey():
                    assert value is None or isinstance(value, ShareGroupRecord)
                    self.shares.set_group(key, value)
                case ShareStateKey():
                    assert value is None or isinstance(value, ShareStateRecord)
                    self.shares.set_state(key, value)
                case UnknownKey():
                    self._apply_unknown(key, value)
                case _:
                    assert value is None or isinstance(value, Committed)
                    if isinstance(key, PendingKey):
                        self.pending.apply([(key, value)])
                    else:
                        self.offsets.apply([(key, value)])

    def _apply_transaction(self, key: TransactionKey, value: Value | None) -> None:
        if isinstance(value, TransactionRecord):
            self.transactions[key.transactional_id] = value
        else:
            self.transactions.pop(key.transactional_id, None)

    def _apply_classic(self, key: ClassicGroupKey, value: Value | None) -> None:
        if isinstance(value, ClassicGroupRecord):
            self.classics[key.group] = value
        else:
            self.classics.pop(key.group, None)

    def _apply_unknown(self, key: UnknownKey, value: Value | None) -> None:
        if isinstance(value, UnknownRecord):
            self.unknown[key.text] = value
        else:
            self.unknown.pop(key.text, None)

    def change_of(self, key: Key) -> Change:
        """What says of it once more what is known."""
        match key:
            case TransactionKey():
                return key, self.transactions.get(key.transactional_id)
            case ClassicGroupKey():
                return key, self.classics.get(key.group)
            case ConsumerGroupKey():
                return key, self.consumers.groups.get(key.group)
            case ConsumerMemberKey():
                return key, self.consumers.members(key.group).get(key.member_id)
            case ShareGroupKey():
                return key, self.shares.groups.get(key.group)
            case ShareStateKey():
                return key, self.shares.states(key.group).get(key.place)
            case PendingKey():
                return key, self.pending.of(key.producer_id).get(key)
            case UnknownKey():
                return key, self.unknown.get(key.text)
        return key, self.offsets.of(key.group).get((key.topic, key.partition))

    def all(self) -> list[Change]:
        found: list[Change] = [*self.offsets.all(), *self.pending.all()]
        found += [(TransactionKey(name), record) for name, record in self.transactions.items()]
        found += [(ClassicGroupKey(name), group) for name, group in self.classics.items()]
        found += self.consumers.all()
        found += self.shares.all()
        found += [(UnknownKey(text), record) for text, record in self.unknown.items()]
        return found


def encode_changes(changes: Sequence[Change], now_ms: int, bytes_max: int) -> list[bytes]:
    """Record batches, in order. Raises ``MessageTooLargeError`` for a record that does not fit into
    ``bytes_max``: what a member of a group, or an id, may have is bounded by what it is made of,
    and not by what a log takes."""
    most = min(bytes_max, BATCH_BYTES_MAX)
    batches: list[bytes] = []
    records: list[KafkaRecord] = []
    size = 0
    for key, value in changes:
        said = _key_bytes(key), None if value is None else _value_bytes(value)
        more = len(said[0]) + len(said[1] or b"") + RECORD_SLACK_BYTES
        if more > bytes_max:
            raise MessageTooLargeError(
                f"a record of {more} bytes cannot be kept by the coordinator, {bytes_max} at most: "
                f"that of {said[0][:200].decode()}"
            )
        if records and (len(records) == RECORDS_PER_BATCH or size + more > most):
            batches.append(batch_of(records, now_ms))
            records, size = [], 0
        records.append(KafkaRecord(len(records), 0, *said))
        size += more
    return [*batches, batch_of(records, now_ms)] if records else batches


def _key_bytes(key: Key) -> bytes:
    return key.text.encode() if isinstance(key, UnknownKey) else _json(_key(key))


def _value_bytes(value: Value) -> bytes:
    return value.text.encode() if isinstance(value, UnknownRecord) else _json(_value(value))


def _key(key: Key) -> list[Any]:
    match key:
        case TransactionKey():
            return [TRANSACTION, *key]
        case PendingKey():
            return [PENDING, *key]
        case ClassicGroupKey():
            return [CLASSIC_GROUP, *key]
        case ConsumerGroupKey():
            return [CONSUMER_GROUP, *key]
        case ConsumerMemberKey():
            return [CONSUMER_GROUP, key.group, MEMBER, key.member_id]
        case ShareGroupKey():
            return [SHARE_GROUP, *key]
        case ShareStateKey():
            return [SHARE_STATE, key.group, *place_to_json(key.place)]
    return list(key)


def _value(value: Value) -> list[Any]:
    match value:
        case TransactionRecord():
            return transaction.to_json(value)
        case ClassicGroupRecord():
            return classic_to_json(value)
        case ConsumerMemberRecord():
            return member_to_json(value)
        case ShareStateRecord():
            return state_to_json(value)
    return list(value)


def _json(value: list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_changes(batch: memoryview) -> list[Change]:
    """Raises ``ProtocolError``."""
    try:
        return [_change(record) for record in read_batch(batch)[1]]
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a record of a coordinator that is none: {error}") from error


def _change(record: KafkaRecord) -> Change:
    """Raises ``ValueError``, ``TypeError``."""
    fields = json.loads(record.key or b"")
    value = None if record.value is None else json.loads(record.value)
    match fields:
        case [kind, name] if kind == TRANSACTION:
            read = None if value is None else transaction.from_json(value)
            return TransactionKey(str(name)), read
        case [kind, name] if kind == CLASSIC_GROUP:
            classic = None if value is None else classic_from_json(value)
            return ClassicGroupKey(str(name)), classic
        case [kind, name] if kind == CONSUMER_GROUP:
            group_record = (
                None if value is None else ConsumerGroupRecord(*_known(ConsumerGroupRecord, value))
            )
            return ConsumerGroupKey(str(name)), group_record
        case [kind, name, part, member_id] if kind == CONSUMER_GROUP and part == MEMBER:
            member = None if value is None else member_from_json(value)
            return ConsumerMemberKey(str(name), str(member_id)), member
        case [kind, name] if kind == SHARE_GROUP:
            share_group = (
                None if value is None else ShareGroupRecord(*_known(ShareGroupRecord, value))
            )
            return ShareGroupKey(str(name)), share_group
        case [kind, name, *place] if kind == SHARE_STATE and len(place) == 2:
            state = None if value is None else state_from_json(value)
            return ShareStateKey(str(name), place_from_json(place)), state
        case [kind, producer_id, group, topic, partition] if kind == PENDING:
            pending = PendingKey(int(producer_id), str(group), str(topic), int(partition))
            return pending, _committed(value)
        case [str(group), str(topic), int(partition)]:
            return OffsetKey(group, topic, partition), _committed(value)
        case [str(), *_]:
            text = None if record.value is None else UnknownRecord(record.value.decode())
            return UnknownKey((record.key or b"").decode()), text
    raise ValueError(f"no key of a record: {fields!r}")


def _committed(value: list[Any] | None) -> Committed | None:
    return None if value is None else Committed(*value[: len(Committed._fields)])


def _known(kind: type[NamedTuple], value: list[Any]) -> list[int]:
    return list(map(int, value[: len(kind._fields)]))
