"""``magnetar recovery``: ledgers that lack copies, and who repairs them; ``magnetar bookie
decommission`` and ``recover``. They work on the cluster's metadata store: no server is asked."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from magnetar.cli.java_bookies import NotSwitchedError, switch_java_bookie
from magnetar.cli.output import json_option, print_json, print_table
from magnetar.config_loading import load
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId

F = TypeVar("F", bound=Callable[..., Any])

BAR_CHARACTERS = 30
DAY_MS = 86_400_000
DELAY_S_MAX = 2**31 - 1
"""BookKeeper's own reads it as a Java int."""


def metadata_option(command: F) -> F:
    """``--metadata``, which every command here needs."""
    return click.option(
        "--metadata",
        required=True,
        envvar="MAGNETAR_METADATA_URL",
        help="zk://HOST:PORT/ROOT, the cluster's, or the data directory of a standalone that runs."
        "  [MAGNETAR_METADATA_URL]",
    )(command)


def operate(metadata: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """What ``work`` gives of an ``Operating`` on that cluster."""
    from magnetar import logs
    from magnetar.app.operators import open_operating

    config = metadata_config(metadata)
    logs.configure(replace(config.logging, level="warning"))  # the output is the command's

    async def run() -> Any:
        async with open_operating(config) as operating:
            return await work(operating)

    return asyncio.run(run())


def look(metadata: str, work: Callable[[Any], Awaitable[Any]], level: str = "error") -> Any:
    """What ``work`` gives of an ``Insight`` into that cluster: its bookies can be asked, too.
    ``level``: of what is logged (a bookie that is down is an answer, and no warning)."""
    from magnetar import logs
    from magnetar.app.operators import open_insight

    config = metadata_config(metadata)
    logs.configure(replace(config.logging, level=level))

    async def run() -> Any:
        async with open_insight(config) as insight:
            return await work(insight)

    return asyncio.run(run())


def metadata_config(metadata: str) -> Any:
    """A configuration whose metadata store that is. Raises ``ConfigError``, and
    ``MetadataUnavailableError`` for a standalone that does not run."""
    return load(None, os.environ, {"metadata.url": metadata_url(metadata)})


def metadata_url(metadata: str) -> str:
    """Of a cluster, or of the standalone whose data directory it is. Raises as
    ``metadata_config``."""
    if is_clusters(metadata):
        return metadata
    from magnetar.app.metadata_socket import find_metadata

    return find_metadata(Path(metadata))


def is_clusters(metadata: str) -> bool:
    return metadata.startswith("zk://")


@click.group()
def recovery() -> None:
    """See which ledgers lack copies, and who repairs them; switch repair off and on.

    Repair is done by `magnetar bookie` beside serving, and by `magnetar autorecovery`.

    \b
    Examples:
      magnetar recovery status --metadata zk://127.0.0.1:2181/magnetar
      magnetar recovery list --metadata zk://127.0.0.1:2181/magnetar
      magnetar recovery disable --metadata zk://127.0.0.1:2181/magnetar
    """


@recovery.command()
@metadata_option
@json_option
@click.option("--follow", is_flag=True, help="Until no ledger is marked, with a bar.")
def status(metadata: str, as_json: bool, follow: bool) -> None:
    """Show whether repair is on, who the auditor is, and how many ledgers lack copies."""

    async def work(operating: Any) -> Any:
        state = await operating.state()
        bar = Bar("ledgers that lack copies")
        while follow and state.marked:
            bar.show(state.marked)
            await asyncio.sleep(1.0)
            state = await operating.patiently(operating.state)
        bar.end(state.marked)
        return state

    state = operate(metadata, work)
    if as_json:
        print_json(asdict(state))
        return
    age_ms = int(time.time() * 1000) - state.checked_ms
    checked = "never" if not state.checked_ms else f"{age_ms / DAY_MS:.1f} days ago"
    rows = [
        ("repair is", "on" if state.enabled else "OFF (magnetar recovery enable)"),
        ("auditor", state.auditor or "NONE: start magnetar autorecovery"),
        ("ledgers that lack copies", f"{state.marked:,}, of which {state.locked:,} in work"),
        ("a bookie is lost after", f"{state.delay_s} s"),
        ("bookies to be emptied", ", ".join(state.leaving) or "none"),
        ("all ledgers were checked", checked),
    ]
    print_table(("", ""), rows)


@recovery.command("list")
@metadata_option
@json_option
def list_marked(metadata: str, as_json: bool) -> None:
    """List the ledgers that lack copies, at whom, and who repairs each now."""

    async def work(operating: Any) -> Any:
        return [each async for each in operating.marked()]

    found = operate(metadata, work)
    if as_json:
        rows = [
            {
                "ledgerId": each.ledger_id,
                "bookies": list(each.mark.bookies),
                "sinceMs": each.mark.since_ms,
                "repairedBy": each.holder,
            }
            for each in found
        ]
        print_json(rows)
        return
    now_ms = time.time() * 1000
    print_table(
        ("ledger#", "lacks copies at", "for", "repaired by"),
        [
            (
                each.ledger_id,
                ", ".join(each.mark.bookies),
                f"{(now_ms - each.mark.since_ms) / 1000:.0f} s" if each.mark.since_ms else "",
                each.holder or "",
            )
            for each in found
        ],
    )


@recovery.command()
@metadata_option
def enable(metadata: str) -> None:
    """Switch repair on."""
    was_off = operate(metadata, lambda operating: operating.switches.enable())
    click.echo("repair is on" + ("" if was_off else "; it was on before"))


@recovery.command()
@metadata_option
def disable(metadata: str) -> None:
    """Switch repair off, for maintenance: nothing is marked and nothing copied until it is on."""
    was_on = operate(metadata, lambda operating: operating.switches.disable())
    click.echo("repair is off" + ("" if was_on else "; it was off before"))


@recovery.command()
@metadata_option
def trigger(metadata: str) -> None:
    """Have the auditor look now for bookies that are gone, and mark their ledgers."""
    operate(metadata, lambda operating: operating.trigger())
    click.echo("the auditor looks at all bookies now")


@recovery.command()
@metadata_option
def check(metadata: str) -> None:
    """Have the auditor ask the bookies of every ledger now what they hold."""
    operate(metadata, lambda operating: operating.switches.set_checked(0))
    click.echo("the auditor checks all ledgers now")


@recovery.command()
@metadata_option
@click.argument("seconds", type=click.IntRange(0, DELAY_S_MAX))
def delay(metadata: str, seconds: int) -> None:
    """Say how long a bookie may be away before it counts as lost."""
    operate(metadata, lambda operating: operating.switches.set_delay(seconds))
    click.echo(f"a bookie that is away for {seconds} s is lost")


@click.command()
@click.argument("bookie_id")
@metadata_option
def decommission(bookie_id: str, metadata: str) -> None:
    """Empty a bookie that serves, so that it can be taken away.

    It takes no new entries from now on; all that it holds is copied to others, which take its place
    in the ledgers' metadata. When no ledger names it the command waits until the bookie has ended,
    and forgets it. It may be interrupted and given again.

    A bookie of BookKeeper's own is switched to read-only by its REST, which must be on; a restart
    of it forgets that.

    \b
    Example:
      magnetar bookie decommission 10.0.0.7:3181 --metadata zk://127.0.0.1:2181/magnetar
    """
    _empty(BookieId(bookie_id), metadata, serves=True)


@click.command()
@click.argument("bookie_id")
@metadata_option
def recover(bookie_id: str, metadata: str) -> None:
    """Repair now what a bookie held that will not come back, without waiting for the delay.

    \b
    Example:
      magnetar bookie recover 10.0.0.7:3181 --metadata zk://127.0.0.1:2181/magnetar
    """
    _empty(BookieId(bookie_id), metadata, serves=False)


def _empty(bookie_id: BookieId, metadata: str, serves: bool) -> None:
    async def work(operating: Any) -> None:
        await operating.check_known(bookie_id)
        if not serves and await operating.is_registered(bookie_id):
            raise ConfigError(
                f"bookie {bookie_id} is registered: end it first, or empty it while it serves "
                f"(magnetar bookie decommission {bookie_id})"
            )
        state = await operating.state()
        if not state.enabled or state.auditor is None:
            why = "repair is off (magnetar recovery enable)"
            if state.enabled:
                why = f"nobody repairs (start magnetar autorecovery --metadata {metadata})"
            click.echo(f"this waits: {why}", err=True)
        if serves and not await operating.hears_of_leaving(bookie_id):
            await _switch_to_read_only(operating, bookie_id)
        bar = Bar(f"ledgers that name {bookie_id}")
        await operating.empty(bookie_id, bar.show)
        bar.end(0)
        click.echo(f"no ledger names {bookie_id} any more")
        registered = await operating.is_registered(bookie_id)
        if registered and not is_clusters(metadata):  # it ends with what this command asks
            click.echo(
                f"end the standalone, delete the directory of {bookie_id}, start it with one "
                f"bookie less, and have it forgotten: magnetar bookie recover {bookie_id}"
            )
            return
        if registered:
            click.echo("end the bookie now; this command waits for it, and then forgets it")
            await operating.wait_ended(bookie_id)
        await operating.forget(bookie_id)
        click.echo(f"{bookie_id} is forgotten")

    operate(metadata, work)


async def _switch_to_read_only(operating: Any, bookie_id: BookieId) -> None:
    """A bookie of BookKeeper's own takes new entries for as long as it serves. Raises
    ``ConfigError``."""
    try:
        url = await switch_java_bookie(operating, bookie_id, read_only=True)
    except NotSwitchedError as error:
        raise ConfigError(
            f"{error}. Switch it by hand and give this command again, or end it and then: "
            f"magnetar bookie recover {bookie_id}"
        ) from error
    click.echo(f"{bookie_id} is BookKeeper's own: it was switched to read-only by {url}", err=True)


class Bar:
    """Progress towards nothing left, on a terminal; without one nothing is printed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._most = 0
        self._shown = False

    def show(self, left: int) -> None:
        self._most = max(self._most, left)
        if sys.stderr.isatty():
            done = round(BAR_CHARACTERS * (1 - left / self._most)) if self._most else BAR_CHARACTERS
            bar = "#" * done + "." * (BAR_CHARACTERS - done)
            click.echo(f"\r[{bar}] {left:,} {self._what}   ", nl=False, err=True)
            self._shown = True

    def end(self, left: int) -> None:
        if self._shown:
            self.show(left)
            click.echo(err=True)
