"""The writer and the recoveries of a simulated ledger: the shells around the deciding machines.

They do what ``writer``, ``ensemble_change`` and ``recovery`` of ``ledger`` do, with scheduled
calls in place of asyncio, and with the machines given as ``Parts``, so that a test can
plant a bug in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from magnetar.ledger.mending.missing_entries import MissingEntries
from magnetar.ledger.placing.placement import (
    choose_replacements,
    replaced_fragments,
    without_empty_tail,
)
from magnetar.ledger.recovering.recovery_plan import Decision, EntryVote, LacCoverage, RecoveryScan
from magnetar.ledger.writing.quorum_write import (
    FailureKind,
    FailureVerdict,
    QuorumWrite,
    Resend,
    WriteState,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar_sim.machines.bookies import Answer, Lac, Link, Reply, SimBookie, Stored, Weather
from magnetar_sim.machines.store import SimStore
from magnetar_sim.world.scheduler import Scheduler

RECOVERY_WINDOW = 4


@dataclass(frozen=True)
class Parts:
    """The machines of a run."""

    quorum_write: type[QuorumWrite] = QuorumWrite
    lac_coverage: type[LacCoverage] = LacCoverage
    entry_vote: type[EntryVote[Stored]] = EntryVote
    recovery_scan: type[RecoveryScan[Stored]] = RecoveryScan
    missing_entries: type[MissingEntries] = MissingEntries
    fencing_reads: bool = True


class Cluster:
    """Bookies, store and machines of a run; makes links."""

    def __init__(
        self,
        scheduler: Scheduler,
        names: Sequence[BookieId],
        metadata: LedgerMetadata,
        parts: Parts,
    ) -> None:
        self.scheduler = scheduler
        self.bookies = {name: SimBookie(name) for name in names}
        self.weather = Weather(scheduler)
        self.store = SimStore(scheduler, metadata, self.weather)
        self.parts = parts

    def links(self) -> dict[BookieId, Link]:
        """A client's own connections."""
        return {
            name: Link(self.scheduler, bookie, self.weather)
            for name, bookie in self.bookies.items()
        }

    def available(self) -> list[BookieId]:
        """Who is registered: now and then one that is already down."""
        return [
            name for name, bookie in self.bookies.items() if bookie.up or self.scheduler.chance(0.1)
        ]


