"""How far a topic's table is behind the topic while messages come at a steady rate.

    python -m bench.table_lag [--rate 20000] [--seconds 60] [--value-bytes 100]

One platform, one topic without partitions, batches of 200; the job ``table --continuous`` in a
process of its own, which looks every second. Ledgers close every five seconds. Once in a while the
broker is asked what is in the table: *behind* are the messages that are acknowledged and not in it,
of which an open ledger holds some whatever the job does; *waited* is the time from when a ledger
was seen to be closed until it was seen to be in the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pulsar

from tests.standalone import Standalone

TOPIC: Final = "persistent://public/default/steady"
BATCH: Final = 200
LEDGER_S: Final = 5
LOOK_S: Final = 0.2


class Publisher(threading.Thread):
    """At a rate; counts what is acknowledged."""

    def __init__(self, url: str, rate: int, seconds: float, value_bytes: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._rate, self._seconds = rate, seconds
        self._value = b"v" * value_bytes

    def run(self) -> None:
        producer = self._client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=BATCH, block_if_queue_full=True,
            batching_max_publish_delay_ms=1000, max_pending_messages=20_000,
        )  # fmt: skip
        begun = time.monotonic()
        for number in range(0, int(self._rate * self._seconds), BATCH):
            time.sleep(max(0, begun + number / self._rate - time.monotonic()))
            for each in range(number, number + BATCH):
                producer.send_async(self._value, self._answered, partition_key=f"k{each % 100}")
        producer.flush()
        self._client.close()

    def _answered(self, result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        self.acknowledged += result == pulsar.Result.Ok


class Looker:
    """What is in the table, seen from the broker."""

    def __init__(self, platform: Standalone) -> None:
        self._url = f"{platform.http_url}/admin/v2/{TOPIC.replace('://', '/')}/internalStats"
        self._closed_s: dict[int, float] = {}
        self._in: dict[int, int] = {}
        self.waited_s: list[float] = []
        self.behind: list[int] = []

    @property
    def messages(self) -> int:
        return sum(self._in.values()) * BATCH

    def look(self, acknowledged: int) -> None:
        now_s = time.monotonic()
        for each in httpx.get(self._url, timeout=60).json().get("ledgers", ()):
            number = each["ledgerId"]
            if each["state"] != "closed":
                continue
            self._closed_s.setdefault(number, now_s)
            if each["inTable"] and number not in self._in:
                self._in[number] = each["entries"]
                self.waited_s.append(now_s - self._closed_s[number])
        self.behind.append(acknowledged - self.messages)


def run(folder: Path, rate: int, seconds: float, value_bytes: int) -> dict[str, Any]:
    entries = max(1, rate * LEDGER_S // BATCH)
    with Standalone(folder / "data", "--set", f"ledger.ledger_entries_max={entries}") as platform:
        publisher = Publisher(platform.service_url, rate, seconds, value_bytes)
        publisher.start()
        while not publisher.acknowledged:
            time.sleep(0.1)
        job = _job(platform, folder)
        looker = Looker(platform)
        begun = time.monotonic()
        while publisher.is_alive():
            looker.look(publisher.acknowledged)
            time.sleep(LOOK_S)
        took_s = time.monotonic() - begun
        cpu = psutil.Process(job.pid).cpu_times()
        assert job.poll() is None, "the job ended"
        job.kill()
        job.wait()
    steady = looker.behind[len(looker.behind) // 3 :]  # the job has started by then
    return {
        "rate": rate,
        "published": publisher.acknowledged,
        "per_second": round(publisher.acknowledged / took_s),
        "ledgers_in_table": len(looker.waited_s),
        "waited_s": {
            "median": round(statistics.median(looker.waited_s), 2),
            "worst": round(max(looker.waited_s[1:]), 2),
        },
        "messages_behind": {
            "median": round(statistics.median(steady)),
            "worst": max(steady),
            "of_an_open_ledger": entries * BATCH,
        },
        "job_cpu_s": round(cpu.user + cpu.system, 1),
    }


def _job(platform: Standalone, folder: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "magnetar", "pipeline", "table", TOPIC, "--continuous",
        "--pause", "1s", "--warehouse", str(folder / "tables"), "--progress", "none",
        "--service-url", platform.service_url,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--value-bytes", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), arguments.rate, arguments.seconds, arguments.value_bytes)
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
