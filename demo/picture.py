"""A picture of the run: what came out of the stream, out of the table, and how long each took."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from demo.delays import FIELDS, Key, Row
from demo.history import Hours

INK, SOFT, GRID = "#1f2933", "#66727f", "#e3e7eb"
AIRPORTS: Final = {
    "EWR": ("Newark", "#d1495b"),
    "JFK": ("Kennedy", "#00798c"),
    "LGA": ("LaGuardia", "#edae49"),
}
STAGES: Final = {
    "published": "#8d99ae",
    "through Spark": "#00798c",
    "in the table": "#edae49",
    "read back": "#d1495b",
}
"""In this order in the legend."""
MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
FLIGHTS_LEAST: Final = 30
"""Of an hour that is shown: a share of less says nothing."""


@dataclass
class Course:
    """How many flights were where, and when (in seconds since the first was published)."""

    points: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    stored_bytes: dict[str, int] = field(default_factory=dict)
    """At the bookies before, in the table, at the bookies after."""

    def note(self, stage: str, at_seconds: float, count: int) -> None:
        self.points.setdefault(stage, []).append((at_seconds, count))


def draw(results: dict[Key, Row], hours: Hours, course: Course, to: Path) -> None:
    """Above, what the stream computed; below, what the table gives, and how the run went."""
    rows = [(*key, *row) for key, row in results.items()]
    table = pd.DataFrame(rows, columns=["day", "origin", "name", *FIELDS])
    table["day"] = pd.to_datetime(table["day"])
    with plt.rc_context(_style()):
        figure = plt.figure(figsize=(17, 11))
        sides = {"left": 0.05, "right": 0.975}
        above = figure.add_gridspec(
            1, 2, width_ratios=(8, 5), top=0.86, bottom=0.54, wspace=0.36, **sides
        )
        below = figure.add_gridspec(
            1, 3, width_ratios=(6, 5, 3.4), top=0.42, bottom=0.1, wspace=0.24, **sides
        )
        _weekly(table, figure.add_subplot(above[0]))
        _airlines(table, figure.add_subplot(above[1]))
        _hours(hours, figure.add_subplot(below[0]))
        _course(course, figure.add_subplot(below[1]))
        _bytes(course, figure.add_subplot(below[2]))
        figure.suptitle(
            f"{table['flights'].sum():,} flights out of New York in 2013, through one topic",
            fontsize=21, fontweight="bold", x=0.05, y=0.965, ha="left",
        )  # fmt: skip
        figure.savefig(to, dpi=110)
        plt.close(figure)


def _style() -> dict[str, object]:
    return {
        "font.size": 11, "text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": SOFT,
        "xtick.color": SOFT, "ytick.color": SOFT, "axes.spines.top": False,
        "axes.spines.right": False, "axes.axisbelow": True, "grid.color": GRID,
    }  # fmt: skip


def _title(axes: plt.Axes, what: str, whence: str) -> None:
    axes.set_title(what, loc="left", fontsize=14, fontweight="bold", pad=24)
    axes.text(0, 1.02, whence, transform=axes.transAxes, fontsize=10.5, color=SOFT, va="bottom")


def _weekly(table: pd.DataFrame, axes: plt.Axes) -> None:
    for origin, (name, color) in AIRPORTS.items():
        days = table[table["origin"] == origin].set_index("day")
        # Only whole weeks: of a week of two days the mean is that of these two.
        weeks = days[["delay_sum", "flights", "cancelled"]].resample("W").sum().iloc[1:-1]
        mean = weeks["delay_sum"] / (weeks["flights"] - weeks["cancelled"])
        axes.plot(weeks.index, mean, label=name, color=color, linewidth=2)
    axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.xaxis.set_major_locator(mpl.dates.MonthLocator())
    axes.xaxis.set_major_formatter(mpl.dates.DateFormatter("%b"))
    axes.margins(x=0.01)
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])  # room for the legend
    axes.set_ylabel("mean departure delay, minutes")
    axes.grid(axis="y")
    axes.legend(frameon=False, ncols=3, loc="upper left")
    _title(
        axes, "Summer storms and Christmas",
        "a typed Spark stream, joined and aggregated; read back from its results topic",
    )  # fmt: skip


def _airlines(table: pd.DataFrame, axes: plt.Axes) -> None:
    sums = table.groupby("name")[["delayed", "flights"]].sum()
    share = (100 * sums["delayed"] / sums["flights"]).sort_values()
    overall = 100 * sums["delayed"].sum() / sums["flights"].sum()
    colors = ["#d1495b" if value > overall else "#00798c" for value in share]
    bars = axes.barh(share.index, share.to_numpy(), color=colors, height=0.72)
    axes.axvline(overall, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"all: {overall:.0f} %", (overall, 0), (6, 0), textcoords="offset points", va="center"
    )
    around = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.bar_label(bars, fmt="%.0f %%", padding=4, color=SOFT, bbox=around)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    _title(axes, "Who leaves late", "flights 15 minutes late or more; the same stream")


def _hours(hours: Hours, axes: plt.Axes) -> None:
    first, last = min(hour for _, hour in hours), max(hour for _, hour in hours)
    share = np.full((12, last - first + 1), np.nan)
    for (month, hour), (flights, late) in hours.items():
        if flights >= FLIGHTS_LEAST:
            share[month - 1, hour - first] = 100 * late / flights
    used = [number for number in range(share.shape[1]) if not np.isnan(share[:, number]).all()]
    shown = share[:, used[0] : used[-1] + 1]
    image = axes.imshow(shown, cmap="YlOrRd", aspect="auto", vmin=0)
    at = range(0, shown.shape[1], 2)
    axes.set_xticks([*at], [f"{first + used[0] + number}:00" for number in at])
    axes.set_yticks(range(12), MONTHS)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("scheduled hour in New York")
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, format="%.0f %%")
    bar.outline.set_visible(False)
    _title(axes, "Fly in the morning", "share of late flights; DuckDB on the topic's table")


def _course(course: Course, axes: plt.Axes) -> None:
    for stage, color in STAGES.items():
        seconds, counts = zip(*course.points[stage], strict=True)
        axes.plot(seconds, np.array(counts) / 1000, label=stage, color=color, linewidth=2.2)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the first flight was published")
    axes.grid(axis="y")
    axes.legend(
        frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(-0.06, -0.13),
        columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip
    _title(axes, "One run", "thousand flights: each once, at each place")


def _bytes(course: Course, axes: plt.Axes) -> None:
    names = [*course.stored_bytes]
    sizes = [course.stored_bytes[name] / 1e6 for name in names]
    bars = axes.bar(names, sizes, color=["#8d99ae", "#edae49", "#8d99ae"], width=0.62)
    axes.bar_label(bars, [f"{size:.1f} MB" for size in sizes], padding=4, fontweight="bold")
    axes.margins(y=0.12)
    axes.spines[["left"]].set_visible(False)
    axes.tick_params(left=False, labelleft=False, length=0)
    _title(axes, "History is kept once", "bytes of the topic, one copy of each")
