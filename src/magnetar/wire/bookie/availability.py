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
from collections.abc import Iterable, Iterator
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


def encode(entry_ids: Iterable[int]) -> bytes:
    """The condensed form of ``entry_ids``, which ascend."""
    groups = list(_groups(_sequences(entry_ids)))
    return _HEADER.pack(0, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)


def _sequences(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(start, size) of each run of consecutive ids."""
    start, size = -1, 0
    for entry_id in entry_ids:
        if size and start <= entry_id < start + size:
            continue
        if size and entry_id == start + size and size < _INT_MAX:
            size += 1
            continue
        if size:
            yield start, size
        start, size = entry_id, 1
    if size:
        yield start, size


def _groups(sequences: Iterable[tuple[int, int]]) -> Iterator[Group]:
    group: Group | None = None
    for start, size in sequences:
        if group is None:
            group = Group(start, start, size, 0)
            continue
        period = start - group.last_start
        fits = group.period == period or (group.period == 0 and period <= _INT_MAX)
        if size == group.size and fits:
            group = Group(group.first_start, start, size, period)
        else:
            yield group
            group = Group(start, start, size, 0)
    if group is not None:
        yield group


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
