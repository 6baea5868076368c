"""A few random lives of a query against a real broker. The many are in
``tests/unit/pipeline/reading/test_restarts.py``. The source's own planner and
tasks run here; Spark does not."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pulsar
import pytest

from magnetar.pipeline.options.source_options import parse_read_options
from tests.standalone import Standalone
from tests.unit.pipeline.driving import Query

pytestmark = pytest.mark.timeout(600)

STEPS = 30
WAIT_S = 90.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Ledgers of five entries that are deleted as soon as no subscription needs them."""
    settings = (
        "ledger.ledger_entries_max=5",
        "ledger.retention_ms=0",
        "ledger.retention_bytes=0",
    )
    arguments = [word for setting in settings for word in ("--set", setting)]
    with Standalone(tmp_path_factory.mktemp("lives") / "data", *arguments) as running:
        yield running


class Life:
    """Topics ``plain`` and ``many`` (partitioned), each partition held by a subscription, and a
    query that reads them with losses counted."""

    def __init__(self, platform: Standalone, client: pulsar.Client, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.platform = platform
        self.client = client
        self.plain, self.many = f"{name}-plain", f"{name}-many"
        self.partitions = 1
        self.value = 0
        self.deleted = False
        self.appended: dict[tuple[str, int], list[int]] = {}
        self.made: Counter[str] = Counter()
        self.last: dict[str, pulsar.MessageId] = {}
        self.keepers: dict[str, pulsar.Consumer] = {}
        self._rest("put", f"{self.many}/partitions", json=1)
        for one in self.names():
            self._keep(one)
        options = parse_read_options(
            {
                "service.url": platform.service_url,
                "subscribe": f"{self.plain},{self.many}",
                "failOnDataLoss": "false",
                "maxOffsetsPerTrigger": "7",
                "pinTimeoutMs": "0",  # retention deletes what it has not read
            }
        )
        self.query = Query.of(options)
        self.query.plan()
        self.query.execute()

    def _rest(self, method: str, path: str, **arguments: object) -> httpx.Response:
        url = f"{self.platform.http_url}/admin/v2/persistent/public/default/{path}"
        answer = httpx.request(method, url, timeout=60, **arguments)  # type: ignore[arg-type]
        assert answer.status_code < 300, (method, path, answer.text)
        return answer

    def names(self) -> list[str]:
        return [self.plain, *(f"{self.many}-partition-{n}" for n in range(self.partitions))]

    def _keep(self, name: str) -> None:
        self.keepers[name] = self.client.subscribe(name, "keeper")

    # -- what happens -------------------------------------------------------------------------

    def publish(self) -> None:
        name = self.random.choice(self.names())
        batched = self.random.random() < 0.5
        producer = self.client.create_producer(name, batching_enabled=batched)
        values = self.appended.setdefault((name, self.made[name]), [])

        def stored(_result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            self.last[name] = message_id

        for _ in range(self.random.randint(1, 12)):
            producer.send_async(b"%d" % self.value, stored)
            values.append(self.value)
            self.value += 1
            if self.random.random() < 0.5:
                producer.flush()
        producer.flush()
        producer.close()

    def let_go(self) -> None:
        """Retention deletes the ledgers before that of the last message."""
        name = self.random.choice(self.names())
        if name not in self.last:
            return
        last = self.last[name]
        deadline = time.monotonic() + WAIT_S
        self.keepers[name].acknowledge_cumulative(last)
        while self._first_ledger(name, last) < last.ledger_id():
            assert time.monotonic() < deadline
            time.sleep(0.5)
            # An acknowledgement is lost where the connection breaks, and the client sends no
            # second one that is not past the first: a consumer made anew does.
            self.keepers[name].close()
            self._keep(name)
            self.keepers[name].acknowledge_cumulative(last)

    def _first_ledger(self, name: str, last: pulsar.MessageId) -> int:
        ledgers = self._rest("get", f"{name}/internalStats").json()["ledgers"]
        return int(ledgers[0]["ledgerId"]) if ledgers else last.ledger_id()

    def delete(self) -> None:
        self.deleted = True
        self.keepers.pop(self.plain).close()
        self._rest("delete", f"{self.plain}?force=true")
        self.last.pop(self.plain, None)
        self.made[self.plain] += 1
        self._keep(self.plain)

    def grow(self) -> None:
        if self.partitions < 4:
            self.partitions += 1
            self._rest("post", f"{self.many}/partitions", json=self.partitions)
            self._keep(self.names()[-1])

    def broker_restarts(self) -> None:
        self.platform.kill()
        self.platform.start()

    def micro_batch(self) -> None:
        if self.query.plan():
            self.query.execute()

    def restart(self) -> None:
        if self.random.random() < 0.5:
            self.query.plan()
        self.query.restart()

    def live(self, steps: int, *, deletions: bool) -> None:
        kinds = [self.publish] * 6 + [self.micro_batch] * 4 + [self.let_go] * 2 + [self.restart] * 2
        kinds += [self.grow, self.broker_restarts] + [self.delete] * deletions
        for _ in range(steps):
            self.random.choice(kinds)()

    def check(self) -> None:
        self.query.run()
        counts = Counter(self.query.values)
        assert max(counts.values(), default=1) == 1, counts.most_common(3)
        for values in self.appended.values():
            of_log = [value for value in self.query.values if value in set(values)]
            assert of_log == sorted(of_log)
        missing = self.value - len(counts)
        if self.deleted:
            assert bool(self.query.lost) >= bool(missing)
        else:
            assert self.query.lost == missing


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_lives(platform: Standalone, client: pulsar.Client, topic: str, seed: int) -> None:
    life = Life(platform, client, topic, seed)
    life.live(STEPS, deletions=seed == 3)
    life.check()
