"""What a simulated disk holds: bytes of files and names in directories, durable or not yet.

Rules: see ``sim.disk``. Sectors that cannot be read stay so until they are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.env.files.disk import BLOCK_BYTES, SECTOR_BYTES


class Write:
    """``through_s``: when it is on the platter; None while nobody has asked for that. ``ends``: the
    file ends at ``offset``, and there is no data."""

    __slots__ = ("at_s", "data", "ends", "offset", "through_s")

    def __init__(self, at_s: float, offset: int, data: bytes, ends: bool = False) -> None:
        self.at_s = at_s
        self.offset = offset
        self.data = data
        self.ends = ends
        self.through_s: float | None = None

    def put(self, data: bytearray) -> None:
        """Do it to ``data``."""
        if self.ends:
            del data[self.offset :]
        put(data, self.offset, self.data)

    def durable(self, now_s: float) -> bool:
        return self.through_s is not None and self.through_s <= now_s


class Inode:
    """A file's bytes: as its readers see them, as they are on the platter, and what lies
    between."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[Write] = []
        self.holes: dict[int, None] = {}
        """Blocks that were given back, by number."""
        self.bad_sectors: dict[int, None] = {}
        """That cannot be read, by number."""

    @property
    def stored_bytes(self) -> int:
        return len(self.data) - BLOCK_BYTES * len(self.holes)

    def blocks(self, offset: int, byte_count: int) -> range:
        """That are touched."""
        return range(offset // BLOCK_BYTES, -(-(offset + byte_count) // BLOCK_BYTES))

    def readable(self, offset: int, byte_count: int) -> bool:
        return not self._bad(offset, byte_count)

    def _bad(self, offset: int, byte_count: int) -> list[int]:
        """The bad sectors that are touched."""
        end = offset + byte_count
        return [
            sector
            for sector in self.bad_sectors
            if offset < (sector + 1) * SECTOR_BYTES and sector * SECTOR_BYTES < end
        ]

    def punch(self, at_s: float, offset: int, byte_count: int) -> None:
        byte_count = min(byte_count, len(self.data) - offset)
        if byte_count > 0:
            self.write(at_s, offset, bytes(byte_count))
            first = -(-offset // BLOCK_BYTES)
            self.holes.update(dict.fromkeys(range(first, (offset + byte_count) // BLOCK_BYTES)))

    def _is_zero(self, block: int) -> bool:
        start = block * BLOCK_BYTES
        return self.data[start : start + BLOCK_BYTES] == bytes(BLOCK_BYTES)

    def write(self, at_s: float, offset: int, data: bytes) -> Write:
        put(self.data, offset, data)
        for block in self.blocks(offset, len(data)) if self.holes else ():
            self.holes.pop(block, None)
        for sector in self._bad(offset, len(data)):
            del self.bad_sectors[sector]
        write = Write(at_s, offset, data)
        self.pending.append(write)
        return write

    def truncate(self, at_s: float, byte_count: int) -> None:
        write = Write(at_s, byte_count, b"", ends=True)
        write.put(self.data)
        self.holes = {block: None for block in self.holes if block * BLOCK_BYTES < byte_count}
        self.pending.append(write)

    def sync(self, through_s: float) -> None:
        for write in self.pending:
            if write.through_s is None:
                write.through_s = through_s

    def settle(self, now_s: float) -> None:
        """Take into ``durable`` what is on the platter by now and has nothing open before it."""
        count = 0
        for write in self.pending:
            if not write.durable(now_s):
                break
            write.put(self.durable)
            count += 1
        del self.pending[:count]

    def doom(self) -> None:
        """A sync failed: what was waiting will never be durable, though readers see it."""
        self.pending = [write for write in self.pending if write.through_s is not None]

    def crash(self, now_s: float, keep: Callable[[Write], Sequence[Write]]) -> None:
        self.settle(now_s)
        left: list[Write] = []
        for write in self.pending:
            if write.durable(now_s):
                left.append(write)
            elif write.at_s <= now_s:
                left.extend(keep(write))
        for write in left:
            if not write.durable(now_s):
                write.through_s = None
        self.pending = left
        self.data = bytearray(self.durable)
        for write in left:
            write.put(self.data)
        self.holes = {block: None for block in self.holes if self._is_zero(block)}


def put(data: bytearray, offset: int, piece: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


class _NameChange(NamedTuple):
    at_s: float
    old: str | None
    new: str | None
    inode: Inode


class Directory:
    """Names, and changes to them that are not durable yet."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.pending: list[_NameChange] = []
        self.syncs: list[tuple[float, int]] = []

    def change(self, at_s: float, old: str | None, new: str | None, inode: Inode) -> None:
        change = _NameChange(at_s, old, new, inode)
        _rename(self.names, change)
        self.pending.append(change)

    def settle(self, now_s: float) -> None:
        covered = 0
        while self.syncs and self.syncs[0][0] <= now_s:
            covered = self.syncs.pop(0)[1]
        if covered:
            for change in self.pending[:covered]:
                _rename(self.durable, change)
            del self.pending[:covered]
            self.syncs = [(at_s, count - covered) for at_s, count in self.syncs]

    def crash(self, now_s: float, keep: Callable[[int], int]) -> None:
        """``keep`` says how many of the changes that are not durable stay."""
        self.settle(now_s)
        self.syncs.clear()
        begun = [change for change in self.pending if change.at_s <= now_s]
        self.pending = begun[: keep(len(begun))]
        self.names = dict(self.durable)
        for change in self.pending:
            _rename(self.names, change)


def _rename(names: dict[str, Inode], change: _NameChange) -> None:
    if change.old is not None:
        names.pop(change.old, None)
    if change.new is not None:
        names[change.new] = change.inode
