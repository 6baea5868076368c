"""STAGED_WRITE on the wire: outcomes, refusals, and who is told that it is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import MetadataUnavailableError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Quorums
from magnetar.model.registered_bookie import RegisteredBookie
from magnetar.staging.handing_out import HandingOut
from magnetar.staging.records import QueryRecord, encode_query
from magnetar.wire.bookie.metadata import decode_ledger_metadata, encode_ledger_metadata
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.pulsar_pb2 import CommandStagedWrite as Ask
from magnetar.wire.pulsar.pulsar_pb2 import CommandStagedWriteResponse as Reply
from tests.unit.ledger.doubles import MemoryManager
from tests.unit.protocols.pulsar.harness import Peer, World, run
from tests.unit.staging.test_grants import OF_A_TOPIC, STAGED

RECORD = encode_query(QueryRecord("r1", "r1"))
LATER = encode_query(QueryRecord("r2", "r1"))


async def bookies() -> list[RegisteredBookie]:
    rack = {"rack": "r1"}
    return [
        RegisteredBookie(BookieId("b-1"), "h1", 1, rack),
        RegisteredBookie(BookieId("b-2"), "h2", 2, refusal="full", lacks_space=True),
    ]


async def quorums_for(topic: str) -> Quorums:
    return Quorums(3, 3, 2) if topic else Quorums(1, 1, 1)


def serve(world: World) -> MemoryManager:
    manager = MemoryManager()
    store: MetadataStore = world.metadata
    world.services.staged_writes = HandingOut(store, manager, quorums_for, bookies)
    return manager


async def ask(peer: Peer, request: Ask) -> Reply:
    await peer.heard()
    command = BaseCommand(type=BaseCommand.STAGED_WRITE, staged_write=request)
    command.staged_write.request_id = 7
    answer = await peer.ask(command)
    assert answer.type == BaseCommand.STAGED_WRITE_RESPONSE
    assert answer.staged_write_response.request_id == 7
    return answer.staged_write_response


def served(scenario: Callable[[World, Peer, MemoryManager], Awaitable[None]]) -> None:
    async def whole(world: World) -> None:
        manager = serve(world)
        await scenario(world, world.peer(), manager)

    run(whole)


def write(value: bytes, version: int | None = None, name: str = "q") -> Ask:
    request = Ask(action=Ask.WRITE_RECORD, name=name, value=value)
    if version is not None:
        request.version = version
    return request


def test_records_are_written_by_compare_and_set() -> None:
    async def scenario(world: World, peer: Peer, _: MemoryManager) -> None:
        read = Ask(action=Ask.READ_RECORD, name="q")
        assert (await ask(peer, read)).outcome == Reply.MISSING
        assert (await ask(peer, write(RECORD, 0))).outcome == Reply.MISSING
        assert (await ask(peer, write(RECORD))).outcome == Reply.DONE
        assert (await ask(peer, write(RECORD))).outcome == Reply.EXISTS
        written = await ask(peer, write(LATER, 0))
        assert (written.outcome, written.version) == (Reply.DONE, 1)
        assert (await ask(peer, write(LATER, 0))).outcome == Reply.CHANGED
        found = await ask(peer, read)
        assert (found.outcome, found.value, found.version) == (Reply.DONE, LATER, 1)
        assert world.metadata.nodes["/staged-writes/queries/q"].value == LATER

    served(scenario)


def test_what_is_no_record_is_refused() -> None:
    async def scenario(world: World, peer: Peer, _: MemoryManager) -> None:
        for request in (write(b"?"), write(RECORD, name="a:b"), write(b"{}", 0)):
            refused = await ask(peer, request)
            assert refused.error == ServerError.NOT_ALLOWED
            assert not refused.HasField("outcome")
        assert not any(path.startswith("/staged") for path in world.metadata.nodes)

    served(scenario)


def test_ledgers_are_made_changed_and_deleted() -> None:
    async def scenario(_: World, peer: Peer, manager: MemoryManager) -> None:
        made = await ask(peer, Ask(action=Ask.CREATE_LEDGER, value=encode_ledger_metadata(STAGED)))
        assert (made.outcome, made.version) == (Reply.DONE, 0)
        number = made.ledger_id
        told = decode_ledger_metadata(number, made.value)
        assert manager.ledgers[number] == (told, 0)
        closed = encode_ledger_metadata(told.with_close(4, 50))
        change = Ask(action=Ask.WRITE_LEDGER, ledger_id=number, value=closed, version=0)
        assert (await ask(peer, change)).version == 1
        assert (await ask(peer, change)).outcome == Reply.CHANGED
        found = await ask(peer, Ask(action=Ask.READ_LEDGER, ledger_id=number))
        assert decode_ledger_metadata(number, found.value).last_entry_id == 4
        delete = Ask(action=Ask.DELETE_LEDGER, ledger_id=number)
        assert (await ask(peer, delete)).outcome == Reply.DONE
        assert (await ask(peer, delete)).outcome == Reply.MISSING

    served(scenario)


def test_ledgers_of_topics_are_out_of_reach() -> None:
    async def scenario(_: World, peer: Peer, manager: MemoryManager) -> None:
        manager.ledgers[3] = (OF_A_TOPIC, 0)
        value = encode_ledger_metadata(STAGED)
        for request in (
            Ask(action=Ask.READ_LEDGER, ledger_id=3),
            Ask(action=Ask.DELETE_LEDGER, ledger_id=3),
            Ask(action=Ask.WRITE_LEDGER, ledger_id=3, value=value, version=0),
        ):
            answer = await ask(peer, request)
            assert answer.outcome == Reply.MISSING
            assert not answer.value
        refused = await ask(
            peer, Ask(action=Ask.CREATE_LEDGER, value=encode_ledger_metadata(OF_A_TOPIC))
        )
        assert refused.error == ServerError.NOT_ALLOWED
        assert manager.ledgers == {3: (OF_A_TOPIC, 0)}

    served(scenario)


def test_bookies_and_quorums_are_told() -> None:
    async def scenario(_: World, peer: Peer, __: MemoryManager) -> None:
        one, two = (await ask(peer, Ask(action=Ask.BOOKIES))).bookies
        assert (one.bookie_id, one.host, one.port) == ("b-1", "h1", 1)
        assert [(p.key, p.value) for p in one.properties] == [("rack", "r1")]
        assert not one.HasField("refusal")
        assert (two.refusal, two.lacks_space) == ("full", True)
        told = await ask(peer, Ask(action=Ask.QUORUMS, name="t"))
        assert (told.ensemble_size, told.write_quorum, told.ack_quorum) == (3, 3, 2)
        assert (await ask(peer, Ask(action=Ask.QUORUMS))).ensemble_size == 1

    served(scenario)


def test_a_change_is_waited_for() -> None:
    async def scenario(_: World, peer: Peer, __: MemoryManager) -> None:
        waiting = Ask(action=Ask.AWAIT_RECORD, name="q", version=-1, wait_ms=8_000)
        await peer.heard()
        command = BaseCommand(type=BaseCommand.STAGED_WRITE, staged_write=waiting)
        command.staged_write.request_id = 9
        peer.tell(command)
        assert await peer.heard() == []
        peer.tell(BaseCommand(type=BaseCommand.STAGED_WRITE, staged_write=with_id(write(RECORD))))
        answers = [await peer.next(), await peer.next()]
        told = {each.staged_write_response.request_id: each for each in answers}
        assert told[9].staged_write_response.version == 0
        late = await ask(peer, Ask(action=Ask.AWAIT_RECORD, name="q", version=0, wait_ms=1))
        assert late.version == 0

    served(scenario)


def with_id(request: Ask) -> Ask:
    request.request_id = 8
    return request


def test_a_metadata_store_that_is_away_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World, peer: Peer, _: MemoryManager) -> None:
        async def get(path: str) -> None:
            raise MetadataUnavailableError("it is away")

        monkeypatch.setattr(world.metadata, "get", get)
        refused = await ask(peer, Ask(action=Ask.READ_RECORD, name="q"))
        assert refused.error == ServerError.SERVICE_NOT_READY

    served(scenario)


def test_who_connects_is_told_whether_it_is_served() -> None:
    async def scenario(world: World) -> None:
        (greeting,) = await world.peer().heard()
        assert not greeting.connected.feature_flags.supports_staged_writes
        peer = world.peer()
        refused = await ask(peer, Ask(action=Ask.BOOKIES))
        assert refused.error == ServerError.NOT_ALLOWED
        serve(world)
        (greeting,) = await world.peer().heard()
        assert greeting.connected.feature_flags.supports_staged_writes

    run(scenario)
