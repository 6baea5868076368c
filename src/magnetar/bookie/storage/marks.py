"""The mark: up to where each journal is no longer needed by a ledger directory.

One small file, ``lastmark``, in each ledger directory. Rules:

* A mark is moved only after everything before it that concerns its ledger directory (entries,
  fences, master keys, LACs, deletions) is durable in the entry logs and the index.
* A mark only moves forward.
* Replay of a journal starts at the least of the directories' marks for it; a journal file is
  spent when it lies wholly before all of them. So no directory's flush can drop what another has
  not flushed yet.

The file also keeps the layout (which directory of how many, how many journals), because ledgers
are placed by ledger id modulo these numbers; a changed layout is refused.

Why: docs/adr/0012-marks-per-directory.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.env.files.disk import Disk
from magnetar.model.errors import ConfigError

MARK_NAME = "lastmark"
_MAGIC = b"MGMK"
_HEAD = struct.Struct(">4sIHHHHI")
_MARK = struct.Struct(">QQ")
_SEQUENCE = struct.Struct(">Q")
_CRC = struct.Struct(">I")
_VERSION = 2
_LIMBO = 1


@dataclass(frozen=True, slots=True)
class Marks:
    """What ``lastmark`` says. ``limbo``: acknowledged entries may have been lost (a damaged or
    missing journal), so "no" is not certain any more, but for ledgers begun in this ``epoch``,
    which counts the losses. ``index_sequence``: the location index's, at its last sync before."""

    directory_index: int
    directory_count: int
    positions: tuple[JournalPosition, ...]
    limbo: bool = False
    epoch: int = 0
    index_sequence: int = 0

    def moved(self, positions: Sequence[JournalPosition], index_sequence: int = 0) -> Marks:
        """With each position at least as far as in ``positions``."""
        merged = tuple(max(pair) for pair in zip(self.positions, positions, strict=True))
        sequence = max(self.index_sequence, index_sequence)
        return replace(self, positions=merged, index_sequence=sequence)

    def in_limbo(self, epoch: int = 0) -> Marks:
        """Past every epoch until now, and at least at ``epoch``."""
        return replace(self, limbo=True, epoch=max(self.epoch + 1, epoch))

    def begun(self, journal: int, position: JournalPosition) -> Marks:
        """With a mark for ``journal`` if it had none yet."""
        if self.positions[journal].file_id:
            return self
        positions = list(self.positions)
        positions[journal] = position
        return replace(self, positions=tuple(positions))

    def repaired(self) -> Marks:
        return replace(self, limbo=False)


def encode_marks(marks: Marks) -> bytes:
    flags = _LIMBO if marks.limbo else 0
    body = _HEAD.pack(
        _MAGIC,
        _VERSION,
        marks.directory_index,
        marks.directory_count,
        len(marks.positions),
        flags,
        marks.epoch,
    ) + b"".join(_MARK.pack(*position) for position in marks.positions)
    body += _SEQUENCE.pack(marks.index_sequence)
    return body + _CRC.pack(crc32c(body))


def decode_marks(data: bytes) -> Marks | None:
    """None if ``data`` is not a whole ``lastmark``. Raises ``ConfigError`` if it is one of a newer
    version: taken for damaged, it would be replaced, and the bookie's answers withheld."""
    if len(data) < _HEAD.size + _CRC.size or not data.startswith(_MAGIC):
        return None
    body = data[: -_CRC.size]
    if crc32c(body) != _CRC.unpack(data[-_CRC.size :])[0]:
        return None
    _, version, index, count, journals, flags, epoch = _HEAD.unpack_from(body)
    end = _HEAD.size + journals * _MARK.size
    if version > _VERSION:
        raise ConfigError(
            f"its format is {version}, this version knows {_VERSION}; use the release that wrote "
            "it or a newer one"
        )
    if version not in (1, _VERSION) or len(body) != end + (version - 1) * _SEQUENCE.size:
        return None
    positions = tuple(JournalPosition(*pair) for pair in _MARK.iter_unpack(body[_HEAD.size : end]))
    sequence = 0 if version == 1 else _SEQUENCE.unpack_from(body, end)[0]
    return Marks(index, count, positions, bool(flags & _LIMBO), epoch, sequence)


class MarkFile:
    """``lastmark`` of one ledger directory. Blocking."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self.path = directory / MARK_NAME
        self.whole = False
        """Whether ``load`` has found a mark; set by it."""

    def load(self, index: int, count: int, journals: int) -> Marks:
        """The marks; new ones at the journals' beginnings if there is none that is whole (see
        ``whole``: then either the directory is new, or what they said is lost).

        Raises ``ConfigError`` if the layout differs from the one the data was written with, or a
        newer version wrote the file.
        """
        try:
            marks = decode_marks(self._read()) if self._there() else None
        except ConfigError as error:
            raise ConfigError(f"{self.path} cannot be used: {error}") from error
        self.whole = marks is not None
        if marks is None:
            return Marks(index, count, (JournalPosition(0, 0),) * journals)
        found = (marks.directory_index, marks.directory_count, len(marks.positions))
        if found != (index, count, journals):
            raise ConfigError(
                f"{self._directory} was written as ledger directory {found[0] + 1} of {found[1]} "
                f"with {found[2]} journal(s), and is configured as {index + 1} of {count} with "
                f"{journals}; restore ledger_directories and journal directories as they were"
            )
        return marks

    def _there(self) -> bool:
        return MARK_NAME in self._disk.list(self._directory)

    def _read(self) -> bytes:
        file = self._disk.open(self.path)
        try:
            return file.pread(self._disk.size(self.path), 0)
        finally:
            file.close()

    def store(self, marks: Marks) -> None:
        """Replace the file, atomically and durably."""
        temporary = self.path.with_suffix(".new")
        file = self._disk.open(temporary, create=True)
        try:
            file.pwritev([encode_marks(marks)], 0)
            file.datasync()
        finally:
            file.close()
        self._disk.rename(temporary, self.path)
        self._disk.sync_dir(self._directory)
