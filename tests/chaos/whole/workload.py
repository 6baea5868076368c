"""The client processes: started, killed, started again, ended; and the audit at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pulsar

from tests.chaos.whole.connecting import connect, until_it_works
from tests.chaos.whole.history import GOT, HistoryWriter
from tests.chaos.whole.modes import AUDIT, CONSUMERS, PUBLISHERS, TOPICS, duties, parse

FLUSH_S: Final = 240.0
MODULES: Final = {
    **dict.fromkeys(PUBLISHERS, "publish"),
    "first": "consume",
    "second": "consume",
    "reader": "read",
    "receipts": "receipts",
}


JAVA_RUN: Final = Path(__file__).parents[2] / "interop" / "java" / "run.sh"


class ClientProcess:
    """One after the other, each with a name and a history of its own."""

    def __init__(self, name: str, service_url: str, folder: Path, java: Path | None) -> None:
        self.name = name
        self._java = java
        self._service_url = service_url
        self._folder = folder
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def start(self) -> None:
        self._starts += 1
        name = f"{self.name}.{self._starts}"
        command = [
            *self._program(), name,
            self._service_url, str(self._folder / "histories" / f"{name}.jsonl"),
        ]  # fmt: skip
        if self.name == "reader":
            command.append(str(self._folder / "places"))
        if self.name == "java":
            command += [f"{each.topic.name}={each.subscription.name}" for each in duties("java")]
        with (self._folder / f"client-{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)

    def _program(self) -> list[str]:
        if self.name == "java":
            return [str(JAVA_RUN), str(self._java), "receipts"]
        return [sys.executable, "-m", f"tests.chaos.whole.{MODULES[self.name]}"]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended_by_itself(self) -> int | None:
        """Its exit code then."""
        return self._process.poll() if self._process is not None else None

    def end(self, within_s: float) -> int | None:
        """Ask it to end; its exit code, or None if it had to be killed."""
        self.signal(signal.SIGTERM)
        return self.wait_ended(within_s)

    def wait_ended(self, within_s: float) -> int | None:
        """As ``end``, of one that was asked before: a second signal may meet one that is ending
        and would end it otherwise."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


class Workload:
    """All of them. ``java``: where Java's client is."""

    def __init__(self, service_url: str, folder: Path, java: Path | None) -> None:
        self._service_url = service_url
        self._folder = folder
        for name in ("histories", "places"):
            (folder / name).mkdir()
        self._consumers = (*CONSUMERS, *(["java"] if java else []))
        self.clients = {
            name: ClientProcess(name, service_url, folder, java)
            for name in (*self._consumers, *PUBLISHERS)
        }

    def start(self, say: Callable[[str], None]) -> None:
        """Consumers first: what is subscribed later gets what was before too, but needs longer."""
        for client in self.clients.values():
            client.start()
        say(f"{len(self.clients)} client processes are started")

    def dead(self) -> list[str]:
        """What to say of those that have ended by themselves."""
        codes = {name: client.ended_by_itself() for name, client in self.clients.items()}
        return [
            f"client {name} ended by itself with code {code}; see client-{name}.log"
            for name, code in codes.items()
            if code is not None
        ]

    def stop_publishing(self) -> list[str]:
        """Returns what went wrong, once all that was sent is answered."""
        for name in PUBLISHERS:
            self.clients[name].signal(signal.SIGTERM)
        codes = {name: self.clients[name].wait_ended(FLUSH_S) for name in PUBLISHERS}
        return [
            f"publisher {name}: not everything it sent was answered in {FLUSH_S:.0f} s"
            if code is None
            else f"publisher {name} ended with code {code}"
            for name, code in codes.items()
            if code != 0
        ]

    def stop_consuming(self) -> None:
        for name in self._consumers:
            self.clients[name].end(20.0)

    def audit(self) -> None:
        """Read every topic from its start, into a history of its own."""
        history = HistoryWriter(self._folder / "histories" / f"{AUDIT}.jsonl")
        client = connect(self._service_url)
        for topic in TOPICS:
            for url in topic.urls:
                reader = until_it_works(
                    lambda url=url: client.create_reader(url, pulsar.MessageId.earliest)
                )
                while reader.has_message_available():
                    producer, number, _due = parse(reader.read_next(60_000).data())
                    history.write(GOT, topic.name, AUDIT, producer, number, 0, AUDIT, 0)
                reader.close()
        client.close()

    def kill(self) -> None:
        for client in self.clients.values():
            if client.running:
                client.kill()
