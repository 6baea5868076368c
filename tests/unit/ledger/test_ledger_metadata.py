"""The ledger manager over the embedded store: places, ids, compare-and-set, broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.env.metadata_stores.sqlite_tree import SqliteTree
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.errors import (
    BadVersionError,
    LedgerError,
    LedgerExistsError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.wire.bookie.metadata_layout import SHORT_ID_END, LedgerLayout, encode_layout
from tests.unit.env.lossy_metadata import LossyStore


def ledger(ledger_id: int, password: bytes = b"") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=password,
        fragments=(Fragment(0, (BookieId("b:1"),)),),
    )


def with_manager(scenario: Callable[[LedgerManager, LossyStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = LossyStore(await SqliteMetadataStore.open(MEMORY))
        try:
            manager = LedgerManager(store)
            await manager.initialize()
            await scenario(manager, store)
        finally:
            await store.close()

    asyncio.run(main())


async def set_counter(store: MetadataStore, path: str, value: int) -> None:
    """Move a counter of the embedded store to ``value``."""
    await store.create(f"{path}/seed", b"")
    assert isinstance(store, SqliteMetadataStore)
    parent, _, name = path.rpartition("/")

    def move(tree: SqliteTree) -> None:
        tree._db.execute(
            "UPDATE node SET next_child = ? WHERE parent = ? AND name = ?", (value, parent, name)
        )

    await store._submit(move)
    await store.delete(f"{path}/seed")


# -- the cluster ----------------------------------------------------------------------------------


def test_a_new_cluster_has_bookkeepers_nodes() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        manager = LedgerManager(store, new_instance_id=lambda: "instance-1")
        assert await manager.initialize() == "instance-1"
        assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available", "cookies"]
        assert await store.children("/ledgers/available") == ["readonly"]
        assert (await store.get("/ledgers/LAYOUT")).value == encode_layout(
            LedgerLayout.HIERARCHICAL
        )
        again = LedgerManager(store)
        assert await again.initialize() == again.instance_id == "instance-1"
        await store.close()

    asyncio.run(main())


def test_many_may_initialize_at_once() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        ids = await asyncio.gather(*(LedgerManager(store).initialize() for _ in range(10)))
        assert len({*ids}) == 1
        await store.close()

    asyncio.run(main())


def test_an_initialization_that_was_cut_short_is_finished() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        await store.create("/ledgers/available/readonly", b"")
        await store.create("/ledgers/INSTANCEID", b"first")
        assert await LedgerManager(store).initialize() == "first"
        await store.close()

    asyncio.run(main())


def test_reading_only_makes_nothing() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        with pytest.raises(NoNodeError, match="no cluster at /elsewhere"):
            await LedgerManager(store, "/elsewhere").initialize(create=False)
        assert await store.children("/") == []
        await store.close()

    asyncio.run(main())


def test_an_unknown_layout_is_refused() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        await store.create("/ledgers/LAYOUT", b"2\ncom.example.Factory:1")
        with pytest.raises(MetadataFormatError, match=r"com\.example\.Factory"):
            await LedgerManager(store).initialize()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("layout", LedgerLayout)
def test_every_layout_serves(layout: LedgerLayout) -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        await store.create("/ledgers/LAYOUT", encode_layout(layout))
        manager = LedgerManager(store)
        assert await manager.initialize() == ""  # made before there were instance ids
        ids = [await manager.new_ledger_id() for _ in range(3)]
        for ledger_id in ids:
            await manager.create(ledger(ledger_id))
        assert await manager.ledger_ids() == ids == sorted(ids)
        await store.close()

    asyncio.run(main())


# -- one ledger -----------------------------------------------------------------------------------


def test_a_ledger_from_creation_to_deletion() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        ledger_id = await manager.new_ledger_id()
        version = await manager.create(ledger(ledger_id, b"secret"))
        found, read_version = await manager.read(ledger_id)
        assert read_version == version == 0
        assert found.creator_token != 0
        assert replace(found, creator_token=0) == ledger(ledger_id, b"secret")
        recovering = replace(found, state=LedgerState.IN_RECOVERY)
        version = await manager.write(recovering, version)
        with pytest.raises(BadVersionError):
            await manager.write(found.with_close(1, 10), 0)
        version = await manager.write(recovering.with_close(1, 10), version)
        assert await manager.read(ledger_id) == (recovering.with_close(1, 10), version)
        with pytest.raises(BadVersionError):
            await manager.delete(ledger_id, 0)
        await manager.delete(ledger_id, version)
        with pytest.raises(NoSuchLedgerError, match=f"ledger {ledger_id} "):
            await manager.read(ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await manager.write(found, version)
        with pytest.raises(NoSuchLedgerError):
            await manager.delete(ledger_id)
        assert "00" not in await store.children("/ledgers"), "empty directories are pruned"

    with_manager(scenario)


@pytest.mark.parametrize("ledger_id", [-1, -(1 << 63), 1 << 63])
def test_an_id_that_no_ledger_can_have_is_that_of_none(ledger_id: int) -> None:
    """Clients that write staged ledgers by a broker say any number."""

    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        with pytest.raises(NoSuchLedgerError, match="no ledger has such an id"):
            await manager.read(ledger_id)

    with_manager(scenario)


def test_an_id_is_created_once() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        other = LedgerManager(store)
        await other.initialize()
        outcomes = await asyncio.gather(
            manager.create(ledger(7, b"a")), other.create(ledger(7, b"b")), return_exceptions=True
        )
        assert [outcomes[0], type(outcomes[1])] == [0, LedgerExistsError]
        assert (await manager.read(7))[0].password == b"a"

    with_manager(scenario)


def test_damaged_metadata_is_named() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        await store.create(manager.path(5), b"garbage")
        with pytest.raises(MetadataFormatError, match="ledger 5 ") as told:
            await manager.read(5)
        for said in (manager.path(5), "copy of the store", "magnetar ledger delete 5 --force"):
            assert said in str(told.value)

    with_manager(scenario)


def test_watching_a_ledger() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        told: list[int] = []
        await manager.create(ledger(3))
        await manager.create(ledger(4))
        end = manager.watch(3, told.append)
        await manager.write(ledger(4), 0)
        await asyncio.sleep(0)
        assert told == []
        await manager.write(ledger(3), 0)
        await asyncio.sleep(0)
        assert told == [3]
        end()
        await manager.delete(3)
        await asyncio.sleep(0)
        assert told == [3]

    with_manager(scenario)


# -- all ledgers ----------------------------------------------------------------------------------


def test_listing_is_ascending_over_both_hierarchies() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        ids = [0, 9_999, 10_000, 123_456_789, SHORT_ID_END - 1, SHORT_ID_END, 2**40, 2**63 - 1]
        for ledger_id in reversed(ids):
            await manager.create(ledger(ledger_id))
        await manager.new_ledger_id()
        for foreign in ("underreplication/ledgers/0000", "00/x", "00/0000/M0000", "77/0000x/L0001"):
            await store.create(f"/ledgers/{foreign}", b"")
        assert await manager.ledger_ids() == ids
        assert [ledger_id async for ledger_id in manager.iterate()] == ids

    with_manager(scenario)


def test_what_lives_is_asked_of_the_store_that_the_cluster_belongs_to() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        for ledger_id in (1, 20_000):
            await manager.create(ledger(ledger_id))
        mine = manager.instance_id
        assert [ledger_id async for ledger_id in manager.living(mine)] == [1, 20_000]
        await store.put("/ledgers/INSTANCEID", b"another", -1)
        with pytest.raises(MetadataError, match="replaced"):
            await anext(manager.living(mine))
        await store.delete("/ledgers/LAYOUT")
        with pytest.raises(NoNodeError):
            await anext(manager.living(mine))

    with_manager(scenario)


def test_ranges_cover_all_ids_and_tell_of_each_what_lives_there() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        ids = [0, 9_999, 10_000, 123_456_789, SHORT_ID_END - 1, SHORT_ID_END, 2**40, 2**63 - 1]
        for ledger_id in ids:
            await manager.create(ledger(ledger_id))
        await store.create("/ledgers/00/0000/M0000", b"")
        mine = manager.instance_id
        ranges = [each async for each in manager.living_ranges(mine)]
        assert ranges[0].first == 0
        assert ranges[-1].behind == 2**63
        for one, following in pairwise(ranges):
            assert one.first < one.behind == following.first
        assert [one for each in ranges for one in await each.ids()] == ids
        stamps = {each.first: each.stamp for each in ranges}
        assert None not in (stamps[0], stamps[10_000], stamps[20_000 - 10_000])
        assert stamps[20_000] is None, "no directory is there"
        await manager.delete(LedgerId(9_999))
        again = {each.first: each.stamp async for each in manager.living_ranges(mine)}
        assert [first for first in stamps if stamps[first] != again[first]] == [0]
        await store.put("/ledgers/INSTANCEID", b"another", -1)
        with pytest.raises(MetadataError, match="replaced"):
            await anext(manager.living_ranges(mine))

    with_manager(scenario)


# -- ids ------------------------------------------------------------------------------------------


def test_ids_grow_over_all_managers() -> None:
    """A log's ledgers must have growing ids whichever broker makes them."""

    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        other = LedgerManager(store)
        await other.initialize()
        ids = []
        for _ in range(10):
            ids += [await manager.new_ledger_id(), await other.new_ledger_id()]
        assert ids == sorted({*ids})

    with_manager(scenario)


