"""Several brokers on one machine, each a process: one Python process uses one core.

``run_standalone`` has the metadata and the bookies in this process and shares both with the
brokers: the metadata through a Unix socket (``env.metadata_stores.socket_metadata``), the bookies
over TCP.
It serves HTTP on the port behind the brokers' own (``http.port`` + their number): health and
metrics of the bookies. Each broker tells that health with its own, so that whoever asks any of them
hears of a disk that fails.

``run_cluster`` has nothing but the brokers, of a cluster whose metadata is in ZooKeeper.

Broker i listens on the first one's ports plus i, and has a log directory of its own for
partitions: the first one has that of a standalone with one broker. Clients are given the first
one's address: it answers their lookups, or sends them on. Why:
docs/adr/0092-brokers-of-one-machine.md.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.app.children import Child, Children, Probe
from magnetar.app.fate import Fate
from magnetar.app.metadata_socket import share_metadata
from magnetar.app.outside import real
from magnetar.app.partitions import NOT_SET, with_partitions
from magnetar.app.process import Process
from magnetar.app.role_http import serve_health
from magnetar.app.standalone import check_bookies, start_bookies
from magnetar.app.storage import open_cluster, open_metadata
from magnetar.config import Config
from magnetar.env.files.data_dir import DataDir
from magnetar.env.network.free_ports import free_port
from magnetar.env.network.listening import ANY_ADDRESS, advertised_host, bind, host_port
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.model.errors import ConfigError

log = structlog.get_logger(__name__)


class Ports(NamedTuple):
    """Of one broker."""

    pulsar: int
    http: int
    kafka: int = -1
    tls: Sequence[tuple[str, int]] = ()
    """By the names of their settings."""


class Wanted(NamedTuple):
    """``brokers``: how many. ``settings``: arguments of ``magnetar broker`` that all have."""

    brokers: int
    settings: Sequence[str]


async def run_standalone(
    config: Config,
    bookies: int,
    leave_limbo: bool,
    wanted: Wanted,
    ready: Callable[[str], None],
    stopped: asyncio.Event,
) -> None:
    """As ``standalone.run``, with several brokers."""
    begun = time.perf_counter()
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        data_dir = DataDir.open(config.data_dir, "standalone")
        stack.callback(data_dir.close)
        check_bookies(data_dir, bookies)
        process = Process(config, real(), stack, fate)
        metadata = await open_metadata(process)
        cluster = await open_cluster(metadata, process.outside)
        ports = choose_ports(config, wanted.brokers)
        bound = bind(config.http.host, bookies_port(config, ports), "http.port")
        stack.callback(bound.close)
        await start_bookies(process, cluster, bookies, data_dir, leave_limbo)
        own_url = await serve_health(process, metadata, bound)
        wanted = wanted._replace(settings=(*wanted.settings, "--set", f"http.health_of={own_url}"))
        url = config.metadata.url
        if not url.startswith("zk://"):
            url = await share_metadata(process, metadata, data_dir.path)
        # Replicas reach one another through Kafka's ports: without those none are kept.
        kept = with_partitions(config, data_dir.path) if config.kafka.listens else config
        where = await start_brokers(process, wanted, url, kept.partition.directory, ports)
        log.info("ready", seconds=round(time.perf_counter() - begun, 3))
        plural = "bookie" if bookies == 1 else "bookies"
        ready(
            f"magnetar standalone is ready: {where}  "
            f"({wanted.brokers} brokers, {bookies} {plural}, whose health is at {own_url}, "
            f"data in {data_dir.path})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def run_cluster(
    config: Config, wanted: Wanted, ready: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """``magnetar cluster up``."""
    fate = Fate(stopped)
    async with AsyncExitStack() as stack:
        process = Process(config, real(), stack, fate)
        where = await start_brokers(process, wanted, config.metadata.url)
        ready(
            f"magnetar cluster is up: {where}  "
            f"({wanted.brokers} brokers, metadata {config.metadata.url})"
        )
        await fate.wait()
        log.info("ending")
    log.info("ended")


async def start_brokers(
    process: Process,
    wanted: Wanted,
    metadata_url: str,
    partitions: Path | None = None,
    ports: Sequence[Ports] = (),
) -> str:
    """Returns where the first one is. ``partitions``: the first one's log directory, if it is
    another than the configured one. ``ports``: theirs, if they are chosen already."""
    config = process.config
    partitions = config.partition.directory if partitions is None else partitions
    ports = ports or choose_ports(config, wanted.brokers)
    scope = TaskScope("brokers", ends_role(process.fate.fail))
    # By then others have its topics, for its session is over.
    silent_s = 2 * config.metadata.session_timeout_ms / 1000
    children = Children(
        [
            Child(
                f"broker {number}",
                _command(each, metadata_url, (*wanted.settings, *_keeping(partitions, number))),
                Probe(partial(_answers, config.http.host, each.http), silent_s),
            )
            for number, each in enumerate(ports)
        ],
        scope,
    )
    process.stack.push_async_callback(children.end)
    await children.start()
    broker, http = config.broker, config.http
    host = advertised_host(broker.host, broker.advertised_host)
    known_as = broker.advertised_host if http.host in ANY_ADDRESS else ""
    http_host = advertised_host(http.host, known_as)
    kafka_host = advertised_host(config.kafka.host, config.kafka.advertised_host)
    kafka = f"  kafka {host_port(kafka_host, ports[0].kafka)}" if ports[0].kafka >= 0 else ""
    if "kafka.tls_port" in (by_tls := dict(ports[0].tls)):
        kafka += f"  kafka+tls {host_port(kafka_host, by_tls['kafka.tls_port'])}"
    pulsar, rest = host_port(host, ports[0].pulsar), host_port(http_host, ports[0].http)
    return f"pulsar://{pulsar}  http://{rest}{kafka}"


def _keeping(partitions: Path, number: int) -> Sequence[str]:
    """Where that broker keeps partitions."""
    if partitions == NOT_SET:
        return ()
    own = partitions.with_name(f"{partitions.name}-{number}") if number else partitions
    return "--set", f"partition.directory={own}"


def _command(ports: Ports, metadata_url: str, settings: Sequence[str]) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "magnetar", "broker"),
        *settings,
        *("--port", str(ports.pulsar), "--http-port", str(ports.http)),
        *(("--kafka-port", str(ports.kafka)) if ports.kafka >= 0 else ()),
        *(part for name, port in ports.tls for part in ("--set", f"{name}={port}")),
        *("--metadata", metadata_url),
    ]


async def _answers(host: str, port: int) -> bool:
    """Whatever REST says: it is the same loop that serves clients. False: it does not listen, and
    so is about to end or to begin."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1" if host in ANY_ADDRESS else host, port
        )
        try:
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            await reader.read(1)
        finally:
            writer.close()
    except OSError:
        return False
    return True


