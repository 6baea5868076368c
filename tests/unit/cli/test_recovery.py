"""``magnetar recovery`` and ``magnetar bookie decommission``: what is refused, what is shown."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from magnetar.cli.main import cli, run
from magnetar.cli.recovery import Bar


@pytest.mark.parametrize(
    "arguments",
    [
        ["recovery", "status"],
        ["bookie", "decommission", "b1"],
        ["bookie", "recover", "b1"],
        ["bookie", "list"],
        ["bookie", "info"],
        ["bookie", "ledgers", "b1"],
        ["bookie", "read-only", "on", "b1"],
        ["bookie", "cookie", "b1"],
        ["cluster", "id"],
        ["cluster", "info"],
        ["cluster", "plan-decommission", "b1"],
        ["ledger", "explain", "1"],
        ["ledger", "verify", "1"],
        ["ledger", "metadata", "1"],
        ["ledger", "delete", "1"],
    ],
)
def test_they_need_a_clusters_metadata(arguments: list[str]) -> None:
    missing = CliRunner().invoke(cli, arguments)
    assert missing.exit_code == 2
    assert "--metadata" in missing.output


def test_a_file_is_no_clusters_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recovery", "list", "--metadata", "sqlite:/tmp/x"]) == 2
    assert "accepted: zk://" in capsys.readouterr().err


def test_help_names_the_commands_of_a_bookie() -> None:
    told = CliRunner().invoke(cli, ["bookie", "--help"]).output
    assert "decommission" in told
    assert "recover" in told
    assert "--leave-limbo" in told


def test_the_bar_fills_as_less_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = Bar("ledgers")
    for left in (10, 5, 0):
        bar.show(left)
    bar.end(0)
    shown = capsys.readouterr().err.split("\r")[1:]
    assert [each.count("#") for each in shown] == [0, 15, 30, 30]
    assert "5 ledgers" in shown[1]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("ledgers")
    bar.show(3)
    bar.end(0)
    assert capsys.readouterr().err == ""
