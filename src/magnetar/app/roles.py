"""The roles of a cluster, each a process of its own: bookie, broker, and ZooKeeper to try with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from magnetar.app.fate import Fate
from magnetar.config import BookieConfig, Config
from magnetar.env.files.data_dir import DataDir
from magnetar.env.metadata import SessionState
from magnetar.env.metadata_stores.zookeeper_server import EnsembleMember, ZooKeeperServer
from magnetar.env.network.listening import ANY_ADDRESS, advertised_host, bind, check_free
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.model.errors import ConfigError, MetadataUnavailableError

if TYPE_CHECKING:
    from magnetar.app.process import Process
    from magnetar.app.serving import BrokerParts
    from magnetar.app.storage import Cluster, StartedBookie

log = structlog.get_logger(__name__)

ZOOKEEPER_CHECK_S = 1.0


async def run_bookie(
    config: Config, leave_limbo: bool, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar bookie``."""
    from magnetar.app.outside import real
    from magnetar.app.process import Process
    from magnetar.app.refusals import follow_refusals
    from magnetar.app.repairing import start_beside_bookie
    from magnetar.app.role_http import bind_http, serve_bookie

    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        bound = bind_http(config)
        if bound is not None:
            stack.callback(bound.close)
        # Before its cookie: with that no other directory may begin under its name.
        check_free((config.bookie.host, config.bookie.port, "bookie.port"))
        data_dir = DataDir.open(config.data_dir, "bookie")
        stack.callback(data_dir.close)
        process = Process(config, real(), stack, fate)
        cluster, bookie = await open_bookie(process, leave_limbo)
        bookie_id = bookie.client.bookie_id
        await follow_refusals(process, cluster, bookie_id, bookie.core)
        if config.repair.in_bookies:
            await start_beside_bookie(process, cluster, bookie_id, bookie.core)
        url = await serve_bookie(process, cluster, bookie, bound) + "  " if bound else ""
        ready(
            f"magnetar bookie is ready: {bookie_id}  {url}"
            f"(metadata {config.metadata.url}, data in {data_dir.path})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def open_bookie(process: Process, leave_limbo: bool) -> tuple[Cluster, StartedBookie]:
    """The whole of a bookie's role but what repair does beside it. Its data directory is this
    process's alone."""
    from magnetar.app.storage import open_cluster, open_metadata, start_bookie

    data_dir = process.config.data_dir
    placed = named_bookie(process.config.bookie, data_dir)
    cluster = await open_cluster(await open_metadata(process), process.outside)
    return cluster, await start_bookie(process, cluster, placed, data_dir, leave_limbo)


async def run_autorecovery(
    config: Config, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar autorecovery``."""
    from magnetar.app.outside import real
    from magnetar.app.process import Process
    from magnetar.app.role_http import bind_http, serve_autorecovery

    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        bound = bind_http(config)
        if bound is not None:
            stack.callback(bound.close)
        process = Process(config, real(), stack, fate)
        name = await open_autorecovery(process)
        url = await serve_autorecovery(process, bound) + "  " if bound else ""
        ready(f"magnetar autorecovery is ready: {name}  {url}(metadata {config.metadata.url})")
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def open_autorecovery(process: Process) -> str:
    """The whole of the role; returns the name by which it is known in the metadata store."""
    from magnetar.app.outside import SOCKET_SCHEME
    from magnetar.app.repairing import start_autorecovery
    from magnetar.app.storage import open_cluster, open_metadata

    metadata = await open_metadata(process)
    if process.config.metadata.url.startswith(SOCKET_SCHEME):
        process.stack.callback(metadata.watch_session(partial(_ends_with_standalone, process)))
    cluster = await open_cluster(metadata, process.outside)
    recovery = await start_autorecovery(process, cluster, "autorecovery")
    return recovery.name


def _ends_with_standalone(process: Process, state: SessionState) -> None:
    """ZooKeeper gives who has lost a session another one; a process that has ended gives none."""
    if state is SessionState.EXPIRED:
        process.fate.fail(
            MetadataUnavailableError(
                "the standalone whose ledgers are repaired here has ended; start this again when "
                "it runs"
            )
        )


def named_bookie(config: BookieConfig, data_dir: Path) -> BookieConfig:
    """With an id and directories. Raises ``ConfigError`` when the id would not last."""
    if not config.bookie_id and (config.port == 0 or _nameless(config)):
        raise ConfigError(
            f"bookie.host = {config.host!r} with bookie.port = {config.port} makes no lasting name "
            "for the bookie; set bookie.bookie_id, or bookie.advertised_host and a port"
        )
    host = advertised_host(config.host, config.advertised_host)
    return replace(
        config,
        bookie_id=config.bookie_id or f"{host}:{config.port}",
        ledger_directories=config.ledger_directories or (data_dir / "ledgers",),
        journal=replace(
            config.journal, directories=config.journal.directories or (data_dir / "journal",)
        ),
    )


def _nameless(config: BookieConfig) -> bool:
    return config.host in ANY_ADDRESS and not config.advertised_host


async def run_broker(
    config: Config, read_only: bool, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar broker``, with ``--read-only`` or without."""
    from magnetar.app.outside import real
    from magnetar.app.process import Process
    from magnetar.app.serving import RestServer, storage_warning

    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        bound = bind(config.http.host, config.http.port, "http.port")
        stack.callback(bound.close)
        scope = TaskScope("broker role", ends_role(fate.fail))
        stack.push_async_callback(scope.close)
        process = Process(config, real(), stack, fate)
        rest = RestServer(scope, process, bound)
        urls = rest.url(config), rest.tls_url(config)
        parts = await open_broker(process, urls[0], read_only, urls[1])
        url = await rest.start(process, parts)
        warning = await storage_warning(process)
        role = "read-only broker" if read_only else "broker"
        kafka = "" if parts.broker.kafka is None else f"{parts.broker.kafka.listening}  "
        ready(
            f"magnetar {role} is ready: {parts.broker.service_url}  {url}  {kafka}"
            f"(metadata {config.metadata.url}){warning}"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def open_broker(
    process: Process, http_url: str = "", read_only: bool = False, http_url_tls: str = ""
) -> BrokerParts:
    """The whole of a broker's role but its REST, which is at these addresses. It shares the
    cluster's topics with other brokers; one that is ``read_only`` serves subscriptions of
    theirs."""
    from magnetar.app.serving import BrokerParts, Membership, start_broker
    from magnetar.app.storage import open_cluster, open_ledgers, open_metadata

    metadata = await open_metadata(process)
    cluster = await open_cluster(metadata, process.outside)
    ledgers = open_ledgers(process, cluster, {})
    membership = Membership(http_url, True, read_only, http_url_tls)
    broker = await start_broker(process, cluster, ledgers, membership)
    return BrokerParts(cluster, ledgers, broker)


async def run_zookeeper(
    config: Config,
    port: int,
    membership: EnsembleMember | None,
    ready: Callable[[str], None],
    stopped: asyncio.Event,
) -> None:
    """``magnetar zookeeper``: ends with an error when the server does."""
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "zookeeper")
        stack.callback(data_dir.close)
        server = ZooKeeperServer(data_dir.path, port, membership)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        server.launch()  # in this thread, which lives as long as the process
        await asyncio.to_thread(server.wait_ready)
        scope = TaskScope("zookeeper", ends_role(fate.fail))
        stack.push_async_callback(scope.close)
        scope.spawn(_watch(server, fate), "watch")
        ready(f"ZooKeeper is ready: zk://{server.address}/  (data in {data_dir.path})")
        await fate.wait()


async def _watch(server: ZooKeeperServer, fate: Fate) -> None:
    while True:
        await asyncio.sleep(ZOOKEEPER_CHECK_S)
        code = server.exit_code()
        if code is not None:
            log_file = server.data_dir / "zookeeper.log"
            fate.fail(MetadataUnavailableError(f"ZooKeeper ended with code {code}; see {log_file}"))
            return
