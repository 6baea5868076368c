"""Reads confirmed entries of a ledger, from any replica that has them sound.

Rules:

* Only entries up to ``last_add_confirmed`` are read.
* Every entry's digest is verified; a corrupt copy counts as a refusal of its bookie, and the next
  replica is asked.
* Of an ensemble that holds every entry everywhere (E = Qw) one bookie serves a reader, a few batch
  reads ahead of it; which one is spread by ledger id and stays the same. With striping (E > Qw)
  each run of ``Qw`` ids goes to the one bookie that holds all of it, several runs at once.
* Bookies that failed or were slow lately are asked last, and those of the client's own zone
  before others (``read_order``); a replica that
  lets a read wait past a bound does not stop it: the next is asked as well (``hedging``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import Final, NamedTuple

from magnetar.config import LedgerConfig
from magnetar.env.tasks import TaskScope, awaited
from magnetar.ledger.bookies import BookiePool, ReadFlag
from magnetar.ledger.reading.hedged_read import first_answer
from magnetar.ledger.reading.read_order import IsNear, ReadPolicy
from magnetar.ledger.replies import Refusal, listing, reply
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BookieIOError,
    DigestError,
    EntryDamagedError,
    LedgerError,
    NoEntryError,
    NoLedgerError,
)
from magnetar.model.ids import BookieId, EntryId, LedgerId
from magnetar.model.ledger import Fragment, LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest

STRIPED_RUNS = 16
"""Runs of a striped ledger read at once."""
PIPELINED_RUNS = 3
"""Runs read at once from one bookie: while one is verified the next is on its way and the one
after it comes from the disk."""
RUN_BYTES = 1 << 20
"""Of one request. What it costs beside its bytes, in both processes, is as much as that of half of
them; more at once would only lie in memory for longer."""


LOST: Final = (BookieIOError, DigestError, NoEntryError, NoLedgerError)
"""What a bookie says that does not have the entry, or not sound. (Of a disk that gives nothing, the
entry may come back with it.)"""


class _Sound(NamedTuple):
    """What a replica gave: at least one entry, all sound."""

    entries: list[Entry]


def read_policy(config: LedgerConfig, is_near: IsNear | None = None) -> ReadPolicy:
    """What the readers of one client share."""
    floor_s, ceiling_s = config.read_hedge_floor_ms / 1000, config.read_hedge_ceiling_ms / 1000
    return ReadPolicy(floor_s, ceiling_s, is_near)


class LedgerReader:
    """Reads one ledger up to ``last_add_confirmed``. Made by ``LedgerClient``.

    ``policy`` is what the client's readers know of the bookies; ``avoid`` is a bookie that is
    never asked (it lacks what is read). ``run_bytes``: of one request to a bookie, about; more for
    who reads all of a ledger. ``urgent``: bookies serve its reads before
    others, and do not let them yield to adds.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        last_add_confirmed: EntryId,
        pool: BookiePool,
        config: LedgerConfig,
        policy: ReadPolicy | None = None,
        avoid: BookieId | None = None,
        run_bytes: int = RUN_BYTES,
        urgent: bool = False,
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
        self._run_bytes = run_bytes
        self._flags = ReadFlag.HIGH_PRIORITY if urgent else ReadFlag.NONE

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

        Raises ``NoEntryError`` when every replica says it has no such entry, ``EntryDamagedError``
        when none has it sound, ``LedgerError`` when none of those that answered gave it; all
        name the bookies and what each said.
        """
        if first_entry_id < 0:
            raise ValueError(f"ledger {self.ledger_id}: entry {first_entry_id}; ids begin at 0")
        last = min(first_entry_id + max_entries - 1, self.last_add_confirmed)
        entries: list[Entry] = []
        room = max_bytes
        # What has no room for another entry is not worth a request.
        while first_entry_id <= last and (room >= max(1, self._entry_bytes) or not entries):
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
            found_bytes = sum([len(entry.data) for entry in found])
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
        """Run by run, some of them under way at once; up to the first hole."""
        runs = self._runs(fragment, first, last, max_bytes)
        if len(runs) == 1:
            return await self._read_run(fragment, runs[0], max_bytes)
        at_once = PIPELINED_RUNS if self._everywhere(fragment) else STRIPED_RUNS
        scope = TaskScope(f"read-of-{self.ledger_id}", awaited(by="LedgerReader._joined"))
        try:
            return await self._joined(fragment, runs, at_once, max_bytes, scope)
        finally:
            await scope.close()

    def _everywhere(self, fragment: Fragment) -> bool:
        """Whether each bookie of the fragment holds every entry of it."""
        return len(fragment.bookies) == self.metadata.write_quorum

    def _runs(
        self, fragment: Fragment, first: EntryId, last: EntryId, max_bytes: int
    ) -> list[range]:
        """What to ask bookies for, one run each: of about ``run_bytes``, or with striping as long
        as one bookie holds all of it; together no more than ``max_bytes``, by the size of the
        entries read last. One run while that is not known."""
        known_bytes = self._entry_bytes
        everywhere = self._everywhere(fragment)
        count = max(1, self._run_bytes // known_bytes) if known_bytes else last - first + 1
        if not everywhere:
            count = self.metadata.write_quorum
        whole = max(1, max_bytes // known_bytes) if known_bytes else count
        last = min(last, first + max(whole, 1 if everywhere else count) - 1)
        return [range(at, min(at + count, last + 1)) for at in range(first, last + 1, count)]

    async def _joined(
        self,
        fragment: Fragment,
        runs: Sequence[range],
        at_once: int,
        max_bytes: int,
        scope: TaskScope,
    ) -> list[Entry]:
        """The entries of the runs, up to the first hole. Raises the error of the first run."""
        left = iter(runs)
        waiting: deque[tuple[range, asyncio.Task[list[Entry] | LedgerError | NoEntryError]]]
        waiting = deque()
        entries: list[Entry] = []
        while True:
            for run in islice(left, at_once - len(waiting)):
                reading = self._run_or_error(fragment, run, max_bytes)
                waiting.append((run, scope.spawn(reading, f"from-{run.start}")))
            if not waiting:
                return entries
            run, task = waiting.popleft()
            found = await task
            if isinstance(found, LedgerError | NoEntryError):
                if entries:
                    return entries
                raise found
            entries += found
            if len(found) < len(run):
                return entries

    async def _run_or_error(
        self, fragment: Fragment, run: range, max_bytes: int
    ) -> list[Entry] | LedgerError | NoEntryError:
        try:
            return await self._read_run(fragment, run, max_bytes)
        except (LedgerError, NoEntryError) as error:
            return error

    async def _read_run(self, fragment: Fragment, run: range, max_bytes: int) -> list[Entry]:
        """At least one entry from the first on, of the first replica that gives a sound one."""
        found = await first_answer(
            self._replicas(fragment, run.start),
            lambda bookie_id: self._ask(bookie_id, run.start, len(run), max_bytes),
            self._policy,
        )
        if isinstance(found, _Sound):
            return found.entries
        raise self._unreadable(run.start, found)

    def _replicas(self, fragment: Fragment, first: EntryId) -> list[BookieId]:
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
        answer = client.read_batch(self.ledger_id, first, max_entries, max_bytes, self._flags)
        found = await reply(bookie_id, answer, self._timeout_s)
        if isinstance(found, Refusal):
            return found
        return self._sound_prefix(bookie_id, first, found[:max_entries])

    def _sound_prefix(
        self, bookie_id: BookieId, first: EntryId, data: Sequence[bytes | memoryview]
    ) -> _Sound | Refusal:
        """The entries before the first corrupt one; a refusal if that is the first."""
        sound = self._digest.sound_count(data, first)
        if sound:
            ledger_id, offset = self.ledger_id, self._digest.payload_offset
            ids = range(first, first + sound)
            made = map(Entry, repeat(ledger_id), ids, data, repeat(offset))
            return _Sound(list(made))
        if not data:
            return Refusal(bookie_id, NoEntryError("an empty answer"))
        try:
            self._digest.verify(data[0], first)
        except DigestError as error:
            return Refusal(bookie_id, error)
        raise AssertionError("an entry is sound for one and not for the other")

    def _unreadable(
        self, entry_id: EntryId, refusals: Sequence[Refusal]
    ) -> LedgerError | NoEntryError:
        told = listing(refusals)
        if all(isinstance(r.error, NoLedgerError) for r in refusals):
            return NoEntryError(
                f"no replica knows the ledger of entry {self.ledger_id}:{entry_id} ({told}); it "
                "was deleted, unless the metadata store still has it"
            )
        if all(isinstance(r.error, NoEntryError | NoLedgerError) for r in refusals):
            return NoEntryError(f"no replica has entry {self.ledger_id}:{entry_id} ({told})")
        if all(isinstance(r.error, LOST) for r in refusals):
            return EntryDamagedError(
                f"no replica has a sound copy of entry {self.ledger_id}:{entry_id} ({told})"
            )
        return LedgerError(
            f"no replica gave entry {self.ledger_id}:{entry_id} ({told}); bring one of them back"
        )
