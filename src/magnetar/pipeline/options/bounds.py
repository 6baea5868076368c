"""Where a read starts or ends, as options say it. Pure.

A *bound* says for each partition a *spot*: an end of the log, a place, the number of a message, or
a time. The forms that options take:

| option | value |
|---|---|
| ``startingOffsets``, ``endingOffsets`` | ``earliest`` (a start only), ``latest``, or JSON |
| ``startingTimestamp``, ``endingTimestamp`` | milliseconds since 1970, for every partition |
| ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp`` | JSON with milliseconds |

JSON is an object from topic, or topic partition, to a spot or to an object from partition number to
a spot: ``{"t": {"0": 23, "1": -2}, "u": "3:4:5"}``. A spot is ``"ledger:entry:batch"`` (the next
message to read), a message's offset, ``-2`` (the earliest), ``-1`` (the latest). The numbers are
those of Kafka's source; a topic without partitions has partition 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from magnetar.model.errors import ConfigError
from magnetar.pipeline.option_values import NUMBER_MAX
from magnetar.pipeline.places import Place, parse_place
from magnetar.pipeline.topic_names import full_topic, partition_of, topic_of

EARLIEST, LATEST = "earliest", "latest"
EARLIEST_NUMBER, LATEST_NUMBER = -2, -1


class AtOffset(NamedTuple):
    """Before the message of that number."""

    offset: int


class AtTime(NamedTuple):
    """Before the first entry that was published then or later, milliseconds since 1970."""

    time_ms: int


Spot: TypeAlias = str | AtOffset | AtTime | Place
"""``EARLIEST``, ``LATEST``, or one of these."""


@dataclass(frozen=True)
class Bound:
    """``default`` for every partition that ``given`` does not name. ``option``: who says so."""

    option: str
    default: Spot
    given: Mapping[str, Spot] = field(default_factory=dict)

    def at(self, partition: str) -> Spot:
        """The spot of a partition: as its name, its topic's name, or, of a topic without
        partitions, the topic's partition 0 was given one."""
        for name in (partition, topic_of(partition), partition_of(partition, 0)):
            if name in self.given:
                return self.given[name]
        return self.default

    def without(self, partitions: Iterable[str]) -> list[str]:
        """The names that were given and are none of ``partitions`` in any of these ways."""
        known = set()
        for name in partitions:
            known |= {name, topic_of(name), partition_of(name, 0)}
        return sorted(set(self.given) - known)


def parse_offsets(option: str, text: str, default: str) -> Bound:
    """The value of ``startingOffsets`` or ``endingOffsets``."""
    ends = (EARLIEST, LATEST) if default == EARLIEST else (LATEST,)
    if text.lower() in ends:
        return Bound(option, text.lower())
    form = (
        f"{', '.join(ends)}, or JSON from topic partition to 'ledger:entry:batch' (the next "
        "message to read) or to a message's offset"
    )
    if text.lower() == EARLIEST:
        raise ConfigError(f"option {option!r} takes {form}, not {text!r}: nothing would be read")
    spots = {name: _spot(option, value) for name, value in _by_partition(option, text, form)}
    if default == LATEST and EARLIEST in spots.values():
        raise ConfigError(f"option {option!r}: -2 (the earliest) is no end of a read")
    return Bound(option, default, spots)


def parse_times(option: str, text: str, default: str) -> Bound:
    """The value of ``startingOffsetsByTimestamp`` or ``endingOffsetsByTimestamp``."""
    form = "JSON from topic partition to milliseconds since 1970"
    spots: dict[str, Spot] = {}
    for name, value in _by_partition(option, text, form):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
            raise ConfigError(f"option {option!r} takes {form}, not {value!r} for {name}")
        spots[name] = AtTime(value)
    return Bound(option, default, spots)


def _by_partition(option: str, text: str, form: str) -> list[tuple[str, object]]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"option {option!r} takes {form}; not {text!r}")
    found: list[tuple[str, object]] = []
    for topic, inner in value.items():
        if not isinstance(inner, dict):
            found.append((full_topic(topic), inner))
            continue
        for number, spot in inner.items():
            if not (number.isascii() and number.isdigit()):
                raise ConfigError(f"option {option!r}: {number!r} of {topic!r} is no partition")
            found.append((partition_of(full_topic(topic), int(number)), spot))
    return found


def _spot(option: str, value: object) -> Spot:
    if isinstance(value, str):
        return value if value in (EARLIEST, LATEST) else parse_place(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST_NUMBER:
        raise ConfigError(
            f"option {option!r}: {value!r} is neither 'ledger:entry:batch' nor a message's offset, "
            "-1 (the latest) or -2 (the earliest)"
        )
    return {EARLIEST_NUMBER: EARLIEST, LATEST_NUMBER: LATEST}.get(value) or AtOffset(value)
