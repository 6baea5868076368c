"""What is looked at in a SEND's payload before it is stored: its checksum, its numbers, its time.

Most payloads have a checksum, and metadata that begins with the three required fields; few have
anything else that must be looked at. Those are read by one regular expression over the receive
buffer, which takes a third of the time of decoding them, for every entry; all others are decoded.
The expressions take something for unusual too often at worst.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.model.errors import ProtocolError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.hot import varint_value, verify_checksum
from magnetar.wire.pulsar.metadata import MAGIC_CRC32C, check_plausible, metadata_bounds
from magnetar.wire.pulsar.plausible import batch_fits
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata

Sent: TypeAlias = tuple[int, int, int]
"""What the broker needs to know of what a producer sent: how many messages it holds, when it was
published (0: it does not say), the time before which it must not be delivered (0: none); times in
milliseconds since 1970."""

_HEAD: Final = struct.Struct(">HIIBB").unpack_from
"""Magic, checksum, metadata size; the metadata's first two bytes."""
_HEAD_BYTES: Final = 10
"""Of those, the bytes before the metadata."""
_PRODUCER_NAME: Final = 0x0A  # the tag of the first field

_AFTER_NAME: Final = re.compile(
    rb"\x10[\x80-\xff]*[\x00-\x7f]"  # sequence_id
    rb"\x18([\x80-\xff]{0,8}[\x00-\x7f])"  # publish_time
    rb"(?:\x48[\x80-\xff]*[\x00-\x7f])?"  # uncompressed_size: matters with compression alone
    rb"(?:\x58([\x80-\xff]{0,3}[\x00-\x7f]))?"  # num_messages_in_batch
    rb"(?:\xc0\x01[\x80-\xff]*[\x00-\x7f])?"  # highest_sequence_id
).match

_TELLING: Final = re.compile(
    rb"\x40[^\x00]"  # compression, if it is any
    rb"|[\x18\x58]"  # publish_time, num_messages_in_batch
    rb"|\x98\x01"  # deliver_at_time
    rb"|[\xd8\xe0\xe8]\x01",  # num_chunks_from_msg, total_chunk_msg_size, chunk_id
    re.DOTALL,
).search
"""Finds the tags, as every known client writes them, of the fields that are looked at (or bytes
that look like one)."""


_time_value: Final = lru_cache(maxsize=64)(varint_value)
"""Of publish times: of what comes together most, of whatever producers, was published in the same
few milliseconds."""


def check_sent(view: memoryview, start: int, end: int) -> Sent:
    """Check the payload ``view[start:end]`` that a producer sent, before it is stored.

    Raises ``ChecksumError``; ``ProtocolError`` if the metadata is longer than the payload: that is
    no message; ``ImplausibleMessageError`` if its numbers cannot be true. Metadata that cannot be
    decoded passes; dispatch leaves it out.
    """
    if end - start < _HEAD_BYTES + 2:
        return _check_any(view, start, end)
    magic, checksum, size, tag, name_bytes = _HEAD(view, start)
    first = start + _HEAD_BYTES
    stop = first + size
    if magic != MAGIC_CRC32C or stop > end or size < 2:
        return _check_any(view, start, end)
    if crc32c(view[start + 6 : end]) != checksum:
        verify_checksum(view, start, end)  # which says so
    if tag != _PRODUCER_NAME or name_bytes > 127:
        return _check_decoded(view, first, stop, end)
    usual = _AFTER_NAME(view, first + 2 + name_bytes, stop)
    if usual is None:
        return _check_decoded(view, first, stop, end)
    unread = usual.end()
    if unread != stop and _TELLING(view, unread, stop) is not None:
        return _check_decoded(view, first, stop, end)
    time, batch = usual.groups()
    published_ms = _time_value(time)
    if batch is None:
        return 1, published_ms, 0
    count = varint_value(batch)
    if not batch_fits(count, end - stop):
        return _check_decoded(view, first, stop, end)  # which says so
    return count, published_ms, 0


def _check_any(view: memoryview, start: int, end: int) -> Sent:
    """As ``check_sent``, for payloads without a checksum, or with bounds that are wrong."""
    verify_checksum(view, start, end)
    payload = view[start:end]
    if payload[0] == 0x0E and payload[1] == 0x02:
        raise ProtocolError("a message that begins with metadata of a broker, not of a client")
    first, stop = metadata_bounds(payload)
    return _check_decoded(payload, first, stop, len(payload))


def _check_decoded(view: memoryview, first: int, stop: int, end: int) -> Sent:
    try:
        meta = MessageMetadata.FromString(bytes(view[first:stop]))
    except DecodeError:
        return 1, 0, 0
    check_plausible(meta, end - stop)
    return max(1, meta.num_messages_in_batch), meta.publish_time, meta.deliver_at_time
