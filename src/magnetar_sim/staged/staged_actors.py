"""Queries of the simulator: drivers, tasks and their attempts, as an engine runs them that retries
tasks, runs twins of slow ones, loses drivers and starts others while the old may still live.

The parts of the product that write and commit are the product's (``magnetar.staging``). Each
attempt gives other rows than any other of its task, and more or fewer of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.env.metadata import Versioned
from magnetar.model.errors import MagnetarError, StaleRunError
from magnetar.pipeline.brokers.link import BrokerLink
from magnetar.pipeline.brokers.staging import query_records
from magnetar.staging.collecting import Leftovers
from magnetar.staging.commit_rules import Offer
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.marks import sender
from magnetar.staging.queries import Queries, QueryRecords
from magnetar.staging.records import Origin, QueryRecord
from magnetar.staging.writer import StagedWriter
from magnetar_sim.brokers.brokers import BROKER_PORT
from magnetar_sim.brokers.pulsar_client import encode_payload
from magnetar_sim.brokers.topic_history import Content, content_of
from magnetar_sim.cluster.cluster import Client, Cluster
from magnetar_sim.staged.staged_world import Offered, Query, StagedWorld
from magnetar_sim.world.loop import SimProcess, run_in
from magnetar_sim.world.outside import SINCE_1970_S

ATTEMPTS_MAX = 4
TASK_S = 12.0
"""How long a driver waits for an attempt before it takes it for lost."""
BACKLOG_S = 20.0
BROKERS_S = 5.0
"""How long drivers and tasks wait for a broker."""


@dataclass(frozen=True)
class QueryPlan:
    """What a query is like; chances are per task, batch or run."""

    tasks: int
    entries_max: int
    inline_bytes_max: int
    batch_inline_bytes_max: int
    pause_s: float
    fails: float
    twins: float
    dies: float
    """Before or after its commit."""
    haunts: float
    """The driver is taken for dead and lives on."""


@dataclass(frozen=True)
class _Attempted:
    offer: Offer
    seen: Versioned
    contents: dict[tuple[str, int], list[Content]]


class Reach:
    """How drivers and tasks come to the records of queries: in the metadata store, or, with
    ``hosts``, by what these brokers do for them."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._addresses = [(host, BROKER_PORT) for host in hosts]
        self._links: dict[str, BrokerLink] = {}

    def queries(self, client: Client) -> QueryRecords:
        """To be used in the client's process."""
        if not self._addresses:
            return Queries(client.store)
        link = self._links.get(client.name)
        if link is None:
            link = self._links[client.name] = BrokerLink(self._addresses, BROKERS_S)
        return query_records(link)


