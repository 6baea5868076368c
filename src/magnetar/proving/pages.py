"""The run as one page, in Markdown and in HTML, for a person who decides between the two models.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from magnetar.proving.pictures import losses, outages
from magnetar.proving.results import (
    LaneResult,
    RunResult,
    ScenarioResult,
    expected_lost,
    observed_lost,
    settings,
    unavailable,
)

TITLE: Final = "Two engines under the same faults"
INTRODUCTION: Final = (
    "The same topics, producers and faults on both of Magnetar's engines: *partition*, which is "
    "Kafka's model (a leader, followers, an in-sync set), and *ledger*, which is BookKeeper's (a "
    "writer, an ensemble of bookies, a quorum). Every broker, bookie and ZooKeeper is a process. "
    "*Lost* is a message that its producer was told is stored, and that nobody can read in the "
    "end.",
)
DECISIONS: Final = (
    ("Nothing may be lost, whoever sets up the producer",
     "ledger: `acks` does not matter there, and one bookie or one owner less costs nothing."),
    ("Nothing may be lost, and it must be Kafka's files",
     "partition with `acks=all`, `min.insync.replicas=2` of three, unclean election off, "
     "`partition.sync=each-batch`: it refuses where it could lose."),
    ("It must take messages with two of three machines away",
     "ledger with spare bookies (it changes its ensemble); or partition with min ISR 1, which then "
     "waits for the one machine that was left, or loses what that had (unclean)."),
    ("A lost tail is cheaper than a wait",
     "partition with `acks=1`, or unclean election: the counts below are the price."),
)  # fmt: skip
BESIDE: Final = (
    "Beside them, where they have the same model: other systems, each a cluster of its own, after "
    "ours, with the same fault, load and settings. Their lanes have their names."
)
HEAD: Final = (
    "side", "settings", "acknowledged", "lost: expected", "lost: observed", "duplicated",
    "reordered", "unavailable", "then served by", "as expected",
)  # fmt: skip


def verdict(result: RunResult) -> str:
    """One line."""
    lanes = [lane for each in result.scenarios for lane in each.lanes]
    wrong = sum(bool(lane.wrong) for lane in lanes)
    peers = [(peer, each.scenario.name) for each in result.scenarios for peer in each.peers]
    failed = sum(bool(each.failed) for each in result.scenarios)
    failed += sum(bool(peer.failed) for peer, _ in peers)
    skipped = [each.scenario.name for each in result.scenarios if each.not_run]
    skipped += [f"{peer.name} in {name}" for peer, name in peers if peer.not_run]
    text = f"{len(lanes) - wrong} of {len(lanes)} lanes came out as expected"
    if failed:
        text += f"; {failed} scenarios FAILED"
    if skipped:
        text += f"; NOT RUN: {', '.join(skipped)}"
    return f"{text} ({result.seconds:.0f} s, seed {result.seed}, {result.when})"


def row(lane: LaneResult) -> list[str]:
    seen = lane.observed
    return [
        lane.spec.side,
        settings(lane.spec),
        str(seen.acknowledged),
        expected_lost(lane.spec),
        observed_lost(lane),
        str(seen.duplicated),
        str(seen.reordered),
        unavailable(seen),
        seen.back.value,
        "NO: " + "; ".join(lane.wrong) if lane.wrong else "yes",
    ]


def _remark(found: ScenarioResult) -> str:
    if found.not_run:
        return f"not run: {found.not_run}"
    return f"FAILED: {found.failed}" if found.failed else ""


def _of_peers(found: ScenarioResult) -> Iterator[str]:
    for each in found.peers:
        yield from (f"{each.name}: {note}" for note in each.notes)
        if each.not_run:
            yield f"{each.name} not run: {each.not_run}"
        if each.failed:
            yield f"{each.name} FAILED: {each.failed}"


def _introduction(result: RunResult) -> Sequence[str]:
    peers = any(each.peers for each in result.scenarios)
    return (*INTRODUCTION, BESIDE) if peers else INTRODUCTION


# -- Markdown ---------------------------------------------------------------------------------


def markdown(result: RunResult) -> str:
    """Beside it lie ``lost.svg`` and ``unavailable.svg``."""
    return "\n".join(_markdown(result)) + "\n"


def _markdown(result: RunResult) -> Iterator[str]:
    yield f"# {TITLE}\n"
    yield f"**{verdict(result)}**\n"
    yield "\n\n".join(_introduction(result)) + "\n"
    yield "## Which one\n"
    yield "| what counts | then |\n|---|---|"
    for asked, answer in DECISIONS:
        yield f"| {asked} | {answer} |"
    yield "\n![what was lost](lost.svg)\n"
    yield "![for how long nobody served](unavailable.svg)\n"
    for found in result.scenarios:
        yield f"## {found.scenario.title}\n"
        yield f"{found.scenario.fault}\n"
        if _remark(found):
            yield f"**{_remark(found)}**\n"
        if found.lanes:
            yield table(found.lanes) + "\n"
        if remarks := "\n".join(f"* {each}" for each in _of_peers(found)):
            yield remarks + "\n"
        yield f"*{found.scenario.lesson}*\n"


def table(lanes: Sequence[LaneResult]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(row(lane))} |" for lane in lanes]
    return "\n".join(lines)


# -- HTML -------------------------------------------------------------------------------------

STYLE: Final = """
body { font-family: sans-serif; max-width: 960px; margin: 2em auto; line-height: 1.45;
       color: #1a202c; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px; margin: .6em 0 }
td, th { border: 1px solid #cbd5e0; padding: 3px 7px; text-align: left; vertical-align: top }
th { background: #edf2f7 } .no { background: #fed7d7; font-weight: bold }
.ledger { color: #2b6cb0 } .partition { color: #b7791f } .lost { color: #c53030; font-weight: bold }
.verdict { padding: .6em 1em; background: #c6f6d5 } .bad { background: #fed7d7 }
svg { max-width: 100%; height: auto } code { background: #edf2f7 }
"""


def html(result: RunResult) -> str:
    """All in one file."""
    return "\n".join(_html(result)) + "\n"


def _html(result: RunResult) -> Iterator[str]:
    yield "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
    yield f"<title>{TITLE}</title><style>{STYLE}</style></head><body><h1>{TITLE}</h1>"
    bad = "" if result.as_expected else " bad"
    yield f"<p class='verdict{bad}'>{escape(verdict(result))}</p>"
    yield from (f"<p>{_marked(each)}</p>" for each in _introduction(result))
    yield "<h2>Which one</h2><table><tr><th>what counts</th><th>then</th></tr>"
    for asked, answer in DECISIONS:
        yield f"<tr><td>{_marked(asked)}</td><td>{_marked(answer)}</td></tr>"
    yield "</table>"
    yield losses(result)
    yield outages(result)
    for found in result.scenarios:
        yield f"<h2 id='{found.scenario.name}'>{escape(found.scenario.title)}</h2>"
        yield f"<p>{_marked(found.scenario.fault)}</p>"
        if _remark(found):
            yield f"<p class='verdict bad'>{escape(_remark(found))}</p>"
        if found.lanes:
            yield "<table><tr>" + "".join(f"<th>{each}</th>" for each in HEAD) + "</tr>"
            yield from map(_html_row, found.lanes)
            yield "</table>"
        if remarks := "".join(f"<li>{_marked(each)}</li>" for each in _of_peers(found)):
            yield f"<ul>{remarks}</ul>"
        yield f"<p><em>{_marked(found.scenario.lesson)}</em></p>"
    yield "</body></html>"


def _html_row(lane: LaneResult) -> str:
    cells = [escape(each) for each in row(lane)]
    classes = [lane.spec.engine.value] + [""] * (len(cells) - 1)
    if lane.observed.lost:
        classes[4] = "lost"
    if lane.wrong:
        classes[-1] = "no"
    filled = zip(classes, cells, strict=True)
    return "<tr>" + "".join(f"<td class='{kind}'>{cell}</td>" for kind, cell in filled) + "</tr>"


def _marked(text: str) -> str:
    """The little Markdown that the texts here use: `code` and *emphasis*."""
    parts = escape(text).split("`")
    coded = [f"<code>{each}</code>" if i % 2 else _emphasized(each) for i, each in enumerate(parts)]
    return "".join(coded)


def _emphasized(text: str) -> str:
    parts = text.split("*")
    return "".join(f"<em>{each}</em>" if i % 2 else each for i, each in enumerate(parts))
