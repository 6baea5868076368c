"""How far each producer's messages are in a topic's log, and what that says of a send. Pure.

A *mark* says of one producer name: all with sequence ids up to ``stored`` is confirmed, and all up
to ``pushed`` was appended. A send holds the messages ``first`` to ``last``:

===============  ==========================  ======================================================
verdict          when                        what holds
===============  ==========================  ======================================================
NEW              pushed < first              none of it was appended: it is to be stored
REPEAT           last <= stored              all of it is stored
IN_DOUBT         last <= pushed              all of it was appended, and may yet fail
TORN             first <= pushed < last      a part was appended, and a part was not
===============  ==========================  ======================================================

Ids of a producer rise; one that comes later with a lower id is a repeat, whatever it says. Ids that
are left out are none that will come.

A message in chunks has one id, which each of its chunks bears: it is there with its last chunk. So
a chunk before the last moves nothing.

Rules for what is remembered:

* Marks move when an append is confirmed, in the order of the log, so all marks together say what
  the log holds up to the last append that was.
* ``producers_max`` of them are remembered; the one that stored nothing for the longest time gives
  way. Whoever is connected with a mark comes back in with its next message.
* Who is not connected, and has stored nothing for ``inactive_ms`` by a clock that nobody sets, is
  forgotten: by the wall clock, a day ahead forgot whoever was just reconnecting. So that time
  begins anew with each owner of the topic.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Container
from enum import Enum
from typing import Final

from magnetar.model.errors import ProtocolError

PRODUCERS_MAX: Final = 10_000
INACTIVE_MS: Final = 6 * 3_600_000
NOTHING: Final = -(1 << 63)
"""Before every sequence id."""

_HEAD: Final = struct.Struct(">BI")
_MARK: Final = struct.Struct(">Hqq")
_VERSION: Final = 1


class SendVerdict(Enum):
    NEW = "new"
    REPEAT = "repeat"
    IN_DOUBT = "in doubt"
    TORN = "torn"


class SequenceMark:
    """Of one producer; see the module's text. ``used_ms``: when it last stored something, left or
    was read of a note, by the clock that ``SequenceMarks`` is told."""

    __slots__ = ("name", "pushed", "stored", "used_ms")

    def __init__(self, name: str, stored: int = NOTHING) -> None:
        self.name = name
        self.stored = self.pushed = stored
        self.used_ms = 0

    def judge(self, first: int, last: int) -> SendVerdict:
        """What is to be done with a send. One that is NEW is to be ``push``ed."""
        if first > self.pushed:
            return SendVerdict.NEW
        if last <= self.stored:
            return SendVerdict.REPEAT
        return SendVerdict.IN_DOUBT if last <= self.pushed else SendVerdict.TORN

    def push(self, last: int) -> None:
        """What ends with ``last`` is appended."""
        assert last > self.pushed, "it is new"
        self.pushed = last

    def confirm(self, last: int) -> None:
        """All up to ``last`` that was appended is confirmed."""
        if last > self.stored:
            self.stored = last
        if last > self.pushed:
            self.pushed = last


class SequenceMarks:
    """Those of one topic's producers, by name."""

    def __init__(self, producers_max: int = PRODUCERS_MAX, inactive_ms: int = INACTIVE_MS) -> None:
        self._producers_max = producers_max
        self._inactive_ms = inactive_ms
        self._marks: OrderedDict[str, SequenceMark] = OrderedDict()
        """The one that was used last is the last."""

    def __len__(self) -> int:
        return len(self._marks)

    def of(self, name: str) -> SequenceMark:
        """That producer's; it is remembered once it says something (``used``)."""
        found = self._marks.get(name)
        return SequenceMark(name) if found is None else found

    def used(self, mark: SequenceMark, now_ms: int) -> None:
        """The producer has stored something, or leaves; what it has stored is remembered."""
        mark.used_ms = now_ms
        if mark.stored == NOTHING:
            return
        marks = self._marks
        marks[mark.name] = mark
        marks.move_to_end(mark.name)
        if len(marks) > self._producers_max:
            marks.popitem(last=False)

    def found(self, name: str, last: int, now_ms: int) -> None:
        """The log holds what ends with ``last`` of that producer."""
        mark = self.of(name)
        mark.confirm(last)
        self.used(mark, now_ms)

    def forget(self, now_ms: int, connected: Container[str]) -> int:
        """Those that were not used for so long, unless they are connected; how many went."""
        went = []
        for name, mark in self._marks.items():
            if now_ms - mark.used_ms < self._inactive_ms:
                break  # those after it were used later
            if name not in connected:
                went.append(name)
        for name in went:
            del self._marks[name]
        return len(went)

    # -- storing ------------------------------------------------------------------------------

    def encode(self, date_ms: int) -> bytes:
        """Big-endian: version 1 | count 4, and per producer, the one that was used last at the end:
        bytes of its name 2 | stored 8 | date 8 | name, UTF-8. The date (milliseconds since 1970) is
        that of the note. Releases that went by the wall clock wrote when the producer was used, and
        counted from it."""
        parts = [_HEAD.pack(_VERSION, len(self._marks))]
        for mark in self._marks.values():
            name = mark.name.encode()
            parts += (_MARK.pack(len(name), mark.stored, date_ms), name)
        return b"".join(parts)

    def decode(self, data: bytes, now_ms: int) -> None:
        """Remember what ``encode`` gave, behind what is remembered, as used now; nothing of empty
        ``data``. Raises ``ProtocolError``."""
        if not data:
            return
        try:
            at = self._decode(data, now_ms)
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"{len(data)} bytes are no sequence ids: {error}") from error
        if at != len(data):
            raise ProtocolError(f"sequence ids with {len(data) - at} bytes after their end")

    def _decode(self, data: bytes, now_ms: int) -> int:
        version, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ProtocolError(f"sequence ids of version {version}; version {_VERSION} is known")
        at = _HEAD.size
        for _ in range(count):
            size, stored, _ = _MARK.unpack_from(data, at)
            at += _MARK.size
            if at + size > len(data):
                raise ProtocolError(f"a producer's name of {size} bytes passes the end")
            name = data[at : at + size].decode()
            at += size
            self.used(SequenceMark(name, stored), now_ms)
        return at
