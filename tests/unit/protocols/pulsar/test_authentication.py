"""Clients that must show who they are: CONNECT, what a role is permitted, tokens that expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster.ownership import At
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.own import OwnAccess
from magnetar.cluster.security.permissions import with_grant
from magnetar.cluster.security.principals import REFUSED
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.config import SecurityConfig
from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope, fails
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST
from magnetar.protocols.pulsar.handlers import authentication
from magnetar.protocols.pulsar.handlers.permits import PERMITS
from magnetar.protocols.pulsar.handlers.table import make_table
from magnetar.protocols.pulsar.identity import ANSWER_S
from magnetar.protocols.pulsar.leaving import Leaving
from magnetar.protocols.pulsar.owner_links import OwnerLinks
from magnetar.topics.consuming.subscription import Kind
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import COMMAND_NAMES, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandGetTopicsOfNamespace
from tests.unit.cluster.security.files import token, write_secret, write_users
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run_virtual

NAMESPACE = "public/default"
CERTIFICATE = {"subject": ((("organizationName", "us"),), (("commonName", "carol"),))}
CLOCK_S = 1e9
"""The harness's broker's."""


class Secured(World):
    """A broker with tokens, users, and the super-user root."""

    def __init__(self, directory: Path, **security: str) -> None:
        config = SecurityConfig(
            token_secret_key_file=str(write_secret(directory)),
            users_file=str(write_users(directory, alice="secret")),
            super_users="root",
            **security,  # type: ignore[arg-type]
        )
        self.now_s = CLOCK_S
        authenticator = Authenticator(config, lambda: self.now_s)
        super().__init__(authenticator=authenticator, keep_alive_ms=10**9)
        self.services.clock = lambda: self.now_s

    async def grant(self, role: str, *actions: str) -> None:
        await self.broker.control.namespaces.change(
            NAMESPACE, lambda said: with_grant(said, role, list(actions) or None)
        )

    def shows(self, method: str, data: bytes | str = b"", **fields: Any) -> Peer:
        """A client that shows that with CONNECT."""
        peer = self.peer(hello=False)
        certificate = fields.pop("certificate", None)
        if certificate is not None:
            info = peer.transport.get_extra_info
            peer.transport.get_extra_info = (  # type: ignore[method-assign]
                lambda name, default=None: certificate if name == "peercert" else info(name)
            )
        command = BaseCommand(type=BaseCommand.CONNECT)
        connect = command.connect
        connect.client_version = fields.pop("version", "peer")
        connect.protocol_version = 20
        connect.auth_method_name = method
        connect.auth_data = data.encode() if isinstance(data, str) else data
        connect.feature_flags.supports_auth_refresh = fields.pop("refreshes", True)
        behind = fields.pop("behind", b"")
        for name, value in fields.items():
            setattr(connect, name, value)
        peer.feed(encode_command(command) + behind)
        return peer

    def role(self, role: str, **claims: object) -> Peer:
        return self.shows("token", token(role, **claims))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scenario())


def run_real(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In real time: passwords are looked at on a thread."""
    asyncio.run(scenario())


async def outcome(peer: Peer) -> str:
    answer = await peer.next()
    if answer.type != BaseCommand.ERROR:
        return COMMAND_NAMES[int(answer.type)]
    assert (answer.error.error, answer.error.message) == (ServerError.AUTHENTICATION, REFUSED)
    assert answer.error.request_id == 2**64 - 1
    assert peer.session.closed
    return "refused"


