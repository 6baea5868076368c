"""A subscription by itself: a log in memory, and connections that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import pytest
from structlog.testing import capture_logs

from magnetar.env.tasks import TaskScope, awaited
from magnetar.log.acknowledgements import ack_set_words
from magnetar.model.entry import Description, Entry, TransactionPart
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST, Position
from magnetar.protocols.kafka.entry_format import KafkaEntryFormat
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.consuming.consumer import Consumer, ConsumerNews
from magnetar.topics.consuming.subscription import Kind, Limits, Subscription
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.dispatch.key_waiting import LookAhead
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.traffic import Traffic
from magnetar.wire.pulsar.hot import AckId
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata
from tests.doubles.memory_log import MemoryLog
from tests.interop.pulsar.wire import checked, message

LIMITS = Limits(
    consumers_max=3,
    delayed_entries_max=4,
    look_ahead=LookAhead(2, 5, 100),
)


class Client:
    """A connection of one consumer: the entries that were written, and what it was told."""

    def __init__(self) -> None:
        self.peer = "client"
        self.writable = True
        self.crowded = False
        self.active: list[bool] = []
        self.forgotten = False
        self._entries: list[int] = []

    def deliver(
        self,
        entries: Sequence[Entry],
        counts: Mapping[Key, int],
        ack_sets: Mapping[Key, Sequence[int]],
    ) -> int:
        self._entries += [entry.entry_id for entry in entries]
        return sum(len(entry.payload) for entry in entries)

    def answer_ack(self, request_id: int, error: MagnetarError | None) -> None:
        raise AssertionError("no receipts were asked for")

    def tell(self, news: ConsumerNews) -> None:
        self.active.append(news is ConsumerNews.ACTIVE)

    def tell_closed(self, service_url: str = "") -> None:
        raise AssertionError("whoever detaches tells")

    def forget(self) -> None:
        self.forgotten = True

    async def is_alive(self) -> bool:
        return True

    def abort(self) -> None:
        raise AssertionError("nobody is dead")

    async def entries(self) -> list[int]:
        """What came since the last look."""
        for _ in range(10):
            await asyncio.sleep(0)
        found, self._entries = self._entries, []
        return found


class Site:
    """A subscription over a log of ``count`` entries."""

    def __init__(self, scope: TaskScope, count: int) -> None:
        self.log = MemoryLog("log", 1000)
        self.log.append([message(b"x", n) for n in range(count)], lambda *_: None)
        self.log.release()
        self.traffic = Traffic()
        cursor = self.log.cursors.reader("s", EARLIEST)
        self.now_ms = 1_000_000
        self.subscription = Subscription(
            "s",
            self.log,
            cursor,
            -1,
            LIMITS,
            scope,
            self.traffic,
            PulsarEntryFormat(),
            DelayPolicy(tick_ms=10),
            lambda: self.now_ms,
        )
        self.subscription.limit_unacked(2, 0)

    def join(
        self, kind: Kind, permits: int, name: str = "c", returns_skipped: bool = False
    ) -> tuple[Consumer, Client]:
        client = Client()
        number = len(self.subscription.consumers)
        consumer = Consumer(client, number, name, 0, 0, returns_skipped=returns_skipped)
        self.subscription.check_room(kind)
        self.subscription.add(consumer, kind)
        self.subscription.announce(consumer)
        self.subscription.flow(consumer, permits)
        return consumer, client

    def acknowledge(self, consumer: Consumer, *entry_ids: int) -> None:
        ids = [AckId(1, entry_id, (), -1, 0) for entry_id in entry_ids]
        self.subscription.acknowledge(consumer, ids)

    def publish(self, *times_ms: int) -> None:
        """More entries, each due at one of ``times_ms``."""
        for due_ms in times_ms:
            meta = MessageMetadata(producer_name="w", sequence_id=1, publish_time=1)
            meta.deliver_at_time = due_ms
            head = meta.SerializeToString()
            self.log.append([checked(len(head).to_bytes(4, "big") + head)], lambda *_: None)
        self.log.release()
        self.subscription.dispatcher.wake()

    def publish_batch(self, messages: int) -> None:
        """One more entry, a batch of so many."""
        meta = MessageMetadata(producer_name="w", sequence_id=1, publish_time=1)
        meta.num_messages_in_batch = messages
        head = meta.SerializeToString()
        body = len(head).to_bytes(4, "big") + head + bytes(8 * messages)
        self.log.append([checked(body)], lambda *_: None)
        self.log.release()
        self.subscription.dispatcher.wake()

    def pass_time(self, to_ms: int) -> None:
        """Until then; the timer's part is played."""
        self.now_ms = to_ms
        self.subscription.dispatcher.wake()

    @property
    def delayed(self) -> int:
        delays = self.subscription.dispatcher.delays
        return 0 if delays is None else len(delays.index)


