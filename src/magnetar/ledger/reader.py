"""Reads confirmed entries of a ledger, from any replica that has them sound.

Rules:

* Only entries up to ``last_add_confirmed`` are read.
* Every entry's digest is verified; a corrupt copy counts as a refusal of its bookie, and the next
  replica is asked.
* Of an ensemble that holds every entry everywhere (E = Qw) one bookie serves a whole batch; which
  one is spread by ledger id and stays the same, for its read-ahead. With striping (E > Qw) each
  run of ``Qw`` ids goes to the one bookie that holds all of it, several runs at once.
* Bookies that failed or were slow lately are asked last (``ledger.read_order``); a replica that
  lets a read wait past a bound does not stop it: the next is asked as well (``ledger.hedging``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.hedged_read import first_answer
from magnetar.ledger.read_order import ReadPolicy
from magnetar.ledger.replies import Refusal, listing, reply
from magnetar.model.entry import Entry
from magnetar.model.errors import DigestError, LedgerError, NoEntryError, NoLedgerError
from magnetar.model.ids import BookieId, EntryId, LedgerId
from magnetar.model.ledger import Fragment, LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest

PARALLEL_RUNS = 16
"""Runs of a striped ledger read at once."""


class _Sound(NamedTuple):
    """What a replica gave: at least one entry, all sound."""

    entries: list[Entry]


def read_policy(config: LedgerConfig) -> ReadPolicy:
    """What the readers of one client share."""
    return ReadPolicy(config.read_hedge_floor_ms / 1000, config.read_hedge_ceiling_ms / 1000)


class LedgerReader:
    """Reads one ledger up to ``last_add_confirmed``. Made by ``LedgerClient``.

    ``policy`` is what the client's readers know of the bookies; ``avoid`` is a bookie that is
    never asked (it lacks what is read).
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        last_add_confirmed: EntryId,
        pool: BookiePool,
        config: LedgerConfig,
        policy: ReadPolicy | None = None,
        avoid: BookieId | None = None,
    ) -> None:
        self.metadata = metadata
        self.last_add_confirmed = last_add_confirmed
        self.ledger_id: LedgerId = metadata.ledger_id
        self._pool = pool
        self._timeout_s = config.read_timeout_ms / 1000
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._entry_bytes = 0  # of the entries read last, on average
        self._policy = policy or read_policy(config)
        self._avoid = avoid

    @property
    def closed(self) -> bool:
        """Whether nothing will ever follow ``last_add_confirmed``."""
        return self.metadata.closed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 while it is open (the store does not know)."""
        return self.metadata.length

    async def read(self, first_entry_id: EntryId, max_entries: int, max_bytes: int) -> list[Entry]:
        """Consecutive entries from ``first_entry_id`` on: at least one and at most
        ``max_entries``, about ``max_bytes`` of whole entries; none past the last confirmed.
        What comes before an unreadable entry is given; asking for that one tells.

        Raises ``NoEntryError`` when every replica says it has no such entry, ``LedgerError`` when
        no replica gave a sound copy; both name the bookies and what each said.
        """
        if first_entry_id < 0:
            raise ValueError(f"ledger {self.ledger_id}: entry {first_entry_id}; ids begin at 0")
        last = min(first_entry_id + max_entries - 1, self.last_add_confirmed)
        entries: list[Entry] = []
        room = max_bytes
        while first_entry_id <= last and (room > 0 or not entries):
            fragment = self.metadata.fragment_of(first_entry_id)
            end = min(last, self.fragment_end(first_entry_id))
            try:
                found = await self._read_fragment(fragment, first_entry_id, end, max(room, 1))
            except (LedgerError, NoEntryError):
                if entries:
                    break
                raise
            entries += found
            first_entry_id += len(found)
            found_bytes = sum(len(entry.data) for entry in found)
            room -= found_bytes
            self._entry_bytes = found_bytes // len(found)
        return entries

    async def read_range(self, first_entry_id: EntryId, last_entry_id: EntryId) -> list[Entry]:
        """All entries from first to last, inclusive; the caller bounds their bytes.
        Raises as ``read``, and ``ValueError`` past the last confirmed entry."""
        if last_entry_id > self.last_add_confirmed:
            raise ValueError(
                f"ledger {self.ledger_id}: entry {last_entry_id} is past the last confirmed "
                f"({self.last_add_confirmed})"
            )
        entries: list[Entry] = []
        while (following := first_entry_id + len(entries)) <= last_entry_id:
            entries += await self.read(following, last_entry_id - following + 1, 1 << 22)
        return entries

    async def read_last(self) -> Entry | None:
        """The last confirmed entry, with one read; None if there is none. Raises as ``read``."""
        last = self.last_add_confirmed
        return (await self.read(last, 1, 1))[0] if last >= 0 else None

    def fragment_end(self, entry_id: EntryId) -> EntryId:
        """The last confirmed entry of the fragment that holds ``entry_id``."""
        for fragment in self.metadata.fragments:
            if fragment.first_entry_id > entry_id:
                return fragment.first_entry_id - 1
        return self.last_add_confirmed

    async def _read_fragment(
        self, fragment: Fragment, first: EntryId, last: EntryId, max_bytes: int
    ) -> list[Entry]:
        write_quorum = self.metadata.write_quorum
        if len(fragment.bookies) == write_quorum:
            return await self._read_run(fragment, first, last, max_bytes)
        starts = range(first, last + 1, write_quorum)[: self._runs_at_once(max_bytes)]
        ends = [min(start + write_quorum - 1, last) for start in starts]
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(self._run_or_error(fragment, start, end, max_bytes))
                for start, end in zip(starts, ends, strict=True)
            ]
        return _joined(starts, [run.result() for run in runs])

    def _runs_at_once(self, max_bytes: int) -> int:
        """As many as ``max_bytes`` hold by the size of the entries read last; one at first."""
        if not self._entry_bytes:
            return 1
        runs = max_bytes // (self._entry_bytes * self.metadata.write_quorum)
        return min(max(runs, 1), PARALLEL_RUNS)

    async def _run_or_error(
        self, fragment: Fragment, first: EntryId, last: EntryId, max_bytes: int
    ) -> list[Entry] | LedgerError | NoEntryError:
        try:
            return await self._read_run(fragment, first, last, max_bytes)
        except (LedgerError, NoEntryError) as error:
            return error

    async def _read_run(
        self, fragment: Fragment, first: EntryId, last: EntryId, max_bytes: int
    ) -> list[Entry]:
        """At least one entry from ``first`` on, of the first replica that gives a sound one."""
        found = await first_answer(
            self._replicas(fragment, first, last),
            lambda bookie_id: self._ask(bookie_id, first, last - first + 1, max_bytes),
            self._policy,
        )
        if isinstance(found, _Sound):
            return found.entries
        raise self._unreadable(first, found)

    def _replicas(self, fragment: Fragment, first: EntryId, last: EntryId) -> list[BookieId]:
        """Who holds ``first``, best first: those that hold the longest run from it on, spread by
        ledger, bookies that refused lately last."""
        bookies, quorum = fragment.bookies, self.metadata.write_quorum
        size = len(bookies)
        if size == quorum:
            order = [bookies[(self.ledger_id + i) % size] for i in range(size)]
        else:
            # The slot first + k holds first .. first + k: the longest run is that of k = Qw - 1.
            # A shorter run may be served by several; any of them will do.
            order = [bookies[(first + k) % size] for k in reversed(range(quorum))]
        now_s = asyncio.get_running_loop().time()
        return self._policy.order.order([b for b in order if b != self._avoid], now_s)

    async def _ask(
        self, bookie_id: BookieId, first: EntryId, max_entries: int, max_bytes: int
    ) -> _Sound | Refusal:
        client = self._pool.client(bookie_id)
        answer = client.read_batch(self.ledger_id, first, max_entries, max_bytes)
        found = await reply(bookie_id, answer, self._timeout_s)
        if isinstance(found, Refusal):
            return found
        return self._sound_prefix(bookie_id, first, found[:max_entries])

    def _sound_prefix(
        self, bookie_id: BookieId, first: EntryId, data: Sequence[bytes]
    ) -> _Sound | Refusal:
        """The entries before the first corrupt one; a refusal if that is the first."""
        entries: list[Entry] = []
        offset = self._digest.payload_offset
        for entry_id, entry in enumerate(data, first):
            try:
                self._digest.verify(entry, entry_id)
            except DigestError as error:
                return _Sound(entries) if entries else Refusal(bookie_id, error)
            entries.append(Entry(self.ledger_id, entry_id, entry, offset))
        if not entries:
            return Refusal(bookie_id, NoEntryError("an empty answer"))
        return _Sound(entries)

    def _unreadable(
        self, entry_id: EntryId, refusals: Sequence[Refusal]
    ) -> LedgerError | NoEntryError:
        told = listing(refusals)
        if all(isinstance(r.error, NoEntryError | NoLedgerError) for r in refusals):
            return NoEntryError(f"no replica has entry {self.ledger_id}:{entry_id} ({told})")
        return LedgerError(
            f"no replica gave entry {self.ledger_id}:{entry_id} ({told}); bring one of them back"
        )


def _joined(starts: range, runs: Sequence[list[Entry] | LedgerError | NoEntryError]) -> list[Entry]:
    """The runs as one list, up to the first hole. Raises the error of the first run."""
    entries: list[Entry] = []
    for start, run in zip(starts, runs, strict=True):
        if isinstance(run, LedgerError | NoEntryError):
            if entries:
                break
            raise run
        if start != starts[0] + len(entries):
            break
        entries += run
    return entries
