"""``magnetar cluster plan-decommission``: what emptying bookies would take, before it is done."""

from __future__ import annotations

from typing import Any

import click

from magnetar.cli.output import binary, json_option, print_json, print_table
from magnetar.cli.recovery import look, metadata_option
from magnetar.model.ids import BookieId

IMPOSSIBLE = 1


@click.command("plan-decommission")
@click.argument("bookies", nargs=-1, required=True)
@metadata_option
@json_option
def plan_decommission(bookies: tuple[str, ...], metadata: str, as_json: bool) -> int:
    """Say what would move if BOOKIES were emptied, where to, and how long it would take.

    Nothing is changed. Ends with 1 when it cannot succeed: a bookie that does not serve, copies
    that no other bookie can take (too few bookies, racks, zones, or too little space).

    \b
    Example:
      magnetar cluster plan-decommission 10.0.0.7:3181 --metadata zk://127.0.0.1:2181/magnetar
    """
    leaving = [BookieId(each) for each in dict.fromkeys(bookies)]
    told = look(metadata, lambda insight: insight.plan_decommission(leaving))
    if as_json:
        print_json(told)
    else:
        _print(told)
    return 0 if told["possible"] else IMPOSSIBLE


def _print(told: dict[str, Any]) -> None:
    click.echo(
        f"{told['ledgers']:,} ledgers ({told['openLedgers']:,} not closed) name "
        f"{', '.join(told['bookies'])}: {told['fragments']:,} fragments, {told['entries']:,} "
        f"copies of entries, about {binary(told['bytes'])}"
    )
    if told["to"]:
        rows = [
            (
                each["bookieId"],
                each["fragments"],
                binary(each["bytes"]),
                "not told" if each["roomBytes"] is None else binary(each["roomBytes"]),
            )
            for each in told["to"]
        ]
        print_table(("might go to", "fragments#", "about#", "has room for#"), rows)
    if told["seconds"] is not None:
        click.echo(
            f"at {binary(told['bytesPerSecond'])}/s in each of {told['workers']} processes that "
            f"repair: {told['seconds']:,.0f} s"
        )
    click.echo("no entry has a copy fewer meanwhile: copies are made first")
    if told["belowWriteQuorumAlready"]:
        click.echo(
            f"{told['belowWriteQuorumAlready']:,} of these ledgers lack a copy already, "
            f"{told['belowAckQuorumAlready']:,} have fewer than the ack quorum: their bookies are "
            "not registered"
        )
    for each in told["waits"]:
        click.echo(f"it would wait: {each}")
    if told["stuck"]:
        columns = ("ledger#", "from entry#", "held by", "nobody can take it")
        rows = [
            (each["ledgerId"], each["firstEntryId"], each["bookieId"], each["why"])
            for each in told["stuck"]
        ]
        print_table(columns, rows)
        left = told["stuckFragments"] - len(rows)
        if left:
            click.echo(f"and {left:,} more")
    for each in told["refusals"]:
        click.echo(f"cannot begin: {each}")
    click.echo("it can be done" if told["possible"] else "it CANNOT be done as things are")