Scenario: TypeAlias = Callable[[Site], Awaitable[None]]


def run(scenario: Scenario, entries: int = 6) -> None:
    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        await scenario(Site(scope, entries))
        await scope.close()

    asyncio.run(main())


def test_a_shared_consumer_gets_no_more_than_it_may_hold() -> None:
    async def scenario(site: Site) -> None:
        consumer, client = site.join(Kind.SHARED, permits=10)
        assert await client.entries() == [0, 1]
        site.acknowledge(consumer, 0)
        assert await client.entries() == [2]
        assert site.traffic.entries_out == 3

    run(scenario)


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.SHARED])
def test_what_expires_sends_nothing_behind_it_again(kind: Kind) -> None:
    async def scenario(site: Site) -> None:
        consumer, client = site.join(kind, permits=2)
        assert await client.entries() == [0, 1]
        site.subscription.expire(Position(1, 1))
        site.subscription.flow(consumer, 10)
        found = await client.entries()
        assert found == ([2, 3, 4, 5] if kind is Kind.EXCLUSIVE else [2])

    run(scenario)


class Words(KafkaEntryFormat):
    """Entries in words: ``7`` is of producer 7's transaction, which ``7+`` commits."""

    def describe(self, payload: memoryview) -> Description:
        text = bytes(payload).decode()
        if text == "x":
            return Description(1)
        commits = True if text[-1] == "+" else None
        return Description(1, transaction=TransactionPart(int(text.rstrip("+")), commits))


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.SHARED])
def test_what_waits_for_its_outcome_comes_behind_what_was_sent(kind: Kind) -> None:
    async def scenario(site: Site) -> None:
        dispatcher = site.subscription.dispatcher
        dispatcher._format = Words()

        def publish(*words: str) -> None:
            for word in words:
                site.log._confirm([bytes(36) + word.encode()], lambda error, runs: None)
            dispatcher.wake()

        publish("x", "7", "x")
        consumer, client = site.join(kind, permits=10)
        assert await client.entries() == [0]
        publish("7+", "x")
        site.acknowledge(consumer, 0)
        rest = [1, 2, 4] if kind is Kind.EXCLUSIVE else [1, 2]  # as many as it may hold
        assert await client.entries() == rest

    run(scenario, entries=0)


def test_a_full_consumer_is_served_when_another_acknowledges_what_it_holds() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        other, _ = site.join(Kind.SHARED, permits=0)
        assert await client.entries() == [0, 1]
        site.acknowledge(other, 0)
        assert await client.entries() == [2]

    run(scenario)


def test_what_a_shared_consumer_leaves_goes_to_the_others_first() -> None:
    async def scenario(site: Site) -> None:
        leaving, client = site.join(Kind.SHARED, permits=2)
        assert await client.entries() == [0, 1]
        _, other = site.join(Kind.SHARED, permits=10)
        assert await other.entries() == [2, 3]
        assert not site.subscription.remove(leaving)
        assert await other.entries() == []  # it is full
        site.acknowledge(site.subscription.consumers[0], 2, 3)
        assert await other.entries() == [0, 1]

    run(scenario)


def test_the_last_one_to_leave_is_told_from_the_others_and_from_who_left_before() -> None:
    async def scenario(site: Site) -> None:
        first, _ = site.join(Kind.SHARED, permits=0)
        last, _ = site.join(Kind.SHARED, permits=0)
        remove = site.subscription.remove
        assert [remove(first), remove(last), remove(last)] == [False, True, False]

    run(scenario)


def test_the_kind_of_a_subscription_is_that_of_its_first_consumer_each_time() -> None:
    async def scenario(site: Site) -> None:
        shared, client = site.join(Kind.SHARED, permits=10)
        assert await client.entries() == [0, 1]
        site.subscription.remove(shared)
        _, client = site.join(Kind.FAILOVER, permits=10, name="b")
        assert await client.entries() == [0, 1, 2, 3, 4, 5]
        _, waiting = site.join(Kind.FAILOVER, permits=10, name="c")
        assert await waiting.entries() == []
        assert (client.active, waiting.active) == ([True], [False])

    run(scenario)


def test_a_connection_that_was_full_for_a_turn_is_looked_at_once() -> None:
    """Else there is a round in each turn of the loop, for good."""

    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=2)
        client.crowded = True
        assert await client.entries() == [0, 1]
        rounds, dispatcher = 0, site.subscription.dispatcher
        look = dispatcher.follow_connection

        def looked(consumer: Consumer) -> None:
            nonlocal rounds
            rounds += 1
            look(consumer)

        dispatcher.follow_connection = looked  # type: ignore[method-assign]
        for _ in range(10):
            dispatcher.wake()
            assert await client.entries() == []
        assert rounds == 0

    run(scenario)


