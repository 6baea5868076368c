"""Messages of a subscription are skipped, one by one."""

from __future__ import annotations

import pytest

from magnetar.log.acknowledgements import ack_set_words
from magnetar.model.errors import (
    EntryDamagedError,
    MagnetarError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.topics import skipping
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.opening import open_durable
from magnetar.topics.seek import seek
from magnetar.topics.skipping import skip_messages
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe
from tests.interop.pulsar.wire import send_frame
from tests.unit.protocols.pulsar.harness import Peer, World, batch, run


async def subscribed(world: World, *sizes: int) -> tuple[Peer, Subscription]:
    """Batches of so many messages are there; the subscription ``s`` begins with the first."""
    peer = world.peer()
    await peer.produce()
    peer.feed(b"".join(send_frame(1, n, batch(size, n)) for n, size in enumerate(sizes)))
    await peer.heard()
    return peer, await open_durable(world.topic(), "s", EARLIEST, {})


def places(world: World, count: int) -> list[Position]:
    positions = world.log().positions
    found = [positions.first]
    while len(found) < count:
        found.append(positions.next_position(found[-1]))
    return found


@pytest.mark.parametrize("step_entries", [1, 2, 500])
def test_batches_are_skipped_in_part(step_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipping, "STEP_ENTRIES", step_entries)

    async def scenario(world: World) -> None:
        _, whole = await subscribed(world, 1, 10, 1, 70, 1)
        topic, cursor, at = world.topic(), whole.cursor, places(world, 5)
        bits = (1 << 10) - 1
        await skip_messages(topic, whole, 0)
        assert cursor.backlog_entries() == 5
        await skip_messages(topic, whole, 1)
        assert (cursor.backlog_entries(), cursor.ack_set(at[1])) == (4, None)
        await skip_messages(topic, whole, 3)
        assert (cursor.backlog_entries(), cursor.ack_set(at[1])) == (4, [bits & ~0b111])
        # What is acknowledged already does not count.
        cursor.acknowledge_batch(at[1], 10, ack_set_words(bits & ~(1 << 4)))
        await skip_messages(topic, whole, 2)
        assert cursor.ack_set(at[1]) == [bits & ~0b111111]
        cursor.acknowledge([at[2]])
        await skip_messages(topic, whole, 4 + 69)
        assert (cursor.backlog_entries(), cursor.ack_set(at[3])) == (2, ack_set_words(1 << 69))
        await skip_messages(topic, whole, 1)
        assert (cursor.backlog_entries(), cursor.mark_delete) == (1, at[3])
        await skip_messages(topic, whole, 2**62)
        assert cursor.backlog_entries() == 0
        await skip_messages(topic, whole, 5)
        assert cursor.mark_delete == at[4]
        await seek(topic, whole, EARLIEST)
        assert cursor.backlog_entries() == 5

    run(scenario)


def test_what_is_skipped_is_out_at_nobody_and_is_not_sent_again() -> None:
    async def scenario(world: World) -> None:
        peer, subscription = await subscribed(world, *[1] * 8)
        await peer.subscribe("s", kind=CommandSubscribe.Shared)
        peer.flow(4)
        await peer.heard()
        seat = subscription.consumers[0].seat
        assert seat.unacked == 4
        await skip_messages(world.topic(), subscription, 6)
        assert (seat.unacked, subscription.cursor.backlog_entries()) == (0, 2)
        peer.flow(9)
        await peer.heard()
        assert seat.unacked == 2

    run(scenario)


def test_one_that_is_behind_all_has_nothing_to_skip() -> None:
    async def scenario(world: World) -> None:
        await subscribed(world, 1, 1)
        other = await open_durable(world.topic(), "t", LATEST, {})
        await skip_messages(world.topic(), other, 3)
        assert other.cursor.backlog_entries() == 0

    run(scenario)


def test_a_lost_entry_says_how_to_go_on_behind_it() -> None:
    async def scenario(world: World) -> None:
        _, subscription = await subscribed(world, 1, 1, 1)
        first, second, *_ = places(world, 3)
        world.log().cached = False
        world.log().failing = EntryDamagedError("no replica has a sound copy")
        with pytest.raises(EntryDamagedError, match=f"--subscription s --to {second}"):
            await skip_messages(world.topic(), subscription, 1)
        assert subscription.cursor.mark_delete < first

    run(scenario)


@pytest.mark.parametrize("kind", [NoSuchLedgerError, MetadataFormatError])
def test_a_ledger_without_metadata_is_stepped_over_as_a_whole(kind: type[MagnetarError]) -> None:
    """Entry by entry each of its entries would be refused again."""

    async def scenario(world: World) -> None:
        _, subscription = await subscribed(world, 1, 1, 1)
        ledger_id = places(world, 3)[0].ledger_id
        behind = world.log().positions.next_position(world.log().positions.readable)
        world.log().cached = False
        world.log().failing = kind(f"the metadata of ledger {ledger_id}")
        with pytest.raises(kind, match=f"--subscription s --to {behind}"):
            await skip_messages(world.topic(), subscription, 1)

    run(scenario)
