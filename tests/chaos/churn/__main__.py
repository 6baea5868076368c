"""Whether anything stays of what clients have made, used and deleted.

    python -m tests.chaos.churn [--warm 4] [--cycles 20] [--rest 100] [--folder out/churn]

A standalone; the official clients of both protocols and REST, in cycles. Each cycle makes topics,
subscriptions, groups, schemas, tenants of its own in every way there is, uses them, is killed or
refused in the midst of it, and deletes them. After some cycles to get warm, and after all of them,
there is a rest until what is kept for a while has gone (100 s: what was deleted is looked for on
the disk each minute); then the objects in the server's memory are counted by class. Exit code 1 if

* a class, or what is in a container, has grown with the cycles, except caches with a bound
  (``judge``);
* the metadata, or the disk, still has a name that a cycle has made;
* any of it failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.env.network.free_ports import free_port
from tests.chaos.churn import judge, kafka_work, pulsar_work, rest_work
from tests.chaos.churn.server import Server
from tests.standalone import Standalone

WORD: Final = "churned"
"""In the name of all that is made."""
LOOK_S: Final = 120.0
WORK: Final = (*pulsar_work.WORK, *kafka_work.WORK, *rest_work.WORK)


class Cycles:
    """``errors``: what failed, in words."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = 0
        self.errors: list[str] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            self._done += 1
            begun = time.monotonic()
            for work in WORK:
                self._try(work)
            print(f"cycle {self._done}: {time.monotonic() - begun:.0f} s", flush=True)

    def _try(self, work: Callable[[Server, str], None]) -> None:
        try:
            work(self._server, f"{WORD}-{self._done}")
        except Exception as error:  # noqa: BLE001 - whatever a client raises: told, and counted
            name = work.func.__name__ if isinstance(work, partial) else work.__name__
            self.errors.append(f"cycle {self._done}, {name}: {error!r}")
            print(self.errors[-1], flush=True)


def look(platform: Standalone, path: Path, rest_s: float) -> judge.Counts:
    time.sleep(rest_s)
    path.unlink(missing_ok=True)
    os.kill(platform.pid, signal.SIGUSR1)
    until_s = time.monotonic() + LOOK_S
    while not path.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the server does not say what it holds; see {platform.log_path}")
        time.sleep(0.2)
    return judge.Counts.read(path)


def churn(folder: Path, given: argparse.Namespace) -> list[str]:
    """What is wrong."""
    counts = folder / "counts.json"
    os.environ["CHURN_COUNTS"] = str(counts)
    kafka_port = free_port()
    platform = Standalone(
        folder / "data", "--set", f"kafka.port={kafka_port}",
        module="tests.chaos.churn.counted_server",
    )  # fmt: skip
    with platform:
        cycles = Cycles(Server(platform.broker_port, platform.http_port, kafka_port))
        cycles.run(given.warm)
        before = look(platform, counts, given.rest)
        cycles.run(given.cycles)
        after = look(platform, counts, given.rest)
    wrong, right = judge.grown(before, after, given.cycles)
    print(f"resident: {before.resident >> 20} MiB, {after.resident >> 20} MiB")
    print("grown within a bound:", *right, sep="\n  ")
    return [
        *cycles.errors,
        *(f"grown: {each}" for each in wrong),
        *(f"left in the metadata: {each}" for each in judge.nodes_left(platform.data_dir, WORD)),
        *(f"left on the disk: {each}" for each in judge.files_left(platform.data_dir, WORD)),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--warm", type=int, default=4, help="cycles before the first look")
    parser.add_argument("--cycles", type=int, default=20, help="cycles between the looks")
    parser.add_argument("--rest", type=float, default=100.0, help="seconds before a look")
    parser.add_argument("--folder", type=Path, default=Path("out/churn"))
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    wrong = churn(given.folder.absolute(), given)
    print(*wrong, sep="\n")
    print("something stays" if wrong else "nothing stays")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
