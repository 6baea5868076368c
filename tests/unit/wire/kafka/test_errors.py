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
)
from magnetar.wire.kafka.errors import ErrorCode, error_code


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