def test_while_it_is_held_nothing_is_sent() -> None:
    async def scenario(site: Site) -> None:
        site.subscription.dispatcher.hold()
        consumer, client = site.join(Kind.EXCLUSIVE, permits=10)
        assert await client.entries() == []
        assert site.subscription.detach_all() == [consumer]
        assert client.forgotten
        _, following = site.join(Kind.EXCLUSIVE, permits=3)
        site.subscription.release()
        assert await following.entries() == [0, 1, 2]
        assert await client.entries() == []

    run(scenario)


# -- delayed delivery ------------------------------------------------------------------------------

NOW = 1_000_000


def test_a_shared_consumer_gets_what_is_due_and_the_rest_in_time() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 30, NOW, NOW + 20)
        assert await client.entries() == [1]
        assert site.delayed == 2
        site.pass_time(NOW + 19)
        assert await client.entries() == []
        site.pass_time(NOW + 20)
        assert await client.entries() == [2]
        site.acknowledge(site.subscription.consumers[0], 1, 2)
        site.pass_time(NOW + 31)
        assert await client.entries() == [0]
        assert site.delayed == 0

    run(scenario, entries=0)


def test_the_timer_finds_what_is_due() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 30)
        assert await client.entries() == []
        site.now_ms = NOW + 30  # the wall clock; nobody wakes anybody
        async with asyncio.timeout(10):
            while not (found := await client.entries()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found == [0]

    run(scenario, entries=0)


def test_what_is_due_sooner_is_looked_for_sooner() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 50_000)
        assert await client.entries() == []
        site.publish(NOW + 30)
        assert await client.entries() == []
        site.now_ms = NOW + 30  # the wall clock; nobody wakes anybody
        async with asyncio.timeout(10):
            while not (found := await client.entries()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found == [1]

    run(scenario, entries=0)


def test_a_clock_that_is_set_back_delivers_nothing_early_and_takes_nothing_back() -> None:
    """What was given out while it was ahead is given out again; what comes then waits."""

    async def scenario(site: Site) -> None:
        consumer, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 30)
        site.pass_time(NOW + 864_000_000)
        assert await client.entries() == [0]
        site.now_ms = NOW
        site.publish(NOW + 30)
        assert (await client.entries(), site.delayed) == ([], 1)
        site.subscription.redeliver(consumer, [])
        assert (await client.entries(), site.delayed) == ([0], 1)
        site.pass_time(NOW + 30)
        assert await client.entries() == [1]

    run(scenario, entries=0)


def test_exclusive_and_failover_consumers_get_everything_at_once() -> None:
    async def scenario(site: Site) -> None:
        for kind in (Kind.EXCLUSIVE, Kind.FAILOVER):
            consumer, client = site.join(kind, permits=10)
            site.publish(NOW + 30)
            assert len(await client.entries()) == 1 + (kind is Kind.FAILOVER)
            site.subscription.remove(consumer)

    run(scenario, entries=0)


def test_who_is_not_active_has_nothing_sent_again() -> None:
    async def scenario(site: Site) -> None:
        active, first = site.join(Kind.FAILOVER, 20, name="a")
        other, second = site.join(Kind.FAILOVER, 20, name="b")
        assert await first.entries() == [0, 1, 2, 3, 4, 5]
        site.subscription.redeliver(other, ())
        assert (await first.entries(), await second.entries()) == ([], [])
        site.subscription.redeliver(active, ())
        assert await first.entries() == [0, 1, 2, 3, 4, 5]

    run(scenario)


def test_what_waits_stays_known_when_the_last_consumer_leaves() -> None:
    """Found again without reading: what comes behind is read from where it was."""

    async def scenario(site: Site) -> None:
        first, client = site.join(Kind.SHARED, permits=1)
        site.publish(NOW + 20, NOW, NOW + 10, NOW)
        assert await client.entries() == [1]
        site.subscription.remove(first)
        assert site.delayed == 2
        position = site.subscription.dispatcher.feed.position
        _, client = site.join(Kind.SHARED, permits=10, name="d")
        assert await client.entries() == [1, 3]
        assert site.subscription.dispatcher.feed.position == position
        site.acknowledge(site.subscription.consumers[0], 1, 3)
        site.pass_time(NOW + 20)
        assert await client.entries() == [0, 2]

    run(scenario, entries=0)


