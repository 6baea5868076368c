"""Which ranges are read at the bookies, and how they are cut: what the driver decides.

=============  ==================================================================================
readMode       what is done
=============  ==================================================================================
``storage``    everything is read at the bookies; a task that cannot reach them fails
``broker``     everything is read through the broker
``auto``       at the bookies, if one of them answers the driver; but a range of less than
               ``STORAGE_BYTES_MIN`` through the broker, which has it in memory most likely
=============  ==================================================================================

Ledgers are not opened: how many bytes they are comes in one answer of the broker for all of them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.loss_reports import warn
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.options.source_options import ReadOptions
from magnetar.pipeline.places import Place
from magnetar.pipeline.planning.splits import PlannedRange, Split, Splitter
from magnetar.pipeline.planning.storage_splits import (
    StoredRange,
    cut,
    split_bytes_for,
    stored_range,
)

STORAGE_BYTES_MIN: Final = 4 << 20
CONNECT_S: Final = 2.0
LOOK_AGAIN_S: Final = 60.0
"""After so long bookies that were out of reach are looked for again."""


class LogsOfTopics(Protocol):
    """What is asked of brokers (``planner.Planner``)."""

    def ledgers(self, name: str, start: Place, end: Place) -> Sequence[LedgerFacts]: ...

    def where(self, name: str, ledger_id: int) -> LogAnswer:
        """Where a ledger lies, and where the bookies listen."""
        ...


class BookieReach:
    """Whether the driver reaches the bookies; looked at once, and again while it does not."""

    def __init__(self, logs: LogsOfTopics, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._clock_s = clock_s
        self._reached = False
        self._look_again_s = 0.0
        self._said = ""

    def reached(self, stored: StoredRange) -> bool:
        """True if a bookie answers; why not is said once."""
        if self._reached or self._clock_s() < self._look_again_s:
            return self._reached
        topic, ledger_id = stored.part.topic, stored.spans[0][0].ledger_id
        why = _why_not(self._logs.where(topic, ledger_id).bookies)
        self._reached, self._look_again_s = not why, self._clock_s() + LOOK_AGAIN_S
        if why and why != self._said:
            self._said = why
            warn(f"{topic} is read through the broker (readMode=auto): {why}")
        return self._reached


_connect = socket.create_connection


def _why_not(bookies: Mapping[str, tuple[str, int]]) -> str:
    """Why the bookies are out of reach; empty if one of them answers."""
    why = "the broker does not tell where its bookies are"
    for name, address in sorted(bookies.items()):
        try:
            _connect(address, CONNECT_S).close()
        except OSError as error:
            why = f"bookie {name} at {address[0]}:{address[1]} is out of reach: {error}"
        else:
            return ""
    return why


class StorageSplitter:
    """Implements ``splits.Splitter``. ``ranges``: how many there are, of which each makes its part
    of ``minPartitions``, and has its part of the cores. ``cores``: of the driver's machine; nobody
    tells how many the session has. ``through_broker`` cuts those that are not read at the bookies.
    """

    def __init__(
        self,
        options: ReadOptions,
        logs: LogsOfTopics,
        reach: BookieReach,
        ranges: int,
        through_broker: Splitter,
        cores: int | None = None,
    ) -> None:
        self._options = options
        self._logs = logs
        self._reach = reach
        self._through_broker = through_broker
        self._splits_min = -(-(options.partitions_min or 1) // max(1, ranges))
        self._cores = -(-(cores or os.cpu_count() or 1) // max(1, ranges))

    def split(self, part: PlannedRange) -> Sequence[Split]:
        stored = stored_range(part, self._logs.ledgers(part.topic, part.start, part.end))
        if stored is None or not self._at_bookies(stored):
            return self._through_broker.split(part)
        or_broker = self._options.read_mode != "storage"
        fitting = split_bytes_for(stored.byte_count, self._cores)
        split_bytes = self._options.split_bytes or fitting
        return cut(stored, split_bytes, self._splits_min, or_broker=or_broker)

    def _at_bookies(self, stored: StoredRange) -> bool:
        if self._options.read_mode == "storage":
            return True
        return stored.byte_count >= STORAGE_BYTES_MIN and self._reach.reached(stored)
