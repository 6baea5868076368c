"""Reads every copy of every entry of a ledger, from every bookie that is to hold it (``faults``
says what is wrong with them).

* Bookies tell first what they hold, so that what is missing costs nothing to find. What they list
  is read from all of them at the same time, window by window: so much is in memory at once, and no
  more (``WINDOW_ENTRIES`` fingerprints of each bookie, ``READS_AT_ONCE`` answers of
  ``BATCH_BYTES``). ``Throttle`` bounds the pace.
* Bookies read from their entry logs, and tell nothing out of their read caches
  (``ReadFlag.STORED``; BookKeeper's own do not know it). What is in no entry log yet comes from
  memory, and lies in the journal. The kernel's page cache is not passed by.
* Only entries that are confirmed are looked at: what comes after them may still be written.
* A bookie that is silent, or busy, is asked again, and then its copies are *unchecked*: neither
  sound nor at fault. A ledger is sound when nothing was found and nothing is unchecked.
* A fault is said of a ledger whose metadata is the same after it as before: else a repair has
  worked on it meanwhile, and it is looked at anew.
* ``mend`` gives a bookie again what it holds damaged: the sound copy of another, under the same
  entry id, which takes the place of the damaged one there. Nothing is taken from the bookie, and
  the metadata stays, so that an entry has no copy fewer at any moment, whatever ends in between.
  So it is with the confirmed entries of a ledger that is still written: they never change, and
  its writer goes on beside it (docs/adr/0224-open-ledgers-get-sound-copies.md).
  What is missing is left to repair: the ledger is marked
  (docs/adr/0101-a-damaged-copy-is-given-again.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from magnetar.ledger.bookies import ReadFlag
from magnetar.ledger.given_up import GivenUp, given_up_of
from magnetar.ledger.replies import Refusal, reply
from magnetar.model.errors import (
    BookieIOError,
    MagnetarError,
    MetadataFormatError,
    NoEntryError,
    NoLedgerError,
    NoSuchLedgerError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import ListingPool
from magnetar.repair.copies import Part, own_runs, parts_of
from magnetar.repair.copying import Copier, CopyTarget, pace
from magnetar.repair.insight.explaining import Explainer
from magnetar.repair.insight.faults import (
    Fault,
    Finding,
    differing,
    fingerprint,
    joined,
    single,
)
from magnetar.repair.insight.forecast import (
    CopyLayout,
    CopyState,
    EntryFate,
    Section,
    forecast,
    sections,
    share,
)
from magnetar.repair.throttle import Throttle
from magnetar.wire.bookie.digest import EntryDigest

WINDOW_ENTRIES = 2000
BATCH_BYTES = 1 << 20
READS_AT_ONCE = 4
"""Of one ledger, from one bookie."""
ATTEMPTS = 3
RETRY_S = 1.0
NOBODY = BookieId("")
LOOKS = 3
"""At one ledger, while its metadata changes."""

_ABSENT = (NoEntryError, NoLedgerError, UnknownLedgerStateError)


class Unchecked(NamedTuple):
    """``first`` to ``last``: entries of which the bookie's copies could not be read now. With
    ``last`` -1: none of the ledger's, at no bookie, since its metadata cannot be read."""

    first: EntryId
    last: EntryId
    bookie_id: BookieId
    why: str


@dataclass
class Verified:
    """Of one ledger. ``copies`` and ``byte_count``: read and sound. ``given_up``: what an operator
    has closed it without."""

    ledger_id: int
    entries: int = 0
    copies: int = 0
    byte_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    gone: bool = False
    """It was deleted meanwhile."""
    given_up: GivenUp | None = None

    @property
    def sound(self) -> bool:
        return not self.findings and not self.unchecked


class Mended(NamedTuple):
    """``given``: copies that were replaced by sound ones, and read again. ``left``: why others were
    not. ``marked``: bookies that the ledger is marked for."""

    given: int
    marked: tuple[BookieId, ...]
    left: tuple[str, ...]


class KnownLedgers(Protocol):
    """Where ledgers lie (``ledger.catalog.seam.LedgerCatalog``, its reading part)."""

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, Any]:
        """The metadata, and what is another value when it has changed. Raises
        ``NoSuchLedgerError``, ``MetadataError``."""
        ...


