"""How a read says what went wrong, and what happens to a loss.

A loss ends the query, or is counted and said in one line, as ``failOnDataLoss`` decides. An error
of ours is said in one line as well, and is the first that Spark's own error says: Spark is told to
leave the Python traceback out, which would stand before it. (An error of ours says by itself what
happened and what to do; of any other the traceback stays.) Lines go to the standard error of the
process that found out, the driver's or a task's, as Python's own logging does without being told
otherwise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.model.errors import DataLossError, MagnetarError
from magnetar.pipeline.losses import Loss
from magnetar.pipeline.places import START

log = logging.getLogger("magnetar.pipeline")

WAY_OUT = (
    "to read on without what is gone set failOnDataLoss=false; to begin anew give the query a new "
    "checkpointLocation"
)


class LossReports:
    """Takes every loss of a read. ``fatal``: the first one raises ``DataLossError``."""

    def __init__(self, *, fatal: bool) -> None:
        self._fatal = fatal
        self.losses = 0
        self.entries = 0  # at least
        self.messages = 0  # of those that could be counted

    def report(self, loss: Loss) -> None:
        if self._fatal:
            raise DataLossError(f"{loss}; {WAY_OUT}")
        self.losses += 1
        self.entries += loss.entries
        self.messages += loss.messages
        where = f"at {loss.go_on}" if loss.go_on > START else "from the start"
        log.warning(
            "magnetar: %s; reading goes on %s (loss %d of this reader, %d entries and %d messages "
            "in all, as far as they could be counted)",
            loss, where, self.losses, self.entries, self.messages,
        )  # fmt: skip


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
