"""How a read says what went wrong, and what happens to a loss.

A loss ends the query, or is counted and said in one line, as ``failOnDataLoss`` decides. An error
of ours is said in one line as well, and is the first that Spark's own error says: Spark is told to
leave the Python traceback out, which would stand before it. (An error of ours says by itself what
happened and what to do; of any other the traceback stays.) Lines go to the standard error of the
process that found out, the driver's or a task's, as Python's own logging does without being told
otherwise; who wants to know of all of them asks for rows (``columns/lost_rows.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.model.errors import DataLossError, MagnetarError
from magnetar.pipeline.losses import Loss
from magnetar.pipeline.places import START

log = logging.getLogger("magnetar.pipeline")

WAY_OUT = (
    "to read on without what is gone set failOnDataLoss=false; to begin anew give the query a new "
    "checkpointLocation"
)


KEPT_MAX: Final = 1_000
"""Losses of one reader that are told one by one; of those behind them their sum."""


class LossReports:
    """Takes every loss of a read. ``fatal``: the first one raises ``DataLossError``. ``keeps``:
    they are kept until they are ``taken``."""

    def __init__(self, *, fatal: bool, keeps: bool = False) -> None:
        self._fatal = fatal
        self._keeps = keeps
        self._kept: list[Loss] = []
        self._others: dict[str, Loss] = {}
        self.losses = 0
        self.entries = 0  # at least
        self.messages = 0  # of those that could be counted

    def report(self, loss: Loss) -> None:
        if self._fatal:
            raise DataLossError(f"{loss}; {WAY_OUT}")
        self.losses += 1
        self.entries += loss.entries
        self.messages += loss.messages
        if self._keeps:
            self._keep(loss)
        where = f"at {loss.go_on}" if loss.go_on > START else "from the start"
        log.warning(
            "magnetar: %s; reading goes on %s (loss %d of this reader, %d entries and %d messages "
            "in all, as far as they could be counted)",
            loss, where, self.losses, self.entries, self.messages,
        )  # fmt: skip

    def _keep(self, loss: Loss) -> None:
        if self.losses <= KEPT_MAX:
            self._kept.append(loss)
            return
        first = self._others.get(loss.topic, loss._replace(entries=0, messages=0))
        self._others[loss.topic] = loss._replace(
            what=f"as {KEPT_MAX} losses before it, and others up to: {loss.what}",
            entries=first.entries + loss.entries,
            messages=first.messages + loss.messages,
            at=first.at,
        )

    def taken(self, *, last: bool = False) -> list[Loss]:
        """What was kept since it was asked last. ``last``: nothing will be reported any more."""
        found, self._kept = self._kept, []
        if last:
            found += self._others.values()
            self._others = {}
        return found


def warn(text: str) -> None:
    """Something that a user should know, and that is no error."""
    log.warning("magnetar: %s", text)


@contextmanager
def said_in_one_line() -> Iterator[None]:
    """An error of ours that leaves is logged in one line, and raised all the same."""
    try:
        yield
    except MagnetarError as error:
        log.error("magnetar: %s", error)
        # Read by pyspark's worker when it hands the error on, which is the last that it does.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
