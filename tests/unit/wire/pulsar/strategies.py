"""What Hypothesis makes up for the codec's tests."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

U32 = st.integers(0, 2**32 - 1)
U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
I32 = st.one_of(st.integers(-2, 300), st.integers(-(2**31), 2**31 - 1))
I64 = st.one_of(st.integers(-2, 300), st.integers(-(2**63), 2**63 - 1))

_SCALARS: dict[int, st.SearchStrategy[object]] = {
    FieldDescriptor.TYPE_UINT64: U64,
    FieldDescriptor.TYPE_UINT32: U32,
    FieldDescriptor.TYPE_INT64: I64,
    FieldDescriptor.TYPE_INT32: I32,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=12),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=12),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}


@st.composite
def filled(draw: st.DrawFn, message: Message, depth: int = 0) -> Message:
    """``message`` with required fields, and some others, set."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        repeated = field.is_repeated
        if not field.is_required and (depth > 2 or not draw(st.booleans())):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            part = getattr(message, field.name)
            draw(filled(part.add() if repeated else part, depth + 1))
            if not repeated:
                part.SetInParent()
            continue
        if field.type == FieldDescriptor.TYPE_ENUM:
            value = draw(st.sampled_from([item.number for item in field.enum_type.values]))
        else:
            value = draw(_SCALARS[field.type])
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


@st.composite
def commands(draw: st.DrawFn, *kinds: int) -> BaseCommand:
    """A command of one of ``kinds`` (of any, if none are given), with its own body only."""
    number = draw(st.sampled_from(kinds or tuple(BaseCommand.Type.values())))
    command = BaseCommand(type=number)
    body = getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    draw(filled(body))
    body.SetInParent()
    return command
