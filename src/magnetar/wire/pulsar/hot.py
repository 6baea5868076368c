"""The commands that a message costs a broker, decoded by hand: SEND and ACK; and FLOW.

Decoders read the shape that clients really send (fields with one-byte tags, varints) in one pass
over the command's few bytes, and leave everything else to protobuf, so both give the same values
for every input that protobuf accepts. ``bench/codec.py`` times them. What a broker writes back is
in ``encoders``.

A SEND frame is ``[command size u32][BaseCommand][payload]``. Its payload, the bytes from the magic
0x0e01 (or, of very old clients, from the metadata size) to the frame's end, is the entry as it is
stored, and as it follows the header of a MESSAGE.

Errors: ``ProtocolError``, or ``ChecksumError`` from ``verify_checksum``, on any bytes whatever.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.model.errors import ChecksumError, ProtocolError
from magnetar.speedups.pure.sends import varint_value
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.commands import COMMAND_NAMES, command_bounds, parse_command
from magnetar.wire.pulsar.encoders import MessageHeaderEncoder, ReceiptEncoder
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandAck, MessageIdData
from magnetar.wire.varint import varint

__all__ = [
    "AckCommand",
    "AckId",
    "FlowCommand",
    "MessageHeaderEncoder",
    "ReceiptEncoder",
    "SendCommand",
    "TxnId",
    "ack_id",
    "decode_ack",
    "decode_flow",
    "decode_send",
    "signed64",
    "unsigned64",
    "varint_value",
    "verify_checksum",
]

MAGIC_CRC32C: Final = 0x0E01
"""Opens a payload that has a checksum: ``[magic u16][crc32c u32][metadata size u32]...``."""


class TxnId(NamedTuple):
    """A transaction's id, as its two halves."""

    most_bits: int
    least_bits: int


class SendCommand(NamedTuple):
    """A SEND. ``view[payload_start:payload_end]`` is the entry to store, unmodified.

    ``highest_sequence_id`` is 0 when the client gave none (then it is ``sequence_id``).
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    payload_start: int
    payload_end: int
    is_chunk: bool
    txn: TxnId | None


class AckId(NamedTuple):
    """One acknowledged message id; ids are signed, as (-1, -1) is the earliest.

    ``ack_set`` is empty for a whole entry; else 64-bit words (signed), bit 1 = not acknowledged.
    ``batch_index`` is -1 and ``batch_size`` 0 where the client gave none.
    """

    ledger_id: int
    entry_id: int
    ack_set: tuple[int, ...]
    batch_index: int
    batch_size: int


class AckCommand(NamedTuple):
    """An ACK of one or several ids. With ``request_id`` the client waits for an ACK_RESPONSE."""

    consumer_id: int
    cumulative: bool
    ids: tuple[AckId, ...]
    request_id: int | None
    txn: TxnId | None


class FlowCommand(NamedTuple):
    """A FLOW: ``permits`` more messages (not entries) may be sent to the consumer."""

    consumer_id: int
    permits: int


def signed64(value: int) -> int:
    """A uint64 off the wire as the signed number that clients mean (2^64 - 1 is -1)."""
    return value - 0x1_0000_0000_0000_0000 if value >= 0x8000_0000_0000_0000 else value


def unsigned64(value: int) -> int:
    """The reverse of ``signed64``: what protobuf's uint64 fields take."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


# -- one pass over a command's fields ---------------------------------------------------------


def _varint_fields(data: bytes, first: int, stop: int) -> dict[int, int] | None:
    """The fields of ``data[first:stop]``, tag byte -> value; None if it is anything unusual.

    Usual: one-byte tags of varints, each value of 64 bits at most; a later value of a tag wins,
    as in protobuf. Raises ``IndexError`` where ``data`` ends within a field.
    """
    fields: dict[int, int] = {}
    at = first
    while at < stop:
        tag = data[at]
        value = data[at + 1]
        at += 2
        if tag & 0x87 or tag < 8:  # not a varint, a tag of several bytes, or no field at all
            return None
        if value > 127:
            value &= 127
            shift = 7
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            if shift > 56:  # may pass 64 bits
                return None
        fields[tag] = value
    return fields if at == stop else None


def _simple_body(view: memoryview, start: int, end: int, head: int, tag: int) -> bytes | None:
    """The body of the command, if the BaseCommand is nothing but its type and a short body.

    ``head`` is the type field's two bytes, ``tag`` the body field's.
    """
    if end - start < 8:
        return None
    size, found, found_tag, length = _HEAD(view, start)
    if found != head or found_tag != tag or length > 127 or size != length + 4:
        return None
    stop = start + 4 + size
    return bytes(view[start + 8 : stop]) if stop <= end else None


