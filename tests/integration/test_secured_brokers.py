"""Brokers of a cluster that asks who its clients are: they ask one another by TLS with a token of
their own, and clients stay by TLS wherever they are sent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.env.network.tls import client_tls
from tests.certificates import Authority
from tests.roles import Role
from tests.unit.cluster.security.files import token, write_secret

WAIT_S = 120
TOPIC = "persistent://public/default/spread"
PARTITIONS = 8


class SecuredBrokers:
    """``standalone --brokers 2``, and where its first broker is by TLS."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        server = self.authority.issue("server")
        own = folder / "own.token"
        own.write_text(token("broker"))
        settings = {
            "security.authentication": "true",
            "security.token_secret_key_file": write_secret(folder),
            "security.super_users": "root,broker",
            "security.own_token_file": own,
            "broker.tls_port": 0,
            "http.tls_port": 0,
            "tls.certificate_file": server.certificate,
            "tls.key_file": server.key,
            "tls.trusted_file": self.authority.trusted,
            "tls.between_brokers": "true",
            "metadata.session_timeout_ms": 4000,
        }
        self.folder = folder
        self.role = Role(
            folder,
            "standalone",
            *("--data-dir", str(folder / "data"), "--brokers", "2", "--kafka-port", "-1"),
            *("--broker-port", "0", "--http-port", "0"),
            *(part for name in settings for part in ("--set", f"{name}={settings[name]}")),
        ).wait_ready()
        found = re.search(r"(http://\S+) ", self.role.ready_line)
        assert found is not None, self.role.ready_line
        self.root = {"Authorization": f"Bearer {token('root')}"}
        about = httpx.get(f"{found[1]}/admin/v2/clusters/standalone", headers=self.root).json()
        self.tls_url, self.https_url = about["brokerServiceUrlTls"], about["serviceUrlTls"]
        context = client_tls(self.authority.trusted).context()
        self.rest = httpx.Client(
            base_url=self.https_url, verify=context, headers=self.root, timeout=WAIT_S
        )

    def client(self, role: str, url: str = "") -> pulsar.Client:
        return pulsar.Client(
            url or self.tls_url,
            authentication=pulsar.AuthenticationToken(token(role)),
            tls_trust_certs_file_path=str(self.authority.trusted),
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.folder / "client.log")),
        )

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "magnetar", *arguments),
                *("--url", self.https_url, "--token", token("root")),
                *("--tls-trust", str(self.authority.trusted)),
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[SecuredBrokers]:
    made = SecuredBrokers(tmp_path)
    try:
        yield made
    finally:
        made.role.kill()


def test_brokers_and_clients_go_on_by_tls(brokers: SecuredBrokers) -> None:
    brokers.command("namespaces", "permissions", "grant", "public/default", "alice",
                    "--action", "produce", "--action", "consume")  # fmt: skip
    brokers.command("topics", "create-partitioned", "spread", str(PARTITIONS))
    client = brokers.client("alice")
    consumer = client.subscribe(TOPIC, "s")
    sent = set()
    for partition in range(PARTITIONS):
        producer = client.create_producer(f"{TOPIC}-partition-{partition}")
        producer.send(b"%d" % partition)
        sent.add(b"%d" % partition)
    assert {consumer.receive(WAIT_S * 1000).data() for _ in sent} == sent
    assert len(owners(brokers, "public/default")) == 2, "both serve topics"

    # What is about several topics is asked of both; what the other has is sent on, by TLS.
    about = brokers.rest.get("/admin/v2/persistent/public/default/spread/partitioned-stats")
    assert len(about.json()["partitions"]) == PARTITIONS
    sent_on = 0
    for partition in range(PARTITIONS):
        answer = brokers.rest.get(
            f"/admin/v2/persistent/public/default/spread-partition-{partition}/stats"
        )
        if answer.status_code == 307:
            sent_on += 1
            assert answer.headers["location"].startswith("https://")
        else:
            assert answer.status_code == 200
        brokers.command("topics", "stats", f"spread-partition-{partition}")
    assert 0 < sent_on < PARTITIONS
    client.close()
    answer = brokers.rest.delete(
        "/admin/v2/persistent/public/default/spread/partitions", params={"force": "true"}
    )
    assert answer.status_code == 204, answer.text


def owners(brokers: SecuredBrokers, namespace: str) -> set[str]:
    bundles = brokers.rest.get(f"/magnetar/v1/namespaces/{namespace}/bundles").json()
    return {each["owner"] for each in bundles if each["owner"]}


def test_lookups_over_http_need_no_second_broker(brokers: SecuredBrokers) -> None:
    """libcurl shows no Authorization where it is redirected to."""
    brokers.command("namespaces", "permissions", "grant", "public/default", "alice",
                    "--action", "produce", "--action", "consume")  # fmt: skip
    client = brokers.client("alice", brokers.https_url)
    for number in range(PARTITIONS):
        client.create_producer(f"{TOPIC}-{number}").send(b"x")
    assert len(owners(brokers, "public/default")) == 2, "both serve topics"
    client.close()


def test_who_is_not_known_is_known_nowhere(brokers: SecuredBrokers) -> None:
    for header in ({}, {"Authorization": f"Bearer {token('broker', bytes(32))}"}):
        brokers.rest.headers = httpx.Headers(header)
        assert brokers.rest.get("/magnetar/v1/brokers").status_code == 401
