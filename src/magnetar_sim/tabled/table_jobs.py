"""Jobs that fill tables, as ``magnetar pipeline table`` does: the product's own taking of a
partition (``partition_taking``), over brokers that speak its protocol and the warehouse.

A job dies or is paused at any step. Another one is started when it ends, or is taken for dead; what
was paused goes on beside it.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.managed.ledgers import ChainReader
from magnetar.log.seam import TakenLedger
from magnetar.model.errors import MagnetarError, ProtocolError, TableError
from magnetar.pipeline.brokers.topic_reader import facts_of
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.tables.partition_taking import take_partition
from magnetar.pipeline.tables.taking_rules import TableCommit, TakenUpTo, taken_up_to
from magnetar.tables.layout import TablePlace
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion, LogTable
from magnetar.wire.pulsar.pulsar_pb2 import TakenLedger as TakenMessage
from magnetar_sim.brokers.pulsar_client import PulsarClient
from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.tabled.log_asker import LogAsker
from magnetar_sim.tabled.warehouse import WHOLE, FileRef, Groups, Row, TableState, Warehouse

READ_ENTRIES, READ_BYTES = 50, 1 << 20
PAUSES_S: Final = (0.3, 1.5, 4.0)
DIES_AFTER_S: Final = (0.0, 0.002, 0.01)


@dataclass(frozen=True)
class JobPlan:
    """What jobs are like. ``dies``, ``sleeps``: the chance at each step. ``unfit``: the share of
    messages that go to the side table; ``spread``: files of a ledger, at most; ``group_rows``: of a
    row group, at most. ``kept_ms``: as ``TakingOptions`` has it."""

    pause_s: float
    dies: float
    sleeps: float
    unfit: float
    spread: int
    group_rows: int
    kept_ms: int | None


class SimWritten(NamedTuple):
    """A ledger whose files are written. Implements ``partition_taking.LedgerRows``."""

    taken: TakenLedger
    main: Sequence[FileRef]
    side: Sequence[FileRef]


def place_of(topic: str) -> TablePlace:
    """The table of a topic, or of the topic that a partition is of."""
    return TablePlace("sim", {}, f"public_default.{parse_topic(topic).partitioned.local}")


class TableJob:
    """One process. ``over``: it does not begin anew."""

    def __init__(
        self,
        cluster: Cluster,
        warehouse: Warehouse,
        name: str,
        hosts: Sequence[str],
        plan: JobPlan,
        rng: random.Random,
    ) -> None:
        self.client: Client = cluster.client(name)
        self.cluster = cluster
        self.warehouse = warehouse
        self.plan = plan
        self.random = rng
        self.calm = False
        """It neither dies nor sleeps any more."""
        pulsar = PulsarClient(cluster, name, hosts)
        pulsar.process = self.client.process
        self.asker = LogAsker(pulsar)

    @property
    def name(self) -> str:
        return self.client.name

    def note(self, what: str) -> None:
        self.cluster.trace.note(self.name, what)

    async def step(self) -> None:
        """Where a job may end, for good or for a while."""
        rng, loop = self.random, self.cluster.loop
        if self.calm:
            return
        fate = rng.random()
        if fate < self.plan.dies:
            self.cluster.count("jobs that died")
            loop.call_later(rng.choice(DIES_AFTER_S), self.client.kill, context=Context())
        elif fate < self.plan.dies + self.plan.sleeps:
            self.cluster.count("jobs that slept")
            self.note("sleeps")
            self.client.process.pause()
            lasts_s = rng.choice(PAUSES_S) * rng.random()
            loop.call_later(lasts_s, self.client.process.resume, context=Context())
            await asyncio.sleep(0)

    async def attach(self, topic: str) -> None:
        """Tell the topic's owner that there is a table. Raises ``MagnetarError``."""
        await SimPort(self, topic).tell((), attach=True)

    async def run(self, topics: Sequence[str]) -> None:
        """Again and again."""
        while True:
            for topic in topics:
                try:
                    await self.take(topic)
                except MagnetarError as error:
                    self.note(f"{topic}: {error}")
            await self.asker.leave()
            await asyncio.sleep(self.plan.pause_s * self.random.random())

    async def take(self, topic: str) -> None:
        port = SimPort(self, topic)
        await port.make()
        await take_partition(port, topic, lambda: False, self._took)

    def _took(self, written: Sequence[SimWritten]) -> None:
        for each in written:
            self.cluster.count("ledgers that were taken")
            self.note(f"has taken {each.taken}")


