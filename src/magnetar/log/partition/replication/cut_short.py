"""Decides what becomes of a replica whose log's end was cut when it was opened.

A crash tears what was not synced yet, and a batch that was damaged since looks the same: the log
ends before it. Who has the partition alone goes on with what is left. Where others count they are
asked, by fetching from them: what was acknowledged they have, and would be cut to what is left here
if this replica led.

* Another that counts and lives leads; this one is in sync again when it has caught up.
* While none of them lives this one waits, up to ``WAIT_MS``: after a loss of power brokers come
  back one after the other. Then it is believed, for a write that was torn is the more likely, and
  nobody may come.

Why: docs/adr/0229-a-log-that-was-cut-does-not-lead-the-others.md.
"""

from __future__ import annotations

from typing import Final

from magnetar.log.partition.replication.election import Live, give_up
from magnetar.log.partition.replication.partition_state import NO_LEADER, PartitionState

WAIT_MS: Final = 30_000


class CutShort:
    """Of ``broker``'s replica. ``waits``: of the last state that was looked at, whether somebody
    else counts, and none of them lives."""

    def __init__(self, broker: int) -> None:
        self.waits = False
        self._broker = broker

    def waits_still(self, cut_for_ms: int) -> bool:
        """``cut_for_ms``: since its log was opened."""
        return self.waits and cut_for_ms < WAIT_MS

    def decide(self, state: PartitionState, live: Live) -> PartitionState | None:
        """The state without it; None: as it is."""
        counted = [member.broker for member in (*state.isr, *state.elr)]
        found = None
        if self._broker in counted and len(counted) > 1:
            found = give_up(state, live, self._broker, forgets=True)
        self.waits = found is not None and found.leader == NO_LEADER
        return None if self.waits else found
