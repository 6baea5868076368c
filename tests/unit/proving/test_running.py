"""What a run says while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import TimeoutExpired

import pytest

from magnetar.model.errors import ServiceNotReadyError
from magnetar.proving import running
from magnetar.proving.faults import Making, Outcome
from magnetar.proving.power_cut.shim import NoCompilerError
from magnetar.proving.scenarios import chosen


def failing(error: Exception) -> Callable[[Making], Outcome]:
    def make(_: Making) -> Outcome:
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ServiceNotReadyError("nobody leads"), "failed: ServiceNotReadyError: nobody leads"),
        (TimeoutError("it hangs"), "failed: TimeoutError: it hangs"),
        (
            TimeoutExpired("kafka", 30),
            "failed: TimeoutExpired: Command 'kafka' timed out after 30 seconds",
        ),
        (NoCompilerError("cc"), "not run: needs a C compiler (cc)"),
    ],
)
def test_why_a_scenario_has_no_result_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setitem(running.MAKERS, "paused", failing(error))  # type: ignore[arg-type]
    lines: list[str] = []
    result = running.run(chosen(["paused"]), 1, lines.append)
    assert [each for each in lines if each.endswith(said)]
    (scenario,) = result.scenarios
    assert said.partition(": ")[2] in (scenario.failed, scenario.not_run)
