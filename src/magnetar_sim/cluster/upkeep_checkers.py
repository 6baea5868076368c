"""What must hold of bookies that collect, compact and remove, in prose; the code says the same.

While everything works and fails:

1. *Nothing that lives is collected.* A bookie forgets a ledger only when the store has it no more:
   no listing that failed, was partial or old, and no ledger that has only just been made.
2. *Deleted stays deleted.* A bookie that has forgotten a ledger does not hold it after any crash
   (unless somebody has repaired it there since, and does not know yet that it is deleted: the next
   look forgets it again), and nobody is confirmed an entry past the end that a deleted ledger was
   closed with (an old writer's adds after its deletion: BookKeeper's #4462).
3. *Acknowledged is there.* After every start, at whatever moment the crash came, a bookie has every
   entry that it ever acknowledged, of every ledger that lives: in memory, or where its index says
   as a whole record. Bookies whose disks the run destroyed are excused.
4. *The index is true.* What the index names, of ledgers that live, is such a record.
5. *No wrong "no".* For an entry that its index names, of a ledger that lives, no bookie says that
   there is none, nor that it is damaged, whatever is moved meanwhile. ("None" may be said of what
   is left of a flush that a crash cut short: named by the index, in no journal, never acknowledged
   by any life of the bookie, nor answered by this one.)
6. *Nothing was lost.* No bookie whose disk is sound finds damage in its journals: a mark never goes
   back behind journals that were given up.

After all faults have healed, in bounded time and without a restart:

7. *Space comes back.* No index names an entry of a deleted ledger; no entry log is left that holds
   deleted ledgers only, or has a smaller live share than major compaction takes. (Not looked at:
   the log being written; logs that a crash left without footer and not whole.)
8. *Bookies come back.* None is read-only any more, and all are registered as taking entries.
9. *Rest.* Nothing is compacted again and again: in the end no log comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    LOG_SUFFIX,
    RECORD_HEADER_BYTES,
    decode_footer,
    hole_bytes,
    log_ids,
    log_path,
    record_at,
    record_length,
    seed_of,
)
from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import BookieIOError, MagnetarError, NoEntryError, NoLedgerError
from magnetar_sim.cluster.cluster import BookieMachine, Cluster
from magnetar_sim.cluster.witness import WitnessedBookie
from magnetar_sim.world.scheduler import SimulationError

Key = tuple[int, int]

FAILED_LATELY_S = 2.0
"""So long after a disk failed a read, one that waited for it may be answered."""


class UpkeepChecker:
    """Of one run; ``check`` raises what was found."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._forgotten: dict[str, dict[int, None]] = {m.name: {} for m in cluster.bookies}
        self._left: dict[str, dict[Key, None]] = {}
        """Bookie -> what its index named at its start though neither it nor its journals had ever
        made it anybody's."""
        self.problem: str | None = None

    def broken(self, what: str) -> None:
        self._cluster.trace.note("upkeep", what)
        self.problem = self.problem or what

    def check(self) -> None:
        if self.problem is not None:
            raise SimulationError(self.problem)

    # -- forgetting ---------------------------------------------------------------------------

    def forgets(self, machine: BookieMachine, ledger_id: int) -> None:
        """Invariant 1."""
        if self._cluster.has_ledger(ledger_id):
            self.broken(f"{machine.name} forgets ledger {ledger_id}, which the store has")

    def has_forgotten(self, machine: BookieMachine, ledger_id: int) -> None:
        """The bookie has answered that it will never hold the ledger again."""
        self._forgotten[machine.name][ledger_id] = None

    def revived(self, machine: BookieMachine, ledger_id: int) -> None:
        """Somebody repairs the ledger there, so the bookie holds it again."""
        self._forgotten[machine.name].pop(ledger_id, None)

    # -- after a start ------------------------------------------------------------------------

    def started(self, machine: BookieMachine, bookie: Bookie) -> None:
        """Invariants 3, 4, 6; nobody has asked the bookie for anything yet."""
        if machine.lost is not None:
            return
        if bookie.report is not None and bookie.report.damages:
            self.broken(f"{machine.name} finds its journals damaged: {bookie.report.damages[0]}")
        self._left[machine.name] = {
            key: None
            for key, _ in _named(machine)
            if key not in machine.durable and bookie.read_cached(*key) is None
        }
        self.look_at(machine, bookie)

    async def look_for_forgotten(self, machine: BookieMachine, bookie: Bookie) -> None:
        """Invariant 2."""
        try:
            held = await bookie.ledgers()
        except BookieIOError:
            return  # its disk fails reads for now
        if machine.lost is not None:
            return
        back = [ledger_id for ledger_id in held if ledger_id in self._forgotten[machine.name]]
        if back:
            self.broken(f"{machine.name} had forgotten ledger {back[0]}, and holds it again")

    def look_at(self, machine: BookieMachine, bookie: Bookie) -> None:
        """Invariants 3 and 4."""
        named = dict(_named(machine))
        lives: dict[int, bool] = {}
        for key in {**dict.fromkeys(named), **machine.durable}:
            if key[0] not in lives:
                lives[key[0]] = self._cluster.has_ledger(key[0])
            if not lives[key[0]] or bookie.read_cached(*key) is not None:
                continue
            if key not in named:
                self.broken(f"{machine.name} acknowledged entry {_of(key)} and does not know it")
            elif not self._whole(machine, key, named[key]):
                place = named[key]
                self.broken(
                    f"{machine.name}: entry {_of(key)} should lie in {place.path.name} at "
                    f"{place.offset}, and does not"
                )

    def _whole(self, machine: BookieMachine, key: Key, place: _Place) -> bool:
        data = machine.disk.content(place.path)
        if data is None or len(data) < place.offset + RECORD_HEADER_BYTES:
            return False
        end = place.offset + RECORD_HEADER_BYTES + record_length(data[place.offset :][:4])
        entry = record_at(data[place.offset : end], 0, seed_of(place.log_id))
        return entry is not None and _key_of(entry) == key

    # -- reading ------------------------------------------------------------------------------

    def _owes(self, machine: BookieMachine, bookie: Bookie, key: Key) -> bool:
        """Whether somebody may have been told of the entry, or have seen it."""
        if key in machine.durable or key not in self._left.get(machine.name, ()):
            return True
        return isinstance(bookie, WitnessedBookie) and bookie.has_answered(key)

    async def probe(self, machine: BookieMachine, bookie: Bookie, key: Key) -> None:
        """Invariant 5: have the bookie give an entry that its index names."""
        failing, owes = machine.reads_fail, self._owes(machine, bookie, key)
        failed_reads = machine.disk.failed_reads  # a slow disk may fail and be well again meanwhile
        begun_s = machine.disk.loop.time()
        try:
            await bookie.read_entry(*key)
        except (NoEntryError, NoLedgerError, BookieIOError) as error:
            bad_disk = failing or machine.reads_fail or machine.disk.failed_reads > failed_reads
            # It may have joined a read that failed before, and was answered late: a slow disk.
            lately_s = machine.disk.loop.time() - machine.disk.failed_read_at_s
            bad_disk = bad_disk or lately_s < FAILED_LATELY_S
            # What it was given while it was slow it still has to do when that is over; and of a
            # process that stood, what waits no longer comes before what it waited for.
            disturbed = machine.undisturbed_s() < machine.disk.loop.time() - begun_s
            excused = bad_disk or disturbed or machine.closing or machine.ending
            if (isinstance(error, BookieIOError) and excused) or machine.lost is not None:
                return
            if not owes and not isinstance(error, BookieIOError):
                self._cluster.count("entries of a flush cut short that a bookie does not know")
                return
            if self._cluster.has_ledger(key[0]):
                self.broken(f"{machine.name} is asked for {_of(key)}, which it has: {error}")
        except MagnetarError:
            return

    # -- after healing ------------------------------------------------------------------------

    def unfinished(self) -> str | None:
        """Invariants 7 and 8; None: all is as it must be in the end."""
        for machine in self._cluster.bookies:
            problem = self._not_back(machine)
            if problem is None and machine.lost is None:
                problem = self._space_not_back(machine)
            if problem is not None:
                return f"{machine.name}: {problem}"
        return None

    def log_bytes(self) -> int:
        """Of the entry logs of the bookie that has most."""
        directories = self._cluster.plan.bookie.ledger_directories
        held = (
            sum(log.byte_count for directory in directories for log in _logs(machine, directory))
            for machine in self._cluster.bookies
            if machine.lost is None
        )
        return max(held, default=0)

    def logs(self) -> list[str]:
        """The entry logs of all bookies."""
        return [
            f"{machine.name}:{directory / name}"
            for machine in self._cluster.bookies
            if machine.lost is None
            for directory in self._cluster.plan.bookie.ledger_directories
            for name in machine.disk.list(directory)
            if name.endswith(LOG_SUFFIX)
        ]

    def _not_back(self, machine: BookieMachine) -> str | None:
        if not machine.serving or machine.bookie is None:
            return None if machine.lost is not None else "it does not serve"
        if machine.bookie.read_only:
            return "it is still read-only"
        if not self._cluster.metadata.has(f"/ledgers/available/{machine.name}"):
            return "it is not registered as taking entries"
        return None

    def _space_not_back(self, machine: BookieMachine) -> str | None:
        for key, _ in _named(machine):
            if not self._cluster.has_ledger(key[0]):
                return f"its index names entry {_of(key)} of a deleted ledger"
        config = self._cluster.plan.bookie
        for directory in config.ledger_directories:
            newest = True
            for log in reversed(list(_logs(machine, directory))):
                if not log.footer and newest:
                    newest = False
                    continue
                live = sum(n for ledger, n in log.sizes.items() if self._cluster.has_ledger(ledger))
                if not live:
                    whole = "" if log.footer else ", without footer,"
                    return f"{log.path}{whole} holds nothing that lives: {log.sizes}"
                share = config.compaction_major_percent / 100
                if live < share * log.byte_count and live <= config.entry_log_bytes_max:
                    whole = "" if log.footer else ", without footer,"
                    return f"{log.path}{whole} has {live} live of {log.byte_count} bytes"
        return None


