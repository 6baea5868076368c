"""``magnetar standalone``: metadata, bookies, broker and REST in one process.

Why: docs/adr/0074-standalone-layout.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog

from magnetar.app.checks import bookie_check
from magnetar.app.fate import Fate
from magnetar.app.metadata_socket import share_with_operators
from magnetar.app.outside import real
from magnetar.app.partitions import with_partitions
from magnetar.app.process import Process
from magnetar.app.refusals import follow_refusals
from magnetar.app.serving import (
    BrokerParts,
    Membership,
    RestServer,
    claim_cluster,
    start_broker,
    storage_warning,
)
from magnetar.app.storage import (
    Cluster,
    StartedBookie,
    open_cluster,
    open_ledgers,
    open_metadata,
    place_bookie,
    start_bookie,
)
from magnetar.bookie.serving.local import LocalBookie
from magnetar.config import Config
from magnetar.env.files.data_dir import DataDir
from magnetar.env.files.start_reserve import make_room
from magnetar.env.network.listening import bind, check_free
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.model.errors import StartError

log = structlog.get_logger(__name__)


async def run(
    config: Config,
    bookies: int,
    leave_limbo: bool,
    ready: Callable[[str], None],
    stopped: asyncio.Event,
) -> None:
    """Run until ``stopped``; ``ready`` is called once, with the line to print. ``leave_limbo``: see
    ``app.storage.start_bookie``.

    Raises ``StartError`` (port or directory in use), and what a part fails with.
    """
    begun = time.perf_counter()
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "standalone")  # in use: says more than ports do
        check_free(
            (config.broker.host, config.broker.port, "broker.port"),
            (config.kafka.host, config.kafka.port, "kafka.port"),
        )
        stack.callback(data_dir.close)
        make_room(data_dir.path)  # before anything is written
        check_bookies(data_dir, bookies)
        config = with_partitions(config, data_dir.path)
        process = Process(config, real(), stack, fate)
        line = await _start(process, bookies, data_dir, leave_limbo)
        log.info("ready", seconds=round(time.perf_counter() - begun, 3))
        ready(line)
        await fate.wait()
        log.info("ending")
    log.info("ended")


def check_bookies(data_dir: DataDir, bookies: int) -> None:
    """A bookie that is left out takes its copies with it. Raises ``StartError``."""
    held = data_dir.bookies_held()
    if held > bookies:
        raise StartError(
            f"the data directory {data_dir.path} holds {held} bookies; start with --bookies {held} "
            "or more, so that every stored message can be read"
        )


async def _start(process: Process, bookies: int, data_dir: DataDir, leave_limbo: bool) -> str:
    config, stack = process.config, process.stack
    bound = bind(config.http.host, config.http.port, "http.port")
    stack.callback(bound.close)
    scope = TaskScope("standalone", ends_role(process.fate.fail))
    stack.push_async_callback(scope.close)
    rest = RestServer(scope, process, bound)
    metadata = await open_metadata(process)
    cluster = await open_cluster(metadata, process.outside)
    shares = config.metadata.url.startswith("zk://")  # there may be brokers beside this one
    if not shares:
        await claim_cluster(process, metadata)
    clients = await start_bookies(process, cluster, bookies, data_dir, leave_limbo)
    local = {client.bookie_id: client for client in clients}
    ledgers = open_ledgers(process, cluster, local)
    membership = Membership(rest.url(config), shares, http_url_tls=rest.tls_url(config))
    broker = await start_broker(process, cluster, ledgers, membership)
    url = await rest.start(process, BrokerParts(cluster, ledgers, broker))
    if not shares:
        await share_with_operators(process, metadata, data_dir.path)
    warning = await storage_warning(process)
    plural = "bookie" if bookies == 1 else "bookies"
    kafka = "" if broker.kafka is None else f"{broker.kafka.listening}  "
    return (
        f"magnetar standalone is ready: {broker.service_url}  {url}  {kafka}"
        f"({bookies} {plural}, data in {data_dir.path}){warning}"
    )


async def start_bookies(
    process: Process, cluster: Cluster, count: int, data_dir: DataDir, leave_limbo: bool
) -> list[LocalBookie]:
    """The bookies of this process, one after the other. Raises ``StartError``: they hold what the
    metadata store has forgotten, which ``leave_limbo`` lets go."""
    started = [
        await _start_bookie(process, cluster, index, data_dir, leave_limbo)
        for index in range(count)
    ]
    if not process.config.metadata.url.startswith("zk://"):  # where all ids are its own
        for each in started:
            await _check_age(cluster, each, leave_limbo)
    for each in started:
        await follow_refusals(process, cluster, each.client.bookie_id, each.core)
    return [each.client for each in started]


async def _check_age(cluster: Cluster, started: StartedBookie, leave_limbo: bool) -> None:
    """A ledger's id is stored before any bookie hears of it. If one has a ledger with an id that
    was not given yet, the store is an older one: a part of its file (after a kill, of its write-
    ahead log) was lost. Topics would be without their last messages then, the ids be given again,
    and the ledgers be deleted, since nothing names them. Raises ``StartError``."""
    given = await cluster.manager.new_ledger_id()
    unknown = await started.core.ledgers(given)
    if unknown and not leave_limbo:
        raise StartError(
            f"{started.client.bookie_id} holds ledger {unknown[0]} (and {len(unknown) - 1} more), "
            f"and the metadata store has given no id above {given - 1}: metadata.sqlite or "
            "metadata.sqlite-wal was damaged, cut, removed or replaced by an older copy. Restore "
            "both from a copy; to go on without what was stored since, start once with "
            "--leave-limbo: those ledgers are deleted then"
        )
    while unknown and given <= unknown[-1]:  # no id is given twice
        given = await cluster.manager.new_ledger_id()
        unknown = await started.core.ledgers(given)


async def _start_bookie(
    process: Process, cluster: Cluster, index: int, data_dir: DataDir, leave_limbo: bool
) -> StartedBookie:
    journal, ledgers = data_dir.journal_directory(index), data_dir.ledger_directory(index)
    placed = place_bookie(process.config.bookie, index, journal, ledgers)
    started = await start_bookie(process, cluster, placed, data_dir.path, leave_limbo)
    process.health.add(placed.bookie_id, bookie_check(started.core))
    return started
