"""A client in another language that is told what to do while brokers change hands: a line is a
command, and is answered with one line.

| command | answer |
|---|---|
| ``wait N`` | ``answered``, once each topic has that many more acknowledgements |
| ``mark`` | ``marked``; from here on gaps are measured |
| ``gap`` | the longest time that a topic was without an acknowledgement since then, ms |
| ``stop`` | ``TOPIC ACKNOWLEDGED ...``, once all that was sent is acknowledged and received |

It ends by itself, with status 1 and the reason, when a send fails, or when a message comes before
one that was sent earlier to the same topic.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

ANSWER_S = 300.0


class DrivenPeer:
    """The process; a context manager that ends it."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self._log_path = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
            )

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
            raise TimeoutError(f"{command!r} is not answered: {self._said()}")
        answer = self._process.stdout.readline().decode().strip()
        assert answer, f"the client has ended at {command!r}: {self._said()}"
        return answer

    def _said(self) -> str:
        return self._log_path.read_text(errors="replace")[-4000:]

    def wait_answered(self, more: int = 5) -> None:
        assert self._ask(f"wait {more}") == "answered"

    def mark(self) -> None:
        assert self._ask("mark") == "marked"

    def gap_ms(self) -> int:
        return int(self._ask("gap"))

    def stop(self) -> Mapping[str, int]:
        """How many messages of each topic were acknowledged: all that were sent."""
        words = self._ask("stop").split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    def __enter__(self) -> DrivenPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
