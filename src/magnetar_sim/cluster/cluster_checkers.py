"""What must hold of ledgers in a cluster of whole roles, whatever fails. In prose; the code below
says the same. (``sim.checkers`` says it of the machines alone.)

While writers, readers and recoveries work:

1. *Order, no gap.* The answers to appends cover the appends in their order, each exactly once; the
   i-th payload is confirmed as entry i; nothing is confirmed after a failure.
2. *Named copies.* The moment an entry is confirmed, at least Qa of the bookies that the stored
   metadata names for it have it (those that are down are believed).
3. *Metadata.* With every write of it: a closed ledger never changes, the state only goes forward,
   fragments start at 0 and are in strictly increasing order, an ensemble names E different bookies.
4. *Readers.* What any client reads of a ledger, at any time, is what its writer gave under that id,
   and nobody is told an entry past the end that the ledger is closed with, nor of less than
   what is before the last fragment.

After all faults have healed, in bounded time:

5. *It ends.* Every ledger can be opened, and then is closed. Every append was answered. Who follows
   a ledger has heard of its end. A new ledger can be written, closed and read.
6. *No acknowledged entry is lost*, so no old writer was acknowledged after the close, and no two
   writers were confirmed under one id: all that was ever confirmed is in the closed ledger, with
   the bytes of its writer.
7. *Copies that can be read.* Each entry of the closed ledger can be read from no fewer than Qa of
   the bookies that the metadata names for it, those included that no writer heard of. Bookies
   whose disks the run destroyed (fewer than Qa) are excused.
8. *Missing entries are copied.* A client gives bookies what they are missing, while no disk is
   destroyed.
9. *One end.* Every client that opened the ledger saw the same metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.model.entry import Entry
from magnetar.model.errors import BookieError, MagnetarError
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.metadata import decode_ledger_metadata
from magnetar.wire.bookie.metadata_layout import LedgerLayout, ledger_id_of, ledger_path
from magnetar_sim.cluster.cluster import BookieMachine, Cluster
from magnetar_sim.world.loop import run_in, until
from magnetar_sim.world.scheduler import SimulationError

ORDER = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)


class LedgerHistory:
    """What is known of one ledger from the outside."""

    def __init__(self, ledger_id: int, name: str) -> None:
        self.ledger_id = ledger_id
        self.name = name
        self.payloads: list[bytes] = []
        self.confirmed = 0
        self.answered = 0
        self.failed: MagnetarError | None = None
        self.told_last = -1
        self.ends: list[tuple[str, LedgerMetadata]] = []
        self.problem: str | None = None
        self.note: Callable[[str], None] = lambda what: None
        """For the transcript."""
        self.deferred = False
        """Confirmed is what was forced; before that, what was answered may be lost."""
        self._taken = 0
        self.deleting = False
        """Somebody has begun to delete it."""
        self.copies_problem: Callable[[range], str | None] = lambda entry_ids: None
        self.end_of: Callable[[LedgerMetadata], object] = lambda metadata: metadata
        """What of a closed ledger never changes: all, where nobody repairs."""

    def done(self, error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
        """Invariants 1 and 2; called by the writer."""
        self.answered += count
        if error is not None:
            if self.failed is None:
                self.note(f"is told that entries from {self._taken} on failed: {error}")
            self.failed = self.failed or error
        elif self.failed is not None:
            self._broken(f"entries from {first} were confirmed after a failure: {self.failed}")
        elif first != self._taken:
            self._broken(f"entry {first} was confirmed when {self._taken} was next")
        else:
            self._taken += count
            what = "taken" if self.deferred else "confirmed"
            self.note(f"is told that entries {first}..{first + count - 1} are {what}")
            if not self.deferred:
                self._confirm(self._taken)

    def forced(self, last: int) -> None:
        """The writer made durable what it was told of up to ``last``."""
        if last >= self._taken:
            self._broken(f"entry {last} was forced, and {self._taken - 1} was the last answered")
        self.note(f"has forced the entries up to {last}")
        self._confirm(last + 1)

    def _confirm(self, count: int) -> None:
        fresh = range(self.confirmed, count)
        self.confirmed = max(self.confirmed, count)
        if self.problem is None:
            self.problem = self.copies_problem(fresh)
            if self.problem is not None:
                self.note(f"WRONG: {self.problem}")

    @property
    def settled(self) -> bool:
        return self.answered == len(self.payloads)

    def read(self, who: str, entries: Sequence[Entry], first: int, last: int) -> None:
        """Invariant 4: ``entries`` were read from ``first`` on, of a ledger that ends at
        ``last``, for all that its reader knows."""
        if first + len(entries) - 1 > last:
            self._broken(f"{who} read entry {first + len(entries) - 1} past the end, {last}")
        for entry_id, entry in enumerate(entries, first):
            if entry.entry_id != entry_id:
                self._broken(f"{who} read entry {entry.entry_id} for {entry_id}")
            elif entry_id >= len(self.payloads) or entry.payload != self.payloads[entry_id]:
                self._broken(f"{who} read entry {entry_id} with bytes that nobody wrote")

    def told(self, last: int, metadata: LedgerMetadata) -> None:
        """Invariant 4: a reader was told that the entries up to ``last`` are confirmed."""
        self.told_last = max(self.told_last, last)
        fragment = metadata.fragments[-1]
        if last < fragment.first_entry_id - 1:
            self._broken(
                f"a reader was told of entry {last} as the last one, and a fragment begins at "
                f"{fragment.first_entry_id}"
            )

    def ended(self, who: str, metadata: LedgerMetadata) -> None:
        """Invariant 9."""
        self.ends.append((who, metadata))
        first_who, first = self.ends[0]
        if self.end_of(metadata) != self.end_of(first):
            self._broken(f"{first_who} and {who} saw different ends: {first} and {metadata}")

    def _broken(self, what: str) -> None:
        self.note(f"WRONG: {what}")
        self.problem = self.problem or f"ledger {self.ledger_id}: {what}"

    def check(self) -> None:
        if self.problem is not None:
            raise SimulationError(self.problem)


def copies_problem(cluster: Cluster, ledger_id: int, entry_ids: range) -> str | None:
    """Invariant 2; of a ledger that is deleted under its writer nothing is promised."""
    path = DEFAULT_ROOT + ledger_path(LedgerLayout.HIERARCHICAL, ledger_id)
    if not cluster.metadata.has(path):
        return None
    metadata = decode_ledger_metadata(ledger_id, cluster.metadata.get(path).value)
    for entry_id in entry_ids:
        named = metadata.write_set(entry_id)
        machines = [cluster.bookie(name) for name in named]
        copies = sum(machine.may_hold(ledger_id, entry_id) for machine in machines)
        if copies < metadata.ack_quorum:
            return (
                f"entry {ledger_id}:{entry_id} was confirmed and only {copies} of "
                f"{', '.join(named)}, whom the metadata names, have it (Qa is "
                f"{metadata.ack_quorum}); {describe(metadata)}"
            )
    return None


class MetadataChecker:
    """Invariant 3; watches the store itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.problem: str | None = None
        self.closed: Callable[[], None] = lambda: None
        """Called when a ledger has been closed."""
        self.ends: dict[int, int] = {}
        """Ledger id -> the last entry that it was closed with."""
        self._cluster = cluster
        cluster.metadata.written = self._written

    def _written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        if before is None or before == after:
            return
        ledger_id = ledger_id_of(LedgerLayout.HIERARCHICAL, path.removeprefix(DEFAULT_ROOT))
        if ledger_id is None:
            return
        if after is None:
            self._cluster.trace.note("store", f"ledger {ledger_id} is deleted")
            return
        old, new = (
            decode_ledger_metadata(ledger_id, before),
            decode_ledger_metadata(ledger_id, after),
        )
        self._cluster.trace.note("store", describe(new))
        if new.closed:
            self.ends[ledger_id] = new.last_entry_id
            self.closed()
        problem = self.forbidden(old, new)
        if problem is not None:
            self.problem = self.problem or f"ledger {ledger_id}: {problem}"

    def forbidden(self, old: LedgerMetadata, new: LedgerMetadata) -> str | None:
        """What is wrong with that change of a ledger."""
        return forbidden_change(old, new)

    def check(self) -> None:
        if self.problem is not None:
            raise SimulationError(self.problem)


