"""Random runs of transactions: every outcome is one, and bugs that are planted are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.partitions.transaction_index import TransactionWriters
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.transaction_runs import faults_of

RUNS = 100


def test_every_record_has_the_outcome_of_its_transaction() -> None:
    found = {seed: faults for seed in range(RUNS) if (faults := faults_of(seed))}
    assert not found, found


def _same_epoch(record: Any, event: Any, now_ms: int) -> Any:
    return record.moved(event, now_ms)


def _anybody(record: Any, producer_id: int, epoch: int, place: Any) -> ErrorCode:
    return ErrorCode.NONE


def _whenever_asked(self: TransactionWriters, producer_id: int, epoch: int, ends: int) -> None:
    self._of(producer_id, epoch).allowed = True


def _any_coordinator(
    self: TransactionWriters, producer_id: int, epoch: int, coordinator_epoch: int
) -> ErrorCode:
    found = self._writers.get(producer_id)
    fenced = found is not None and epoch < found.epoch
    return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.NONE


def _any_epoch(self: TransactionWriters, header: Any) -> ErrorCode:
    found = self._writers.get(header.producer_id)
    takes = found is not None and (found.open or found.allowed)
    return ErrorCode.NONE if takes else ErrorCode.INVALID_TXN_STATE


def _no_matter_who(record: Any, producer_id: int, epoch: int) -> ErrorCode:
    if record is None or record.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE


def _too_early(original: Callable[..., Any]) -> Callable[..., Any]:
    def add(record: Any, *asked: Any) -> Any:
        if record is not None and record.ending:
            record = transaction.marked(record, 0)
        return original(record, *asked)

    return add


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "who is replaced or silent keeps its epoch": (transaction, "_fenced", _same_epoch),
    "a leader takes a first batch unasked": (transaction, "takes_part", _anybody),
    "an answer counts though a marker came meanwhile": (
        TransactionWriters,
        "allow",
        _whenever_asked,
    ),
    "markers of a replaced coordinator count": (
        TransactionWriters,
        "check_marker",
        _any_coordinator,
    ),
    "batches of any epoch count": (TransactionWriters, "check", _any_epoch),
    "producers of any epoch are heard": (transaction, "check", _no_matter_who),
    "a transaction begins before the markers are there": (
        transaction,
        "add",
        _too_early(transaction.add),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, bug = PLANTED[name]
    monkeypatch.setattr(owner, attribute, bug)
    assert any(_found(seed) for seed in range(10 * RUNS))


def _found(seed: int) -> bool:
    try:
        return bool(faults_of(seed))
    except (AssertionError, KeyError):
        return True
