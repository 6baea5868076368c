"""The top of the command tree, and what every command has in common: errors and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from types import TracebackType

import click

from magnetar import __version__
from magnetar.cli.output import drop_output
from magnetar.model.errors import ConfigError, MagnetarError

FAILED, WRONGLY_USED, INTERRUPTED = 1, 2, 130

COMMANDS = {
    "standalone": "magnetar.cli.servers:standalone",
    "bookie": "magnetar.cli.servers:bookie",
    "autorecovery": "magnetar.cli.servers:autorecovery",
    "broker": "magnetar.cli.servers:broker",
    "cluster": "magnetar.cli.cluster:cluster",
    "zookeeper": "magnetar.cli.servers:zookeeper",
    "produce": "magnetar.cli.produce:produce",
    "consume": "magnetar.cli.consume:consume",
    "topics": "magnetar.cli.topics:topics",
    "namespaces": "magnetar.cli.policies:namespaces",
    "schemas": "magnetar.cli.schemas:schemas",
    "ledger": "magnetar.cli.ledgers:ledger",
    "bookies": "magnetar.cli.ledgers:bookies",
    "recovery": "magnetar.cli.recovery:recovery",
    "brokers": "magnetar.cli.brokers:brokers",
    "pipeline": "magnetar.cli.pipeline:pipeline",
    "health": "magnetar.cli.health:health",
    "tokens": "magnetar.cli.tokens:tokens",
    "users": "magnetar.cli.users:users",
    "config": "magnetar.cli.settings:config",
    "prove": "magnetar.cli.prove:prove",
}
"""Where each command is; imported when it is used, so that none pays for another."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="magnetar")
def cli() -> None:
    """Magnetar: an event-streaming platform.

    It speaks Pulsar's protocol, keeps messages in BookKeeper's ledgers, and feeds Spark.

    \b
    Try it:
      magnetar standalone --data-dir /tmp/magnetar      (leave it running)
      magnetar produce flights -m "AA 42 departed"
      magnetar consume flights --subscription me --from earliest --count 1
      magnetar topics stats flights
    """


def main() -> None:
    """The entry point of the ``magnetar`` script."""
    sys.excepthook = _unexpected
    _open_standard()
    sys.exit(run(sys.argv[1:]))


def _open_standard() -> None:
    """Whoever starts us may have closed standard input, output or error. Then Python has none, and
    the next file or socket that is opened gets the number: what is printed goes into it, and a
    server's loop ends the process when it closes it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, "r", encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        _check_text(arguments)
        status = cli.main(arguments, prog_name="magnetar", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for the end of somebody's input
            _unexpected(EOFError, error.__cause__, error.__cause__.__traceback__)
            return FAILED
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except ConfigError as error:
        return _failed(error, WRONGLY_USED)
    except MagnetarError as error:
        return _failed(error, FAILED)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has enough
            drop_output()
            return FAILED
        return _failed(error, FAILED)
    return status if isinstance(status, int) else 0


def _check_text(arguments: list[str]) -> None:
    """Bytes that are no text come as halves of pairs, which no library sends on: one of them waited
    for ever. Raises ``ConfigError``."""
    for given in arguments:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{os.fsencode(given)!r} cannot be used; accepted: text in UTF-8"
            ) from None


def _failed(error: Exception, status: int) -> int:
    click.echo(f"magnetar: {error}", err=True)
    if os.environ.get("MAGNETAR_DEBUG"):
        traceback.print_exception(error)
    return status


def _unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What no command foresaw: still one line, unless a developer wants to see it all."""
    if os.environ.get("MAGNETAR_DEBUG"):
        traceback.print_exception(kind, error, trace)
    hint = "MAGNETAR_DEBUG=1 shows where; please report it"
    click.echo(f"magnetar: internal error: {kind.__name__}: {error} ({hint})", err=True)