class Appender:
    """Sends entries through a quorum write machine and heals its ensemble."""

    recovery = False

    def __init__(
        self, cluster: Cluster, name: str, metadata: LedgerMetadata, version: int, first_lac: int
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.scheduler = cluster.scheduler
        self.metadata = metadata
        self.version = version
        self.alive = True
        self.pending: dict[int, Stored] = {}
        self.machine = cluster.parts.quorum_write(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, first_lac
        )
        self.missing = cluster.parts.missing_entries()
        self.links = cluster.links()
        self._told = first_lac
        self._healing = False
        self._failed: set[BookieId] = set()

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        return self.metadata.fragments[-1].bookies

    def lac_to_tell(self) -> int:
        """The LAC that entries carry."""
        return self.machine.last_add_confirmed

    def append(self, tokens: Sequence[int]) -> None:
        lac = self.lac_to_tell()
        first = self.machine.pushed(len(tokens))
        for entry_id, token in enumerate(tokens, first):
            self.pending[entry_id] = Stored(token, lac)
        entry_ids = range(first, first + len(tokens))
        for slot in range(len(self.bookies)):
            if self.machine.up(slot):
                own = self.machine.stripe(slot, entry_ids)
                self._send(Resend(slot, self.machine.epoch(slot), own))

    def _send(self, resend: Resend) -> None:
        slot, epoch, entry_ids = resend
        if not entry_ids:
            return
        entries = [self.pending[entry_id] for entry_id in entry_ids]
        name, recovery = self.bookies[slot], self.recovery
        self.links[name].request(
            lambda bookie: bookie.add(entry_ids, entries, recovery),
            partial(self._answered, slot, epoch, name, entry_ids),
        )

    def _answered(
        self, slot: int, epoch: int, name: BookieId, entry_ids: Sequence[int], reply: Reply
    ) -> None:
        if not self.alive:
            return
        if reply is Answer.DONE:
            self.machine.acknowledged(slot, entry_ids, epoch)
            self._confirm()
            return
        kind = FailureKind.FENCED if reply is Answer.FENCED else FailureKind.UNAVAILABLE
        verdict = self.machine.failed(slot, epoch, kind)
        if verdict is FailureVerdict.STOP:
            self.stop(f"fenced by {name}")
        elif verdict is FailureVerdict.CHANGE:
            self.scheduler.note(self.name, f"{name} failed adds {_span(entry_ids)}")
            self._failed.add(name)
            self._heal_soon()

    def _confirm(self) -> None:
        lac = self.machine.last_add_confirmed
        if lac > self._told:
            first, self._told = self._told + 1, lac
            confirmed = {entry_id: self.pending.pop(entry_id) for entry_id in range(first, lac + 1)}
            self.confirmed(confirmed)

    def stop(self, why: str) -> None:
        self.scheduler.note(self.name, f"stops: {why}")
        self.alive = False
        self.machine.stop()

    # -- healing ------------------------------------------------------------------------------

    def _heal_soon(self) -> None:
        if not self._healing:
            self._healing = True
            self.scheduler.after(self.scheduler.random.randint(1, 40), self._heal)

    def _heal(self) -> None:
        self._healing = False
        down = self.machine.down_slots()
        if not self.alive or not down:
            return
        excluded = dict.fromkeys(self._failed, "failed")
        replacements = choose_replacements(
            self.bookies, down, self.cluster.available(), excluded, self.scheduler.random
        )
        if not replacements:
            self._failed.clear()
            for slot in down:
                self.note_missing(slot)
                self._send(self.machine.retry(slot))
            return
        self._healing = True
        self.change(self.machine.begin_change(replacements), replacements)

    def note_missing(self, slot: int) -> None:
        """The slot's bookie is missing what was confirmed without it."""
        self.missing.add(self.bookies[slot], self.metadata.ledger_id, self.machine.lacking(slot))

    def changed(self, metadata: LedgerMetadata, version: int, slots: Sequence[int]) -> None:
        """The new ensemble counts from now on."""
        for slot in slots:
            self.note_missing(slot)
        self.metadata, self.version = metadata, version
        self._healing = False
        for resend in self.machine.change_succeeded(slots):
            self._send(resend)
        self._confirm()
        if self.machine.down_slots():
            self._heal_soon()

    # -- for subclasses -----------------------------------------------------------------------

    def confirmed(self, entries: Mapping[int, Stored]) -> None:
        raise NotImplementedError

    def change(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        raise NotImplementedError


Confirmed = Callable[[Mapping[int, Stored]], None]


class SimWriter(Appender):
    """The ledger's writer. ``acknowledged`` is its application; ``total`` payloads, then close."""

    def __init__(self, cluster: Cluster, acknowledged: Confirmed, total: int) -> None:
        super().__init__(cluster, "writer", cluster.store.metadata, 0, -1)
        self._acknowledged = acknowledged
        self._total = total
        self._closing = False

    def confirmed(self, entries: Mapping[int, Stored]) -> None:
        self.scheduler.note(self.name, f"confirmed {_span(sorted(entries))}")
        self._acknowledged(entries)
        if self.machine.last_add_confirmed == self._total - 1:
            self._close()

    def change(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        fragments = replaced_fragments(self.metadata.fragments, first_entry_id, replacements)
        wanted = replace(self.metadata, fragments=fragments)
        self.scheduler.note(self.name, f"changes the ensemble from entry {first_entry_id}")

        def written(outcome: bool | None) -> None:
            if not self.alive:
                return
            if outcome is None:
                self.cluster.store.write(wanted, self.version, written)
            elif outcome:
                self.changed(wanted, self.version + 1, list(replacements))
            else:
                self.cluster.store.read(compare)

        def compare(current: LedgerMetadata, version: int) -> None:
            if not self.alive:
                return
            if current.state is LedgerState.OPEN and current.fragments == wanted.fragments:
                self.changed(wanted, version, list(replacements))
            else:
                self.stop(f"lost the ledger ({current.state.name})")

        self.cluster.store.write(wanted, self.version, written)

    def _close(self) -> None:
        """As soon as no ensemble change is under way."""
        if self.machine.state is not WriteState.STEADY or self._closing:
            return
        self._closing = True
        for slot in range(len(self.bookies)):
            self.note_missing(slot)
        last = self.machine.last_add_confirmed
        fragments = without_empty_tail(self.metadata.fragments, last)
        wanted = replace(self.metadata, fragments=fragments).with_close(last, last + 1)
        self.stop("closing")
        self.cluster.store.write(wanted, self.version, lambda outcome: None)


class Rewriter(Appender):
    """Writes recovered entries again; its ensemble changes stay local."""

    recovery = True

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        metadata: LedgerMetadata,
        first_lac: int,
        moved: Callable[[], None],
    ) -> None:
        super().__init__(cluster, name, metadata, 0, first_lac)
        self._moved = moved
        self._first_lac = first_lac

    def lac_to_tell(self) -> int:
        """The one the recovery began with: what it confirms may be where only its close tells."""
        return self._first_lac

    def confirmed(self, entries: Mapping[int, Stored]) -> None:
        self._moved()

    def change(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        fragments = replaced_fragments(self.metadata.fragments, first_entry_id, replacements)
        self.changed(replace(self.metadata, fragments=fragments), 0, list(replacements))


class SimRecovery:
    """One client that opens the ledger: fences, recovers and closes it; again when it cannot."""

    def __init__(
        self, cluster: Cluster, name: str, ended: Callable[[LedgerMetadata], None]
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._ended = ended
        self.links = cluster.links()
        self._round = 0
        self._rewriter: Rewriter | None = None
        self.alive = True
        self._begin()

    def crash(self) -> None:
        self._cluster.scheduler.note(self._name, "crashes")
        self.alive = False
        if self._rewriter is not None:
            self._rewriter.stop("crashed")

    def _begin(self) -> None:
        self._round += 1
        self._cluster.store.read(self._live(self._claim))

    def _live(self, action: Callable[..., None]) -> Callable[..., None]:
        """``action``, unless the client has crashed or begun again meanwhile."""
        this_round = self._round

        def guarded(*arguments: object) -> None:
            if self.alive and self._round == this_round:
                action(*arguments)

        return guarded

    def _again(self, why: str) -> None:
        scheduler = self._cluster.scheduler
        scheduler.note(self._name, f"begins again: {why}")
        self._round += 1
        scheduler.after(scheduler.random.randint(50, 200), self._live(self._begin))

    def _claim(self, metadata: LedgerMetadata, version: int) -> None:
        if metadata.closed:
            self._ended(metadata)
        elif metadata.state is LedgerState.IN_RECOVERY:
            self._fence(metadata, version)
        else:
            claimed = replace(metadata, state=LedgerState.IN_RECOVERY)

            def written(outcome: bool | None) -> None:
                if outcome:
                    self._fence(claimed, version + 1)
                else:
                    self._again("the metadata changed")

            self._cluster.store.write(claimed, version, self._live(written))

    def _fence(self, metadata: LedgerMetadata, version: int) -> None:
        self._metadata, self._version = metadata, version
        self._coverage = self._cluster.parts.lac_coverage(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._fenced = False
        for slot, name in enumerate(metadata.fragments[-1].bookies):
            self.links[name].request(
                lambda bookie: bookie.read_lac(), self._live(partial(self._lac_told, slot))
            )

    def _lac_told(self, slot: int, reply: Reply) -> None:
        if self._fenced:
            return
        if isinstance(reply, Lac):
            self._coverage.answered(slot, reply.last_add_confirmed)
        else:
            self._coverage.unknown(slot)
        if self._coverage.covered:
            self._fenced = True
            self._scan_from(self._coverage.start_after(self._metadata.fragments[-1].first_entry_id))
        elif not self._coverage.possible:
            self._again("cannot fence")

    def _scan_from(self, start_after: int) -> None:
        self._cluster.scheduler.note(self._name, f"fenced; reads on after {start_after}")
        self._scan = self._cluster.parts.recovery_scan(start_after)
        self._rewriter = Rewriter(
            self._cluster, self._name, self._metadata, start_after, self._live(self._maybe_close)
        )
        self._next_read = start_after + 1
        self._votes: dict[int, EntryVote[Stored]] = {}
        self._read_on()

    def _read_on(self) -> None:
        while self._next_read < self._scan.next_entry_id + RECOVERY_WINDOW:
            entry_id = self._next_read
            self._next_read += 1
            vote = self._cluster.parts.entry_vote(
                self._metadata.write_quorum, self._metadata.ack_quorum
            )
            self._votes[entry_id] = vote
            fence = self._cluster.parts.fencing_reads
            for name in self._metadata.write_set(entry_id):
                self.links[name].request(
                    partial(SimBookie.read, entry_id=entry_id, fence=fence),
                    self._live(partial(self._told, entry_id, vote, set(), name)),
                )

    def _told(
        self, entry_id: int, vote: EntryVote[Stored], seen: set[str], name: str, reply: Reply
    ) -> None:
        if name in seen or vote.decision is not Decision.PENDING or self._scan.finished:
            return
        seen.add(name)
        if isinstance(reply, Stored):
            vote.found(reply)
        elif reply is Answer.NO_ENTRY:
            vote.negative()
        else:
            vote.unknown()
        if vote.decision is not Decision.PENDING:
            self._decided()

    def _decided(self) -> None:
        rewriter = self._rewriter
        assert rewriter is not None
        ahead = range(self._scan.next_entry_id, self._next_read)
        copies = self._scan.decided(self._votes[entry_id] for entry_id in ahead)
        if copies:
            rewriter.append([copy.token for copy in copies])
        if self._scan.blocked_at is not None:
            rewriter.stop("recovery cannot go on")
            self._again(f"entry {self._scan.blocked_at} is unknown")
        elif self._scan.end is not None:
            self._maybe_close()
        else:
            self._read_on()

    def _maybe_close(self) -> None:
        last, rewriter = self._scan.end, self._rewriter
        if last is None or rewriter is None or rewriter.machine.last_add_confirmed < last:
            return
        if rewriter.machine.state is not WriteState.STEADY:
            return
        rewriter.stop("all is written again")
        fragments = without_empty_tail(rewriter.metadata.fragments, last)
        wanted = replace(self._metadata, fragments=fragments).with_close(last, last + 1)
        self._cluster.store.write(wanted, self._version, self._live(lambda outcome: self._begin()))


def _span(entry_ids: Sequence[int]) -> str:
    if not entry_ids:
        return "nothing"
    return f"{entry_ids[0]}..{entry_ids[-1]}"
