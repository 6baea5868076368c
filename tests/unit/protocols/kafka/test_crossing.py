"""Entries of Pulsar's that Kafka's clients fetch: what is converted in a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import get_ident

import pytest

from magnetar.protocols.entry_work import TO_KAFKA
from magnetar.protocols.kafka import crossing
from magnetar.protocols.kafka.crossing import Crossing
from magnetar.wire.crossing.pulsar_to_kafka import kafka_batch
from magnetar.wire.kafka.batches import read_batch_header
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head


def entry(values: Sequence[bytes], compression: Compression = Compression.NONE) -> memoryview:
    builder = EntryBuilder(compression, find_compressor(compression))
    return memoryview(builder.entry(Head("p", 1, 1000), Columns(list(values))))


@pytest.mark.parametrize(
    ("payload", "aside"),
    [
        (entry([b"x"] * 10), False),
        (entry([b"x"] * (2 * TO_KAFKA.at_once)), True),
        (entry([bytes(1 << 20)], Compression.ZLIB), True),
    ],
    ids=["small", "many messages", "little that unpacks to much"],
)
def test_what_takes_long_is_converted_on_a_thread(
    payload: memoryview, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all clients stand still: five seconds for a frame of a quarter of a megabyte."""
    threads = []

    def noted(*arguments: object) -> bytes:
        threads.append(get_ident())
        return kafka_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(crossing, "kafka_batch", noted)
    found = asyncio.run(Crossing(asyncio.Semaphore(1)).batch(payload, 7, 3))
    assert read_batch_header(memoryview(found)).base_offset == 7
    assert [each != get_ident() for each in threads] == [aside]


def test_others_have_their_turns_between_many_small_ones() -> None:
    async def main() -> int:
        made = Crossing(asyncio.Semaphore(1))
        ended = False

        async def count() -> int:
            turns = 0
            while not ended:
                await asyncio.sleep(0)
                turns += 1
            return turns

        turns = asyncio.create_task(count())
        for number in range(100):
            await made.batch(entry([b"x"] * 200), number, 0)
        ended = True
        return await turns

    assert asyncio.run(main()) >= 10
