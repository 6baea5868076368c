"""What a client without a metadata store may do to staged ledgers and to records: pure.

A broker does it for the client, and nothing else: a ledger is one of a staged write, before and
after, or one that a log's owner has made for it to compact into, which is its owner's to make and
to delete; a record is one that this release reads. What may be *committed* is not asked here: that
is decided by whoever writes a record (``commit_rules``), as where the store itself is in reach.
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.model.errors import NoSuchLedgerError, NotAllowedError, StagedWriteError
from magnetar.model.ids import NO_ENTRY
from magnetar.model.ledger import COMPACTING_KEY, LedgerMetadata, LedgerState
from magnetar.staging.records import LEDGER_KEY, decode_origin, decode_query, query_path


def path_of(query: str) -> str:
    """Where the record is. Raises ``NotAllowedError`` for what cannot name a query."""
    try:
        return query_path(query)
    except StagedWriteError as error:
        raise NotAllowedError(str(error)) from error


def check_record(query: str, value: bytes) -> str:
    """As ``path_of``, if ``value`` is a record. Raises ``NotAllowedError``."""
    path = path_of(query)
    try:
        decode_query(path, value)
    except StagedWriteError as error:
        raise NotAllowedError(str(error)) from error
    return path


def check_new(metadata: LedgerMetadata) -> LedgerMetadata:
    """What may be stored of a new ledger. Raises ``NotAllowedError``."""
    if not is_staged(metadata):
        raise NotAllowedError(
            "a new ledger is refused: it does not say which query, run, batch and task it is of "
            f"(custom key {LEDGER_KEY})"
        )
    if metadata.state is not LedgerState.OPEN or len(metadata.fragments) != 1:
        raise NotAllowedError("a new ledger is refused: it must be open, with one fragment")
    return metadata


def check_told(metadata: LedgerMetadata) -> LedgerMetadata:
    """What may be told of a ledger. Raises ``NoSuchLedgerError``: of ledgers that are not written
    by clients not even that they are there is told."""
    if not is_staged(metadata) and COMPACTING_KEY not in dict(metadata.custom):
        raise NoSuchLedgerError(f"there is no staged ledger {metadata.ledger_id}")
    return metadata


def check_deletion(metadata: LedgerMetadata) -> None:
    """Raises ``NoSuchLedgerError`` for a ledger that is no staged one."""
    if not is_staged(metadata):
        raise NoSuchLedgerError(f"there is no staged ledger {metadata.ledger_id}")


def check_change(before: LedgerMetadata, after: LedgerMetadata) -> LedgerMetadata:
    """What may be stored in place of ``before``. Raises ``NoSuchLedgerError``,
    ``NotAllowedError``."""
    check_told(before)
    if _identity(after) != _identity(before):
        raise NotAllowedError(
            f"ledger {before.ledger_id}: only its state, its end and its fragments may change"
        )
    return after


def _identity(metadata: LedgerMetadata) -> LedgerMetadata:
    """All that stays as it is for the life of a ledger. (Its creator's token does not.)"""
    return replace(
        metadata,
        fragments=(),
        state=LedgerState.OPEN,
        last_entry_id=NO_ENTRY,
        length=0,
        creator_token=0,
        unknown_fields=b"",
    )


def is_staged(metadata: LedgerMetadata) -> bool:
    """Whether it says which query, run, batch and task it is of."""
    custom = dict(metadata.custom)
    if LEDGER_KEY not in custom:
        return False
    try:
        decode_origin(custom[LEDGER_KEY])
    except StagedWriteError:
        return False
    return True
