"""Which entries of a ledger a bookie holds, condensed: the body of a "list of entries" answer.

Entries that follow each other form a *sequence*; sequences of the same size whose starts lie the
same period apart form a *group*. Layout (big-endian)::

    version 4 (0) | number of groups 4 | 0 * 56
    (first sequence's start 8 | last sequence's start 8 | sequence size 4 | period 4) per group

A group of one sequence has period 0. Striping makes long periodic runs, so a ledger of millions
of entries takes a few groups.

Source: BookKeeper's ``AvailabilityOfEntriesOfLedger`` (4.18).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from magnetar.model.errors import ProtocolError

HEADER_BYTES = 64
_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_INT_MAX = 2**31 - 1


class Group(NamedTuple):
    first_start: int
    last_start: int
    size: int
    period: int


class Condenser:
    """Condenses ids piece by piece, as they are found: a ledger's ids need not be in memory
    together."""

    def __init__(self) -> None:
        self._start, self._size = -1, 0
        """The sequence that may go on."""
        self._group: Group | None = None
        """The group that may go on, before that sequence."""
        self._groups: list[Group] = []

    def add(self, entry_ids: Sequence[int]) -> None:
        """More ids, which ascend, and none is below one that was added before."""
        if not entry_ids:
            return
        start, size, more = self._start, self._size, len(entry_ids)
        goes_on = size and entry_ids[0] == start + size and entry_ids[-1] == start + size + more - 1
        if goes_on and size + more <= _INT_MAX:  # nothing is missing, as mostly
            self._size += more
            return
        for entry_id in entry_ids:
            if size and start <= entry_id < start + size:
                continue
            if size and entry_id == start + size and size < _INT_MAX:
                size += 1
                continue
            self._end_sequence(start, size)
            start, size = entry_id, 1
        self._start, self._size = start, size

    def _end_sequence(self, start: int, size: int) -> None:
        if not size:
            return
        group = self._group
        if group is not None:
            period = start - group.last_start
            fits = group.period == period or (group.period == 0 and period <= _INT_MAX)
            if size == group.size and fits:
                self._group = Group(group.first_start, start, size, period)
                return
            self._groups.append(group)
        self._group = Group(start, start, size, 0)

    def groups(self) -> list[Group]:
        """What was added; nothing is added after it."""
        self._end_sequence(self._start, self._size)
        self._size = 0
        if self._group is not None:
            self._groups.append(self._group)
            self._group = None
        return self._groups


def condense(entry_ids: Sequence[int]) -> list[Group]:
    """``entry_ids`` ascend."""
    condenser = Condenser()
    condenser.add(entry_ids)
    return condenser.groups()


def encode(groups: Collection[Group]) -> bytes:
    """The body of an answer."""
    return _HEADER.pack(0, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)


def decode(body: bytes) -> list[Group]:
    """The groups in ``body``. Raises ``ProtocolError``."""
    if len(body) < HEADER_BYTES:
        raise ProtocolError(f"a list of entries of {len(body)} bytes has no header")
    version, count = _HEADER.unpack_from(body)
    if version != 0 or not 0 <= count <= (len(body) - HEADER_BYTES) // _GROUP.size:
        raise ProtocolError(
            f"a list of entries of version {version} with {count} groups in {len(body)} bytes"
        )
    groups = []
    for i in range(count):
        group = Group(*_GROUP.unpack_from(body, HEADER_BYTES + i * _GROUP.size))
        alone = group.first_start == group.last_start
        if not 0 <= group.first_start <= group.last_start or group.size < 1:
            raise ProtocolError(f"a list of entries with an impossible group: {group}")
        if not alone and (
            group.period < 1 or (group.last_start - group.first_start) % group.period
        ):
            raise ProtocolError(f"a list of entries with an impossible period: {group}")
        groups.append(group)
    return groups


def holds(groups: Iterable[Group], entry_id: int) -> bool:
    """Whether ``entry_id`` is among the entries that ``groups`` stand for."""
    for first_start, last_start, size, period in groups:
        if not first_start <= entry_id < last_start + size:
            continue
        offset = entry_id - first_start
        if (offset % period if period else offset) < size:
            return True
    return False


def held_runs(groups: Iterable[Group], within: range) -> list[range]:
    """What ``groups`` stand for ``within`` a range, as runs that ascend and do not touch. Takes
    time for the runs there, not for what lies before."""
    found: list[range] = []
    for first_start, last_start, size, period in groups:
        if last_start + size <= within.start or first_start >= within.stop:
            continue
        step = period or 1
        skipped = max(0, (within.start - size - first_start) // step + 1)
        start = min(first_start + skipped * step, last_start)
        while start <= last_start and start < within.stop:
            run = range(max(start, within.start), min(start + size, within.stop))
            if run:
                found.append(run)
            start += step
    return _merged(found)


def _merged(runs: list[range]) -> list[range]:
    merged: list[range] = []
    for run in sorted(runs, key=lambda each: each.start):
        if merged and run.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, run.stop))
        else:
            merged.append(run)
    return merged
