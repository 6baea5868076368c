"""``magnetar bookie list``, ``info``, ``ledgers``, ``read-only`` and ``cookie``; ``magnetar cluster
id`` and ``info``. They ask the metadata store, and for space the bookies themselves."""

from __future__ import annotations

from typing import Any

import click

from magnetar.cli.java_bookies import switch_java_bookie
from magnetar.cli.output import binary, json_option, print_json, print_table
from magnetar.cli.recovery import look, metadata_option, operate
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId

SILENT = 1
"""The exit code when a bookie that was asked did not answer."""


@click.command("list")
@click.option("--read-write", "state", flag_value="read-write", help="Only those.")
@click.option("--read-only", "state", flag_value="read-only", help="Only those.")
@click.option("--away", "state", flag_value="away", help="Only those that are not registered.")
@metadata_option
@json_option
def list_bookies(state: str | None, metadata: str, as_json: bool) -> None:
    """List the cluster's bookies: registered or away, where, and why one takes no entries."""
    found = look(metadata, lambda insight: insight.bookies.all())
    rows = [each for each in found if state in (None, each["state"])]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("bookie", "state", "address", "rack", "zone", "because"),
        [
            (
                each["bookieId"],
                each["state"],
                each["address"],
                each["rack"],
                each["zone"],
                _why(each),
            )
            for each in rows
        ],
    )


def _why(each: dict[str, Any]) -> str:
    if each["toBeEmptied"]:
        return "it is to be emptied"
    return str(each["why"])


@click.command()
@click.argument("bookie_ids", nargs=-1)
@metadata_option
@json_option
def info(bookie_ids: tuple[str, ...], metadata: str, as_json: bool) -> int:
    """Show the space on the disks of BOOKIE_IDS, or of all that are registered."""
    wanted = [BookieId(each) for each in bookie_ids]
    found = look(metadata, lambda insight: insight.bookies.space(wanted))
    silent = [each for each in found if each["problem"]]
    if as_json:
        print_json(found)
        return SILENT if silent else 0
    told = [each for each in found if not each["problem"]]
    rows = [(each["bookieId"], *_space(each["totalBytes"], each["freeBytes"])) for each in told]
    total, free = (sum(each[name] for each in told) for name in ("totalBytes", "freeBytes"))
    print_table(("bookie", "disks#", "free#", "in use#"), [*rows, ("all", *_space(total, free))])
    for each in silent:
        click.echo(f"{each['bookieId']}: {each['problem']}", err=True)
    return SILENT if silent else 0


def _space(total: int, free: int) -> tuple[str, str, str]:
    used = f"{100 * (total - free) / total:.0f} %" if total else ""
    return binary(total), binary(free), used


@click.command()
@click.argument("bookie_id")
@metadata_option
@json_option
def ledgers(bookie_id: str, metadata: str, as_json: bool) -> None:
    """List the ledgers whose metadata names BOOKIE_ID."""

    async def work(insight: Any) -> Any:
        await insight.operating.check_known(BookieId(bookie_id))
        return [each async for each in insight.bookies.ledgers_of(BookieId(bookie_id))]

    found = look(metadata, work)
    if as_json:
        print_json(found)
        return
    for ledger_id in found:
        click.echo(ledger_id)


@click.command("read-only")
@click.argument("switch", type=click.Choice(["on", "off"]))
@click.argument("bookie_id")
@metadata_option
def read_only(switch: str, bookie_id: str, metadata: str) -> None:
    """Have BOOKIE_ID take no new entries (on), or take them again (off).

    It follows at once, or when it starts, and stays so over restarts. It serves reads, and takes
    copies of recovery. A bookie of BookKeeper's own is switched by its REST, which must be on; a
    restart of it forgets that.
    """
    bookie = BookieId(bookie_id)
    what = "takes no new entries" if switch == "on" else "takes entries again"

    async def work(operating: Any) -> None:
        await operating.check_known(bookie)
        if await operating.is_java(bookie):
            url = await switch_java_bookie(operating, bookie, read_only=switch == "on")
            click.echo(f"{bookie} {what}: it is BookKeeper's own, and was switched by {url}")
            return
        await operating.set_read_only(bookie, switch == "on")
        registered = await operating.is_registered(bookie)
        click.echo(f"{bookie} {what}" + ("" if registered else ", once it is started"))

    operate(metadata, work)


@click.command()
@click.argument("bookie_id")
@click.option("--delete", is_flag=True, help="Forget that the bookie belongs to the cluster.")
@click.option("--force", is_flag=True, help="With --delete: also while ledgers name it.")
@metadata_option
def cookie(bookie_id: str, delete: bool, force: bool, metadata: str) -> None:
    """Show the cookie by which the cluster knows BOOKIE_ID and its directories, or delete it.

    Without its cookie a bookie with the same id and empty directories may begin. `magnetar bookie
    decommission` and `recover` delete it when nothing names the bookie any more.
    """
    bookie = BookieId(bookie_id)

    async def work(insight: Any) -> str:
        await insight.operating.check_known(bookie)
        text: str = await insight.bookies.cookie(bookie)
        if not delete:
            return text
        if await insight.bookies.is_registered(bookie):
            raise ConfigError(f"bookie {bookie} is registered: end it first")
        if not force:
            async for ledger_id in insight.bookies.ledgers_of(bookie):
                raise ConfigError(
                    f"ledger {ledger_id} names {bookie}: have its copies made elsewhere first "
                    f"(magnetar bookie recover {bookie}), or give --force"
                )
        await insight.bookies.delete_cookie(bookie)
        return ""

    text = look(metadata, work)
    click.echo(f"the cookie of {bookie} is deleted" if delete else text.rstrip("\n"))


@click.command("id")
@metadata_option
def cluster_id(metadata: str) -> None:
    """Print the instance id, by which bookies know that they belong to this cluster."""

    async def work(insight: Any) -> Any:
        return insight.access.manager.instance_id

    click.echo(look(metadata, work))


@click.command("info")
@metadata_option
@json_option
def cluster_info(metadata: str, as_json: bool) -> None:
    """Show the cluster at a glance: bookies, space, repair."""
    told = look(metadata, lambda insight: insight.cluster_info())
    if as_json:
        print_json(told)
        return
    states = ", ".join(f"{count} {state}" for state, count in told["bookies"].items())
    rows = [
        ("instance id", told["instanceId"]),
        ("ledgers below", f"{told['ledgersRoot']} ({told['layout']})"),
        ("bookies", states),
        ("disks", f"{binary(told['totalBytes'])}, {binary(told['freeBytes'])} free"),
        ("bookies that do not answer", ", ".join(told["silent"]) or "none"),
        ("repair", "on" if told["repairEnabled"] else "OFF (magnetar recovery enable)"),
        ("ledgers that lack copies", told["ledgersThatLackCopies"]),
    ]
    print_table(("", ""), rows)
