"""Spark in a process of its own that does what lines of JSON on its input ask for, and answers each
with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import process_tree, tree_cpu_seconds
from bench.trees import ROOT


class SparkProcess:
    """One that runs ``module``. ``before``: a command that starts it."""

    def __init__(
        self,
        module: str,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", module],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.answer()

    def ask(self, asked: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit("the Spark session ended")

    def cpu_s(self) -> float:
        """Of all its processes so far."""
        return tree_cpu_seconds(process_tree([self._process.pid]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