def test_what_was_read_ahead_when_the_last_one_left_is_held_as_well() -> None:
    """By a task that ended between two rounds: nobody had asked for its time yet."""

    async def scenario(site: Site) -> None:
        first, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 20)
        assert (await client.entries(), site.delayed) == ([], 1)
        site.log.cached = False
        site.publish(NOW + 30, NOW)
        await asyncio.sleep(0)  # a round, which begins to read
        dispatcher = site.subscription.dispatcher
        assert dispatcher.feed.waits
        dispatcher.hold()
        assert (await client.entries(), dispatcher.feed.waits) == ([], False)
        site.subscription.remove(first)
        dispatcher.release()
        _, client = site.join(Kind.SHARED, permits=10, name="d")
        assert (await client.entries(), site.delayed) == ([2], 2)
        site.acknowledge(site.subscription.consumers[0], 2)
        site.pass_time(NOW + 30)
        assert await client.entries() == [0, 1]

    run(scenario, entries=0)


def test_a_subscription_of_another_kind_starts_from_the_cursor() -> None:
    async def scenario(site: Site) -> None:
        shared, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 20, NOW)
        assert await client.entries() == [1]
        site.subscription.remove(shared)
        exclusive, client = site.join(Kind.EXCLUSIVE, permits=10)
        assert await client.entries() == [0, 1]
        site.subscription.remove(exclusive)
        _, client = site.join(Kind.SHARED, permits=10)
        assert await client.entries() == [1]
        assert site.delayed == 1

    run(scenario, entries=0)


def test_a_seek_forgets_what_waits() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 20)
        assert await client.entries() == []
        site.subscription.dispatcher.hold()
        site.subscription.detach_all()
        assert site.delayed == 0
        site.subscription.release()
        _, client = site.join(Kind.SHARED, permits=10)
        assert await client.entries() == []
        site.pass_time(NOW + 20)
        assert await client.entries() == [0]

    run(scenario, entries=0)


def test_past_its_bound_nothing_more_is_read() -> None:
    """Of delayed entries; what is due goes on."""

    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        for n in range(6):
            site.publish(NOW + 20 + n)
            assert await client.entries() == []
        site.publish(NOW)
        assert await client.entries() == []
        assert site.delayed == LIMITS.delayed_entries_max
        site.pass_time(NOW + 20)
        assert await client.entries() == [0]
        site.acknowledge(site.subscription.consumers[0], 0)
        assert await client.entries() == []
        site.pass_time(NOW + 22)
        assert await client.entries() == [1, 2]
        site.acknowledge(site.subscription.consumers[0], 1, 2)
        assert await client.entries() == [6]

    run(scenario, entries=0)


def test_one_that_was_acknowledged_while_it_waited_is_not_sent() -> None:
    async def scenario(site: Site) -> None:
        consumer, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 20, NOW + 20)
        assert await client.entries() == []
        site.acknowledge(consumer, 0)
        site.pass_time(NOW + 20)
        assert await client.entries() == [1]

    run(scenario, entries=0)


def test_without_a_delay_policy_nothing_waits() -> None:
    async def scenario(site: Site) -> None:
        _, client = site.join(Kind.SHARED, permits=10)
        site.publish(NOW + 20)
        assert await client.entries() == []
        site.subscription.set_delays(DelayPolicy(active=False))
        site.publish(NOW + 99)
        assert await client.entries() == [0, 1]

    run(scenario, entries=0)


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.SHARED])
@pytest.mark.parametrize("returns_skipped", [False, True])
def test_permits_of_acknowledged_messages_are_where_the_client_counts_them(
    kind: Kind, returns_skipped: bool
) -> None:
    """A batch comes again with messages in it that are acknowledged."""

    async def scenario(site: Site) -> None:
        site.publish_batch(100)
        consumer, client = site.join(kind, 100, returns_skipped=returns_skipped)
        assert await client.entries() == [0]
        assert consumer.seat.permits == 0
        site.subscription.flow(consumer, 100)
        words = ack_set_words(0b111 << 70)  # 97 of 100 are acknowledged
        site.subscription.acknowledge(consumer, [AckId(1, 0, tuple(words), 100, 0)])
        site.subscription.redeliver(consumer, ())
        assert await client.entries() == [0]
        assert consumer.seat.permits == (0 if returns_skipped else 97)

    run(scenario, entries=0)


def test_entries_of_which_nothing_is_left_are_passed_over_without_a_word() -> None:
    """What was erased from a topic's table may be thousands of entries, for each subscription."""

    async def scenario(site: Site) -> None:
        site.log.append([message(b"x", 0), b"", b"damaged", message(b"y", 3)], lambda *_: None)
        site.log.release()
        with capture_logs() as logs:
            consumer, client = site.join(Kind.EXCLUSIVE, 10)
            assert await client.entries() == [0, 3]
        warned = [each["position"] for each in logs if each["log_level"] == "warning"]
        assert warned == ["1:2"]
        site.subscription.acknowledge_whole(consumer, [Position(1, 0), Position(1, 3)])
        assert site.subscription.cursor.mark_delete == Position(1, 3)

    run(scenario, entries=0)
