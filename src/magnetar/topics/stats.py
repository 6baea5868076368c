"""What is said of topics beside their counters. Counters only grow while the topic stays loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.log.seam import LedgerStats
from magnetar.model.ids import Position
from magnetar.topics.subscription import Kind

KIND_NAMES: Mapping[Kind, str] = {
    Kind.EXCLUSIVE: "Exclusive",
    Kind.SHARED: "Shared",
    Kind.FAILOVER: "Failover",
}


def backlog_bytes(ledgers: Sequence[LedgerStats], after: Position) -> int:
    """Bytes of what lies after ``after``, in the ledgers of a log (``LogStats.ledgers``). The
    ledger in which ``after`` lies counts by its share of entries: an estimate."""
    total = 0
    for each in ledgers:
        if each.ledger_id > after.ledger_id:
            total += each.stored_bytes
        elif each.ledger_id == after.ledger_id and each.entries:
            total += each.stored_bytes * max(0, each.entries - after.entry_id - 1) // each.entries
    return total
