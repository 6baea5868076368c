"""A Key_Shared subscription by itself: as ``test_subscription``, with keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from magnetar.model.entry import Description, TransactionPart
from magnetar.model.errors import ConsumerAssignError, ConsumerBusyError
from magnetar.model.key_hash import NONE_KEY
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.consuming import feed
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Kind
from magnetar.topics.dispatch.key_policy import HashRange, KeyMode, KeyPolicy
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from magnetar.wire.pulsar.sticky_key import sticky_key
from tests.interop.pulsar.wire import checked
from tests.unit.topics.test_subscription import LIMITS, NOW, Client, Site, run

AUTO = KeyPolicy()
LOW = KeyPolicy(KeyMode.STICKY, ranges=(HashRange(0, 32_767),))
HIGH = KeyPolicy(KeyMode.STICKY, ranges=(HashRange(32_768, 65_535),))
IN_LOW, IN_HIGH = "key-1", "key-0"


@pytest.fixture(autouse=True)
def nothing_waits() -> None:
    """What other tests have left."""
    LIMITS.look_ahead.used = 0


@dataclass
class Keyed:
    """Of a site."""

    site: Site

    def join(
        self, permits: int, policy: KeyPolicy = AUTO, name: str = "c"
    ) -> tuple[Consumer, Client]:
        client, subscription = Client(), self.site.subscription
        consumer = Consumer(client, len(subscription.consumers), name, 0, 0, key_policy=policy)
        subscription.check_room(Kind.KEY_SHARED, policy)
        subscription.add(consumer, Kind.KEY_SHARED)
        subscription.announce(consumer)
        subscription.flow(consumer, permits)
        return consumer, client

    def publish(self, *keys: str, due_ms: int = 0) -> None:
        for number, key in enumerate(keys):
            self.site.log.append([keyed(key, number, due_ms)], lambda *_: None)
        self.site.log.release()
        self.site.subscription.dispatcher.wake()


def keyed(key: str, number: int = 1, due_ms: int = 0, **fields: object) -> bytes:
    meta = MessageMetadata(producer_name="w", sequence_id=number, publish_time=1)
    if key:
        meta.partition_key = key
    if due_ms:
        meta.deliver_at_time = due_ms
    for name, value in fields.items():
        setattr(meta, name, value)
    head = meta.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head)


def test_the_key_of_an_entry() -> None:
    assert sticky_key(keyed("k")) == b"k"
    assert sticky_key(keyed("k", ordering_key=b"\xff")) == b"\xff"
    assert sticky_key(keyed("", 7)) == b"w-7"
    assert sticky_key(keyed("aGVsbG8=", partition_key_b64_encoded=True)) == b"hello"
    assert sticky_key(keyed("no base64", partition_key_b64_encoded=True)) == NONE_KEY


def test_sticky_consumers_and_who_cannot_join_them() -> None:
    async def scenario(site: Site) -> None:
        each = Keyed(site)
        _, low = each.join(10, LOW, "low")
        with pytest.raises(ConsumerAssignError, match="Range conflict with consumer low"):
            each.join(10, LOW)
        with pytest.raises(ConsumerBusyError, match="key_shared mode"):
            each.join(10)
        with pytest.raises(ConsumerBusyError, match="key_shared"):
            site.join(Kind.SHARED, 10)
        each.publish(IN_LOW, IN_HIGH, IN_LOW)
        assert await low.entries() == [0, 2]
        _, high = each.join(10, HIGH, "high")
        assert await high.entries() == [1]

    run(scenario, entries=0)


def test_another_mode_can_come_when_everybody_has_left() -> None:
    async def scenario(site: Site) -> None:
        each = Keyed(site)
        each.publish(IN_LOW, IN_HIGH)
        first, client = each.join(1, LOW)
        assert await client.entries() == [0]
        site.subscription.remove(first)
        _, client = each.join(10)
        assert await client.entries() == [0, 1]

    run(scenario, entries=0)


def test_what_waits_is_bounded_and_let_go_of() -> None:
    """Of two consumers four places may wait (``LIMITS``)."""

    async def scenario(site: Site) -> None:
        each, shared = Keyed(site), LIMITS.look_ahead
        low, slow = each.join(0, LOW, "low")
        _, fast = each.join(10, HIGH, "high")
        for _ in range(6):
            each.publish(IN_LOW)
            assert await fast.entries() == []
        each.publish(IN_HIGH)
        assert await fast.entries() == [], "it is behind what may wait"
        assert shared.used == 4
        site.subscription.flow(low, 10)
        assert await slow.entries() == [0, 1]
        site.acknowledge(low, 0, 1)
        assert await slow.entries() == [2, 3]
        assert await fast.entries() == [6]
        assert shared.used == 2
        site.subscription.close()
        assert shared.used == 0

    run(scenario, entries=0)


def test_a_connection_that_was_full_for_a_turn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if what waits is for it alone, and its socket took everything at once, so that nobody
    says that it is free again. Large entries, chunks above all, stood still so."""
    monkeypatch.setattr(feed, "BYTES_MAX", 1)

    async def scenario(site: Site) -> None:
        each = Keyed(site)
        _, client = each.join(10, LOW, "low")
        each.join(10, HIGH, "high")
        client.crowded = True  # with what each turn sends
        each.publish(IN_LOW, IN_LOW)
        assert await client.entries() == [0, 1]

    run(scenario, entries=0)


