"""How a task reads its split: a function per way of reading, chosen by the type of ``Split.by``.

The contract is in ``planning/splits.py``. A reader yields record batches of
``columns`` under ``schema.arrow_schema``, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.columns.conditions import Conditions, on
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.options.source_options import ReadOptions
from magnetar.pipeline.planning.splits import ByBroker, Split
from magnetar.pipeline.planning.storage_splits import ByStorage
from magnetar.pipeline.reading.decode import decoded, read_range
from magnetar.pipeline.reading.range_reading import numbered
from magnetar.pipeline.reading.storage_reading import StorageReading
from magnetar.pipeline.reading.tails import Readers

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ReadTask:
    """What a reader needs beside its split."""

    options: ReadOptions
    columns: tuple[str, ...]  # of ``schema.DECODED``, in this order
    reports: LossReports
    client: Readers

    @property
    def conditions(self) -> Conditions:
        return self.options.conditions

    @property
    def numbers(self) -> bool:
        """Whether the offsets of messages are needed."""
        return "offset" in self.columns or bool(on(self.conditions, ("offset",)))


SplitReader: TypeAlias = Callable[[Split, ReadTask], "Iterator[pa.RecordBatch]"]


def _by_broker(split: Split, task: ReadTask) -> Iterator[pa.RecordBatch]:
    part = numbered(task.client, split.part) if task.numbers else split.part
    return read_range(task.client, part, task.columns, task.reports, task.conditions)


def _by_storage(split: Split, task: ReadTask) -> Iterator[pa.RecordBatch]:
    options = task.options
    client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
    reading = StorageReading(client, split, task.reports, numbers=task.numbers)
    entries = reading.entries()
    return decoded(client, split.part, task.columns, task.reports, entries, task.conditions)


SPLIT_READERS: Mapping[type, SplitReader] = {ByBroker: _by_broker, ByStorage: _by_storage}


def read_split(split: Split, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Every message of the split, in order, once."""
    return SPLIT_READERS[type(split.by)](split, task)
