"""Jobs that begin while the broker is away, as nobody stands by when they are started by a clock:
they do their work when it is back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession

from magnetar.pipeline.brokers import log_watch
from magnetar.pipeline.jobs.audit import AUDIT
from magnetar.pipeline.jobs.compact import COMPACT
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import Job, Report, run
from magnetar.pipeline.jobs.table import TABLE
from tests.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_MS = 300_000


def test_jobs_wait_for_a_broker_that_is_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at the same time, and the broker comes when each has asked in vain."""
    with Standalone(tmp_path / "own") as own:
        client = pulsar.Client(
            own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        producer = client.create_producer("waiting")
        for number in range(20):
            producer.send(b"%d" % number, partition_key=f"key-{number % 5}")
        client.close()
        own.kill()
        in_vain = threading.Semaphore(0)
        monkeypatch.setattr(log_watch, "warn", lambda _: in_vain.release())
        reports: dict[str, Report] = {}
        jobs: list[tuple[Job[Any, Any], dict[str, str]]] = [
            (AUDIT, {}),
            (COMPACT, {}),
            (TABLE, {"warehouse": str(tmp_path / "tables")}),
        ]

        def work(job: Job[Any, Any], more: dict[str, str]) -> None:
            url = own.service_url
            options = job.options(("waiting",), service_url=url, timeout=PATIENCE_MS, **more)
            reports[job.name] = run(job, options, JobContext(spark))

        threads = [threading.Thread(target=work, args=each) for each in jobs]
        for thread in threads:
            thread.start()
        for job, _ in jobs:
            assert in_vain.acquire(timeout=120), f"{job.name}, or another, did not wait"
        own.start()
        for thread in threads:
            thread.join()
        assert {name: report.ok for name, report in reports.items()} == {
            "audit": True, "compact": True, "table": True,
        }, [*reports.values()]  # fmt: skip
