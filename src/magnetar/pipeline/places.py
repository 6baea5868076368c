"""Places in a topic partition: the *next* message to read, exclusive of all that was read.

A place is (ledger, entry, batch index). It names a point between messages, not a message, so it
stays right when the log is trimmed below it and when a ledger rolls: reading goes on with the
first message at or after it.

After an unbatched message ``L:E`` the place is ``(L, E + 1, 0)``; after message ``i`` of a batch it
is ``(L, E, i + 1)`` (whether that was the batch's last need not be known: the next message, in the
next entry, is after the place as well). Places order as tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from magnetar.model.errors import ConfigError

UNBATCHED = -1
"""The batch index of a message that is an entry of its own."""


class Place(NamedTuple):
    ledger_id: int
    entry_id: int
    batch_index: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.batch_index}"


START = Place(-1, -1, 0)
"""Before every message."""


def after(ledger_id: int, entry_id: int, batch_index: int) -> Place:
    """The place right after a message."""
    if batch_index == UNBATCHED:
        return Place(ledger_id, entry_id + 1, 0)
    return Place(ledger_id, entry_id, batch_index + 1)


def parse_place(text: str) -> Place:
    """``"ledger:entry"`` or ``"ledger:entry:batch"``, as ``str`` of a place writes it."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise ConfigError(f"position {text!r} is not 'ledger:entry' or 'ledger:entry:batch'")
    return Place(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0)


def to_offset(places: Mapping[str, Place], *, initial: bool = False) -> dict[str, object]:
    """The JSON form that Spark keeps in its checkpoint: topic partition -> place, sorted."""
    offset: dict[str, object] = {"places": {name: str(places[name]) for name in sorted(places)}}
    if initial:
        offset["initial"] = True
    return offset


def from_offset(offset: Mapping[str, object]) -> dict[str, Place]:
    """The inverse of ``to_offset``; raises ``ConfigError`` for what is no offset of ours."""
    places = offset.get("places")
    if not isinstance(places, Mapping):
        raise ConfigError(f"the checkpoint holds an offset that is not this source's: {offset!r}")
    return {str(name): parse_place(str(text)) for name, text in places.items()}
