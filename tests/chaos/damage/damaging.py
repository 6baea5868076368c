"""What is done to one file of a data directory, and which kinds of files there are."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("journal file", r"(.*/)?journal/[0-9a-f]+\.journal"),
        ("entry log", r"(.*/)?ledgers/[0-9a-f]+\.log"),
        ("reserve", r"(.*/)?ledgers/reserve"),
        ("index table", r"(.*/)?index/.*\.sst"),
        ("index log", r"(.*/)?index/\d+\.log"),
        ("index manifest", r"(.*/)?index/(MANIFEST.*|CURRENT)"),
        ("beside the index", r"(.*/)?index/(IDENTITY|LOCK|OPTIONS.*|rocksdict.*)"),
        ("cookie", r"(.*/)?current/VERSION"),
        ("generation", r"(.*/)?current/(GENERATION|PLACE)"),
        ("mark", r"(.*/)?lastmark.*"),
        ("metadata", r"metadata\.sqlite"),
        ("metadata log", r"metadata\.sqlite-(wal|shm)"),
        ("lock", r"(.*/)?(LOCK|metadata\.sqlite\.lock)"),
        ("segment", r"partitions/.*/\d+\.log"),
        ("offset index", r"partitions/.*\.index"),
        ("time index", r"partitions/.*\.timeindex"),
        ("transaction index", r"partitions/.*\.txnindex"),
        ("batches", r"partitions/.*\.batches"),
        ("snapshot", r"partitions/.*\.snapshot"),
        ("leader epochs", r"partitions/.*/leader-epoch-checkpoint"),
        ("sums of the transaction indexes", r"partitions/.*/aborted-checkpoint"),
        ("partition metadata", r"partitions/.*/partition\.metadata"),
        ("checkpoint", r"partitions/[a-z-]+-checkpoint"),
        ("the directory's own", r"partitions/(broker|cluster|lineage|unsynced)"),
    )
)
PAGE: Final = 4096


class Damage(NamedTuple):
    """``path``: of the file, in the data directory. ``what``: in words."""

    path: str
    kind: str
    what: str


def kind_of(path: str) -> str | None:
    """Of a file, by its path in the data directory. None: what is lost with it is no loss."""
    return next((kind for kind, pattern in KINDS if pattern.fullmatch(path)), None)


def flip(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return append(path, draw)
    at = draw.randrange(_used(data))
    data[at] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return f"a bit flipped at {at} of {len(data)}"


def zero(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at = draw.randrange(max(_used(data), 1)) // PAGE * PAGE
    if not any(data[at : at + PAGE]):
        return flip(path, draw)
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))
    path.write_bytes(data)
    return f"a page of zeros at {at} of {len(data)}"


def cut(path: Path, draw: random.Random) -> str:
    data = path.read_bytes()
    at = draw.randrange(max(_used(data), 1))
    path.write_bytes(data[:at])
    return f"cut at {at} of {len(data)}"


def append(path: Path, draw: random.Random) -> str:
    count = draw.choice((1, 7, 100, PAGE))
    with path.open("ab") as file:
        file.write(draw.randbytes(count))
    return f"{count} bytes appended"


def delete(path: Path, draw: random.Random) -> str:
    path.unlink()
    return "deleted"


def empty(path: Path, draw: random.Random) -> str:
    path.write_bytes(b"")
    return "emptied"


def garble(path: Path, draw: random.Random) -> str:
    path.write_bytes(draw.randbytes(path.stat().st_size))
    return "random bytes all over"


WAYS: Final[tuple[Callable[[Path, random.Random], str], ...]] = (
    flip, flip, zero, cut, append, delete, empty, garble,
)  # fmt: skip


def _used(data: bytes | bytearray) -> int:
    """Without the zeros at the end of a file that has its size from the start."""
    return len(bytes(data).rstrip(b"\0")) or len(data)


def damage(folder: Path, older: Path, draw: random.Random, only: str = "") -> Damage:
    """One file of ``folder``, of a kind with ``only`` in its name (or one of several, with commas);
    ``older``: a copy of the folder from before."""
    files: dict[str, list[str]] = {}
    for each in sorted(folder.rglob("*")):
        name = str(each.relative_to(folder))
        kind = kind_of(name) if each.is_file() else None
        if kind is not None and any(each in kind for each in only.split(",")):
            files.setdefault(kind, []).append(name)
    kind = draw.choice(list(files))
    name = draw.choice(files[kind])
    path = folder / name
    way = draw.choice((*WAYS, None))
    if way is not None:
        return Damage(name, kind, way(path, draw))
    if (older / name).exists() and (older / name).read_bytes() != path.read_bytes():
        shutil.copy(older / name, path)
        return Damage(name, kind, "replaced by an older copy")
    return Damage(name, kind, delete(path, draw))
