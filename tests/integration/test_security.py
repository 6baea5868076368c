"""A platform that asks who its clients are: the official client with tokens, passwords, TLS and
certificates; REST; our own commands."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.env.network.free_ports import free_port
from magnetar.env.network.tls import client_tls
from magnetar.model.errors import NotAllowedError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.writing.staged_session import StagedSession
from tests.certificates import Authority
from tests.standalone import Standalone
from tests.unit.cluster.security.files import token, write_secret, write_users

LONG_S = 60


class Secured:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.log_path = directory / "clients.log"
        server = self.authority.issue("server")
        self.tls_port, self.https_port = free_port(), free_port()
        settings = {
            "security.authentication": "true",
            "security.token_secret_key_file": write_secret(directory),
            "security.users_file": write_users(directory, alice="secret"),
            "security.super_users": "root",
            "broker.tls_port": self.tls_port,
            "http.tls_port": self.https_port,
            "tls.certificate_file": server.certificate,
            "tls.key_file": server.key,
            "tls.trusted_file": self.authority.trusted,
            "tls.client_certificates": "optional",
        }
        arguments = [part for name in settings for part in ("--set", f"{name}={settings[name]}")]
        self.server = Standalone(directory / "data", *arguments, "--kafka-port", "-1")
        self.root_token = directory / "root.token"
        self.root_token.write_text(token("root"))
        self.trust = str(self.authority.trusted)
        self.tls_url = f"pulsar+ssl://127.0.0.1:{self.tls_port}"
        self.https_url = f"https://127.0.0.1:{self.https_port}"

    def quiet(self) -> pulsar.FileLogger:
        return pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.log_path))

    def client(self, url: str = "", **options: Any) -> pulsar.Client:
        if "ssl" in url or url.startswith("https"):
            options["tls_trust_certs_file_path"] = self.trust
        return pulsar.Client(url or self.server.service_url, logger=self.quiet(), **options)

    def by_token(self, role: str, url: str = "", **claims: object) -> pulsar.Client:
        return self.client(url, authentication=pulsar.AuthenticationToken(token(role, **claims)))

    def run(self, *arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
        shown = ("--token-file", str(self.root_token), "--url", url or self.server.http_url)
        return subprocess.run(
            [sys.executable, "-m", "magnetar", *arguments, *shown],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

    def grant(self, role: str, *actions: str) -> None:
        given = [part for action in actions for part in ("--action", action)]
        done = self.run("namespaces", "permissions", "grant", "public/default", role, *given)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.server:
        made.grant("alice", "produce", "consume")
        made.grant("writer", "produce")
        yield made


def round_trip(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(topic).send(b"hello")
    assert consumer.receive(LONG_S * 1000).data() == b"hello"
    client.close()


def test_tokens_and_passwords_are_served(site: Secured) -> None:
    round_trip(site.by_token("alice"), "by-token")
    basic = pulsar.AuthenticationBasic("alice", "secret")
    round_trip(site.client(authentication=basic), "by-password")


def test_what_is_not_sound_is_an_authentication_error(site: Secured) -> None:
    for options in (
        {},
        {"authentication": pulsar.AuthenticationToken("none")},
        {"authentication": pulsar.AuthenticationToken(token("alice", bytes(32)))},
        {"authentication": pulsar.AuthenticationToken(token("alice", exp=1))},
        {"authentication": pulsar.AuthenticationBasic("alice", "wrong")},
    ):
        client = site.client(**options)
        with pytest.raises(pulsar.AuthenticationError):
            client.create_producer("refused")
        client.close()


def test_what_is_not_permitted_is_an_authorization_error(site: Secured) -> None:
    client = site.by_token("nobody")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("refused")
    client.close()
    client = site.by_token("writer")
    client.create_producer("written").send(b"hello")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("written", "s")
    client.close()


def test_a_namespace_that_is_not_there_is_told_as_that(site: Secured) -> None:
    client = site.by_token("alice")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://public/none/t")
    client.close()


def test_tls_is_served_and_lookups_stay_by_it(site: Secured) -> None:
    round_trip(site.by_token("alice", site.tls_url), "by-tls")
    round_trip(site.by_token("alice", site.https_url), "by-https")


def test_a_certificate_is_a_role(site: Secured) -> None:
    alice = site.authority.issue("alice")
    shown = pulsar.AuthenticationTLS(str(alice.certificate), str(alice.key))
    round_trip(site.client(site.tls_url, authentication=shown), "by-certificate")
    other = site.authority.issue("nobody")
    shown = pulsar.AuthenticationTLS(str(other.certificate), str(other.key))
    client = site.client(site.tls_url, authentication=shown)
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("by-certificate")
    client.close()
    shows = client_tls(site.authority.trusted, *alice).context()
    with httpx.Client(verify=shows, trust_env=False) as rest:
        path = f"{site.https_url}/admin/v2/persistent/public/default"
        assert rest.get(path).status_code == 200


def test_a_server_that_is_not_trusted_is_not_shown_a_token(site: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    client = pulsar.Client(
        site.tls_url,
        authentication=pulsar.AuthenticationToken(token("alice")),
        tls_trust_certs_file_path=str(other.trusted),
        operation_timeout_seconds=3,
        logger=site.quiet(),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("untrusted")
    client.close()


def test_a_token_that_expires_is_supplied_again(site: Secured) -> None:
    """The connection goes on: what is unacknowledged is not delivered again."""
    supplied = []

    def supply() -> str:
        supplied.append(token("alice", exp=time.time() + 2))
        return supplied[-1]

    client = site.client(authentication=pulsar.AuthenticationToken(supply))
    consumer = client.subscribe("expiring", "s")
    producer = client.create_producer("expiring")
    producer.send(b"first")
    first = consumer.receive(LONG_S * 1000)
    deadline, before = time.monotonic() + LONG_S, len(supplied)
    while len(supplied) < before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    producer.send(b"second")
    assert consumer.receive(LONG_S * 1000).data() == b"second"
    assert first.data() == b"first"
    client.close()


def test_our_commands_show_a_token(site: Secured) -> None:
    done = site.run("topics", "list")
    assert done.returncode == 0, done.stderr
    url = ("--service-url", site.server.service_url, "--token", token("alice"))
    for command in (
        ("produce", "commands", "-m", "hello", *url),
        ("consume", "commands", "-s", "s", "--from", "earliest", "--count", "1", *url),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "magnetar", *command],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", "topics", "list", "--url", site.server.http_url],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 1
    assert "authentication failed" in done.stderr
    done = site.run("brokers", "list", "--tls-trust", site.trust, url=site.https_url)
    assert done.returncode == 0, done.stderr


def test_a_client_of_the_wrong_kind_is_told_in_the_log(site: Secured) -> None:
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{site.tls_port}", operation_timeout_seconds=3, logger=site.quiet()
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("plain")
    client.close()
    deadline = time.monotonic() + LONG_S
    while "does not speak TLS" not in site.server.log_path.read_text():
        assert time.monotonic() < deadline
        with socket.create_connection(("127.0.0.1", site.tls_port)) as again:
            again.sendall(bytes(100))  # one line now and then is said of all that are refused
        time.sleep(0.5)


def test_the_pipeline_shows_the_token_of_its_environment(
    site: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_trip(site.by_token("alice"), "read-by-jobs")
    topic = "persistent://public/default/read-by-jobs"
    monkeypatch.delenv("MAGNETAR_TOKEN", raising=False)
    with pytest.raises(NotAllowedError, match="authentication failed"):
        BrokerClient(site.server.service_url).extent(topic)
    monkeypatch.setenv("MAGNETAR_TOKEN", token("alice"))
    monkeypatch.setenv("MAGNETAR_TRUST", site.trust)
    for url in (site.server.service_url, site.tls_url):
        client = BrokerClient(url)
        assert client.partitions(topic) == [topic]
        assert client.extent(topic).end_offset == 1
        client.close()
    monkeypatch.setenv("MAGNETAR_TOKEN", token("nobody"))
    with pytest.raises(NotAllowedError, match="nobody may not"):
        BrokerClient(site.tls_url).extent(topic)


def test_staged_writes_go_through_brokers_by_tls(
    site: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_TOKEN", token("root"))
    monkeypatch.setenv("MAGNETAR_TRUST", site.trust)
    session = StagedSession(site.tls_url, 10_000)
    try:
        begun = session.run(session.queries.begin("by-tls", "run"))
        assert session.run(session.queries.read("by-tls")) == begun.record
    finally:
        session.close()
