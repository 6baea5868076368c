"""For a while after a log was opened here a batch may come before the one that goes before it.

When a partition moves, librdkafka (2.16) sends what is in its queue to the new leader at once; a
batch that the former one has just refused comes a tenth of a second later. Told that its sequence
is out of order it would begin a new epoch, for all of its partitions, and send again under new
sequences what is unanswered anywhere: of that some may be stored, and would be so twice. And of a
producer that the log does not know any sequence is taken, so that the first batch would be behind
the second, and refused for good.

So for ``WAIT_S`` such a batch is refused with an error on which clients try again. Afterwards, or
of a log that has been open for longer, it is judged by ``log.sequences`` alone.

Pure. Why: docs/adr/0235-the-batch-before-may-be-on-its-way.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.wire.kafka.batches import BatchHeader

WAIT_S: Final = 3.0
"""Clients try again after 100 ms (``retry.backoff.ms``), and after a second at most."""


class EarlyBatches:
    """Of a log that was opened at ``opened_s``."""

    def __init__(self, opened_s: float) -> None:
        self._until_s = opened_s + WAIT_S
        self._begun: set[int] = set()
        """Producers whose first batch here was taken, or was known."""

    def may_come(self, now_s: float) -> bool:
        return now_s < self._until_s

    def first_is_missing(self, header: BatchHeader, known: Callable[[int], bool]) -> bool:
        """Of a batch that may be its producer's first one here. ``known``: whether the log has any
        of that producer."""
        producer_id = header.producer_id
        if producer_id in self._begun:
            return False
        if header.base_sequence != 0 and not known(producer_id):
            return True
        self._begun.add(producer_id)
        return False
