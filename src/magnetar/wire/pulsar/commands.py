"""Commands in general: every type, through protobuf.

A frame, without its total size, is ``[command size u32][BaseCommand][rest]``; ``rest`` exists for
SEND and MESSAGE only. Decoders take the receive buffer's view and the frame's bounds and keep
nothing of it. They raise ``ProtocolError`` for whatever the bytes are: truncated, unknown,
without a required field, or with a string that is not UTF-8 (protobuf hands those out as
``bytes``, which nobody behind this module should meet).

This is the path of the control plane. SEND, ACK, FLOW, receipts and message headers have their
own in ``hot``.

Source: ``pulsar.proto`` and docs/formats/pulsar-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandPing, CommandPong

PROTOCOL_VERSION: Final = 20
"""The version that servers of this project announce; clients cap what they send by it."""

COMMAND_NAMES: Final[dict[int, str]] = {
    number: name for name, number in BaseCommand.Type.items() if isinstance(name, str)
}
"""Type number -> name, of every command that ``decode_command`` accepts."""

_BODY_FIELDS: Final[dict[int, str]] = {
    field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.number != 1
}
_BODYLESS: Final = frozenset((BaseCommand.PING, BaseCommand.PONG))


def command_type(view: memoryview, start: int) -> int:
    """The type of the frame at ``start``, without decoding it; 0 when it cannot be told cheaply.

    Every known client writes the type first. 0 sends the caller to ``decode_command``, which
    either accepts an unusual order of fields or says what is wrong. The caller's frame may be
    shorter than 6 bytes: the result is then 0 or a type whose decoder finds the truncation.
    """
    if len(view) - start < 6 or view[start + 4] != 0x08:
        return 0
    number = view[start + 5]
    return number if number < 128 else 0


def command_bounds(view: memoryview, start: int, end: int) -> tuple[int, int]:
    """Where the frame's BaseCommand starts and stops; raises ``ProtocolError`` if truncated."""
    if end - start < 4:
        raise ProtocolError(f"frame of {end - start} bytes has no room for its command size")
    size = int.from_bytes(view[start : start + 4], "big")
    if size > end - start - 4:
        raise ProtocolError(
            f"truncated frame: the command takes {size} bytes, the frame has {end - start - 4}"
        )
    return start + 4, start + 4 + size


def decode_command(view: memoryview, start: int, end: int) -> BaseCommand:
    """Decode the BaseCommand of the frame ``view[start:end]``, checked as the module says."""
    command = parse_command(view, start, end)
    bad = _bad_string(command)
    if bad:
        raise ProtocolError(f"{COMMAND_NAMES[command.type]}: field {bad} is not UTF-8")
    return command


def parse_command(view: memoryview, start: int, end: int) -> BaseCommand:
    """As ``decode_command``, without a look at strings: for commands whose strings go unread."""
    first, stop = command_bounds(view, start, end)
    try:
        command = BaseCommand.FromString(view[first:stop])  # type: ignore[arg-type]
    except DecodeError as error:
        raise ProtocolError(f"undecodable command of {stop - first} bytes: {error}") from error
    if not command.HasField("type"):
        raise ProtocolError("command of an unknown type, or of none; the last known is 68")
    number = command.type
    if number not in _BODYLESS and not command.HasField(_BODY_FIELDS[number]):  # type: ignore[arg-type]
        field = _BODY_FIELDS[number]
        raise ProtocolError(f"{COMMAND_NAMES[number]} command without its body ({field})")
    if not command.IsInitialized():
        raise ProtocolError(f"{COMMAND_NAMES[number]} without {_missing(command)}")
    return command


def _missing(message: Message) -> str:
    """The required fields that ``message`` lacks."""
    return ", ".join(message.FindInitializationErrors())  # type: ignore[attr-defined]


def _bad_string(message: Message) -> str | None:
    """The name of a string field that does not hold text, else None."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            values: Iterable[object] = (value,) if isinstance(value, (str, bytes)) else value
            if not all(isinstance(item, str) for item in values):
                return str(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = (value,) if isinstance(value, Message) else value
            texts = _only_texts(field.message_type)
            if texts is not None:
                # Lists have hundreds of thousands of these: a tenth of the time.
                for name in texts:
                    if not all(isinstance(getattr(part, name), str) for part in parts):
                        return f"{field.name}.{name}"
                continue
            for part in parts:
                bad = _bad_string(part)
                if bad:
                    return f"{field.name}.{bad}"
    return None


@lru_cache(maxsize=256)
def _only_texts(kind: Descriptor) -> tuple[str, ...] | None:
    """The string fields of a message whose fields are single values; None for any other."""
    fields = kind.fields
    if any(each.is_repeated or each.type == FieldDescriptor.TYPE_MESSAGE for each in fields):
        return None
    return tuple(each.name for each in fields if each.type == FieldDescriptor.TYPE_STRING)


def encode_command(command: BaseCommand) -> bytes:
    """A whole frame, total size included, of a command without payload."""
    body = command.SerializeToString()
    size = len(body)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + body


def encode_payload_command(command: BaseCommand, payload: bytes | memoryview) -> bytes:
    """A whole SEND or MESSAGE frame. ``payload`` starts with the magic, or with metadata size.

    For clients and tools; a broker writes ``hot.MessageHeaderEncoder``'s header and the stored
    payload instead of joining them.
    """
    body = command.SerializeToString()
    size = len(body)
    total = size + 4 + len(payload)
    return b"".join((total.to_bytes(4, "big"), size.to_bytes(4, "big"), body, payload))


PING_FRAME: Final = encode_command(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
PONG_FRAME: Final = encode_command(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))