def test_ids_asked_for_together_differ_and_leave_little_behind() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        ids = await asyncio.gather(*(manager.new_ledger_id() for _ in range(50)))
        assert len({*ids}) == 50
        await manager.create(ledger(ids[0]))
        assert await store.children("/ledgers/idgen") == []

    with_manager(scenario)


def test_a_lost_answer_skips_an_id() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        first = await manager.new_ledger_id()
        store.losses["create"] = ["answer"]
        with pytest.raises(MetadataUnavailableError):
            await manager.new_ledger_id()
        store.losses["delete"] = ["request"] * 5  # id nodes that stay behind do no harm
        assert await manager.new_ledger_id() > first
        assert await manager.new_ledger_id() > first + 1

    with_manager(scenario)


def test_ids_go_on_in_63_bits() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        manager = LedgerManager(store)
        await manager.initialize()
        await set_counter(store, "/ledgers/idgen", SHORT_ID_END - 1)
        assert await manager.new_ledger_id() == SHORT_ID_END - 1
        long_ids = [await manager.new_ledger_id() for _ in range(3)]
        assert long_ids == [1 << 32, (1 << 32) + 1, (1 << 32) + 2]
        fresh = LedgerManager(store)  # finds that long ids have begun
        await fresh.initialize()
        assert await fresh.new_ledger_id() == (1 << 32) + 3
        await set_counter(store, "/ledgers/idgen-long/HOB-0000000001", SHORT_ID_END)
        assert await fresh.new_ledger_id() == 2 << 32
        assert await manager.new_ledger_id() == (2 << 32) + 1
        await manager.create(ledger(2 << 32))
        assert await manager.ledger_ids() == [2 << 32]
        await store.close()

    asyncio.run(main())


