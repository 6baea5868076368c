"""A picture of the results: who is late, where, and when."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd

from demo.delays import FIELDS, Key, Row


def draw(results: dict[Key, Row], to: Path) -> None:
    """Two panels: the weekly mean delay per airport, and the share of late flights by airline."""
    rows = [(*key, *row) for key, row in results.items()]
    table = pd.DataFrame(rows, columns=["day", "origin", "name", *FIELDS])
    table["day"] = pd.to_datetime(table["day"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6), width_ratios=(3, 2))
    _weekly(table, left)
    _airlines(table, right)
    figure.suptitle(
        f"{table['flights'].sum():,} flights out of New York City, 2013: "
        f"{len(table):,} results read back from the topic"
    )
    figure.tight_layout()
    figure.savefig(to, dpi=110)
    plt.close(figure)


def _weekly(table: pd.DataFrame, axes: plt.Axes) -> None:
    for origin, part in table.groupby("origin"):
        weeks = part.set_index("day").resample("W")[["delay_sum", "flights", "cancelled"]].sum()
        axes.plot(
            weeks.index, weeks["delay_sum"] / (weeks["flights"] - weeks["cancelled"]), label=origin
        )
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_title("Delay per airport and week")
    axes.grid(alpha=0.3)
    axes.legend()


def _airlines(table: pd.DataFrame, axes: plt.Axes) -> None:
    sums = table.groupby("name")[["delayed", "flights"]].sum()
    share = (100 * sums["delayed"] / sums["flights"]).sort_values()
    axes.barh(share.index, share.to_numpy(), color="tab:orange")
    axes.set_xlabel("flights 15 minutes late or more, %")
    axes.set_title("Late flights by airline")
    axes.grid(axis="x", alpha=0.3)
