"""A whole cluster on one machine, each server a process: a ZooKeeper ensemble, bookies, brokers.

To try things on what is run in production, kills and all: every server may be killed (by its pid),
and is started again under its ports. Servers of one kind are started together, and a kind when the
one below it is ready; they end in the opposite order. Everything lies below one data directory:
``zookeeper-0``, ..., ``bookie-0``, ...
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from magnetar.app.children import Child, Children
from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.several import Wanted, choose_ports, free_ports, start_brokers
from magnetar.config import Config
from magnetar.env.files.data_dir import DataDir
from magnetar.env.tasks import TaskScope, ends_role

log = structlog.get_logger(__name__)

ROOT: Final = "/magnetar"
HOST: Final = "127.0.0.1"
MAGNETAR: Final = (sys.executable, "-m", "magnetar")


class LocalCluster(NamedTuple):
    """How many of each; ``zookeeper_port``: of the first, 0: free ones. ``zookeepers`` 0: the
    metadata store is what ``metadata.url`` says."""

    zookeepers: int
    zookeeper_port: int
    bookies: int
    brokers: Wanted


async def run_local_cluster(
    config: Config, wanted: LocalCluster, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar cluster up`` with servers below the brokers."""
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "cluster")
        stack.callback(data_dir.close)
        process = Process(config, real(), stack, fate)
        choose_ports(config, wanted.brokers.brokers)  # what cannot be is said before all starts
        url = config.metadata.url
        if wanted.zookeepers:
            url = await _start_zookeepers(process, wanted, data_dir.path)
        await _start_bookies(process, wanted, data_dir.path, url)
        where = await start_brokers(process, wanted.brokers, url)
        ready(
            f"magnetar cluster is up: {where}  ({wanted.zookeepers} zookeepers, {wanted.bookies} "
            f"bookies, {wanted.brokers.brokers} brokers; metadata {url}, data in {data_dir.path})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def _start(process: Process, kind: str, commands: Sequence[Sequence[str]]) -> None:
    scope = TaskScope(kind, ends_role(process.fate.fail))
    named = [Child(f"{kind} {n}", [*MAGNETAR, *each]) for n, each in enumerate(commands)]
    children = Children(named, scope)
    process.stack.push_async_callback(children.end)
    await children.start()


async def _start_zookeepers(process: Process, wanted: LocalCluster, folder: Path) -> str:
    """Returns the cluster's metadata URL."""
    count = wanted.zookeepers
    ports = free_ports(HOST, wanted.zookeeper_port, count, "--zookeeper-port")
    # Of a server that stands alone there are no others to talk to.
    peers = free_ports(HOST, 0, 2 * count, "port of an ensemble's member") if count > 1 else ()
    members = [f"{peers[2 * n]}:{peers[2 * n + 1]}" for n in range(len(peers) // 2)]
    listed = [word for member in members for word in ("--member", member)]
    commands = [
        [
            *("zookeeper", "--data-dir", str(folder / f"zookeeper-{number}")),
            *("--port", str(port), *listed),
            *(("--number", str(number)) if members else ()),
        ]
        for number, port in enumerate(ports)
    ]
    await _start(process, "zookeeper", commands)
    return f"zk://{','.join(f'{HOST}:{port}' for port in ports)}{ROOT}"


async def _start_bookies(
    process: Process, wanted: LocalCluster, folder: Path, metadata_url: str
) -> None:
    config = process.config.bookie
    ports = free_ports(config.host, config.port, wanted.bookies, "bookie.port")
    commands = [
        [
            *("bookie", *wanted.brokers.settings),
            *("--data-dir", str(folder / f"bookie-{number}"), "--port", str(port)),
            # A name that outlives a port that was free.
            *("--set", f"bookie.bookie_id=bookie-{number}", "--metadata", metadata_url),
        ]
        for number, port in enumerate(ports)
    ]
    await _start(process, "bookie", commands)
