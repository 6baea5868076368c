"""The check that keeps a bookie from starting with the wrong disks.

A bookie that comes up under its id without the data it acknowledged would answer "no such entry"
and lose it for good. So the cookie in the metadata store, the cookies in all of its directories
and its settings must say the same, or it does not start:

| store | directories                 | then                                             |
|-------|-----------------------------|--------------------------------------------------|
| none  | none, empty                 | first start: stamp the directories, then the store |
| none  | some stamped, no data       | a first start that was cut short: go on with it  |
| none  | data                        | refuse: the metadata store is another or was lost |
| there | all agree                   | start                                            |
| there | one without cookie          | refuse: a disk was wiped, replaced or not mounted |
| there | one differs                 | refuse, and say how                              |
| there | one lacks mark and index    | refuse: its entries were removed                 |
| there | two journals have changed places | refuse                                      |

Runs before anything else touches the directories. Source: BookKeeper's
``LegacyCookieValidation``; docs/adr/0034-cookies.md says where we differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog

from magnetar.bookie.directory_names import CURRENT, GENERATION, VERSION
from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.storage.marks import MARK_NAME, MarkFile, Marks
from magnetar.env.files.disk import Disk, RealDisk
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BookieIOError,
    ConfigError,
    CookieError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_cookie import Cookie, decode_cookie, encode_cookie

log = structlog.get_logger(__name__)

INDEX_NAME = "index"
PLACE = "PLACE"
"""Of a journal directory: which of how many it is."""
_NO_DATA = (CURRENT, MARK_NAME, f"{MARK_NAME}.new", "lost+found")

_ADVICE = {
    "bookie id": "restore the bookie's id (or its host and port, if the id comes from them), or, "
    "if disks changed places, mount its own directories where it looks for them",
    "journal directories": "restore the setting, or mount the directories where they were",
    "ledger directories": "restore the setting, or mount the directories where they were",
    "instance id": "point the bookie at the metadata store of its own cluster",
}


async def check_cookie(
    store: MetadataStore,
    root: str,
    bookie_id: BookieId,
    directories: Sequence[Path],
    instance_id: str,
    host_port: str = "",
    *,
    journal_directories: Sequence[Path] = (),
    relative_to: Path | None = None,
    disk: Disk | None = None,
) -> bool:
    """Let the bookie start, or raise ``CookieError``; on a first start make its cookies. Returns
    whether the cluster knew it before.

    ``directories``: the ledger directories; ``journal_directories``: the others (none: the same).
    ``host_port`` only tells the reader of an error which bookie it is. ``relative_to``: note
    directories below it by their path from there, so that a data directory that holds everything
    may be moved as a whole. Raises ``BookieIOError`` if a directory cannot be read or written,
    ``ConfigError`` if one is named twice.
    """
    _require_distinct("bookie.journal.directories", journal_directories)
    _require_distinct("bookie.ledger_directories", directories)
    check = _Check(
        disk or RealDisk(),
        journal_directories,
        directories,
        Cookie.of(
            bookie_id,
            [_noted(path, relative_to) for path in journal_directories or directories],
            [_noted(path, relative_to) for path in directories],
            instance_id,
        ),
        f"bookie {bookie_id}" + (f" ({host_port})" if host_port not in ("", bookie_id) else ""),
        f"{root}/cookies/{bookie_id}",
    )
    lane = check.disk.lane("cookie")
    try:
        stored = await _stored_cookie(store, check.node)
        if await lane.run(lambda: check.may_start(stored)):
            return True
        await lane.run(check.stamp)
        await _store_cookie(store, check)
        return False
    except OSError as error:
        raise BookieIOError(
            f"{check.who} cannot read or write its directories: {error}; check that they are "
            f"mounted and writable"
        ) from error
    finally:
        await lane.close()


def _require_distinct(setting: str, directories: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for directory in directories:
        if directory.absolute() in seen:
            raise ConfigError(
                f"{setting} names {directory} twice; accepted: directories that differ, best on "
                "disks of their own"
            )
        seen.add(directory.absolute())


async def _stored_cookie(store: MetadataStore, node: str) -> Cookie | None:
    try:
        return decode_cookie((await store.get(node)).value, f"{node} in the metadata store")
    except NoNodeError:
        return None
    except MetadataFormatError as error:
        raise CookieError(str(error)) from error


async def _store_cookie(store: MetadataStore, check: _Check) -> None:
    try:
        await store.create(check.node, encode_cookie(check.cookie))
    except NodeExistsError as error:
        other = await _stored_cookie(store, check.node)
        if other != check.cookie:  # else our own create, whose answer was lost
            raise CookieError(
                f"{check.who} does not start: another bookie took its id while it started for the "
                f"first time ({check.node}); give each bookie an id of its own"
            ) from error
    log.info("new bookie", bookie=check.cookie.bookie_id, directories=len(check.directories))


def _noted(path: Path, relative_to: Path | None) -> str:
    """How a directory is written in the cookie. Links are not followed: a link may stand for a
    directory that was moved."""
    absolute = path.absolute()
    if relative_to is not None and absolute.is_relative_to(relative_to.absolute()):
        return str(absolute.relative_to(relative_to.absolute()))
    return str(absolute)


class _Check:
    """The blocking half: runs in a lane."""

    def __init__(
        self,
        disk: Disk,
        journals: Sequence[Path],
        ledgers: Sequence[Path],
        cookie: Cookie,
        who: str,
        node: str,
    ) -> None:
        self.disk = disk
        self.journals = journals
        self.ledgers = ledgers
        self.directories = [*dict.fromkeys([*journals, *ledgers])]
        self.cookie = cookie
        self.who = who
        self.node = node

    def may_start(self, stored: Cookie | None) -> bool:
        """True: all agree. False: a first start. Raises ``CookieError``."""
        if stored is not None:
            self._compare(stored, f"the metadata store ({self.node})")
        stamped = 0
        for directory in self.directories:
            cookie = self._read(directory)
            if cookie is not None:
                self._compare(cookie, str(_version_file(directory)))
                stamped += 1
            elif stored is not None:
                raise self._missing(directory)
        if stored is None:
            self._require_no_data(stamped)
            return False
        for directory in self.ledgers:
            if not {MARK_NAME, INDEX_NAME} & {*self.disk.list(directory)}:
                raise self._emptied(directory)
        for index, directory in enumerate(self.journals):
            self._check_place(index, directory)
        return True

    def _check_place(self, index: int, directory: Path) -> None:
        """Is this journal directory the one that had this number? A mark of one journal would
        skip what another holds. (Ledger directories have theirs in ``lastmark``.)"""
        wanted = b"%d of %d\n" % (index + 1, len(self.journals))
        path = directory / CURRENT / PLACE
        found = self._content(path)
        if found is None:  # of a bookie from before this was kept
            self._replace(path, wanted)
        elif found != wanted:
            raise CookieError(
                f"{self.who} does not start: {path} says that the directory is journal "
                f"{found.decode('utf-8', 'replace').strip()!r}, its settings say "
                f"{wanted.decode().strip()!r}: were disks mounted in each other's place? To start "
                f"it, {_ADVICE['journal directories']}"
            )

    def stamp(self) -> None:
        """Write the first mark into every ledger directory and the cookie into every directory,
        durably. From then on a directory without a mark is one that was emptied."""
        beginnings = (JournalPosition(0, 0),) * max(len(self.journals), 1)
        for index, directory in enumerate(self.ledgers):
            self.disk.make_dir(directory)
            MarkFile(self.disk, directory).store(Marks(index, len(self.ledgers), beginnings))
        data = encode_cookie(self.cookie)
        for index, directory in enumerate(self.journals):
            place = b"%d of %d\n" % (index + 1, len(self.journals))
            self._replace(directory / CURRENT / PLACE, place)
        for directory in self.directories:
            self._replace(_version_file(directory), data)

    def _replace(self, target: Path, data: bytes) -> None:
        """Atomically and durably."""
        temporary = target.with_suffix(".new")
        self.disk.make_dir(target.parent)
        if temporary.name in self.disk.list(target.parent):
            self.disk.remove(temporary)  # a stamp that a crash cut short
        file = self.disk.open(temporary, create=True)
        try:
            file.pwritev([data], 0)
            file.datasync()
        finally:
            file.close()
        self.disk.rename(temporary, target)
        self.disk.sync_dir(target.parent)

    def _content(self, path: Path) -> bytes | None:
        try:
            file = self.disk.open(path)
        except FileNotFoundError:
            return None
        try:
            return file.pread(self.disk.size(path), 0)
        finally:
            file.close()

    def _read(self, directory: Path) -> Cookie | None:
        path = _version_file(directory)
        data = self._content(path)
        if data is None:
            return None
        try:
            return decode_cookie(data, str(path))
        except MetadataFormatError as error:
            raise CookieError(
                f"{self.who} does not start: {error}; restore the file from another of its "
                f"directories, all hold the same"
            ) from error

    def _compare(self, found: Cookie, where: str) -> None:
        differing = difference(found, self.cookie)
        if differing is None:
            return
        what, theirs, ours = differing
        raise CookieError(
            f"{self.who} does not start: {where} says {what} {theirs!r}, its settings say "
            f"{ours!r}. To start it, {_ADVICE[what]}"
        )

    def _emptied(self, directory: Path) -> CookieError:
        return CookieError(
            f"{self.who} does not start: {directory} holds its {CURRENT}/{VERSION}, but neither "
            f"{MARK_NAME} nor {INDEX_NAME}, which every bookie has ({self.node} is known): its "
            f"entries were removed, and starting would deny them. Restore the directory; if its "
            f"data is lost, have it repaired from the others (magnetar bookie recover), "
            f"then start an empty bookie"
        )

    def _missing(self, directory: Path) -> CookieError:
        state = "is empty" if self._is_empty(directory) else "holds files"
        return CookieError(
            f"{self.who} does not start: {directory} {state} and has no {CURRENT}/{VERSION}, but "
            f"the metadata store knows the bookie ({self.node}): the disk was wiped, replaced or "
            f"is not mounted, and starting would deny entries that were acknowledged. Mount or "
            f"restore it; if its data is lost, have it repaired from the others (magnetar bookie "
            f"recover), then start an empty bookie"
        )

    def _require_no_data(self, stamped: int) -> None:
        for directory in self.directories:
            if self._is_empty(directory):
                continue
            if stamped:
                raise CookieError(
                    f"{self.who} does not start: {directory} holds its data, but the metadata "
                    f"store does not know the bookie (no {self.node}); point it at the metadata "
                    f"store that it was made with"
                )
            raise CookieError(
                f"{self.who} does not start: {directory} is not empty and has no "
                f"{CURRENT}/{VERSION}, and the bookie is new to the metadata store (no "
                f"{self.node}); give it empty directories"
            )

    def _is_empty(self, directory: Path) -> bool:
        """Whether it holds nothing but a cookie and a mark."""
        try:
            names = self.disk.list(directory)
        except FileNotFoundError:
            return True
        if any(name not in _NO_DATA for name in names):
            return False
        current = self.disk.list(directory / CURRENT) if CURRENT in names else []
        return all(name.partition(".")[0] in (VERSION, PLACE, GENERATION) for name in current)


def difference(found: Cookie, expected: Cookie) -> tuple[str, str, str] | None:
    """``(what, found, expected)`` of the first thing that two cookies disagree on, or None."""
    pairs = (
        ("bookie id", found.bookie_id, expected.bookie_id),
        ("instance id", found.instance_id, expected.instance_id),
        ("journal directories", found.journal_dir, expected.journal_dir),
        ("ledger directories", found.ledger_dirs, expected.ledger_dirs),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            return what, theirs.replace("\t", " "), ours.replace("\t", " ")
    return None


def _version_file(directory: Path) -> Path:
    return directory / CURRENT / VERSION
