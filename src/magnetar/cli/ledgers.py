"""``magnetar ledger`` and ``magnetar bookies``: what is stored, below topics."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import click

from magnetar.cli.copies import delete, explain, show_metadata, verify
from magnetar.cli.giving_up import close_at_loss
from magnetar.cli.output import binary, json_option, print_json, print_table
from magnetar.cli.rest import RestClient, url_option

HEX_BYTES_MAX = 256
BODY_CHARACTERS_MAX = 100


@click.group()
def ledger() -> None:
    """Look at ledgers and read their entries. Only close-at-loss --accept-loss fences a ledger.

    \b
    Examples:
      magnetar ledger list
      magnetar ledger show 3
      magnetar ledger read 3 --first 100 --count 20
      magnetar ledger explain 3 --metadata zk://127.0.0.1:2181/magnetar
      magnetar ledger verify --all --metadata zk://127.0.0.1:2181/magnetar
    """


for command in (explain, verify, show_metadata, delete, close_at_loss):
    ledger.add_command(command)


@ledger.command("list")
@click.option("--after", default=-1, help="Only ledgers with ids above this one.")
@click.option("--limit", default=1000, type=click.IntRange(1, 10_000), show_default=True)
@url_option
@json_option
def list_ledgers(after: int, limit: int, url: str, as_json: bool) -> None:
    """List ledgers: state, quorums, size and whose they are; and what deleted ones have left on
    the disks of that process."""
    rest = RestClient(url)
    found = rest.get("/magnetar/v1/ledgers", after=after, limit=limit)
    if as_json:
        print_json(found)
        return
    columns = ("ledger#", "state", "E/Qw/Qa", "last entry#", "bytes#", "fragments#", "of")
    print_table(columns, [_ledger_row(each) for each in found])
    for each in rest.get("/magnetar/v1/bookies"):
        if each["waitingSpace"] is not None:
            click.echo(_waiting_line(each["bookieId"], each["waitingSpace"]))


def _waiting_line(bookie_id: str, space: Mapping[str, Any]) -> str:
    return (
        f"{bookie_id}: {binary(space['byteCount'])} on disk are not used any more and wait to be "
        f"given back; {space['deletedLedgers']} deleted ledgers wait to be forgotten, at the next "
        f"look at {space['nextLook'].replace('T', ' ')} or the one after it"
    )


def _ledger_row(each: Mapping[str, Any]) -> tuple[object, ...]:
    quorums = f"{each['ensembleSize']}/{each['writeQuorum']}/{each['ackQuorum']}"
    closed = each["state"] == "CLOSED"
    return (
        each["ledgerId"],
        each["state"],
        quorums,
        each["lastEntryId"] if closed else "-",
        each["length"] if closed else "-",
        len(each["fragments"]),
        " ".join(f"{key}={value}" for key, value in sorted(each["custom"].items())),
    )


@ledger.command()
@click.argument("ledger_id", type=click.IntRange(0))
@url_option
@json_option
def show(ledger_id: int, url: str, as_json: bool) -> None:
    """Show the metadata of LEDGER_ID."""
    found = RestClient(url).get(f"/magnetar/v1/ledgers/{ledger_id}")
    if as_json:
        print_json(found)
        return
    simple = {key: value for key, value in found.items() if key not in ("fragments", "custom")}
    print_table(("field", "value"), [(key, str(value)) for key, value in simple.items()])
    if found["custom"]:
        print_table(("custom", "value"), sorted(found["custom"].items()))
    fragments = [(each["firstEntryId"], ", ".join(each["bookies"])) for each in found["fragments"]]
    print_table(("from entry#", "bookies"), fragments)


@ledger.command()
@click.argument("ledger_id", type=click.IntRange(0))
@click.option("--first", default=0, type=click.IntRange(0), show_default=True, help="First entry.")
@click.option("--count", default=10, type=click.IntRange(1, 1000), show_default=True)
@click.option("--hex", "as_hex", is_flag=True, help="Show payloads byte by byte.")
@url_option
@json_option
def read(ledger_id: int, first: int, count: int, as_hex: bool, url: str, as_json: bool) -> None:
    """Read entries of LEDGER_ID, as bookies hold them.

    Entries that are messages are shown with their metadata; the others, and all with --hex, byte
    by byte.
    """
    path = f"/magnetar/v1/ledgers/{ledger_id}/entries"
    entries = RestClient(url).get(path, first=first, count=count)
    if as_json:
        print_json(entries)
        return
    if not entries:
        click.echo(f"ledger {ledger_id} holds no entry from {first} on", err=True)
    for entry in entries:
        _print_entry(entry, as_hex)


def _print_entry(entry: Mapping[str, Any], as_hex: bool) -> None:
    message = entry["message"]
    place = f"{entry['ledgerId']}:{entry['entryId']}"
    about = f"{place}  {entry['payloadBytes']} bytes, LAC {entry['lastAddConfirmed']}"
    if message is not None:
        about += (
            f", from {message['producerName']} #{message['sequenceId']}, "
            f"{message['messages']} message(s), {message['compression'].lower()}"
        )
        about += f", key {message['key']!r}" if message["key"] else ""
    click.echo(about)
    if message is not None and not as_hex:
        _print_message(message)
    else:
        _print_hex(base64.b64decode(entry["payload"]))


def _print_message(message: Mapping[str, Any]) -> None:
    for key, value in sorted(message["properties"].items()):
        click.echo(f"    {key}: {value}")
    text = base64.b64decode(message["body"]).decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else "." for c in text[:BODY_CHARACTERS_MAX])
    click.echo(f"    {shown}{'...' if len(text) > BODY_CHARACTERS_MAX else ''}")


def _print_hex(payload: bytes) -> None:
    for offset in range(0, min(len(payload), HEX_BYTES_MAX), 16):
        row = payload[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        click.echo(f"    {offset:06x}  {row.hex(' '):<47}  {text}")
    if len(payload) > HEX_BYTES_MAX:
        click.echo(f"    ... {binary(len(payload) - HEX_BYTES_MAX)} more; --json has all of it")


@click.command()
@url_option
@json_option
def bookies(url: str, as_json: bool) -> None:
    """List the bookies that are registered."""
    found = RestClient(url).get("/magnetar/v1/bookies")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["bookieId"],
            each["available"],
            each["local"],
            binary(each["waitingSpace"]["byteCount"]) if each["waitingSpace"] else "",
        )
        for each in found
    ]
    print_table(("bookie", "takes entries", "in that process", "to be given back"), rows)
