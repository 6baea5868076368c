"""What a client can have logged of its requests that are refused."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from magnetar.env.network.refusals import HOSTS_MAX, LINES, PERIOD_S, Refusals
from magnetar_sim.world.virtual_time import run_virtual


def test_one_host_has_so_many_lines_and_others_theirs() -> None:
    async def main() -> None:
        refusals = Refusals()
        with capture_logs() as lines:
            for number in range(20 * LINES):
                refusals.say("request refused", f"10.0.0.1:{number}", error="no")
            refusals.say("request refused", "10.0.0.2:1", error="no")
        assert len(lines) == LINES + 1
        assert [line for line in lines if "then" in line] == [lines[LINES - 1]]
        await asyncio.sleep(PERIOD_S)
        with capture_logs() as lines:
            refusals.say("request refused", "10.0.0.1:1", warn=True, error="no")
            refusals.say("request refused", "10.0.0.1:1", error="no")
        assert [line.get("unsaid") for line in lines] == [str(19 * LINES), None]
        assert [line["log_level"] for line in lines] == ["warning", "info"]

    run_virtual(main())


def test_of_many_hosts_some_are_remembered() -> None:
    async def main() -> None:
        refusals = Refusals()
        with capture_logs():
            for number in range(HOSTS_MAX + 10):
                refusals.say("request refused", f"host{number}:1", error="no")
        assert len(refusals._hosts) == HOSTS_MAX

    run_virtual(main())
