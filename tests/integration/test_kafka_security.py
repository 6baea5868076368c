"""Kafka's own clients against a server that asks who they are: each mechanism, with and without
TLS, right and wrong, and what each role may do.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import httpx
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioError
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from magnetar.env.network.free_ports import free_port
from tests.certificates import Authority, Pem
from tests.standalone import Standalone
from tests.unit.cluster.security.files import token, write_secret, write_users

DEADLINE_S = 90.0
ROOT, ALICE, BOB = "root", "alice", "bob"
PASSWORDS = {ALICE: "alice's own", BOB: "bob's, with = and ,"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TOPIC = "flights"
"""Alice may produce to and consume from all of ``public/default``, and bob nothing."""


class SecuredStandalone(Standalone):
    """Plain and TLS listeners of Kafka's, and clients' certificates if they show any."""

    def __init__(self, directory: Path) -> None:
        self.kafka_port, self.tls_port = free_port(), free_port()
        self.authority = Authority(directory)
        own = self.authority.issue("server")
        settings = {
            "security.authentication": "true",
            "security.token_secret_key_file": write_secret(directory),
            "security.users_file": write_users(directory, **PASSWORDS),
            "security.super_users": ROOT,
            "kafka.tls_port": self.tls_port,
            "tls.certificate_file": own.certificate,
            "tls.key_file": own.key,
            "tls.trusted_file": self.authority.trusted,
            "tls.client_certificates": "optional",
        }
        pairs = [part for each in settings.items() for part in ("--set", "{}={}".format(*each))]
        super().__init__(directory / "data", "--kafka-port", str(self.kafka_port), *pairs)

    def failures(self) -> int:
        """How often it has refused somebody, by its log."""
        return self.log_path.read_text().count("authentication failed")

    def grant(self, role: str, *actions: str, namespace: str = "public/default") -> None:
        answer = httpx.post(
            f"{self.http_url}/admin/v2/namespaces/{namespace}/permissions/{role}",
            json=list(actions),
            headers={"Authorization": f"Bearer {token(ROOT)}"},
        )
        assert answer.status_code < 300, answer.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredStandalone]:
    with SecuredStandalone(tmp_path_factory.mktemp("secured")) as running:
        running.grant(ALICE, "produce", "consume")
        yield running


@dataclass(frozen=True)
class Credentials:
    mechanism: str
    role: str
    secret: str
    """A password, or a token."""


def of(mechanism: str, role: str) -> Credentials:
    secret = token(role) if mechanism == "OAUTHBEARER" else PASSWORDS[role]
    return Credentials(mechanism, role, secret)


def wrong(mechanism: str) -> Credentials:
    secret = token(ALICE, secret=b"x" * 32) if mechanism == "OAUTHBEARER" else "not hers"
    return Credentials(mechanism, ALICE, secret)


# -- librdkafka -----------------------------------------------------------------------------------


def confluent_settings(
    server: SecuredStandalone, who: Credentials, *, tls: bool = False
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{server.tls_port if tls else server.kafka_port}",
        "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl.mechanism": who.mechanism,
        "reconnect.backoff.max.ms": 500,
    }
    if tls:
        settings["ssl.ca.location"] = str(server.authority.trusted)
    if who.mechanism == "OAUTHBEARER":
        expires_s = time.time() + 3600
        settings["oauth_cb"] = lambda _config: (who.secret, expires_s, who.role, {})
    else:
        settings |= {"sasl.username": who.role, "sasl.password": who.secret}
    return settings


def confluent_crosses(settings: dict[str, Any], topic: str) -> None:
    """A value goes in and comes out again."""
    value = f"{time.time_ns()}".encode()
    failed: list[object] = []
    producer = confluent.Producer(settings)
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert failed == [None]
    group = {"group.id": f"group-{value.decode()}", "auto.offset.reset": "earliest"}
    consumer = confluent.Consumer(settings | group)
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.value() == value:
            consumer.commit(asynchronous=False)
            break
    else:
        raise AssertionError("it does not come")
    consumer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(server: SecuredStandalone, mechanism: str, tls: bool) -> None:
    confluent_crosses(confluent_settings(server, of(mechanism, ALICE), tls=tls), TOPIC)


def confluent_error(settings: dict[str, Any]) -> str:
    """Of a client that is refused, all that it says until the first word of authentication."""
    said: list[str] = []
    client = AdminClient(settings | {"error_cb": lambda error: said.append(str(error))})
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        client.poll(0.2)
        if any("uthentication" in each for each in said):
            break
    return "\n".join(said)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_what_does_not_count(server: SecuredStandalone, mechanism: str) -> None:
    said = confluent_error(confluent_settings(server, wrong(mechanism)))
    assert "uthentication" in said, said
    assert "not hers" not in said
    if mechanism.startswith("SCRAM"):
        nobody = Credentials(mechanism, "nobody", "at all")
        assert "uthentication" in confluent_error(confluent_settings(server, nobody))


def test_librdkafka_without_sasl_is_not_served(server: SecuredStandalone) -> None:
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.kafka_port}"})
    with pytest.raises(confluent.KafkaException):
        client.list_topics(timeout=5)


def test_librdkafka_shows_its_token_again(server: SecuredStandalone) -> None:
    """KIP-368: a token of seconds, and a client that goes on for longer."""
    shown: list[str] = []

    def fresh(_config: str) -> tuple[str, float]:
        expires_s = time.time() + 4
        shown.append(token(ALICE, exp=expires_s))
        return shown[-1], expires_s

    settings = confluent_settings(server, of("OAUTHBEARER", ALICE)) | {"oauth_cb": fresh}
    failed: list[object] = []
    producer = confluent.Producer(settings)
    deadline = time.monotonic() + DEADLINE_S
    while len(shown) < 3:
        assert time.monotonic() < deadline, "it is shown once in some seconds"
        producer.produce(TOPIC, b"on and on", on_delivery=lambda error, _: failed.append(error))
        producer.poll(0.2)
    assert producer.flush(DEADLINE_S) == 0
    assert [error for error in failed if error is not None] == []


# -- kafka-python 2.0.2, in its bytes ------------------------------------------------------------


def old_frame(key: int, number: int, body: bytes) -> bytes:
    """A request in version 0."""
    head = struct.pack(">hhih", key, 0, number, 3) + b"old"
    return struct.pack(">i", len(head) + len(body)) + head + body


def old_answer(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read(int.from_bytes(stream.read(4), "big"))


@pytest.mark.parametrize("password", [PASSWORDS[ALICE], "not hers"], ids=["right", "wrong"])
def test_plain_of_a_client_that_knows_version_0_of_the_handshake(
    server: SecuredStandalone, password: str
) -> None:
    """Its password comes in a frame without a header, and is answered with an empty one."""
    address = ("127.0.0.1", server.kafka_port)
    with socket.create_connection(address, DEADLINE_S) as connection:
        connection.sendall(old_frame(17, 1, b"\0\5PLAIN"))
        assert old_answer(connection)[:6] == b"\0\0\0\1\0\0"
        login = f"{ALICE}\0{ALICE}\0{password}".encode()
        connection.sendall(struct.pack(">i", len(login)) + login)
        if password == "not hers":
            assert connection.recv(4) == b"", "the end says it"
            return
        assert connection.recv(4) == bytes(4)
        connection.sendall(old_frame(3, 2, struct.pack(">i", 0)))
        assert b"127.0.0.1" in old_answer(connection)


# -- what a role may do ---------------------------------------------------------------------------


def refused_with(call: Callable[[], Any]) -> int:
    with pytest.raises(confluent.KafkaException) as refused:
        call()
    return int(refused.value.args[0].code())


def test_a_role_without_permissions_sees_and_does_nothing(server: SecuredStandalone) -> None:
    settings = confluent_settings(server, of("SCRAM-SHA-256", BOB))
    admin = AdminClient(settings)
    assert dict(admin.list_topics(timeout=DEADLINE_S).topics) == {}
    code = confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    created = admin.create_topics([NewTopic("bobs", 1)])["bobs"]
    assert refused_with(lambda: created.result(DEADLINE_S)) == code
    told: list[Any] = []
    producer = confluent.Producer(settings)
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(DEADLINE_S)
    assert [error.code() for error in told] == [code]
    consumer = confluent.Consumer(settings | {"group.id": "bobs"})
    consumer.subscribe([TOPIC])
    codes = set()
    deadline = time.monotonic() + DEADLINE_S
    wanted = {code, confluent.KafkaError.GROUP_AUTHORIZATION_FAILED}
    while not codes & wanted and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is not None:
            codes.add(message.error().code())
    assert codes & wanted
    consumer.close()


def test_a_super_user_makes_topics_that_others_produce_to(server: SecuredStandalone) -> None:
    admin = AdminClient(confluent_settings(server, of("OAUTHBEARER", ROOT)))
    admin.create_topics([NewTopic("made", 2)])["made"].result(DEADLINE_S)
    assert "made" in admin.list_topics(timeout=DEADLINE_S).topics
    producer_settings = confluent_settings(server, of("PLAIN", ALICE))
    confluent_crosses(producer_settings, "made")
    alice = AdminClient(producer_settings)
    refused = alice.delete_topics(["made"])["made"]
    code = confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused_with(lambda: refused.result(DEADLINE_S)) == code
    admin.delete_topics(["made"])["made"].result(DEADLINE_S)


def test_transactions_of_a_role_that_may_produce(server: SecuredStandalone) -> None:
    settings = confluent_settings(server, of("SCRAM-SHA-512", ALICE), tls=True)
    producer = confluent.Producer(settings | {"transactional.id": "alices"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"in a transaction")
    producer.commit_transaction(DEADLINE_S)
    bobs = confluent_settings(server, of("SCRAM-SHA-512", BOB)) | {"transactional.id": "bobs"}
    code = confluent.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    refused = confluent.Producer(bobs)
    assert refused_with(lambda: refused.init_transactions(DEADLINE_S)) == code


# -- certificates ---------------------------------------------------------------------------------


def by_certificate(server: SecuredStandalone, shown: Pem) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{server.tls_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(server.authority.trusted),
        "ssl.certificate.location": str(shown.certificate),
        "ssl.key.location": str(shown.key),
    }


def test_a_certificate_is_enough(server: SecuredStandalone) -> None:
    confluent_crosses(by_certificate(server, server.authority.issue(ALICE)), TOPIC)
    bob = AdminClient(by_certificate(server, server.authority.issue(BOB)))
    assert dict(bob.list_topics(timeout=DEADLINE_S).topics) == {}


def test_clients_go_on_by_the_listener_that_they_came_by(server: SecuredStandalone) -> None:
    for tls in (False, True):
        settings = confluent_settings(server, of("PLAIN", ALICE), tls=tls)
        known = AdminClient(settings).list_topics(timeout=DEADLINE_S)
        ports = {each.port for each in known.brokers.values()}
        assert ports == {server.tls_port if tls else server.kafka_port}


# -- kafka-python ---------------------------------------------------------------------------------


class PythonToken(AbstractTokenProvider):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def token(self) -> str:
        return self._text


def python_settings(server: SecuredStandalone, who: Credentials, *, tls: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{server.tls_port if tls else server.kafka_port}",
        "security_protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl_mechanism": who.mechanism,
    }
    if tls:
        settings["ssl_cafile"] = str(server.authority.trusted)
    if who.mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = PythonToken(who.secret)
    else:
        settings |= {"sasl_plain_username": who.role, "sasl_plain_password": who.secret}
    return settings


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(server: SecuredStandalone, mechanism: str) -> None:
    topic, tls = f"python-{mechanism.lower()}", mechanism in ("PLAIN", "SCRAM-SHA-512")
    settings = python_settings(server, of(mechanism, ALICE), tls=tls)
    producer = kafka.KafkaProducer(**settings)
    assert producer.send(topic, b"one").get(DEADLINE_S).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=f"group of {topic}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
        **settings,
    )
    assert next(iter(consumer)).value == b"one"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_with_what_does_not_count(server: SecuredStandalone, mechanism: str) -> None:
    settings = python_settings(server, wrong(mechanism), tls=False)
    before = server.failures()
    with pytest.raises(KafkaError):
        kafka.KafkaConsumer(bootstrap_timeout_ms=5_000, **settings).topics()
    assert server.failures() > before


# -- aiokafka -------------------------------------------------------------------------------------


class AioToken(AioTokenProvider):
    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


def aio_settings(server: SecuredStandalone, who: Credentials, *, tls: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{server.tls_port if tls else server.kafka_port}",
        "security_protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl_mechanism": who.mechanism,
    }
    if tls:
        context = ssl.create_default_context(cafile=str(server.authority.trusted))
        settings["ssl_context"] = context
    if who.mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = AioToken(who.secret)
    else:
        settings |= {"sasl_plain_username": who.role, "sasl_plain_password": who.secret}
    return settings


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(server: SecuredStandalone, mechanism: str) -> None:
    topic, tls = f"aio-{mechanism.lower()}", mechanism in ("OAUTHBEARER", "SCRAM-SHA-256")

    async def crosses() -> None:
        settings = aio_settings(server, of(mechanism, ALICE), tls=tls)
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await producer.send_and_wait(topic, b"one")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, group_id=f"group of {topic}", auto_offset_reset="earliest", **settings
        )
        await consumer.start()
        assert (await consumer.getone()).value == b"one"
        await consumer.stop()

    asyncio.run(asyncio.wait_for(crosses(), DEADLINE_S))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_with_what_does_not_count(server: SecuredStandalone, mechanism: str) -> None:
    async def refused() -> None:
        producer = AIOKafkaProducer(**aio_settings(server, wrong(mechanism), tls=False))
        try:
            with pytest.raises(AioError):
                await producer.start()
        finally:
            await producer.stop()

    before = server.failures()
    asyncio.run(asyncio.wait_for(refused(), DEADLINE_S))
    assert server.failures() > before
