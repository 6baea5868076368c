"""Entries that were read from entry logs, as the reads brought them: verified, and not copied.

A read of a log is one piece of it, records one behind the other. What leaves the bookie has the
same order and one field less, so that an answer is made of the piece by one copy, or of views of
it. Whoever wants single entries has each copied when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, overload

from magnetar.bookie.storage.entry_log_format import RECORD_HEADER_BYTES
from magnetar.env.files.disk import Buffer
from magnetar.speedups import frame_records, join_entries, split_entries

SIZE_BYTES: Final = 4
_GAP_BYTES: Final = RECORD_HEADER_BYTES - SIZE_BYTES
VIEW_BYTES_MIN: Final = 64 << 10
"""Entries that are larger on average are sent from where they lie: parts cost less than a copy."""


class RecordRun(Sequence[bytes]):
    """Consecutive entries of a ledger. ``bounds`` is of ``speedups.check_records``."""

    __slots__ = ("_bounds", "_data", "_first", "_stop")

    def __init__(
        self, data: bytes, bounds: Sequence[int], first: int = 0, stop: int | None = None
    ) -> None:
        self._data = data
        self._bounds = bounds
        self._first = first
        self._stop = len(bounds) - 1 if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._first

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> RecordRun: ...

    def __getitem__(self, place: int | slice) -> bytes | RecordRun:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            assert step == 1, "a run has no holes"
            if stop - start == len(self):
                return self
            first = self._first + start
            return RecordRun(self._data, self._bounds, first, max(first, self._first + stop))
        at = self._first + range(len(self))[place]
        return self._data[self._bounds[at] + RECORD_HEADER_BYTES : self._bounds[at + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.entries())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.entries() == list(other)

    def entries(self) -> list[bytes]:
        """All of them, copied."""
        return split_entries(memoryview(self._data), *self._ends, _GAP_BYTES)[0]

    @property
    def _ends(self) -> tuple[int, int]:
        return self._bounds[self._first], self._bounds[self._stop]

    @property
    def byte_count(self) -> int:
        """Of the entries."""
        start, stop = self._ends
        return stop - start - RECORD_HEADER_BYTES * len(self)

    @property
    def held_bytes(self) -> int:
        """What it keeps in memory."""
        return len(self._data)

    def begin_of(self, place: int) -> int:
        """Where an entry's record begins, from the first one's on."""
        return self._bounds[self._first + place] - self._bounds[self._first]

    def size_of(self, place: int) -> int:
        """The bytes of one entry."""
        at = self._first + range(len(self))[place]
        return self._bounds[at + 1] - self._bounds[at] - RECORD_HEADER_BYTES

    def count_within(self, room: int, more_bytes: int) -> int:
        """How many, from the first on, take at most ``room`` bytes, ``more_bytes`` more each than
        their own."""
        bounds, first = self._bounds, self._first
        start, each = bounds[first], RECORD_HEADER_BYTES - more_bytes

        def taken(count: int) -> int:
            return bounds[first + count] - start - each * count

        return bisect_right(range(len(self) + 1), room, lo=1, key=taken) - 1

    def framed(self, before: int) -> list[Buffer]:
        """The entries, each behind its size; the first part is a ``bytearray`` that begins with
        ``before`` zeros."""
        start, stop = self._ends
        count = len(self)
        if not count or stop - start < VIEW_BYTES_MIN * count:
            return [frame_records(self._data, start, stop, before)]
        view, bounds = memoryview(self._data), self._bounds
        parts: list[Buffer] = [bytearray(before) + view[start : start + SIZE_BYTES]]
        for at in range(self._first, self._stop):
            # With the size of the next one: that follows in the piece, too.
            end = bounds[at + 1] + (SIZE_BYTES if at + 1 < self._stop else 0)
            parts.append(view[bounds[at] + RECORD_HEADER_BYTES : end])
        return parts


NO_ENTRIES: Final = RecordRun(b"", (0,))


class EntryRuns(Sequence[bytes]):
    """Runs of entries, one behind the other: from entry logs, and from memory."""

    def __init__(self, *runs: Sequence[bytes]) -> None:
        self._runs = list(runs)
        self._count = sum(map(len, runs))

    def append(self, run: Sequence[bytes]) -> None:
        self._runs.append(run)
        self._count += len(run)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        return self.entries()[place]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.entries())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.entries() == list(other)

    def entries(self) -> list[bytes]:
        """All of them; those of entry logs are copied."""
        found: list[bytes] = []
        for run in self._runs:
            found += run
        return found

    def framed(self, room: int, before: int) -> list[Buffer]:
        """The entries, each behind its size, as many as take ``room`` bytes, at least one; the
        first part is a ``bytearray`` that begins with ``before`` zeros."""
        parts: list[Buffer] = []
        for run in self._runs or [()]:
            count = count_within(run, room, SIZE_BYTES)
            if not count and parts:
                break
            some = run if count == len(run) else run[: max(1, count)]
            parts += _framed(some, 0 if parts else before)
            room -= size_of(some) + SIZE_BYTES * len(some)
            if len(some) < len(run):
                break
        return parts


def size_of(run: Sequence[bytes]) -> int:
    """The bytes of its entries."""
    return run.byte_count if isinstance(run, RecordRun) else sum(map(len, run))


def count_within(run: Sequence[bytes], room: int, more_bytes: int) -> int:
    """As ``RecordRun.count_within``, of any run."""
    if size_of(run) + more_bytes * len(run) <= room:
        return len(run)
    if isinstance(run, RecordRun):
        return run.count_within(room, more_bytes)
    count = 0
    for entry in run:
        room -= len(entry) + more_bytes
        if room < 0:
            break
        count += 1
    return count


def _framed(run: Sequence[bytes], before: int) -> list[Buffer]:
    if isinstance(run, RecordRun):
        return run.framed(before)
    if sum(map(len, run)) < VIEW_BYTES_MIN * len(run):
        return [join_entries(run, before)]
    parts: list[Buffer] = [bytearray(before)]
    for entry in run:
        parts += (len(entry).to_bytes(SIZE_BYTES, "big"), entry)
    return parts
