"""What a machine does with one broker and with several: ``standalone --brokers N``.

    python -m bench.machine_brokers [--brokers 1 2] [--rounds 3] [--entries 60000]

Each number of brokers in turn, round after round, on an empty directory: eight topics are published
to as fast as receipts allow, then read by several subscriptions each. The generator takes part of
the same cores: with two cores and two brokers there are four busy processes (brokers, the one that
has the bookie, the generator), so ratios are below what the brokers could do by themselves; the CPU
per message says what they cost.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.loadgen import ConsumeLoad, PublishLoad, Target, consume, publish
from bench.measure import machine
from bench.server import WORK_DIR, work_directory
from tests.roles import Role

TOPICS = 8
SUBSCRIPTIONS = 3
SHARING = 10


def child_pids(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in found for child in each.read_text().split()]


@contextmanager
def running(brokers: int) -> Iterator[Target]:
    with work_directory() as data_dir:
        role = Role(
            WORK_DIR,
            "standalone",
            *("--data-dir", str(data_dir), "--broker-port", "0", "--http-port", "0"),
            *("--brokers", str(brokers), "--set", "broker.balance_interval_ms=0"),
        ).wait_ready()
        try:
            found = re.search(r"pulsar://([^:]+):(\d+)", role.ready_line)
            assert found is not None, role.ready_line
            pids = role.process.pid, *child_pids(role.process.pid)
            yield Target(found[1], int(found[2]), "machine", pids)
        finally:
            role.end()


def measure(target: Target, entries: int) -> Mapping[str, tuple[float, float]]:
    """Messages a second, and CPU us of the platform for each."""
    sent = publish(
        target,
        PublishLoad(
            connections=TOPICS,
            topics=TOPICS,
            depth=500,
            entries=entries,
            warmup_entries=entries // 5,
        ),
    )
    batched = publish(
        target,
        PublishLoad(
            connections=TOPICS, topics=TOPICS, depth=100, entries=entries // 5, batch=16,
            warmup_entries=entries // 20,
        ),
    )  # fmt: skip
    read = consume(
        target,
        ConsumeLoad(
            connections=TOPICS * SUBSCRIPTIONS, topics=TOPICS, messages=entries // TOPICS,
            acknowledge="cumulative",
        ),
    )  # fmt: skip
    pieces = publish(
        target,
        PublishLoad(
            connections=TOPICS, topics=TOPICS, depth=8, entries=entries // 2,
            warmup_entries=entries // 20, message_bytes=100, pieces=True,
        ),
    )  # fmt: skip
    shared = consume(
        target,
        ConsumeLoad(
            connections=TOPICS * SHARING, topics=TOPICS, messages=entries // TOPICS // SHARING // 2,
            acknowledge="single", shared=True,
        ),
    )  # fmt: skip
    return {
        "publish 100 B one by one, as Java does": told(pieces),
        f"shared among {SHARING} consumers, acknowledged one by one": told(shared),
        "publish 1 KiB": told(sent),
        "publish batches of 16 x 1 KiB": told(batched),
        f"read by {SUBSCRIPTIONS} subscriptions each": told(read),
    }


def told(report: Mapping[str, object]) -> tuple[float, float]:
    print(json.dumps(report), flush=True)
    per_s, cpu_s, seconds = (
        float(str(report[name])) for name in ("messages_per_s", "server_cpu_s", "seconds")
    )
    return per_s, cpu_s * 1e6 / (per_s * seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entries", type=int, default=60_000)
    arguments = parser.parse_args()
    print(json.dumps(machine()))
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for _ in range(arguments.rounds):
        for brokers in arguments.brokers:
            with running(brokers) as target:
                for what, figures in measure(target, arguments.entries).items():
                    found.setdefault(what, {}).setdefault(brokers, []).append(figures)
    first = arguments.brokers[0]
    for what, runs in found.items():
        medians = {
            brokers: tuple(statistics.median(each) for each in zip(*figures, strict=True))
            for brokers, figures in runs.items()
        }
        row = ", ".join(
            f"{brokers}: {per_s:,.0f}/s ({per_s / medians[first][0]:.2f}), CPU {cpu_us:.1f} us"
            for brokers, (per_s, cpu_us) in medians.items()
        )
        print(f"{what}: {row}")


if __name__ == "__main__":
    main()
