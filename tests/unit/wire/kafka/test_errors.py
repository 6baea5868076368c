"""Which code a client is told for an error."""

from __future__ import annotations

import pytest

from magnetar.model.errors import (
    BookieUnavailableError,
    EntryDamagedError,
    LedgerError,
    MagnetarError,
    NoEntryError,
    NoSpaceError,
    NoSuchLedgerError,
    NotAllowedError,
    NotEnoughReplicasError,
)
from magnetar.wire.kafka.errors import CODES, FETCH_CODES, ErrorCode, error_code, fetch_error_code


@pytest.mark.parametrize(
    "error", [EntryDamagedError("1:10"), NoEntryError("1:10"), NoSuchLedgerError("1")]
)
def test_what_is_lost_is_told_to_the_application(error: MagnetarError) -> None:
    """Consumers try again, without a word, what is a matter of storage."""
    assert error_code(error) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    "error", [LedgerError("away"), BookieUnavailableError("away"), NoSpaceError("full")]
)
def test_what_passes_is_tried_again(error: MagnetarError) -> None:
    assert error_code(error) is ErrorCode.KAFKA_STORAGE_ERROR


def test_consumers_in_java_know_all_that_a_fetch_tells() -> None:
    """At any other code of a partition ``poll`` ends with an ``IllegalStateException``."""
    told = {kind: fetch_error_code(kind("why")) for kind in CODES}
    assert set(told.values()) <= FETCH_CODES
    assert told[NotEnoughReplicasError] is ErrorCode.NOT_LEADER_OR_FOLLOWER  # it passes
    assert told[NotAllowedError] is ErrorCode.UNKNOWN_SERVER_ERROR  # of which it writes a line
