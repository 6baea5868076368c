"""Clients that must show who they are: what they may ask before, each mechanism, and its time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.principals import Principal
from magnetar.config import SecurityConfig
from magnetar.model.errors import AuthenticationError, MagnetarError, ProtocolError
from magnetar.protocols.kafka.security.sasl_exchange import exchange_of
from magnetar.protocols.kafka.security.sasl_gate import SaslGate
from magnetar.protocols.kafka.security.sasl_states import TRANSITIONS, SaslState
from magnetar.protocols.kafka.session import FIRST_FRAME_BYTES_MAX
from magnetar.wire.kafka.apis import ApiKey, encode_request
from magnetar.wire.kafka.cluster_messages import ApiVersionsRequest, MetadataRequest
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.sasl_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from magnetar.wire.sasl.scram import SCRAM_SHA_256, SCRAM_SHA_512
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.cluster.security.files import token, write_users
from tests.unit.protocols.kafka.harness import KafkaWorld, run
from tests.unit.protocols.kafka.secured import CLOCK_S, SecuredPeer, SecuredWorld, run_secured
from tests.unit.wire.sasl.scram_client import ScramClient

SASL = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]


async def serves(peer: SecuredPeer) -> bool:
    """Whether the connection answers what only clients that are known may ask."""
    peer.tell(ApiKey.METADATA, MetadataRequest(topics=[]))
    if peer.session.closed:
        return False
    await peer.next()
    return True


def test_before_a_client_is_known_it_is_told_what_is_served_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        said = await peer.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("me", "1"))
        assert {each.api_key for each in said.api_keys} >= {17, 36}
        assert not await serves(peer)
        assert world.services.traffic.refused == 1

    run_secured(tmp_path, scenario)


def test_a_request_that_is_not_served_says_nothing_before_either(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        peer.feed(bytes([0, 0, 0, 8, 3, 231, 0, 0, 0, 0, 0, 1]))
        assert peer.session.closed

    run_secured(tmp_path, scenario)


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_scram(tmp_path: Path, mechanism: str) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer, client = world.peer(), ScramClient(mechanism, "alice", "alice's", "abc")
        chosen = await peer.chooses(mechanism)
        assert chosen.error_code == ErrorCode.NONE
        assert sorted(chosen.mechanisms) == ["OAUTHBEARER", "PLAIN", SCRAM_SHA_256, SCRAM_SHA_512]
        challenge = await peer.says(client.first())
        last = await peer.says(client.final(challenge.auth_bytes))
        assert client.trusts(last.auth_bytes)
        assert last.session_lifetime_ms == 0
        assert peer.session.gate is not None
        assert peer.session.gate.principal == Principal("alice")
        assert await serves(peer)

    run_secured(tmp_path, scenario)


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_scram_in_bare_frames(tmp_path: Path, mechanism: str) -> None:
    """kafka-python 1.4 and 2.0 know version 0 of SaslHandshake only."""

    async def scenario(world: SecuredWorld) -> None:
        peer, client = world.peer(), ScramClient(mechanism, "alice", "alice's", "abc")
        chosen = await peer.chooses(mechanism, version=0)
        assert chosen.error_code == ErrorCode.NONE
        assert mechanism in chosen.mechanisms
        challenge = await peer.says_bare(client.first())
        assert challenge is not None
        last = await peer.says_bare(client.final(challenge))
        assert last is not None
        assert client.trusts(last)
        assert peer.session.grants.principal == Principal("alice")
        assert await serves(peer), "its requests have heads again"

    run_secured(tmp_path, scenario)


def test_a_token_in_a_bare_frame(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.chooses("OAUTHBEARER", version=0)
        bearer = b"n,,\1auth=Bearer " + token("carol").encode() + b"\1\1"
        assert await peer.says_bare(bearer) == b""
        assert await serves(peer)
        assert (await peer.bears(token("carol"))).error_code == ErrorCode.NONE, "now with heads"

    run_secured(tmp_path, scenario)


def test_a_wrong_proof_in_a_bare_frame_ends_the_connection_without_an_answer(
    tmp_path: Path,
) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer, client = world.peer(), ScramClient(SCRAM_SHA_256, "alice", "wrong", "abc")
        await peer.chooses(SCRAM_SHA_256, version=0)
        challenge = await peer.says_bare(client.first())
        assert challenge is not None
        assert await peer.says_bare(client.final(challenge)) is None
        assert world.services.traffic.failed_authentications == 1
        assert not peer.session.is_known

    run_secured(tmp_path, scenario)


@pytest.mark.parametrize("message", [b"", b"\0\0\0\0", b"n,,n=alice,r=abc"])
def test_what_is_no_message_of_the_mechanism_in_a_bare_frame(
    tmp_path: Path, message: bytes
) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.chooses("PLAIN", version=0)
        assert await peer.says_bare(message) is None
        assert world.services.traffic.failed_authentications == 1

    run_secured(tmp_path, scenario)


def test_a_request_among_bare_frames_is_a_message_that_proves_nothing(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.chooses("PLAIN", version=0)
        peer.tell(ApiKey.METADATA, MetadataRequest(topics=[]))
        await asyncio.sleep(1)
        assert peer.session.closed
        assert not peer.transport.data

    run_secured(tmp_path, scenario)


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_a_wrong_proof_ends_the_connection_whoever_it_was(tmp_path: Path, name: str) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer, client = world.peer(), ScramClient(SCRAM_SHA_256, name, "wrong", "abc")
        await peer.chooses(SCRAM_SHA_256)
        challenge = await peer.says(client.first())
        assert challenge.error_code == ErrorCode.NONE
        began = asyncio.get_running_loop().time()
        last = await peer.says(client.final(challenge.auth_bytes))
        assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert last.error_message == "authentication failed: the credentials are not accepted"
        assert last.auth_bytes == b""
        assert asyncio.get_running_loop().time() - began >= 0.1, "it is told late"
        assert world.services.traffic.failed_authentications == 1
        assert peer.session.closed

    run_secured(tmp_path, scenario)


def test_oauthbearer_counts_as_long_as_the_token(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        answer = await peer.bears(token("carol", exp=CLOCK_S + 60))
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.NONE, b"")
        assert 50_000 < answer.session_lifetime_ms <= 60_000
        assert await serves(peer)
        await asyncio.sleep(61)
        assert not await serves(peer), "its time is over"

    run_secured(tmp_path, scenario)


def test_a_client_shows_again_who_it_is(tmp_path: Path) -> None:
    """KIP-368, on the same connection."""

    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.bears(token("carol", exp=CLOCK_S + 60))
        await asyncio.sleep(50)
        answer = await peer.bears(token("carol", exp=CLOCK_S + 200))
        assert 100_000 < answer.session_lifetime_ms <= 150_000
        await asyncio.sleep(50)
        assert await serves(peer)
        await asyncio.sleep(200)
        again = await peer.bears(token("carol"))
        assert again.session_lifetime_ms == 0, "late is not too late, if nothing else was asked"
        assert await serves(peer)

    run_secured(tmp_path, scenario)


def test_a_client_stays_who_it_is(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.bears(token("carol"))
        answer = await peer.bears(token("dave"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert peer.session.closed
        other = world.peer()
        await other.bears(token("carol"))
        chosen = await other.chooses("PLAIN")
        assert chosen.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert other.session.closed

    run_secured(tmp_path, scenario)


def test_a_longest_time_can_be_set(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        answer = await peer.bears(token("carol"))
        assert 0 < answer.session_lifetime_ms <= 30_000
        await asyncio.sleep(31)
        assert not await serves(peer)

    run_secured(tmp_path, scenario, session_lifetime_ms=30_000)


def test_a_token_that_does_not_count_is_refused_as_rfc_7628_says(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        for bad in (token("carol", exp=1), token("carol", secret=b"x" * 32), "no.token.at.all"):
            peer = world.peer()
            answer = await peer.bears(bad)
            assert answer.error_code == ErrorCode.NONE
            assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
            counted = world.services.traffic.failed_authentications
            assert (await peer.says(b"\1")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert peer.session.closed
            assert world.services.traffic.failed_authentications == counted, "once"
        assert world.services.traffic.failed_authentications == 3
        # aiokafka 0.14 does not acknowledge it, and goes on as if it were known.
        peer = world.peer()
        await peer.bears(token("carol", exp=1))
        assert not await serves(peer)
        assert world.services.traffic.failed_authentications == 4

    run_secured(tmp_path, scenario)


def test_nobody_acts_for_another(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.chooses("OAUTHBEARER")
        said = f"n,a=root,\1auth=Bearer {token('carol')}\1\1"
        assert json.loads((await peer.says(said.encode())).auth_bytes)["status"] == "invalid_token"
        own = world.peer()
        await own.chooses("OAUTHBEARER")
        said = f"n,a=carol,\1auth=Bearer {token('carol')}\1\1"
        assert (await own.says(said.encode())).auth_bytes == b""

    run_secured(tmp_path, scenario)


def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        chosen = await peer.chooses("GSSAPI")
        assert chosen.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "PLAIN" in chosen.mechanisms
        assert peer.session.closed

    run_secured(tmp_path, scenario)


def test_sasl_out_of_its_order(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        assert (await peer.says(b"")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await peer.chooses("PLAIN")
        peer.tell(ApiKey.API_VERSIONS, ApiVersionsRequest("me", "1"))
        assert peer.session.closed, "within an exchange there is nothing else"

    run_secured(tmp_path, scenario)


def test_where_nobody_is_asked_sasl_has_no_place() -> None:
    """As on a listener of Kafka's without SASL."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        said = await peer.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("PLAIN"))
        assert said.error_code == ErrorCode.ILLEGAL_SASL_STATE
        said = await peer.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(b"\0a\0b"))
        assert said.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert peer.session.gate is None
        assert (await peer.ask(ApiKey.METADATA, MetadataRequest(topics=[]))).brokers

    run(scenario)


