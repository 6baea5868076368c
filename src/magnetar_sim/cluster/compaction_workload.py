"""A log that is compacted, trimmed and read by key while its owners change: by its owner, and by
jobs that hand over what they have left (``log.seam.KeyCompaction``).

What must hold of every reading of the compacted view, from its begin to the end that it has:

1. *Nothing that was never there.* Each entry was appended, and what was confirmed at its position
   is what is read there; positions ascend, each once.
2. *The last value, or a newer one.* Of every key whose last message that was confirmed before the
   reading began is a value, that or a later one is read.
3. *What was superseded stays gone.* Of entries up to the horizon that the view had when the reading
   began none has a later message of its key that was confirmed up to there: no value that another
   one replaced, none that a tombstone removed.
4. *Nothing is left over.* After healing the ledgers that compaction made are gone, but the one
   that the log's record names.
5. *Progress.* After healing the log can be compacted, and its view is then, up to the horizon, the
   last value of each key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from magnetar.log.managed.compacted_entries import prefix_of
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.seam import CompactedElsewhere, Cursor, Run
from magnetar.log.surviving import survivor
from magnetar.log.survivors import Survivors
from magnetar.model.entry import Entry
from magnetar.model.errors import LogClosedError, MagnetarError, NotAllowedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.model.keyed import KeyedEntry, KeyedMessage
from magnetar.topics.compacting import compact
from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.cluster.owners_in_turn import owners_in_turn
from magnetar_sim.world.loop import run_in
from magnetar_sim.world.scheduler import SimulationError

NAME: Final = "public/default/persistent/compacted"
CURSOR: Final = "sub"
KEYS: Final = 6
RETRY_S: Final = 0.3
READ_ENTRIES, READ_BYTES = 7, 1 << 20
HOLD_MS: Final = 20_000
TIDY_S: Final = 60.0


class Words:
    """Entries are ``key=value``; ``key=`` deletes the key. Implements ``CompactFormat``."""

    def is_large(self, payload: memoryview) -> bool:
        return False

    def keyed(self, payload: memoryview) -> KeyedEntry:
        key, value = _split(bytes(payload))
        return KeyedEntry((KeyedMessage(-1, key, not value),))

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        raise AssertionError("there are no batches")


def _split(payload: bytes) -> tuple[bytes, bytes]:
    """Key and value, without what makes tombstones differ."""
    key, _, value = payload.partition(b"=")
    return key.partition(b"#")[0], value


class KeyHistory:
    """What is known of the log from the outside."""

    def __init__(self) -> None:
        self.sent: dict[bytes, None] = {}
        self.confirmed: dict[Position, bytes] = {}
        self.compacted: dict[int, None] = {}
        """Ledgers that compaction has made."""
        self.problem: str | None = None

    def broken(self, what: str) -> None:
        self.problem = self.problem or f"compaction: {what}"

    def check(self) -> None:
        if self.problem is not None:
            raise SimulationError(self.problem)

    def unsure(self, known: Container[bytes]) -> set[bytes]:
        """Keys of tombstones that may be in the log, and are not ``known`` to be."""
        return {_split(each)[0] for each in self.sent if not _split(each)[1] and each not in known}

    def check_view(
        self,
        who: str,
        found: Sequence[tuple[Position, bytes]],
        before: dict[Position, bytes],
        horizon: Position,
    ) -> None:
        """``before``: what was confirmed when the reading began; ``horizon``: the view's then."""
        self._check_given(who, found)
        last: dict[bytes, tuple[Position, bytes]] = {}
        up_to: dict[bytes, Position] = {}
        for position in sorted(before):
            key, value = _split(before[position])
            last[key] = position, value
            if position <= horizon:
                up_to[key] = position
        read: dict[bytes, Position] = {}
        for position, payload in found:
            key = _split(payload)[0]
            read[key] = position
            later = up_to.get(key, EARLIEST)
            if position <= horizon and position < later:
                self.broken(
                    f"{who}: {payload!r} at {position} is read, and {before[later]!r} at {later} "
                    f"is before the horizon {horizon}"
                )
        unsure = self.unsure({*before.values()})
        for key, (position, value) in last.items():
            if value and key not in unsure and read.get(key, EARLIEST) < position:
                self.broken(
                    f"{who}: of {key!r} {before[position]!r} at {position} was confirmed, and what "
                    f"is read is at {read.get(key)} (horizon {horizon})"
                )

    def _check_given(self, who: str, found: Sequence[tuple[Position, bytes]]) -> None:
        last = EARLIEST
        for position, payload in found:
            if position <= last:
                self.broken(f"{who}: {position} is read after {last}")
            last = position
            known = self.confirmed.get(position)
            if payload not in self.sent or (known is not None and known != payload):
                self.broken(f"{who}: {payload!r} is read at {position}, where {known!r} was stored")


