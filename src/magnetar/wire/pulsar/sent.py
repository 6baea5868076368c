"""A SEND on its way in: what is read of it, and what is checked of its payload before it is stored.

``read_send`` does both at once for the SENDs that all known clients write: a short command, a
checksum, and metadata that begins with the three required fields and has little else that must be
looked at. One regular expression over the receive buffer reads command and metadata, for every
entry, in a fifth of the time of decoding them. It takes something for unusual too often at worst:
unusual metadata is decoded, unusual commands are left to ``hot.decode_send`` and ``check_sent``.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.model.errors import ImplausibleMessageError, ProtocolError
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.hot import varint_value, verify_checksum
from magnetar.wire.pulsar.metadata import check_plausible, metadata_bounds
from magnetar.wire.pulsar.plausible import batch_fits
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata

Sent: TypeAlias = tuple[int, int, int]
"""What the broker needs to know of what a producer sent: how many messages it holds, when it was
published (0: it does not say), the time before which it must not be delivered (0: none); times in
milliseconds since 1970."""

ReadSend: TypeAlias = tuple[int, int, int, int, int, int, int]
"""A SEND: its producer's id, its sequence id and its highest one (0: the client gave none), where
its payload starts; then what ``Sent`` has."""

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
    rb"\x10[\x80-\xff]*+[\x00-\x7f]"  # sequence_id
    rb"\x18([\x80-\xff]{0,8}+[\x00-\x7f])"  # publish_time
    rb"(?:\x48[\x80-\xff]*+[\x00-\x7f])?"  # uncompressed_size: matters with compression alone
    rb"(?:\x58([\x80-\xff]{0,3}+[\x00-\x7f]))?"  # num_messages_in_batch
    rb"(?:\xc0\x01[\x80-\xff]*+[\x00-\x7f])?"  # highest_sequence_id
    rb")?",
    re.DOTALL,
).match
"""A SEND up to where its metadata is no longer usual; without any of it, if its beginning is not.
All that has a size is for the reader to check. What is read again and again is a group, and nothing
else: each costs."""
_COMMAND_END: Final = 4  # the number of that group

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

_time_value: Final = lru_cache(maxsize=64)(varint_value)
"""Of publish times: of what comes together most, of whatever producers, was published in the same
few milliseconds."""
_value: Final = lru_cache(maxsize=1024)(varint_value)
"""Of producer ids, of counts, and of sequence ids without their lowest group: 128 sends of a
producer have that in common."""


def read_send(view: memoryview, start: int, end: int) -> ReadSend | None:
    """Read and check the SEND ``view[start:end]``; None if it is unusual, or wrong: that is for
    ``hot.decode_send`` and ``check_sent`` to tell."""
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
        try:
            messages, published_ms, deliver_at_ms = _check_decoded(view, first, stop, end)
        except ImplausibleMessageError:
            return None
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


def check_sent(view: memoryview, start: int, end: int) -> Sent:
    """Check the payload ``view[start:end]`` that a producer sent, before it is stored.

    Raises ``ChecksumError``; ``ProtocolError`` if the metadata is longer than the payload: that is
    no message; ``ImplausibleMessageError`` if its numbers cannot be true. Metadata that cannot be
    decoded passes; dispatch leaves it out.
    """
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
