"""A writer of one ledger in a process of its own, so that it can be paused, killed and weighed.

    python -m tests.scenarios.writer METADATA_URL E/Qw/Qa PAYLOAD_BYTES REST_S

It creates a ledger and appends, 16 entries after each REST_S seconds (0: full load), until it is
told to end (a line on its input) or fails. One that has closed its ledger stays, to be weighed,
until its input ends. What it says goes straight to its output, unbuffered, and so survives a
SIGKILL:

    ledger ID
    confirmed FIRST COUNT
    mended COUNT        so many entries were copied to bookies that lacked them, until now
    paused LAST         it was not scheduled for PAUSE_S; LAST is the id appended before
    failed NAME TEXT
    closed LAST         it was told to end, and has closed the ledger
    whole               no bookie is known to lack an entry of it
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from magnetar.ledger.mending.mending import Mender
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import MagnetarError
from tests.roles import END_S
from tests.scenarios.ledgers import Load, client

PAUSE_S = 2.5
"""Shorter than any pause that a scenario makes, longer than what a busy machine may."""
ADD_TIMEOUT_MS = 3000
PENDING_BYTES_MAX = 1 << 20
LINE_S = 90.0


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class SayingLoad(Load):
    """Says what is confirmed, and notices when the process was paused."""

    def __init__(self, writer: LedgerWriter, size: int, rest_s: float, mender: Mender) -> None:
        super().__init__(writer, size, PENDING_BYTES_MAX, rest_s)
        self._awake_at_s = time.monotonic()
        self._mender = mender
        self._mended = 0

    def append(self, count: int) -> None:
        self._look_at_the_clock()
        if self._mended != self._mender.mended_entries:
            self._mended = self._mender.mended_entries
            say("mended", self._mended)
        super().append(count)

    def _look_at_the_clock(self) -> None:
        now_s = time.monotonic()
        if now_s - self._awake_at_s > PAUSE_S:
            say("paused", self.writer.last_add_pushed)
        self._awake_at_s = now_s

    def _done(self, error: MagnetarError | None, ledger: int, first: int, count: int) -> None:
        self._look_at_the_clock()  # after a pause the first news may be the last
        if error is None:
            say("confirmed", first, count)
        elif self.error is None:
            say("failed", type(error).__name__, error)
        super()._done(error, ledger, first, count)


async def write(metadata_url: str, quorums: tuple[int, int, int], size: int, rest_s: float) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, told.set)
    async with client(metadata_url, quorums, ADD_TIMEOUT_MS, 1000) as one:
        writer = await one.ledgers.create()
        say("ledger", writer.ledger_id)
        load = SayingLoad(writer, size, rest_s, one.ledgers.mender)
        ends = [asyncio.ensure_future(told.wait()), asyncio.ensure_future(load.wait_failed())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        asyncio.get_running_loop().remove_reader(0)
        for each in ends:
            each.cancel()
        await load.stop()
        if load.error is None:
            say("closed", (await writer.close()).last_entry_id)
            while one.ledgers.mender.has_missing:  # noqa: ASYNC110 - nobody tells when it is done
                await asyncio.sleep(0.1)
            say("mended", one.ledgers.mender.mended_entries)
            say("whole")
            await asyncio.to_thread(sys.stdin.buffer.read)
        await writer.abandon()


class _Said:
    """What a writer has said, each line read once: its output may come to hundreds of megabytes."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._offset = 0
        self._confirmed = 0
        self._mended = 0
        self._lines: list[str] = []

    @property
    def confirmed(self) -> int:
        """Entries confirmed until now: the ids below."""
        self._listen()
        return self._confirmed

    @property
    def mended(self) -> int:
        """Entries copied to bookies that lacked them, until now."""
        self._listen()
        return self._mended

    @property
    def lines(self) -> list[str]:
        """All other whole lines until now."""
        self._listen()
        return self._lines

    def _listen(self) -> None:
        with self._output.open("rb") as output:
            output.seek(self._offset)
            for line in output:
                if not line.endswith(b"\n"):
                    break  # the rest of it is to come
                self._offset += len(line)
                self._heard(line.decode().rstrip("\n"))

    def _heard(self, line: str) -> None:
        if line.startswith("confirmed "):
            first, count = map(int, line.split()[1:])
            assert first == self._confirmed, "confirmed out of order"
            self._confirmed += count
        elif line.startswith("mended "):
            self._mended = int(line.split()[1])
        else:
            self._lines.append(line)


class WriterProcess:
    """The parent's side of a writer."""

    def __init__(
        self,
        folder: Path,
        metadata_url: str,
        quorums: tuple[int, int, int],
        size: int = 256,
        rest_s: float = 0.0,
    ) -> None:
        self._output = folder / f"writer-{time.monotonic_ns()}"
        self._said = _Said(self._output)
        self._log = self._output.with_suffix(".log")
        shape = "/".join(map(str, quorums))
        command = [sys.executable, "-m", "tests.scenarios.writer"]
        command += [metadata_url, shape, str(size), str(rest_s)]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=log
            )
        self.ledger_id = int(self.wait_for(r"ledger (\d+)")[1])

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def said(self, pattern: str) -> re.Match[str] | None:
        """The first line that is ``pattern``."""
        found = (re.fullmatch(pattern, line) for line in self._said.lines)
        return next(filter(None, found), None)

    def wait_for(self, pattern: str, seconds: float = LINE_S) -> re.Match[str]:
        """Until a line is ``pattern``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None  # asked first: what it said last counts
            if found := self.said(pattern):
                return found
            assert not ended, self._log.read_text()
            time.sleep(0.05)
        raise TimeoutError(f"no line {pattern!r}; {self._log.read_text()}")

    @property
    def confirmed(self) -> int:
        """So many entries are confirmed: these are the ids below."""
        return self._said.confirmed

    @property
    def mended(self) -> int:
        """So many entries were copied to bookies that lacked them."""
        return self._said.mended

    def wait_confirmed(self, more: int) -> None:
        goal = self.confirmed + more
        deadline = time.monotonic() + LINE_S
        while self.confirmed < goal:
            assert time.monotonic() < deadline, f"{self.confirmed} of {goal} confirmed"
            time.sleep(0.02)

    def close(self, seconds: float = LINE_S) -> int:
        """Let it close its ledger; returns the last entry's id. The process stays: ``kill`` it."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")
        self.process.stdin.flush()
        return int(self.wait_for(r"closed (-?\d+)", seconds)[1])

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(END_S)
        assert self.process.stdin is not None
        self.process.stdin.close()


def main() -> None:
    url, shape, size, rest_s = sys.argv[1:]
    first, second, third = map(int, shape.split("/"))
    asyncio.run(write(url, (first, second, third), int(size), float(rest_s)))


if __name__ == "__main__":
    main()
