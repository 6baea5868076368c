"""How logs are replicated, for what is to be as safe as they are."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.env.metadata import MetadataStore
from magnetar.ledger.client import LedgerClient
from magnetar.log.managed.node import stored_record
from magnetar.log.managed.records import decode_log, log_path
from magnetar.model.errors import NoNodeError, NoSuchLedgerError
from magnetar.model.ledger import Quorums


async def quorums_of_logs(
    metadata: MetadataStore, ledgers: LedgerClient, names: Sequence[str]
) -> Quorums | None:
    """Those of the last ledger of the first log that has one; None if there is none. Raises
    ``MetadataError``, ``LogError``."""
    for name in names:
        try:
            record = decode_log(name, (await stored_record(metadata, log_path(name))).value)
            if not record.ledgers:
                continue
            found = await ledgers.read_metadata(record.ledgers[-1].ledger_id)
        except (NoNodeError, NoSuchLedgerError):
            continue
        return Quorums(found.ensemble_size, found.write_quorum, found.ack_quorum)
    return None
