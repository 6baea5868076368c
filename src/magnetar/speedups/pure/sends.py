"""What Pulsar's clients send per message: SENDs, and ACKs of one entry each.

SENDs are read and checked at once, as all known clients write them: a short command, a checksum,
and metadata that begins with the three required fields and has little else that must be looked at.
One regular expression over the receive buffer reads command and metadata, for every entry, in a
fifth of the time of decoding them. It takes something for unusual too often at worst.

Clients that do not group their acknowledgements send one frame per entry, and of one consumer on
one ledger all of them are the same bytes up to the entry id::

    [size u32][08 0a][52 n]  [08 consumer][10 00]  [1a m]  [08 ledger][10 entry]
     command   type   body    body: id, individual          message id

So what lies before the entry id is looked up instead of decoded; the sizes in it say how long the
id is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from crc32c import crc32c

Sent: TypeAlias = tuple[int, int, int]
"""What the broker needs to know of what a producer sent: how many messages it holds, when it was
published (0: it does not say), the time before which it must not be delivered (0: none); times in
milliseconds since 1970."""

ReadSend: TypeAlias = tuple[int, int, int, int, int, int, int]
"""A SEND: its producer's id, its sequence id and its highest one (0: the client gave none), where
its payload starts; then what ``Sent`` has."""

SendRun: TypeAlias = tuple[int, list[memoryview], list[tuple[int, int]], list[int], list[int], int]
"""The SENDs of one producer: its id; then of each its payload, its sequence id and highest one, how
many messages it holds, when it was published; and the payloads' bytes together."""

Buffer: TypeAlias = bytes | bytearray | memoryview

P = TypeVar("P", bound=tuple[int, int])

SINGLE_BYTES_MIN: Final = 6
"""What a message takes in a batch at least: its metadata's size (4) and ``payload_size`` (2)."""

GROUPS_SEARCHED: Final = 64
"""Of a chunk, the latest groups that a frame may join: so that a chunk of frames that all have
another producer costs what it holds, and not its square."""

_USUAL: Final = re.compile(
    rb"\x00\x00\x00[\x00-\x7f]\x08\x06\x32[\x00-\x7f]"  # command size, type, body size
    rb"\x08([\x80-\xff]{0,7}[\x00-\x7f])"  # producer_id
    rb"\x10([\x80-\xff]{0,7}[\x00-\x7f])"  # sequence_id
    rb"(?:\x18[\x80-\xff]{0,3}[\x00-\x7f])?"  # num_messages: the metadata's counts
    rb"(?:\x30([\x80-\xff]{0,7}[\x00-\x7f]))?"  # highest_sequence_id
    rb"(?:\x38[\x00\x01])?"  # is_chunk
    rb"()\x0e\x01.{8}"  # where the command ends; magic; checksum and metadata size
    rb"(?:"
    rb"\x0a([\x00-\x7f])([\x20-\xff]*+)"  # producer_name: its size; bytes that are no tag here
    rb"\x10[\x80-\xff]{0,8}+[\x00-\x7f]"  # sequence_id
    rb"\x18([\x80-\xff]{0,8}+[\x00-\x7f])"  # publish_time
    rb"(?:\x48[\x80-\xff]{0,8}+[\x00-\x7f])?"  # uncompressed_size: matters with compression alone
    rb"(?:\x58([\x80-\xff]{0,3}+[\x00-\x7f]))?"  # num_messages_in_batch
    rb"(?:\xc0\x01[\x80-\xff]{0,8}+[\x00-\x7f])?"  # highest_sequence_id
    rb")?",
    re.DOTALL,
).match
"""A SEND up to where its metadata is no longer usual; without any of it, if its beginning is not.
All that has a size is for the reader to check. What is read again and again is a group, and nothing
else: each costs."""
_COMMAND_END: Final = 4  # the number of that group

_USUAL_STORED: Final = re.compile(
    rb"\x0a([\x00-\x7f])([\x20-\x7f]*+)"  # producer_name: its size, and text
    rb"\x10[\x80-\xff]{0,8}+[\x00-\x7f]"  # sequence_id
    rb"\x18[\x80-\xff]{0,8}+[\x00-\x7f]"  # publish_time
    rb"(?:\x48[\x80-\xff]{0,8}+[\x00-\x7f])?"  # uncompressed_size
    rb"(?:\x58([\x80-\xff]{0,3}+[\x00-\x7f]))?"  # num_messages_in_batch
    rb"(?:\xc0\x01[\x80-\xff]{0,8}+[\x00-\x7f])?",  # highest_sequence_id
    re.DOTALL,
).fullmatch
"""Metadata that has nothing else in it."""