def test_who_shows_nothing_is_anonymous_where_that_is_allowed(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        assert await serves(peer)
        assert peer.session.grants.principal == Principal("guest")
        named = world.peer()
        await named.bears(token("carol"))
        assert named.session.grants.principal == Principal("carol")

    run_secured(tmp_path, scenario, anonymous="guest")


def test_a_client_that_is_not_known_sends_no_large_frames(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        peer.feed((FIRST_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\0" * 100)
        assert peer.session.closed
        known = await world.known("carol")
        known.feed((FIRST_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\0" * 100)
        assert not known.session.closed

    run_secured(tmp_path, scenario)


def test_a_client_has_the_time_of_one_frame_to_become_known(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        slow, known = world.peer(), await world.known("carol")
        seconds = world.services.broker.frame_timeout_ms / 1000
        for _ in range(20):
            if slow.session.closed:
                break
            await slow.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("me", "1"))
            await asyncio.sleep(seconds / 8)
        assert slow.session.closed, "however much it asks"
        assert not known.session.closed

    run_secured(tmp_path, scenario)


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    directory = tmp_path_factory.mktemp("users")
    path = write_users(directory, alice="alice's")
    config = SecurityConfig(authentication=True, users_file=str(path))
    namespaces = Namespaces(MemoryMetadata())
    return Access(Authenticator(config, lambda: CLOCK_S), namespaces)


def test_plain(access: Access) -> None:
    async def shown(message: bytes) -> Principal | None:
        return (await exchange_of("PLAIN", access, b"").step(message)).principal

    assert asyncio.run(shown(b"\0alice\0alice's")) == Principal("alice")
    assert asyncio.run(shown(b"alice\0alice\0alice's")) == Principal("alice")
    for wrong in (b"\0alice\0wrong", b"\0nobody\0alice's", b"root\0alice\0alice's"):
        with pytest.raises(AuthenticationError) as refused:
            asyncio.run(shown(wrong))
        assert "alice's" not in str(refused.value)
        assert "wrong" not in str(refused.value)


def test_no_secret_comes_into_the_log(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        peer = world.peer()
        await peer.chooses("OAUTHBEARER")
        secret = token("carol", exp=1)
        await peer.says(b"n,,\1auth=Bearer " + secret.encode() + b"\1\1")
        await peer.says(b"\1")
        other = world.peer()
        await other.chooses(SCRAM_SHA_256)
        await other.says(b"n,,n=alice,r=my own nonce")
        shown = json.dumps(seen, default=repr)
        assert "expired" in shown, "what was wrong is said here"
        assert secret not in shown
        assert "my own nonce" not in shown

    with structlog.testing.capture_logs() as seen:
        run_secured(tmp_path, scenario)


# -- the machine ----------------------------------------------------------------------------------


def gates() -> Iterator[SaslGate]:
    for number in range(2_000):
        without = Principal("guest") if number % 3 == 0 else None
        yield SaslGate(("PLAIN", SCRAM_SHA_256), without, 5.0 if number % 2 else 0.0)


def test_the_gate_does_what_its_table_says_and_serves_nobody_who_is_not_known() -> None:
    source = random.Random(1)
    met: set[tuple[object, object]] = set()
    for gate in gates():
        now_s = 0.0
        for _ in range(12):
            now_s += source.choice((0.0, 1.0, 6.0))
            before = gate.state
            try:
                _turn(gate, source, now_s)
            except ProtocolError:
                if gate.state is SaslState.REFUSED:
                    break
            if gate.state is SaslState.KNOWN:
                assert gate.principal is not None
            met.add((before, gate.state))
            if gate.state is SaslState.REFUSED:
                break
    assert met >= {(each.state, each.following) for each in TRANSITIONS}


def _turn(gate: SaslGate, source: random.Random, now_s: float) -> None:
    """One thing that a client may do; what is served is served to one that is known."""
    what = source.randrange(6)
    if what == 0:
        gate.check(ApiKey.SASL_HANDSHAKE, now_s)
        gate.choose(source.choice(("PLAIN", SCRAM_SHA_256, "GSSAPI")))
    elif what == 1 and gate.exchanging:
        gate.check(ApiKey.SASL_AUTHENTICATE, now_s)
        gate.went_on()
    elif what == 2 and gate.exchanging:
        role = "alice" if source.random() < 0.9 or gate.principal is None else "bob"
        known = gate.principal
        if not gate.proved(Principal(role, now_s + 3.0), now_s):
            assert known is not None
            assert known.role != role
    elif what == 3 and gate.exchanging and source.random() < 0.3:
        gate.failed()
    elif what == 4:
        gate.check(ApiKey.API_VERSIONS, now_s)
    elif what == 5:
        gate.check(ApiKey.FETCH, now_s)
        assert gate.state is SaslState.KNOWN
        assert gate.principal is not None
        assert not gate.principal.expired(now_s)


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", SCRAM_SHA_256, SCRAM_SHA_512])
def test_noise_proves_nothing(access: Access, mechanism: str) -> None:
    async def noise() -> None:
        source = random.Random(5)
        alphabet = b"\0\1,=nacrp abc\xff"
        for _ in range(500):
            exchange = exchange_of(mechanism, access, b"secret")
            try:
                for _ in range(3):
                    size = source.randrange(30)
                    step = await exchange.step(bytes(source.choices(alphabet, k=size)))
                    assert step.principal is None
            except MagnetarError:
                continue

    asyncio.run(noise())


def test_broken_frames_make_nobody_known_and_nothing_fail(tmp_path: Path) -> None:
    source = random.Random(11)
    good = [
        encode_request(ApiKey.SASL_HANDSHAKE, version, 1, "me", SaslHandshakeRequest(mechanism))
        for mechanism in ("OAUTHBEARER", SCRAM_SHA_256)
        for version in (0, 1)
    ]
    good += [
        encode_request(ApiKey.SASL_AUTHENTICATE, version, 2, "me", SaslAuthenticateRequest(message))
        for version in (0, 1, 2)
        for message in (b"n,,\1auth=Bearer a.b.c\1\1", b"n,,n=alice,r=abc", b"\1", b"")
    ]
    good.append(encode_request(ApiKey.METADATA, 12, 3, "me", MetadataRequest(topics=[])))

    async def scenario(world: SecuredWorld) -> None:
        for _ in range(300):
            peer = world.peer()
            for _ in range(4):
                frame = bytearray(source.choice(good))
                for _ in range(source.randrange(3)):
                    frame[source.randrange(4, len(frame))] = source.randrange(256)
                peer.feed(bytes(frame))
                for _ in range(20):
                    await asyncio.sleep(0)
            assert not peer.session.is_known
            peer.session.abort()
            peer.session.connection_lost(None)
        await asyncio.sleep(1)

    with structlog.testing.capture_logs() as seen:
        run_secured(tmp_path, scenario)
    assert [each for each in seen if each["log_level"] == "error"] == []
