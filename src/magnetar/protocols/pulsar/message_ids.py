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

from magnetar.log.seam import Positions
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.topics.positions import seek_target
from magnetar.wire.pulsar.hot import signed64, unsigned64
from magnetar.wire.pulsar.pulsar_pb2 import MessageIdData


def position_of(data: MessageIdData) -> Position:
    """The entry that a message id names; ``EARLIEST`` and ``LATEST`` for the two special ids."""
    position = Position(signed64(data.ledgerId), signed64(data.entryId))
    if position.ledger_id < 0:
        return EARLIEST
    return LATEST if position >= LATEST else position


def reader_start(positions: Positions, data: MessageIdData) -> Position:
    """Where a reader with that start message id reads first; may be ``EARLIEST`` or ``LATEST``."""
    position = position_of(data)
    return position if position in (EARLIEST, LATEST) else seek_target(positions, position)


def fill_message_id(data: MessageIdData, position: Position, partition: int) -> None:
    """Say ``position`` of that partition (-1: the topic has none) in ``data``."""
    data.ledgerId = unsigned64(position.ledger_id)
    data.entryId = unsigned64(position.entry_id)
    data.partition = partition
