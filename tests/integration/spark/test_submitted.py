"""Jobs by ``spark-submit`` on a real Spark master: first a try that changes nothing, then the
job, its progress, its report in JSON, and what it did. One master and one platform for all
(``make jobs``); what the jobs do at all is tested in ``test_audit``, ``test_copying_jobs`` and
``test_tables``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pyarrow import parquet

from magnetar.cli.pipeline import SCRIPT
from magnetar.pipeline.jobs.erase import ERASE, EraseOptions
from magnetar.pipeline.jobs.job import run, to_json
from magnetar.pipeline.jobs.registry import JOBS
from magnetar.pipeline.jobs.table import TABLE, TableOptions
from tests.integration.spark.test_copying_jobs import (
    WINDOWS,
    dead_letters,
    origin,
    publish_timed,
    values,
)
from tests.integration.test_tables import full, rows_of
from tests.spark_cluster import SparkCluster, environment, submit
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = ("ledger.ledger_entries_max=20", "ledger.tabled_ledger_ms_least=0")
CONF = ("spark.executor.memory=512m", "spark.sql.shuffle.partitions=2", "spark.log.level=ERROR")
PROGRESS = re.compile(r"^[\d,]+ of [\d,]+ [a-z ]+$", re.MULTILINE)
SAID = {"job", "ok", "dryRun", "startedMs", "seconds"}
"""What each report has."""
ONLY_LOOK = {"audit", "detach"}
"""Jobs that ask a broker and no more when they only try."""
ELSEWHERE = {"compact"}
"""Tested in a file of its own: ``test_compacting_job``."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    flags = [word for setting in SMALL for word in ("--set", setting)]
    with Standalone(tmp_path_factory.mktemp("submitted") / "data", *flags) as running:
        yield running


class Submitter:
    """Runs jobs on one cluster; ``used``: which ones."""

    def __init__(self, master: str, folder: Path, service_url: str) -> None:
        self._master, self._folder, self._service_url = master, folder, service_url
        self.used: set[str] = set()

    def tried(self, job: str, *arguments: str) -> dict[str, Any]:
        """The report of a run that changes nothing."""
        report, said = self._run(job, *arguments, "--dry-run")
        assert report["dryRun"]
        assert "nothing was changed" in said
        return report

    def done(self, job: str, *arguments: str) -> dict[str, Any]:
        report, _ = self._run(job, *arguments)
        assert not report["dryRun"]
        return report

    def _run(self, job: str, *arguments: str) -> tuple[dict[str, Any], str]:
        path = self._folder / "report.json"
        path.unlink(missing_ok=True)
        line = (*arguments, "--service-url", self._service_url, "--report", str(path))
        command = submit(self._master, CONF, SCRIPT, job, *line, "--progress", "lines")
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=800, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        report: dict[str, Any] = json.loads(path.read_text())
        assert report.keys() >= SAID
        assert (report["job"], report["ok"]) == (job, True)
        if not (job in ONLY_LOOK and report["dryRun"]):
            # Spark sends both of a driver's outputs to the standard output.
            assert PROGRESS.search(done.stdout), done.stdout[-4000:]
        self.used.add(job)
        return report, done.stdout


@pytest.fixture(scope="module")
def jobs(platform: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitter]:
    folder = tmp_path_factory.mktemp("cluster")
    with SparkCluster(folder) as cluster:
        yield Submitter(cluster.url, folder, platform.service_url)


