"""The embedded store: the common suite, and what is its own (file, lock, crash, batches)."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.env.metadata import CreateMode, MetadataStore, Versioned
from magnetar.env.metadata_stores import sqlite_metadata
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.env.metadata_stores.sqlite_tree import FORMAT_VERSION
from magnetar.model.errors import MetadataError, NodeExistsError
from tests.unit.env.metadata_contract import MetadataContract, Tree


class TestSqliteContract(MetadataContract):
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Tree:
        return Tree(lambda: SqliteMetadataStore.open(tmp_path / "metadata.db"))


def test_memory_keeps_nothing() -> None:
    async def main() -> None:
        for _ in range(2):
            store = await SqliteMetadataStore.open(MEMORY)
            assert await store.children("/") == []
            await store.create("/a", b"")
            await store.close()

    asyncio.run(main())


def test_commits_are_synced(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        synchronous = await store._submit(lambda tree: tree._pragma("synchronous"))
        assert synchronous == 2  # FULL
        await store.close()
        assert sqlite3.connect(tmp_path / "m.db").execute("PRAGMA journal_mode").fetchone() == (
            "wal",
        )

    asyncio.run(main())


# -- one writer, many readers -------------------------------------------------------------------


def test_a_second_writer_is_refused_by_pid(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "m.db"
        store = await SqliteMetadataStore.open(path)
        with pytest.raises(MetadataError, match=f"process {os.getpid()} .*m.db.lock"):
            await SqliteMetadataStore.open(path)
        await store.create("/a", b"")
        await store.close()
        again = await SqliteMetadataStore.open(path)
        assert await again.children("/") == ["a"]
        await again.close()

    asyncio.run(main())


def test_a_failed_open_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(b"this is no database" * 100)

    async def main() -> None:
        with pytest.raises(MetadataError, match=r"m\.db failed"):
            await SqliteMetadataStore.open(path)
        path.unlink()
        store = await SqliteMetadataStore.open(path)
        await store.close()

    asyncio.run(main())


def test_reading_beside_the_writer(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "m.db"
        with pytest.raises(MetadataError, match=r"m\.db"):
            await SqliteMetadataStore.open(path, read_only=True)
        writer = await SqliteMetadataStore.open(path)
        await writer.create("/a", b"1")
        reader = await SqliteMetadataStore.open(path, read_only=True)
        assert await reader.get("/a") == Versioned(b"1", 0)
        await writer.put("/a", b"2", 0)
        assert await reader.get("/a") == Versioned(b"2", 1)
        for attempt in (reader.create("/b", b""), reader.put("/a", b"", -1), reader.delete("/a")):
            with pytest.raises(MetadataError, match="read-only"):
                await attempt
        with pytest.raises(MetadataError, match="read-only"):
            reader.watch("/a", print)
        await writer.close()
        await reader.close()
        reader = await SqliteMetadataStore.open(path, read_only=True)
        assert await reader.get("/a") == Versioned(b"2", 1)
        await reader.close()

    asyncio.run(main())


# -- foreign and damaged files --------------------------------------------------------------------


def test_other_programs_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE accounts (name)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(MetadataError, match="another program"):
        asyncio.run(SqliteMetadataStore.open(path))
    assert sqlite3.connect(path).execute("SELECT count(*) FROM accounts").fetchone() == (0,)
    assert len(before) == path.stat().st_size


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"

    async def make() -> None:
        await (await SqliteMetadataStore.open(path)).close()

    asyncio.run(make())
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    db.close()
    with pytest.raises(MetadataError, match=f"format {FORMAT_VERSION + 1}"):
        asyncio.run(SqliteMetadataStore.open(path))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="nowhere"):
        asyncio.run(SqliteMetadataStore.open(tmp_path / "nowhere" / "m.db"))


def test_a_path_that_sqlite_does_not_open_is_told(tmp_path: Path) -> None:
    """It was told as a file that is none of ours, or a full disk."""
    long = tmp_path.joinpath(*["d" * 100] * 5)
    long.mkdir(parents=True)
    with pytest.raises(MetadataError, match=r"more than 504 bytes.*path is shorter"):
        asyncio.run(SqliteMetadataStore.open(long / "m.db"))


# -- batches --------------------------------------------------------------------------------------


class CountingConnection(sqlite3.Connection):
    """Counts commits; one may be made to fail."""

    commits = 0
    failing = 0
    failing_rollbacks = 0

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.commits += 1
            if self.failing:
                self.failing -= 1
                raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, parameters)  # type: ignore[arg-type]

    def rollback(self) -> None:
        if self.failing_rollbacks:
            self.failing_rollbacks -= 1
            raise sqlite3.OperationalError("disk I/O error")
        super().rollback()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> list[CountingConnection]:
    """The connection of the store that is opened next."""
    made: list[CountingConnection] = []

    def connect(path: str, read_only: bool) -> sqlite3.Connection:
        made.append(sqlite3.connect(path, isolation_level=None, factory=CountingConnection))
        return made[-1]

    monkeypatch.setattr(sqlite_metadata, "_connect", connect)
    return made


def test_writers_that_wait_share_a_commit(
    tmp_path: Path, connection: list[CountingConnection]
) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        before = connection[0].commits
        await asyncio.gather(*(store.create(f"/n/{n}", b"") for n in range(400)))
        assert connection[0].commits - before < 100
        await store.close()

    asyncio.run(main())


def test_a_refused_operation_does_not_spoil_its_batch(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        await store.create("/taken", b"")
        outcomes = await asyncio.gather(
            *(store.create(path, b"") for path in ("/a", "/taken", "/b")), return_exceptions=True
        )
        assert [outcomes[0], outcomes[2]] == ["/a", "/b"]
        assert isinstance(outcomes[1], NodeExistsError)
        assert await store.children("/") == ["a", "b", "taken"]
        await store.close()

    asyncio.run(main())


def test_a_full_disk_fails_the_whole_batch_and_nothing_is_kept(
    tmp_path: Path, connection: list[CountingConnection]
) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        told: list[str] = []
        store.watch("/", told.append)
        connection[0].failing = 1_000_000
        outcomes = await asyncio.gather(
            *(store.create(f"/{n}", b"") for n in range(10)), return_exceptions=True
        )
        assert all("disk is full" in str(outcome) for outcome in outcomes)
        connection[0].failing = 0
        assert await store.children("/") == []
        assert told == []
        await store.create("/a", b"")
        assert await store.children("/") == ["a"]
        await store.close()

    asyncio.run(main())


def test_a_disk_that_fails_a_rollback_too_stops_nothing_for_ever(
    tmp_path: Path, connection: list[CountingConnection]
) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        connection[0].failing = connection[0].failing_rollbacks = 1
        async with asyncio.timeout(60):
            for _ in range(2):
                with pytest.raises(MetadataError):
                    await store.create("/a", b"")
            assert await store.children("/") == []
            await store.create("/a", b"")
            await store.close()

    asyncio.run(main())


def test_a_stuck_disk_bounds_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(sqlite_metadata, "PENDING_MAX", 10)
        store = await SqliteMetadataStore.open(tmp_path / "m.db")
        outcomes = await asyncio.gather(
            *(store.create(f"/{n}", b"") for n in range(30)), return_exceptions=True
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, MetadataError)]
        assert len(refused) == 20
        assert "try again" in str(refused[0])
        await store.create("/later", b"")
        await store.close()

    asyncio.run(main())


# -- crashes --------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from magnetar.env.metadata import CreateMode
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore

async def main():
    store = await SqliteMetadataStore.open(sys.argv[1])
    await store.create("/here", b"", CreateMode.EPHEMERAL)
    start = int(sys.argv[2])
    for number in range(start, start + 1_000_000):
        await store.create(f"/n/{number:08d}", b"%d" % number)
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_killed_process_loses_nothing_that_returned(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    last = -1
    for round_number in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(last + 1)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(30 + 37 * round_number):
            writer.stdout.readline()
        with pytest.raises(MetadataError, match=f"process {writer.pid} "):
            asyncio.run(SqliteMetadataStore.open(path))
        writer.send_signal(signal.SIGKILL)
        printed = writer.stdout.read().split()
        writer.wait()
        asyncio.run(_check_after_crash(path, int(printed[-1]) if printed else 0))
        last = int(printed[-1]) if printed else last
        last = max(last, asyncio.run(_highest(path)))


async def _check_after_crash(path: Path, acknowledged: int) -> None:
    store = await SqliteMetadataStore.open(path)
    assert await store.children("/") == ["n"]  # the crashed session's node is gone
    names = await store.children("/n")
    assert names == [f"{n:08d}" for n in range(len(names))]
    assert len(names) > acknowledged
    assert (await store.get(f"/n/{acknowledged:08d}")).value == b"%d" % acknowledged
    await store.close()


async def _highest(path: Path) -> int:
    store: MetadataStore = await SqliteMetadataStore.open(path)
    names = await store.children("/n")
    await store.close()
    return int(names[-1])


def test_a_store_without_a_close_ends_with_its_loop(tmp_path: Path) -> None:
    """A caller that dies without closing leaves a daemon thread, and no lock once it is gone."""
    script = (
        "import asyncio, sys\n"
        "from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore as S\n"
        "asyncio.run(S.open(sys.argv[1]))\n"
    )
    path = tmp_path / "m.db"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=120)

    async def main() -> None:
        store = await SqliteMetadataStore.open(path)
        await store.create("/e", b"", CreateMode.EPHEMERAL)
        await store.close()

    asyncio.run(main())
