"""Recognising what a reconnected producer sends again.

A client that loses its connection sends every message again whose receipt it has not seen, byte
for byte. Some of those are in the log already: they were stored, and only their receipts were
lost. Storing them twice would show readers a duplicate of an acknowledged message.

So when an incarnation of a producer comes back (same name, epoch above 0), the topic looks through
the end of its log for that producer's frames, and a frame that is there is answered with the
position it has. Rules:

* What is stored of the pending messages is a leading part of them (appends keep their order), so
  the window closes at the first frame that is not found; from then on nothing is looked up.
* A frame is the same only if producer name, sequence id, length and the client's own checksum
  (over metadata, with its publish time, and payload) are the same. Frames without a checksum are
  never taken for repeats. Two messages of an application never agree in all of these.
* The search is bounded (``ENTRIES_MAX``, ``BYTES_MAX``); what a client keeps pending is far less
  by default. Past the bound repeats are stored again: at least once.

This needs no state of its own and holds across crashes: the log is the only record. Full
deduplication by sequence id, for producers that restart, is a policy of its own and not this.

Why: docs/adr/0060-repeats-after-a-reconnection.md.
"""

from __future__ import annotations

from typing import Final

from magnetar.log.seam import ReadableLog
from magnetar.model.errors import ProtocolError
from magnetar.model.ids import Position
from magnetar.topics.entry_format import EntryFormat, Fingerprint

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 64 << 20
STEP_ENTRIES: Final = 500


class ResendWindow:
    """The frames of one producer that the end of the log holds; open until one is not found."""

    __slots__ = ("_format", "_stored")

    def __init__(self, stored: dict[Fingerprint, Position], entry_format: EntryFormat) -> None:
        self._stored = stored
        self._format = entry_format

    def __len__(self) -> int:
        return len(self._stored)

    def find(self, sequence_id: int, payload: memoryview) -> Position | None:
        """Where the frame is stored; None closes the window for good."""
        key = self._format.fingerprint(sequence_id, payload)
        found = self._stored.pop(key, None) if key is not None else None
        if found is None:
            self._stored.clear()
        return found


async def stored_frames(
    log: ReadableLog, producer_name: str, entry_format: EntryFormat
) -> ResendWindow:
    """The frames of ``producer_name`` at the end of ``log``, readable ones only.

    Requires that no append of an earlier incarnation is still pending.
    """
    stored: dict[Fingerprint, Position] = {}
    last = log.positions.readable
    entries = byte_count = 0
    while entries < ENTRIES_MAX and byte_count < BYTES_MAX and last >= log.positions.first:
        first = _back(log, last, STEP_ENTRIES)
        count, size = await _collect(log, first, last, producer_name, stored, entry_format)
        entries, byte_count = entries + count, byte_count + size
        if count == 0 or first <= log.positions.first:
            break
        last = log.positions.previous_position(first)
    return ResendWindow(stored, entry_format)


def _back(log: ReadableLog, last: Position, steps: int) -> Position:
    """The position ``steps`` entries before ``last``, or the log's first."""
    position = last
    for _ in range(steps):
        if position <= log.positions.first:
            return log.positions.first
        position = log.positions.previous_position(position)
    return position


async def _collect(
    log: ReadableLog,
    first: Position,
    last: Position,
    producer_name: str,
    stored: dict[Fingerprint, Position],
    entry_format: EntryFormat,
) -> tuple[int, int]:
    """Add the producer's frames in [first, last]; returns entries and bytes looked at."""
    count = byte_count = 0
    position = first
    while position <= last:
        entries = await log.read(position, STEP_ENTRIES, BYTES_MAX // 4)
        if not entries:
            break
        for entry in entries:
            position = Position(entry.ledger_id, entry.entry_id)
            if position > last:
                break
            count += 1
            byte_count += len(entry.data)
            key = _frame_of(entry.payload, producer_name, entry_format)
            if key is not None:
                stored[key] = position
        position = log.positions.next_position(position)
    return count, byte_count


def _frame_of(
    payload: memoryview, producer_name: str, entry_format: EntryFormat
) -> Fingerprint | None:
    try:
        return entry_format.sent_by(payload, producer_name)
    except ProtocolError:
        return None  # stored by something that is no producer of ours: never a repeat
