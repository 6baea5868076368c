"""A bookie under observation: what it has promised is noted, and held against what it does.

Beside what ``cluster_checkers`` asks of ledgers, each bookie by itself promises its clients:

1. *Acknowledged is there.* No bookie says that it has no such ledger, or no such entry, of one that
   it acknowledged as durable: by an add, or by a ``force`` behind an add with deferred sync.
   (Asked at any time, ``StorageWatch``; and after every start, ``upkeep_checkers``.)
2. *Fenced stays fenced.* An add that came after the answer to a fence, and is no recovery's, is
   never acknowledged.
3. *Adds are answered.* Within ``ANSWER_S`` of the last hindrance: of the devices that the ledger
   lies on, or of the process.

Bookies whose disks the run destroyed are excused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from magnetar.bookie.bookie import DEFERRED_SYNC, FENCE, RECOVERY, Bookie
from magnetar.bookie.core import AddDone
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.replay import StartReport
from magnetar.bookie.storage.entry_runs import EntryRuns
from magnetar.config import BookieConfig
from magnetar.metrics import Metrics
from magnetar.model.entry import LacReply
from magnetar.model.errors import MagnetarError, NoEntryError, ReadOnlyBookieError
from magnetar.wire.bookie.availability import Group
from magnetar_sim.world.disk import SimDisk

ANSWER_S = 1.5
"""A flush that failed is tried again after one second."""


class Promises:
    """Of one machine's bookie, over all of its lives. ``broken`` is told which was not kept,
    ``count`` what has happened."""

    def __init__(self, broken: Callable[[str], None], count: Callable[[str], None]) -> None:
        self.durable: dict[tuple[int, int], None] = {}
        """The entries, by ledger and id, that were ever acknowledged."""
        self.fenced: dict[int, None] = {}
        self.broken = broken
        self.count = count
        self.undisturbed_s: Callable[[int], float | None] = lambda ledger_id: None
        """For how long, in seconds, nothing has hindered adds to a ledger; None: not looked at."""
        self.add_comes: Callable[[int, Sequence[bytes], bool], None] = lambda *_: None
        """Called before an add, with its ledger, entries, and whether it is with deferred sync."""
        self.listed: Callable[[int], None] = lambda ledger_id: None
        """Called as it says what it holds of a ledger."""
        self.forced: Callable[[int], None] = lambda ledger_id: None
        """Called when entries that were answered before they were durable have been forced."""
        self.forgets: Callable[[int], None] = lambda ledger_id: None
        """Called before a ledger that was deleted is forgotten, and ``has_forgotten`` after it."""
        self.has_forgotten: Callable[[int], None] = lambda ledger_id: None
        self.revived: Callable[[int], None] = lambda ledger_id: None
        """Called when a ledger that was deleted is brought back by somebody who repairs it."""
        self.now_s: Callable[[], float] = lambda: 0.0


class WitnessedBookie(Bookie):
    """A bookie on a simulated disk, whose answers are noted."""

    def __init__(
        self,
        promises: Promises,
        config: BookieConfig,
        metrics: Metrics,
        disk: SimDisk,
        started: Callable[[Bookie, StartReport], None] = lambda *_: None,
    ) -> None:
        """``started`` is called when it has started, before it serves."""
        super().__init__(config, metrics, disk, disk.open_index, lambda _seconds: None)
        self.promises = promises
        self._started = started
        self._deferred: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """Ledger -> entries that were answered before they were durable, in this life."""

    async def start(self, older: Collection[Path] = ()) -> StartReport:
        report = await super().start(older)
        self._watch(self._fences)
        self._started(self, report)
        return report

    def _watch(self, fences: Fences) -> None:
        """What is forgotten is told in the turn that does it: who waits for a lookup has not."""
        revive, mark, delete = fences.revive, fences.mark_deleted, fences.delete

        def revived(ledger: HeldLedger) -> None:
            revive(ledger)
            self.promises.revived(ledger.ledger_id)

        def marked(ledger_id: int) -> HeldLedger | None:
            self.promises.forgets(ledger_id)
            return mark(ledger_id)

        async def deleted(
            ledger_ids: Sequence[int], unless: Callable[[], bool] = lambda: False
        ) -> bool:
            if not await delete(ledger_ids, unless):
                return False
            for ledger_id in ledger_ids:
                ledger = self._table.get_loaded(ledger_id)
                if ledger is None or ledger.deleted:  # else it has been brought back meanwhile
                    self.promises.has_forgotten(ledger_id)
            return True

        fences.revive = revived  # type: ignore[method-assign]
        fences.mark_deleted = marked  # type: ignore[method-assign]
        fences.delete = deleted  # type: ignore[method-assign]

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        promises = self.promises
        began_s = promises.now_s()
        fenced = not flags & RECOVERY and ledger_id in promises.fenced
        promises.add_comes(ledger_id, entries, bool(flags & DEFERRED_SYNC))
        taken = self._deferred[ledger_id] if flags & DEFERRED_SYNC else None

        def witnessed(error: MagnetarError | None, answered: Sequence[int]) -> None:
            if error is None and taken is not None:
                taken.update(dict.fromkeys(answered))
            elif error is None:
                keys = ((ledger_id, entry_id) for entry_id in answered)
                promises.durable.update(dict.fromkeys(keys))
            if error is None and fenced:
                promises.broken(f"acknowledged an add to ledger {ledger_id}, which it had fenced")
            took_s, calm_s = promises.now_s() - began_s, promises.undisturbed_s(ledger_id)
            if took_s > ANSWER_S and calm_s is not None and calm_s > ANSWER_S:
                promises.broken(
                    f"took {took_s:.1f} s to answer an add to ledger {ledger_id}, and nothing had "
                    f"been wrong for {calm_s:.1f} s (answer: {error})"
                )
            done(error, answered)

        super().add_entries(ledger_id, master_key, entry_ids, entries, flags, witnessed)

    async def list_entries(self, ledger_id: int) -> list[Group]:
        self.promises.listed(ledger_id)
        return await super().list_entries(ledger_id)

    def has_answered(self, key: tuple[int, int]) -> bool:
        """Whether this life has answered an add of the entry before it was durable."""
        return key[1] in self._deferred.get(key[0], ())

    async def force(self, ledger_id: int) -> None:
        answered = list(self._deferred.get(ledger_id, ()))
        try:
            await super().force(ledger_id)
        except ReadOnlyBookieError:
            self.promises.count("forces that were refused for want of room")
            raise
        keys = ((ledger_id, entry_id) for entry_id in answered)
        self.promises.durable.update(dict.fromkeys(keys))
        if answered:
            self.promises.count("forces that were granted")
            self.promises.forced(ledger_id)

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        reply = await super().read_lac(ledger_id, flags, master_key)
        self._note_fence(ledger_id, flags)
        return reply

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        with self._fencing(ledger_id, flags):
            return await super().read_entry(ledger_id, entry_id, flags, master_key)

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> EntryRuns:
        with self._fencing(ledger_id, flags):
            return await super().read_batch(
                ledger_id, first_entry_id, max_entries, max_bytes, flags, master_key
            )

    @contextmanager
    def _fencing(self, ledger_id: int, flags: int) -> Iterator[None]:
        """That there is no such entry is said behind the fence as well."""
        try:
            yield
        except NoEntryError:
            self._note_fence(ledger_id, flags)
            raise
        self._note_fence(ledger_id, flags)

    def _note_fence(self, ledger_id: int, flags: int) -> None:
        if flags & FENCE:
            self.promises.fenced[ledger_id] = None