def test_what_is_shown_is_taken_or_refused_with_one_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        shown = {
            "CONNECTED": [
                world.role("alice"),
                world.shows("basic", "alice:secret"),
                world.shows("tls", certificate=CERTIFICATE),
                world.shows("none", certificate=CERTIFICATE),
            ],
            "refused": [
                world.shows("token", "no token"),
                world.shows("token", b"\xff\xfe"),
                world.role("alice", exp=CLOCK_S),
                world.shows("basic", "alice:wrong"),
                world.shows("basic", "alice"),
                world.shows("tls"),
                world.shows("none"),
                world.shows(""),
                world.shows("athenz", "x"),
                world.shows("token", token("root"), original_principal="alice"),
                world.shows("token", token("root"), proxy_to_broker_url="a:1"),
            ],
        }
        for wanted, peers in shown.items():
            assert [await outcome(peer) for peer in peers] == [wanted] * len(peers)

    run_real(scenario)


def test_a_client_that_hears_no_error_before_connected_hears_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "DENIED_S", 2.0)

    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        world.store.logs.clear()
        for version, *shown in (
            ("Pulsar-CPP-v4.0.0", "token", "none"),
            ("Pulsar Go 0.19.0", "basic", "alice:wrong"),
            ("Pulsar-CPP-v4.0.0", "", ""),
        ):
            peer = world.shows(*shown, version=version)
            assert await outcome(peer) == "CONNECTED"
            answer = await peer.ask(lookup())
            assert answer.lookupTopicResponse.error == ServerError.AUTHENTICATION
            assert (await peer.produce()).error.error == ServerError.AUTHENTICATION
            assert (await peer.ask(names())).error.error == ServerError.AUTHENTICATION
            assert (await peer.ask(response("root"))).error.error == ServerError.NOT_ALLOWED
            assert not world.store.logs
            async with asyncio.timeout(30):
                while not peer.session.closed:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    run_real(scenario)


def test_who_shows_nothing_has_the_anonymous_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path, anonymous_role="anybody").start()
        await world.grant("anybody", "consume")
        for method in ("", "none"):
            peer = world.shows(method)
            assert await outcome(peer) == "CONNECTED"
            assert (await peer.produce()).error.error == ServerError.AUTHORIZATION

    run(scenario)


def test_a_method_that_is_not_served_shows_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path, anonymous_role="anybody").start()
        await world.grant("anybody", "consume")
        for certificate in (None, CERTIFICATE):
            peer = world.shows("athenz", b"\xff", certificate=certificate)
            assert await outcome(peer) == "CONNECTED"
            assert (await peer.ask(subscription())).type == BaseCommand.SUCCESS
            assert (await peer.produce()).error.error == ServerError.AUTHORIZATION
        for method, data in (("token", "no token"), ("basic", "alice:wrong"), ("tls", "")):
            assert await outcome(world.shows(method, data)) == "refused"

    run_real(scenario)


def test_commands_before_connected_end_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.shows("basic", "alice:secret", behind=encode_command(lookup()))
        assert not peer.transport.reading  # until the password is found right
        assert [(await peer.next()).type for _ in range(2)] == [
            BaseCommand.CONNECTED,
            BaseCommand.LOOKUP_RESPONSE,
        ]
        peer = world.peer(hello=False)
        peer.tell(lookup())
        assert peer.session.closed

    run_real(scenario)


def lookup(topic: str = TOPIC) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = topic, 1
    return command


def partitions(topic: str = TOPIC) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic, command.partitionMetadata.request_id = topic, 1
    return command


def names() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = NAMESPACE
    command.getTopicsOfNamespace.request_id = 1
    return command


def subscription(topic: str = TOPIC) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.request_id, request.consumer_id = topic, "s", 1, 1
    request.subType = 1  # shared
    return command