class Engine:
    """Runs one query to its end, on drivers of its own and on shared workers."""

    def __init__(
        self,
        cluster: Cluster,
        world: StagedWorld,
        query: Query,
        plan: QueryPlan,
        workers: Sequence[Client],
        rng: random.Random,
        reach: Reach,
    ) -> None:
        self._reach = reach
        self.drivers: list[Client] = []
        self.calm = False
        """No more failures of its own making."""
        self._cluster = cluster
        self._world = world
        self._query = query
        self._plan = plan
        self._workers = workers
        self._random = rng
        self._attempts = 0
        self._starts = 0

    @property
    def current(self) -> Client | None:
        return self.drivers[-1] if self.drivers else None

    async def supervise(self) -> None:
        """Start a driver, and another when it ends or is taken for dead, until all is done. Runs as
        nobody: a supervisor that fails is not what is looked at."""
        rng = self._random
        while not self._query.done:
            driver, run = self._start()
            task = driver.process.spawn(self._drive(driver, run), f"run {run}")
            haunted_s = rng.uniform(0.5, 4.0) if self._chance(self._plan.haunts) else None
            begun_s = self._cluster.loop.time()
            while not task.done() and driver.process.alive:
                await asyncio.sleep(0.05)
                if haunted_s is not None and self._cluster.loop.time() > begun_s + haunted_s:
                    self._haunt(driver.process)
                    break
            await asyncio.sleep(rng.uniform(0.05, 0.4))

    def _chance(self, chance: float) -> bool:
        return not self.calm and self._random.random() < chance

    def _start(self) -> tuple[Client, str]:
        self._starts += 1
        name = f"{self._query.name}-driver{self._starts}"
        driver = self._cluster.client(name)
        self.drivers.append(driver)
        return driver, f"run{self._starts}"

    def _haunt(self, process: SimProcess) -> None:
        """It is taken for dead: it stands still for a while, or is only slow."""
        self._cluster.count("drivers that lived on")
        self._cluster.trace.note(process.name, "is taken for dead")
        if self._random.random() < 0.7:
            process.pause()
            lasts_s = self._random.choice((0.3, 1.5, 4.0))
            self._cluster.loop.call_later(lasts_s, process.resume)

    # -- a driver -----------------------------------------------------------------------------

    async def _drive(self, driver: Client, run: str) -> None:
        """Until all is done, or it fails: as an engine ends a query whose batch fails."""
        query, note = self._query, self._cluster.trace.note
        try:
            while not query.done:
                await self._run_batch(driver, QueryRun(query.name, run), query.finished + 1)
                await asyncio.sleep(self._plan.pause_s * self._random.random())
        except StaleRunError as error:
            self._cluster.count("runs that were refused")
            note(driver.name, f"is refused: {error}")
        except MagnetarError as error:
            note(driver.name, f"fails: {error}")

    async def _run_batch(self, driver: Client, run: QueryRun, batch: int) -> None:
        done = [await self._run_task(driver, run, batch, n) for n in range(self._plan.tasks)]
        offers = [each.offer for each in done]
        contents = {key: c for each in done for key, c in each.contents.items()}
        self._world.is_offered(self._query, batch, Offered(run.run, offers, contents))
        inline_bytes_max = self._plan.batch_inline_bytes_max
        committer = Committer(self._reach.queries(driver), driver.ledgers, inline_bytes_max)
        self._die(driver, "before its commit")
        try:
            if not offers:
                return
            seen = max((each.seen for each in done), key=lambda each: each.version)
            verdict = await committer.commit(run, batch, offers, BACKLOG_S, seen=seen)
        except StaleRunError:
            raise
        except MagnetarError:
            await committer.give_up(run, batch, offers)
            raise
        self._cluster.trace.note(driver.name, f"batch {batch} is {verdict.value}")
        self._cluster.count(f"commits answered with {verdict.value}")
        self._world.is_told(self._query, batch)
        self._die(driver, "after its commit")
        self._query.finished = max(self._query.finished, batch)

    def _die(self, driver: Client, when: str) -> None:
        if self._chance(self._plan.dies):
            self._cluster.count(f"drivers that died {when}")
            delay_s = self._random.choice((0.0, 0.005, 0.02))
            self._cluster.loop.call_later(delay_s, driver.kill)

    # -- its tasks ----------------------------------------------------------------------------

    async def _run_task(self, driver: Client, run: QueryRun, batch: int, part: int) -> _Attempted:
        """Of several attempts the first that ends is taken; what the others do is their affair."""
        for _ in range(ATTEMPTS_MAX):
            count = 2 if self._chance(self._plan.twins) else 1
            attempts = [
                driver.process.spawn(self._attempt(run, batch, part), f"{batch}/{part}")
                for _ in range(count)
            ]
            for _ in range(int(TASK_S / 0.02)):
                await asyncio.sleep(0.02)
                ended = [each for each in attempts if each.done()]
                results = [each.result() for each in ended]
                found = [each for each in results if each is not None]
                if found:
                    if count > 1:
                        self._cluster.count("tasks with twins")
                    return self._random.choice(found)
                if len(ended) == len(attempts):
                    break
        raise MagnetarError(f"task {part} of batch {batch} failed {ATTEMPTS_MAX} times")

    async def _attempt(self, run: QueryRun, batch: int, part: int) -> _Attempted | None:
        """None: it failed."""
        self._attempts += 1
        worker = self._random.choice(self._workers)
        label = f"{self._query.name}.{batch}.{part}.{self._attempts}"
        fails = self._chance(self._plan.fails)
        return await run_in(
            worker.process, self._write(worker, run, batch, part, label, fails), label
        )

    async def _write(
        self, worker: Client, run: QueryRun, batch: int, part: int, label: str, fails: bool
    ) -> _Attempted | None:
        """As a task does, in the worker's process."""
        plan, rng, contents = self._plan, self._random, dict[tuple[str, int], list[Content]]()
        origin = Origin(run.query, run.run, batch, part, label)
        writer = StagedWriter(worker.ledgers, origin, plan.inline_bytes_max)
        try:
            record, seen = await self._reach.queries(worker).begin(*run)
            index = 0
            for _ in range(rng.randint(0, plan.entries_max)):
                topic = rng.choice(self._query.topics)
                burst: list[bytes] = []
                for _ in range(rng.choice((1, 1, 4))):
                    count = rng.choice((1, 1, 3))
                    texts = tuple(
                        b"%s/%d" % (label.encode(), index + i) + b" " + b"x" * rng.randrange(60)
                        for i in range(count)
                    )
                    index += count
                    number = writer.entries_of(topic) + len(burst)
                    burst.append(self._entry(record, batch, part, number, texts))
                told = [content_of(memoryview(payload)) for payload in burst]
                contents.setdefault((topic, part), []).extend(told)
                await writer.add(topic, burst, sum(len(each.texts) for each in told))
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.02)))
                if fails and rng.random() < 0.5:
                    raise MagnetarError("fails by plan")
            return _Attempted(await writer.finish(), seen, contents)
        except MagnetarError as error:
            self._cluster.trace.note(worker.name, f"attempt {label}: {error}")
            stale = isinstance(error, StaleRunError)
            self._cluster.count("runs that were refused" if stale else "attempts that failed")
            await writer.abandon()
            return None

    def _entry(
        self, record: QueryRecord, batch: int, part: int, number: int, texts: Sequence[bytes]
    ) -> bytes:
        now_ms = int((SINCE_1970_S + self._cluster.loop.time()) * 1000)
        name = sender(record.key(self._query.name), batch, part)
        return encode_payload(name, number, now_ms, texts)


class Sweeper:
    """Deletes what is left over, again and again, as a broker does now and then."""

    def __init__(self, client: Client, every_s: float) -> None:
        self.client = client
        self._every_s = every_s
        client.process.spawn(self._sweep(), "leftovers")

    async def _sweep(self) -> None:
        client = self.client
        leftovers = Leftovers(Queries(client.store), client.ledgers, lambda: 0)
        while True:
            await asyncio.sleep(self._every_s)
            try:
                gone = await leftovers.collect(client.manager.iterate())
            except MagnetarError as error:
                client.cluster.trace.note(client.name, f"{error}")
            else:
                for _ in gone:
                    client.cluster.count("staged ledgers left over and deleted")