_HEAD: Final = struct.Struct(">IHBB").unpack_from  # command size, type field, body tag, body size
_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor


# -- SEND -------------------------------------------------------------------------------------


_USUAL_SEND: Final = re.compile(
    rb"\x00\x00\x00([\x00-\x7f])\x08\x06\x32([\x00-\x7f])"  # command size, type, body size
    rb"\x08([\x80-\xff]{0,7}[\x00-\x7f])"  # producer_id
    rb"\x10([\x80-\xff]{0,7}[\x00-\x7f])"  # sequence_id
    rb"(?:\x18([\x80-\xff]{0,3}[\x00-\x7f]))?"  # num_messages
    rb"(?:\x30([\x80-\xff]{0,7}[\x00-\x7f]))?"  # highest_sequence_id
    rb"(?:\x38([\x00\x01]))?"  # is_chunk
).match
"""A SEND with no other fields, in the order in which all known clients write them. The sizes are
one byte each, and are for the reader to check."""


def decode_send(view: memoryview, start: int, end: int) -> SendCommand:
    """Decode the SEND frame ``view[start:end]``. Does not look into the payload."""
    found = _USUAL_SEND(view, start, end)
    if found is None:
        return _decode_any_send(view, start, end)
    payload_start = found.end()
    size, body_size, producer_id, sequence, count, highest, chunk = found.groups()
    if size[0] != body_size[0] + 4 or payload_start - start != body_size[0] + 8:
        return _decode_any_send(view, start, end)  # more fields than those
    values = (
        producer_id[0] if len(producer_id) == 1 else varint_value(producer_id),
        varint_value(sequence),
        0 if highest is None else varint_value(highest),
        1 if count is None else count[0] if len(count) == 1 else varint_value(count),
        payload_start, end, chunk == b"\x01", None,
    )  # fmt: skip
    return _new(SendCommand, values)


def _decode_any_send(view: memoryview, start: int, end: int) -> SendCommand:
    command = parse_command(view, start, end)
    if command.type != BaseCommand.SEND:
        raise ProtocolError(f"{COMMAND_NAMES[command.type]} where a SEND was expected")
    send = command.send
    txn = None
    if send.HasField("txnid_most_bits") or send.HasField("txnid_least_bits"):
        txn = TxnId(send.txnid_most_bits, send.txnid_least_bits)
    return SendCommand(
        send.producer_id,
        send.sequence_id,
        send.highest_sequence_id,
        send.num_messages,
        command_bounds(view, start, end)[1],
        end,
        send.is_chunk,
        txn,
    )


def verify_checksum(view: memoryview, payload_start: int, payload_end: int) -> None:
    """Check a payload's CRC-32C, which covers everything after it; no copy is made.

    Raises ``ChecksumError`` if it does not match, ``ProtocolError`` if there is no room for
    metadata. A payload without magic has no checksum and passes.
    """
    if payload_end - payload_start < 4:
        raise ProtocolError(f"payload of {payload_end - payload_start} bytes has no metadata")
    if view[payload_start] != 0x0E or view[payload_start + 1] != 0x01:
        return
    if payload_end - payload_start < 10:
        raise ProtocolError(f"payload of {payload_end - payload_start} bytes has no metadata")
    stored = _U32(view, payload_start + 2)[0]
    found = crc32c(view[payload_start + 6 : payload_end])
    if stored != found:
        raise ChecksumError(
            f"message of {payload_end - payload_start} bytes is corrupt: its checksum is "
            f"{stored:#010x}, its bytes give {found:#010x}"
        )


_U32 = struct.Struct(">I").unpack_from


# -- ACK and FLOW -----------------------------------------------------------------------------


def decode_ack(view: memoryview, start: int, end: int) -> AckCommand:
    """Decode the ACK frame ``view[start:end]``."""
    body = _simple_body(view, start, end, 0x080A, 0x52) or _long_ack_body(view, start, end)
    if body is not None and len(body) > 4 and body[0] == 0x08 and body[2] == 0x10:
        try:
            ids = _simple_ack_ids(body, 4)
        except (IndexError, DecodeError):
            ids = None
        if ids is not None and body[1] < 128 and body[3] < 2:
            return _new(AckCommand, (body[1], body[3] == 1, ids, None, None))
    return _decode_any_ack(view, start, end)


