"""What a query reads is held against trimming while it reads it: pins, and who renews them.

A pin is a hold on a partition's log (``LogQuestion.hold``), from the ledger on where the read
begins. It ends by itself ``for_ms`` after it was renewed last (twice that at most), so a query that
is killed holds nothing for long.

* A stream's driver renews its pins with every question about the log, from where its micro-batch
  begins. They end when the query stops.
* A batch read is planned once, and no process of ours on the driver lives as long as it: its tasks
  renew. Each renews the pins of the whole read, as those of partitions that no task reads yet would
  end in a long read; a process of tasks does so once in a third of the time at most. Of a read of
  more than ``PINS_MAX`` partitions a task renews its own.

A broker that holds nothing (another release, Pulsar) is said so once; what it deletes is a loss as
without pins.

Why: docs/adr/0087-readers-hold-what-they-read.md.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.loss_reports import warn
from magnetar.wire.pulsar.pulsar_pb2 import LogHold, LogQuestion

PINS_MAX: Final = 200
READS_MAX: Final = 1000
"""Reads that a process of tasks remembers to have renewed."""

T = TypeVar("T")


def new_holder() -> str:
    """A name for the pins of one read, which topic stats show."""
    return f"spark-{uuid.uuid4().hex[:12]}"


def wall_clock_ms() -> int:
    return time.time_ns() // 10**6


def hold(holder: str, ledger_id: int, for_ms: int) -> LogHold:
    return LogHold(holder=holder, ledger_id=ledger_id, for_ms=for_ms)


@dataclass(frozen=True)
class Pins:
    """The pins of a read, as they go to its tasks: the first ledger of each partition that is
    needed, and when they were renewed."""

    holder: str
    for_ms: int
    renewed_ms: int
    ledger_ids: Mapping[str, int]

    def for_task(self, topic: str) -> Pins:
        """Those that a task that reads ``topic`` renews."""
        if len(self.ledger_ids) <= PINS_MAX:
            return self
        return Pins(self.holder, self.for_ms, self.renewed_ms, {topic: self.ledger_ids[topic]})


class PinRenewal:
    """Renews a read's pins from its tasks. ``clock_s`` only grows."""

    def __init__(
        self,
        clock_ms: Callable[[], int] = wall_clock_ms,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_ms = clock_ms
        self._clock_s = clock_s
        self._due_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def renewing(
        self, client: BrokerClient, pins: Pins | None, batches: Iterable[T]
    ) -> Iterator[T]:
        """The batches; before the first and between them pins are renewed when it is time."""
        if pins is None:
            yield from batches
            return
        self._renew_if_due(client, pins)
        for batch in batches:
            yield batch
            self._renew_if_due(client, pins)

    def _renew_if_due(self, client: BrokerClient, pins: Pins) -> None:
        third_s = pins.for_ms / 3000
        now_s = self._clock_s()
        key = pins.holder, min(pins.ledger_ids)
        due_s = self._due_s.get(key)
        if due_s is None:
            age_s = max(0, self._clock_ms() - pins.renewed_ms) / 1000
            due_s = self._due_s[key] = now_s + third_s - age_s
            if len(self._due_s) > READS_MAX:
                self._due_s.popitem(last=False)
        if now_s < due_s:
            return
        self._due_s[key] = now_s + third_s
        for topic, ledger_id in pins.ledger_ids.items():
            try:
                with client.open(topic) as reader:
                    reader.ask(LogQuestion(hold=hold(pins.holder, ledger_id, pins.for_ms)))
            except BrokerError as error:  # the read itself says what is lost, if anything is
                warn(f"{topic}: what is read there is not held against trimming: {error}")


RENEWAL: Final = PinRenewal()
"""Of this process."""
