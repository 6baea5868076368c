"""What must hold of a ledger, whatever fails. In prose; the code below says the same.

While the writer works:

1. *Order, no gap.* Entries are confirmed to the application in the order of their ids, each once,
   from 0 on; the i-th payload appended is entry i.
2. *Named copies.* The moment an entry is confirmed, at least Qa of the bookies that the stored
   metadata names for it hold it durably.

At the end, after all faults have healed and one more client has opened the ledger:

3. *It ends.* The ledger is closed. A writer that nobody fenced has confirmed everything.
4. *No acknowledged entry is lost.* Every entry that was ever confirmed is at or below the last
   entry of the closed ledger, so nothing is confirmed by an old writer after the close, and no
   second writer confirms anything else under its id.
5. *Everything can be read.* Each entry from 0 to the last is held, with the payload that the writer
   gave it, by at least Qa of the bookies that the closed metadata names for it.
6. *Every missing copy is known.* When the writer closed the ledger, a bookie that the metadata
   names for an entry holds it, or the writer knows that the bookie is missing it.
7. *One end.* Every client that recovered the ledger saw the same end.

With every write of metadata (in ``sim.store``): a closed ledger never changes, the state only
goes forward, fragments are in strictly increasing order.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.ledger.mending.missing_entries import MissingEntries
from magnetar.model.ledger import LedgerMetadata
from magnetar_sim.machines.bookies import Stored
from magnetar_sim.machines.clients import Cluster
from magnetar_sim.world.scheduler import SimulationError


class Checker:
    """Watches one run. Payloads are their own numbers: the i-th has the token i."""

    def __init__(self) -> None:
        self.confirmed = 0  # entries 0 .. confirmed - 1 were acknowledged to the application
        self.ends: list[LedgerMetadata] = []
        self.cluster: Cluster | None = None

    def entries_confirmed(self, entries: Mapping[int, Stored]) -> None:
        """Invariants 1 and 2."""
        for entry_id, stored in entries.items():
            if entry_id != self.confirmed or stored.token != entry_id:
                raise SimulationError(
                    f"entry {entry_id} (payload {stored.token}) was confirmed when "
                    f"{self.confirmed} was next"
                )
            self.confirmed += 1
            self._check_copies(entry_id, "confirmed")

    def recovered(self, metadata: LedgerMetadata) -> None:
        """A client has opened the ledger and seen it closed."""
        self.ends.append(metadata)

    def ended(self, undisturbed: bool, total: int, missing: MissingEntries) -> None:
        """Invariants 3 to 7. ``undisturbed``: no client but the last ever fenced the writer, who
        knows that ``missing`` is missing."""
        assert self.cluster is not None
        metadata = self.cluster.store.metadata
        if not metadata.closed:
            raise SimulationError(f"the ledger is still {metadata.state.name}: no progress")
        if undisturbed and self.confirmed != total:
            raise SimulationError(f"the writer confirmed {self.confirmed} of {total} and stopped")
        if self.confirmed - 1 > metadata.last_entry_id:
            raise SimulationError(
                f"acknowledged entries are lost: confirmed up to {self.confirmed - 1}, the "
                f"ledger ends at {metadata.last_entry_id}"
            )
        for entry_id in range(metadata.last_entry_id + 1):
            self._check_copies(entry_id, "part of the closed ledger")
        if undisturbed:
            self._check_missing(metadata, missing)
        for end in self.ends:
            if end != metadata:
                raise SimulationError(f"recoveries end differently: {end} and {metadata}")

    def _check_missing(self, metadata: LedgerMetadata, missing: MissingEntries) -> None:
        assert self.cluster is not None
        for entry_id in range(metadata.last_entry_id + 1):
            for name in metadata.write_set(entry_id):
                held = entry_id in self.cluster.bookies[name].entries
                known = missing.ranges(name, metadata.ledger_id)
                if not held and not any(entry_id in ids for ids in known):
                    raise SimulationError(
                        f"{name} lacks entry {entry_id}, which the metadata names it for, and "
                        "nobody knows"
                    )

    def _check_copies(self, entry_id: int, what: str) -> None:
        assert self.cluster is not None
        metadata = self.cluster.store.metadata
        named = metadata.write_set(entry_id)
        held = [self.cluster.bookies[name].entries.get(entry_id) for name in named]
        copies = sum(stored is not None and stored.token == entry_id for stored in held)
        if copies < metadata.ack_quorum:
            raise SimulationError(
                f"entry {entry_id} is {what} and only {copies} of {', '.join(named)}, whom the "
                f"metadata names, hold it (Qa is {metadata.ack_quorum})"
            )