def test_short_layouts_say_when_ids_are_used_up() -> None:
    async def main() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        await store.create("/ledgers/LAYOUT", encode_layout(LedgerLayout.LEGACY_HIERARCHICAL))
        manager = LedgerManager(store)
        await manager.initialize()
        await set_counter(store, "/ledgers/idgen", SHORT_ID_END)
        with pytest.raises(LedgerError, match="used up"):
            await manager.new_ledger_id()
        await store.close()

    asyncio.run(main())


# -- broken connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [["answer"], ["request"], ["request", "answer"]])
def test_a_create_whose_answer_was_lost_is_ours(losses: list[str]) -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        store.losses["create"] = list(losses)
        assert await manager.create(ledger(1, b"ours")) == 0
        assert (await manager.read(1))[0].password == b"ours"

    with_manager(scenario)


def test_a_create_that_another_won_meanwhile_is_not_ours() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        other = LedgerManager(store)
        await other.initialize()
        await other.create(ledger(1, b"theirs"))
        store.losses["create"] = ["request"]
        with pytest.raises(LedgerExistsError):
            await manager.create(ledger(1, b"ours"))
        assert (await manager.read(1))[0].password == b"theirs"

    with_manager(scenario)


@pytest.mark.parametrize("losses", [["answer"], ["request"], ["request", "answer"]])
def test_a_write_whose_answer_was_lost_happened_once(losses: list[str]) -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        await manager.create(ledger(1))
        store.losses["put"] = list(losses)
        assert await manager.write(ledger(1).with_close(4, 44), 0) == 1
        assert await manager.read(1) == (ledger(1).with_close(4, 44), 1)

    with_manager(scenario)


def test_a_write_that_lost_to_another_says_so() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        await manager.create(ledger(1))
        await manager.write(ledger(1).with_close(1, 1), 0)
        store.losses["put"] = ["request"]
        with pytest.raises(BadVersionError):
            await manager.write(ledger(1).with_close(2, 2), 0)
        assert (await manager.read(1))[0].last_entry_id == 1

    with_manager(scenario)


def test_a_store_that_stays_away_is_an_error_after_a_few_attempts() -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        await manager.create(ledger(1))
        for name, attempt in (
            ("create", lambda: manager.create(ledger(2))),
            ("put", lambda: manager.write(ledger(1), 0)),
            ("delete", lambda: manager.delete(1)),
        ):
            store.losses[name] = ["request"] * 100
            with pytest.raises(MetadataUnavailableError):
                await attempt()
            assert len(store.losses.pop(name)) > 90

    with_manager(scenario)


@pytest.mark.parametrize("loss", ["answer", "request"])
def test_a_deletion_whose_answer_was_lost_is_done(loss: str) -> None:
    async def scenario(manager: LedgerManager, store: LossyStore) -> None:
        await manager.create(ledger(1))
        store.losses["delete"] = [loss]
        await manager.delete(1, 0)
        assert await manager.ledger_ids() == []

    with_manager(scenario)


def test_ephemeral_mode_is_what_ids_use() -> None:
    """An id node that a crash leaves behind must not live for ever."""

    class Recorder(LossyStore):
        def __init__(self, store: MetadataStore) -> None:
            super().__init__(store)
            self.modes: list[CreateMode] = []

        async def create(
            self, path: str, value: bytes, mode: CreateMode = CreateMode.PERSISTENT
        ) -> str:
            if "/ID-" in path:
                self.modes.append(mode)
            return await super().create(path, value, mode)

    async def main() -> None:
        store = Recorder(await SqliteMetadataStore.open(MEMORY))
        manager = LedgerManager(store)
        await manager.initialize()
        await manager.new_ledger_id()
        assert store.modes == [CreateMode.EPHEMERAL_SEQUENTIAL]
        await store.close()

    asyncio.run(main())
