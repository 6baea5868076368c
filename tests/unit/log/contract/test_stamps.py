"""``log.seam.Stamp``: record batches get the offsets of their messages, and the log's epoch."""

from __future__ import annotations

import asyncio

from magnetar.log.seam import Content, Stamp, WritableLog
from magnetar.wire.kafka.batches import STAMP_BYTES, check_produced
from magnetar.wire.kafka.records import KafkaRecord, batch_of
from tests.unit.log.contract.engines import Engine, each_engine, read_all, with_log
from tests.unit.log.doubles import Outcomes


def batch(records: int) -> bytes:
    return batch_of([KafkaRecord(n, 0, None, b"%d" % n, []) for n in range(records)], 5)


@each_engine
def test_batches_are_stamped_and_else_stored_as_they_came(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        outcomes, stamps = Outcomes(), [Stamp() for _ in range(12)]
        for number, stamp in enumerate(stamps):
            count = 1 + number % 3
            sent = bytearray(batch(count))
            log.append([memoryview(sent)], outcomes, Content([count], [5], stamp))
            sent[:] = bytes(len(sent))  # it is valid during the call only
            log.append([b"plain"], outcomes, Content([2], [5]))
            if number % 4 == 0:
                await asyncio.sleep(0)
        await outcomes.wait(24)
        assert not outcomes.errors
        offset = 0
        for number, stored in enumerate(await read_all(log)):
            if number % 2:
                assert stored == b"plain"
                offset += 2
                continue
            header, sent = check_produced(memoryview(stored)), batch(1 + number // 2 % 3)
            assert (header.base_offset, header.leader_epoch) == (offset, log.epoch)
            assert stored[STAMP_BYTES:] == sent[STAMP_BYTES:]
            stamp = stamps[number // 2]
            assert (stamp.base_offset, stamp.leader_epoch) == (offset, log.epoch)
            offset = header.next_offset
        assert log.positions.end_offset == offset

    with_log(engine, scenario)
