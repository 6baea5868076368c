"""Kill the read-only broker that serves a shared subscription, replace it, again and again; count.

    python -m tests.chaos.read_only_kills [--kills 20] [--seed N] [--rate 300]

Processes on a real ZooKeeper: a bookie, an owner, two read-only brokers. Three official clients
share a subscription that a policy sends to read-only brokers. They acknowledge one by one, after
random times and so in random order, refuse some, and keep one in fifty to the end. Ledgers are
short, and retention keeps nothing that is acknowledged. Whichever read-only broker serves is killed
with ``kill -9`` somewhere in the middle, and started again once another one serves.

Before each kill comes a checkpoint: nothing is published until the owner knows of every
acknowledgement. What it knew then is acknowledged and stored.

Invariants:

* Every message that was published and acknowledged to its producer is received.
* What was acknowledged and stored is never received again.
* Nothing unread is trimmed: what was kept is received again after the last kill, and the log holds
  everything as long as a second subscription, which is bound to a read-only broker and abandoned,
  has read none of it.
* By policy that one's messages expire, then it goes, and the log's ledgers with them.

Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pulsar

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.scenarios.cluster import SESSION_MS, Cluster
from tests.scenarios.publisher import connect
from tests.scenarios.shared_brokers import Brokers

OWNER: Final = 0
READ_ONLY: Final = (1, 2)
NAME: Final = "read-only-kills"
TOPIC: Final = f"persistent://public/default/{NAME}"
PATH: Final = f"/admin/v2/persistent/public/default/{NAME}"
NAMESPACE: Final = "/admin/v2/namespaces/public/default"
SERVED, ABANDONED = "served", "abandoned"
CONSUMERS: Final = 3
LEDGER_ENTRIES: Final = 300
KEPT_EVERY: Final = 50
REFUSED_SHARE: Final = 0.03
ACKNOWLEDGED_WITHIN_S: Final = 0.5
WAIT_S: Final = 120.0
QUIET_S: Final = 1.0
TTL_S: Final = 2
EARLIEST: Final = pulsar.InitialPosition.Earliest


def is_kept(number: int) -> bool:
    """Such messages are acknowledged in the end only."""
    return number % KEPT_EVERY == KEPT_EVERY - 1


class Readers:
    """The consumers of the subscription. ``received``: how often each number came."""

    def __init__(self, service_url: str, rng: random.Random) -> None:
        self.received: Counter[int] = Counter()
        self.came_again: list[int] = []
        """Of what was acknowledged and stored."""
        self.keeps = True
        self.last_s = time.monotonic()
        self._stored: set[int] = set()
        self._random = rng
        self._lock = threading.Lock()
        self._later: list[tuple[float, pulsar.Consumer, pulsar.Message]] = []
        self._clients = [connect(service_url) for _ in range(CONSUMERS)]
        self.consumers = [
            client.subscribe(
                TOPIC,
                SERVED,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=EARLIEST,
                message_listener=self._got,
                receiver_queue_size=100,
                negative_ack_redelivery_delay_ms=200,
            )
            for client in self._clients
        ]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._acknowledge_in_time, daemon=True)
        self._thread.start()

    def _got(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        (number,) = struct.unpack_from(">Q", message.data())
        with self._lock:
            self.last_s = time.monotonic()
            self.received[number] += 1
            if number in self._stored:
                self.came_again.append(number)
            if is_kept(number) and self.keeps:
                return
            refused = self._random.random() < REFUSED_SHARE
            if not refused:
                at_s = self.last_s + self._random.random() * ACKNOWLEDGED_WITHIN_S
                self._later.append((at_s, consumer, message))
        if refused:
            consumer.negative_acknowledge(message)

    def _acknowledge_in_time(self) -> None:
        while not self._stopped.wait(0.01):
            with self._lock:
                now_s = time.monotonic()
                due = [each for each in self._later if each[0] <= now_s]
                self._later = [each for each in self._later if each[0] > now_s]
                self._random.shuffle(due)
            for _, consumer, message in due:
                with contextlib.suppress(pulsar.PulsarException):  # its connection is gone
                    consumer.acknowledge(message)

    def stored(self, numbers: set[int]) -> None:
        """The owner knows that they are acknowledged."""
        with self._lock:
            self._stored |= numbers

    def forget_counts(self) -> None:
        with self._lock:
            self.received.clear()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        for client in self._clients:
            client.close()


class Sender(threading.Thread):
    """Publishes numbers, but for when it is held."""

    def __init__(self, service_url: str, rate: float) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._rate = rate
        self._go = threading.Event()
        self._ended = False
        self._sent = 0
        self._client = connect(service_url)
        self._producer = self._client.create_producer(
            TOPIC, batching_enabled=False, send_timeout_millis=0
        )
        self._go.set()

    def run(self) -> None:
        while not self._ended:
            if not self._go.wait(0.1):
                continue
            number, self._sent = self._sent, self._sent + 1
            data = struct.pack(">Q", number) + bytes(100)
            self._producer.send_async(data, lambda result, _, n=number: self._done(n, result))
            time.sleep(1 / self._rate)

    def _done(self, number: int, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)
        else:
            self.failed.append(str(result))

    def hold(self) -> None:
        """Until all that was sent is acknowledged."""
        self._go.clear()
        time.sleep(2 / self._rate)
        wait_until(lambda: len(self.acknowledged) + len(self.failed) == self._sent, "a send hangs")

    def go_on(self) -> None:
        self._go.set()

    def close(self) -> None:
        self.hold()
        self._ended = True
        self.join()
        self._client.close()


def wait_until(what: Callable[[], bool], said: str, wait_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not what():
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)


class Kills:
    """The brokers, and what happens to them."""

    def __init__(self, brokers: Brokers, rate: float, rng: random.Random) -> None:
        self.brokers = brokers
        self.random = rng
        self.without_s: list[float] = []
        """From each kill to the next message that was received."""
        self.kept_again = 0
        self._say("POST", "readOnlyBrokers", {"rules": [{"to": "any"}]})
        self._say("POST", "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        self._abandon()
        self.readers = Readers(brokers.service_url, rng)
        self.sender = Sender(brokers.service_url, rate)
        self.sender.start()

    def _say(self, method: str, policy: str, body: object = None) -> None:
        url = f"http://{self.brokers.broker_id(OWNER)}{NAMESPACE}/{policy}"
        answer = self.brokers.rest.request(method, url, json=body)
        assert answer.is_success, answer.text

    def _abandon(self) -> None:
        """A subscription with nobody: it has been served by a read-only broker for a moment."""
        client = connect(self.brokers.service_url)
        client.create_producer(TOPIC).close()
        consumer = client.subscribe(TOPIC, ABANDONED, initial_position=EARLIEST)
        time.sleep(2.0)
        consumer.close()
        client.close()

    def stats(self, subscription: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._stats()["subscriptions"][subscription]
        return found

    def _stats(self) -> Any:
        return self.brokers.ask(OWNER, f"{PATH}/stats")

    def stored_entries(self) -> int:
        return int(self.brokers.ask(OWNER, f"{PATH}/internalStats")["numberOfEntries"])

    def checkpoint(self) -> None:
        """What is acknowledged now the owner knows of."""
        sender, readers = self.sender, self.readers
        sender.hold()
        kept = set(filter(is_kept, sender.acknowledged)) if readers.keeps else set()

        def known() -> bool:
            if self.stats(SERVED)["entriesBacklog"] != len(kept):
                return False
            # What was sent twice before it was acknowledged may wait at a client still.
            return time.monotonic() - readers.last_s > QUIET_S

        wait_until(known, f"acknowledgements are not known: {self.stats(SERVED)}, {len(kept)} kept")
        missing = sender.acknowledged - readers.received.keys()
        assert not missing, f"not received: {sorted(missing)[:10]}"
        readers.stored(sender.acknowledged - kept)
        assert self.stored_entries() == len(sender.acknowledged), "something unread is trimmed"
        sender.go_on()

    def serving(self) -> int | None:
        """Which of the read-only brokers consumers have messages from."""
        running = [i for i in READ_ONLY if self.brokers.role(i).running]
        before = {index: self.brokers.dispatched(index) for index in running}
        time.sleep(0.3)
        moved = [index for index in running if self.brokers.dispatched(index) > before[index]]
        return moved[0] if moved else None

    def wait_served(self) -> int:
        found: list[int] = []

        def is_served() -> bool:
            index = self.serving()
            found[:] = [] if index is None else [index]
            return bool(found)

        wait_until(is_served, "no read-only broker serves the subscription")
        return found[0]

    def one(self) -> None:
        self.checkpoint()
        index = self.wait_served()
        time.sleep(self.random.uniform(0.0, 1.5))
        killed_s = time.monotonic()
        self.brokers.role(index).kill()
        time.sleep(0.2)  # what clients had already
        wait_until(lambda: self.readers.last_s > killed_s + 0.3, "nobody serves them any more")
        self.without_s.append(self.readers.last_s - killed_s)
        time.sleep(self.random.uniform(0.0, 2.0))
        self.brokers.start(index)

    def finish(self) -> None:
        """Everything is acknowledged in the end, the kept ones too, which are there still."""
        self.checkpoint()
        self.sender.close()
        readers, everything = self.readers, self.sender.acknowledged
        all_received = readers.received.keys() >= everything
        assert all_received, f"not received: {sorted(everything - readers.received.keys())[:10]}"
        kept = set(filter(is_kept, everything))
        readers.forget_counts()
        readers.keeps = False
        for consumer in readers.consumers:
            consumer.redeliver_unacknowledged_messages()
        wait_until(lambda: self.stats(SERVED)["entriesBacklog"] == 0, "kept ones do not come again")
        self.kept_again = len(kept & readers.received.keys())
        assert self.kept_again == len(kept), "something that was kept was trimmed"
        assert self.stored_entries() == len(everything), "the abandoned one has read nothing"

    def leave_to_policy(self) -> None:
        """The abandoned subscription."""
        assert self.stats(ABANDONED)["entriesBacklog"] == len(self.sender.acknowledged)
        self._say("POST", "messageTTL", TTL_S)
        wait_until(lambda: self.stats(ABANDONED)["entriesBacklog"] == 0, "messages do not expire")
        wait_until(lambda: self.stored_entries() <= LEDGER_ENTRIES, "the data stays")
        self._say("POST", "subscriptionExpirationTime", 1)
        gone = f"the abandoned subscription stays: {self._stats()['subscriptions']}"
        wait_until(lambda: ABANDONED not in self._stats()["subscriptions"], gone, 2 * WAIT_S)


def run(kills: int, seed: int, rate: float) -> int:
    rng = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-read-only-") as folder,
        ZooKeeperServer(Path(folder) / "zookeeper") as zookeeper,
    ):
        cluster = Cluster(Path(folder), f"zk://{zookeeper.address}/chaos", 1)
        settings = (
            f"ledger.ledger_entries_max={LEDGER_ENTRIES}",
            "broker.expiry_check_interval_ms=500",
        )
        try:
            cluster.start_bookies()
            brokers = Brokers(cluster, (1, 1, 1), 3, settings, READ_ONLY)
            brokers.start(OWNER, *READ_ONLY)
            made = Kills(brokers, rate, rng)
            for _ in range(kills):
                made.one()
            made.wait_served()
            made.finish()
            made.leave_to_policy()
            made.readers.close()
        finally:
            cluster.end()
    counts = {
        "seed": seed,
        "kills": kills,
        "published": len(made.sender.acknowledged),
        "failed": len(made.sender.failed),
        "kept and received again": made.kept_again,
        "stored and received again": len(made.readers.came_again),
    }
    print(json.dumps(counts))
    ordered = sorted(made.without_s)
    print(
        f"without a message after a kill: median {ordered[len(ordered) // 2]:.2f} s, worst "
        f"{ordered[-1]:.2f} s (session {SESSION_MS / 1000} s)"
    )
    return int(bool(made.readers.came_again or made.sender.failed))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--rate", type=float, default=300, help="messages per second")
    arguments = parser.parse_args()
    sys.exit(run(**vars(arguments)))


if __name__ == "__main__":
    main()
