"""What is said of topics beside their counters. Counters only grow while the topic stays loaded."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.log.seam import LogStats
from magnetar.model.ids import Position
from magnetar.topics.consuming.subscription import Kind

KIND_NAMES: Mapping[Kind, str] = {
    Kind.EXCLUSIVE: "Exclusive",
    Kind.SHARED: "Shared",
    Kind.FAILOVER: "Failover",
    Kind.KEY_SHARED: "Key_Shared",
}


def backlog_bytes(stored: LogStats, after: Position, backlog_entries: int) -> int:
    """Bytes of what lies after ``after``, in a log of which that many entries do. The ledger in
    which ``after`` lies counts by its share of entries: an estimate; as a whole where entries are
    not numbered without gaps."""
    if not backlog_entries:
        return 0
    if not stored.on_ledgers:
        return stored.stored_bytes * backlog_entries // max(stored.entries, 1)
    total = 0
    for each in stored.ledgers:
        if each.ledger_id > after.ledger_id:
            total += each.stored_bytes
        elif each.ledger_id == after.ledger_id and each.entries:
            total += each.stored_bytes * max(0, each.entries - after.entry_id - 1) // each.entries
    return total
