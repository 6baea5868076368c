"""The auditor: finds ledgers that lack copies, and marks them. One at a time is elected
(``election``).

* Bookies: whenever others are registered, an operator has said something, a bookie's delay is over,
  or ``audit_interval_s`` have passed, it looks who is gone (lost, silent, or to be emptied). If
  somebody is whose ledgers were not marked yet, every ledger's metadata is read, and those that
  name somebody who is gone are marked. It is looked again before each mark: one that has come back
  is not marked.
* Ledgers: every ``check_interval_s`` the bookies of each ledger are asked what they hold
  (``checking``), so that is found what nobody has told: what a writer that died left with too few
  copies, what a disk has lost. When that was done last is in the metadata store, and a new auditor
  goes on from there.
* Answers: every ``hearing_interval_s`` each registered bookie is asked what it holds of one ledger
  that it holds entries of. Whoever says nothing for long enough counts as gone (``silences``).

Both go through all ledgers at ``ledgers_per_s`` at most. While repair is disabled nothing is
marked. A mark too many costs a look at the ledger, so nothing here needs to be certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.model.errors import MetadataError, MetadataFormatError, NoSuchLedgerError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair.checking import Checker
from magnetar.repair.copies import parts_of
from magnetar.repair.marks import ShortageMarks
from magnetar.repair.standings import Standings
from magnetar.repair.switches import Switches

log = structlog.get_logger(__name__)

READ_AT_ONCE = 16
RETRY_S = 1.0
DISABLED_S = 5.0
MARGIN_S = 0.01
HEARING_INTERVAL_S_LEAST = 0.2
LOOKED_MAX = 256
"""Ledgers, for some that bookies hold; before each hearing in which one is known of none."""
CLOCKS_DIFFER_S = 60.0
"""At most, of machines whose clocks are set right."""


class AllLedgers(Protocol):
    """``LedgerManager``."""

    def iterate(self) -> AsyncIterator[int]: ...

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]: ...


class Found(Protocol):
    """Who counts what has been found."""

    def marked(self, ledger_id: int, bookies: Collection[str]) -> None: ...

    def lost(self, bookies: Collection[BookieId]) -> None: ...


@dataclass(frozen=True, slots=True)
class AuditPace:
    """How often, and how fast. ``check_interval_s``, ``hearing_interval_s`` 0: never."""

    audit_interval_s: float
    check_interval_s: float
    hearing_interval_s: float
    ledgers_per_s: float


def until_check_s(interval_s: float, age_s: float) -> float:
    """How long until all ledgers are to be checked, which they were last ``age_s`` ago. A date to
    come was told by a clock that was ahead: they are checked now, and not when it has come."""
    return 0.0 if age_s < -CLOCKS_DIFFER_S else interval_s - age_s


class _BegunCheck:
    """Of all ledgers: when it began, when the last one was said to have begun then, and how far it
    is. Ids ascend, so that what is made meanwhile comes later."""

    def __init__(self, began_ms: int, asked_ms: int) -> None:
        self.began_ms = began_ms
        self.asked_ms = asked_ms
        self.last_id = -1


class Auditor:
    """See the module's text. ``now_ms``: since 1970. ``enabled``: whether anything may be
    marked."""

    def __init__(
        self,
        ledgers: AllLedgers,
        marks: ShortageMarks,
        switches: Switches,
        standings: Standings,
        checker: Checker,
        pace: AuditPace,
        now_ms: Callable[[], int],
        enabled: Callable[[], bool],
        found: Found,
    ) -> None:
        self._ledgers = ledgers
        self._marks = marks
        self._switches = switches
        self._standings = standings
        self._checker = checker
        self._pace = pace
        self._now_ms = now_ms
        self._enabled = enabled
        self._found = found
        self._changed = asyncio.Event()
        self._check_wanted = asyncio.Event()
        self._triggered = False
        self._marked: set[BookieId] = set()
        """Those who are gone and whose ledgers are marked."""
        self._begun: _BegunCheck | None = None
        self._audited_s = float("-inf")
        self._known_of: dict[BookieId, LedgerMetadata] = {}
        """A ledger with final entries at each bookie, as it was read last."""

    async def run_audits(self) -> None:
        """Look after bookies until it is cancelled."""
        while True:
            try:
                await self._look()
                wait_s = self._until_next_s() if self._enabled() else DISABLED_S
            except MetadataError as error:
                log.warning("the audit of bookies is tried again", error=str(error))
                wait_s = RETRY_S
            await _wait(self._changed, wait_s)

    async def run_checks(self) -> None:
        """Look after ledgers until it is cancelled."""
        if not self._pace.check_interval_s:
            return
        while True:
            try:
                wait_s = await self._until_check_s() if self._enabled() else DISABLED_S
                if wait_s <= 0:
                    await self.check_all()
            except MetadataError as error:
                log.warning("the check of all ledgers is tried again", error=str(error))
                wait_s = RETRY_S
            await _wait(self._check_wanted, max(wait_s, RETRY_S))

    async def run_hearings(self) -> None:
        """Ask bookies for a sign of life until it is cancelled."""
        interval_s = self._pace.hearing_interval_s
        while interval_s:
            await asyncio.sleep(max(interval_s, HEARING_INTERVAL_S_LEAST))
            if not self._enabled():
                continue
            before = self._standings.silent
            try:
                await self.hear()
            except MetadataError as error:
                log.warning("bookies are not asked for a sign of life", error=str(error))
            if self._standings.silent != before:
                self._changed.set()

    def trigger(self) -> None:
        """An operator wants all bookies looked after, now."""
        self._triggered = True
        self._changed.set()

    def changed(self) -> None:
        """Others are registered, or an operator has said something."""
        self._changed.set()

    def check_changed(self) -> None:
        """It may be another time when all ledgers were checked last."""
        self._check_wanted.set()

    def _until_next_s(self) -> float:
        left_s = self._audited_s + self._pace.audit_interval_s - _now_s()
        loss_s = self._standings.next_loss_s()
        return max(0.0, left_s if loss_s is None else min(left_s, loss_s)) + MARGIN_S

    async def _until_check_s(self) -> float:
        age_ms = self._now_ms() - await self._switches.checked_ms()
        return until_check_s(self._pace.check_interval_s, age_ms / 1000)

    async def _look(self) -> None:
        """Raises ``MetadataError``."""
        await self._standings.look()
        gone = self._standings.gone
        self._marked &= set(gone)  # one that has come back, and goes again, is looked after anew
        if not self._enabled():
            return
        due = _now_s() - self._audited_s >= self._pace.audit_interval_s
        if self._triggered or due or not self._marked.issuperset(gone):
            triggered, before = self._triggered, self._audited_s
            self._triggered = False  # now: who wants one meanwhile wants another
            try:
                await self.audit()
            finally:
                if self._audited_s == before:  # it was not all
                    self._triggered |= triggered

    # -- bookies ------------------------------------------------------------------------------

    async def audit(self) -> int:
        """Mark every ledger that names somebody who is gone; returns how many. One in which repair
        is switched off is none: it begins anew when that is over. Raises ``MetadataError``."""
        await self._standings.look()
        before = self._standings.gone
        self._found.lost(before)
        if before:
            log.info("ledgers of bookies that are gone are looked for", bookies=before)
        named: dict[BookieId, None] = {}
        count = 0
        async for metadata in self._all():
            if not self._enabled():
                return count  # it was not all
            bookies = dict.fromkeys(b for one in metadata.fragments for b in one.bookies)
            if not bookies.keys() <= named.keys():
                named |= bookies
                await self._standings.look(bookies)
            gone = [bookie for bookie in self._standings.gone if bookie in bookies]
            if gone:
                await self._standings.look()
                gone = [bookie for bookie in self._standings.gone if bookie in bookies]
                if not self._enabled():
                    return count
                count += bool(gone) and await self._mark(metadata.ledger_id, gone)
        self._audited_s = _now_s()
        # Only those that were gone from the beginning: of others, ledgers that were read before
        # they went are not marked.
        self._marked.update(before)
        nameless = [b for b in self._standings.away if b not in named]
        self._standings.forget(nameless)
        return count

    # -- answers ------------------------------------------------------------------------------

    async def hear(self) -> None:
        """Ask every registered bookie, some at once, of a ledger that it has entries of, or else of
        any. Raises ``MetadataError``."""
        await self._standings.look()
        serving = list(self._standings.serving)
        await self._find_known(serving)
        known = {bookie: self._known_of[bookie] for bookie in serving if bookie in self._known_of}
        anything = next(iter(known.values()), None)
        if anything is None:
            return  # nothing is written yet
        for first in range(0, len(serving), READ_AT_ONCE):
            batch = serving[first : first + READ_AT_ONCE]
            await asyncio.gather(
                *(self._checker.hear(known.get(bookie, anything), bookie) for bookie in batch)
            )
        self._known_of = known

    async def _find_known(self, serving: Collection[BookieId]) -> None:
        """Of a bookie that was added since the last audit no ledger is known yet. Some are looked
        at; if it is in none of them, any other does."""
        looked = 0
        async with aclosing(self._all()) as found:
            while looked < LOOKED_MAX and not self._known_of.keys() >= set(serving):
                if await anext(found, None) is None:
                    return
                looked += 1

    def _keep_known(self, metadata: LedgerMetadata) -> None:
        """The newest ledger is likely to be there longest. Of one that is gone, or is others' now,
        a bookie says that it holds nothing, which is an answer, though its disk may hang: the next
        audit finds another."""
        for part in parts_of(metadata):
            if part.entry_ids:
                self._known_of.update(dict.fromkeys(part.fragment.bookies, metadata))

    # -- ledgers ------------------------------------------------------------------------------

    async def check_all(self) -> int:
        """Ask the bookies of every ledger what they hold; returns how many ledgers lack something
        and were not marked before. One that was cut off is gone on with, unless it is long ago or
        an operator wants another: that of a large cluster takes hours, in which the metadata store
        is away for a moment now and then. Raises ``MetadataError``."""
        asked_ms, begun, count = await self._switches.checked_ms(), self._begun, 0
        if begun is None or begun.asked_ms != asked_ms or self._is_old(begun):
            begun = self._begun = _BegunCheck(self._now_ms(), asked_ms)
        log.info("all ledgers are checked", after=begun.last_id)
        async for metadata in self._all(begun.last_id):
            count += await self._check(metadata)
            begun.last_id = metadata.ledger_id
            if not self._enabled():
                return count  # it was not all
        await self._switches.set_checked(begun.began_ms)
        self._begun = None
        log.info("all ledgers were checked", lacking=count)
        return count

    def _is_old(self, begun: _BegunCheck) -> bool:
        """What it has checked is to be checked again anyway."""
        age_s = (self._now_ms() - begun.began_ms) / 1000
        return not 0 <= age_s < self._pace.check_interval_s

    async def _check(self, metadata: LedgerMetadata) -> bool:
        named = [bookie for one in metadata.fragments for bookie in one.bookies]
        await self._standings.look(named)
        standings = self._standings.of(named)
        findings = await self._checker.look(metadata, standings, durably=False)
        lacking = findings.bookies
        return bool(lacking) and await self._mark(metadata.ledger_id, lacking)

    # -- both ---------------------------------------------------------------------------------

    async def _mark(self, ledger_id: int, bookies: Collection[BookieId]) -> bool:
        fresh = await self._marks.mark(ledger_id, bookies, self._now_ms())
        if fresh:
            self._found.marked(ledger_id, bookies)
            log.info("ledger lacks copies", ledger=ledger_id, bookies=list(bookies))
        return fresh

    async def _all(self, after: int = -1) -> AsyncGenerator[LedgerMetadata, None]:
        """The metadata of all ledgers with ids above ``after``, ascending, some read at once, no
        faster than the pace."""
        batch: list[int] = []
        async for ledger_id in self._ledgers.iterate():
            if ledger_id <= after:
                continue
            batch.append(ledger_id)
            if len(batch) == READ_AT_ONCE:
                for metadata in await self._read(batch):
                    yield metadata
                batch = []
                await asyncio.sleep(READ_AT_ONCE / self._pace.ledgers_per_s)
        for metadata in await self._read(batch):
            yield metadata

    async def _read(self, ledger_ids: Collection[int]) -> list[LedgerMetadata]:
        read = await asyncio.gather(*(self._read_one(ledger_id) for ledger_id in ledger_ids))
        found = [metadata for metadata in read if metadata is not None]
        for metadata in found:
            self._keep_known(metadata)
        return found

    async def _read_one(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._ledgers.read(ledger_id))[0]
        except NoSuchLedgerError:
            return None  # deleted meanwhile
        except MetadataFormatError as error:
            log.warning("ledger not audited: its metadata cannot be read", error=str(error))
            return None


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