def choose_ports(config: Config, brokers: int) -> Sequence[Ports]:
    """Of each broker; of a port that is 0 each has a free one, which it keeps when it is started
    again. Raises ``ConfigError`` when two would have the same."""
    plain = {
        "broker.port": (config.broker.host, config.broker.port),
        "http.port": (config.http.host, config.http.port),
    }
    if config.kafka.port >= 0:
        plain["kafka.port"] = (config.kafka.host, config.kafka.port)
    by_tls = {
        name: (config.tls.host or section.host, section.tls_port)
        for name, section in (
            ("broker.tls_port", config.broker),
            ("http.tls_port", config.http),
            ("kafka.tls_port", config.kafka),
        )
        if section.tls_port >= 0
    }
    settings = plain | by_tls
    # Those that are given first, so that no free one is one of them.
    taken = {
        name: free_ports(host, first, brokers, name)
        for name, (host, first) in settings.items()
        if first
    }
    given = {port for ports in taken.values() for port in ports}
    for (one, ports), (other, others) in combinations(taken.items(), 2):
        shared = sorted({*ports} & {*others})
        if shared:
            raise ConfigError(
                f"{brokers} brokers take the ports {ports[0]} to {ports[-1]} ({one}) and "
                f"{others[0]} to {others[-1]} ({other}), which have {shared[0]} in common; set "
                f"them {brokers} or more apart"
            )
    for name, (host, first) in settings.items():
        if not first:
            taken[name] = free_ports(host, 0, brokers, name, given)
    kafka = taken.get("kafka.port", [-1] * brokers)
    return [
        Ports(
            taken["broker.port"][number],
            taken["http.port"][number],
            kafka[number],
            [(name, taken[name][number]) for name in by_tls],
        )
        for number in range(brokers)
    ]


def bookies_port(config: Config, ports: Sequence[Ports]) -> int:
    """For HTTP of the process that has the bookies: behind those of the brokers, which have
    ``ports``; a free one where theirs are. Raises ``ConfigError`` when a broker has it."""
    taken = {port for each in ports for port in (each.pulsar, each.http, each.kafka)}
    taken |= {port for each in ports for _, port in each.tls}
    if config.http.port <= 0:
        (found,) = free_ports(config.http.host, 0, 1, "http.port", taken)
        return found
    found = ports[-1].http + 1
    if found in taken:
        raise ConfigError(
            f"port {found}, behind the brokers' http.port, is for the health of the bookies, and a "
            f"broker listens there for something else; set the ports {len(ports) + 1} or more apart"
        )
    return found


def free_ports(
    host: str, first: int, count: int, setting: str, but: Collection[int] = ()
) -> Sequence[int]:
    """Consecutive ones from ``first`` on; of 0, as many that are free now, none of ``but``, and
    that no other call gets."""
    if first:
        return [first + number for number in range(count)]
    chosen: list[int] = []
    while len(chosen) < count:
        if (port := free_port(host, setting)) not in but:
            chosen.append(port)
    return chosen
