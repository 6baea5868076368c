"""Where a topic's ledgers lie, as readers are told in the answer to GET_LAST_MESSAGE_ID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, LogQuestion
from tests.unit.protocols.pulsar.harness import World, run
from tests.unit.protocols.pulsar.test_log_extents import question, reader_of, told


class Stored:
    """Knows ledger 1, and another topic's."""

    def __init__(self) -> None:
        self.asked: list[Sequence[int]] = []

    async def describe(
        self, ledger_ids: Sequence[int]
    ) -> tuple[Mapping[int, bytes], Mapping[str, tuple[str, int]]]:
        self.asked.append(ledger_ids)
        known = {1: b"one", 77: b"another topic's"}
        found = {number: known[number] for number in ledger_ids if number in known}
        return found, {"b-2": ("host-2", 2), "b-1": ("host-1", 1)}


def test_the_ledgers_of_the_topic_and_no_others_are_described() -> None:
    async def scenario(world: World) -> None:
        stored = Stored()
        world.broker.pulsar.services.stored_ledgers = stored
        peer = await reader_of(world)
        extent = await told(peer, LogQuestion(stored_ledgers=[1, 2, 77, 500]))
        assert [(one.ledger_id, one.metadata) for one in extent.stored_ledgers] == [(1, b"one")]
        assert [(b.bookie_id, b.host, b.port) for b in extent.bookies] == [
            ("b-1", "host-1", 1), ("b-2", "host-2", 2),
        ]  # fmt: skip
        assert stored.asked == [[1, 2]]
        assert not (await told(peer)).bookies
        assert len(stored.asked) == 1

    run(scenario)


def test_a_broker_whose_logs_are_not_in_ledgers_tells_nothing() -> None:
    async def scenario(world: World) -> None:
        extent = await told(await reader_of(world), LogQuestion(stored_ledgers=[1]))
        assert not extent.stored_ledgers
        assert not extent.bookies

    run(scenario)


def test_too_many_ledgers_at_once_are_refused() -> None:
    async def scenario(world: World) -> None:
        world.broker.pulsar.services.stored_ledgers = Stored()
        peer = await reader_of(world)
        answer = await peer.ask(question(LogQuestion(stored_ledgers=range(1001))))
        assert answer.type == BaseCommand.ERROR
        assert "1001 ledgers in one question; at most 1000" in answer.error.message

    run(scenario)
