"""A small micro-batch is read while it is planned, and its rows go to Spark with the plan.

A task in Python costs Spark more than reading a few hundred messages does: a process that is handed
a function, connects, reads, hands rows over, and is cleaned up, while the query waits. For sources
that read in the driver Spark has a way to take rows with the plan (its simple stream readers); they
are kept as a block, and the task that is made for them is Java's alone.

Rules:

* Small is up to ``MESSAGES_MAX`` messages and about ``BYTES_MAX`` stored bytes, in ``RANGES_MAX``
  ranges. What is more, or not counted, is read by tasks.
* The rows are those of the ranges, read as a task reads them. Spark may lose the block: the task
  then reads the same ranges itself, by the partition that goes with the rows.
* Whatever fails here is left to the tasks, which are patient and say what is wrong.

Why: docs/adr/0088-small-micro-batches-come-with-their-plan.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.model.errors import MagnetarError
from magnetar.pipeline.places import NO_OFFSETS
from magnetar.pipeline.planning.splits import PlannedRange, Split, whole
from magnetar.pipeline.reading.tails import Readers, Tails, TooMuchError

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES_MAX: Final = 5_000
BYTES_MAX: Final = 2 << 20
ROW_BYTES_MAX: Final = 16 << 20
"""Of rows, whose values may have been compressed."""
RANGES_MAX: Final = 32
WAIT_S: Final = 2.0

Rows: TypeAlias = "Callable[[Split, Readers], Iterable[pa.RecordBatch]]"
"""The rows of a split, as a task reads them."""


class Prefetch:
    """Of one stream. ``rows``: how they are read."""

    def __init__(self, client: Readers, rows: Rows) -> None:
        self._tails = Tails(client, WAIT_S)
        self._rows = rows
        self._message_bytes = 0.0  # of those read last, on average

    def read(self, parts: Sequence[PlannedRange]) -> list[pa.RecordBatch] | None:
        """The rows of these ranges, in order; None: tasks are to read them."""
        messages = _messages(parts)
        if not self._few(messages, len(parts)):
            self._tails.close()  # they do not follow what tasks read
            return None
        self._tails.begin(2 * BYTES_MAX)
        try:
            return list(self._small(parts))
        except (MagnetarError, TooMuchError):
            return None
        finally:
            self._message_bytes = self._tails.bytes_read / messages

    def _few(self, messages: int, ranges: int) -> bool:
        if not 0 < messages <= MESSAGES_MAX or ranges > RANGES_MAX:
            return False
        if messages * self._message_bytes <= BYTES_MAX:
            return True
        self._message_bytes /= 2  # they may become smaller again
        return False

    def _small(self, parts: Sequence[PlannedRange]) -> Iterator[pa.RecordBatch]:
        byte_count = 0
        for split in (split for part in parts for split in whole(part)):
            for batch in self._rows(split, self._tails):
                byte_count += batch.nbytes
                if byte_count > ROW_BYTES_MAX:
                    raise TooMuchError(f"more than {ROW_BYTES_MAX} bytes of rows")
                yield batch

    def close(self) -> None:
        self._tails.close()


def _messages(parts: Sequence[PlannedRange]) -> int:
    """How many the ranges have; -1: nobody knows."""
    if any(NO_OFFSETS in (part.start_offset, part.end_offset) for part in parts):
        return -1
    return sum(part.end_offset - part.start_offset for part in parts)
