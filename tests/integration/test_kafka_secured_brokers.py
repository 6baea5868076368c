"""Brokers of one cluster that show one another who they are: replicas, and transactions over
several of them, with tokens alone and by TLS.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.certificates import Authority
from tests.integration.test_kafka_clients import DEADLINE_S, polled
from tests.roles import Role
from tests.unit.cluster.security.files import token, write_secret, write_users

ROOT = "root"
PARTITIONS, COUNT = 4, 200


class SecuredBrokers:
    def __init__(self, directory: Path, *, tls: bool) -> None:
        self.authority = Authority(directory)
        own = self.authority.issue("broker")
        shown = directory / "own-token"
        shown.write_text(token(ROOT))
        settings: dict[str, object] = {
            "security.authentication": "true",
            "security.token_secret_key_file": write_secret(directory),
            "security.users_file": write_users(directory, root="a password"),
            "security.super_users": ROOT,
            "security.own_token_file": shown,
            "broker.engine": "partition",
            "partition.replication_factor": 2,
            "partition.min_insync_replicas": 2,
        }
        if tls:
            settings |= {
                "kafka.tls_port": 0,
                "tls.certificate_file": own.certificate,
                "tls.key_file": own.key,
                "tls.trusted_file": self.authority.trusted,
                "tls.between_brokers": "true",
            }
        pairs = [part for each in settings.items() for part in ("--set", "{}={}".format(*each))]
        self.role = Role(
            directory,
            "standalone",
            *("--data-dir", str(directory / "data"), "--broker-port", "0", "--http-port", "0"),
            *("--brokers", "2", "--kafka-port", "-1" if tls else "0"),
            *pairs,
        ).wait_ready()
        found = re.search(rf"kafka{r'[+]tls' if tls else ''} (\S+) ", self.role.ready_line)
        assert found is not None, self.role.ready_line
        self.settings: dict[str, Any] = {
            "bootstrap.servers": found[1],
            "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": ROOT,
            "sasl.password": "a password",
        }
        if tls:
            self.settings["ssl.ca.location"] = str(self.authority.trusted)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def brokers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SecuredBrokers]:
    made = SecuredBrokers(tmp_path, tls=request.param)
    try:
        yield made
    finally:
        made.role.kill()


def test_brokers_replicate_and_commit_for_one_another(brokers: SecuredBrokers) -> None:
    admin = AdminClient(brokers.settings)
    made = NewTopic("replicated", PARTITIONS, 2)
    admin.create_topics([made])["replicated"].result(DEADLINE_S)
    # What is acknowledged is on both: a follower that could not fetch would have it refused.
    producer = confluent.Producer(
        brokers.settings | {"transactional.id": "one", "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions(DEADLINE_S)
    errors: list[object] = []
    for first in range(0, COUNT, COUNT // 4):
        producer.begin_transaction()
        for number in range(first, first + COUNT // 4):
            producer.produce(
                "replicated",
                partition=number % PARTITIONS,
                value=b"%d" % number,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        producer.commit_transaction(DEADLINE_S)
    assert errors == []
    known = admin.list_topics(timeout=DEADLINE_S)
    assert len(known.brokers) == 2
    leaders = {each.leader for each in known.topics["replicated"].partitions.values()}
    assert leaders == set(known.brokers), "each leads some, so that markers went between them"
    deadline = time.monotonic() + DEADLINE_S
    while any(
        len(each.isrs) < 2
        for each in admin.list_topics(timeout=DEADLINE_S).topics["replicated"].partitions.values()
    ):
        assert time.monotonic() < deadline, "both are in sync"
        time.sleep(0.2)
    consumer = confluent.Consumer(
        brokers.settings
        | {
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["replicated"])
    values = [int(each.value()) for each in polled(consumer, COUNT)]
    assert sorted(values) == list(range(COUNT))
    consumer.commit(asynchronous=False)
    consumer.close()
    admin.delete_topics(["replicated"])["replicated"].result(DEADLINE_S)