def _long_ack_body(view: memoryview, start: int, end: int) -> bytes | None:
    """As ``_simple_body``, for lists of ids: a body whose size takes two bytes, up to four."""
    if end - start < 12:
        return None
    size, found, found_tag, low = _HEAD(view, start)
    if found != 0x080A or found_tag != 0x52 or low < 128:
        return None
    length, at = low & 127, start + 8
    for shift in (7, 14, 21):
        byte = view[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
    else:
        return None
    stop = at + length
    return bytes(view[at:stop]) if stop == start + 4 + size and stop <= end else None


def _simple_ack_ids(body: bytes, at: int) -> tuple[AckId, ...] | None:
    """The ids from ``at`` on; None if anything else follows.

    Most ids of a list are of one ledger, so they begin with the same bytes, ``prefix``.
    """
    ids = []
    stop = len(body)
    prefix, ledger_id = b"\x08", -1
    while at < stop:
        if body[at] != 0x1A or body[at + 1] > 127:
            return None
        first = at + 2
        at = first + body[at + 1]
        if at > stop:
            return None
        if ledger_id >= 0 and body.startswith(prefix, first):
            entry_id = _rest_as_varint(body, first + len(prefix), at)
            if entry_id >= 0:
                ids.append(_new(AckId, (ledger_id, entry_id, (), -1, 0)))
                continue
        found = _any_ack_id(body, first, at)
        if found is None:
            return None
        ids.append(found)
        if at < stop:
            ledger_id = found.ledger_id
            prefix = b"\x08" + varint(ledger_id) + b"\x10"
    return tuple(ids)


def _rest_as_varint(data: bytes, at: int, stop: int) -> int:
    """The varint that takes all of ``data[at:stop]``; -1 if that is no varint below 2^56."""
    if not 0 < stop - at <= 8 or data[stop - 1] > 127:
        return -1
    value = shift = 0
    for byte in data[at : stop - 1]:
        if byte < 128:
            return -1
        value |= (byte & 127) << shift
        shift += 7
    return value | data[stop - 1] << shift


def _any_ack_id(body: bytes, first: int, stop: int) -> AckId | None:
    """The id in ``body[first:stop]``; None if it lacks a half."""
    fields = _varint_fields(body, first, stop)
    if fields is not None and len(fields) == 2 and 0x08 in fields and 0x10 in fields:
        return _new(AckId, (fields[0x08], fields[0x10], (), -1, 0))
    data = MessageIdData.FromString(body[first:stop])
    return ack_id(data) if data.IsInitialized() else None


def _decode_any_ack(view: memoryview, start: int, end: int) -> AckCommand:
    ack = _parse_ack(view, start, end)
    return _ack_head(ack)._replace(ids=tuple(ack_id(item) for item in ack.message_id))


def decode_long_ack(view: memoryview, start: int, end: int, ids_max: int) -> tuple[AckCommand, int]:
    """As ``decode_ack``, and how many ids there are: more than ``ids_max`` are not read."""
    ack = _parse_ack(view, start, end)
    count = len(ack.message_id)
    return decode_ack(view, start, end) if count <= ids_max else _ack_head(ack), count


def _parse_ack(view: memoryview, start: int, end: int) -> CommandAck:
    command = parse_command(view, start, end)
    if command.type != BaseCommand.ACK:
        raise ProtocolError(f"{COMMAND_NAMES[command.type]} where an ACK was expected")
    return command.ack


def _ack_head(ack: CommandAck) -> AckCommand:
    txn = None
    if ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits"):
        txn = TxnId(ack.txnid_most_bits, ack.txnid_least_bits)
    return AckCommand(
        ack.consumer_id,
        ack.ack_type == CommandAck.Cumulative,
        (),
        ack.request_id if ack.HasField("request_id") else None,
        txn,
    )


ACK_SET_WORDS_MAX: Final = 1 << 14
"""Words of an ack set that can make sense: a million messages in one entry."""


def ack_id(data: MessageIdData) -> AckId:
    """A protobuf message id as the value of this module. Raises ``ProtocolError`` for an ack set
    that belongs to no entry there can be."""
    if len(data.ack_set) > ACK_SET_WORDS_MAX:
        raise ProtocolError(
            f"acknowledgement with an ack set of {len(data.ack_set)} words; at most "
            f"{ACK_SET_WORDS_MAX} make sense"
        )
    return AckId(
        signed64(data.ledgerId),
        signed64(data.entryId),
        tuple(data.ack_set),
        data.batch_index,
        data.batch_size,
    )


def decode_flow(view: memoryview, start: int, end: int) -> FlowCommand:
    """Decode the FLOW frame ``view[start:end]``."""
    command = parse_command(view, start, end)
    if command.type != BaseCommand.FLOW:
        raise ProtocolError(f"{COMMAND_NAMES[command.type]} where a FLOW was expected")
    return FlowCommand(command.flow.consumer_id, command.flow.messagePermits)
