"""A ledger's copies as a picture of characters, made of an explanation (``ledger explain --json``).

A row is a bookie, from left to right go the entries, and between bars lies a fragment. Every
fragment gets some columns, the long ones more; fragments that do not fit beside each other go
below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

COLUMNS: Final = 80
NAME_COLUMNS_MAX: Final = 24
NOTE_COLUMNS: Final = 16
FRAGMENT_COLUMNS_MIN: Final = 6
RANGES_SHOWN: Final = 6

HELD, MISSING, SOME, SILENT, OPEN, GONE = "#-+?ox"
COLOURS: Final = {HELD: "green", MISSING: "red", SOME: "yellow", SILENT: "yellow", GONE: "red"}
LEGEND: Final = (
    (HELD, "all of its share"),
    (OPEN, "held, not confirmed yet"),
    (SOME, "some missing"),
    (MISSING, "missing"),
    (SILENT, "does not answer"),
    (GONE, "assumed lost"),
)
WORDS: Final = {
    "whole": "whole",
    "fewer": "fewer copies than Qw, not fewer than Qa",
    "below-ack-quorum": "fewer copies than Qa",
    "unreadable": "unreadable until a silent bookie answers",
    "lost": "LOST",
}

Row = Mapping[str, Any]


def lines(told: Row) -> Iterator[str]:
    """The picture and what follows from it, with colours (``click.echo`` takes them away where
    there is no terminal)."""
    quorums = f"E/Qw/Qa {told['ensembleSize']}/{told['writeQuorum']}/{told['ackQuorum']}"
    yield click.style(f"ledger {told['ledgerId']}  {told['state']}  {quorums}", bold=True)
    yield _extent(told)
    if told.get("givenUp"):
        yield f"closed at an operator's word: {told['givenUp']}"
    yield ""
    shown = ""
    for band in _bands(told):
        for line in band:
            shown += click.unstyle(line)
            yield line
        yield ""
    yield "  ".join(f"{sign} {what}" for sign, what in LEGEND if sign in shown)
    for each in told["bookies"]:
        if not each["answers"]:
            yield f"{each['bookieId']} does not answer: {each['problem']}"
        elif each["copiesHeld"] < each["copiesNamed"]:
            yield f"{each['bookieId']} lacks what is for it of {_lacking(told, each['bookieId'])}"
    yield ""
    yield "now:"
    yield from _outcome(told["now"])
    if told["forecast"] is not None:
        names = ", ".join(told["forecast"]["without"])
        yield f"without {names or 'those (none is of this ledger)'}:"
        yield from _outcome(told["forecast"])


def _lacking(told: Row, name: str) -> str:
    """The entries of which a bookie has none that is for it."""
    ranges: list[tuple[int, int]] = []
    for fragment in told["fragments"]:
        slot = fragment["bookies"].index(name) if name in fragment["bookies"] else None
        for section in fragment["sections"]:
            if slot is not None and section["copies"][slot] == "missing":
                ranges.append((section["firstEntryId"], section["lastEntryId"]))
    shown = [f"{one:,}" if one == last else f"{one:,} to {last:,}" for one, last in ranges]
    more = f" and {len(shown) - RANGES_SHOWN} ranges more" if len(shown) > RANGES_SHOWN else ""
    return f"entries {', '.join(shown[:RANGES_SHOWN])}{more}"


def _extent(told: Row) -> str:
    last, confirmed = told["lastEntry"], told["lastConfirmed"]
    if last < 0:
        return "no entry"
    if told["length"] is not None:
        return f"entries 0 to {last:,}, {told['length']:,} bytes"
    return f"entries 0 to {last:,}, confirmed for sure up to {confirmed:,}; it is not closed"


# -- the picture ------------------------------------------------------------------------------


def _bands(told: Row) -> Iterator[list[str]]:
    names = sorted(each["bookieId"] for each in told["bookies"])
    width = min(max(map(len, [*names, "copies without"])), NAME_COLUMNS_MAX)
    room = COLUMNS - width - NOTE_COLUMNS - 3
    notes = {each["bookieId"]: _note(each) for each in told["bookies"]}
    gone = {*told["forecast"]["without"]} if told["forecast"] is not None else set()
    for fragments in _fitting(told["fragments"], room):
        widths = _widths(fragments, room)
        yield [
            f"{'':{width}} {_axis(fragments, widths)}",
            *(
                f"{_short(name, width):{width}} {_row(name, fragments, widths, gone)} {notes[name]}"
                for name in names
            ),
            f"{'copies':{width}} {_copies(told, told['now'], fragments, widths)} at least",
            *(
                [f"{'copies without':{width}} {_copies(told, told['forecast'], fragments, widths)}"]
                if told["forecast"] is not None
                else []
            ),
        ]


def _note(bookie: Row) -> str:
    if not bookie["answers"]:
        return click.style("no answer", fg="yellow")
    if bookie["copiesHeld"] == bookie["copiesNamed"]:
        return "all"
    return click.style(f"lacks {bookie['copiesNamed'] - bookie['copiesHeld']:,}", fg="red")


def _short(name: str, width: int) -> str:
    """Both ends of a long name tell it apart from others."""
    if len(name) <= width:
        return name
    tail = (width - 2) // 2
    return f"{name[: width - 2 - tail]}..{name[-tail:]}"


def _fitting(fragments: Sequence[Row], room: int) -> Iterator[Sequence[Row]]:
    count = max(1, (room - 1) // (FRAGMENT_COLUMNS_MIN + 1))
    for first in range(0, len(fragments), count):
        yield fragments[first : first + count]


def _widths(fragments: Sequence[Row], room: int) -> list[int]:
    """Columns of each; what is left over is shared by length."""
    least = FRAGMENT_COLUMNS_MIN
    left = room - 1 - len(fragments) * (least + 1)
    entries = [_entries(each) for each in fragments]
    total = sum(entries) or 1
    return [least + left * count // total for count in entries]


def _entries(fragment: Row) -> int:
    count: int = fragment["lastEntryId"] - fragment["firstEntryId"] + 1
    return count


def _axis(fragments: Sequence[Row], widths: Sequence[int]) -> str:
    """The first entry of each fragment, above where it begins."""
    text = ""
    for fragment, width in zip(fragments, widths, strict=True):
        label = str(fragment["firstEntryId"])
        text += f"{label if len(label) <= width else '':{width + 1}}"
    return text


def _row(name: str, fragments: Sequence[Row], widths: Sequence[int], gone: set[str]) -> str:
    cells = (_cells(name, each, width, gone) for each, width in zip(fragments, widths, strict=True))
    return "|" + "|".join(cells) + "|"


def _cells(name: str, fragment: Row, width: int, gone: set[str]) -> str:
    if name not in fragment["bookies"]:
        return " " * width
    slot = fragment["bookies"].index(name)
    if name in gone:
        return click.style(GONE * width, fg=COLOURS[GONE])
    signs = (
        _sign(slot, [s for s in fragment["sections"] if _overlap(s, ids)])
        for ids in _columns(fragment, width)
    )
    return "".join(click.style(sign, fg=COLOURS.get(sign)) for sign in signs)


def _sign(slot: int, sections: Sequence[Row]) -> str:
    """Of one column; a fragment without entries has none to lack."""
    states = {section["copies"][slot] for section in sections}
    if "unknown" in states:
        return SILENT
    if states == {"missing"}:
        return MISSING
    if "missing" in states:
        return SOME
    return OPEN if sections and not all(each["confirmed"] for each in sections) else HELD


def _columns(fragment: Row, width: int) -> list[tuple[int, int]]:
    """The first and the last entry of each column; a short fragment has entries in several."""
    first, count = fragment["firstEntryId"], _entries(fragment)
    found = []
    for column in range(width):
        start = first + column * count // width
        found.append((start, max(start, first + (column + 1) * count // width - 1)))
    return found


def _overlap(some: Row, ids: tuple[int, int]) -> bool:
    return bool(some["firstEntryId"] <= ids[1] and ids[0] <= some["lastEntryId"])


def _copies(told: Row, outcome: Row, fragments: Sequence[Row], widths: Sequence[int]) -> str:
    """In each column the fewest copies that an entry of it has."""
    whole: int = told["writeQuorum"]
    text = ""
    for fragment, width in zip(fragments, widths, strict=True):
        text += "|"
        for ids in _columns(fragment, width):
            if not _entries(fragment):
                text += " "
                continue
            fewest = min([whole, *(r["copies"] for r in outcome["ranges"] if _overlap(r, ids))])
            sign = str(fewest) if fewest < 10 else "9"
            text += click.style(sign, fg="red", bold=True) if fewest == 0 else sign
    return text + "|"


# -- in words ---------------------------------------------------------------------------------


def _outcome(outcome: Row) -> Iterator[str]:
    for fate, count in outcome["entries"].items():
        if not count:
            continue
        ranges = [each for each in outcome["ranges"] if each["fate"] == fate]
        colour = "red" if fate in ("lost", "unreadable") else None
        yield "  " + click.style(f"{count:>9,}  {WORDS[fate]}", fg=colour)
        for each in ranges[:RANGES_SHOWN]:
            yield f"{'':13}{_range(each)}"
        if len(ranges) > RANGES_SHOWN:
            yield f"{'':13}and {len(ranges) - RANGES_SHOWN} ranges more (--json)"
    if not any(outcome["entries"].values()):
        yield "          0  entries"
    closing = outcome["closing"]
    if closing is not None:
        yield f"  {_closing(closing)}"


def _range(each: Row) -> str:
    if each["entries"] == 1:
        text = f"entry {each['firstEntryId']:,}"
    else:
        text = f"entries {each['firstEntryId']:,} to {each['lastEntryId']:,}"
    if each["every"] > 1 and each["entries"] > 1:
        text += f", one of {each['every']}"
    text += f": {each['copies']} left"
    if each["copiesPerhaps"]:
        text += f", {each['copiesPerhaps']} at silent bookies"
    return text if each["confirmed"] else f"{text} (perhaps never acknowledged)"


def _closing(closing: Row) -> str:
    if not closing["possible"]:
        return f"{click.style('it could not be closed:', fg='red')} {closing['why']}"
    least, most = closing["lastEntryIdLeast"], closing["lastEntryIdMost"]
    if least == most:
        return f"it could be closed, at entry {most:,}" if most >= 0 else "it would be closed empty"
    return f"it could be closed, at an entry from {least:,} to {most:,} (who answers first decides)"
