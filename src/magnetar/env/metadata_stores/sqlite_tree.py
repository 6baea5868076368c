"""The metadata tree in one SQLite file: what one thread does with one connection.

Owns the schema and the operations; the thread, the lock and the event loop are
``sqlite_metadata``'s. Every operation checks before it changes anything, so one that fails
leaves the transaction as it was and others in the same transaction may go on.

Schema (format 2; docs/formats/metadata.md)::

    node(parent, name, value, version, next_child, ephemeral, seal)   primary key (parent, name)
    total(seal)                                                       one row

The root is ``("", "")``. ``next_child`` counts the children ever made under a node and numbers
the sequential ones; it only grows. Rows with ``ephemeral`` 1 belong to the one session that has
the file open for writing; whoever opens it next removes what a crash has left.

SQLite has no checksum over what it stores: a bit that changed would be another ledger's end, or a
topic less. So each row has a ``seal`` over its other columns, and ``total`` is the sum of all of
them (by triggers), which tells a row that is gone. Both are held against each other when the file
is opened for writing (``damages``). Why: docs/adr/0222-the-metadata-file-is-sealed.md.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Final

from magnetar.env.metadata import CreateMode, Versioned
from magnetar.env.metadata_stores.metadata_paths import SEQUENCE_DIGITS, join, split
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

APPLICATION_ID = 0x4D474D44  # "MGMD"
FORMAT_VERSION = 2
_UNSEALED: Final = 1
"""The format before."""
DAMAGES_TOLD: Final = 5
_COLUMNS: Final = "parent, name, value, version, next_child, ephemeral"
_BYTES: Final = ", ".join(f"CAST({each} AS BLOB)" for each in _COLUMNS.split(", "))
"""A flipped bit makes a text of a value, and of a name one that cannot be decoded: as bytes they
can be sealed, and told."""
_SEAL: Final = f"UPDATE node SET seal = seal_of({_BYTES})"
_TYPES: Final = " OR ".join(
    f"typeof({name}) != '{kind}'"
    for name, kind in zip(
        _COLUMNS.split(", "), ("text", "text", "blob", *("integer",) * 3), strict=True
    )
)

_SEALS = (
    "CREATE TABLE total (seal INTEGER NOT NULL)",
    "INSERT INTO total SELECT sum(seal) FROM node",
    """CREATE TRIGGER node_made AFTER INSERT ON node BEGIN
        UPDATE total SET seal = seal + NEW.seal;
    END""",
    """CREATE TRIGGER node_changed AFTER UPDATE ON node BEGIN
        UPDATE total SET seal = seal + NEW.seal - OLD.seal;
    END""",
    """CREATE TRIGGER node_gone AFTER DELETE ON node BEGIN
        UPDATE total SET seal = seal - OLD.seal;
    END""",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)

_NODES = (
    """CREATE TABLE node (
        parent TEXT NOT NULL,
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL DEFAULT 0,
        next_child INTEGER NOT NULL DEFAULT 0,
        ephemeral INTEGER NOT NULL DEFAULT 0,
        seal INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (parent, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX node_ephemeral ON node (ephemeral) WHERE ephemeral = 1",
)
_ROOT: Final = "INSERT OR IGNORE INTO node (parent, name, value) VALUES ('', '', x'')"

_SCHEMA = (*_NODES, _ROOT, _SEAL, *_SEALS, f"PRAGMA application_id = {APPLICATION_ID}")

_SEALING = ("ALTER TABLE node ADD COLUMN seal INTEGER NOT NULL DEFAULT 0", _SEAL, *_SEALS)

# Into new tables: the schema may be what is damaged.
_BELIEVING = (
    "CREATE TEMP TABLE kept AS SELECT parent, name, CAST(value AS BLOB) AS value, "
    "CAST(version AS INTEGER) AS version, CAST(next_child AS INTEGER) AS next_child, "
    "CAST(ephemeral AS INTEGER) AS ephemeral FROM node "
    # No path names one that is no text, and a list that has it cannot be read.
    "WHERE is_text(CAST(parent AS BLOB)) AND is_text(CAST(name AS BLOB))",
    "DROP TABLE node",
    "DROP TABLE IF EXISTS total",
    *_NODES,
    f"INSERT OR IGNORE INTO node ({_COLUMNS}) SELECT {_COLUMNS} FROM kept",
    "DROP TABLE kept",
    _ROOT,
    _SEAL,
    *_SEALS,
)

_EPHEMERAL_MODES = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_SEQUENTIAL_MODES = (CreateMode.SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)


def seal_of(
    parent: bytes, name: bytes, value: bytes, version: bytes, next_child: bytes, ephemeral: bytes
) -> int:
    """Of a row of ``node``, whose numbers are decimal."""
    rest = b"%s\0%s\0%s,%s,%s\0" % (parent, name, version, next_child, ephemeral)
    return zlib.crc32(value, zlib.crc32(rest))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(statement: str) -> str:
    """Of a schema. What an older release has made and ``_SEALING`` changed has other spaces."""
    return " ".join(statement.split())


class SqliteTree:
    """The operations on an open connection. ``changed`` collects the paths that the running
    transaction touches (a dict, for its order); ``take_changed`` empties it."""

    def __init__(self, db: sqlite3.Connection, described: str) -> None:
        """``described`` names the file in errors."""
        self._db = db
        db.create_function("seal_of", 6, seal_of, deterministic=True)
        db.create_function("is_text", 1, _is_text, deterministic=True)
        self._described = described
        self._changed: dict[str, None] = {}
        self._removed: dict[str, int] = {}
        """How many children of a node were removed since the file was opened."""

    # -- opening ------------------------------------------------------------------------------

    def prepare(self, read_only: bool) -> None:
        """Create the schema in an empty file, refuse files that are not ours, seal one of the
        format before."""
        application_id = self._pragma("application_id")
        version = self._pragma("user_version")
        if application_id == 0 and version == 0 and self._is_empty():
            if read_only:
                raise MetadataError(f"{self._described} is empty: no metadata store was ever here")
            self._in_transaction(_SCHEMA)
            return
        if application_id != APPLICATION_ID:
            raise MetadataError(
                f"{self._described} is a SQLite file of another program (application id "
                f"{application_id:#x}); point the metadata URL at another path"
            )
        if version not in (FORMAT_VERSION, _UNSEALED):
            raise MetadataError(
                f"{self._described} has metadata format {version}, this version knows "
                f"{FORMAT_VERSION}; use the release that wrote it or a newer one"
            )
        if not read_only and version == _UNSEALED:
            self._in_transaction(_SEALING)

    def damages(self) -> list[str]:
        """What of the file is not as it was stored, in words; of many nodes a few."""
        (state,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        found = [] if state == "ok" else [f"SQLite says: {state}"]
        found += [] if self._has_own_schema() else ["the schema is not as it was made"]
        rows = self._db.execute(
            "SELECT CAST(parent AS BLOB), CAST(name AS BLOB) FROM node "
            f"WHERE seal != seal_of({_BYTES}) OR {_TYPES} LIMIT {DAMAGES_TOLD}"
        ).fetchall()
        found += [
            f"node {join(parent.decode(errors='replace'), name.decode(errors='replace'))}"
            for parent, name in rows
        ]
        sealed, total = self._db.execute(
            "SELECT (SELECT sum(seal) FROM node), (SELECT seal FROM total)"
        ).fetchone()
        if not found and sealed != total:
            found.append("a node is gone, or of an older state")
        return found

    def believe(self) -> None:
        """What the file says is taken for what was stored, from now on."""
        self._in_transaction(_BELIEVING)

    def _has_own_schema(self) -> bool:
        """A bit of it that changed says something else of the rows to come: their first version,
        or what they add to the sum."""
        rows = self._db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        made = {_plain(each) for each in (*_NODES, *_SEALS) if each.startswith("CREATE ")}
        return {_plain(sql) for (sql,) in rows} == made

    def end_former_session(self) -> None:
        """The ephemeral nodes of one that ended in a crash."""
        if self._has_ephemerals():
            self._in_transaction(("DELETE FROM node WHERE ephemeral = 1",))

    def _pragma(self, name: str) -> int:
        value = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        assert isinstance(value, int)
        return value

    def _is_empty(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None

    def _has_ephemerals(self) -> bool:
        row = self._db.execute("SELECT 1 FROM node WHERE ephemeral = 1 LIMIT 1").fetchone()
        return row is not None

    def _in_transaction(self, statements: tuple[str, ...]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._db.execute(statement)
        self._db.execute("COMMIT")

    # -- operations ---------------------------------------------------------------------------

    def get(self, path: str) -> Versioned:
        row = self._db.execute(
            "SELECT value, version FROM node WHERE parent = ? AND name = ?", split(path)
        ).fetchone()
        if row is None:
            raise NoNodeError(f"{path} does not exist in {self._described}")
        return Versioned(row[0], row[1])

    def children(self, path: str) -> list[str]:
        rows = self._db.execute(
            "SELECT name FROM node WHERE parent = ? ORDER BY name", (path,)
        ).fetchall()
        if not rows and self._row(path) is None:
            raise NoNodeError(f"{path} does not exist in {self._described}")
        return [row[0] for row in rows]

    def children_stamp(self, path: str) -> int:
        """Of what has the file open for writing: nobody else removes a node."""
        row = self._row(path)
        if row is None:
            raise NoNodeError(f"{path} does not exist in {self._described}")
        return row[1] + (self._removed.get(path, 0) << 32)

    def create(self, path: str, value: bytes, mode: CreateMode) -> str:
        parent, name = split(path) if not path.endswith("/") else (path[:-1] or "/", "")
        if mode in _SEQUENTIAL_MODES:
            row = self._row(parent)
            name += f"{row[1] if row else 0:0{SEQUENCE_DIGITS}d}"
        created = join(parent, name)
        if self._row(created) is not None:
            raise NodeExistsError(f"{created} exists already in {self._described}")
        for missing in self._missing_ancestors(created):
            self._insert(missing, b"", ephemeral=False)
        self._insert(created, value, ephemeral=mode in _EPHEMERAL_MODES)
        return created

    def put(self, path: str, value: bytes, version: int) -> int:
        found = self._versioned_row(path, version)
        self._db.execute(
            "UPDATE node SET value = ?1, version = ?2, seal = seal_of(CAST(parent AS BLOB), "
            "CAST(name AS BLOB), ?1, CAST(?2 AS BLOB), CAST(next_child AS BLOB), "
            "CAST(ephemeral AS BLOB)) "
            "WHERE parent = ?3 AND name = ?4",
            (value, found + 1, *split(path)),
        )
        self._changed[path] = None
        return found + 1

    def put_beside(self, other: str, path: str, value: bytes, version: int) -> int:
        self._versioned_row(other, -1)
        return self.put(path, value, version)

    def create_and_put(
        self, path: str, value: bytes, other: str, other_value: bytes, version: int
    ) -> int:
        self._versioned_row(other, version)  # first: nothing is changed before all is known
        self.create(path, value, CreateMode.PERSISTENT)
        return self.put(other, other_value, version)

    def delete(self, path: str, version: int) -> None:
        if path == "/":
            raise MetadataError("the root / cannot be deleted")
        self._versioned_row(path, version)
        child = self._db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone()
        if child is not None:
            raise NotEmptyError(f"{path} has children in {self._described}; delete them first")
        self._remove(path)

    def end_session(self) -> None:
        """Remove the session's ephemeral nodes."""
        rows = self._db.execute("SELECT parent, name FROM node WHERE ephemeral = 1").fetchall()
        for parent, name in rows:
            self._remove(join(parent, name))

    def take_changed(self) -> list[str]:
        changed = list(self._changed)
        self._changed.clear()
        return changed

    # -- parts --------------------------------------------------------------------------------

    def _row(self, path: str) -> tuple[int, int, int] | None:
        """``(version, next_child, ephemeral)`` of a node, None if there is none."""
        row: tuple[int, int, int] | None = self._db.execute(
            "SELECT version, next_child, ephemeral FROM node WHERE parent = ? AND name = ?",
            split(path),
        ).fetchone()
        return row

    def _versioned_row(self, path: str, version: int) -> int:
        row = self._row(path)
        if row is None:
            raise NoNodeError(f"{path} does not exist in {self._described}")
        if version not in (-1, row[0]):
            raise BadVersionError(
                f"{path} has version {row[0]}, not {version}: it was changed since it was read; "
                f"read it again"
            )
        return row[0]

    def _missing_ancestors(self, path: str) -> list[str]:
        """The ancestors of ``path`` that are to be made, topmost first."""
        missing: list[str] = []
        parent = split(path)[0]
        while (row := self._row(parent)) is None:
            missing.append(parent)
            parent = split(parent)[0]
        if row[2]:
            raise MetadataError(f"{parent} is ephemeral and cannot have children (for {path})")
        return missing[::-1]

    def _insert(self, path: str, value: bytes, ephemeral: bool) -> None:
        parent, name = split(path)
        self._db.execute(
            "INSERT INTO node (parent, name, value, ephemeral, seal) "
            "VALUES (?1, ?2, ?3, ?4, seal_of(CAST(?1 AS BLOB), CAST(?2 AS BLOB), ?3, x'30', x'30', "
            "CAST(?4 AS BLOB)))",
            (parent, name, value, int(ephemeral)),
        )
        self._db.execute(
            "UPDATE node SET next_child = next_child + 1, "
            "seal = seal_of(CAST(parent AS BLOB), CAST(name AS BLOB), value, "
            "CAST(version AS BLOB), CAST(next_child + 1 AS BLOB), CAST(ephemeral AS BLOB)) "
            "WHERE parent = ? AND name = ?",
            split(parent),
        )
        self._changed[path] = None
        self._changed[parent] = None

    def _remove(self, path: str) -> None:
        parent, name = split(path)
        self._db.execute("DELETE FROM node WHERE parent = ? AND name = ?", (parent, name))
        # Grows for a node that is made anew, too: it numbers its children from 0 again.
        self._removed[parent] = self._removed.get(parent, 0) + 1
        self._changed[path] = None
        self._changed[parent] = None
