"""Entries out of a partition's files, and the list of its batches. Blocking: jobs of its lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyroaring import BitMap

from magnetar.env.files.disk import Disk
from magnetar.log.partition.batch_header import (
    HEADER_BYTES,
    BatchHead,
    Buffer,
    has_its_checksum,
    implausible,
    read_header,
)
from magnetar.log.partition.checkpoint_files import read_file, replace_file
from magnetar.log.partition.index_files import RELATIVE_MAX
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.segment import STARTS, Segment
from magnetar.log.partition.serving.batch_places import BatchPlaces, decode_starts, encode_starts
from magnetar.log.partition.serving.envelopes import ENVELOPE, enclosed
from magnetar.model.entry import Entry
from magnetar.model.errors import CorruptBatchError, MetadataFormatError


class HeldEntries(NamedTuple):
    """A log as it lies in its files: its entries, and its ends. ``uncommitted``: (first, next)
    offset of batches that are in the log and not in ``places``, in order."""

    places: BatchPlaces
    uncommitted: list[tuple[int, int]]


def entry_of(places: BatchPlaces, data: memoryview, header: BatchHead) -> Entry:
    """``data``: the batch, stamped. The entry is a view of it."""
    ledger_id, entry_id = places.position(header.base_offset)
    if header.attributes & ENVELOPE:
        start, end = enclosed(data)
        return Entry(ledger_id, entry_id, data[:end], start)
    return Entry(ledger_id, entry_id, data, 0)


def read_entries(
    source: LocalLog,
    places: BatchPlaces,
    offset: int,
    end_offset: int,
    max_entries: int,
    max_bytes: int,
) -> list[Entry]:
    """One read of the file, about ``max_bytes``; entries from the one that begins at ``offset`` on,
    at least one if there is one. What is damaged is never among them: clients of Pulsar discard
    it, and say so to themselves alone. Raises as ``LocalLog.range_from``."""
    found = source.range_from(offset, end_offset, max_bytes)
    if found is None:
        return []
    view = memoryview(found.read())
    entries: list[Entry] = []
    at, expected = 0, offset
    while len(view) - at >= HEADER_BYTES and len(entries) < max_entries:
        header = read_header(view, at)
        wrong = implausible(header)
        if wrong is None:
            if header.byte_count > len(view) - at:
                break
            if header.base_offset < offset:
                at += header.byte_count
                continue
            wrong = _misplaced(source, places, expected, header)
            if wrong is None and not has_its_checksum(view, at, header):
                wrong = f"offset {header.base_offset} fails its checksum"
        if wrong is not None:
            if entries:  # they come first, and the next read is told
                break
            place = found.position + at
            raise CorruptBatchError(f"{found.segment.file.path}: byte {place}: {wrong}")
        entries.append(entry_of(places, view[at : at + header.byte_count], header))
        expected = header.next_offset
        at += header.byte_count
    return entries


def _misplaced(
    source: LocalLog, places: BatchPlaces, expected: int, header: BatchHead
) -> str | None:
    """No checksum is over a batch's offset; whoever believed one that has changed would pass over
    the records that lie there. ``expected``: where the next entry begins, or after it."""
    if not places.begins(header.base_offset):
        return f"a batch of offset {header.base_offset}, where none begins"
    missing = places.following(expected)
    if source.swapped_end <= missing < header.base_offset:
        return f"offset {header.base_offset}, where {missing} belongs"
    return None


def find_entries(source: LocalLog, disk: Disk, high_watermark: int, span: int) -> HeldEntries:
    """All that the log holds. Raises ``OSError``, ``CorruptBatchError``."""
    places = BatchPlaces(source.first_base, source.first_base, span)
    uncommitted: list[tuple[int, int]] = []
    bases = [*(segment.base_offset for segment in source.segments[1:]), None]
    for segment, following in zip(source.segments, bases, strict=True):
        if following is not None and following <= high_watermark:
            starts = _stored_starts(segment, disk, following)
            places.add_all(segment.base_offset + each for each in starts)
            places.end = max(places.end, min(segment.next_offset, following))
            continue
        for header in _placed(segment, following):
            if header.next_offset <= high_watermark:
                places.add_all((header.base_offset,))
                places.end = header.next_offset
            else:
                uncommitted.append((header.base_offset, header.next_offset))
    places.remove(0, source.first_base)
    places.end = max(places.end, places.start)
    places.hold((first for first, _ in uncommitted), source.log_end)
    places.pack()
    return HeldEntries(places, uncommitted)


def _stored_starts(segment: Segment, disk: Disk, following: int) -> BitMap:
    """From beside the segment; made there if it is missing, or of another state of it."""
    path = segment.path(STARTS)
    data: Buffer = read_file(disk, path) or b""
    try:
        return decode_starts(bytes(data), segment.byte_count, segment.next_offset, path.name)
    except MetadataFormatError:
        heads = _placed(segment, following)
        starts = BitMap(header.base_offset - segment.base_offset for header in heads)
        starts.run_optimize()
        replace_file(disk, path, encode_starts(starts, segment.byte_count, segment.next_offset))
        return starts


def _placed(segment: Segment, following: int | None) -> Iterator[BatchHead]:
    """The batches where they must lie: one whose offset cannot be true follows the one before it.
    (Whoever reads it is told; the others are to be found.) ``following``: where the next segment
    begins. Raises ``CorruptBatchError``, ``OSError``."""
    heads = [header for _, header in segment.headers()]
    most = segment.base_offset + RELATIVE_MAX if following is None else following
    bounds = [*(min(header.base_offset, most) for header in heads[1:]), most][: len(heads)]
    end = segment.base_offset
    for header, bound in zip(heads, bounds, strict=True):
        count = header.next_offset - header.base_offset
        behind = header.next_offset > bound and end + count <= bound
        base = end if header.base_offset < end or behind else header.base_offset
        yield header._replace(base_offset=base)
        end = base + count
