"""A managed log whose owner changes: brokers' logs and cursors, without the brokers.

What must hold, in prose; ``LogHistory`` says the same:

1. *Nothing acknowledged is lost.* Every confirmed append is in the log, at the position that its
   owner was told, with its bytes.
2. *Order.* What one owner appended is in the log in the order of its appends, each at most once.
3. *One owner at a time.* The entries of an owner stand together: one that was paused or cut off
   adds nothing behind its successor's back.
4. *Cursors.* An acknowledgement that was stored is there whenever the cursor is opened again, and
   nothing is acknowledged that nobody acknowledged.
5. *Progress.* After healing, in bounded time, the log can be opened, appended to and read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from magnetar.log.managed.history import History
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.seam import Cursor, Run
from magnetar.model.errors import LogClosedError, MagnetarError
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.cluster.owners_in_turn import OWNERS_MAX, owners_in_turn
from magnetar_sim.world.scheduler import SimulationError

NAME = "public/default/persistent/topic"
CURSOR = "sub"
RETRY_S = 0.3
READ_ENTRIES, READ_BYTES = 100, 1 << 20


class LogHistory:
    """What is known of the log from the outside. Payloads are ``<owner>/<index>``."""

    def __init__(self) -> None:
        self.confirmed: dict[Position, bytes] = {}
        self.acknowledged: dict[Position, None] = {}
        self.cumulative = EARLIEST
        """Up to here everything was acknowledged, also what its owner hears of later."""
        self.stored: dict[Position, None] = {}
        self.problem: str | None = None

    def broken(self, what: str) -> None:
        self.problem = self.problem or f"log: {what}"

    def check(self) -> None:
        if self.problem is not None:
            raise SimulationError(self.problem)

    def check_cursor(self, who: str, cursor: Cursor, stored: Sequence[Position]) -> None:
        """Invariant 4, when the cursor has just been opened. ``stored``: what was so before: who
        is paused while it opens the log may find only later that it has lost it meanwhile."""
        for position in stored:
            if not cursor.is_acknowledged(*position):
                self.broken(f"{who}: the stored acknowledgement of {position} is forgotten")
        for position in self.confirmed:
            known = position in self.acknowledged or position <= self.cumulative
            if not known and cursor.is_acknowledged(*position):
                self.broken(f"{who}: {position} is acknowledged, and nobody acknowledged it")

    def check_content(self, entries: Sequence[tuple[Position, bytes]]) -> None:
        """Invariants 1 to 3; ``entries`` is the whole log."""
        found = dict(entries)
        for position, payload in self.confirmed.items():
            if found.get(position) != payload:
                self.broken(
                    f"confirmed entry {position} is {found.get(position)!r}, not {payload!r}"
                )
        last: dict[str, int] = {}  # owner -> index of its last entry, in the order of the log
        for position, payload in entries:
            owner, index = payload.decode().split("/")
            if owner in last and owner != next(reversed(last)):
                self.broken(f"{position}: owner {owner} appended behind its successor's back")
            if int(index) <= last.get(owner, -1):
                self.broken(f"{position}: entry {index} of owner {owner} is out of order, or twice")
            last[owner] = int(index)


class LogJob:
    """The log, its cursor and its owners, one after the other."""

    def __init__(self, cluster: Cluster, rng: random.Random, end_s: float) -> None:
        self.cluster = cluster
        self.history = LogHistory()
        self.over = False
        self._random = rng
        self.owners = owners_in_turn(cluster, rng, end_s, "o", self._own)

    async def _own(self, number: int, owner: Client, begin_s: float) -> None:
        await asyncio.sleep(max(0.0, begin_s - self.cluster.loop.time()))
        stored = [*self.history.stored]
        log, cursor = await open_log(owner, new_store(owner))
        self.history.check_cursor(owner.name, cursor, stored)
        try:
            await self._work(number, log, cursor)
        except LogClosedError as error:
            self.cluster.trace.note(owner.name, f"has lost the log: {error}")

    async def _work(self, number: int, log: ManagedLog, cursor: Cursor) -> None:
        rng, index, mine = self._random, 0, [*self.history.confirmed]
        while not self.over and log.lost is None:
            count = rng.choice((1, 1, 3, 10))
            payloads = [b"%d/%d" % (number, index + i) for i in range(count)]
            index += count
            self._append(self.owners[number].name, log, payloads, mine)
            await asyncio.sleep(0.1 * rng.random())
            if mine and rng.random() < 0.5:
                await self._acknowledge(cursor, mine)

    def _append(
        self, who: str, log: ManagedLog, payloads: list[bytes], mine: list[Position]
    ) -> None:
        left = list(payloads)

        def done(_error: MagnetarError | None, runs: Sequence[Run]) -> None:
            for run in runs:
                confirmed(*run)

        def confirmed(ledger_id: int, first: int, count: int) -> None:
            for entry_id in range(first, first + count):
                position = Position(ledger_id, entry_id)
                self.history.confirmed[position] = left.pop(0)
                mine.append(position)
            last = first + count - 1
            self.cluster.trace.note(who, f"is told that {ledger_id}:{first}..{last} are confirmed")

        log.append(payloads, done)

    async def _acknowledge(self, cursor: Cursor, known: list[Position]) -> None:
        rng, history = self._random, self.history
        if rng.random() < 0.8:
            chosen = [rng.choice(known) for _ in range(rng.choice((1, 5)))]
            cursor.acknowledge(chosen)
        else:
            last = known[rng.randrange(len(known) // 2 + 1) - 1]
            chosen = [position for position in history.confirmed if position <= last]
            cursor.acknowledge_cumulative(last)
            history.cumulative = max(history.cumulative, last)
        history.acknowledged.update(dict.fromkeys(chosen))
        if rng.random() < 0.3:
            before = list(chosen)
            try:
                await cursor.wait_stored()
            except LogClosedError:
                raise
            except MagnetarError:
                return
            history.stored.update(dict.fromkeys(before))

    async def last_look(self, last: Client) -> None:
        """Invariant 5, then all others."""
        log, cursor = await open_log(last, new_store(last))
        history = self.history
        history.check_cursor(last.name, cursor, [*history.stored])
        for attempt in range(3):
            await append_until_confirmed(log, b"%d/%d" % (OWNERS_MAX, attempt), history)
        entries: list[tuple[Position, bytes]] = []
        place = log.positions.first
        while place <= log.positions.readable:
            try:
                found = await log.read(place, READ_ENTRIES, READ_BYTES)
            except MagnetarError as error:
                self.cluster.trace.note(last.name, f"cannot read {place} yet: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            if not found:
                break
            for entry in found:
                position = entry.position
                entries.append((position, bytes(entry.payload)))
            place = log.positions.next_position(entries[-1][0])
        history.check_content(entries)
        history.check()


def new_store(client: Client, history: History | None = None) -> ManagedLogStore:
    loop, config = client.cluster.loop, client.cluster.plan.ledger
    return ManagedLogStore(
        client.store,
        client.ledgers,
        config,
        now_ms=lambda: int(loop.time() * 1000),
        history=history,
    )


async def open_log(client: Client, store: ManagedLogStore) -> tuple[ManagedLog, Cursor]:
    """As often as it takes."""
    trace = client.cluster.trace
    while True:
        try:
            log = await store.open(NAME)
            cursor = await log.cursors.open(CURSOR, EARLIEST)
        except MagnetarError as error:
            trace.note(client.name, f"cannot open the log yet: {error}")
            store = new_store(client)
            await asyncio.sleep(RETRY_S)
            continue
        trace.note(client.name, f"owns the log, readable up to {log.positions.readable}")
        return log, cursor


async def append_until_confirmed(log: ManagedLog, payload: bytes, history: LogHistory) -> None:
    """Append once; when that fails the log has to take the next one."""
    future: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, runs: Sequence[Run]) -> None:
        for run in runs:
            history.confirmed[Position(run.ledger_id, run.first_entry_id)] = payload
        future.set_result(error)

    log.append([payload], done)
    await future
