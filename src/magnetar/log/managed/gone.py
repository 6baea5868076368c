"""Ledgers whose metadata are gone, and that a log cannot do without (its last one, a cursor's, the
one that has what compaction left): what is said of one, and whether it is named still.

A broker does not go on by itself: what was in the ledger would be lost silently. An operator has it
entered anew, closed and empty (``magnetar ledger close-at-loss ID --of NAME``).

Why: docs/adr/0237-a-ledger-that-is-gone-is-entered-anew-empty.md.
"""

from __future__ import annotations

from magnetar.env.metadata import MetadataStore
from magnetar.log.managed.ledgers import ChainReader, Ledgers
from magnetar.log.managed.node import stored_record
from magnetar.log.managed.records import (
    NAME_PARTS,
    cursor_path,
    decode_cursor,
    decode_log,
    log_path,
)
from magnetar.model.errors import LogError, MagnetarError, NoNodeError, NoSuchLedgerError
from magnetar.model.ledger import COMPACTED_KEY, CURSOR_KEY, LOG_KEY


def gone(of: str, how: str, ledger_id: int, error: MagnetarError) -> str:
    """``of``: the log, or the cursor with its log before it; ``how`` it is without the ledger."""
    return (
        f"{of} {how}: {error}. If it stays so and nothing brings the ledger back, go on without "
        f"what was in it: magnetar ledger close-at-loss {ledger_id} --of {of}"
    )


async def open_needed(ledgers: Ledgers, of: str, ledger_id: int) -> ChainReader:
    """``Ledgers.open`` of one that ``of`` (see ``gone``) is opened with. Raises ``LogError`` if it
    is gone."""
    try:
        return await ledgers.open(ledger_id)
    except NoSuchLedgerError as error:
        raise LogError(gone(of, "cannot be opened", ledger_id, error)) from error


async def named_by(metadata: MetadataStore, of: str, ledger_id: int) -> dict[str, bytes]:
    """The custom metadata of a ledger that ``of`` (see ``gone``) cannot do without. Raises
    ``LogError`` if that is not so, ``MetadataError``."""
    parts = of.split("/", NAME_PARTS)
    await metadata.sync()
    try:
        if len(parts) > NAME_PARTS:
            named = await _cursors(metadata, "/".join(parts[:NAME_PARTS]), parts[NAME_PARTS])
            key = CURSOR_KEY
        else:
            named, key = await _logs(metadata, of, ledger_id)
    except NoNodeError:
        raise LogError(f"there is no {of}: say it as the broker's log does") from None
    if named != ledger_id:
        opened = "none" if named is None else f"ledger {named}"
        raise LogError(f"{of} is opened with {opened}, and not with ledger {ledger_id}")
    return {key: of.encode()}


async def _cursors(metadata: MetadataStore, log_name: str, cursor: str) -> int | None:
    stored = await stored_record(metadata, cursor_path(log_name, cursor))
    return decode_cursor(f"{log_name}/{cursor}", stored.value).ledger_id


async def _logs(metadata: MetadataStore, name: str, ledger_id: int) -> tuple[int | None, str]:
    """The ledger that is recovered when the log is opened, or that ledger if compaction left it."""
    record = decode_log(name, (await stored_record(metadata, log_path(name))).value)
    ledgers = record.ledgers
    if record.compacted is not None and record.compacted.ledger_id == ledger_id:
        return ledger_id, COMPACTED_KEY
    if any(each.closed and each.ledger_id == ledger_id for each in ledgers):
        raise LogError(
            f"{name} is opened without ledger {ledger_id}, which is closed: move subscriptions "
            "behind what was in it (magnetar topics seek)"
        )
    return (ledgers[-1].ledger_id if ledgers and not ledgers[-1].closed else None), LOG_KEY
