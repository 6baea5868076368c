"""A standalone is killed while queries write to it exactly once, by way of its broker: right after
a commit was decided, while one is under way, and between two drivers.

Writers and drivers are the product's, in this process; they know nothing but the service URL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pulsar
import pytest

from magnetar.pipeline.writing.staged_session import StagedSession
from magnetar.staging.commit_rules import CommitVerdict, Offer
from magnetar.staging.committer import Committer, QueryRun
from magnetar.staging.marks import sender
from magnetar.staging.records import Origin
from magnetar.staging.writer import StagedWriter
from magnetar_sim.brokers.pulsar_client import encode_payload
from tests.standalone import Standalone

pytestmark = pytest.mark.timeout(300)

TOPIC = "persistent://public/default/{}"
ENTRIES, TASKS = 40, 2
WAIT_S = 60.0


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data") as running:
        yield running


@pytest.fixture
def session(platform: Standalone) -> Iterator[StagedSession]:
    made = StagedSession(platform.service_url)
    yield made
    made.close()


class Query:
    """A driver and its tasks. What a task writes says which attempt it is of."""

    def __init__(self, session: StagedSession, name: str) -> None:
        self.topic = TOPIC.format(name)
        self.name = name
        self.session = session
        self.ledgers = session.ledgers(None, self.topic)
        self.committer = Committer(session.queries, self.ledgers)
        self.attempts = 0

    def run_task(self, run: str, batch: int, part: int) -> tuple[Offer, list[bytes]]:
        return self.session.run(self._task(run, batch, part))

    async def _task(self, run: str, batch: int, part: int) -> tuple[Offer, list[bytes]]:
        self.attempts += 1
        record, _ = await self.session.queries.begin(self.name, run)
        origin = Origin(self.name, run, batch, part, str(self.attempts))
        writer = StagedWriter(self.ledgers, origin, inline_bytes_max=0)
        producer = sender(record.key(self.name), batch, part)
        rows = [b"%d.%d.%d.%d" % (batch, part, n, self.attempts) for n in range(ENTRIES)]
        now_ms = time.time_ns() // 1_000_000
        for number, row in enumerate(rows):
            await writer.add(self.topic, [encode_payload(producer, number, now_ms, [row])], 1)
        return await writer.finish(), rows

    def offered(self, run: str, batch: int) -> tuple[list[Offer], list[bytes]]:
        done = [self.run_task(run, batch, part) for part in range(TASKS)]
        return [offer for offer, _ in done], [row for _, rows in done for row in rows]

    def commit(self, run: str, batch: int, offers: Sequence[Offer]) -> CommitVerdict:
        commit = self.committer.commit(QueryRun(self.name, run), batch, offers, WAIT_S)
        return self.session.run(commit)

    def wait(self, batch: int) -> None:
        self.session.run(self.committer.wait_taken_in(self.name, batch, WAIT_S))


def read_all(platform: Standalone, topic: str) -> list[bytes]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(platform.service_url, logger=logger)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(30_000).data())
        return found
    finally:
        client.close()


def restart(platform: Standalone) -> None:
    platform.kill()
    platform.start()


def test_a_broker_is_killed_between_commit_and_intake(
    platform: Standalone, session: StagedSession
) -> None:
    query, expected = Query(session, "after"), list[bytes]()
    for batch in range(4):
        offers, rows = query.offered("r1", batch)
        assert query.commit("r1", batch, offers) is CommitVerdict.COMMITTED
        restart(platform)
        # As an engine does that did not hear of its commit: other attempts, other rows.
        again, _ = query.offered("r1", batch)
        assert query.commit("r1", batch, again) is CommitVerdict.ALREADY
        expected += rows
        query.wait(batch)
    assert read_all(platform, query.topic) == expected


def test_a_broker_is_killed_while_a_batch_is_committed(
    platform: Standalone, session: StagedSession
) -> None:
    query, expected = Query(session, "during"), list[bytes]()
    for batch, delay_s in enumerate((0.0, 0.002, 0.005)):
        offers, rows = query.offered("r1", batch)
        killer = threading.Timer(delay_s, restart, [platform])
        killer.start()
        assert query.commit("r1", batch, offers) in CommitVerdict
        killer.join()
        expected += rows
        query.wait(batch)
    assert read_all(platform, query.topic) == expected


def test_a_driver_that_comes_after_another_died_with_its_batch(
    platform: Standalone, session: StagedSession
) -> None:
    query = Query(session, "driver")
    _, _ = query.offered("r1", 0)  # and nobody commits them
    restart(platform)
    offers, rows = query.offered("r2", 0)
    assert query.commit("r2", 0, offers) is CommitVerdict.COMMITTED
    restart(platform)
    again, _ = query.offered("r3", 0)
    assert query.commit("r3", 0, again) is CommitVerdict.ALREADY
    query.wait(0)
    assert read_all(platform, query.topic) == rows
