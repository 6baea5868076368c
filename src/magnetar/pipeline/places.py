"""Places in a topic partition: the *next* message to read, exclusive of all that was read.

A place is (ledger, entry, batch index). It names a point between messages, not a message, so it
stays right when the log is trimmed below it and when a ledger rolls: reading goes on with the
first message at or after it.

After an unbatched message ``L:E``, and after the last of a batch, the place is ``(L, E + 1, 0)``;
after another message ``i`` of a batch it is ``(L, E, i + 1)``. Where it is not known whether that
was the last one, ``(L, E, i + 1)`` is right as well: the next message, in the next entry, is after
it. Checkpoints of older releases, and people, write it so. Places order as tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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

NO_OFFSETS = -1


class Point(NamedTuple):
    """A place, and how many messages of the log come before it: the offset of the next one, as
    messages of a log are numbered from 0 on. ``NO_OFFSETS`` if that is not known."""

    place: Place
    offset: int = NO_OFFSETS


LEDGER_IDS: Final = 1 << 31
"""Of what is called a ledger where ids are offsets (``log.partition.serving.batch_places``)."""


def id_offset(place: Place) -> int:
    """The offset that the place's entry has as its id, in a log where ids are offsets."""
    return max(0, place.ledger_id) * LEDGER_IDS + max(0, place.entry_id)


def after(ledger_id: int, entry_id: int, batch_index: int) -> Place:
    """The place right after a message."""
    if batch_index == UNBATCHED:
        return Place(ledger_id, entry_id + 1, 0)
    return Place(ledger_id, entry_id, batch_index + 1)


def after_entry(ledger_id: int, entry_id: int) -> Place:
    """The place after all messages of an entry; ``START`` for the entry before every one."""
    return Place(ledger_id, entry_id + 1, 0) if ledger_id >= 0 else START


ID_MAX: Final = 2**63 - 1
LEAST: Final = -1
"""Of each of a place's numbers, as ids of messages are written."""
BATCH_INDEX_MAX: Final = 2**31 - 1


def parse_place(text: str) -> Place:
    """``"ledger:entry"`` or ``"ledger:entry:batch"``, as ``str`` of a place writes it; or as the id
    of a message that is an entry of its own, whose batch index is -1."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise ConfigError(f"position {text!r} is not 'ledger:entry' or 'ledger:entry:batch'")
    ledger_id, entry_id, index = (*numbers, 0)[:3]
    if min(numbers) < LEAST or max(ledger_id, entry_id) > ID_MAX or index > BATCH_INDEX_MAX:
        raise ConfigError(f"position {text!r} is none: no message has such an id")
    return Place(ledger_id, entry_id, max(0, index))  # -1 is no place within an entry


@dataclass(frozen=True)
class Offset:
    """What a checkpoint holds: a point per topic partition, and of which log it is.

    ``created_ms``: when the log of a partition was made (milliseconds since 1970), which tells a
    topic from one made anew under its name. A partition is absent there when its broker does not
    say, and all are in checkpoints of older releases. ``lost``: how many messages of a partition
    were gone before the query came to read them, in all its life (``failOnDataLoss=false``); where
    only entries can be counted, those. ``initial``: the offset of a query that has not begun (see
    ``source.py``).
    """

    points: Mapping[str, Point]
    created_ms: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    initial: bool = False

    @property
    def places(self) -> dict[str, Place]:
        return {name: point.place for name, point in self.points.items()}


def to_offset(offset: Offset) -> dict[str, object]:
    """The JSON form that Spark keeps, sorted by partition. What is not known is left out."""
    names = sorted(offset.points)
    form: dict[str, object] = {"places": {name: str(offset.points[name].place) for name in names}}
    offsets = {name: offset.points[name].offset for name in names}
    known = {
        "offsets": {name: number for name, number in offsets.items() if number != NO_OFFSETS},
        "created_ms": {
            name: offset.created_ms[name] for name in names if offset.created_ms.get(name)
        },
        "lost": {name: offset.lost[name] for name in sorted(offset.lost) if offset.lost[name]},
    }
    form |= {name: values for name, values in known.items() if values}
    if offset.initial:
        form["initial"] = True
    return form


def from_offset(form: object) -> Offset:
    """The inverse of ``to_offset``; raises ``ConfigError`` for what is no offset of ours."""
    try:
        return _offset_of(form)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the checkpoint holds an offset that is not this source's: {form!r}; give the query "
            "a checkpointLocation of its own"
        ) from error


def _offset_of(form: Any) -> Offset:
    offsets, created_ms, lost = (
        {str(name): int(value) for name, value in form.get(part, {}).items()}
        for part in ("offsets", "created_ms", "lost")
    )
    points = {
        str(name): Point(parse_place(str(text)), offsets.get(str(name), NO_OFFSETS))
        for name, text in form["places"].items()
    }
    return Offset(points, created_ms, lost, bool(form.get("initial")))
