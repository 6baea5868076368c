"""How much work entries are to take apart, and what of it the loop has the time for."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.protocols.entry_work import (
    KEYS,
    TIMES,
    TO_KAFKA,
    TO_PULSAR,
    EntryWork,
    Scale,
    batch_work,
    entry_work,
)
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.records import KafkaRecord, batch_of
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head


def batch(records: int, codec: Codec = Codec.NONE) -> memoryview:
    made = [KafkaRecord(each, 0, None, b"x") for each in range(records)]
    return memoryview(batch_of(made, 5_000, codec=codec))


def entry(values: list[bytes], compression: Compression) -> memoryview:
    builder = EntryBuilder(compression, find_compressor(compression))
    return memoryview(builder.entry(Head("p", 1, 1000), Columns(values)))


@pytest.mark.parametrize("scale", [TO_PULSAR, TO_KAFKA, TIMES, KEYS])
def test_messages_fit_a_turn_and_so_many_bytes_count_as_one_more(scale: Scale) -> None:
    most = scale.at_once
    assert EntryWork(most, scale.bytes_each - 1).fits_turn(scale)
    assert not EntryWork(most, scale.bytes_each).fits_turn(scale)
    assert EntryWork(1, (most - 1) * scale.bytes_each).fits_turn(scale)
    assert not EntryWork(1, most * scale.bytes_each).fits_turn(scale)
    assert not EntryWork(1, 1, certain=False).fits_turn(scale), "it may be any more"
    assert EntryWork(3, 2 * scale.bytes_each, certain=False).weight(scale) == 5


def test_a_record_batch_does_not_say_what_it_unpacks_to() -> None:
    assert batch_work(batch(10)) == EntryWork(10, len(batch(10)))
    packed = batch(10, Codec.ZSTD)
    assert batch_work(packed) == EntryWork(10, len(packed), certain=False)
    with pytest.raises(ProtocolError):
        batch_work(memoryview(b"short"))


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZLIB])
def test_an_entry_of_pulsars_says_both(compression: Compression) -> None:
    payload = entry([bytes(1 << 20)] * 3, compression)
    found = entry_work(payload, entry_metadata(payload))
    assert (found.messages, found.certain) == (3, True)
    assert 3 << 20 <= found.byte_count < (3 << 20) + 200


def test_what_says_that_it_unpacks_to_less_than_its_bytes_counts_by_these() -> None:
    payload = entry([b"x"], Compression.NONE)
    meta = entry_metadata(payload)._replace(compression=Compression.LZ4, uncompressed_size=0)
    assert entry_work(payload, meta) == EntryWork(1, len(payload))
