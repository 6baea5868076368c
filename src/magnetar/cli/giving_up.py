"""``magnetar ledger close-at-loss``: a ledger that cannot be closed without a loss is closed with
one, at an operator's word."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.recovery import look, metadata_option
from magnetar.model.errors import ConfigError, NoSuchLedgerError
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import COMPACTED_KEY, CURSOR_KEY

NOT_DONE = 1
"""The exit code when the ledger is not closed, and recovery cannot close it."""
SHOWN_MAX = 100


@click.command("close-at-loss")
@click.argument("ledger_id", type=click.IntRange(0))
@click.option("--lost", multiple=True, metavar="BOOKIE", help="It will not come back; repeatable.")
@click.option(
    "--at", type=click.IntRange(NO_ENTRY), help="Close it there: the entry that a look has named."
)
@click.option(
    "--accept-loss", is_flag=True, help="With --at: what lies behind is given up, for good."
)
@click.option(
    "--of",
    metavar="NAME",
    help="Its metadata are gone, and this cannot be opened without it: as the broker's log says.",
)
@metadata_option
@json_option
def close_at_loss(
    ledger_id: int,
    lost: tuple[str, ...],
    at: int | None,
    accept_loss: bool,
    of: str | None,
    metadata: str,
    as_json: bool,
) -> int:
    """Close LEDGER_ID without the entries of which no sound copy is left, so that its topic opens.

    A ledger that has the acknowledgements of a subscription may be closed already: then its
    subscription goes on from what can be read, and gets the rest again.

    One whose metadata are gone (it was deleted by hand, or the metadata store was put back to what
    it was earlier) is entered anew, closed and empty: say --of whose it was, and --at -1.

    Without --at and --accept-loss it only looks, and changes nothing: where the ledger would end,
    and which entries would be given up, with what every bookie says of each. What recovery can
    close without a loss is refused. So is whatever a bookie that does not answer may have; say
    --lost of one that will never come back.

    What is given up is kept with the ledger's metadata (`magnetar ledger metadata`), and told by
    `magnetar ledger verify` and `explain` for as long as there is the ledger, and by the log of a
    broker that opens it.

    \b
    Examples:
      magnetar ledger close-at-loss 7 --metadata zk://127.0.0.1:2181/magnetar
      magnetar ledger close-at-loss 7 --at 41 --accept-loss \\
          --metadata zk://127.0.0.1:2181/magnetar
      magnetar ledger close-at-loss 7 --of public/default/persistent/flights/billing \\
          --at -1 --accept-loss --metadata /var/lib/magnetar
    """
    if of is not None and (lost or at not in (None, NO_ENTRY)):
        raise click.UsageError("nothing is left of a ledger that is gone: with --of give --at -1")
    if accept_loss is not (at is not None):
        raise click.UsageError("--at ENTRY and --accept-loss go together; without both it looks")
    bookies = [BookieId(each) for each in lost]

    async def work(insight: Any) -> dict[str, Any]:
        for bookie in bookies:
            if await insight.operating.is_registered(bookie):
                raise ConfigError(f"bookie {bookie} is registered: it is not lost (--lost)")
        if of is not None:
            return await _entered_anew(insight, ledger_id, of, at)
        try:
            if at is None:
                return _told(await insight.giving_up.look(ledger_id, bookies))
            closed = await insight.giving_up.close(ledger_id, at, int(time.time() * 1000), bookies)
        except NoSuchLedgerError as error:
            raise NoSuchLedgerError(
                f"{error}. If a topic does not open without it, say what the broker's log names "
                "there: --of NAME"
            ) from None
        return {"ledgerId": ledger_id, "closedAt": at, **await _mended(insight, closed)}

    told = look(metadata, work, level="error" if at is None else "warning")
    if as_json:
        print_json(told)
    elif of is not None:
        _print_gone(told)
    elif at is None:
        _print_look(told)
    else:
        _print_closed(told)
    return 0 if at is not None or told["recoverable"] else NOT_DONE


async def _entered_anew(insight: Any, ledger_id: int, of: str, at: int | None) -> dict[str, Any]:
    """A look if ``at`` is None."""
    await insight.entering.check(ledger_id)
    custom = await insight.named_by(of, ledger_id)
    told = {"ledgerId": ledger_id, "of": {name: value.decode() for name, value in custom.items()}}
    if at is None:
        return told | {"state": "GONE", "recoverable": False, "closesAt": NO_ENTRY}
    from magnetar.ledger.given_up import given_up_of

    entered = await insight.entering.enter(ledger_id, custom, int(time.time() * 1000))
    given_up = given_up_of(entered)
    assert given_up is not None, "it is written with the rest"
    return told | {"closedAt": at, "givenUp": given_up._asdict(), "text": given_up.text}


def _print_gone(told: dict[str, Any]) -> None:
    ledger_id = told["ledgerId"]
    ((key, of),) = told["of"].items()
    if "closedAt" in told:
        click.echo(f"ledger {ledger_id} is entered anew, closed and empty: {told['text']}")
        return
    click.echo(f"ledger {ledger_id} is gone: the metadata store has nothing of it, and {of}")
    if key == CURSOR_KEY:
        click.echo("cannot be opened without it. It would go on from the mark-delete position that")
        click.echo("the metadata store has: what was acknowledged since comes again")
    elif key == COMPACTED_KEY:
        click.echo(
            "is not compacted without it. Who reads that would get the log as it is: without"
        )
        click.echo(
            "the last message of a key that is nowhere else; the next compaction begins anew"
        )
    else:
        click.echo("cannot be opened without it. All messages that were in it would be given up")
    click.echo("nothing was changed. To give it up, for good:")
    click.echo(
        f"  magnetar ledger close-at-loss {ledger_id} --of {shlex.quote(of)} --at {NO_ENTRY} "
        "--accept-loss"
    )


async def _mended(insight: Any, closed: Any) -> dict[str, Any]:
    """Recovery would have written its last entries to all bookies again before it closed the
    ledger; here that is repair's, which is told what is lacking."""
    from magnetar.ledger.given_up import given_up_of

    verifier = insight.verifier(0, lambda copies, byte_count: None)
    found = await verifier.verify(int(closed.ledger_id))
    mended = await verifier.mend(found, insight.copier(0), insight.mark)
    given_up = given_up_of(closed)
    assert given_up is not None, "it is written with the end"
    return {"givenUp": given_up._asdict(), "text": given_up.text, "marked": list(mended.marked)}


