"""``split_entry`` gives what ``iterate_messages`` gives, side by side."""

from __future__ import annotations

import random

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.batches import iterate_messages, split_entry
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata


def entry(values: list[bytes], *, batched: bool = True) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    data = b"".join(values)
    if batched:
        metadata.num_messages_in_batch = len(values)
        parts = []
        for number, value in enumerate(values):
            single = SingleMessageMetadata(payload_size=len(value), partition_key=f"k{number}")
            single.event_time = number
            single.properties.add(key="n", value=str(number))
            body = single.SerializeToString()
            parts += [len(body).to_bytes(4, "big"), body, value]
        data = b"".join(parts)
    body = metadata.SerializeToString()
    return len(body).to_bytes(4, "big") + body + data


@pytest.mark.parametrize("batched", [True, False])
def test_the_same_messages_as_one_by_one(batched: bool) -> None:
    payload = entry([b"one", b"", b"three"] if batched else [b"one"], batched=batched)
    metadata = entry_metadata(payload)
    found = split_entry(payload, metadata)
    single = list(iterate_messages(payload, metadata))
    assert list(found.indexes) == [info.batch_index for info, _ in single]
    assert [bytes(value) for value in found.values] == [bytes(value) for _, value in single]
    if batched:
        assert found.singles is not None
        assert [s.partition_key for s in found.singles] == [info.key for info, _ in single]
        assert [s.event_time for s in found.singles] == [i.event_time_ms for i, _ in single]
    else:
        assert found.singles is None


def test_damaged_batches_are_refused_and_never_crash() -> None:
    payload = entry([bytes([n]) * n for n in range(20)])
    rng = random.Random(7)
    start = entry_metadata(payload).data_start
    refused = 0
    for _ in range(500):
        damaged = bytearray(payload)
        damaged[rng.randrange(start, len(damaged))] ^= 1 << rng.randrange(8)
        cut = bytes(damaged[: rng.randrange(start, len(damaged) + 1)])
        try:
            split_entry(cut, entry_metadata(cut))
        except ProtocolError:
            refused += 1
    assert refused > 100
