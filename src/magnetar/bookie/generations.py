"""Which of a bookie's directories were put back from an older copy.

All that a copy of a whole directory holds agrees with itself: index, mark and logs; and with its
cookie, which never changes. Started on one, the bookie would deny what it acknowledged since, and
forget its fences: with one bookie more that lacks an entry, recovery would end a ledger before it.

So a number is kept in every ledger directory (``current/GENERATION``) and in the metadata store
(``GENERATIONS/<bookie id>``). It grows at every start, and every ``INTERVAL_S`` in which something
was written. A directory with a lower one than the store's is older than what the bookie had, and
goes into limbo.

Rules:

* The directories have a number durably before the store does: a crash between the two leaves them
  ahead, which is no loss.
* Limbo is durable before the number grows, or a crash would forget what was found.
* A first start is held against nothing; who forgets a bookie's cookie forgets its number.

What cannot be told: a copy that is younger than ``INTERVAL_S``.

Why: docs/adr/0201-directories-know-their-generation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from magnetar.bookie.directory_names import CURRENT, GENERATION
from magnetar.env.files.disk import Disk
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import BookieIOError, MetadataError, NodeExistsError, NoNodeError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_cookie import GENERATIONS

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 600.0


class Generations:
    """Of one bookie. ``check`` first, then ``advance``, once what was found is durable."""

    def __init__(
        self, store: MetadataStore, bookie_id: BookieId, directories: Sequence[Path], disk: Disk
    ) -> None:
        self._store = store
        self._directories = directories
        self._disk = disk
        self._node = f"{GENERATIONS}/{bookie_id}"
        self._number = 0

    async def check(self, known: bool) -> frozenset[Path]:
        """The directories that are older than what the bookie had. ``known``: the cluster knew it
        before, so that there is something to be held against. Raises ``MetadataError``,
        ``BookieIOError``."""
        stored = await self._stored()
        found = await self._in_lane(lambda: [self._read(each) for each in self._directories])
        self._number = max(stored, *found)
        if not known:
            return frozenset()
        older = [
            (path, number)
            for path, number in zip(self._directories, found, strict=True)
            if number < stored
        ]
        for path, number in older:
            log.error(
                "a directory was put back from an older copy: what was acknowledged since is not "
                "in it; negative answers are withheld until the bookie is repaired",
                directory=str(path),
                generation=number,
                generation_of_the_bookie=stored,
            )
        return frozenset(path for path, _ in older)

    async def advance(self) -> None:
        """From here on a copy that was made before is known for one. Raises ``MetadataError``,
        ``BookieIOError``."""
        self._number += 1
        value = b"%d\n" % self._number
        await self._in_lane(lambda: [self._write(each, value) for each in self._directories])
        try:
            await self._store.put(self._node, value, -1)
        except NoNodeError:
            try:
                await self._store.create(self._node, value)
            except NodeExistsError:  # our own, whose answer was lost
                await self._store.put(self._node, value, -1)

    async def run(self, written: Callable[[], object]) -> None:
        """Advance now and then, for ever, if ``written`` has changed since."""
        before = written()
        while True:
            await asyncio.sleep(INTERVAL_S)
            now = written()
            if now == before:
                continue
            try:
                await self.advance()
            except (MetadataError, BookieIOError) as error:
                log.warning("the bookie's generation did not grow; later", error=str(error))
                continue
            before = now

    async def _stored(self) -> int:
        try:
            return _decoded((await self._store.get(self._node)).value)
        except NoNodeError:  # a first start, or of a version that kept none
            return 0

    async def _in_lane(self, job: Callable[[], list[int]]) -> list[int]:
        lane = self._disk.lane("generation")
        try:
            return await lane.run(job)
        except OSError as error:
            raise BookieIOError(
                f"{CURRENT}/{GENERATION} of the bookie's directories: {error}; check that they are "
                "mounted and writable, and have room"
            ) from error
        finally:
            await lane.close()

    def _read(self, directory: Path) -> int:
        path = directory / CURRENT / GENERATION
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return 0
        try:
            return _decoded(file.pread(self._disk.size(path), 0))
        finally:
            file.close()

    def _write(self, directory: Path, value: bytes) -> int:
        """Atomically and durably."""
        target = directory / CURRENT / GENERATION
        temporary = target.with_suffix(".new")
        self._disk.make_dir(target.parent)
        if temporary.name in self._disk.list(target.parent):
            self._disk.remove(temporary)  # of a crash
        file = self._disk.open(temporary, create=True)
        try:
            file.pwritev([value], 0)
            file.datasync()
        finally:
            file.close()
        self._disk.rename(temporary, target)
        self._disk.sync_dir(target.parent)
        return 0


def _decoded(value: bytes) -> int:
    """0, the oldest, of what is no number."""
    text = value.strip()
    return int(text) if text.isdigit() else 0