_TELLING: Final = re.compile(
    rb"\x40[^\x00]"  # compression, if it is any
    rb"|[\x18\x58]"  # publish_time, num_messages_in_batch
    rb"|\x98\x01"  # deliver_at_time
    rb"|[\xd8\xe0\xe8]\x01"  # num_chunks_from_msg, total_chunk_msg_size, chunk_id
    rb"|[\x98\xc0\xd8][\x00\x80]|[\x98\xd8\xe0\xe8]\x81",  # those, longer than need be
    re.DOTALL,
).search
"""Finds the tags of the fields that are looked at (or bytes that look like one). The last line is
of tags with bytes that say nothing, which no known client writes and every parser takes."""

_BODY_AT: Final = 8
"""Where the body of a usual command starts in its frame."""
_SUMS: Final = struct.Struct(">II").unpack_from
"""Behind the magic: checksum, metadata size."""
_METADATA_AT: Final = 10
"""Where the metadata starts in a payload with a checksum."""
_size: Final = struct.Struct(">I").unpack_from
_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor


def varint_value(digits: bytes) -> int:
    """The number that the bytes of a whole varint say."""
    value = 0
    for byte in reversed(digits):
        value = value << 7 | byte & 127
    return value


_time_value: Final = lru_cache(maxsize=64)(varint_value)
"""Of publish times: of what comes together most, of whatever producers, was published in the same
few milliseconds."""
_value: Final = lru_cache(maxsize=1024)(varint_value)
"""Of producer ids, of counts, and of sequence ids without their lowest group: 128 sends of a
producer have that in common."""


def batch_fits(count: int, whole_bytes: int) -> bool:
    """Whether a batch of ``count`` messages can be in so many bytes, uncompressed."""
    return 0 < count * SINGLE_BYTES_MIN <= whole_bytes


def read_send(
    view: memoryview,
    start: int,
    end: int,
    decoded: Callable[[memoryview, int, int, int], Sent | None] | None = None,
) -> ReadSend | None:
    """Read and check the SEND ``view[start:end]`` (without its length); None if it is unusual, or
    wrong. ``decoded`` is asked about unusual metadata, in ``view[first:stop]`` of a SEND that ends
    at ``end``, called with these."""
    found = _USUAL(view, start, end)
    if found is None:
        return None
    body_bytes = view[start + _BODY_AT - 1]
    payload_start = start + _BODY_AT + body_bytes
    if found.start(_COMMAND_END) != payload_start or view[start + 3] != body_bytes + 4:
        return None  # more fields than those
    checksum, size = _SUMS(view, payload_start + 2)
    first = payload_start + _METADATA_AT
    stop = first + size
    if stop > end or crc32c(view[payload_start + 6 : end]) != checksum:
        return None
    if found.end() > stop:  # data looked like fields
        found = _USUAL(view, start, stop)
        assert found is not None, "the command is as it was"
    producer, sequence, highest, _, name_bytes, name, time, batch = found.groups()
    unread = found.end()
    if (
        time is None
        or len(name) != name_bytes[0]
        or (unread != stop and _TELLING(view, unread, stop) is not None)
    ):
        sent = None if decoded is None else decoded(view, first, stop, end)
        if sent is None:
            return None
        messages, published_ms, deliver_at_ms = sent
    else:
        published_ms, deliver_at_ms = _time_value(time), 0
        messages = 1
        if batch is not None:
            messages = _value(batch)
            if not batch_fits(messages, end - stop):
                return None
    return (
        _value(producer),
        sequence[0] & 127 | _value(sequence[1:]) << 7,
        0 if highest is None else varint_value(highest),
        payload_start, messages, published_ms, deliver_at_ms,
    )  # fmt: skip


def read_sends(
    view: memoryview, start: int, end: int, frame_bytes_max: int, payload_bytes_max: int
) -> tuple[list[SendRun], int]:
    """The usual, sound SENDs at the front of ``view[start:end]``, by producer, and where they end:
    before anything else, or a SEND that is not whole, or too large. Payloads are views."""
    runs: list[SendRun] = []
    byte_counts: list[int] = []
    last = place = -1
    at = start
    while end - at >= 4:
        (size,) = _size(view, at)
        stop = at + 4 + size
        if stop > end or size > frame_bytes_max:
            break
        found = read_send(view, at + 4, stop)
        if found is None:
            break
        producer_id, sequence_id, highest, payload_at, messages, published_ms, _ = found
        if stop - payload_at > payload_bytes_max:
            break
        if producer_id != last or place < 0:
            last, place = producer_id, _place_of(runs, producer_id)
            if place < 0:
                place = len(runs)
                runs.append((producer_id, [], [], [], [], 0))
                byte_counts.append(0)
            _, payloads, sequences, counts, times_ms, _ = runs[place]
        payloads.append(view[payload_at:stop])
        sequences.append((sequence_id, highest))
        counts.append(messages)
        times_ms.append(published_ms)
        byte_counts[place] += stop - payload_at
        at = stop
    return [(*run[:-1], count) for run, count in zip(runs, byte_counts, strict=True)], at


