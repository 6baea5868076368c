"""Message ids of clients as positions of a log. Pure.

A client's (-1, -1) is the earliest and (2^63 - 1, 2^63 - 1) the latest; both come as uint64 and
are read as signed. Two conventions meet here:

* SEEK is inclusive: the message of the id comes again (clients that want it exclusive drop it).
* A reader's start id is where the client wants to go on, with or without that message: which of
  the two it does not say, and of an entry with many messages it may want a part. So reading starts
  at the entry itself, always, and the client drops what it does not want. (A start after the entry
  loses the message of a reader that is inclusive, and the rest of the batch of one that names no
  batch index, as Go's does, when it reconnects too.)

In both cases what is computed is the *next position to read*.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.wire.pulsar.hot import signed64
from magnetar.wire.pulsar.pulsar_pb2 import MessageIdData


class Steps(Protocol):
    """The part of a log that positions need."""

    @property
    def first(self) -> Position: ...

    @property
    def readable(self) -> Position: ...

    def next_position(self, position: Position) -> Position: ...


def position_of(data: MessageIdData) -> Position:
    """The entry that a message id names; ``EARLIEST`` and ``LATEST`` for the two special ids."""
    position = Position(signed64(data.ledgerId), signed64(data.entryId))
    if position.ledger_id < 0:
        return EARLIEST
    return LATEST if position >= LATEST else position


def seek_target(log: Steps, position: Position) -> Position:
    """The next position to read after a seek to ``position``, kept inside of the log."""
    if position == EARLIEST or position < log.first:
        return log.first
    if position > log.readable:
        return log.next_position(log.readable)
    return Position(position.ledger_id, max(position.entry_id, 0))


def reader_start(log: Steps, data: MessageIdData) -> Position:
    """Where a reader with that start message id reads first; may be ``EARLIEST`` or ``LATEST``."""
    position = position_of(data)
    return position if position in (EARLIEST, LATEST) else seek_target(log, position)