def test_who_stands_still_for_others_goes_on_when_they_do() -> None:
    """Without a word of its own consumers, and without anything new."""

    async def scenario(site: Site) -> None:
        each, shared = Keyed(site), LIMITS.look_ahead
        each.join(0, LOW, "low")
        _, fast = each.join(10, HIGH, "high")
        shared.used = shared.together  # in other subscriptions
        each.publish(IN_LOW)
        assert await fast.entries() == []
        each.publish(IN_HIGH)
        assert await fast.entries() == [], "something waits here as well"
        shared.let_go(50)
        assert await fast.entries() == [1]
        assert shared.used == 51

    run(scenario, entries=0)


def test_delayed_entries_of_a_key_come_in_time_and_keep_nothing_back() -> None:
    async def scenario(site: Site) -> None:
        each = Keyed(site)
        consumer, client = each.join(10)
        each.publish("k", due_ms=NOW + 20)
        each.publish("k")
        assert await client.entries() == [1]
        site.acknowledge(consumer, 1)
        site.pass_time(NOW + 20)
        assert await client.entries() == [0]
        assert site.delayed == 0

    run(scenario, entries=0)


@pytest.mark.parametrize("kind", [Kind.KEY_SHARED, Kind.SHARED])
def test_behind_a_transaction_delayed_entries_wait_for_their_time_too(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for its outcome, and came back as what had been sent before."""
    describe = PulsarEntryFormat.describe
    parts = {b"part": TransactionPart(1), b"commit": TransactionPart(1, True)}

    def described(self: PulsarEntryFormat, payload: memoryview) -> Description:
        part = parts.get(sticky_key(payload))
        return describe(self, payload)._replace(transaction=part)

    monkeypatch.setattr(PulsarEntryFormat, "describe", described)

    async def scenario(site: Site) -> None:
        each = Keyed(site)
        join = each.join if kind is Kind.KEY_SHARED else partial(site.join, Kind.SHARED)
        consumer, client = join(10)
        each.publish("part")
        each.publish("k", due_ms=NOW + 20)
        assert (await client.entries(), site.delayed) == ([], 1)
        each.publish("commit")
        assert await client.entries() == [0]
        site.acknowledge(consumer, 0)
        site.pass_time(NOW + 20)
        assert await client.entries() == [1]
        assert site.delayed == 0

    run(scenario, entries=0)


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.SHARED, Kind.KEY_SHARED])
def test_what_nobody_gets_of_transactions_is_no_backlog(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else markers and what was aborted would keep their ledgers, and never be read past."""
    describe = PulsarEntryFormat.describe
    parts = {
        b"aborted": TransactionPart(1),
        b"abort": TransactionPart(1, False),
        b"committed": TransactionPart(2),
        b"commit": TransactionPart(2, True),
    }

    def described(self: PulsarEntryFormat, payload: memoryview) -> Description:
        part = parts.get(sticky_key(payload))
        return describe(self, payload)._replace(transaction=part)

    monkeypatch.setattr(PulsarEntryFormat, "describe", described)

    async def scenario(site: Site) -> None:
        each = Keyed(site)
        join = each.join if kind is Kind.KEY_SHARED else partial(site.join, kind)
        consumer, client = join(10)
        each.publish("aborted", "committed", "abort", "k", "commit")
        assert await client.entries() == [1, 3]
        cursor = site.subscription.cursor
        assert cursor.backlog_entries() == 2
        site.acknowledge(consumer, 1, 3)
        assert cursor.backlog_entries() == 0

    run(scenario, entries=0)


def test_what_waits_goes_over_to_the_next_kind_while_something_is_delayed() -> None:
    """Found again without reading from the start; nothing is lost, and nothing counted on."""

    async def scenario(site: Site) -> None:
        each = Keyed(site)
        low, _ = each.join(0, LOW)
        high, client = each.join(10, HIGH)
        each.publish(IN_LOW, IN_LOW)
        each.publish(IN_LOW, due_ms=NOW + 20)
        each.publish(IN_HIGH)
        assert await client.entries() == [3]
        assert site.delayed == 1
        site.subscription.remove(low)
        site.subscription.remove(high)
        assert LIMITS.look_ahead.used > 0
        shared, client = site.join(Kind.SHARED, permits=10)
        assert LIMITS.look_ahead.used == 0
        assert await client.entries() == [0, 1]
        site.acknowledge(shared, 0)
        assert await client.entries() == [3]
        site.subscription.remove(shared)
        last, client = each.join(10)
        assert await client.entries() == [1, 3]
        site.acknowledge(last, 1, 3)
        site.pass_time(NOW + 20)
        assert await client.entries() == [2]
        assert LIMITS.look_ahead.used == 0

    run(scenario, entries=0)


def test_what_was_out_burdens_nobody_once_all_are_gone() -> None:
    """Whatever is delayed: five places may wait, and others share what may wait in all."""

    async def scenario(site: Site) -> None:
        each = Keyed(site)
        low, _ = each.join(0, LOW)
        high, fast = each.join(10, HIGH)
        each.publish("later", due_ms=NOW + 20)
        each.publish(IN_LOW, IN_LOW, IN_LOW, IN_HIGH, IN_HIGH)
        assert await fast.entries() == [4, 5]
        site.subscription.remove(low)
        assert (LIMITS.look_ahead.used, site.delayed) == (3, 1)
        site.subscription.remove(high)
        assert (LIMITS.look_ahead.used, site.delayed) == (0, 0)
        low, slow = each.join(10)
        assert await slow.entries() == [1, 2]
        assert site.delayed == 1
        site.acknowledge(low, 1, 2)
        assert await slow.entries() == [3, 4]

    run(scenario, entries=0)


def test_what_expires_waits_no_more() -> None:
    async def scenario(site: Site) -> None:
        each = Keyed(site)
        low, client = each.join(1, LOW)
        each.publish(IN_LOW, IN_LOW, IN_LOW)
        assert await client.entries() == [0]
        first = site.log.positions.first
        site.subscription.expire(first._replace(entry_id=first.entry_id + 2))
        site.subscription.flow(low, 10)
        assert await client.entries() == [2]

    run(scenario, entries=0)