def _place_of(runs: list[SendRun], producer_id: int) -> int:
    for place in range(len(runs) - 1, max(-1, len(runs) - 1 - GROUPS_SEARCHED), -1):
        if runs[place][0] == producer_id:
            return place
    return -1


def whole_messages(payload: Buffer) -> int:
    """How many messages an entry holds, if its metadata has nothing in it but what all known
    clients write with whole messages, and the batch can be; 0: it is to be decoded."""
    if len(payload) < _METADATA_AT or payload[0] != 0x0E or payload[1] != 0x01:
        return 0
    (size,) = _size(payload, 6)
    stop = _METADATA_AT + size
    if stop > len(payload):
        return 0
    found = _USUAL_STORED(payload, _METADATA_AT, stop)
    if found is None:
        return 0
    name_bytes, name, batch = found.groups()
    if len(name) != name_bytes[0]:
        return 0
    if batch is None:
        return 1
    messages = _value(batch)
    return messages if batch_fits(messages, len(payload) - stop) else 0


# -- acknowledgements -----------------------------------------------------------------------------

ACK_BYTES_MIN: Final = 18
ACK_BYTES_MAX: Final = 40
"""No frame of the shape is shorter or longer."""


def read_acks(
    view: memoryview, start: int, end: int, position: type[P]
) -> tuple[list[tuple[int, list[P]]], int]:
    """The ACKs of one whole entry each at the front of ``view[start:end]``, by consumer: its id,
    and a ``position`` (a named tuple of ledger and entry id) each; and where they end, before
    anything else."""
    groups: list[tuple[int, list[P]]] = []
    at = start
    while end - at >= 4:
        (size,) = _size(view, at)
        stop = at + 4 + size
        if stop > end or not ACK_BYTES_MIN <= size <= ACK_BYTES_MAX:
            break
        found = _plain_ack(bytes(view[at + 4 : stop]))
        if found is None:
            break
        consumer_id, ledger_id, entry_id = found
        group = next((g for g in groups[: -GROUPS_SEARCHED - 1 : -1] if g[0] == consumer_id), None)
        if group is None:
            group = (consumer_id, [])
            groups.append(group)
        group[1].append(_new(position, (ledger_id, entry_id)))
        at = stop
    return groups, at


def _plain_ack(frame: bytes) -> tuple[int, int, int] | None:
    """Consumer, ledger and entry id of an ACK of this shape; None if it has another."""
    at = len(frame) - 1
    entry_id = frame[at]
    if entry_id > 127:
        return None
    while frame[at - 1] > 127:  # ends at the latest where it began: the last byte is below
        at -= 1
        entry_id = entry_id << 7 | frame[at] & 127
    shape = _ack_shape(frame[:at], len(frame))
    return None if shape is None else (*shape, entry_id)


@lru_cache(maxsize=1024)
def _ack_shape(before: bytes, total: int) -> tuple[int, int] | None:
    """Consumer and ledger id of the frames of ``total`` bytes that begin so and end with an entry
    id; None if such have another shape."""
    try:
        return _read_ack_shape(before, total)
    except IndexError:
        return None


def _read_ack_shape(before: bytes, total: int) -> tuple[int, int] | None:
    head = (total - 4).to_bytes(4, "big") + b"\x08\x0a\x52" + bytes((total - 8,)) + b"\x08"
    if not before.startswith(head):
        return None
    consumer_id, after = _short_varint(before, 9)
    ids = after + 4  # where the message id begins
    if (
        ids >= len(before)
        or before[after:ids] != b"\x10\x00\x1a" + bytes((total - ids,))
        or before[ids] != 0x08
    ):
        return None
    ledger_id, after = _short_varint(before, ids + 1)
    if after + 1 != len(before) or before[after] != 0x10 or total - len(before) > 8:
        return None
    return consumer_id, ledger_id


def _short_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at ``at``, and where it ends. Raises ``IndexError`` if it takes more than 9 bytes
    or does not end."""
    value = shift = 0
    while True:
        if shift > 56:
            raise IndexError
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