class CompactionJob:
    """The log and its owners, one after the other."""

    def __init__(self, cluster: Cluster, rng: random.Random, end_s: float) -> None:
        self.cluster = cluster
        self.history = KeyHistory()
        self.over = False
        self.config = replace(
            cluster.plan.ledger,
            ledger_entries_max=rng.choice((5, 12, 40)),
            retention_ms=rng.choice((0, 0, -1)),
            retention_bytes=0,
        )
        if self.config.retention_ms < 0:
            self.config = replace(self.config, retention_bytes=-1)
        self._random = rng
        self.owners = owners_in_turn(cluster, rng, end_s, "c", self._own)

    async def _own(self, number: int, owner: Client, begin_s: float) -> None:
        await asyncio.sleep(max(0.0, begin_s - self.cluster.loop.time()))
        log, cursor = await self._open(owner)
        works = [
            self._write(number, log, cursor),
            self._compact(owner, log),
            self._read(owner, log),
            self._job(owner, log),
        ]
        for each in works[1:]:
            owner.process.spawn(each, "compaction")
        try:
            await works[0]
        except LogClosedError as error:
            self.cluster.trace.note(owner.name, f"has lost the log: {error}")

    def _mine(self, log: ManagedLog) -> bool:
        return not self.over and log.lost is None and not log.closed

    async def _open(self, owner: Client) -> tuple[ManagedLog, Cursor]:
        loop, trace = self.cluster.loop, self.cluster.trace
        while True:
            store = ManagedLogStore(
                owner.store, owner.ledgers, self.config, now_ms=lambda: int(loop.time() * 1000)
            )
            try:
                log = await store.open(NAME)
                return log, await log.cursors.open(CURSOR, EARLIEST)
            except MagnetarError as error:
                trace.note(owner.name, f"cannot open the compacted log yet: {error}")
                await asyncio.sleep(RETRY_S)

    # -- what an owner does -------------------------------------------------------------------

    async def _write(self, number: int, log: ManagedLog, cursor: Cursor) -> None:
        """Appends, acknowledges, and has the log trim."""
        rng, index = self._random, 0
        while self._mine(log):
            count = rng.choice((1, 1, 3, 8))
            payloads = [self._message(number, index + each) for each in range(count)]
            index += count
            log.append(payloads, partial(self._confirmed, [*payloads]))
            await asyncio.sleep(0.1 * rng.random())
            # What retention deletes before there is a compacted view is in none.
            if rng.random() < 0.4 and log.compaction.stats is not None:
                cursor.acknowledge_cumulative(log.positions.readable)
            if rng.random() < 0.3:
                log.tick()

    def _message(self, number: int, index: int) -> bytes:
        key = f"k{self._random.randrange(KEYS)}"
        deletes = self._random.random() < 0.08
        text = f"{key}#{number}.{index}=" if deletes else f"{key}={number}.{index}"
        self.history.sent[text.encode()] = None
        return text.encode()

    def _confirmed(
        self, left: list[bytes], _error: MagnetarError | None, runs: Sequence[Run]
    ) -> None:
        for run in runs:
            for number in range(run.entries):
                position = Position(run.ledger_id, run.first_entry_id + number)
                self.history.confirmed[position] = left.pop(0)

    async def _compact(self, owner: Client, log: ManagedLog) -> None:
        while self._mine(log):
            await asyncio.sleep(self._random.choice((0.1, 0.6, 1.5)) * self._random.random())
            try:
                await compact(log, Words())
            except MagnetarError as error:
                self._note(owner, f"does not compact: {error}")
            else:
                self._note_compacted(log, "compactions by the owner")

    def _note_compacted(self, log: ManagedLog, what: str) -> None:
        stats = log.compaction.stats
        if stats is not None and stats.ledger_id not in self.history.compacted:
            self.history.compacted[stats.ledger_id] = None
            self.cluster.count(what)

    def _note(self, owner: Client, what: str) -> None:
        self.cluster.trace.note(owner.name, what)

    async def _read(self, owner: Client, log: ManagedLog) -> None:
        while self._mine(log):
            await asyncio.sleep(0.4 * self._random.random())
            try:
                await self._read_view(owner.name, log)
            except MagnetarError as error:
                self._note(owner, f"cannot read what is compacted: {error}")

    async def _read_view(self, who: str, log: ManagedLog) -> list[tuple[Position, bytes]]:
        """All of it, as a reader does that begins at its start."""
        history, view = self.history, log.compaction.view
        before = dict(history.confirmed)
        stats = log.compaction.stats
        horizon = EARLIEST if stats is None else stats.horizon
        end, known = view.positions.readable, log.positions.readable
        # An owner that has lost the log may know less than others have confirmed since.
        before = {position: each for position, each in before.items() if position <= known}
        found = await self._entries(log, end)
        payloads = [(entry.position, bytes(entry.payload)) for entry in found]
        history.check_view(who, payloads, before, horizon)
        self.cluster.count("readings of the compacted view")
        return payloads

    async def _entries(self, log: ManagedLog, end: Position) -> list[Entry]:
        view, found = log.compaction.view, list[Entry]()
        position = view.positions.first
        while position <= end:
            entries = view.read_cached(position, READ_ENTRIES, READ_BYTES)
            if entries is None:
                entries = await view.read(position, READ_ENTRIES, READ_BYTES)
            if not entries:
                break
            found += entries
            position = view.positions.next_position(entries[-1].position)
        return found

    # -- jobs ---------------------------------------------------------------------------------

    async def _job(self, owner: Client, log: ManagedLog) -> None:
        """Another process compacts, now and then, and may be too late."""
        number = 0
        while self._mine(log):
            await asyncio.sleep(self._random.choice((0.3, 2.0)) * self._random.random())
            number += 1
            holder = f"{owner.name}-{number}"
            try:
                await self._compact_elsewhere(owner, log, holder)
            except NotAllowedError as error:
                self.cluster.count("jobs that were refused")
                self._note(owner, f"refuses {holder}: {error}")
            except MagnetarError as error:
                self._note(owner, f"{holder} fails: {error}")
            else:
                self._note_compacted(log, "compactions by jobs")
            if self._random.random() < 0.8:  # else it has died; its hold ends by itself
                log.compaction.give_up(holder)
                with suppress(MagnetarError):
                    await log.holds.release(holder)

    async def _compact_elsewhere(self, owner: Client, log: ManagedLog, holder: str) -> None:
        await log.holds.take(holder, 0, HOLD_MS)
        base, horizon = log.compaction.stats, log.positions.readable
        if base is not None and base.horizon >= horizon:
            return
        form, keys = Words(), Survivors()
        view = [entry for entry in await self._entries(log, horizon) if entry.position <= horizon]
        for entry in view:
            keys.note(entry.position, form.keyed(entry.payload))
        left = []
        for entry in view:
            kept = keys.kept(entry.position, form.keyed(entry.payload))
            if kept is None or kept:
                payload = log.compaction.payload(entry)
                left.append(survivor(entry, payload, kept, 1, form.without_others))
        found = CompactedElsewhere(-1, horizon, 0)
        if left:
            ledger_id = await log.compaction.begin_elsewhere(holder)
            self.history.compacted.setdefault(ledger_id)
            writer = await owner.ledgers.writer_of(ledger_id)
            await writer.add([prefix_of(each.position, each.kept) + each.payload for each in left])
            await writer.close()
            found = CompactedElsewhere(ledger_id, horizon, len(left), left[-1].position)
        await asyncio.sleep(0.3 * self._random.random())
        await log.compaction.take(holder, base, found)
        self.cluster.count("compactions by jobs that were taken over")

    # -- after healing ------------------------------------------------------------------------

    async def last_look(self, last: Client) -> None:
        """Invariants 4 and 5, and the others once more."""
        await run_in(last.process, self._last_look(last), "last look")
        self.history.check()

    async def _last_look(self, last: Client) -> None:
        log, _ = await self._open(last)
        index = 0
        while True:
            payload = f"k0=last.{index}".encode()
            index += 1
            self.history.sent[payload] = None
            log.append([payload], partial(self._confirmed, [payload]))
            try:
                await compact(log, Words())
                await self._read_view(last.name, log)
                await compact(log, Words())
                found = await self._read_view(last.name, log)
                if log.compaction.stats is not None:
                    break
                await asyncio.sleep(RETRY_S)  # of an empty log: the append is under way still
            except MagnetarError as error:
                self._note(last, f"cannot compact yet: {error}")
                await asyncio.sleep(RETRY_S)
                if log.lost is not None:  # an owner that waited for the fault to heal was later
                    log, _ = await self._open(last)
        horizon = log.compaction.stats
        assert horizon is not None
        keys = [_split(payload)[0] for place, payload in found if place <= horizon.horizon]
        if len(set(keys)) != len(keys):
            self.history.broken(f"a key twice in what is compacted: {found}")
        if any(not _split(payload)[1] for place, payload in found if place <= horizon.horizon):
            self.history.broken(f"a tombstone in what is compacted: {found}")
        await self._tidy(log)

    async def _tidy(self, log: ManagedLog) -> None:
        """Invariant 4."""
        stats = log.compaction.stats
        assert stats is not None
        others = [each for each in self.history.compacted if each not in (-1, stats.ledger_id)]
        end_s = self.cluster.loop.time() + TIDY_S
        while left := [each for each in others if self.cluster.has_ledger(each)]:
            if self.cluster.loop.time() > end_s:
                self.history.broken(f"ledgers {left} of former compactions are left over")
                return
            log.tick()
            await asyncio.sleep(RETRY_S)
        if stats.ledger_id >= 0 and not self.cluster.has_ledger(stats.ledger_id):
            self.history.broken(f"the compacted ledger {stats.ledger_id} is gone")