def describe(metadata: LedgerMetadata) -> str:
    """``ledger 3 OPEN 0:b1,b2,b3 7:b1,b4,b3``"""
    fragments = " ".join(f"{f.first_entry_id}:{','.join(f.bookies)}" for f in metadata.fragments)
    end = f" last={metadata.last_entry_id}" if metadata.closed else ""
    return f"ledger {metadata.ledger_id} {metadata.state.name}{end} {fragments}"


def forbidden_change(old: LedgerMetadata, new: LedgerMetadata) -> str | None:
    """Invariant 3, where nobody repairs."""
    if old.closed:
        return f"a closed ledger changes: {describe(old)} -> {describe(new)}"
    if ORDER.index(new.state) < ORDER.index(old.state):
        return f"the state goes back: {old.state.name} -> {new.state.name}"
    firsts = [fragment.first_entry_id for fragment in new.fragments]
    if firsts[0] != 0 or firsts != sorted(set(firsts)):
        return f"invalid fragment order {firsts}"
    for fragment in new.fragments:
        if len(set(fragment.bookies)) != new.ensemble_size:
            return f"not an ensemble: {fragment}"
    return None


def check_end(history: LedgerHistory, metadata: LedgerMetadata) -> None:
    """Invariants 5 and 6, without the bytes."""
    history.check()
    name = f"ledger {history.ledger_id}"
    if not metadata.closed:
        raise SimulationError(f"{name} is still {metadata.state.name}: no progress")
    last = metadata.last_entry_id
    if history.confirmed - 1 > last:
        raise SimulationError(
            f"{name}: acknowledged entries are lost: confirmed up to {history.confirmed - 1}, "
            f"closed at {last}"
        )
    if history.told_last > last:
        raise SimulationError(
            f"{name}: a reader was told of entry {history.told_last}, closed at {last}"
        )
    if history.answered != len(history.payloads):
        raise SimulationError(
            f"{name}: {history.answered} of {len(history.payloads)} appends were answered"
        )


