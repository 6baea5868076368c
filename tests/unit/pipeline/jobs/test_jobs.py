"""The frame of jobs: options, reports, progress, exit codes. No job here needs Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import click
import pytest
from click.testing import CliRunner

from magnetar.cli.main import run as run_line
from magnetar.cli.pipeline import SCRIPT, ShownProgress, command_of
from magnetar.model.errors import ConfigError, TopicNotFoundError
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs.audit import (
    AuditOptions,
    AuditReport,
    _judge_untold,
    _of_counts,
    _pieces,
    _Plan,
    _plans,
    _untold,
)
from magnetar.pipeline.jobs.audit_reading import LedgerFound, PieceFound
from magnetar.pipeline.jobs.compact import COMPACT, CompactOptions
from magnetar.pipeline.jobs.context import JobContext, _tasks
from magnetar.pipeline.jobs.job import Job, OptionKind, Report, argument, option, run, to_json
from magnetar.pipeline.jobs.registry import JOBS, job
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import Place
from magnetar.repair.insight.verifying import Verified


class Spot(NamedTuple):
    ledger_id: int
    entry_id: int


@dataclass(frozen=True)
class CountOptions:
    topics: tuple[str, ...] = argument("Topics.")
    piece_bytes: int = option("Of one piece.", default=1 << 20, kind=OptionKind.BYTES)
    wait: int = option("How long.", default=1000, kind=OptionKind.DURATION_MS)
    keep: bool = option("Keep it.", default=False)
    word: str | None = option("A word.", default=None, choices=("one", "two"))
    also: tuple[str, ...] = option("More.", default=())


@dataclass
class CountReport(Report):
    counted: int = 0
    spots: list[Spot] = field(default_factory=list)
    seen: str = ""
    bad: bool = False

    @property
    def ok(self) -> bool:
        return not self.bad

    def lines(self) -> Iterator[str]:
        yield f"{self.counted} topics"


def count(options: CountOptions, context: JobContext) -> CountReport:
    if "none" in options.topics:
        raise ConfigError("no such topic; give another")
    for number in range(len(options.topics)):
        context.progress(number + 1, len(options.topics), "topics")
    return CountReport(
        counted=len(options.topics),
        spots=[Spot(3, 4)],
        seen=repr(options),
        bad="bad" in options.topics,
    )


COUNT = Job("count", "Count topics.", CountOptions, count, notes="At once.")


def line(*arguments: str) -> tuple[int, str]:
    """Exit code as ``cli.main.run`` takes it, and what was printed."""
    result = CliRunner().invoke(command_of(COUNT), [*arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.output


def test_options_of_every_type_come_from_the_line() -> None:
    given = (
        "a", "b", "--piece-bytes", "2MiB", "--wait", "3s", "--keep", "--word", "two",
        "--also", "x", "--also", "y", "--json",
    )  # fmt: skip
    code, text = line(*given)
    told = json.loads(text[text.index("{") :])
    wanted = CountOptions(("a", "b"), 2 << 20, 3000, True, "two", ("x", "y"))
    assert (code, told["seen"]) == (0, repr(wanted))
    assert told["spots"] == [{"ledgerId": 3, "entryId": 4}]
    assert (told["job"], told["ok"], told["dryRun"]) == ("count", True, False)


def test_a_report_that_is_not_ok_is_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    code, text = line("bad", "--report", str(path), "--dry-run", "--progress", "none")
    assert code == 1
    assert text.splitlines() == ["nothing was changed (--dry-run)", "1 topics"]
    told = json.loads(path.read_text())
    assert (told["ok"], told["dryRun"]) == (False, True)


def test_a_report_without_a_place_is_said_before_the_work(tmp_path: Path) -> None:
    """It was said afterwards, and what hours of reading had found was lost."""
    worked = []

    def work(options: CountOptions, context: JobContext) -> CountReport:
        worked.append(options)
        return CountReport()

    counting = command_of(Job("count", "Count.", CountOptions, work))
    path = tmp_path / "none" / "report.json"
    result = CliRunner().invoke(counting, ["a", "--report", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert f"--report {path} cannot be written (No such file or directory)" in str(result.exception)
    assert not worked


def test_what_cannot_be_used_is_said() -> None:
    with pytest.raises(click.BadParameter, match="'much' is no size"):
        line("a", "--piece-bytes", "much")
    with pytest.raises(click.MissingParameter):
        line()
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        line("a", "--conf", "spark.x")
    with pytest.raises(ConfigError, match="no such topic"):
        line("none")
    assert run_line(["pipeline", "audit"]) == 2, "neither topics nor a namespace"
    assert run_line(["pipeline", "no-such-job"]) == 2


def test_a_file_that_ends_too_early_is_no_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An EOFError, as decoders raise it, ended a command with 130, without a word."""

    def work(options: CountOptions, context: JobContext) -> CountReport:
        raise EOFError("read 3 bytes of 7")

    failing = Job("audit", "Count.", CountOptions, work)
    monkeypatch.setattr("magnetar.cli.pipeline.job", lambda _name: failing)
    assert run_line(["pipeline", "audit", "a"]) == 1
    assert "internal error: EOFError: read 3 bytes of 7" in capsys.readouterr().err


