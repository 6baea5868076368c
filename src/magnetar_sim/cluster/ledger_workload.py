"""Writers, tail readers and recoveries of ledgers, each a process of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import LedgerError, MagnetarError, NoEntryError
from magnetar.model.ledger import LedgerMetadata
from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.cluster.cluster_checkers import LedgerHistory, copies_problem
from magnetar_sim.world.loop import until
from magnetar_sim.world.scheduler import SimulationError

RETRY_S = 0.5
READ_ENTRIES = 50
READ_BYTES = 1 << 20
PENDING_BYTES_MAX = 1 << 20


class LedgerJob:
    """One ledger: its writer's process and what is known of it. ``spread_s``: how long the
    writer takes for its payloads, about. ``client``: that process, if it is another's too."""

    def __init__(
        self,
        cluster: Cluster,
        index: int,
        rng: random.Random,
        spread_s: float,
        client: Client | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = f"w{index + 1}"
        self.client = client or cluster.client(self.name)
        self.history: LedgerHistory | None = None
        self.writer: LedgerWriter | None = None
        self.closing = rng.random() < 0.5
        self.hesitates_s = rng.choice((0.0, 0.0, 1.5))
        """Between making the ledger and the first entry."""
        self._random = rng
        self.spread_s = spread_s
        self.total = rng.choice((20, 60, 120))
        self.deferred = rng.random() < 0.1 or _all_deferred(cluster)
        """With deferred sync: what it forces is confirmed."""
        self.when_forced: Callable[[], None] = lambda: None
        self.task = self.client.process.spawn(self._write(), "writer")

    def ensemble(self) -> Sequence[str]:
        """The bookies it writes to; none before it has made the ledger."""
        return () if self.writer is None else self.writer.metadata.fragments[-1].bookies

    @property
    def settled(self) -> bool:
        """The writer has done its work and heard of every append, or it is dead."""
        if not self.client.process.alive:
            return True
        history = self.history
        return self.task.done() and history is not None and history.settled

    async def _write(self) -> None:
        rng = self._random
        writer = self.begin_history(await self._create())
        history = self.history
        assert history is not None
        await asyncio.sleep(self.hesitates_s)
        pause_s = rng.choice((0.0, 1.0, 1.0, 1.0)) * self.spread_s / self.total
        size_max = rng.choice((100, 100, 2000, 20_000))
        if self.cluster.plan.shape is not None and self.cluster.plan.shape.bursts:
            pause_s, size_max = 0.0, 20_000
        while len(history.payloads) < self.total and writer.error is None:
            count = min(rng.choice((1, 1, 5, 20)), self.total - len(history.payloads))
            self.append(count, size_max)
            await asyncio.sleep(pause_s * count * 2 * rng.random())
            await until(lambda: writer.pending_bytes <= PENDING_BYTES_MAX, 0.05)
            if self.deferred and rng.random() < (0.8 if _all_deferred(self.cluster) else 0.3):
                await self._force(writer, history)
        if self.closing or writer.error is not None:
            await self._close(writer, history)

    def begin_history(self, writer: LedgerWriter) -> LedgerWriter:
        """From now on it is known what is written."""
        history = self.history = LedgerHistory(writer.ledger_id, self.name)
        history.copies_problem = partial(copies_problem, self.cluster, writer.ledger_id)
        history.deferred = self.deferred
        history.note = partial(self.cluster.trace.note, self.name)
        self.writer = writer
        self.cluster.trace.note(self.name, f"writes ledger {writer.ledger_id}")
        return writer

    async def _create(self) -> LedgerWriter:
        while True:
            try:
                return await self.client.ledgers.create(deferred_sync_unsafe=self.deferred)
            except MagnetarError as error:
                self.cluster.trace.note(self.name, f"cannot create a ledger yet: {error}")
                await asyncio.sleep(RETRY_S)

    async def _force(self, writer: LedgerWriter, history: LedgerHistory) -> None:
        try:
            await writer.force()
        except MagnetarError as error:
            self.cluster.trace.note(self.name, f"cannot force: {error}")
        else:
            history.forced(writer.last_add_confirmed)
            self.when_forced()

    def append(self, count: int, size_max: int) -> None:
        """So many entries more, each of less than ``size_max`` bytes beside its name."""
        history, writer = self.history, self.writer
        assert history is not None
        assert writer is not None
        first = len(history.payloads)
        payloads = [self._payload(first + i, size_max) for i in range(count)]
        history.payloads += payloads
        writer.append(payloads, history.done)

    def _payload(self, index: int, size_max: int) -> bytes:
        head = f"{self.name}/{index}/".encode()
        return head + b"x" * self._random.randrange(size_max)

    async def _close(self, writer: LedgerWriter, history: LedgerHistory) -> None:
        try:
            metadata = await writer.close()
        except MagnetarError as error:
            self.cluster.trace.note(self.name, f"cannot close: {error}")
            return
        self.cluster.trace.note(self.name, f"closed its ledger at {metadata.last_entry_id}")
        history.ended(self.name, metadata)


def _all_deferred(cluster: Cluster) -> bool:
    return cluster.plan.shape is not None and cluster.plan.shape.deferred


async def recover(client: Client, history: LedgerHistory) -> LedgerMetadata | None:
    """Open the ledger, as often as it takes, and read it to its end once. None: it was deleted."""
    trace, name = client.cluster.trace, client.name
    while True:
        try:
            reader = await client.ledgers.open(history.ledger_id)
            break
        except MagnetarError as error:
            trace.note(name, f"cannot open ledger {history.ledger_id} yet: {error}")
            if not client.cluster.has_ledger(history.ledger_id):
                return None
            await asyncio.sleep(RETRY_S)
    trace.note(
        name, f"opened ledger {history.ledger_id}, which ends at {reader.last_add_confirmed}"
    )
    history.ended(name, reader.metadata)
    await read_all(client, history, reader.metadata)
    return reader.metadata


async def read_all(client: Client, history: LedgerHistory, metadata: LedgerMetadata) -> None:
    """Every entry, from wherever it can be had; as often as it takes."""
    entry_id = 0
    while entry_id <= metadata.last_entry_id:
        try:
            reader = await client.ledgers.open(history.ledger_id)
            entries = await reader.read(entry_id, READ_ENTRIES, READ_BYTES)
        except MagnetarError as error:
            client.cluster.trace.note(client.name, f"cannot read {entry_id} yet: {error}")
            if not client.cluster.has_ledger(history.ledger_id):
                return
            await asyncio.sleep(RETRY_S)
            continue
        history.read(client.name, entries, entry_id, metadata.last_entry_id)
        entry_id += len(entries)


async def look_again(client: Client, history: LedgerHistory, pause_s: float) -> None:
    """Follow an open ledger without touching it, opening it anew each time."""
    entry_id = 0
    while True:
        await asyncio.sleep(pause_s)
        try:
            reader = await client.ledgers.open_no_recovery(history.ledger_id)
            history.told(reader.last_add_confirmed, reader.metadata)
            while entry_id <= reader.last_add_confirmed:
                entries = await reader.read(entry_id, READ_ENTRIES, READ_BYTES)
                history.read(client.name, entries, entry_id, reader.last_add_confirmed)
                entry_id += len(entries)
        except (LedgerError, NoEntryError, MagnetarError) as error:
            client.cluster.trace.note(client.name, f"cannot follow: {error}")
            if not client.cluster.has_ledger(history.ledger_id):
                return
            continue
        if reader.metadata.closed:
            return


async def follow(client: Client, history: LedgerHistory, wait_s: float | None) -> None:
    """Follow an open ledger to its end with one reader, waiting ``wait_s`` at a time."""
    entry_id = 0
    reader: TailingReader | None = None
    while True:
        try:
            if reader is None:
                reader = await client.ledgers.open_no_recovery(history.ledger_id)
            last = await reader.wait_past(entry_id - 1, wait_s)
            history.told(last, reader.metadata)
            if last >= entry_id:
                entries = await reader.read(entry_id, READ_ENTRIES, READ_BYTES)
                history.read(client.name, entries, entry_id, reader.last_add_confirmed)
                entry_id += len(entries)
            elif reader.closed:
                client.cluster.trace.note(client.name, f"has followed to the end, {last}")
                return
        except MagnetarError as error:
            client.cluster.trace.note(client.name, f"cannot follow: {error}")
            if not client.cluster.has_ledger(history.ledger_id):
                return
            await asyncio.sleep(RETRY_S)


async def delete(client: Client, history: LedgerHistory) -> None:
    """As often as it takes."""
    history.deleting = True
    while True:
        try:
            await client.ledgers.delete(history.ledger_id, missing_ok=True)
            break
        except MagnetarError as error:
            client.cluster.trace.note(client.name, f"cannot delete yet: {error}")
            await asyncio.sleep(RETRY_S)
    client.cluster.trace.note(client.name, f"deleted ledger {history.ledger_id}")


async def write_afresh(client: Client) -> None:
    """After healing: a new ledger is written, closed and read, like nothing had been."""
    payloads = [b"%d" % index for index in range(5)]
    while True:
        try:
            reader = await _write_once(client, payloads)
            entries = await reader.read(0, len(payloads), READ_BYTES)
            break
        except MagnetarError as error:
            client.cluster.trace.note(client.name, f"no new ledger yet: {error}")
            await asyncio.sleep(RETRY_S)
    if [bytes(entry.payload) for entry in entries] != payloads[: len(entries)] or not entries:
        raise SimulationError("a new ledger does not hold what was written after healing")


async def _write_once(client: Client, payloads: list[bytes]) -> LedgerReader:
    answers: list[MagnetarError | None] = []
    writer = await client.ledgers.create()
    for payload in payloads:
        writer.append([payload], lambda error, *_: answers.append(error))
    await writer.wait_confirmed()
    await writer.close()
    for error in answers:
        if error is not None:
            raise error
    return await client.ledgers.open(writer.ledger_id)
