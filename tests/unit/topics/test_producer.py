"""A producer by itself, between a connection and a topic that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.seam import AppendDone, Content, Run
from magnetar.model.errors import (
    ChecksumError,
    LogError,
    MagnetarError,
    MessageTooLargeError,
)
from magnetar.topics.publishing.access import AccessMode
from magnetar.topics.publishing.producer import Producer, ProducerFacts, Sequences


class Client:
    """A connection: what it is told, and the bytes whose outcome it knows."""

    def __init__(self) -> None:
        self.peer = "client"
        self.ended: list[int] = []
        self._answers: list[tuple[str, int]] = []

    def stored(self, sends: Sequence[Sequences], ledger_id: int, first_entry_id: int) -> None:
        self._answers += [("receipt", sequence_id) for sequence_id, _ in sends]

    def refused(self, send: Sequences, error: MagnetarError, final: bool) -> None:
        self._answers.append(("end" if final else "error", send[0]))

    def publish_ended(self, byte_count: int) -> None:
        self.ended.append(byte_count)

    def drop(self, tell: bool) -> None:
        raise AssertionError("a producer does not end itself")

    async def is_alive(self) -> bool:
        return True

    def abort(self) -> None:
        raise AssertionError("nobody is dead")

    def answers(self) -> list[tuple[str, int]]:
        """What came since the last look: kind and sequence id."""
        found, self._answers = self._answers, []
        return found


class Destination:
    """A topic: appends wait in ``pending`` for the test to end them."""

    def __init__(self) -> None:
        self.name = parse_topic("t")
        self.epoch = 0
        self.delay_ms_max = 0
        self.pending: list[AppendDone] = []
        self.payloads: list[list[bytes]] = []
        self.confirmed: list[tuple[int, int]] = []
        self.messages = 0
        self.failures: list[MagnetarError] = []
        self.condemned: list[str] = []
        self.forgotten: list[Producer] = []

    def publish(self, payloads: Sequence[memoryview], done: AppendDone, content: Content) -> None:
        assert len(content) == len(Content._fields), "built without its checking constructor"
        assert len(content.messages) == len(content.publish_times_ms) == len(payloads)
        self.payloads.append([bytes(payload) for payload in payloads])
        self.pending.append(done)

    def entries_confirmed(self, count: int, byte_count: int, message_count: int) -> None:
        self.confirmed.append((count, byte_count))
        self.messages += message_count

    def append_failed(self, error: MagnetarError) -> None:
        self.failures.append(error)

    def condemn(self, producer: Producer, reason: str) -> None:
        self.condemned.append(reason)

    def remove_producer(self, producer: Producer) -> None:
        producer.closed = producer.gone = True

    def forget_leaving(self, producer: Producer) -> None:
        self.forgotten.append(producer)


Scenario: TypeAlias = Callable[[Producer, Client, Destination], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def main() -> None:
        client, topic = Client(), Destination()
        producer = Producer(client, topic, ProducerFacts(1, "p", AccessMode.SHARED, 0, False, 0))
        await scenario(producer, client, topic)

    asyncio.run(main())


def send(producer: Producer, *sequence_ids: int) -> None:
    for sequence_id in sequence_ids:
        producer.queue(sequence_id, 0, memoryview(b"four"), 3)
    producer.flush()


def test_sends_of_a_chunk_are_one_append_and_their_receipts_keep_their_order() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 5, 6, 7)
        assert topic.payloads == [[b"four"] * 3]
        assert client.answers() == []
        assert (client.ended, producer.pending) == ([], True)
        topic.pending[0](None, (Run(1, 0, 2), Run(2, 0, 1)))
        assert client.answers() == [("receipt", 5), ("receipt", 6), ("receipt", 7)]
        assert (client.ended, producer.pending) == ([12], False)
        assert topic.confirmed == [(3, 12)]

    run(scenario)


def test_a_refusal_waits_for_the_receipts_before_it() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 1)
        producer.refuse((2, 0), ChecksumError("damaged"), final=False)
        send(producer, 3)
        assert client.answers() == []
        topic.pending[0](None, [Run(1, 0, 1)])
        assert client.answers() == [("receipt", 1), ("error", 2)]
        topic.pending[1](None, [Run(1, 1, 1)])
        assert client.answers() == [("receipt", 3)]
        assert topic.condemned == []

    run(scenario)


def test_after_a_final_refusal_nothing_more_is_taken() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        producer.refuse((1, 0), MessageTooLargeError("too large"), final=True)
        send(producer, 2)
        assert client.answers() == [("end", 1)]
        assert topic.payloads == []
        assert topic.condemned == ["too large"]

    run(scenario)


def test_after_a_failed_append_nothing_more_is_taken_and_nothing_is_answered() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 1)
        error = LogError("bookies are away")
        topic.pending[0](error, ())
        send(producer, 2)
        assert client.answers() == []
        assert topic.failures == [error]
        assert len(topic.payloads) == 1
        assert client.ended == [4], "the connection is read again"

    run(scenario)


def test_what_a_failed_append_stored_for_certain_has_its_receipts() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 1, 2, 3)
        producer.refuse((4, 0), ChecksumError("damaged"), final=False)
        error = LogError("bookies are away")
        topic.pending[0](error, [Run(1, 0, 2)])
        assert client.answers() == [("receipt", 1), ("receipt", 2), ("error", 4)]
        assert (topic.confirmed, topic.failures) == ([(2, 0)], [error])
        assert not producer.pending

    run(scenario)


def test_a_producer_that_is_gone_is_written_nothing_and_forgotten_at_its_last_outcome() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 1)
        send(producer, 2)
        topic.remove_producer(producer)
        topic.pending[0](None, [Run(1, 0, 1)])
        assert topic.forgotten == []
        topic.pending[1](None, [Run(1, 1, 1)])
        assert topic.forgotten == [producer]
        assert client.answers() == []
        assert topic.confirmed == [(1, 4), (1, 4)], "they are in the log all the same"

    run(scenario)


def test_draining_waits_for_every_outcome() -> None:
    async def scenario(producer: Producer, client: Client, topic: Destination) -> None:
        send(producer, 1)
        drained = asyncio.ensure_future(producer.wait_drained())
        await asyncio.sleep(0)
        send(producer, 2)
        assert len(topic.payloads) == 1, "it takes no more"
        assert not drained.done()
        topic.pending[0](None, [Run(1, 0, 1)])
        await asyncio.wait_for(drained, 1)
        assert client.answers() == [("receipt", 1)]

    run(scenario)
