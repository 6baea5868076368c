"""What a disk holds after a power cut: a model of files and directories that is fed with a trace.

A file has the bytes that are durable, and the changes since. A sync that has worked makes those
durable that were made before it began; a write with O_DSYNC is durable by itself. A directory has
the names that are durable, and the changes of names since: they are durable when the directory is
synced. (Some file systems make a new name durable with the file's own sync; POSIX promises that of
none: ``synced_names`` is for programs that rely on it.) Nothing else is: no ``sync_file_range``,
no ``close``, no time that passes.

When the power goes, of what is not durable survives:

* of the changes of a file, each by the toss of a coin, and of a write that survives, all, or each
  512-byte sector by another toss (a torn write). What lies between is zeros;
* of the changes of a directory, the first so many: file systems carry them out in order. A rename
  within a directory is one change.

What goes into a file through a mapping is not known here. Such a file must be one that its owner
makes again from others (``rebuilt``, by the end of its name): it is gone after the cut.

Why: docs/adr/0103-power-cuts-under-a-shim.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.proving.power_cut.trace import DURABLE, ChangeKind, FileChange

SECTOR_BYTES = 512
_KEEP_SIZE = 1


class TraceError(AssertionError):
    """The process did something whose outcome is not known here."""


@dataclass
class File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[FileChange] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    """Number of a sync that has begun -> how many of the pending changes it covers."""
    mapped: bool = False

    def sync_begins(self, number: int) -> None:
        self.begun[number] = len(self.pending)

    def synced(self, number: int) -> None:
        covered = self.begun.pop(number)
        for change in self.pending[:covered]:
            apply(self.durable, change)
        del self.pending[:covered]
        self.begun = {each: max(0, count - covered) for each, count in self.begun.items()}

    def after_a_cut(self, rng: random.Random, survival: float) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            if change.flags & DURABLE and change.kind is ChangeKind.WRITTEN:
                apply(content, change)
            elif rng.random() < survival:
                torn = change.kind is ChangeKind.WRITTEN and rng.random() < 0.5
                for part in _sectors(change, rng) if torn else (change,):
                    apply(content, part)
        return bytes(content)


Names = dict[str, "Directory | File"]
Rename = tuple[str | None, str | None, "Directory | File | None"]
"""(name that goes, name that comes, what it stands for)."""


@dataclass
class Directory:
    names: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    pending: list[Rename] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)

    def change(self, gone: str | None, come: str | None, node: Directory | File | None) -> None:
        self.pending.append((gone, come, node))
        _change(self.names, self.pending[-1])

    def sync_begins(self, number: int) -> None:
        self.begun[number] = len(self.pending)

    def synced(self, number: int) -> None:
        self._keep(self.begun.pop(number))

    def keep_name_of(self, node: Directory | File) -> None:
        """With all changes before it: file systems carry them out in order."""
        named = [at for at, change in enumerate(self.pending, 1) if change[2] is node]
        if named:
            self._keep(named[-1])

    def _keep(self, covered: int) -> None:
        for change in self.pending[:covered]:
            _change(self.durable, change)
        del self.pending[:covered]
        self.begun = {each: max(0, count - covered) for each, count in self.begun.items()}

    def after_a_cut(self, rng: random.Random, survival: float) -> Names:
        names = dict(self.durable)
        for change in self.pending:
            if rng.random() >= survival:
                break
            _change(names, change)
        return names


def _change(names: Names, change: Rename) -> None:
    gone, come, node = change
    if gone is not None:
        names.pop(gone, None)
    if come is not None:
        assert node is not None
        names[come] = node


def apply(content: bytearray, change: FileChange) -> None:
    start, size = change.first, change.second
    if change.kind is ChangeKind.WRITTEN:
        _grow(content, start)
        content[start : start + len(change.data)] = change.data
    elif change.kind is ChangeKind.TRUNCATED:
        del content[start:]
        _grow(content, start)
    elif change.kind is ChangeKind.ALLOCATED:
        if not change.flags & _KEEP_SIZE:
            _grow(content, start + size)
    elif change.kind is ChangeKind.PUNCHED:
        end = min(start + size, len(content))
        if start < end:
            content[start:end] = bytes(end - start)


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _sectors(change: FileChange, rng: random.Random) -> Iterable[FileChange]:
    """The sectors of a torn write that have survived."""
    start, end = change.first, change.first + len(change.data)
    at = start
    while at < end:
        behind = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
        if rng.random() < 0.5:
            yield change._replace(first=at, data=change.data[at - start : behind - start])
        at = behind


class ModelDisk:
    """The directory ``root`` and all below, as the disk has it: all of it durable to begin with.
    ``rebuilt``: ends of names, see the module's text; ``synced_names``: a sync of a file keeps its
    name, too, and those of the directories above it, as ext4 and XFS do."""

    def __init__(
        self, root: Path, rebuilt: tuple[str, ...] = (), synced_names: bool = False
    ) -> None:
        self.root = root
        self._rebuilt = rebuilt
        self._synced_names = synced_names
        self.top = _durable(root)
        self._by_inode: dict[int, Directory | File] = {root.stat().st_ino: self.top}
        self.pending_changes = 0

    def feed(self, changes: Iterable[FileChange]) -> None:
        for change in changes:
            self._feed(change)

    def _feed(self, change: FileChange) -> None:
        kind = change.kind
        if kind is ChangeKind.UNKNOWN:
            raise TraceError(f"a power cut under {change.path} is not known here")
        if kind is ChangeKind.MAPPED and not self._rebuilt:
            raise TraceError("a power cut under a mapped file is not known here")
        if kind in (ChangeKind.CREATED, ChangeKind.MADE):
            node: Directory | File = File() if kind is ChangeKind.CREATED else Directory()
            parent, name = self._parent(change.path)
            parent.change(None, name, node)
            self._by_inode[change.inode] = node
        elif kind is ChangeKind.OPENED:
            self._by_inode[change.inode] = self._find(change.path)
        elif kind is ChangeKind.REMOVED:
            parent, name = self._parent(change.path)
            parent.change(name, None, None)
        elif kind in (ChangeKind.RENAMED, ChangeKind.LINKED):
            self._rename(change)
        else:
            node = self._by_inode[change.inode]
            if kind is ChangeKind.SYNC_BEGUN:
                node.sync_begins(change.first)
            elif kind is ChangeKind.SYNCED:
                node.synced(change.first)
                if self._synced_names:
                    _keep_names(self.top, node)
            else:
                assert isinstance(node, File), change
                if kind is ChangeKind.MAPPED:
                    node.mapped = True
                else:
                    node.pending.append(change)

    def _rename(self, change: FileChange) -> None:
        source, old = self._parent(change.path)
        target, new = self._parent(change.other)
        node = source.names[old]
        if change.kind is ChangeKind.LINKED:
            target.change(None, new, node)
        elif source is target:
            source.change(old, new, node)
        else:
            target.change(None, new, node)
            source.change(old, None, None)

    def _parts(self, path: str) -> tuple[str, ...]:
        return Path(path).relative_to(self.root).parts

    def _parent(self, path: str) -> tuple[Directory, str]:
        *above, name = self._parts(path)
        node = self._at(above)
        assert isinstance(node, Directory), path
        return node, name

    def _find(self, path: str) -> Directory | File:
        return self._at(self._parts(path))

    def _at(self, parts: Iterable[str]) -> Directory | File:
        node: Directory | File = self.top
        for part in parts:
            assert isinstance(node, Directory), part
            node = node.names[part]
        return node

    def contents(self) -> dict[str, bytes]:
        """By path below the root, every file as the process has it, durable or not."""
        return dict(_contents(self.top, ""))

    # -- the cut ------------------------------------------------------------------------------

    def write(self, target: Path, rng: random.Random, survival: float) -> int:
        """Make at ``target`` what is left after a power cut; returns how many changes were not
        durable."""
        self.pending_changes = 0
        self._write(self.top, target, rng, survival)
        return self.pending_changes

    def _write(self, node: Directory, target: Path, rng: random.Random, survival: float) -> None:
        target.mkdir()
        self.pending_changes += len(node.pending)
        for name, child in sorted(node.after_a_cut(rng, survival).items()):
            if isinstance(child, Directory):
                self._write(child, target / name, rng, survival)
            elif child.mapped:
                if not name.endswith(self._rebuilt):
                    raise TraceError(f"{target / name} is mapped: a cut is not known here")
            else:
                self.pending_changes += len(child.pending)
                (target / name).write_bytes(child.after_a_cut(rng, survival))


def _keep_names(above: Directory, node: Directory | File) -> bool:
    """Of ``node`` and of what it lies in; whether it is below ``above``."""
    for child in above.names.values():
        if child is node or (isinstance(child, Directory) and _keep_names(child, node)):
            above.keep_name_of(child)
            return True
    return False


def _contents(node: Directory, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, child in sorted(node.names.items()):
        if isinstance(child, Directory):
            yield from _contents(child, f"{prefix}{name}/")
        else:
            content = bytearray(child.durable)
            for change in child.pending:
                apply(content, change)
            yield prefix + name, bytes(content)


def _durable(path: Path) -> Directory:
    found: Names = {}
    for each in sorted(path.iterdir()):
        found[each.name] = _durable(each) if each.is_dir() else File(bytearray(each.read_bytes()))
    return Directory(dict(found), dict(found))
