"""The cookie check: every way in which disks, settings and store can disagree."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.bookie.cookie import check_cookie
from magnetar.env.metadata import MetadataStore
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.model.errors import BookieIOError, ConfigError, CookieError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_cookie import decode_cookie, encode_cookie
from tests.unit.env.lossy_metadata import LossyStore

NODE = "/ledgers/cookies/bookie-1"


@dataclass
class Site:
    """A bookie's disks and its metadata store."""

    base: Path
    bookie_id: str = "bookie-1"
    instance_id: str = "instance-1"
    ledgers: Sequence[str] = ("ledgers0", "ledgers1")
    journals: Sequence[str] = ("journal0",)
    relative: bool = False
    store_name: str = "m.db"
    losses: dict[str, list[str]] = field(default_factory=dict)

    @property
    def all_directories(self) -> list[Path]:
        return [self.base / name for name in (*self.journals, *self.ledgers)]

    def start(self) -> None:
        """Check as a starting bookie does, then write some data, as a running one does."""
        self.check()
        for directory in self.all_directories:
            (directory / "data.log").write_bytes(b"entries")

    def check(self) -> None:
        async def scenario(store: MetadataStore) -> None:
            await check_cookie(
                store,
                "/ledgers",
                BookieId(self.bookie_id),
                [self.base / name for name in self.ledgers],
                self.instance_id,
                "127.0.0.1:3181",
                journal_directories=[self.base / name for name in self.journals],
                relative_to=self.base if self.relative else None,
            )

        self.with_store(scenario)

    def with_store(self, scenario: Callable) -> None:  # type: ignore[type-arg]
        async def main() -> None:
            store = LossyStore(await SqliteMetadataStore.open(self.base / self.store_name))
            store.losses = self.losses
            try:
                await scenario(store)
            finally:
                store.losses = {}
                await store.close()

        asyncio.run(main())

    def refused(self, message: str) -> None:
        with pytest.raises(CookieError, match=message) as caught:
            self.check()
        assert "bookie" in str(caught.value)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_first_start_and_the_next(site: Site) -> None:
    site.start()
    cookies = [
        (directory / "current" / "VERSION").read_bytes() for directory in site.all_directories
    ]
    assert len({*cookies}) == 1
    cookie = decode_cookie(cookies[0], "here")
    assert cookie.bookie_id == "bookie-1"
    assert cookie.journal_dir == str(site.base / "journal0")
    assert cookie.ledger_dirs.split("\t") == [
        "2",
        str(site.base / "ledgers0"),
        str(site.base / "ledgers1"),
    ]

    async def stored(store: MetadataStore) -> None:
        assert (await store.get(NODE)).value == cookies[0]

    site.with_store(stored)
    site.check()
    site.check()


def test_journals_and_ledgers_may_share_a_directory(site: Site) -> None:
    site.journals = site.ledgers = ("one",)
    site.start()
    site.check()
    site.ledgers = ("one", "two")
    site.refused("ledger directories")


# -- a disk that is not what it was ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal0", "ledgers0", "ledgers1"])
def test_a_wiped_directory_is_refused(site: Site, name: str) -> None:
    site.start()
    shutil.rmtree(site.base / name)
    site.refused(f"{name} is empty and has no current/VERSION.*wiped, replaced or is not mounted")
    (site.base / name).mkdir()
    site.refused(f"{name} is empty")
    assert not (site.base / name / "current").exists(), "a refused bookie leaves no cookie"


def test_a_directory_that_lost_its_cookie_only(site: Site) -> None:
    site.start()
    (site.base / "ledgers1" / "current" / "VERSION").unlink()
    site.refused("ledgers1 holds files and has no current/VERSION")


def test_all_disks_wiped_under_a_known_id(site: Site) -> None:
    """BookKeeper #2612: a bookie that returns empty would deny what it acknowledged."""
    site.start()
    for directory in site.all_directories:
        shutil.rmtree(directory)
    site.refused("starting would deny entries")


def test_a_disk_of_another_bookie(site: Site) -> None:
    site.start()
    path = site.base / "ledgers1" / "current" / "VERSION"
    cookie = decode_cookie(path.read_bytes(), "")
    path.write_bytes(encode_cookie(cookie).replace(b"bookie-1", b"bookie-2"))
    site.refused(r"ledgers1/current/VERSION says bookie id 'bookie-2', its settings")


def test_a_damaged_cookie_file(site: Site) -> None:
    site.start()
    (site.base / "ledgers0" / "current" / "VERSION").write_bytes(b"\0" * 100)
    site.refused(r"ledgers0/current/VERSION is no bookie's cookie.*restore the file")


def test_a_directory_that_cannot_be_read(site: Site) -> None:
    site.start()
    shutil.rmtree(site.base / "ledgers0")
    (site.base / "ledgers0").write_text("a file")
    with pytest.raises(BookieIOError, match="ledgers0"):
        site.check()


# -- settings that changed ------------------------------------------------------------------------


def test_a_changed_id(site: Site) -> None:
    site.start()
    site.bookie_id = "bookie-9"
    site.refused(r"VERSION says bookie id 'bookie-1', its settings say 'bookie-9'.*id")


