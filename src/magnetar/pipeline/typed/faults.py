"""Which of a block's values cannot be read, and why: the first reason of each.

Pure.
"""

from __future__ import annotations

import numpy as np

from magnetar.pipeline.columns.protobuf_columns import Flags, Ints


class Faults:
    """Of ``count`` values."""

    def __init__(self, count: int) -> None:
        self.bad: Flags = np.zeros(count, np.bool_)
        self._reasons: list[tuple[Ints, str]] = []

    def add(self, rows: Ints, place: str, what: str) -> None:
        """These values cannot be read; those that are bad already stay so for what they were."""
        new = rows[~self.bad[rows]]
        if len(new):
            self.bad[new] = True
            self._reasons.append((new, f"{place}: {what}" if place else what))

    def take(self, part: Faults, rows: Ints) -> None:
        """Those of some of the values, whose numbers are ``rows``."""
        for found, why in part._reasons:
            self.add(rows[found], "", why)

    def first(self) -> tuple[int, str] | None:
        """The first bad value, and why."""
        if not self._reasons:
            return None
        row = int(np.flatnonzero(self.bad)[0])
        return row, next(why for rows, why in self._reasons if row in rows)
