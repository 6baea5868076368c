"""What the clients of ``bench.ledger_store`` share: each is a process of its own.

A module of clients has roles: coroutines that take a load (a frozen dataclass) and give a report.
``Child`` and ``run`` start ``python -m MODULE ROLE JSON`` and read the report from its output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import uvloop

from bench.trees import ROOT, environment_of
from magnetar.cli.process import tune_allocator, tune_collector
from magnetar.ledger import LedgerConfig

Report: TypeAlias = dict[str, float]
Quorums: TypeAlias = tuple[int, int, int]
TIMEOUT_S = 120.0
BEGUN = "begun"


@dataclass(frozen=True)
class Client:
    """Where a client finds the store, and the quorums of its ledgers."""

    url: str
    quorums: Quorums

    def config(self) -> LedgerConfig:
        """The defaults, but an idle writer tells nobody what is confirmed."""
        size, write_quorum, ack_quorum = self.quorums
        return LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            explicit_lac_interval_ms=0,
        )


class Child:
    """A client under way, a context manager that leaves none behind. One that reads until it is
    told to stop is told by ``end``."""

    def __init__(self, module: str, role: str, load: Client, source: Path | None = None) -> None:
        command = [sys.executable, "-m", module, role, json.dumps(asdict(load))]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment_of(source),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait_begun(self) -> None:
        """Until it says ``BEGUN``; its log comes before."""
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).strip() != BEGUN:
            if not line:
                raise SystemExit("a client ended before it began")

    def end(self) -> Report:
        """Its report. Raises ``SystemExit`` if it failed; it has said why."""
        out, _ = self._process.communicate("end\n", timeout=TIMEOUT_S)
        if self._process.returncode:
            raise SystemExit(f"a client ended with {self._process.returncode}")
        report: Report = json.loads(out.splitlines()[-1])
        return report


def run(module: str, role: str, load: Client, source: Path | None = None) -> Report:
    """One client, from start to end; of the ledger library in ``source``, if given."""
    with Child(module, role, load, source) as child:
        return child.end()


Role: TypeAlias = tuple[Callable[..., Client], Callable[[Any], Awaitable[Report]]]


def main(roles: Mapping[str, Role]) -> None:
    """The child's side, on the loop and with the settings that the platform's processes have."""
    make, role = roles[sys.argv[1]]
    fields = json.loads(sys.argv[2])
    load = make(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
    tune_allocator()
    sys.setswitchinterval(0.0001)
    tune_collector()

    async def go() -> Report:
        return await role(load)

    print(json.dumps(uvloop.run(go())), flush=True)


def percentile_ms(latencies_s: array[float], percent: float) -> float:
    """The latency that ``percent`` of the events did not pass."""
    ordered = sorted(latencies_s)
    index = min(len(ordered) - 1, int(len(ordered) * percent / 100))
    return round(ordered[index] * 1e3, 3)
