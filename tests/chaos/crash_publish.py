"""Kill the platform (SIGKILL) at random while the official client publishes; then count.

    python -m tests.chaos.crash_publish [--messages 100000] [--kills 20] [--seed N]

Invariants checked by a new reader that starts at the earliest message:

* every acknowledged message is there, exactly once, in order;
* messages come in the order in which they were sent, whether acknowledged or not;
* the platform is ready again after every kill within ``--ready-seconds``, or, where the machine is
  slow or busy, within four times what its first start took on the empty directory.

The client is one ordinary producer that reconnects by itself and sends what is not acknowledged
again; such repeats must not show as duplicates. Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pulsar

from tests.standalone import Standalone

TOPIC = "persistent://public/default/crash-publish"


class Killer(threading.Thread):
    """Kills and restarts the platform when the publisher passes randomly chosen counts."""

    def __init__(self, platform: Standalone, at: list[int], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.platform = platform
        self.at = at
        self.rng = rng
        self.acknowledged = 0
        self.ready_seconds: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for count in self.at:
                while self.acknowledged < count:
                    time.sleep(0.001)
                time.sleep(self.rng.uniform(0, 0.05))
                self.platform.kill()
                self.ready_seconds.append(self.platform.start())
        except BaseException as error:
            self.error = error
            raise


def payload(number: int, size: int) -> bytes:
    return struct.pack(">Q", number) + bytes(size - 8)


def publish(platform: Standalone, killer: Killer, messages: int, size: int) -> set[int]:
    """Send all messages, pipelined; returns the numbers that were acknowledged."""
    acknowledged: set[int] = set()
    failed: Counter[str] = Counter()
    lock = threading.Lock()
    room = threading.Semaphore(900)

    def sent(number: int, result: pulsar.Result) -> None:
        with lock:
            if result == pulsar.Result.Ok:
                acknowledged.add(number)
                killer.acknowledged = len(acknowledged)
            else:
                failed[str(result)] += 1
        room.release()

    client = pulsar.Client(
        platform.service_url,
        logger=pulsar.FileLogger(
            pulsar.LoggerLevel.Error, str(platform.data_dir.parent / "client.log")
        ),
    )
    producer = client.create_producer(
        TOPIC, batching_enabled=False, send_timeout_millis=0, max_pending_messages=1000
    )
    for number in range(messages):
        room.acquire()
        if killer.error is not None:
            raise RuntimeError("the platform did not come back") from killer.error
        producer.send_async(
            payload(number, size), lambda result, _id, number=number: sent(number, result)
        )
    producer.flush()
    killer.join()
    client.close()
    if failed:
        print("failed sends:", dict(failed))
    return acknowledged


def read_back(platform: Standalone) -> list[int]:
    client = pulsar.Client(
        platform.service_url,
        logger=pulsar.FileLogger(
            pulsar.LoggerLevel.Error, str(platform.data_dir.parent / "client.log")
        ),
    )
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=2000)
    numbers = []
    while reader.has_message_available():
        numbers.append(struct.unpack_from(">Q", reader.read_next(10_000).data())[0])
    client.close()
    return numbers


def judge(acknowledged: set[int], numbers: list[int]) -> dict[str, int]:
    times = Counter(numbers)
    return {
        "acknowledged": len(acknowledged),
        "read": len(numbers),
        "lost": sum(1 for number in acknowledged if number not in times),
        "repeated": sum(1 for number, count in times.items() if count > 1),
        "out_of_order": sum(1 for a, b in itertools.pairwise(numbers) if b < a),
    }


def run(messages: int, kills: int, size: int, seed: int, ready_seconds_max: float) -> int:
    rng = random.Random(seed)
    at = sorted(rng.sample(range(messages // 100, messages - messages // 100), kills))
    with tempfile.TemporaryDirectory(prefix="magnetar-crash-") as folder:
        platform = Standalone(Path(folder) / "data")
        first = platform.start()
        killer = Killer(platform, at, rng)
        killer.start()
        begun = time.monotonic()
        acknowledged = publish(platform, killer, messages, size)
        seconds = time.monotonic() - begun
        numbers = read_back(platform)
        platform.stop()
    result: dict[str, object] = dict(judge(acknowledged, numbers))
    result |= {
        "seed": seed,
        "kills": len(killer.ready_seconds),
        "publish_seconds": round(seconds, 2),
        "first_ready_seconds": round(first, 3),
        "slowest_ready_seconds": round(max(killer.ready_seconds), 3),
    }
    print(json.dumps(result))
    ready_max = max(ready_seconds_max, 4 * first)  # this machine, at this hour
    held = {
        "nothing lost, repeated or out of order": (
            result["lost"] == result["repeated"] == result["out_of_order"] == 0
        ),
        f"{messages} acknowledged": len(acknowledged) == messages,
        f"killed {kills} times": len(killer.ready_seconds) == kills,
        f"ready again within {ready_max:.1f} s": max(killer.ready_seconds) < ready_max,
    }
    broken = [rule for rule, holds in held.items() if not holds]
    print(f"FAIL (not held: {'; '.join(broken)}): repeat with --seed {seed}" if broken else "PASS")
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--ready-seconds", type=float, default=2.0)
    args = parser.parse_args()
    return run(args.messages, args.kills, args.size, args.seed, args.ready_seconds)


if __name__ == "__main__":
    sys.exit(main())
