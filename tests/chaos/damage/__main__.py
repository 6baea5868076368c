"""One file of a data directory is damaged, and the server started on it: what is lost, and is it
told?

    python -m tests.chaos.damage [--cases 20] [--seed 1] [--bookies 1|3] [--only KIND]
                                 [--folder out/damage]

A standalone is filled in three rounds, on both engines, by both protocols, with subscriptions,
groups, transactions and a compacted topic, and copied after an orderly end and after kill -9. Each
case takes a copy, does one thing to one file (``damaging``; every kind of file is as likely), and
starts the server. Both official clients read all there is. Wrong is (``judge``)

* bytes that nobody sent, a message twice, or another order;
* a message that was acknowledged and does not come, unless its reader was told so, none behind it
  came, and the server has named the topic or its bookie; of a bookie's file where two others have
  copies: always;
* an older offset of a group;
* a server that neither starts nor says why not, or does not end;
* a second start that loses more than the first.

A server that says why it does not start is right. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.env.network.free_ports import free_port
from tests.chaos.churn.server import Server
from tests.chaos.damage import filling, looking
from tests.chaos.damage.damaging import Damage, damage
from tests.chaos.damage.judge import Verdict, judge
from tests.standalone import Standalone

SETTINGS: Final = {
    "bookie.journal.file_bytes": 1 << 20,
    "bookie.entry_bytes_max": 300_000,
    "broker.message_bytes_max": 1 << 16,
    "kafka.request_bytes_max": 1 << 20,
    "bookie.entry_log_bytes_max": 1 << 20,
    "bookie.flush_interval_ms": 1500,
    "ledger.ledger_entries_max": 40,
    "partition.segment_bytes_max": 1 << 15,
    "partition.sync": "each-batch",
}
"""Small files, so that there are several of each kind."""
ENDS: Final = {"clean": 2, "kill": 3}
"""How the server ended, and how many rounds it has."""
SETTLE_S: Final = 0.6
"""Until the last acknowledgement is stored."""
TOLD_CHARS: Final = 400


class Given:
    """A server on ``path`` that both protocols reach."""

    def __init__(self, path: Path, bookies: int) -> None:
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        sets = [word for each in settings for word in ("--set", each)]
        kafka_port = free_port()
        self.platform = Standalone(
            path, "--bookies", str(bookies), "--kafka-port", str(kafka_port), *sets
        )
        ports = self.platform.broker_port, self.platform.http_port, kafka_port
        self.server = Server(*ports)

    @property
    def log(self) -> str:
        path = self.platform.log_path
        return path.read_text(errors="replace") if path.exists() else ""


def make(folder: Path, bookies: int) -> None:
    """``older``, ``clean`` and ``kill``."""
    path = folder / "filled"
    given = Given(path, bookies)
    given.platform.start()
    filling.make(given.server)
    filling.fill(given.server, 0)
    given.platform.stop()
    shutil.copytree(path, folder / "older")
    given.platform.start()
    filling.fill(given.server, filling.ROUND)
    given.platform.stop()
    shutil.copytree(path, folder / "clean")
    given.platform.start()
    filling.fill(given.server, 2 * filling.ROUND)
    time.sleep(SETTLE_S)
    given.platform.kill()
    shutil.copytree(path, folder / "kill")


def run_case(folder: Path, number: int, seed: int, options: argparse.Namespace) -> list[str]:
    """What is wrong."""
    draw = random.Random(f"{seed}/{number}")
    end = draw.choice(list(ENDS))
    path = folder / f"case-{number}"
    shutil.copytree(folder / end, path)
    done = damage(path, folder / "older", draw, options.only)
    print(f"{number}: {end}: {done.kind}: {done.path}: {done.what}", flush=True)
    first, wrong = _start_and_look(path, options.bookies, ENDS[end], done)
    if first is not None and (first.told or first.wrong):
        second, also = _start_and_look(path, options.bookies, ENDS[end], done)
        wrong += [f"second start: {each}" for each in also]
        if second is None or len(second.told) > len(first.told):
            wrong.append("the second start loses more than the first")
    for each in wrong:
        print(f"   WRONG {each[:TOLD_CHARS]}", flush=True)
    if not wrong:
        shutil.rmtree(path)
    return [f"case {number} ({done.kind}): {each}" for each in wrong]


def _start_and_look(
    path: Path, bookies: int, rounds: int, done: Damage
) -> tuple[Verdict | None, list[str]]:
    """None: it has not started."""
    given = Given(path, bookies)
    before = len(given.log)
    try:
        given.platform.start()
    except TimeoutError as error:
        given.platform.kill()
        return None, [f"it neither starts nor ends: {error}"]
    except RuntimeError:
        last = (given.log[before:].splitlines() or [""])[-1]
        print(f"   not started: {last[:TOLD_CHARS]}", flush=True)
        return None, [] if last.startswith("magnetar: ") else [f"it ends without a word: {last}"]
    try:
        verdict = judge(looking.look(given.server), rounds, given.log[before:])
    finally:
        ended = given.platform.stop()
    wrong = list(verdict.wrong)
    if ended:
        wrong.append(f"it ended with {ended}")
    if bookies > 1 and done.path.startswith("bookie-"):
        wrong += [f"though others have copies: {each}" for each in verdict.told]
    for each in verdict.told[:2]:
        print(f"   told: {each[:TOLD_CHARS]}", flush=True)
    return verdict, wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bookies", type=int, choices=(1, 3), default=1)
    parser.add_argument("--only", default="", help="kinds of files with this in their name")
    parser.add_argument("--folder", type=Path, default=Path("out/damage"))
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder, options.bookies)
    wrong: list[str] = []
    for number in range(options.cases):
        wrong += run_case(folder, number, options.seed, options)
    print(*wrong, sep="\n")
    print(f"{options.cases} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