class Contents(Protocol):
    """Hears what entries hold: each of which a sound copy was read, once, in their order."""

    def begin(self, ledger_id: int) -> None:
        """A ledger is looked at; when it is so again, what was heard of it does not count."""
        ...

    def look(self, payload: memoryview) -> Any:
        """What is to be remembered of a payload, for ``take``: windows are large."""
        ...

    def take(self, ledger_id: int, entry_id: EntryId, seen: Any) -> None: ...


class Verifier:
    """``timeout_s``: a bookie's time to answer. ``told`` hears of every batch: copies, bytes."""

    def __init__(
        self,
        catalog: KnownLedgers,
        pool: ListingPool,
        throttle: Throttle,
        timeout_s: float,
        told: Callable[[int, int], None] = lambda copies, byte_count: None,
        contents: Contents | None = None,
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._throttle = throttle
        self._timeout_s = timeout_s
        self._told = told
        self.contents = contents
        self._explainer = Explainer(pool, timeout_s)

    async def verify(self, ledger_id: int) -> Verified:
        """Raises ``MetadataError``."""
        for _ in range(LOOKS):
            try:
                metadata, version = await self._catalog.read(ledger_id)
                found = await self._look(metadata)
                if found.sound or (await self._catalog.read(ledger_id))[1] == version:
                    return found
            except NoSuchLedgerError:
                return Verified(ledger_id, gone=True)
            except MetadataFormatError as error:  # the others are to be looked at all the same
                why = Unchecked(0, NO_ENTRY, NOBODY, str(error))
                return Verified(ledger_id, unchecked=[why])
        return found  # it changes all the time: what is found is true of some of its versions

    async def _look(self, metadata: LedgerMetadata) -> Verified:
        layout, silent = await self._explainer.layout(metadata)
        all_sections = sections(layout)
        confirmed = [section for section in all_sections if section.confirmed]
        found = Verified(int(metadata.ledger_id), entries=layout.last_confirmed + 1)
        found.given_up = given_up_of(metadata)
        findings = [*_missing(layout, confirmed)]
        if self.contents is not None:
            self.contents.begin(int(metadata.ledger_id))
        for section in confirmed:
            self._note_silent(section, silent, found)
            for ids in _windows(section.entry_ids):
                findings += await self._window(metadata, section, ids, found)
        found.findings = joined(findings)
        return found

    def _note_silent(
        self, section: Section, silent: Mapping[BookieId, str], found: Verified
    ) -> None:
        first, last = section.entry_ids[0], section.entry_ids[-1]
        for slot, bookie in enumerate(section.fragment.bookies):
            if section.copies[slot] is CopyState.UNKNOWN:
                found.unchecked.append(Unchecked(first, last, bookie, silent[bookie]))

    async def _window(
        self, metadata: LedgerMetadata, section: Section, ids: range, found: Verified
    ) -> list[Finding]:
        """Every copy of ``ids`` that is listed."""
        seen: dict[EntryId, Any] = {}
        slots = [slot for slot, copy in enumerate(section.copies) if copy is CopyState.HELD]
        part, compared = Part(section.fragment, ids), len(slots) > 1
        reading = [
            _ShareReading(self, metadata, part, each, found, seen, compared) for each in slots
        ]
        await asyncio.gather(*(each.run() for each in reading))
        findings = [finding for each in reading for finding in each.findings]
        for entry_id in ids if compared else ():
            prints = {
                each.bookie_id: each.prints[entry_id] for each in reading if entry_id in each.prints
            }
            for bookie, why in differing(prints).items():
                findings.append(Finding(single(entry_id), bookie, Fault.DIFFERS, why))
        if self.contents is not None:
            for entry_id in sorted(seen):
                self.contents.take(int(metadata.ledger_id), entry_id, seen[entry_id])
        return findings

    async def read(
        self, metadata: LedgerMetadata, bookie_id: BookieId, ids: range
    ) -> list[bytes] | Refusal:
        """Some of ``ids``, from the first on, no faster than the throttle; asked again while the
        bookie does not say whether it has them."""
        for attempt in range(ATTEMPTS):
            client = self._pool.client(bookie_id)
            asking = client.read_batch(
                metadata.ledger_id, ids.start, len(ids), BATCH_BYTES, ReadFlag.STORED
            )
            told = await reply(bookie_id, asking, self._timeout_s)
            if not isinstance(told, Refusal):
                await pace(self._throttle, sum(map(len, told)))
                return list(map(bytes, told))
            if isinstance(told.error, (*_ABSENT, BookieIOError)) or attempt == ATTEMPTS - 1:
                return told
            await asyncio.sleep(RETRY_S)
        raise AssertionError("the last attempt returns")

    def count(self, found: Verified, copies: int, byte_count: int) -> None:
        found.copies += copies
        found.byte_count += byte_count
        self._told(copies, byte_count)

    # -- mending ------------------------------------------------------------------------------

    async def mend(
        self,
        found: Verified,
        copier: Copier,
        mark: Callable[[int, Sequence[BookieId]], Awaitable[object]],
    ) -> Mended:
        """What can be done about ``found`` without a risk. ``mark`` marks a ledger as lacking
        copies at bookies. Raises ``MetadataError``."""
        try:
            metadata, _ = await self._catalog.read(found.ledger_id)
        except NoSuchLedgerError:
            return Mended(0, (), ())
        lacking = tuple(
            dict.fromkeys(f.bookie_id for f in found.findings if f.fault is Fault.MISSING)
        )
        if lacking:
            await mark(found.ledger_id, lacking)
        left = [
            f"entry {each.entry_ids[0]} at {each.bookie_id}: {each.why}; no digest tells which is "
            "right: read both (magnetar ledger read) and decide"
            for each in found.findings
            if each.fault is Fault.DIFFERS
        ]
        given = 0
        for part, slot, ids in _damaged(metadata, found):
            count, why = await self._give(metadata, part, slot, ids, copier)
            given += count
            left += [why] if why else []
        return Mended(given, lacking, tuple(left))

    async def _give(
        self, metadata: LedgerMetadata, part: Part, slot: int, ids: range, copier: Copier
    ) -> tuple[int, str]:
        """Put sound copies in place of damaged ones; how many, or why not."""
        bookie = part.fragment.bookies[slot]
        place = f"entries {ids[0]} to {ids[-1]} at {bookie}"
        try:
            refusal = await copier.copy(metadata, part, [CopyTarget(bookie, slot, (ids,))])
        except MagnetarError as error:
            return 0, f"{place}: no other bookie has a sound copy ({error})"
        if refusal is not None:
            return 0, f"{place}: it does not take them ({refusal.error}); empty it (bookie recover)"
        again = Verified(found_id := int(metadata.ledger_id))
        reading = _ShareReading(self, metadata, Part(part.fragment, ids), slot, again, {}, False)
        await reading.run()
        if reading.findings or again.unchecked:
            return 0, f"{place}: damaged still in ledger {found_id}; empty it (bookie decommission)"
        return again.copies, ""


class _ShareReading:
    """One bookie's share of a window. ``compared``: with those of others, by ``prints``."""

    def __init__(
        self,
        verifier: Verifier,
        metadata: LedgerMetadata,
        part: Part,
        slot: int,
        found: Verified,
        seen: dict[EntryId, Any],
        compared: bool,
    ) -> None:
        self._compared = compared
        self._seen = seen  # of the whole window: whoever has an entry first looks into it
        self.bookie_id = part.fragment.bookies[slot]
        self.findings: list[Finding] = []
        self.prints: dict[EntryId, bytes] = {}
        self._verifier = verifier
        self._metadata = metadata
        self._part = part
        self._slot = slot
        self._found = found
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._turns = asyncio.Semaphore(READS_AT_ONCE)

    async def run(self) -> None:
        quorum = self._metadata.write_quorum
        runs = own_runs(self._part, self._slot, quorum, self._part.entry_ids)
        await asyncio.gather(*(self._run(run) for run in runs))
        self.findings.sort(key=lambda each: each.entry_ids.start)

    async def _run(self, ids: range) -> None:
        async with self._turns:
            while ids:
                told = await self._verifier.read(self._metadata, self.bookie_id, ids)
                if isinstance(told, Refusal):
                    if not self._refused(ids, told.error):
                        return
                    ids = ids[1:]
                else:
                    self._take(ids.start, told[: len(ids)])
                    ids = ids[len(told) :]

    def _refused(self, ids: range, error: MagnetarError) -> bool:
        """Whether the entries behind the first are worth asking for."""
        if isinstance(error, _ABSENT):
            fault, why = Fault.MISSING, "it lists the entry and does not have it"
        elif isinstance(error, BookieIOError):
            fault, why = Fault.DAMAGED, "it cannot read it"
        else:
            unchecked = Unchecked(ids[0], ids[-1], self.bookie_id, str(error))
            self._found.unchecked.append(unchecked)
            return False
        self.findings.append(Finding(single(ids.start), self.bookie_id, fault, why))
        return True

    def _take(self, first: EntryId, entries: Sequence[bytes]) -> None:
        copies = byte_count = 0
        left = list(entries)
        while left:
            count = self._digest.sound_count(left, first)
            sound = left[:count]
            self._look(first, sound)
            copies += count
            byte_count += sum(map(len, sound))
            first, left = first + count, left[count:]
            if left:
                why = "its digest is wrong"
                finding = Finding(single(first), self.bookie_id, Fault.DAMAGED, why)
                self.findings.append(finding)
                first, left = first + 1, left[1:]
        self._verifier.count(self._found, copies, byte_count)

    def _look(self, first: EntryId, sound: Sequence[bytes]) -> None:
        offset, contents = self._digest.payload_offset, self._verifier.contents
        if self._compared:
            for entry_id, entry in enumerate(sound, first):
                self.prints[entry_id] = fingerprint(entry, offset)
        if contents is not None:
            for entry_id, entry in enumerate(sound, first):
                if entry_id not in self._seen:
                    self._seen[entry_id] = contents.look(memoryview(entry)[offset:])


def _windows(ids: range) -> Iterator[range]:
    for start in range(ids.start, ids.stop, WINDOW_ENTRIES):
        yield range(start, min(start + WINDOW_ENTRIES, ids.stop))


def _missing(layout: CopyLayout, confirmed: Iterable[Section]) -> Iterator[Finding]:
    """What bookies say themselves that they do not hold."""
    metadata = layout.metadata
    for section in confirmed:
        is_open = section.fragment is metadata.fragments[-1] and not metadata.closed
        if is_open and not _below_ack_quorum(layout, section):
            continue
        size = len(section.fragment.bookies)
        for slot, copy in enumerate(section.copies):
            if copy is not CopyState.MISSING:
                continue
            bookie = section.fragment.bookies[slot]
            for ids in share(section.entry_ids, slot, size, metadata.write_quorum):
                yield Finding(ids, bookie, Fault.MISSING, "it does not list it")


def _below_ack_quorum(layout: CopyLayout, section: Section) -> bool:
    bad = (EntryFate.BELOW_ACK_QUORUM, EntryFate.LOST)
    quorum = layout.metadata.ack_quorum
    return any(
        each.fate in bad and each.copies + each.perhaps < quorum
        for each in forecast(layout, [section])
    )


def _damaged(metadata: LedgerMetadata, found: Verified) -> Iterator[tuple[Part, int, range]]:
    """What is damaged of what never changes any more, by fragment and slot."""
    for part in _confirmed_parts(metadata, found.entries):
        for each in found.findings:
            if each.fault is not Fault.DAMAGED or each.bookie_id not in part.fragment.bookies:
                continue
            start = max(each.entry_ids.start, part.entry_ids.start)
            ids = range(start, min(each.entry_ids.stop, part.entry_ids.stop))
            if ids:
                yield part, part.fragment.bookies.index(each.bookie_id), ids


def _confirmed_parts(metadata: LedgerMetadata, stop: EntryId) -> Iterator[Part]:
    """``parts_of``, and of the last fragment of a ledger that is not closed what lies below
    ``stop``: what was confirmed when it was looked at stays so. An entry behind that may be
    dropped by recovery, or be written again by the writer, and is not touched."""
    yield from parts_of(metadata)
    last = metadata.fragments[-1]
    if not metadata.closed and last.first_entry_id < stop:
        yield Part(last, range(last.first_entry_id, stop))
