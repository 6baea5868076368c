"""What a Pulsar broker writes per message: SEND_RECEIPT and MESSAGE frames.

An id's low seven bits are one byte of its varint, and everything around it changes only every 128
ids. Those surroundings are kept, so that a frame costs one join of a few parts. Bytes are those
that protobuf would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from magnetar.speedups.varint import BYTES, U64, varint

_PULSAR_BEGIN: Final = 0x0E
"""What payloads begin with that Pulsar's clients sent, but for very old ones."""


class EntryParts(Protocol):
    """What is asked of an entry (``model.entry.Entry``)."""

    @property
    def ledger_id(self) -> int: ...
    @property
    def entry_id(self) -> int: ...
    @property
    def data(self) -> bytes | memoryview: ...
    @property
    def payload_offset(self) -> int: ...


class AroundMessage(NamedTuple):
    """Of the headers of 128 consecutive entries for one consumer: what stands before and after an
    entry id's lowest seven bits, the flag that goes with these, and the bytes of command and its
    size."""

    before: bytes
    flag: int
    after: bytes
    command_bytes: int


def _high_part(block: int) -> tuple[int, bytes]:
    """What goes with a varint's low seven bits, ``block`` being the others: the flag to set on
    them, and what follows."""
    return (128, varint(block)) if block else (0, b"")


@lru_cache(maxsize=1024)
def _around_receipt(
    producer_id: int, partition: int, sequence_block: int, ledger_id: int, entry_block: int
) -> tuple[bytes, int, bytes, int, bytes]:
    """What surrounds the low bytes of the two ids, and their flags."""
    sequence_flag, sequence_high = _high_part(sequence_block)
    entry_flag, entry_high = _high_part(entry_block)
    id_head = b"\x08" + varint(ledger_id) + b"\x10"
    id_tail = entry_high + b"\x18" + varint(partition)
    id_size = len(id_head) + 1 + len(id_tail)
    receipt_head = b"\x08" + varint(producer_id) + b"\x10"
    between = sequence_high + b"\x1a" + varint(id_size) + id_head
    body_size = len(receipt_head) + 1 + len(between) + 1 + len(id_tail)
    command_head = b"\x08\x07\x3a" + varint(body_size)
    size = len(command_head) + body_size
    sizes = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big")
    return sizes + command_head + receipt_head, sequence_flag, between, entry_flag, id_tail


def _receipt_with_highest(
    producer_id: int, partition: int, sequence_id: int, highest: int, ledger_id: int, entry_id: int
) -> bytes:
    stored = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id) + b"\x18" + varint(partition)
    body = b"".join((
        b"\x08", varint(producer_id), b"\x10", varint(sequence_id),
        b"\x1a", varint(len(stored)), stored, b"\x20", varint(highest),
    ))  # fmt: skip
    command = b"\x08\x07\x3a" + varint(len(body)) + body
    size = len(command)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + command


def encode_receipts(
    producer_id: int,
    partition: int,
    sends: Sequence[tuple[int, int]],
    ledger_id: int,
    first_entry_id: int,
) -> bytes:
    """The SEND_RECEIPTs, whole frames, of SENDs with these sequence ids and highest ones (0: none),
    which lie one behind the other. Numbers count modulo 2^64."""
    low, entry_id = BYTES, first_entry_id & U64
    parts: list[bytes] = []
    sequence_block = entry_block = -1
    before = between = after = b""
    sequence_flag = entry_flag = 0
    for sequence_id, highest in sends:
        sequence = sequence_id & U64
        if highest:
            parts.append(
                _receipt_with_highest(
                    producer_id, partition, sequence, highest, ledger_id, entry_id
                )
            )
        else:
            if sequence >> 7 != sequence_block or entry_id >> 7 != entry_block:
                sequence_block, entry_block = sequence >> 7, entry_id >> 7
                before, sequence_flag, between, entry_flag, after = _around_receipt(
                    producer_id, partition, sequence_block, ledger_id, entry_block
                )
            parts += (
                before,
                low[sequence & 127 | sequence_flag],
                between,
                low[entry_id & 127 | entry_flag],
                after,
            )
        entry_id = entry_id + 1 & U64
    return b"".join(parts)


@lru_cache(maxsize=1024)
def around_message(
    consumer_id: int,
    partition: int,
    ledger_id: int,
    entry_block: int,
    redelivery_count: int = 0,
    epoch: int = -1,
) -> AroundMessage:
    flag, entry_high = _high_part(entry_block)
    id_head = b"\x08" + varint(ledger_id) + b"\x10"
    id_tail = entry_high + b"\x18" + varint(partition)
    id_size = len(id_head) + 1 + len(id_tail)
    head = b"\x08" + varint(consumer_id) + b"\x12" + varint(id_size) + id_head
    after = id_tail + (b"\x18" + varint(redelivery_count) if redelivery_count else b"")
    after += b"\x28" + varint(epoch) if epoch >= 0 else b""
    body_size = len(head) + 1 + len(after)
    command_head = b"\x08\x09\x4a" + varint(body_size)
    size = len(command_head) + body_size
    return AroundMessage(size.to_bytes(4, "big") + command_head + head, flag, after, size + 4)


def join_messages(
    consumer_id: int, partition: int, epoch: int, entries: Sequence[EntryParts], bytes_max: int
) -> bytes | None:
    """The MESSAGE frames of ``entries``, which say ``epoch`` if it is not below 0; None if they are
    more than ``bytes_max`` together, or if one is a view, or does not begin as Pulsar's clients
    begin what they send."""
    parts: list[bytes | memoryview] = []
    low = BYTES
    total = 0
    ledger_id = block = -1
    before = after = b""
    flag = command_bytes = 0
    for entry in entries:
        data, offset, entry_id = entry.data, entry.payload_offset, entry.entry_id & U64
        if not isinstance(data, bytes):
            return None  # a view of more than one entry: it goes out as it is, in parts
        if not 0 <= offset < len(data) or data[offset] != _PULSAR_BEGIN:
            return None
        if entry.ledger_id != ledger_id or entry_id >> 7 != block:
            ledger_id, block = entry.ledger_id, entry_id >> 7
            before, flag, after, command_bytes = around_message(
                consumer_id, partition, ledger_id, block, 0, epoch
            )
        size = command_bytes + len(data) - offset
        total += 4 + size
        if total > bytes_max:
            return None
        parts += (
            size.to_bytes(4, "big"),
            before,
            low[entry_id & 127 | flag],
            after,
            memoryview(data)[offset:],
        )
    return b"".join(parts)
