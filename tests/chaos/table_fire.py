"""A topic becomes a table on object storage while everything about it is killed or refused.

    make tables [KILLS=30] [SEED=N]

A platform (broker and bookies in one process), an S3 server behind a link that is cut, and the job
``table --continuous``, which lets ledgers leave the bookies at once. Messages are published all the
time. Each blow kills the job or the platform with SIGKILL, or cuts the storage off for a while. At
the end every acknowledged message is in the log once, the table has every message of its ledgers
once, with the log's ids and bytes, and a consumer reads all of it, most of it from the table.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pulsar

from magnetar.model.errors import MagnetarError
from magnetar.pipeline.jobs.table import catalog_of
from magnetar.pipeline.tables.taking import Catalog, Taking, TakingOptions, TopicTaken
from magnetar.pipeline.tables.topic_table import TopicTable
from tests.s3_server import REGION, S3Server
from tests.scenarios.link import Link
from tests.standalone import Standalone

TOPIC = "persistent://public/default/fire"
BUCKET = "tables"
SETTINGS = ("ledger.ledger_entries_max=50", "ledger.tabled_ledger_ms_least=0")
DONE_S = 300.0
BETWEEN_S = (1.0, 5.0)
KINDS = ("job", "job", "platform", "storage")


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, until it is told to stop; sends again what is not
    acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.stop = threading.Event()
        self._client = pulsar.Client(
            url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=120,
        )

    def run(self) -> None:
        producer = self._client.create_producer(
            TOPIC, send_timeout_millis=0, batching_enabled=False
        )
        number = 0
        while not self.stop.is_set():
            producer.send(b"%08d" % number, partition_key=f"k{number % 9}")
            self.acknowledged.append(number)
            number += 1
            time.sleep(0.002)
        self._client.close()


class Job:
    """The job in a process of its own."""

    def __init__(self, url: str, catalog: str, endpoint: str, log: Path) -> None:
        self._command = [
            sys.executable, "-m", "magnetar", "pipeline", "table", TOPIC, "--continuous",
            "--service-url", url, "--warehouse", f"s3://{BUCKET}/w", "--catalog", catalog,
            "--keep-ledgers", "1", "--pause", "200", "--progress", "none",
            *(w for p in properties(endpoint) for w in ("--catalog-property", p)),
        ]  # fmt: skip
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


def properties(endpoint: str) -> list[str]:
    return [f"s3.endpoint=http://{endpoint}", f"s3.region={REGION}", "s3.request-timeout=5"]


def blow(kind: str, drawn: random.Random, platform: Standalone, job: Job, link: Link) -> None:
    if kind == "job":
        job.kill()
        time.sleep(drawn.uniform(0, 1))
        job.start()
    elif kind == "platform":
        platform.kill()
        time.sleep(drawn.uniform(0, 1))
        platform.start()
    else:
        link.cut()
        time.sleep(drawn.uniform(1, 4))
        link.heal()


def wait_taken(url: str, catalog: Catalog) -> TopicTaken:
    """Until every closed ledger is in the table."""
    deadline = time.monotonic() + DONE_S
    while True:
        try:
            with closing(Taking(TakingOptions(url, catalog))) as job:
                (found,) = job.look([TOPIC])
            if not found.errors and found.in_table and not found.waiting_ledgers:
                return found
        except MagnetarError as error:
            print(f"  not yet: {error}")
        assert time.monotonic() < deadline, "the table does not catch up"
        time.sleep(1)


def read_all(url: str, count: int) -> list[pulsar.Message]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while len(found) < count or reader.has_message_available():
        found.append(reader.read_next(timeout_millis=60_000))
    client.close()
    return found


def judge(messages: list[pulsar.Message], acknowledged: list[int], catalog: Catalog) -> list[str]:
    """What is wrong."""
    table = TopicTable(catalog.place(TOPIC), TOPIC)
    assert table.look()
    rows = table.main.scan().to_arrow()
    columns = (rows[name].to_pylist() for name in ("ledger_id", "entry_id", "payload"))
    in_table = Counter(zip(*columns, strict=True))
    last = table.taken(TOPIC).ledger_id
    in_log = Counter(
        (m.message_id().ledger_id(), m.message_id().entry_id(), m.data()) for m in messages
    )
    numbers = Counter(int(m.data()) for m in messages)
    taken = Counter({each: n for each, n in in_log.items() if each[0] <= last})
    faults = [f"{n} is in the log {numbers[n]} times" for n in acknowledged if numbers[n] != 1]
    faults += [f"{each} is in the table, not in the log" for each in in_table - taken]
    faults += [f"{each} is in the log, not in the table" for each in taken - in_table]
    print(f"{len(messages)} messages, {len(acknowledged)} acknowledged, {rows.num_rows} rows")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    drawn = random.Random(arguments.seed)
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with S3Server(BUCKET, folder / "s3.log") as storage, Link(storage.endpoint) as link:
            return under_fire(folder, link, drawn, arguments.kills)


def under_fire(folder: Path, link: Link, drawn: random.Random, kills: int) -> int:
    flags = [word for setting in SETTINGS for word in ("--set", setting)]
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = catalog_of(f"s3://{BUCKET}/w", uri, properties(link.address))
    with Standalone(folder / "data", *flags) as platform:
        job = Job(platform.service_url, uri, link.address, folder / "job.log")
        publisher = Publisher(platform.service_url)
        publisher.start()
        job.start()
        blows: Counter[str] = Counter()
        for _ in range(kills):
            time.sleep(drawn.uniform(*BETWEEN_S))
            kind = drawn.choice(KINDS)
            blows[kind] += 1
            blow(kind, drawn, platform, job, link)
            if job.ended:  # it may end when it cannot begin; whoever runs it starts it again
                job.start()
        publisher.stop.set()
        publisher.join()
        status = wait_taken(platform.service_url, catalog)
        job.kill()
        messages = read_all(platform.service_url, len(publisher.acknowledged))
        faults = judge(messages, publisher.acknowledged, catalog)
        print(f"blows: {dict(blows)}; in the table {status.in_table} ledgers, of which "
              f"{status.only_in_table} are only there")  # fmt: skip
        for fault in faults[:20]:
            print(fault)
        print(f"{len(faults)} faults")
        return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
