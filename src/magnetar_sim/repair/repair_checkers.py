"""What must hold of repair, whatever fails. In prose; the code below says the same.

With every write of the metadata store:

1. *Named and there.* A bookie that is named for entries that are final (``repair.copies``), in
   place of another, has all of them, durably. So no entry has fewer copies because of a repair.
2. *Only who holds them changes.* Of a closed ledger nothing but the bookies of fragments changes;
   of one that is not, no more than its writer and its recoveries may do.
3. *Whole when it is said.* A mark is taken away only of a ledger that was deleted, or of which
   every final entry is at each bookie that the metadata names for it, and the open fragment names
   nobody who is lost. (A bookie that was lost, or fell silent, so shortly before that nobody could
   know yet is excused, unless the mark itself names it. So is one that is to be emptied, unless the
   mark was written, naming it, since that was said.)

4. *Nobody's copies.* A bookie deletes its copies of a ledger only while the ledger is closed, and
   names it nowhere.

When all has healed, in bounded time:

5. *It ends.* Nothing is marked any more, no bookie holds copies that nobody names, no ledger names
   a bookie that is lost or silent, and every entry of every ledger can be read, as it was written,
   from each of the Qw bookies that are named for it. Then the next bookie is lost, and all of this
   must come true again: what was called whole and was not is lost now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from magnetar.ledger.catalog.metadata import DEFAULT_ROOT
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.copies import is_superfluous, parts_of
from magnetar.repair.switches import LEAVING
from magnetar.wire.bookie.metadata import decode_ledger_metadata
from magnetar.wire.bookie.metadata_layout import LedgerLayout, ledger_id_of, ledger_path
from magnetar.wire.bookie.underreplication import DIRECTORY, decode_shortage, ledger_of_node
from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.cluster.cluster_checkers import MetadataChecker, describe, forbidden_change
from magnetar_sim.world.scheduler import SimulationError

MARKS = f"{DEFAULT_ROOT}/{DIRECTORY}/ledgers/"
LOCKS = f"{DEFAULT_ROOT}/{DIRECTORY}/locks/"


class RepairChecker(MetadataChecker):
    """Watches the store itself. ``unknowable_s``: for so long after a loss nobody needs to know of
    it. ``stepped`` is called with each step of a repair, by its name."""

    def __init__(self, cluster: Cluster, unknowable_s: float) -> None:
        super().__init__(cluster)
        self.lost_s: dict[str, float] = {}
        """Bookies that are lost for good, and since when."""
        self.silent_s: dict[str, float] = {}
        """Bookies that nobody hears from, and since when."""
        self.leaving: str | None = None
        """A bookie that must be emptied."""
        self.stepped: Callable[[str], None] = lambda what: None
        self.rewritten: Callable[[LedgerMetadata], None] = lambda metadata: None
        """Called when the metadata of a ledger is written as it was."""
        self._leaving: dict[str, None] = {}
        self._told_leaving: dict[str, tuple[str, ...]] = {}
        """Mark -> those that it names, and that were to be emptied when it was written."""
        self._cluster = cluster
        self._unknowable_s = unknowable_s

    def forbidden(self, old: LedgerMetadata, new: LedgerMetadata) -> str | None:
        return _forbidden(old, new) or self._unnamed_copies(old, new)

    def _written(self, path: str, before: bytes | None, after: bytes | None) -> None:
        super()._written(path, before, after)
        if path.startswith(LOCKS):
            self.stepped("a lock is taken" if after is not None else "a lock goes")
        elif path.startswith(MARKS):
            ledger_id = ledger_of_node(path.rpartition("/")[2])
            if ledger_id is None:
                return  # a directory of marks
            if after is None:
                self._unmarked(ledger_id, before or b"", self._told_leaving.pop(path, ()))
            else:
                named = decode_shortage(after, path).bookies
                self._told_leaving[path] = tuple(each for each in named if each in self._leaving)
                self._cluster.count("ledgers marked")
                self._cluster.trace.note("store", f"ledger {ledger_id} is marked: {after!r}")
                self.stepped("a ledger is marked")
        elif ledger_id_of(LedgerLayout.HIERARCHICAL, path.removeprefix(DEFAULT_ROOT)) is not None:
            self.stepped("the metadata of a ledger is written")
            if before is not None and before == after:
                self.rewritten(decode_ledger_metadata(0, before))
        elif path.startswith(f"{LEAVING}/"):
            self._said(path.removeprefix(f"{LEAVING}/"), leaves=after is not None)

    def _said(self, name: str, leaves: bool) -> None:
        """By the operator."""
        if leaves:
            self._leaving[name] = None
        else:
            self._leaving.pop(name, None)
            for path, names in self._told_leaving.items():
                self._told_leaving[path] = tuple(each for each in names if each != name)

    # -- 1 ------------------------------------------------------------------------------------

    def _unnamed_copies(self, old: LedgerMetadata, new: LedgerMetadata) -> str | None:
        firsts = {one.first_entry_id: one for one in new.fragments}
        for part in parts_of(old):
            now = firsts.get(part.fragment.first_entry_id)
            if now is None or now == part.fragment:
                continue
            self._cluster.count("fragments repaired")
            for entry_id in part.entry_ids:
                fresh = set(new.write_set(entry_id)) - set(old.write_set(entry_id))
                for name in sorted(fresh):
                    if not self._holds(name, new.ledger_id, entry_id):
                        return f"{name} is named for entry {entry_id}, and does not have it"
        return None

    def _holds(self, name: str, ledger_id: int, entry_id: int) -> bool:
        """Whether the bookie has the entry, durably; one whose loss is young is believed."""
        machine = self._cluster.bookie(name)
        if name in self.lost_s:
            return self._is_young(name)
        key = (ledger_id, entry_id)
        return key in machine.durable or machine.may_hold(ledger_id, entry_id)

    def _is_gone(self, name: str) -> bool:
        """For so long that somebody knows."""
        since_s = {**self.silent_s, **self.lost_s}.get(name)
        return since_s is not None and self._cluster.loop.time() - since_s >= self._unknowable_s

    def _is_young(self, name: str) -> bool:
        return self._cluster.loop.time() - self.lost_s[name] < self._unknowable_s

    # -- 3 ------------------------------------------------------------------------------------

    def _unmarked(self, ledger_id: int, mark: bytes, leaving: Sequence[str]) -> None:
        self._cluster.count("ledgers declared whole")
        self._cluster.trace.note("store", f"ledger {ledger_id} is not marked any more")
        self.stepped("a ledger is declared whole")
        metadata = self.stored(ledger_id)
        if metadata is None:
            return
        named = {name for one in metadata.fragments for name in one.bookies}
        told = [name for name in decode_shortage(mark, "mark").bookies if name in named]
        lost = [name for name in told if name in self.lost_s]
        problem = f"the mark says that {lost} are lost" if lost else None
        final = {name for part in parts_of(metadata) for name in part.fragment.bookies}
        emptied = [name for name in leaving if name in final]
        if emptied:
            problem = f"the mark says that {emptied} are to be emptied; {describe(metadata)}"
        problem = problem or next(self.lacks(metadata), None)
        if problem is not None:
            self.problem = self.problem or f"ledger {ledger_id} is declared whole, and {problem}"

    def stored(self, ledger_id: int) -> LedgerMetadata | None:
        """The truth; None: it was deleted."""
        path = DEFAULT_ROOT + ledger_path(LedgerLayout.HIERARCHICAL, ledger_id)
        if not self._cluster.metadata.has(path):
            return None
        return decode_ledger_metadata(ledger_id, self._cluster.metadata.get(path).value)

    def lacks(self, metadata: LedgerMetadata) -> Iterator[str]:
        """What the ledger lacks, in words."""
        for part in parts_of(metadata):
            for name in part.fragment.bookies:
                if self._is_gone(name):
                    yield f"{name}, which is lost or silent, is named; {describe(metadata)}"
            for entry_id in part.entry_ids:
                for name in metadata.write_set(entry_id):
                    if not self._holds(name, metadata.ledger_id, entry_id):
                        yield f"{name} lacks entry {entry_id}; {describe(metadata)}"
        if not metadata.closed:
            for name in metadata.fragments[-1].bookies:
                if self._is_gone(name):
                    yield f"{name}, which is gone, is to get the next entry; {describe(metadata)}"

    # -- 4 ------------------------------------------------------------------------------------

    def gives_up(self, name: str, ledger_id: int) -> None:
        """A bookie is about to delete its copies of a ledger."""
        machine, metadata = self._cluster.bookie(name), self.stored(ledger_id)
        self._cluster.count("ledgers given up")
        self._cluster.trace.note(name, f"gives up ledger {ledger_id}")
        for key in [key for key in machine.durable if key[0] == ledger_id]:
            del machine.durable[key]
        self.stepped("a ledger is given up")
        if metadata is not None and not (
            metadata.closed and is_superfluous(metadata, BookieId(name))
        ):
            self.problem = self.problem or f"{name} gives up what it is named for: " + describe(
                metadata
            )

    # -- 5 ------------------------------------------------------------------------------------

    @property
    def marked(self) -> list[str]:
        paths = self._cluster.metadata.paths()
        return [path for path in paths if path.startswith(MARKS) and "/urL" in path]

    def check_whole(self, ledger_id: int) -> None:
        metadata = self.stored(ledger_id)
        problem = None if metadata is None else next(self.lacks(metadata), None)
        if problem is not None:
            raise SimulationError(f"ledger {ledger_id} was repaired, and {problem}")


def _forbidden(old: LedgerMetadata, new: LedgerMetadata) -> str | None:
    """2."""
    if not old.closed:
        return forbidden_change(old, new)
    same = (
        old.state is new.state
        and (old.last_entry_id, old.length) == (new.last_entry_id, new.length)
        and [one.first_entry_id for one in old.fragments]
        == [one.first_entry_id for one in new.fragments]
        and all(len(set(one.bookies)) == new.ensemble_size for one in new.fragments)
    )
    return None if same else f"a closed ledger changes: {describe(old)} -> {describe(new)}"
