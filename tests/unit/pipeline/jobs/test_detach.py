"""``detach``: what is said of partitions when one of them fails."""

from __future__ import annotations

import pytest

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs import detach as detach_job
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.detach import DETACH, DetachOptions
from magnetar.pipeline.jobs.job import run
from magnetar.pipeline.losses import LogExtent
from magnetar.pipeline.places import START
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion


class Logs:
    """Three partitions with a table; the second one's broker is gone when it is to be detached."""

    def wait_for_broker(self) -> None:
        pass

    def partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-{number}" for number in range(3)]

    def ask(self, topic: str, question: LogQuestion) -> LogAnswer:
        if question.table.detach and topic.endswith("1"):
            raise BrokerError("no answer")
        return LogAnswer(LogExtent(START, START, START), table="somewhere")

    def close(self) -> None:
        pass


def test_what_was_detached_is_told_whatever_fails_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job ended with an error, and without a report."""
    monkeypatch.setattr(detach_job, "job_watch", lambda *_: Logs())
    report = run(DETACH, DetachOptions(("flights",)), JobContext())
    assert [each.detached for each in report.partitions] == [True, False, True]
    assert [each.error for each in report.partitions] == ["", "no answer", ""]
    assert not report.ok
    assert "  FAILED: no answer; run it again" in list(report.lines())
