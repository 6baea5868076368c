"""``magnetar cluster``: this machine's share of a cluster."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from magnetar.cli import process
from magnetar.cli.bookies import cluster_id, cluster_info
from magnetar.cli.decommission_plan import plan_decommission
from magnetar.cli.paths import GivenPath
from magnetar.cli.servers import (
    BOOKIES_MAX,
    BROKERS_MAX,
    PORT,
    clustered,
    common_options,
    configured,
    passed_on,
    quorum_options,
    quorums,
)
from magnetar.model.errors import ConfigError

ZOOKEEPERS_MAX = 7


@click.group()
def cluster() -> None:
    """Run a cluster on this machine, or its share of one; plan changes of one.

    \b
    Examples:
      magnetar cluster up --zookeepers 3 --bookies 3 --brokers 2 --data-dir /tmp/cluster
      magnetar cluster up --metadata zk://127.0.0.1:2181/magnetar
      magnetar cluster plan-decommission 10.0.0.7:3181 --metadata zk://127.0.0.1:2181/magnetar
    """


for command in (cluster_id, cluster_info, plan_decommission):
    cluster.add_command(command)


@cluster.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=lambda: min(len(os.sched_getaffinity(0)), BROKERS_MAX),
    show_default="one a core",
    help="How many.",
)
@click.option(
    "--zookeepers",
    type=click.IntRange(0, ZOOKEEPERS_MAX),
    default=0,
    help="Servers of a ZooKeeper ensemble to run as well (it needs Java).  [0]",
)
@click.option(
    "--bookies", type=click.IntRange(0, BOOKIES_MAX), default=0, help="To run as well.  [0]"
)
@click.option("--data-dir", type=GivenPath(), help="Of ZooKeeper and bookies.")
@click.option("--zookeeper-port", type=PORT, default=2181, help="Of the first.  [2181]")
@click.option("--bookie-port", type=PORT, help="Of the first; 0: free ones.  [3181]")
@click.option("--port", type=PORT, help="Pulsar's protocol, of the first; 0: free ones.  [6650]")
@click.option("--http-port", type=PORT, help="REST, of the first; 0: free ones.  [8080]")
@click.option("--metadata", help="zk://HOST:PORT/ROOT, the cluster's.")
@common_options
def up(
    brokers: int,
    zookeepers: int,
    bookies: int,
    data_dir: Path | None,
    zookeeper_port: int,
    bookie_port: int | None,
    port: int | None,
    http_port: int | None,
    metadata: str | None,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run as many brokers of a cluster as this machine has cores, or a whole cluster.

    Each is a process; broker i listens on --port + i and --http-port + i. One that dies is started
    again, after a pause that grows if it dies soon. On SIGTERM or Ctrl-C all hand their topics over
    and end. Clients may be given the address of any of them.

    With --zookeepers and --bookies these run as well, each a process that may be killed and comes
    back: a cluster as in production, on one machine. Quorums are as of `magnetar standalone`.

    \b
    Examples:
      magnetar cluster up --metadata zk://127.0.0.1:2181/magnetar
      magnetar cluster up --zookeepers 3 --bookies 3 --brokers 2 --data-dir /tmp/cluster
    """
    if zookeepers and metadata is not None:
        raise ConfigError("--zookeepers makes a metadata store of its own: leave out --metadata")
    if (zookeepers or bookies) and data_dir is None:
        raise ConfigError("--zookeepers and --bookies need a --data-dir")
    flags: dict[str, object] = {
        "data_dir": data_dir,
        "bookie.port": bookie_port,
        "broker.port": port,
        "http.port": http_port,
        "metadata.url": metadata,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = configured(file, pairs, flags, quorums(bookies) if bookies else None)
    if not zookeepers:
        clustered(config)
    from magnetar.app.several import Wanted, run_cluster

    settings = passed_on(file, pairs, log_level, log_json)
    if not (zookeepers or bookies):
        process.serve(config, partial(run_cluster, config, Wanted(brokers, settings)))
        return
    from magnetar.app.local_cluster import LocalCluster, run_local_cluster

    quorum = quorum_options(config) if bookies else ()
    wanted = LocalCluster(
        zookeepers, zookeeper_port, bookies, Wanted(brokers, (*settings, *quorum))
    )
    process.serve(config, partial(run_local_cluster, config, wanted))
