"""ACKs of one whole entry each, which most are: read by what they have in common, and collected.

Clients that do not group their acknowledgements send one frame per entry, and of one consumer on
one ledger all of them are the same bytes up to the entry id::

    [size u32][08 0a][52 n]  [08 consumer][10 00]  [1a m]  [08 ledger][10 entry]
     command   type   body    body: id, individual          message id

So what lies before the entry id is looked up instead of decoded; the sizes in it say how long the
id is. Whatever has another shape is left to ``hot.decode_ack``, which gives the same values for
every frame that is read here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.model.ids import Position

FRAME_BYTES_MIN: Final = 18
FRAME_BYTES_MAX: Final = 40
"""No frame of the shape is shorter or longer."""

PREFIXES_MAX: Final = 64
"""Beginnings that are remembered (each stands for a consumer, a ledger and a length)."""

_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor


class _Shape(NamedTuple):
    consumer_id: int
    ledger_id: int
    frame_bytes: int


class PlainAcks:
    """See the module's text. One per connection."""

    __slots__ = ("_known", "collected")

    def __init__(self) -> None:
        self._known: dict[bytes, _Shape] = {}
        self.collected: dict[int, list[Position]] = {}
        """Since the last ``taken``, by consumer id; an attribute, as every chunk asks for it."""

    def take(self, view: memoryview, start: int, end: int) -> bool:
        """Collect the ACK frame ``view[start:end]``; False if it has another shape."""
        if not FRAME_BYTES_MIN <= end - start <= FRAME_BYTES_MAX:
            return False
        frame = bytes(view[start:end])
        at = len(frame) - 1
        entry_id = frame[at]
        if entry_id > 127:
            return False
        while frame[at - 1] > 127:  # ends at the latest where it began: the last byte is below
            at -= 1
            entry_id = entry_id << 7 | frame[at] & 127
        shape = self._known.get(frame[:at])
        if shape is None:
            shape = self._learn(frame, at)
        if shape is None or shape.frame_bytes != len(frame):
            return False
        taken = self.collected.get(shape.consumer_id)
        if taken is None:
            taken = self.collected[shape.consumer_id] = []
        taken.append(_new(Position, (shape.ledger_id, entry_id)))
        return True

    def taken(self) -> dict[int, list[Position]]:
        """What was collected since the last call, by consumer id, in order."""
        found, self.collected = self.collected, {}
        return found

    def _learn(self, frame: bytes, at: int) -> _Shape | None:
        """The shape of ``frame``, whose entry id begins at ``at``; None if it has another."""
        try:
            shape = _shape(frame, at)
        except IndexError:
            return None
        if shape is not None:
            if len(self._known) >= PREFIXES_MAX:
                del self._known[next(iter(self._known))]
            self._known[frame[:at]] = shape
        return shape


def _shape(frame: bytes, at: int) -> _Shape | None:
    total = len(frame)
    head = (total - 4).to_bytes(4, "big") + b"\x08\x0a\x52" + bytes((total - 8,)) + b"\x08"
    if not frame.startswith(head):
        return None
    consumer_id, after = _varint(frame, 9)
    ids = after + 4  # where the message id begins
    if (
        ids >= total
        or frame[after:ids] != b"\x10\x00\x1a" + bytes((total - ids,))
        or frame[ids] != 0x08
    ):
        return None
    ledger_id, after = _varint(frame, ids + 1)
    if after + 1 != at or frame[after] != 0x10 or total - at > 8:
        return None
    if consumer_id >= 1 << 63 or ledger_id >= 1 << 63:
        return None
    return _Shape(consumer_id, ledger_id, total)


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
