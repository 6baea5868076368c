"""``magnetar cluster``: this machine's share of a cluster."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from magnetar.cli import process
from magnetar.cli.servers import (
    BROKERS_MAX,
    PORT,
    clustered,
    common_options,
    configured,
    passed_on,
)


@click.group()
def cluster() -> None:
    """Run this machine's share of a cluster.

    \b
    Example:
      magnetar cluster up --metadata zk://127.0.0.1:2181/magnetar
    """


@cluster.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=lambda: min(len(os.sched_getaffinity(0)), BROKERS_MAX),
    show_default="one a core",
    help="How many.",
)
@click.option("--port", type=PORT, help="Pulsar's protocol, of the first; 0: free ones.  [6650]")
@click.option("--http-port", type=PORT, help="REST, of the first; 0: free ones.  [8080]")
@click.option("--metadata", help="zk://HOST:PORT/ROOT, the cluster's.")
@common_options
def up(
    brokers: int,
    port: int | None,
    http_port: int | None,
    metadata: str | None,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run as many brokers of a cluster as this machine has cores.

    Each is a process; broker i listens on --port + i and --http-port + i. One that dies is started
    again, after a pause that grows if it dies soon. On SIGTERM or Ctrl-C all hand their topics over
    and end. Clients may be given the address of any of them.

    \b
    Example:
      magnetar cluster up --metadata zk://127.0.0.1:2181/magnetar
    """
    flags: dict[str, object] = {
        "broker.port": port,
        "http.port": http_port,
        "metadata.url": metadata,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = clustered(configured(file, pairs, flags))
    from magnetar.app.several import Wanted, run_cluster

    wanted = Wanted(brokers, passed_on(file, pairs, log_level, log_json))
    process.serve(config, partial(run_cluster, config, wanted))