@pytest.mark.parametrize(
    ("journals", "ledgers", "what"),
    [
        (("journal0",), ("ledgers0",), "ledger directories"),
        (("journal0",), ("ledgers1", "ledgers0"), "ledger directories"),
        (("journal0",), ("ledgers0", "ledgers1", "ledgers2"), "ledger directories"),
        (("journal9",), ("ledgers0", "ledgers1"), "journal directories"),
        (("journal0", "journal1"), ("ledgers0", "ledgers1"), "journal directories"),
    ],
)
def test_changed_directories(
    site: Site, journals: tuple[str, ...], ledgers: tuple[str, ...], what: str
) -> None:
    site.start()
    site.journals, site.ledgers = journals, ledgers
    site.refused(rf"metadata store \({NODE}\) says {what} .* restore the setting")


def test_another_cluster(site: Site) -> None:
    site.start()
    site.instance_id = "instance-2"
    site.refused("says instance id 'instance-1', its settings say 'instance-2'.*its own cluster")


def test_a_moved_data_directory(site: Site, tmp_path: Path) -> None:
    site.base = tmp_path / "old"
    site.base.mkdir()
    site.relative = True
    site.start()
    (tmp_path / "old").rename(tmp_path / "new")
    site.base = tmp_path / "new"
    site.check()
    site.relative = False
    site.refused("directories")


# -- a store that does not know the bookie --------------------------------------------------------


def test_a_store_that_lost_the_bookie(site: Site) -> None:
    site.start()
    site.store_name = "empty.db"
    site.refused("holds its data, but the metadata store does not know the bookie")


def test_a_first_start_over_foreign_files(site: Site) -> None:
    (site.base / "ledgers0").mkdir()
    (site.base / "ledgers0" / "holiday.jpg").write_bytes(b"")
    site.refused(r"ledgers0 is not empty and has no current/VERSION.*give it empty directories")
    assert not (site.base / "ledgers1").exists()


def test_a_fresh_file_system_is_empty(site: Site) -> None:
    (site.base / "ledgers0" / "lost+found").mkdir(parents=True)
    site.start()
    site.check()


@pytest.mark.parametrize("stamped", [1, 2, 3])
def test_a_first_start_that_was_cut_short(site: Site, stamped: int) -> None:
    site.losses = {"create": ["request"]}
    with pytest.raises(Exception, match="request lost"):
        site.check()
    for directory in site.all_directories[stamped:]:
        shutil.rmtree(directory)
    if stamped < 3:
        torn = site.all_directories[stamped] / "current" / "VERSION.new"
        torn.parent.mkdir(parents=True)
        torn.write_bytes(b"5\nbook" * 200)
    site.start()
    site.check()


def test_a_first_start_whose_answer_was_lost(site: Site) -> None:
    site.losses = {"create": ["answer"]}
    with pytest.raises(Exception, match="answer lost"):
        site.check()
    site.check()


def test_two_bookies_of_one_id(site: Site, tmp_path: Path) -> None:
    site.start()
    twin = Site(site.base, ledgers=("twin",), journals=("twin",))
    twin.refused("metadata store .* directories")
    assert not (site.base / "twin").exists()


def test_a_broken_cookie_in_the_store(site: Site) -> None:
    site.start()

    async def damage(store: MetadataStore) -> None:
        await store.put(NODE, b"nonsense", -1)

    site.with_store(damage)
    with pytest.raises(CookieError, match=f"{NODE} in the metadata store is no bookie's cookie"):
        site.check()


def test_a_ledger_directory_that_was_emptied_but_for_its_cookie_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.start()
    (tmp_path / "ledgers1" / "lastmark").unlink()  # other files, as a reserve, may be left
    with pytest.raises(CookieError, match=r"ledgers1 holds its .* but neither lastmark nor index"):
        site.check()
    (tmp_path / "ledgers1" / "index").mkdir()
    site.check()  # the bookie looks at what is in it


def test_a_first_start_that_has_not_come_to_write_anything_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.check()
    site.check()


def test_journals_that_have_changed_places_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, journals=("journal0", "journal1"))
    site.start()
    site.check()
    (tmp_path / "journal0").rename(tmp_path / "other")
    (tmp_path / "journal1").rename(tmp_path / "journal0")
    (tmp_path / "other").rename(tmp_path / "journal1")
    with pytest.raises(CookieError, match="is journal '2 of 2', its settings say '1 of 2'"):
        site.check()


def test_a_bookie_from_before_places_were_kept_gets_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.start()
    place = tmp_path / "journal0" / "current" / "PLACE"
    place.unlink()
    site.check()
    assert place.read_bytes() == b"1 of 1\n"


def test_a_directory_named_twice_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    site = Site(tmp_path, ledgers=("ledgers0", "ledgers0"))
    with pytest.raises(ConfigError, match=r"ledger_directories names .*ledgers0 twice"):
        site.check()
    assert not (tmp_path / "ledgers0").exists()
    Site(tmp_path).start()