async def allowed(world: Secured, role: str) -> set[str]:
    """Which requests a client of that role is not refused."""
    peer = world.role(role)
    await peer.next()
    found = set()
    answer = await peer.ask(lookup())
    reply = answer.lookupTopicResponse
    if reply.error != ServerError.AUTHORIZATION:
        found.add("lookup")
        assert reply.response == reply.Connect
    if (await peer.ask(partitions())).partitionMetadataResponse.error != ServerError.AUTHORIZATION:
        found.add("partitions")
    if (await peer.ask(names())).type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE:
        found.add("names")
    if (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS:
        found.add("produce")
    if (await peer.ask(subscription())).type == BaseCommand.SUCCESS:
        found.add("consume")
    peer.lose()
    return found


def test_a_role_may_do_what_it_is_permitted(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        seen = {"lookup", "partitions", "names"}
        assert await allowed(world, "alice") == set()
        assert await allowed(world, "root") == {*seen, "produce", "consume"}
        await world.grant("alice", "produce")
        assert await allowed(world, "alice") == {*seen, "produce"}
        await world.grant("alice", "consume")
        assert await allowed(world, "alice") == {*seen, "consume"}
        await world.grant("alice")
        assert await allowed(world, "alice") == set()

    run(scenario)


def test_a_namespace_that_is_not_there_is_told_as_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.role("alice")
        await peer.next()
        answer = await peer.ask(lookup("public/none/t"))
        assert answer.lookupTopicResponse.error == ServerError.TOPIC_NOT_FOUND
        asked = names()
        asked.getTopicsOfNamespace.namespace = "public/none"
        answer = await peer.ask(asked)
        assert answer.type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []
        asked.getTopicsOfNamespace.mode = CommandGetTopicsOfNamespace.ALL
        assert (await peer.ask(asked)).error.error == ServerError.TOPIC_NOT_FOUND

    run(scenario)


def test_what_brokers_ask_of_each_other_is_for_super_users(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        await world.grant("alice", "produce", "consume")
        staged = BaseCommand(type=BaseCommand.STAGED_WRITE)
        staged.staged_write.request_id, staged.staged_write.action = 1, 8
        bound = BaseCommand(type=BaseCommand.BOUND_CURSOR)
        bound.bound_cursor.request_id, bound.bound_cursor.action = 1, 1
        bound.bound_cursor.topic = TOPIC
        for role, refused in (("alice", True), ("root", False)):
            peer = world.role(role)
            await peer.next()
            for command, field in (
                (staged, "staged_write_response"),
                (bound, "bound_cursor_response"),
            ):
                told = getattr(await peer.ask(command), field)
                assert (told.error == ServerError.AUTHORIZATION) is refused, (role, field)

    run(scenario)


def test_jobs_that_have_ledgers_deleted_need_more_than_to_consume(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        await world.grant("alice", "consume")
        for role, refused in (("alice", True), ("root", False)):
            peer = world.role(role)
            await peer.next()
            assert (await peer.ask(subscription())).type == BaseCommand.SUCCESS
            command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
            request = command.getLastMessageId
            request.consumer_id = request.request_id = 1
            assert (await peer.ask(command)).type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
            request.log_question.compaction.holder = "job"
            told = await peer.ask(command)
            assert (told.error.error == ServerError.AUTHORIZATION) is refused

    run(scenario)


def test_jobs_need_it_also_while_their_consumer_is_sent_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        await world.grant("alice", "consume")
        for role, refused in (("alice", True), ("root", False)):
            peer = world.role(role)
            await peer.next()
            subscribe = subscription()
            assert (await peer.ask(subscribe)).type == BaseCommand.SUCCESS
            found = peer.session.consumers.pop(1)
            found.leave()
            peer.session.leaving[1] = Leaving(
                found.topic, subscribe.subscribe, Kind.SHARED, EARLIEST, "pulsar://there:6650"
            )
            command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
            request = command.getLastMessageId
            request.consumer_id = request.request_id = 1
            assert (await peer.ask(command)).type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
            request.log_question.compaction.holder = "job"
            told = await peer.ask(command)
            assert (told.error.error == ServerError.AUTHORIZATION) is refused
            if refused:
                request.log_question.Clear()
                request.log_question.table.where = "s3://a/b"
                told = await peer.ask(command)
                assert told.error.error == ServerError.AUTHORIZATION

    run(scenario)


@pytest.mark.parametrize("field", ["original_principal", "original_auth_data"])
def test_nobody_looks_up_for_another(tmp_path: Path, field: str) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.role("root")
        await peer.next()
        lookup = BaseCommand(type=BaseCommand.LOOKUP)
        partitions = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        for command, request, reply in (
            (lookup, lookup.lookupTopic, "lookupTopicResponse"),
            (partitions, partitions.partitionMetadata, "partitionMetadataResponse"),
        ):
            request.topic, request.request_id = TOPIC, 1
            assert not getattr(await peer.ask(command), reply).message
            setattr(request, field, "bob")
            told = getattr(await peer.ask(command), reply)
            assert told.error == ServerError.AUTHORIZATION

    run(scenario)


def test_every_request_says_what_it_needs() -> None:
    assert set(PERMITS) == set(make_table().requests)


# -- tokens that expire -----------------------------------------------------------------------


def response(role: str, method: str = "token", **claims: object) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    answer = command.authResponse.response
    answer.auth_method_name, answer.auth_data = method, token(role, **claims).encode()
    return command


async def expire(world: Secured, seconds: float) -> None:
    world.now_s += seconds
    await asyncio.sleep(seconds)


def test_a_token_that_expires_is_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.role("root", exp=CLOCK_S + 60)
        await peer.next()
        await expire(world, 59)
        assert await peer.kinds() == []
        await expire(world, 2)
        (asked,) = await peer.heard()
        assert asked.type == BaseCommand.AUTH_CHALLENGE
        assert asked.authChallenge.challenge.auth_method_name == "token"
        peer.tell(response("root", exp=CLOCK_S + 200))
        await expire(world, ANSWER_S + 1)
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
        await expire(world, 200)
        assert await outcome(peer) == "AUTH_CHALLENGE"
        await asyncio.sleep(ANSWER_S + 1)
        assert await outcome(peer) == "refused"

    run(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        response("alice", exp=CLOCK_S + 500),  # another role
        response("root", exp=CLOCK_S + 1),
        response("root", method="tls"),
    ],
)
def test_an_answer_that_is_not_sound_ends_the_connection(tmp_path: Path, bad: BaseCommand) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.role("root", exp=CLOCK_S + 60)
        await peer.next()
        await expire(world, 61)
        await peer.next()
        peer.tell(bad)
        assert await outcome(peer) == "refused"

    run(scenario)


def test_a_client_that_cannot_answer_is_disconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.shows("token", token("root", exp=CLOCK_S + 60), refreshes=False)
        await peer.next()
        await expire(world, 61)
        assert await outcome(peer) == "refused"

    run(scenario)


def test_an_answer_that_nobody_asked_for_ends_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        peer = world.role("root")
        await peer.next()
        peer.tell(response("root"))
        assert peer.session.closed
        plain = (await World().start()).peer()
        await plain.next()
        assert (await plain.ask(response("root"))).error.error == ServerError.NOT_ALLOWED
        assert not plain.session.closed

    run(scenario)


# -- brokers among themselves -----------------------------------------------------------------


class OwnedBy:
    """An ownership that knows one answer."""

    def __init__(self, service_url: str) -> None:
        self._at = At(service_url, "")

    async def locate(self, name: TopicName, authoritative: bool = False) -> At:
        return self._at


def test_a_read_only_broker_shows_its_token_to_owners(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        scope = TaskScope("links", fails(lambda _task, _error: None))
        for shown, why in (
            (None, "refused the connection"),
            (token("root", bytes(32)), "refused the connection"),
            (token("alice"), "may not"),
            (token("root"), ""),
        ):
            ownership: Any = OwnedBy(world.services.service_url)
            links = OwnerLinks(ownership, Connections(), scope)
            if shown is not None:
                links.own = OwnAccess(lambda shown=shown: shown)
            if why:
                with pytest.raises(MagnetarError, match=why):
                    await links.open_topic(parse_topic(TOPIC), create=True)
            else:
                await links.open_topic(parse_topic(TOPIC), create=True)
            links.close()
        await scope.close()
        await world.broker.close()

    run_real(scenario)
