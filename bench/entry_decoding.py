"""What decoding stored entries into Arrow costs: rows a second and core, in one pass, by columns
and one by one.

    python -m bench.entry_decoding [--quick]

All decode the same entries in turn, in one process; a ratio is that of CPU times. In one pass is
how plain entries are decoded where ``magnetar.speedups`` is in C, and by columns all others
(``pipeline/columns/entry_decoder.py``). One by one means with protobuf, a message at a time,
gathered in lists per column: how the Spark source did it at first, and still does with entries that
are odd (``pipeline/columns/plain_rows.py``).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from bench import results
from bench.measure import machine
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns.entry_decoder import UNNUMBERED, EntryDecoder, decode_entries
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.schema import arrow_schema
from magnetar.pipeline.topic_names import partition_number
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

TOPIC = "persistent://public/default/bench-partition-0"
END = Place(2**60, 0, 0)
COLUMNS = (
    "key", "value", "topic", "partition", "message_id", "publish_time", "event_time", "properties",
)  # fmt: skip
BATCH_ROWS = 10_000

CASES = {
    "100 B, no key": {"size": (100, 100), "per_entry": 1000},
    "60-140 B, key": {"size": (60, 140), "per_entry": 1000, "key": True},
    "60-140 B, key, property, event time": {"size": (60, 140), "per_entry": 1000, "all": True},
    "300 B, key": {"size": (300, 300), "per_entry": 400, "key": True},
    "1 KiB, key": {"size": (1024, 1024), "per_entry": 120, "key": True},
    "10 KiB, key": {"size": (10_240, 10_240), "per_entry": 12, "key": True},
    "100 B, key, an entry each": {"size": (100, 100), "per_entry": 1, "key": True},
}


def entry(draw: random.Random, number: int, case: dict[str, Any]) -> StoredEntry:
    """An entry as clients write it; one of a single message is no batch."""
    every = case.get("all", False)
    parts = []
    for index in range(case["per_entry"]):
        value = draw.randbytes(draw.randint(*case["size"]))
        single = SingleMessageMetadata(payload_size=len(value), sequence_id=number * 1000 + index)
        if every or case.get("key"):
            single.partition_key = f"key-{draw.randrange(100_000)}"
        if every:
            single.properties.add(key="origin", value=f"host-{draw.randrange(100)}")
            single.event_time = 1_790_000_000_000 + index
        head = single.SerializeToString()
        parts += [len(head).to_bytes(4, "big"), head, value]
    metadata = MessageMetadata(
        producer_name="standalone-0-1", sequence_id=number, publish_time=1_790_000_000_000
    )
    if case["per_entry"] == 1:
        metadata.partition_key, parts = single.partition_key, [value]
    else:
        metadata.num_messages_in_batch = case["per_entry"]
    head = metadata.SerializeToString()
    payload = b"".join([b"\x0e\x01abcd", len(head).to_bytes(4, "big"), head, *parts])
    return StoredEntry(7, number, memoryview(payload), case["per_entry"])


def in_one_pass(entries: Sequence[StoredEntry], columns: Sequence[str]) -> int:
    return _decoded(entries, columns, gathers=True)


def by_columns(entries: Sequence[StoredEntry], columns: Sequence[str]) -> int:
    return _decoded(entries, columns, gathers=False)


def _decoded(entries: Sequence[StoredEntry], columns: Sequence[str], *, gathers: bool) -> int:
    decoder = EntryDecoder(columns, TOPIC, START, END, lambda *_: (), gathers=gathers)
    numbered = ((item, UNNUMBERED) for item in entries)
    return sum(batch.num_rows for batch in decode_entries(decoder, numbered))


def one_by_one(entries: Sequence[StoredEntry], columns: Sequence[str]) -> int:
    return sum(batch.num_rows for batch in _one_by_one(entries, columns))


def _one_by_one(entries: Sequence[StoredEntry], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(columns)
    gathered: dict[str, list[Any]] = {name: [] for name in columns}
    count = 0
    for item in entries:
        meta = entry_metadata(item.payload)
        indexes, singles, values = split_entry(item.payload, meta)
        for name, column in gathered.items():
            column += _COLUMNS[name](item, meta, indexes, singles, values)
        count += len(values)
        if count >= BATCH_ROWS:
            yield _batch(schema, gathered)
            gathered, count = {name: [] for name in columns}, 0
    if count:
        yield _batch(schema, gathered)


def _batch(schema: pa.Schema, gathered: dict[str, list[Any]]) -> pa.RecordBatch:
    ids = gathered.get("message_id")
    if ids is not None:
        gathered["message_id"] = [
            dict(zip(("ledger_id", "entry_id", "batch_index"), them, strict=True)) for them in ids
        ]
    arrays = [pa.array(gathered[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _keys(_item: Any, meta: Any, _indexes: Any, singles: Any, _values: Any) -> list[Any]:
    if singles is None:
        return [meta.partition_key]
    return [s.partition_key if s.HasField("partition_key") else None for s in singles]


def _times(_item: Any, meta: Any, _indexes: Any, singles: Any, _values: Any) -> list[Any]:
    if singles is None:
        return [meta.event_time_ms * 1000 or None]
    return [s.event_time * 1000 or None for s in singles]


def _properties(_item: Any, meta: Any, _indexes: Any, singles: Any, _values: Any) -> list[Any]:
    if singles is None:
        return [list(meta.properties.items())]
    return [[(item.key, item.value) for item in s.properties] for s in singles]


_COLUMNS: dict[str, Callable[..., list[Any]]] = {
    "key": _keys,
    "value": lambda _item, _meta, _indexes, _singles, values: [bytes(v) for v in values],
    "topic": lambda *them: [TOPIC] * len(them[4]),
    "partition": lambda *them: [partition_number(TOPIC)] * len(them[4]),
    "message_id": lambda item, _meta, indexes, _singles, _values: [
        (item.ledger_id, item.entry_id, index) for index in indexes
    ],
    "publish_time": lambda *them: [them[1].publish_time_ms * 1000] * len(them[4]),
    "event_time": _times,
    "properties": _properties,
}

Decode = Callable[[Sequence[StoredEntry], Sequence[str]], int]


def rows_per_s(decode: Decode, entries: Sequence[StoredEntry], columns: Sequence[str]) -> float:
    """Of CPU time."""
    begun = time.process_time()
    rows = decode(entries, columns)
    return rows / (time.process_time() - begun)


WAYS: dict[str, Decode] = {
    "one_by_one": one_by_one,
    "by_columns": by_columns,
    "in_one_pass": in_one_pass,
}


def measure(case: dict[str, Any], columns: Sequence[str], quick: bool) -> dict[str, float]:
    """Rows a second each way: medians of turns, alternating."""
    draw = random.Random(3)
    size = sum(case["size"]) / 2 + 20
    count = max(4, int((4 << 20 if quick else 24 << 20) / size / case["per_entry"]))
    entries = [entry(draw, number, case) for number in range(min(count, 60_000))]
    assert len({decode(entries, columns) for decode in WAYS.values()}) == 1
    turns = 3 if quick else 7
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(turns):
        for name, decode in WAYS.items():
            found[name].append(rows_per_s(decode, entries, columns))
    return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows a second out of stored entries.")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    where = machine()
    cases: list[dict[str, object]] = []
    for name, case in CASES.items():
        for what, columns in (("value", ("value",)), ("all", COLUMNS)):
            rates = measure(case, columns, quick)
            cases.append(
                {
                    "messages": name,
                    "columns": what,
                    **{f"{way}_per_s": round(rate) for way, rate in rates.items()},
                    "by_columns_ratio": round(rates["by_columns"] / rates["one_by_one"], 1),
                    "in_one_pass_ratio": round(rates["in_one_pass"] / rates["by_columns"], 1),
                }
            )
    text = results.table(
        (
            "messages", "columns", "one by one, rows/s", "by columns, rows/s",
            "in one pass, rows/s", "by columns / one by one", "in one pass / by columns",
        ),
        [list(case.values()) for case in cases],
    )  # fmt: skip
    results.store("entry_decoding", {"cases": cases}, text, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