async def check_copies(cluster: Cluster, history: LedgerHistory, metadata: LedgerMetadata) -> None:
    """Invariant 7, asked of the bookies' own cores."""
    digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
    held: dict[str, set[int]] = {}
    for name in sorted({name for fragment in metadata.fragments for name in fragment.bookies}):
        machine = cluster.bookie(name)
        while machine.lost is None and name not in held:
            await until(lambda machine=machine: machine.serving, 0.1)  # type: ignore[misc]
            asking = _held(machine, history, metadata, digest)
            found = await run_in(machine.process_now, asking, "copies")
            if found is not None:
                held[name] = found
    for entry_id in range(metadata.last_entry_id + 1):
        named = metadata.write_set(entry_id)
        copies = [name for name in named if entry_id in held.get(name, ())]
        excused = sum(cluster.bookie(name).lost is not None for name in named)
        if len(copies) + excused < metadata.ack_quorum:
            raise SimulationError(
                f"entry {history.ledger_id}:{entry_id} is part of the closed ledger and only "
                f"{', '.join(copies) or 'nobody'} of {', '.join(named)}, whom the metadata names, "
                f"can give it (Qa is {metadata.ack_quorum})"
            )


async def _held(
    machine: BookieMachine,
    history: LedgerHistory,
    metadata: LedgerMetadata,
    digest: EntryDigest,
) -> set[int]:
    """The ledger's entries that this bookie gives as they were written."""
    assert machine.bookie is not None
    found: set[int] = set()
    for entry_id in range(metadata.last_entry_id + 1):
        if machine.name not in metadata.write_set(entry_id):
            continue
        try:
            data = await machine.bookie.read_entry(metadata.ledger_id, entry_id)
        except BookieError:
            continue
        digest.verify(data, entry_id)
        if data[digest.payload_offset :] == history.payloads[entry_id]:
            found.add(entry_id)
    return found