def _told(found: Any) -> dict[str, Any]:
    metadata = found.metadata
    return {
        "ledgerId": int(metadata.ledger_id),
        "state": metadata.state.name,
        "of": {name: value.decode("utf-8", "replace") for name, value in metadata.custom},
        "confirmed": found.confirmed,
        "silent": dict(found.silent),
        "lost": list(found.lost),
        "recoverable": found.recoverable,
        "closesAt": None if found.silent or found.recoverable else found.last,
        "givenUp": _entries(found.behind),
        "unreadable": _entries(found.unreadable),
    }


def _entries(whys: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"entryId": entry_id, "why": whys[entry_id]} for entry_id in sorted(whys)]


def _print_look(told: dict[str, Any]) -> None:
    ledger_id = told["ledgerId"]
    of = ", ".join(f"{name}={value}" for name, value in sorted(told["of"].items()))
    click.echo(f"ledger {ledger_id}  {told['state']}  {of}")
    if told["silent"]:
        for bookie, why in told["silent"].items():
            click.echo(f"{bookie} may have sound copies, and does not answer: {why}")
        click.echo("bring it back first; if it will not come back, say so: --lost BOOKIE")
        return
    closed = told["state"] == "CLOSED"
    if told["recoverable"]:
        click.echo(
            "it is closed, and all of it can be read"
            if closed
            else "recovery closes it without a loss, when its topic is opened next"
        )
        return
    if closed:
        click.echo("it is closed, and has the acknowledgements of a subscription. It would go on")
        click.echo("from what can be read; what these alone say was acknowledged comes again:")
        _print_entries(told["unreadable"])
    else:
        _print_given_up(told)
        if told["unreadable"]:
            click.echo(
                "before that nobody can read these; they stay in the ledger as lost entries:"
            )
            _print_entries(told["unreadable"])
    click.echo("nothing was changed. To give up what is named here, for good:")
    lost = "".join(f" --lost {bookie}" for bookie in told["lost"])
    click.echo(
        f"  magnetar ledger close-at-loss {ledger_id}{lost} --at {told['closesAt']} --accept-loss"
    )


def _print_given_up(told: dict[str, Any]) -> None:
    where = "empty" if told["closesAt"] == NO_ENTRY else f"at entry {told['closesAt']}"
    rows, confirmed = told["givenUp"], told["confirmed"]
    count = f"{len(rows):,} {'entry' if len(rows) == 1 else 'entries'}" if rows else "no entry"
    click.echo(f"it would be closed {where}, and, of what is known, {count} given up")
    _print_entries(rows)
    sure = sum(each["entryId"] <= confirmed for each in rows)
    if sure:
        click.echo(f"{sure:,} of them were acknowledged for sure; the others may have been")
    elif rows:
        click.echo("they may have been acknowledged")
    if told["lost"]:
        names = ", ".join(told["lost"])
        click.echo(f"and whatever only {names} had behind them, which nobody knows")


def _print_entries(rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [(each["entryId"], each["why"]) for each in rows[:SHOWN_MAX]]
    if shown:
        print_table(("entry#", "because"), shown)
    if len(rows) > SHOWN_MAX:
        click.echo(f"and {len(rows) - SHOWN_MAX:,} more; --json has all")


def _print_closed(told: dict[str, Any]) -> None:
    click.echo(f"ledger {told['ledgerId']} is closed at entry {told['closedAt']}: {told['text']}")
    if told["marked"]:
        click.echo(f"it is marked: it lacks copies at {', '.join(told['marked'])}")
