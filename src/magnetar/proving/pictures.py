"""The run in two pictures: what was lost of what was acknowledged, and for how long nobody served.

SVG with nothing from elsewhere: no fonts, scripts or links. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from magnetar.log.policy import Engine
from magnetar.proving.counting import Back
from magnetar.proving.results import LaneResult, RunResult, settings, unavailable

WIDTH: Final = 900
LABEL: Final = 330
BAR: Final = 380
ROW: Final = 22
TITLE: Final = 34
COLOURS: Final = {Engine.LEDGER: "#2b6cb0", Engine.PARTITION: "#b7791f"}
PEERS: Final = {Engine.LEDGER: "#90cdf4", Engine.PARTITION: "#f6ad55"}
"""Another system of that model."""
LOST: Final = "#c53030"
KEPT: Final = "#c6f6d5"
GREY: Final = "#718096"


def losses(result: RunResult) -> str:
    """A row a lane; red is the share of the acknowledged messages that is gone."""
    return _picture("Lost, of what was acknowledged", result, _loss)


def outages(result: RunResult) -> str:
    """A row a lane; the bar is the time until the next message was acknowledged."""
    most = max((_seconds(lane) for lane in _lanes(result)), default=1.0) or 1.0

    def bar(lane: LaneResult, y: int) -> Iterator[str]:
        width = BAR * _seconds(lane) / most
        yield _rect(LABEL, y + 4, max(width, 1), ROW - 8, _colour(lane))
        yield _text(LABEL + width + 6, y + 15, unavailable(lane.observed))

    return _picture("Nobody took a message for", result, bar)


def _loss(lane: LaneResult, y: int) -> Iterator[str]:
    seen = lane.observed
    share = seen.lost / seen.acknowledged if seen.acknowledged else 0.0
    yield _rect(LABEL, y + 4, BAR, ROW - 8, KEPT)
    if share:
        yield _rect(LABEL, y + 4, max(2.0, BAR * share), ROW - 8, LOST)
    text = f"{seen.lost} of {seen.acknowledged}"
    if seen.back is Back.NOBODY:
        text = f"{seen.acknowledged} held: nobody leads"
    yield _text(LABEL + BAR + 6, y + 15, text, LOST if share else "#22543d")


def _seconds(lane: LaneResult) -> float:
    return lane.observed.unavailable_s or 0.0


def _colour(lane: LaneResult) -> str:
    return (PEERS if lane.spec.peer else COLOURS)[lane.spec.engine]


def _lanes(result: RunResult) -> list[LaneResult]:
    return [lane for each in result.scenarios for lane in each.lanes]


def _picture(title: str, result: RunResult, bar: object) -> str:
    assert callable(bar)
    parts: list[str] = [_text(10, 22, title, size=17, bold=True)]
    y = 40
    for found in result.scenarios:
        parts.append(_text(10, y + 20, found.scenario.title, size=13, bold=True))
        y += TITLE - 4
        if not found.lanes:
            why = f"not run: {found.not_run}" if found.not_run else f"failed: {found.failed}"
            parts.append(_text(24, y + 15, why[:110], LOST))
            y += ROW
        for lane in found.lanes:
            label = f"{lane.spec.side}: {settings(lane.spec)}"
            parts.append(_text(24, y + 15, _short(label), COLOURS[lane.spec.engine]))
            parts += bar(lane, y)
            y += ROW
        y += 6
    return _svg(y + 10, parts)


def _short(label: str) -> str:
    return label if len(label) <= 50 else label[:49] + "…"


def _svg(height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" rx="2" '
        f'fill="{colour}"/>'
    )


def _text(
    x: float, y: float, text: str, colour: str = "#1a202c", *, size: int = 12, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"{weight}>'
        f"{escape(text)}</text>"
    )
