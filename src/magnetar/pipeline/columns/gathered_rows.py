"""The messages of entries of the usual shape, by columns, in one pass over the entries' own bytes.

What is of another shape is left to the caller, who reads it by columns of metadata
(``entry_columns``, ``message_rows``), which takes a copy and several passes more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from magnetar.pipeline.columns.protobuf_columns import Ints
from magnetar.pipeline.places import UNBATCHED
from magnetar.speedups import gather_messages

BYTES_MAX: Final = 1 << 30
"""Of values and keys at once."""

_WANTED: Final = {
    "value": 1,
    "key": 2,
    "event_time": 4,
    "key_is_base64": 8,
    "properties": 16,
    "headers": 16,
}

BytesColumn: TypeAlias = tuple[bytes, bytes, bytes | None]
"""Offsets, bytes, and bits of those that are there, as Arrow has them."""


class GatheredRows(NamedTuple):
    """``messages``, ``publish_times_ms``, ``last_offsets``, ``schema_versions``: of each entry, -1
    where it does not say; of one without a batch ``messages`` is -1. The others: of each message,
    None where nobody asked. No message has properties, if they were asked for."""

    messages: Ints
    publish_times_ms: Ints
    last_offsets: Ints
    schema_versions: Ints
    values: BytesColumn | None
    keys: BytesColumn | None
    event_times_ms: Ints | None
    keys_encoded: Ints | None

    @property
    def message_count(self) -> int:
        return int(np.maximum(self.messages, 1).sum())

    def places(self) -> tuple[Ints, Ints]:
        """In which entry each message lies, and its place in the batch."""
        counts = np.maximum(self.messages, 1)
        entries = np.repeat(np.arange(len(counts)), counts)
        indexes = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
        alone = self.messages < 0
        if alone.any():
            indexes[alone[entries]] = UNBATCHED
        return entries, indexes


def wanted_of(columns: Collection[str]) -> int:
    """What ``gather_rows`` is asked for these columns."""
    found = 0
    for name in columns:
        found |= _WANTED.get(name, 0)
    return found


def gather_rows(payloads: Sequence[bytes | memoryview], wanted: int) -> GatheredRows:
    """The messages of the first of ``payloads``, up to one that is not of the usual shape."""
    heads, values, keys, times, encoded = gather_messages(payloads, wanted, BYTES_MAX)
    messages, times_ms, offsets, versions = np.frombuffer(heads, np.int64).reshape(-1, 4).T
    return GatheredRows(
        messages,
        times_ms,
        offsets,
        versions,
        values,
        keys,
        None if times is None else np.frombuffer(times, np.int64),
        None if encoded is None else np.frombuffer(encoded, np.uint8).astype(np.int64),
    )
