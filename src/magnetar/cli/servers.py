"""The commands that run until they are told to end: ``standalone`` and the separate roles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from magnetar.cli import process
from magnetar.cli.options import with_options
from magnetar.cli.paths import GivenPath
from magnetar.config import Config
from magnetar.config_loading import load
from magnetar.env.network.listening import bind
from magnetar.model.errors import ConfigError, StartError

F = TypeVar("F", bound=Callable[..., Any])

BOOKIES_MAX = 16
BROKERS_MAX = 64
ENSEMBLE_MAX = 3
PORT = click.IntRange(0, 65_535)
PULSAR_PORT, KAFKA_PORT = 6650, 9092
NO_HTTP: dict[str, object] = {"http.port": -1}
"""Of roles that serve HTTP only where they are given a port."""

COMMON = (
    click.option("--config", "file", type=GivenPath(), help="A TOML file."),
    click.option(
        "--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any setting; repeatable."
    ),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
    click.option("--log-json/--log-text", default=None, help="Logs as JSON objects."),
)


def common_options(command: F) -> F:
    """``--config``, ``--set`` and the log options, which every server takes."""
    return with_options(command, COMMON)


def configured(
    file: Path | None,
    pairs: Sequence[str],
    flags: dict[str, object],
    role_defaults: dict[str, object] | None = None,
) -> Config:
    """The configuration of a server: file, environment, ``--set`` pairs, then its own flags."""
    given: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--set {pair!r}: give it as NAME=VALUE")
        given[name] = value
    given |= {name: value for name, value in flags.items() if value is not None}
    return load(file, os.environ, given, role_defaults)


@click.command()
@click.option("--data-dir", type=GivenPath(), help="Where everything lies.")
@click.option("--broker-port", type=PORT, help="Pulsar's protocol; 0: a free one.  [6650]")
@click.option("--http-port", type=PORT, help="REST and metrics; 0: a free one.  [8080]")
@click.option(
    "--kafka-port",
    type=click.IntRange(-1, 65_535),
    help="Kafka's protocol; 0: a free one, -1: none.  [9092 beside broker port 6650]",
)
@click.option(
    "--bookies",
    type=click.IntRange(1, BOOKIES_MAX),
    default=1,
    show_default=True,
    help="Storage servers in this process.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    show_default=True,
    help="Brokers, from 2 on each a process of its own.",
)
@click.option("--metadata", help="zk://HOST:PORT/ROOT instead of a file in the data directory.")
@click.option(
    "--leave-limbo",
    is_flag=True,
    help="Once, when a bookie has lost entries (health says so): it may deny them again.",
)
@common_options
def standalone(
    data_dir: Path | None,
    broker_port: int | None,
    http_port: int | None,
    kafka_port: int | None,
    bookies: int,
    brokers: int,
    metadata: str | None,
    leave_limbo: bool,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run the whole platform in one process: metadata, bookies, broker, REST.

    Prints one line when it is ready and ends cleanly on SIGTERM or Ctrl-C. Everything lies in the
    data directory, which one process at a time may use.

    \b
    With several bookies every message is stored on up to three of them:
      --bookies 1    E=1 Qw=1 Qa=1
      --bookies 2    E=2 Qw=2 Qa=2
      --bookies 3+   E=3 Qw=3 Qa=2   (goes on while one of three is gone)
    ledger.ensemble_size, .write_quorum and .ack_quorum change that.

    A broker uses one core. With --brokers N there are N processes more, which share the topics;
    broker i listens on --broker-port + i, --http-port + i and --kafka-port + i. Clients need the
    first one's address only. One that dies is started again. --http-port + N tells the health and
    the metrics of the bookies; each broker tells that health, too.

    Kafka's clients are served on 9092 while Pulsar's are on 6650. With another --broker-port, or
    where 9092 is taken, they are not, unless --kafka-port says where.

    \b
    Examples:
      magnetar standalone --data-dir /var/lib/magnetar
      magnetar standalone --data-dir /var/lib/magnetar --brokers 4
      magnetar standalone --data-dir /tmp/m --broker-port 0 --http-port 0 --bookies 3
      magnetar standalone --config magnetar.toml --set logging.level=debug
    """
    flags: dict[str, object] = {
        "data_dir": data_dir,
        "broker.port": broker_port,
        "http.port": http_port,
        "kafka.port": kafka_port,
        "metadata.url": metadata,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    roles = quorums(bookies) | {"bookie.port": 0}

    def with_kafka_on(port: int) -> Config:
        return configured(file, pairs, flags, roles | {"kafka.port": port})

    config = beside_pulsar(with_kafka_on, brokers)
    check_ports(config, brokers)
    if config.ledger.ensemble_size > bookies:
        raise ConfigError(
            f"ledger.ensemble_size = {config.ledger.ensemble_size} needs as many bookies; "
            f"accepted: at most {bookies} (--bookies)"
        )
    if brokers > 1:
        from magnetar.app.several import Wanted, run_standalone

        wanted = Wanted(
            brokers, (*passed_on(file, pairs, log_level, log_json), *quorum_options(config))
        )
        process.serve(config, partial(run_standalone, config, bookies, leave_limbo, wanted))
        return
    from magnetar.app.standalone import run

    process.serve(config, partial(run, config, bookies, leave_limbo))


def beside_pulsar(with_kafka_on: Callable[[int], Config], brokers: int) -> Config:
    """Kafka's port as the user says, else the usual ones beside Pulsar's usual one, where they are
    free. ``with_kafka_on(port)`` is the configuration with ``port`` as the default.

    Why: docs/adr/0108-kafka-beside-pulsar.md.
    """
    usual, off = with_kafka_on(KAFKA_PORT), with_kafka_on(-1)
    if usual.kafka.port == off.kafka.port or usual.broker.port != PULSAR_PORT:
        return off  # the user has said it, or wants a place of its own
    try:
        for number in range(brokers):
            bind(usual.kafka.host, KAFKA_PORT + number, "kafka.port").close()
    except StartError as error:
        click.echo(
            f"Kafka's clients are not served: {error}. --kafka-port gives them another port, "
            "--kafka-port -1 none",
            err=True,
        )
        return off
    return usual


def check_ports(config: Config, brokers: int = 1) -> None:
    """No two servers of a process, or of the brokers that it starts on consecutive ports, may have
    one port. Raises ``ConfigError``: the second would call the first another process."""
    broker, http, kafka = config.broker, config.http, config.kafka
    plain = {"broker": broker.port, "http": http.port, "kafka": kafka.port}
    tls = {"broker": broker.tls_port, "http": http.tls_port, "kafka": kafka.tls_port}
    ports = [(f"{part}.port", port) for part, port in plain.items()]
    ports += [(f"{part}.tls_port", port) for part, port in tls.items()]
    given = [(name, port) for name, port in ports if port > 0]
    for number, (name, port) in enumerate(given):
        for other, at in given[:number]:
            if abs(port - at) < brokers:
                several = f" of {brokers} brokers" if brokers > 1 else ""
                raise ConfigError(
                    f"{other} = {at} and {name} = {port}{several} are in each other's way; give "
                    "each its own (0 takes a free one)"
                )


def passed_on(
    file: Path | None, pairs: Sequence[str], log_level: str | None, log_json: bool | None
) -> tuple[str, ...]:
    """The options of ``common_options`` as they were given, for another process."""
    given = [*(("--config", str(file)) if file else ())]
    for pair in pairs:
        given += ["--set", pair]
    if log_level is not None:
        given += ["--log-level", log_level]
    if log_json is not None:
        given.append("--log-json" if log_json else "--log-text")
    return tuple(given)


def quorum_options(config: Config) -> tuple[str, ...]:
    """As options: their defaults are the number of bookies'."""
    ledger, given = config.ledger, []
    for name in ("ensemble_size", "write_quorum", "ack_quorum"):
        given += ["--set", f"ledger.{name}={getattr(ledger, name)}"]
    return tuple(given)


def quorums(bookies: int) -> dict[str, object]:
    """Sensible quorums for a platform of so many bookies; see the help of ``standalone``."""
    ensemble = min(bookies, ENSEMBLE_MAX)
    return {
        "ledger.ensemble_size": ensemble,
        "ledger.write_quorum": ensemble,
        "ledger.ack_quorum": min(ensemble, 2),
    }


class BookieCommands(click.Group):
    """``magnetar bookie`` runs one; its commands are imported when they are asked for."""

    places = MappingProxyType(
        {
            "list": "bookies:list_bookies",
            "info": "bookies:info",
            "ledgers": "bookies:ledgers",
            "read-only": "bookies:read_only",
            "cookie": "bookies:cookie",
            "decommission": "recovery:decommission",
            "recover": "recovery:recover",
        }
    )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, name = self.places[cmd_name].split(":")
        command = getattr(import_module(f"magnetar.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=BookieCommands, invoke_without_command=True)
@click.option("--data-dir", type=GivenPath(), help="Journal and ledgers.")
@click.option("--port", type=PORT, help="BookKeeper's protocol; 0: a free one.  [3181]")
@click.option("--http-port", type=PORT, help="Health, metrics and state; 0: a free one.  [none]")
@click.option("--metadata", help="zk://HOST:PORT/ROOT, the cluster's.")
@click.option(
    "--leave-limbo",
    is_flag=True,
    help="What this bookie had lost has been restored from others; it may deny entries again.",
)
@common_options
@click.pass_context
def bookie(
    context: click.Context,
    data_dir: Path | None,
    port: int | None,
    http_port: int | None,
    metadata: str | None,
    leave_limbo: bool,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run a storage server of a cluster, or, with a command, look at those of one.

    Beside serving it takes part in repairing ledgers that lack copies (repair.in_bookies).

    \b
    Example, a bookie that joins the cluster whose metadata is in ZooKeeper:
      magnetar bookie --data-dir /var/lib/bookie --port 3181 \\
          --metadata zk://127.0.0.1:2181/magnetar
    """
    if context.invoked_subcommand is not None:
        return
    flags: dict[str, object] = {
        "data_dir": data_dir,
        "bookie.port": port,
        "http.port": http_port,
        "metadata.url": metadata,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = clustered(configured(file, pairs, flags, NO_HTTP))
    from magnetar.app import roles

    process.serve(config, partial(roles.run_bookie, config, leave_limbo))


@click.command()
@click.option("--http-port", type=PORT, help="Health and metrics; 0: a free one.  [none]")
@click.option(
    "--metadata",
    help="zk://HOST:PORT/ROOT, the cluster's, or the data directory of a standalone that runs.",
)
@common_options
def autorecovery(
    http_port: int | None,
    metadata: str | None,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Repair ledgers that lack copies: find them, copy what is missing, say so in the metadata.

    Bookies do the same beside serving; this runs it in a process of its own, as many as are wanted.
    One of all is the auditor, which finds what is lacking; all repair.

    A standalone with several bookies repairs nothing by itself; this beside it does.

    \b
    Examples:
      magnetar autorecovery --metadata zk://127.0.0.1:2181/magnetar
      magnetar autorecovery --metadata /var/lib/magnetar
    """
    from magnetar.cli.recovery import metadata_url

    flags: dict[str, object] = {
        "http.port": http_port,
        "metadata.url": None if metadata is None else metadata_url(metadata),
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = clustered(configured(file, pairs, flags, NO_HTTP), SHARED_METADATA)
    from magnetar.app import roles

    process.serve(config, partial(roles.run_autorecovery, config))


@click.command()
@click.option("--port", type=PORT, help="Pulsar's protocol; 0: a free one.  [6650]")
@click.option("--http-port", type=PORT, help="REST and metrics; 0: a free one.  [8080]")
@click.option("--kafka-port", type=PORT, help="Kafka's protocol, usually 9092; 0: a free one.")
@click.option("--metadata", help="zk://HOST:PORT/ROOT, the cluster's.")
@click.option(
    "--read-only", is_flag=True, help="Own no topics; serve subscriptions of other brokers' topics."
)
@common_options
def broker(
    port: int | None,
    http_port: int | None,
    kafka_port: int | None,
    metadata: str | None,
    read_only: bool,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run the broker of a cluster, with its REST.

    Brokers with the same --metadata share its topics: start as many as there are cores, each with
    its own ports. Clients may be given the address of any of them, or of several.

    With --read-only it takes load off the others: it serves consumers and readers of their topics,
    and producers still go to the owners. Which subscriptions go there is said by policies.

    \b
    Example, with every message on three bookies and confirmed by two:
      MAGNETAR_LEDGER_ENSEMBLE_SIZE=3 MAGNETAR_LEDGER_WRITE_QUORUM=3 \\
      MAGNETAR_LEDGER_ACK_QUORUM=2 \\
          magnetar broker --metadata zk://127.0.0.1:2181/magnetar
    """
    flags: dict[str, object] = {
        "broker.port": port,
        "http.port": http_port,
        "kafka.port": kafka_port,
        "metadata.url": metadata,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = clustered(configured(file, pairs, flags), SHARED_METADATA)
    check_ports(config)
    from magnetar.app import roles

    process.serve(config, partial(roles.run_broker, config, read_only))


ZOOKEEPER = ("zk://",)
SHARED_METADATA = ("zk://", "unix:")
"""What a broker may be given: also the metadata of the process that has started it."""


def clustered(config: Config, schemes: tuple[str, ...] = ZOOKEEPER) -> Config:
    """Separate roles meet in ZooKeeper; a file cannot be shared."""
    if not config.metadata.url.startswith(schemes):
        raise ConfigError(
            f"--metadata (metadata.url) = {config.metadata.url!r} cannot be used by a separate "
            "role; accepted: zk://HOST:PORT[,HOST:PORT]/ROOT"
        )
    return config


@click.command()
@click.option("--data-dir", type=GivenPath(), required=True)
@click.option("--port", type=PORT, default=2181, show_default=True, help="0: a free one.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="LEADER-PORT:ELECTION-PORT",
    help="Of an ensemble on this machine: every member's, in the same order for all.",
)
@click.option("--number", type=click.IntRange(0), help="Which of the members this one is, from 0.")
@common_options
def zookeeper(
    data_dir: Path,
    port: int,
    members: tuple[str, ...],
    number: int | None,
    file: Path | None,
    pairs: tuple[str, ...],
    log_level: str | None,
    log_json: bool | None,
) -> None:
    """Run a real ZooKeeper server, for development (it needs Java and magnetar[spark]).

    \b
    Example:
      magnetar zookeeper --data-dir /tmp/zk --port 2181
    """
    flags: dict[str, object] = {
        "data_dir": data_dir,
        "logging.level": log_level,
        "logging.json": log_json,
    }
    config = configured(file, pairs, flags)
    from magnetar.app import roles

    membership = zookeeper_membership(members, number)
    process.serve(config, partial(roles.run_zookeeper, config, port, membership))


def zookeeper_membership(members: Sequence[str], number: int | None) -> Any:
    """None: the server stands alone. Raises ``ConfigError``."""
    if not members and number is None:
        return None
    from magnetar.env.metadata_stores.zookeeper_server import EnsembleMember

    ports = [each.split(":") for each in members]
    if any(len(pair) != 2 or not all(map(str.isdecimal, pair)) for pair in ports):
        raise ConfigError(f"--member {' '.join(members)}: give each as LEADER-PORT:ELECTION-PORT")
    if number is None or number >= len(members):
        raise ConfigError(f"--number {number}: there are {len(members)} members (--member), from 0")
    return EnsembleMember(number, [(int(leader), int(election)) for leader, election in ports])
