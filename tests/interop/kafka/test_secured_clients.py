"""Kafka's Java client against a standalone that asks who it is: peer tests, not part of
``make test``; see ``test_clients``.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import find_java
from tests.integration.test_kafka_security import ALICE, PASSWORDS, SecuredStandalone
from tests.interop.kafka.test_clients import HERE, TOOLS, kept
from tests.unit.cluster.security.files import token

COUNT = 2_000
LOGIN = "org.apache.kafka.common.security"
OAUTH_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredStandalone]:
    with SecuredStandalone(tmp_path_factory.mktemp("secured")) as running:
        running.grant(ALICE, "produce", "consume")
        yield running


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not installed")
    found = kept(tmp_path_factory, "kafka-tools")
    if not any(found.glob("kafka-tools-*.jar")):
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={found}"]
        command = ["mvn", "-q", "-B", "-f", str(HERE / "tools.pom.xml"), *goal]
        subprocess.run(command, check=True, timeout=1000)
    return found


def settings(server: SecuredStandalone, folder: Path, mechanism: str, *, right: bool) -> Path:
    """A file of the client's; by TLS but for SCRAM."""
    tls = not mechanism.startswith("SCRAM")
    said = {
        "bootstrap.servers": f"127.0.0.1:{server.tls_port if tls else server.kafka_port}",
        "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "reconnect.backoff.max.ms": "500",
        "max.block.ms": "60000",
    }
    if tls:
        said |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(server.authority.trusted),
        }
    if mechanism == "OAUTHBEARER":
        now = int(time.time())
        secret = {} if right else {"secret": b"x" * 32}
        shown = folder / "token"
        shown.write_text(token(ALICE, iat=now, exp=now + 3600, **secret))  # type: ignore[arg-type]
        said |= {
            "sasl.login.callback.handler.class": f"{LOGIN}.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": shown.as_uri(),
            "sasl.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
        }
    else:
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        password = PASSWORDS[ALICE] if right else "not hers"
        said["sasl.jaas.config"] = (
            f'{LOGIN}.{kind}LoginModule required username="{ALICE}" password="{password}";'
        )
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
    return path


def produced(jars: Path, path: Path, count: int = COUNT) -> str:
    """What Kafka's producer for measurements says."""
    bootstrap = dict(line.split("=", 1) for line in path.read_text().splitlines())
    allowed = bootstrap.get("sasl.oauthbearer.token.endpoint.url", "")
    found = subprocess.run(
        [
            *(find_java(), "-Xmx256m", f"-D{OAUTH_URLS}={allowed}", "-cp", str(jars / "*")),
            f"{TOOLS}.ProducerPerformance",
            *("--num-records", str(count), "--record-size", "100", "--throughput", "-1"),
            *("--topic", "java", "--producer.config", str(path)),
            *("--producer-props", f"bootstrap.servers={bootstrap['bootstrap.servers']}"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return found.stdout + found.stderr


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_producer(
    server: SecuredStandalone, jars: Path, tmp_path: Path, mechanism: str
) -> None:
    said = produced(jars, settings(server, tmp_path, mechanism, right=True))
    assert f"{COUNT} records sent" in said, said


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_producer_with_what_does_not_count(
    server: SecuredStandalone, jars: Path, tmp_path: Path, mechanism: str
) -> None:
    said = produced(jars, settings(server, tmp_path, mechanism, right=False), 1)
    assert "AuthenticationException" in said, said
    assert "not hers" not in said
