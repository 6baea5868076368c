"""The metadata store's file, damaged: it is refused, or says what it said."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from magnetar.env.metadata import CreateMode
from magnetar.env.metadata_stores.metadata_paths import join
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.model.errors import MetadataError

Nodes = dict[str, tuple[bytes, int]]


async def contents(store: SqliteMetadataStore, path: str = "/") -> Nodes:
    found: Nodes = {path: tuple(await store.get(path))}  # type: ignore[dict-item]
    for name in await store.children(path):
        found |= await contents(store, join(path, name))
    return found


async def written(path: Path) -> Nodes:
    store = await SqliteMetadataStore.open(path)
    for number in range(60):
        await store.create(f"/ledgers/{number % 4}/L{number}", b"%d" % number * 40)
        await store.create("/ids/ID-", b"", CreateMode.SEQUENTIAL)
    for number in range(0, 60, 3):
        await store.put(f"/ledgers/{number % 4}/L{number}", b"closed at %d" % number, 0)
    await store.delete("/ledgers/1/L1")
    await store.create("/here", b"", CreateMode.EPHEMERAL)
    found = await contents(store)
    await store.close()
    del found["/here"]
    return found


def damage(path: Path, *changes: str) -> None:
    """Rows change as no triggers see it."""
    with sqlite3.connect(path) as database:
        triggers = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        for change in changes:
            database.execute(change)
        for _, made in triggers:
            database.execute(made)
    database.close()


def test_a_changed_bit_is_refused_or_says_nothing(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.sqlite", tmp_path / "m.sqlite"
    draw = random.Random(1)

    async def main() -> None:
        stored = {each: value[0] for each, value in (await written(whole)).items()}
        refused = 0
        for _ in range(150):
            data = bytearray(whole.read_bytes())
            at = draw.randrange(len(data))
            data[at] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
            try:
                store = await SqliteMetadataStore.open(path)
            except MetadataError:
                refused += 1
                continue
            found = {each: value[0] for each, value in (await contents(store)).items()}
            await store.close()
            assert found == stored, at
        assert 30 < refused < 130

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE node SET value = x'00' WHERE name = 'L7'", "node /ledgers/3/L7"),
        ("UPDATE node SET next_child = 3 WHERE name = 'ids'", "node /ids"),
        ("UPDATE node SET name = 'L99' WHERE name = 'L7'", "node /ledgers/3/L99"),
        ("DELETE FROM node WHERE name = 'L7'", "a node is gone"),
        ("UPDATE total SET seal = seal + 1", "a node is gone, or of an older state"),
    ],
)
def test_what_has_changed_is_named_and_an_operator_may_go_on(
    tmp_path: Path, change: str, said: str
) -> None:
    path = tmp_path / "m.sqlite"
    believed = Path(f"{path}.believed")
    touch, exists = believed.touch, believed.exists

    async def main() -> None:
        await written(path)
        damage(path, change)
        kept = path.read_bytes()
        for _ in range(2):
            with pytest.raises(MetadataError, match=f"is not opened: it is damaged .{said}"):
                await SqliteMetadataStore.open(path)
        assert path.read_bytes() == kept
        touch()
        store = await SqliteMetadataStore.open(path)
        assert not exists()
        await store.close()
        await (await SqliteMetadataStore.open(path)).close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("stored", "damaged"),
    [
        (b"version INTEGER NOT NULL DEFAULT 0", b"version INTEGER NOT NULL DEFAULT 1"),
        (b"child INTEGER NOT NULL DEFAULT 0", b"child INTEGER NOT NULL DEFAULT 8"),
        (b"SET seal = seal + NEW.seal;", b"SET seal = seal - NEW.seal;"),
    ],
)
def test_a_changed_schema_is_refused_and_an_operator_may_go_on(
    tmp_path: Path, stored: bytes, damaged: bytes
) -> None:
    """What it says of rows that come later is wrong, and nothing of those that are there."""
    path = tmp_path / "m.sqlite"
    touch = Path(f"{path}.believed").touch

    async def main() -> None:
        found = await written(path)
        data = path.read_bytes()
        assert data.count(stored) == 1
        path.write_bytes(data.replace(stored, damaged))
        with pytest.raises(MetadataError, match=r"it is damaged .the schema"):
            await SqliteMetadataStore.open(path)
        touch()
        for _ in range(2):
            store = await SqliteMetadataStore.open(path)
            assert await contents(store) == found
            await store.create("/later", b"")
            assert (await store.get("/later")).version == 0
            await store.delete("/later")
            found["/"] = tuple(await store.get("/"))  # type: ignore[assignment]
            await store.close()

    asyncio.run(main())


def test_a_value_of_another_type_is_named(tmp_path: Path) -> None:
    """A flipped bit of a row's head makes a text of its bytes, or a number; one of a name makes
    bytes that are no text."""
    path = tmp_path / "m.sqlite"
    touch = Path(f"{path}.believed").touch

    async def main() -> None:
        await written(path)
        damage(
            path,
            "UPDATE node SET value = CAST('x' AS TEXT) WHERE name = 'L7'",
            "UPDATE node SET version = 'x' WHERE name = 'L6'",
            "UPDATE node SET name = CAST(x'4CB1' AS TEXT) WHERE name = 'L11'",
        )
        with pytest.raises(
            MetadataError, match="/2/L6; node /ledgers/3/L7; node /ledgers/3/L\ufffd"
        ):
            await SqliteMetadataStore.open(path)
        touch()
        for _ in range(2):
            store = await SqliteMetadataStore.open(path)
            assert tuple(await store.get("/ledgers/3/L7")) == (b"x", 0)
            assert (await store.get("/ledgers/2/L6")).version == 0
            assert "L15" in await store.children("/ledgers/3")
            await store.close()

    asyncio.run(main())


def test_a_store_of_the_format_before_is_sealed(tmp_path: Path) -> None:
    path, older = tmp_path / "m.sqlite", tmp_path / "older.sqlite"

    async def main() -> None:
        stored = await written(path)
        shutil.copy(path, older)
        with sqlite3.connect(older) as database:
            for trigger in ("node_made", "node_changed", "node_gone"):
                database.execute(f"DROP TRIGGER {trigger}")
            database.execute("DROP TABLE total")
            database.execute("ALTER TABLE node DROP COLUMN seal")
            database.execute("PRAGMA user_version = 1")
        database.close()
        store = await SqliteMetadataStore.open(older, read_only=True)
        await store.close()
        for _ in range(2):
            store = await SqliteMetadataStore.open(older)
            assert await contents(store) == stored
            await store.put("/ids", b"x", -1)
            stored["/ids"] = (b"x", stored["/ids"][1] + 1)
            await store.close()
        data = older.read_bytes()
        older.write_bytes(data.replace(b"closed at 33", b"closed at 32"))
        with pytest.raises(MetadataError, match="node /ledgers/1/L33"):
            await SqliteMetadataStore.open(older)

    asyncio.run(main())
