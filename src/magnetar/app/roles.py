"""The roles of a cluster, each a process of its own: bookie, broker, and ZooKeeper to try with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from magnetar.app.fate import Fate
from magnetar.config import BookieConfig, Config
from magnetar.env.data_dir import DataDir
from magnetar.env.listening import ANY_ADDRESS, advertised_host, bind
from magnetar.env.tasks import TaskScope
from magnetar.env.zookeeper_server import ZooKeeperServer
from magnetar.metrics import Metrics
from magnetar.model.errors import ConfigError, MetadataUnavailableError

log = structlog.get_logger(__name__)

ZOOKEEPER_CHECK_S = 1.0


async def run_bookie(
    config: Config, leave_limbo: bool, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar bookie``."""
    from magnetar.app.storage import open_cluster, open_metadata, start_bookie

    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "bookie")
        stack.callback(data_dir.close)
        placed = named_bookie(config.bookie, data_dir.path)
        metadata = await open_metadata(stack, config, data_dir.metadata_file)
        cluster = await open_cluster(metadata)
        timeout_ms = config.metadata.session_timeout_ms
        await start_bookie(
            stack, cluster, placed, timeout_ms, data_dir.path, Metrics(), fate, leave_limbo
        )
        ready(
            f"magnetar bookie is ready: {placed.bookie_id}  "
            f"(metadata {config.metadata.url}, data in {data_dir.path})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


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


async def run_broker(config: Config, ready: Callable[[str], None], stopped: asyncio.Event) -> None:
    """``magnetar broker``."""
    from magnetar.app.serving import (
        Rest,
        broker_health,
        claim_cluster,
        http_url,
        ledger_queries,
        start_broker,
        topic_queries,
    )
    from magnetar.app.storage import open_cluster, open_ledgers, open_metadata

    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        bound = bind(config.http.host, config.http.port, "http.port")
        stack.callback(bound.close)
        scope = TaskScope("broker role")
        stack.push_async_callback(scope.close)
        rest = Rest(scope, bound)
        metrics = Metrics()
        metadata = await open_metadata(stack, config, config.data_dir / "metadata.sqlite")
        cluster = await open_cluster(metadata)
        await claim_cluster(stack, metadata, config, fate)
        ledgers = open_ledgers(stack, cluster, config, {})
        broker = await start_broker(stack, metadata, ledgers, config, metrics)
        url = http_url(config, bound)
        stored = ledger_queries(cluster, ledgers, config, [])
        await rest.start(
            stack,
            metrics,
            topic_queries(broker, url),
            stored,
            [broker.fold_metrics],
            broker_health(metadata, ledgers, config),
        )
        ready(
            f"magnetar broker is ready: {broker.service_url}  {url}  "
            f"(metadata {config.metadata.url})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def run_zookeeper(
    config: Config, port: int, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar zookeeper``: ends with an error when the server does."""
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "zookeeper")
        stack.callback(data_dir.close)
        server = ZooKeeperServer(data_dir.path, port)
        stack.push_async_callback(asyncio.to_thread, server.stop)
        await asyncio.to_thread(server.start)
        scope = TaskScope("zookeeper")
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
