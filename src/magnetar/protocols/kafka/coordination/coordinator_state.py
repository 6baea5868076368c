"""What a coordinator keeps in its log, and the records that keep it there: offsets of groups,
offsets of open transactions, transactional ids.

=====================================================  =========================================
a record's key (JSON)                                  its value
=====================================================  =========================================
``[group, topic, partition]``                          what is committed there
``["pending", producer id, group, topic, partition]``  what its transaction is to commit there
``["transaction", transactional id]``                  how its transaction goes (``transaction``)
=====================================================  =========================================

Without a value what the key says is forgotten. Records are set, not added to: of two with one key
the later counts. So a replay may begin anywhere before the newest record of every key, and writing
all that is known once more (a snapshot) makes everything before it superfluous.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.model.errors import ProtocolError
from magnetar.protocols.kafka.coordination import transaction
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
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch

RECORDS_PER_BATCH: Final = 500
PENDING, TRANSACTION = "pending", "transaction"


class TransactionKey(NamedTuple):
    transactional_id: str


TransactionChange = tuple[TransactionKey, TransactionRecord | None]
Change: TypeAlias = OffsetChange | PendingChange | TransactionChange


class CoordinatorState:
    """All that is known of one log."""

    def __init__(self) -> None:
        self.offsets = GroupOffsets()
        self.pending = PendingOffsets()
        self.transactions: dict[str, TransactionRecord] = {}

    def __len__(self) -> int:
        return len(self.offsets) + len(self.pending) + len(self.transactions)

    def apply(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            if isinstance(key, TransactionKey):
                if isinstance(value, TransactionRecord):
                    self.transactions[key.transactional_id] = value
                else:
                    self.transactions.pop(key.transactional_id, None)
            else:
                assert not isinstance(value, TransactionRecord)
                if isinstance(key, PendingKey):
                    self.pending.apply([(key, value)])
                else:
                    self.offsets.apply([(key, value)])

    def all(self) -> list[Change]:
        found: list[Change] = [*self.offsets.all(), *self.pending.all()]
        found += [(TransactionKey(name), record) for name, record in self.transactions.items()]
        return found


def encode_changes(changes: Sequence[Change], now_ms: int) -> Iterator[bytes]:
    """Record batches, in order."""
    for start in range(0, len(changes), RECORDS_PER_BATCH):
        some = changes[start : start + RECORDS_PER_BATCH]
        records = [
            KafkaRecord(index, 0, _json(_key(key)), None if value is None else _json(_value(value)))
            for index, (key, value) in enumerate(some)
        ]
        yield batch_of(records, now_ms)


def _key(key: OffsetKey | PendingKey | TransactionKey) -> list[Any]:
    if isinstance(key, TransactionKey):
        return [TRANSACTION, *key]
    return [PENDING, *key] if isinstance(key, PendingKey) else list(key)


def _value(value: Committed | TransactionRecord) -> list[Any]:
    return transaction.to_json(value) if isinstance(value, TransactionRecord) else list(value)


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
    if len(fields) == 2 and fields[0] == TRANSACTION:
        return TransactionKey(str(fields[1])), None if value is None else transaction.from_json(
            value
        )
    committed = None if value is None else Committed(*value)
    if len(fields) == 5 and fields[0] == PENDING:
        _, producer_id, group, topic, partition = fields
        return PendingKey(int(producer_id), str(group), str(topic), int(partition)), committed
    group, topic, partition = fields
    return OffsetKey(str(group), str(topic), int(partition)), committed
