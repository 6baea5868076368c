"""Where a topic's ledgers lie, for readers that fetch entries from the bookies themselves.

Told in the answer to GET_LAST_MESSAGE_ID (``LogQuestion.stored_ledgers``), to whoever may read the
topic, of ledgers of its log only. So such a reader needs the broker's address and nothing else: no
metadata store and no REST. A broker whose log is not in ledgers tells nothing, and its topics are
read through it.

The fields: docs/formats/pulsar-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from magnetar.log.seam import CompactedStats, ReadableLog
from magnetar.model.errors import NotAllowedError
from magnetar.wire.pulsar.pulsar_pb2 import LogExtent, LogQuestion

LEDGERS_MAX: Final = 1000
"""Of one question: each costs a read of the metadata store."""


class StoredLedgers(Protocol):
    """Knows where ledgers lie."""

    async def describe(
        self, ledger_ids: Sequence[int]
    ) -> tuple[Mapping[int, bytes], Mapping[str, tuple[str, int]]]:
        """The metadata of those ledgers that are there, and the addresses of bookies."""
        ...


async def fill_stored_ledgers(
    extent: LogExtent,
    source: ReadableLog,
    question: LogQuestion,
    stored: StoredLedgers | None,
    compacted: CompactedStats | None = None,
) -> None:
    """Answer ``question.stored_ledgers``. ``compacted``: what there is of the log beside its
    ledgers. Raises ``MetadataError``, ``NotAllowedError``."""
    if stored is None or not question.stored_ledgers:
        return
    if len(question.stored_ledgers) > LEDGERS_MAX:
        raise NotAllowedError(
            f"{len(question.stored_ledgers)} ledgers in one question; at most {LEDGERS_MAX}"
        )
    stats = source.stats()
    if not stats.on_ledgers:
        return
    of_log = {ledger.ledger_id for ledger in stats.ledgers}
    if compacted is not None:
        of_log.add(compacted.ledger_id)
    asked = [ledger_id for ledger_id in question.stored_ledgers if ledger_id in of_log]
    ledgers, bookies = await stored.describe(asked)
    for ledger_id in asked:
        if ledger_id in ledgers:
            extent.stored_ledgers.add(ledger_id=ledger_id, metadata=ledgers[ledger_id])
    for name, (host, port) in sorted(bookies.items()):
        extent.bookies.add(bookie_id=name, host=host, port=port)
