"""A catalog and an object storage in memory, as tables of topics are kept in: what pyiceberg and
pyarrow reach for the product.

Rules:

* A table is a state with a number. A commit names the number that it was made on, and is refused on
  any other: as Iceberg's are, without the retries that ``COMMITS_ONCE`` forbids.
* What is asked takes time on both ways. An answer may be lost: the commit stands, and its maker is
  told that nobody knows. A request goes on its way when its process dies.
* While the warehouse is down nobody gets an answer; while it refuses files none is written or read.
* Who is behind reads what was true a while ago.
* A file is there until it is removed, whoever has found it in a state that was true before.

The rows of a file lie in groups, and its reference says which ledgers it may hold. A row is a part
of an entry's bytes: an entry is its rows' bytes, by ``at``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Final, NamedTuple, TypeAlias, TypeVar

from magnetar.model.errors import TableError
from magnetar.tables.parts import IdSpan
from magnetar_sim.world.loop import SimLoop, current_process

R = TypeVar("R")

DELAY_S: Final = (0.000_5, 0.01)
REQUEST_S: Final = 2.0
WHOLE: Final = -1
"""The place of the one row of an entry that is kept as it is."""


class Row(NamedTuple):
    """A message of an entry, or an entry that is kept whole."""

    ledger_id: int
    entry_id: int
    at: int
    data: bytes


Groups: TypeAlias = tuple[tuple[Row, ...], ...]


class FileRef(NamedTuple):
    """A file, as a state of a table names it."""

    path: str
    of_ledgers: IdSpan
    rows: int


class TableState(NamedTuple):
    """A table at some time."""

    number: int
    properties: Mapping[str, str]
    files: tuple[FileRef, ...]


class Warehouse:
    """All tables of a run. ``committed``: is told each state that a table has had, and the one
    before it."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.tables: dict[str, TableState] = {}
        self.files: dict[str, Groups] = {}
        self.committed: Callable[[str, TableState | None], None] = lambda *_: None
        self.down = False
        self.refuses_files = False
        self.lost_answers = 0.0
        self.slow_s = 0.0
        self._loop = loop
        self._random = rng
        self._behind: dict[str, dict[str, TableState]] = {}  # host -> what it reads
        self._let_go: dict[str, dict[str, None]] = {}
        """Files that no current state of the table names any more."""
        self._serial = 0

    # -- what everybody asks ------------------------------------------------------------------

    async def table(self, name: str) -> TableState | None:
        """As it is, or was."""
        process = current_process()
        host = "" if process is None else process.name

        def read() -> TableState | None:
            return self._behind.get(host, self.tables).get(name)

        return await self._ask(read, f"table {name}")

    async def make(self, name: str, properties: Mapping[str, str]) -> None:
        """If there is none."""

        def make() -> None:
            if name not in self.tables:
                self._set(name, TableState(1, properties, ()))

        await self._ask(make, f"making table {name}")

    async def commit(
        self,
        name: str,
        base: TableState,
        properties: Mapping[str, str],
        added: Sequence[FileRef] = (),
        removed: Sequence[FileRef] = (),
    ) -> None:
        """Raises ``TableError``: it was refused, or nobody knows."""
        await self._ask(
            lambda: self._commit(name, base, properties, added, removed), f"commit to {name}"
        )

    async def expire(self, name: str) -> None:
        """Former states go, and files that only they name."""

        def expire() -> None:
            for path in self._let_go.pop(name, {}):
                self.files.pop(path, None)

        await self._ask(expire, f"snapshots of {name}")

    async def put(self, groups: Groups) -> FileRef:
        """A new file, which no table names yet."""

        def put() -> FileRef:
            self._check_files()
            self._serial += 1
            path = f"file-{self._serial}"
            self.files[path] = groups
            ids = [row.ledger_id for group in groups for row in group]
            return FileRef(path, IdSpan(min(ids), max(ids)), len(ids))

        return await self._ask(put, "a new file")

    async def get(self, path: str) -> Groups:
        """Its rows."""

        def get() -> Groups:
            self._check_files()
            if path not in self.files:
                raise TableError(f"{path} is not there any more")
            return self.files[path]

        return await self._ask(get, path)

    # -- what is wrong with it ----------------------------------------------------------------

    def fall_behind(self, host: str) -> None:
        """It reads what is true now, from now on."""
        self._behind[host] = dict(self.tables)

    def catch_up(self, host: str) -> None:
        self._behind.pop(host, None)

    def heal(self) -> None:
        self.down = self.refuses_files = False
        self.lost_answers = self.slow_s = 0.0
        self._behind.clear()

    # -----------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        if self.refuses_files:
            raise TableError("the object storage refuses files")

    def _commit(
        self,
        name: str,
        base: TableState,
        properties: Mapping[str, str],
        added: Sequence[FileRef],
        removed: Sequence[FileRef],
    ) -> None:
        current = self.tables[name]
        self.compare(name, current, base)
        gone = {each.path for each in removed}
        files = (*(each for each in current.files if each.path not in gone), *added)
        self._let_go.setdefault(name, {}).update(dict.fromkeys(sorted(gone)))
        merged = {**current.properties, **properties}
        self._set(name, TableState(current.number + 1, merged, files))

    def compare(self, name: str, current: TableState, base: TableState) -> None:
        """Raises ``TableError`` when somebody else was faster."""
        if current.number != base.number:
            raise TableError(f"commit to {name}: it has changed since it was read")

    def _set(self, name: str, state: TableState) -> None:
        before = self.tables.get(name)
        self.tables[name] = state
        self.committed(name, before)

    async def _ask(self, act: Callable[[], R], what: str) -> R:
        """Carried out at the warehouse, which is nobody's process."""
        loop, process = self._loop, current_process()
        answer: asyncio.Future[tuple[R]] = loop.create_future()

        def settle(found: tuple[R] | None, error: TableError | None) -> None:
            if answer.done():
                return
            if found is None:
                assert error is not None
                answer.set_exception(error)
            else:
                answer.set_result(found)

        def arrive() -> None:
            if self.down:
                return
            found: tuple[R] | None = None
            error: TableError | None = None
            try:
                found = (act(),)
            except TableError as refused:
                error = refused
            if self._random.random() < self.lost_answers:
                found, error = None, TableError(f"{what}: the answer is lost; it may be done")
            context = Context() if process is None else process.context
            loop.call_at(loop.time() + self._delay_s(), settle, found, error, context=context)

        loop.call_at(loop.time() + self._delay_s(), arrive, context=Context())
        try:
            async with asyncio.timeout(REQUEST_S):
                return (await answer)[0]
        except TimeoutError:
            raise TableError(f"{what}: no answer in {REQUEST_S} s") from None

    def _delay_s(self) -> float:
        return self._random.uniform(*DELAY_S) + self.slow_s * self._random.random()


def entries_of(rows: Sequence[Row]) -> dict[int, bytes]:
    """Of one ledger's rows: the bytes of each entry."""
    found: dict[int, list[bytes]] = {}
    for row in sorted(rows):
        found.setdefault(row.entry_id, []).append(row.data)
    return {entry_id: b"".join(pieces) for entry_id, pieces in found.items()}