class _Place(NamedTuple):
    path: Path
    log_id: int
    offset: int


def _named(machine: BookieMachine) -> Iterator[tuple[Key, _Place]]:
    """What the bookie's indexes name."""
    for path, data in machine.disk.indexes.items():
        for key, (log_id, offset) in data.rows.items():
            yield key, _Place(log_path(path.parent, log_id), log_id, offset)


def _key_of(entry: bytes) -> Key:
    return int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:16], "big")


def _of(key: Key) -> str:
    return f"{key[0]}:{key[1]}"


class _Log(NamedTuple):
    """``sizes``: ledger id -> bytes of its records."""

    path: Path
    footer: bool
    byte_count: int
    sizes: dict[int, int]


def _logs(machine: BookieMachine, directory: Path) -> Iterator[_Log]:
    """The entry logs whose records can be told."""
    for log_id in log_ids(machine.disk.list(directory)):
        path = log_path(directory, log_id)
        data = machine.disk.content(path)
        assert data is not None
        footer = decode_footer(log_id, data, 0)
        end = len(data) if footer is None else footer.offset
        sizes, pos = _sizes(data, end, seed_of(log_id))
        if pos == end:
            yield _Log(path, footer is not None, end - HEADER_BYTES, sizes)


def _sizes(data: bytes, end: int, seed: int) -> tuple[dict[int, int], int]:
    """Ledger id -> bytes, as far as the lengths of records and holes lead; and how far that is."""
    sizes: dict[int, int] = {}
    pos = HEADER_BYTES
    while pos + RECORD_HEADER_BYTES + ENTRY_HEADER_BYTES <= end:
        size = RECORD_HEADER_BYTES + record_length(data[pos : pos + 4])
        if size < RECORD_HEADER_BYTES + ENTRY_HEADER_BYTES or pos + size > end:
            break
        if not hole_bytes(data, pos, seed):
            key = _key_of(data[pos + RECORD_HEADER_BYTES : pos + RECORD_HEADER_BYTES + 16])
            sizes[key[0]] = sizes.get(key[0], 0) + size
        pos += size
    return sizes, pos
