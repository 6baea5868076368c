"""``magnetar ledger explain`` and ``verify``: where the copies of entries are, and whether they are
sound. They ask the metadata store and the bookies themselves; no broker is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import click

from magnetar.cli.output import binary, json_option, print_json, print_table
from magnetar.cli.recovery import Bar, look, metadata_option
from magnetar.config_loading import BYTE_UNITS, whole_number
from magnetar.ledger.given_up import GIVEN_UP_KEY
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId

FOUND = 1
"""The exit code when something is wrong with copies, or not known to be right."""
LISTED_MAX = 100_000
"""Findings that are kept; what is beyond is counted."""


@click.command()
@click.argument("ledger_id", type=click.IntRange(0))
@click.option(
    "--lost", multiple=True, metavar="BOOKIE", help="What would be left without it; repeatable."
)
@metadata_option
@json_option
def explain(ledger_id: int, lost: tuple[str, ...], metadata: str, as_json: bool) -> None:
    """Show which bookies hold which entries of LEDGER_ID, and what would be lost without some.

    The bookies are asked what they hold; nothing is fenced, and no entry is read. A picture for
    people, JSON for programs.

    \b
    Example:
      magnetar ledger explain 3 --lost 10.0.0.1:3181 --lost 10.0.0.2:3181 \\
          --metadata zk://127.0.0.1:2181/magnetar
    """

    async def work(insight: Any) -> Any:
        found, _ = await insight.access.manager.read(ledger_id)
        return await insight.explainer.explain(found, [BookieId(each) for each in lost])

    told = look(metadata, work)
    if as_json:
        print_json(told)
        return
    from magnetar.cli.copies_picture import lines

    for each in told["notOfThisLedger"]:
        click.echo(f"{each} has no place in ledger {ledger_id}", err=True)
    for line in lines(told):
        click.echo(line)


@click.command()
@click.argument("ledger_ids", type=click.IntRange(0), nargs=-1)
@click.option("--all", "every", is_flag=True, help="All ledgers of the cluster.")
@click.option(
    "--from", "first", type=click.IntRange(0), default=0, help="With --all: from this id."
)
@click.option("--to", "last", type=click.IntRange(0), help="With --all: up to this id.")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--rate", default="64MiB", show_default=True, help="Bytes read in a second; 0: not bounded."
)
@click.option("--repair", is_flag=True, help="Replace damaged copies, mark ledgers that lack some.")
@metadata_option
@json_option
def verify(
    ledger_ids: tuple[int, ...],
    every: bool,
    first: int,
    last: int | None,
    parallel: int,
    rate: str,
    repair: bool,
    metadata: str,
    as_json: bool,
) -> int:
    """Read every copy of every confirmed entry, and see that it is sound and like the others.

    Bookies read from their entry logs, not from their read caches; entries of the last moments,
    which only the journal has, come from memory, and the kernel's page cache is not passed by.

    Ends with 1 when a copy is missing or damaged, differs from others, or could not be read. One
    that is interrupted says from where to go on. With --repair a damaged copy is replaced by a
    sound one of another bookie, and a ledger that lacks copies is marked, so that auto-recovery
    makes them.

    \b
    Examples:
      magnetar ledger verify 3 7 --metadata zk://127.0.0.1:2181/magnetar
      magnetar ledger verify --all --rate 20MiB --metadata zk://127.0.0.1:2181/magnetar
    """
    if bool(ledger_ids) is every:
        raise click.UsageError("give the ids of ledgers, or --all")
    bytes_per_s = whole_number(rate, BYTE_UNITS)
    if bytes_per_s is None or bytes_per_s < 0:
        raise ConfigError(f"--rate {rate!r}: give bytes in a second, as 20MiB; 0: not bounded")

    async def work(insight: Any) -> Any:
        for each in ledger_ids:  # of those that are named, one that is not there is an error
            await insight.ledger_metadata(each)
        chosen = sorted({*ledger_ids}) or [
            each
            async for each in insight.access.manager.iterate()
            if each >= first and (last is None or each <= last)
        ]
        run = _Verifying(insight, chosen, parallel, bytes_per_s, repair, every)
        return await run.run()

    told = look(metadata, work)
    if as_json:
        print_json(told)
    else:
        _print_verified(told)
    return 0 if told["sound"] else FOUND


@click.command("metadata")
@click.argument("ledger_id", type=click.IntRange(0))
@metadata_option
def show_metadata(ledger_id: int, metadata: str) -> None:
    """Print what the metadata store says of LEDGER_ID, as JSON. No broker is asked."""
    print_json(look(metadata, lambda insight: insight.ledger_metadata(ledger_id)))


@click.command()
@click.argument("ledger_id", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Also if a topic or another program may need it.")
@metadata_option
def delete(ledger_id: int, force: bool, metadata: str) -> None:
    """Delete LEDGER_ID: for ever, and for whoever uses it.

    For ledgers that are left over. What a topic is made of is deleted with the topic (`magnetar
    topics delete`): a ledger that says whose it is goes with --force only.
    """

    async def work(insight: Any) -> None:
        if not force:
            found = await insight.ledger_metadata(ledger_id)
            owners = {k: v for k, v in found["custom"].items() if k != GIVEN_UP_KEY}
            if owners:
                owner = ", ".join(f"{name}={value}" for name, value in owners.items())
                raise ConfigError(
                    f"ledger {ledger_id} belongs to {owner}: give --force to delete it"
                )
        await insight.access.client.delete(ledger_id)

    look(metadata, work)
    click.echo(f"ledger {ledger_id} is deleted; its bookies drop it when they look next")


class _Verifying:
    """Ledgers verified, some at a time, in the order of their ids."""

    def __init__(
        self,
        insight: Any,
        ledger_ids: Sequence[int],
        parallel: int,
        bytes_per_s: int,
        repair: bool,
        every: bool,
    ) -> None:
        self._insight = insight
        self._waiting = list(reversed(ledger_ids))
        self._left = dict.fromkeys(ledger_ids)
        self._every = every
        self._parallel = parallel
        self._verifier = insight.verifier(bytes_per_s, lambda copies, byte_count: None)
        self._copier = insight.copier(bytes_per_s) if repair else None
        self._bar = Bar("ledgers to verify")
        self._told: dict[str, Any] = {
            "sound": True,
            "ledgers": 0,
            "deletedMeanwhile": 0,
            "entries": 0,
            "copies": 0,
            "bytes": 0,
            "findings": [],
            "findingsLeftOut": 0,
            "unchecked": [],
            "replaced": 0,
            "marked": [],
            "notRepaired": [],
            "givenUp": [],
        }

    async def run(self) -> dict[str, Any]:
        begun_s = time.monotonic()
        self._bar.show(len(self._left))
        try:
            await asyncio.gather(*(self._take() for _ in range(self._parallel)))
        finally:
            self._bar.end(len(self._left))
            if self._left and self._every:
                click.echo(f"not done: go on with --from {min(self._left)}", err=True)
        self._told["seconds"] = round(time.monotonic() - begun_s, 2)
        return self._told

    async def _take(self) -> None:
        while self._waiting:
            ledger_id = self._waiting.pop()
            found = await self._verifier.verify(ledger_id)
            self._add(found)
            if self._copier is not None and found.findings:
                await self._mend(found)
            del self._left[ledger_id]
            self._bar.show(len(self._left))

    def _add(self, found: Any) -> None:
        told = self._told
        told["ledgers"] += not found.gone
        told["deletedMeanwhile"] += found.gone
        told["entries"] += found.entries
        told["copies"] += found.copies
        told["bytes"] += found.byte_count
        told["sound"] = told["sound"] and found.sound
        if found.given_up is not None:
            row = {"ledgerId": found.ledger_id, "what": found.given_up.text}
            told["givenUp"].append({**row, "atMs": found.given_up.at_ms})
        room = LISTED_MAX - len(told["findings"])
        told["findingsLeftOut"] += max(0, len(found.findings) - room)
        told["findings"] += [_finding(found.ledger_id, each) for each in found.findings[:room]]
        told["unchecked"] += [
            {
                "ledgerId": found.ledger_id,
                "firstEntryId": each.first,
                "lastEntryId": each.last,
                "bookieId": each.bookie_id,
                "why": each.why,
            }
            for each in found.unchecked[: max(0, LISTED_MAX - len(told["unchecked"]))]
        ]

    async def _mend(self, found: Any) -> None:
        mended = await self._verifier.mend(found, self._copier, self._insight.mark)
        self._told["replaced"] += mended.given
        if mended.marked:
            row = {"ledgerId": found.ledger_id, "bookies": list(mended.marked)}
            self._told["marked"].append(row)
        self._told["notRepaired"] += [
            {"ledgerId": found.ledger_id, "why": why} for why in mended.left
        ]


def _finding(ledger_id: int, each: Any) -> dict[str, Any]:
    return {
        "ledgerId": ledger_id,
        "firstEntryId": each.entry_ids[0],
        "lastEntryId": each.entry_ids[-1],
        "every": each.entry_ids.step,
        "bookieId": each.bookie_id,
        "fault": each.fault.value,
        "why": each.why,
    }


def _print_verified(told: dict[str, Any]) -> None:
    rows = [
        (each["ledgerId"], _entries(each), each["bookieId"], each["fault"], each["why"])
        for each in told["findings"]
    ]
    rows += [
        (each["ledgerId"], _entries(each), each["bookieId"], "unchecked", each["why"])
        for each in told["unchecked"]
    ]
    if rows:
        print_table(("ledger#", "entries", "bookie", "copies are", "because"), rows)
    click.echo(
        f"{told['ledgers']:,} ledgers, {told['entries']:,} entries: {told['copies']:,} sound "
        f"copies ({binary(told['bytes'])}) read in {told['seconds']:g} s"
    )
    if told["findingsLeftOut"]:
        click.echo(f"and {told['findingsLeftOut']:,} findings more")
    if told["replaced"]:
        click.echo(f"{told['replaced']:,} damaged copies replaced by sound ones, and read again")
    for each in told["marked"]:
        names = ", ".join(each["bookies"])
        click.echo(f"ledger {each['ledgerId']} is marked: it lacks copies at {names}")
    for each in told["givenUp"]:
        click.echo(f"ledger {each['ledgerId']} was closed at an operator's word: {each['what']}")
    for each in told["notRepaired"]:
        click.echo(f"not repaired: ledger {each['ledgerId']}, {each['why']}")


def _entries(each: dict[str, Any]) -> str:
    if each["lastEntryId"] < each["firstEntryId"]:
        return "all"
    if each["firstEntryId"] == each["lastEntryId"]:
        return str(each["firstEntryId"])
    step = each.get("every", 1)
    of = f", one of {step}" if step > 1 else ""
    return f"{each['firstEntryId']} to {each['lastEntryId']}{of}"