def publish(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(b"%d" % number, partition_key=f"k{number % 4}")
    producer.close()


def test_table(
    jobs: Submitter, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 70)
    where = (topic, "--warehouse", str(tmp_path))
    (found,) = jobs.tried("table", *where, "--spark")["topics"]
    assert (found["waitingLedgers"], found["inTable"], found["ledgers"]) == (3, 0, 0)
    (found,) = jobs.done("table", *where, "--spark")["topics"]
    assert (found["ledgers"], found["rows"], found["waitingLedgers"]) == (3, 60, 0)
    rows = rows_of(tmp_path, topic)["payload"].to_pylist()
    assert sorted(int(each) for each in rows) == [*range(60)]
    options = TableOptions(
        (topic,), service_url=platform.service_url, warehouse=str(tmp_path), status=True
    )
    assert to_json(run(TABLE, options))["topics"][0]["inTable"] == 3


def test_erase(
    jobs: Submitter, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 70)
    run(TABLE, TableOptions((topic,), service_url=platform.service_url, warehouse=str(tmp_path)))
    line = (topic, "--warehouse", str(tmp_path), "--key", "k3")
    (tried,) = jobs.tried("erase", *line)["topics"].values()
    assert tried["messages"] == 15
    assert "k3" in rows_of(tmp_path, topic)["key"].to_pylist()
    (done,) = jobs.done("erase", *line)["topics"].values()
    assert done["messages"] == 15
    assert "k3" not in rows_of(tmp_path, topic)["key"].to_pylist()
    again = EraseOptions((topic,), "k3", platform.service_url, str(tmp_path))
    assert run(ERASE, again).topics[full(topic)].messages == 0


def test_detach(
    jobs: Submitter, platform: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 70)
    run(TABLE, TableOptions((topic,), service_url=platform.service_url, warehouse=str(tmp_path)))
    assert not jobs.tried("detach", topic)["partitions"][0]["detached"]
    assert jobs.done("detach", topic)["partitions"][0]["detached"]


def test_audit(jobs: Submitter, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 30)
    tried = jobs.tried("audit", topic)
    assert (tried["entries"], tried["copies"]) == (30, 0)
    told = jobs.done("audit", topic)
    assert (told["messages"], told["copies"], told["findings"]) == (30, 30, [])


def test_redrive(jobs: Submitter, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    letters = f"{topic}-DLQ"
    dead_letters(client, letters, [("a1", origin(topic)), ("b2", origin(topic)), ("a3", {})])
    line = (letters, "--where", "value != 'a3'", "--checkpoint", str(tmp_path / "checkpoint"))
    tried = jobs.tried("redrive", *line)
    assert (tried["byTopic"], tried["withoutOrigin"]) == ({full(topic): 2}, 0)
    assert values(client, topic) == []
    told = jobs.done("redrive", *line)
    assert (told["read"], told["redriven"], told["passedOver"]) == (3, 2, 1)
    assert values(client, topic) == ["a1", "b2"]
    assert values(client, letters) == ["a1", "b2", "a3"]


def test_mirror(jobs: Submitter, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    publish(client, topic, 30)
    line = (topic, "--prefix", "copy-", "--checkpoint", str(tmp_path / "checkpoint"))
    assert jobs.tried("mirror", *line)["byTopic"] == {full(f"copy-{topic}"): 30}
    assert values(client, f"copy-{topic}") == []
    assert jobs.done("mirror", *line)["copied"] == 30
    assert values(client, f"copy-{topic}") == [str(number) for number in range(30)]


def test_backfill(jobs: Submitter, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    rows = {"name": [f"k{n % 3}" for n in range(30)], "number": [*range(30)]}
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    line = (
        str(tmp_path / "rows.parquet"), topic, "--key", "name", "--value", "string(number)",
        "--where", "number < 20", "--order-by", "number",
    )  # fmt: skip
    assert jobs.tried("backfill", *line)["rows"] == 20
    assert values(client, topic) == []
    assert jobs.done("backfill", *line)["rows"] == 20
    found = [int(each) for each in values(client, topic)]
    assert sorted(found) == [*range(20)]
    for key in range(3):
        of_key = [each for each in found if each % 3 == key]
        assert of_key == sorted(of_key)


def test_aggregate(jobs: Submitter, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "delays.toml"
    path.write_text(WINDOWS.format(topic=topic))
    publish_timed(client, topic, (1, "AA", 5), (2, "AA", 7), (3, "BA", 1), (40, "AA", 0))
    line = (str(path), "--checkpoint", str(tmp_path / "checkpoint"))
    assert len(jobs.tried("aggregate", *line)["sample"]) == 3
    assert values(client, f"{topic}-delays") == []
    assert jobs.done("aggregate", *line)["read"] == 4
    found = [json.loads(each) for each in values(client, f"{topic}-delays")]
    told = {(each["carrier"], each["flights"], each["delay"]) for each in found}
    assert told == {("AA", 2, 12), ("BA", 1, 1)}, "the last window is still open"
    assert len(found) == 2


def test_every_job_was_submitted(jobs: Submitter) -> None:
    """Stands last: a job that is added is to be submitted here."""
    assert {*JOBS} - jobs.used <= ELSEWHERE