class SimPort:
    """Implements ``partition_taking.TakingPort``."""

    def __init__(self, job: TableJob, partition: str) -> None:
        self._job = job
        self._warehouse = job.warehouse
        self._partition = partition
        self._place = place_of(partition)
        self._main: TableState | None = None
        self._side: TableState | None = None

    async def make(self) -> None:
        await self._warehouse.make(self._place.table, {})
        await self.look()

    async def tell(self, taken: Sequence[TakenLedger], *, attach: bool = False) -> None:
        """See ``TakingPort``."""
        await self._job.step()
        told = LogTable(where=self._place.to_text())
        told.taken.extend(TakenMessage(**each._asdict()) for each in taken)
        if attach and self._job.plan.kept_ms is not None:
            told.kept_ms = self._job.plan.kept_ms
        await self._job.asker.ask(self._partition, LogQuestion(table=told))

    async def ask(self) -> Sequence[LedgerFacts]:
        """See ``TakingPort``."""
        await self._job.step()
        answer = await self._job.asker.ask(self._partition, LogQuestion(ledgers=True))
        return [facts_of(each) for each in answer.ledgers]

    async def write(self, ledgers: Sequence[LedgerFacts]) -> Sequence[SimWritten]:
        """See ``TakingPort``."""
        return [await self._write(each) for each in ledgers]

    async def taken(self, *, side: bool) -> TakenUpTo:
        """See ``TakingPort``."""
        if side and self._side is None:
            await self._warehouse.make(self._place.side, {})
            self._side = await self._warehouse.table(self._place.side)
        state = self._side if side else self._main
        return taken_up_to(None if state is None else state.properties, self._partition)

    async def commit(
        self, commit: TableCommit, written: Sequence[SimWritten], *, side: bool
    ) -> None:
        """See ``TakingPort``."""
        await self._job.step()
        state, place = self._side if side else self._main, self._place
        if state is None:
            raise TableError(f"table {place.table} is not there")
        files = {each.taken.ledger_id: each.side if side else each.main for each in written}
        added = [file for ledger_id in commit.ledger_ids for file in files[ledger_id]]
        name = place.side if side else place.table
        await self._warehouse.commit(name, state, commit.properties, added)
        await self._job.step()

    async def check_has(self, ledger: LedgerFacts) -> None:
        """See ``TakingPort``. No log is detached here, so nothing is forgotten."""
        raise TableError(f"the owner of {self._partition} has forgotten {ledger}")

    async def look(self) -> None:
        """See ``TakingPort``."""
        self._main = await self._warehouse.table(self._place.table)
        self._side = await self._warehouse.table(self._place.side)

    # -- one ledger ---------------------------------------------------------------------------

    async def _write(self, facts: LedgerFacts) -> SimWritten:
        await self._job.step()
        reader = await self._job.client.ledgers.open_no_recovery(facts.ledger_id)
        entries = await self._read(reader, facts)
        rng, plan = self._job.random, self._job.plan
        main: dict[int, list[Row]] = {}
        side: list[Row] = []
        messages = 0
        for entry_id, data in entries.items():
            rows, whole = _rows(facts.ledger_id, entry_id, data)
            messages += 1 if whole else len(rows)
            span = rng.randrange(plan.spread)
            for row in rows:
                beside = whole or _draw(row) < plan.unfit
                (side if beside else main.setdefault(span, [])).append(row)
        taken = TakenLedger(facts.ledger_id, len(entries), messages)
        files = [await self._put(rows) for rows in main.values()]
        return SimWritten(taken, files, [await self._put(side)] if side else [])

    async def _read(self, reader: ChainReader, facts: LedgerFacts) -> Mapping[int, bytes]:
        found: dict[int, bytes] = {}
        while len(found) < facts.entries:
            left = min(READ_ENTRIES, facts.entries - len(found))
            for entry in await reader.read(len(found), left, READ_BYTES):
                found[entry.entry_id] = bytes(entry.payload)
        return found

    async def _put(self, rows: Sequence[Row]) -> FileRef:
        return await self._warehouse.put(grouped(rows, self._job.plan.group_rows))


def _rows(ledger_id: int, entry_id: int, data: bytes) -> tuple[list[Row], bool]:
    """An entry's rows: its bytes in pieces, of which the first has the log's header whole; and
    whether it is kept whole."""
    try:
        meta = entry_metadata(memoryview(data))
        count, whole = meta.num_messages, meta.num_chunks > 1
    except ProtocolError:
        count, whole = 1, True
    if whole:
        return [Row(ledger_id, entry_id, WHOLE, data)], True
    head = header_bytes(data)
    size = -(-(len(data) - head) // count)
    ends = [0, *(head + size * at for at in range(1, count)), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    return [Row(ledger_id, entry_id, at, piece) for at, piece in enumerate(pieces)], False


def _draw(row: Row) -> float:
    """The same for a message whoever writes it: whether it fits its schema is not by chance."""
    return zlib.crc32(b"%d %d %d" % row[:3]) / 2**32


def grouped(rows: Sequence[Row], group_rows: int) -> Groups:
    """One ledger to a row group, entries whole, as the product writes them."""
    groups: list[list[Row]] = []
    for row in rows:
        last = groups[-1][-1] if groups else None
        full = last is not None and len(groups[-1]) >= group_rows and last[:2] != row[:2]
        if last is None or last.ledger_id != row.ledger_id or full:
            groups.append([])
        groups[-1].append(row)
    return tuple(tuple(group) for group in groups)
