"""Consumers of official clients are sent to read-only brokers, and survive them: what the tests of
Java's and Go's clients have in common.

``SteeredPeer.java`` and ``steered/main.go`` consume wherever they are sent, one topic for each kind
of consumer.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.scenarios.publisher import connect
from tests.scenarios.shared_brokers import Brokers
from tests.scenarios.steered_brokers import OWNERS, READ_ONLY, dispatched, say

KINDS: Final = ("Exclusive", "Shared", "Failover", "Reader", "Tail")
EACH: Final = 20
"""Messages to each of them, three times."""
WAIT_S: Final = 120.0


class Peer:
    """A process with a consumer of each kind, on a topic of its own."""

    def __init__(self, command: Sequence[str], brokers: Brokers, folder: Path) -> None:
        self._out = folder / "peer.out"
        topics = (f"{kind}={topic(kind)}" for kind in KINDS)
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                (*command, brokers.service_url, str(3 * EACH), *topics),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PEER_LOG_LEVEL": "info"} | os.environ,
            )

    def received(self, kind: str) -> list[int]:
        return [int(each) for each in re.findall(rf"^{kind} got (\d+)$", self._said(), re.M)]

    def _said(self) -> str:
        return self._out.read_text(errors="replace")

    def wait_all_said(self, what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        for line in [f"{kind} {what}" for kind in KINDS]:
            while f"\n{line}\n" not in f"\n{self._said()}":
                assert self.process.poll() in (None, 0), self._said()[-8000:]
                assert time.monotonic() < deadline_s, f"no {line!r} in: {self._said()[-8000:]}"
                time.sleep(0.05)


def topic(kind: str) -> str:
    return f"persistent://public/default/steered-{kind.lower()}"


def follow_and_survive(command: Sequence[str], brokers: Brokers, folder: Path) -> None:
    """Consumers of every kind are served by read-only brokers; these are killed one after the
    other; every message is seen, and none before an earlier one that was not."""
    say(brokers, {"to": "any"})
    peer = Peer(command, brokers, folder)
    try:
        peer.wait_all_said("subscribed")
        for number, killed in enumerate((None, *READ_ONLY)):
            if killed is not None:
                brokers.role(killed).kill()
            publish(brokers, number * EACH)
            peer.wait_all_said(f"got {(number + 1) * EACH - 1}")
            if number == 0:  # "Tail" begins at its owner
                assert dispatched(brokers) >= (len(KINDS) - 1) * EACH
        peer.wait_all_said("ok")
        for kind in KINDS:
            assert list(dict.fromkeys(peer.received(kind))) == list(range(3 * EACH)), kind
        assert peer.process.wait(WAIT_S) == 0
        assert dispatched(brokers, OWNERS) > 0, "nobody else was left"
    finally:
        peer.process.kill()
        peer.process.wait()


def publish(brokers: Brokers, first: int) -> None:
    client = connect(brokers.service_url)
    for kind in KINDS:
        producer = client.create_producer(topic(kind), batching_enabled=False)
        for number in range(first, first + EACH):
            producer.send(str(number).encode())
    client.close()