def test_compaction_where_spark_does_not_start_is_asked_wrongly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was tried for each partition, and told as a failure of each."""
    tried = []

    class Compaction:
        def __init__(self, *_: object) -> None: ...

        def run(self, context: JobContext) -> None:
            tried.append(context)
            raise ConfigError("Spark could not be started on nowhere")

    watch = SimpleNamespace(
        wait_for_broker=lambda: None,
        partitions=lambda topic: [f"{topic}-partition-{n}" for n in range(3)],
        close=lambda: None,
    )
    monkeypatch.setattr("magnetar.pipeline.jobs.compact.job_watch", lambda *_: watch)
    monkeypatch.setattr("magnetar.pipeline.jobs.compact_running.TopicCompaction", Compaction)
    with pytest.raises(ConfigError, match="could not be started"):
        run(COMPACT, CompactOptions(("t",)), JobContext(master="nowhere"))
    assert len(tried) == 1


def test_a_call_from_python_gives_the_report() -> None:
    heard = []
    context = JobContext(progress=lambda *told: heard.append(told), dry_run=True)
    report = run(COUNT, CountOptions(("a", "b")), context)
    assert (report.job, report.dry_run, report.counted) == ("count", True, 2)
    assert heard == [(1, 2, "topics"), (2, 2, "topics")]
    assert run(COUNT, CountOptions(("a",))).counted == 1
    assert to_json(report)["startedMs"] > 0


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([0.0, 1.0, 2.0, 11.0, 12.0, 13.0, 14.0, 15.0])
    told = ShownProgress("lines", lambda: next(clock))
    for done in (1, 2, 3):
        told(done, 10, "pieces")
    told(10, 10, "pieces")
    told.end()
    assert capsys.readouterr().err.splitlines() == ["3 of 10 pieces", "10 of 10 pieces"]


def test_every_job_that_is_listed_is_there_and_says_what_it_does() -> None:
    for name in JOBS:
        found = job(name)
        assert found is not None
        assert found.name == name
        assert found.notes.count(f"magnetar pipeline {name}") >= 1
        result = CliRunner().invoke(command_of(found), ["--help"])
        assert result.exit_code == 0, result.output
        assert found.summary.split(",")[0] in " ".join(result.output.split())
    assert SCRIPT.is_file()


class Tracker:
    """Spark's, of one group with two jobs; of a stage that was dropped nothing is known."""

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return [1, 2] if group == "ours" else []

    def getJobInfo(self, job_id: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(stageIds=[10, 11] if job_id == 1 else [12])

    def getStageInfo(self, stage_id: int) -> SimpleNamespace | None:  # noqa: N802
        told = {10: (4, 4), 12: (1, 3)}.get(stage_id)
        return told and SimpleNamespace(numCompletedTasks=told[0], numTasks=told[1])


def test_what_spark_does_is_counted_in_tasks_where_a_job_cannot_tell_the_total() -> None:
    assert _tasks(Tracker(), "ours") == (5, 7)
    assert _tasks(Tracker(), "another's") == (0, 0)


def test_ledgers_that_are_only_in_a_table_are_not_audited() -> None:
    ledgers = [
        LedgerFacts(n, 10, 100, True, stored=stored) for n, stored in enumerate((2, 2, 1, 0))
    ]
    answer = SimpleNamespace(ledgers=tuple(ledgers), extent=SimpleNamespace(end=Place(9, 0, 0)))
    plan = _Plan("t", cast(LogAnswer, answer), [0] * 5, {})
    pieces = list(_pieces(AuditOptions(("t",)), plan, JobContext(dry_run=True)))
    assert [facts.ledger_id for piece in pieces for facts in piece.ledgers] == [2, 3]
    assert list(_of_counts(replace_plan(plan, ledgers[:2]), [])) == []


def replace_plan(plan: _Plan, ledgers: list[LedgerFacts]) -> _Plan:
    answer = SimpleNamespace(ledgers=tuple(ledgers), extent=plan.answer.extent)
    return _Plan(plan.topic, cast(LogAnswer, answer), plan.offsets, plan.untold)


@pytest.mark.parametrize(
    "words",
    [
        ("redrive", "t"),
        ("mirror", "t", "--prefix", "copy-"),
        ("backfill", "/nowhere", "t"),
    ],
)
def test_without_spark_a_job_says_what_to_install(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    line = ["pipeline", *words, "--dry-run", "--service-url", "pulsar://127.0.0.1:9"]
    assert run_line(line) == 2
    assert "pip install 'magnetar[spark]'" in capsys.readouterr().err


def test_where_spark_does_not_start_a_job_says_what_it_needs(tmp_path: Path) -> None:
    """As on a machine without Java."""
    pytest.importorskip("pyspark")
    command = (
        sys.executable, "-m", "magnetar", "pipeline", "redrive", "t", "--dry-run",
        "--service-url", "pulsar://127.0.0.1:9", "--master", "local[1]",
    )  # fmt: skip
    without = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        command, env=without, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Spark could not be started on local[1]" in done.stderr
    assert "Java 17" in done.stderr


def test_a_ledger_that_nobody_finds_is_not_one_that_was_deleted() -> None:
    """Of a topic on a partition an audit read nothing, and said that everything was there."""

    def found(*ledger_ids: int) -> list[PieceFound]:
        ledgers = [
            LedgerFound(cast(Verified, SimpleNamespace(ledger_id=each, gone=True)), 0, [], 0)
            for each in ledger_ids
        ]
        return [replace(PieceFound("t"), ledgers=ledgers)]

    facts = [LedgerFacts(each, 10, 100, closed=True) for each in (1, 2, 3)]
    answer = cast(LogAnswer, SimpleNamespace(ledgers=tuple(facts)))
    plan = _Plan("t", answer, [0] * 4, {})
    now = cast(LogWatch, SimpleNamespace(ask=lambda *_: SimpleNamespace(ledgers=tuple(facts[1:]))))
    assert _untold(now, plan, found()) == []
    assert _untold(now, plan, found(1)) == [], "it was deleted meanwhile"
    assert _untold(now, plan, found(1, 3)) == [3]
    report = AuditReport(deleted_meanwhile=2)
    _judge_untold(plan, [3], report)
    (missing,) = report.findings
    assert (missing.fault, missing.ledger_id, report.deleted_meanwhile) == ("missing", 3, 1)
    whole = AuditReport(deleted_meanwhile=3)
    _judge_untold(plan, [1, 2, 3], whole)
    assert (len(whole.unchecked), whole.findings, whole.ok) == (3, [], False)
    _judge_untold(plan, [], clean := AuditReport())
    assert clean.ok


def test_a_topic_that_is_deleted_while_a_namespace_is_audited_is_left_out() -> None:
    """One that was named may be misspelt: nothing is audited then."""

    def ask(topic: str, *_: object, patient: bool = True) -> LogAnswer:
        if topic == "gone":
            raise TopicNotFoundError("topic gone does not exist")
        extent = SimpleNamespace(end_offset=7, end=None)
        return cast(LogAnswer, SimpleNamespace(ledgers=(), of_places=(), extent=extent))

    logs = cast(LogWatch, SimpleNamespace(ask=ask))
    report = AuditReport(partitions=3)
    names = ["a", "gone", "b"]
    plans = list(_plans(AuditOptions(namespace="public/default"), logs, names, report))
    assert [plan.topic for plan in plans] == ["a", "b"]
    assert (report.partitions, report.ok) == (2, True)
    with pytest.raises(TopicNotFoundError):
        list(_plans(AuditOptions(topics=("a", "gone", "b")), logs, names, report))
