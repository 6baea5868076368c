"""A SEND on its way in: what is read of it, and what is checked of its payload before it is stored.

Most SENDs are read and checked by ``speedups.read_sends``, many at once. What that takes for
unusual comes here: ``read_send`` decodes metadata that has more in it, and leaves unusual commands,
and all that is wrong, to ``hot.decode_send`` and ``check_sent``.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from magnetar.model.errors import ImplausibleMessageError, ProtocolError
from magnetar.speedups.pure.sends import ReadSend, Sent
from magnetar.speedups.pure.sends import read_send as read_usual_send
from magnetar.wire.pulsar.hot import verify_checksum
from magnetar.wire.pulsar.metadata import check_plausible, metadata_bounds
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata

__all__ = ["ReadSend", "Sent", "check_sent", "read_send"]


def read_send(view: memoryview, start: int, end: int) -> ReadSend | None:
    """Read and check the SEND ``view[start:end]``; None if it is unusual, or wrong: that is for
    ``hot.decode_send`` and ``check_sent`` to tell. Unlike ``speedups.read_sends`` it decodes
    metadata that is unusual."""
    return read_usual_send(view, start, end, _decoded)


def _decoded(view: memoryview, first: int, stop: int, end: int) -> Sent | None:
    try:
        return _check_decoded(view, first, stop, end)
    except ImplausibleMessageError:
        return None


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
