"""SQLite's write-ahead log, damaged and torn."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.metadata_stores.sqlite_wal import damaged_at
from magnetar.model.errors import MetadataError

FRAME = 4096 + 24


def written(folder: Path) -> Path:
    """The log of a process that was killed: eight transactions."""
    path = folder / "metadata.sqlite"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE t (a BLOB)")
    for _ in range(7):
        database.execute("INSERT INTO t VALUES (zeroblob(6000))")
    left = Path(f"{path}-wal").read_bytes()
    database.close()
    log = folder / "killed-wal"
    log.write_bytes(left)
    return log


def test_a_changed_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    log = written(tmp_path)
    whole = log.read_bytes()
    assert damaged_at(log) is None
    draw = random.Random(1)
    for _ in range(60):
        data = bytearray(whole)
        # Not in the last transaction, which may be torn.
        at = draw.randrange(len(whole) - 5 * FRAME)
        data[at] ^= 1 << draw.randrange(8)
        log.write_bytes(data)
        found = damaged_at(log)
        if at < 32:
            continue  # a head says less: see below
        assert found == at - (at - 32) % FRAME, at


@pytest.mark.parametrize("at", [13, 17, 21, 25, 31])
def test_a_changed_head_is_found(tmp_path: Path, at: int) -> None:
    log = written(tmp_path)
    data = bytearray(log.read_bytes())
    data[at] ^= 4
    log.write_bytes(data)
    assert damaged_at(log) == 0


def test_a_torn_end_is_none(tmp_path: Path) -> None:
    log = written(tmp_path)
    whole = log.read_bytes()
    for length in [0, 20, 32, 40, FRAME, *range(FRAME, len(whole), 777)]:
        log.write_bytes(whole[:length])
        assert damaged_at(log) is None, length
    log.write_bytes(whole[:-100] + bytes(100))
    assert damaged_at(log) is None


def test_the_store_says_so_and_leaves_the_log(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    log = written(tmp_path)
    data = bytearray(log.read_bytes())
    data[32 + 5 * FRAME] ^= 1
    kept = Path(f"{path}-wal")
    kept.write_bytes(data)

    async def scenario() -> None:
        with pytest.raises(MetadataError, match="wal is damaged at byte"):
            await SqliteMetadataStore.open(path)

    asyncio.run(scenario())
    assert kept.read_bytes() == data


def test_what_a_crash_tore_does_not_stay(tmp_path: Path) -> None:
    """Frames of a torn transaction, behind those of the next that a crash tears, would look like
    what follows a commit."""
    path, left = tmp_path / "metadata.sqlite", tmp_path / "left.sqlite"
    log = Path(f"{left}-wal")
    content = Path.read_bytes

    def crash() -> None:
        left.write_bytes(content(path))
        log.write_bytes(content(Path(f"{path}-wal"))[:-100] + bytes(100))

    async def scenario() -> None:
        store = await SqliteMetadataStore.open(path)
        for number in range(5):
            await store.create(f"/{number}", b"")
        crash()
        await store.close()
        salts = content(log)[16:24]
        store = await SqliteMetadataStore.open(left)
        assert await store.children("/") == [str(number) for number in range(4)]
        await store.create("/a", b"")
        assert salts not in content(log)
        await store.close()

    asyncio.run(scenario())
