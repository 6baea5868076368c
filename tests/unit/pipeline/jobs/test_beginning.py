"""Jobs that begin while no broker answers: they wait as long as they are told, once, and say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from magnetar.cli.pipeline import pipeline
from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import BrokerError, ConfigError, NotAllowedError
from magnetar.pipeline.jobs import table as table_job
from magnetar.pipeline.jobs.audit import AUDIT
from magnetar.pipeline.jobs.compact import COMPACT
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.detach import DETACH
from magnetar.pipeline.jobs.job import Job, run
from magnetar.pipeline.jobs.table import TABLE, TableOptions, TableReport, catalog_of

WAIT_MS = 300


@pytest.mark.parametrize("job", [AUDIT, COMPACT, DETACH, TABLE], ids=lambda each: each.name)
def test_a_job_waits_for_its_broker_once(
    job: Job[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two topics, and one wait."""
    address = f"127.0.0.1:{free_port()}"
    more = {"warehouse": str(tmp_path / "tables")} if job is TABLE else {}
    options = job.options(("a", "b"), service_url=f"pulsar://{address}", timeout=WAIT_MS, **more)
    with pytest.raises(BrokerError) as error:
        run(job, options, JobContext())
    said = str(error.value)
    assert f"cannot connect to the broker at {address}" in said
    assert "It was waited for, 0.3 s" in said
    assert "--service-url" in said
    assert caplog.text.count("asked again") == 1


class Away:
    """Brokers that come back after so many waits."""

    def __init__(self, waits: int, error: BrokerError) -> None:
        self.waits = waits
        self.error = error

    def wait_for_broker(self) -> None:
        if self.waits:
            self.waits -= 1
            raise self.error

    def topics(self, names: object, namespaces: object) -> list[str]:
        return []

    def take(self, topics: object) -> list[object]:
        raise KeyboardInterrupt  # it goes on until it is interrupted


class AwayLater(Away):
    """Brokers that are away when the second round asks for the topics of a namespace."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(0, error)
        self.asked = 0
        self.taken = 0

    def topics(self, names: object, namespaces: object) -> list[str]:
        self.asked += 1
        if self.asked in (2, 3):
            raise self.error
        return []

    def take(self, topics: object) -> list[object]:
        self.taken += 1
        if self.taken == 2:
            raise KeyboardInterrupt
        return []


def rounds(away: Away, *, continuous: bool) -> None:
    options = TableOptions(("a",), continuous=continuous, pause=1)
    table_job._rounds(options, JobContext(), away, TableReport())  # type: ignore[arg-type]


def test_a_table_that_is_filled_until_interrupted_waits_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = Away(3, BrokerError("nobody answers"))
    with pytest.raises(KeyboardInterrupt):
        rounds(away, continuous=True)
    assert away.waits == 0
    assert caplog.text.count("nobody answers; it is waited for again") == 3


def test_a_table_that_is_filled_once_or_refused_is_told_so() -> None:
    with pytest.raises(BrokerError, match="nobody answers"):
        rounds(Away(1, BrokerError("nobody answers")), continuous=False)
    with pytest.raises(NotAllowedError, match="no token"):
        rounds(Away(1, NotAllowedError("no token")), continuous=True)


def test_a_table_of_a_namespace_that_is_filled_until_interrupted_waits_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Brokers that were away for longer than their timeout ended it, in any round but the first."""
    away = AwayLater(BrokerError("nobody answers"))
    with pytest.raises(KeyboardInterrupt):
        rounds(away, continuous=True)
    assert (away.asked, away.taken) == (4, 2)
    assert caplog.text.count("nobody answers; its topics are asked for again") == 2
    with pytest.raises(NotAllowedError, match="no token"):
        rounds(AwayLater(NotAllowedError("no token")), continuous=True)


@pytest.mark.parametrize("flag", ["--dry-run", "--status"])
def test_what_only_looks_makes_no_warehouse(tmp_path: Path, flag: str) -> None:
    """It made the folder and a catalog, also of a name that was misspelt."""
    url = f"pulsar://127.0.0.1:{free_port()}"
    where = ("--warehouse", str(tmp_path / "new"), "--service-url", url, "--timeout", "1")
    found = CliRunner().invoke(pipeline, ["table", "a", flag, *where])
    assert isinstance(found.exception, BrokerError)
    catalog_of(str(tmp_path / "new"), None, (), make=False)  # as erase does
    assert not list(tmp_path.iterdir())


def test_a_catalogs_address_with_a_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood in the log's record, where all see it who may read the topic."""
    where = ("--warehouse", str(tmp_path / "new"))
    monkeypatch.setenv("MAGNETAR_CATALOG", "postgresql://ann:s3cr3t@db/lake")
    told = CliRunner().invoke(pipeline, ["table", "a", *where])
    assert isinstance(told.exception, ConfigError)
    assert "postgresql://ann@db/lake was given with a password" in str(told.exception)
    assert "PYICEBERG_CATALOG__MAGNETAR__URI" in str(told.exception)
    assert "s3cr3t" not in str(told.exception) + told.output
    shown = CliRunner().invoke(pipeline, ["table", "--help"])
    assert shown.exit_code == 0
    assert "s3cr3t" not in shown.output
    with pytest.raises(ConfigError, match="PYICEBERG_CATALOG__MAGNETAR__S3__PROXY_URI to the"):
        catalog_of("s3://b", "https://catalog", ["s3.proxy-uri=http://ann:pw@proxy"])
