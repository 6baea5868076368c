"""A shared subscription full of holes, restarted: exactly the unacknowledged messages return.

    python -m tests.chaos.holes [--messages 200000] [--holes 50000] [--consumers 4] [--kill]

Four consumers of one shared subscription take every message; all but ``--holes`` randomly chosen
ones are acknowledged individually. The platform is restarted (SIGTERM, or SIGKILL after the
stated time in which acknowledgements are stored, with ``--kill``). Then everything that comes
again is counted: it must be exactly the messages that were never acknowledged, each once.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pulsar

from tests.standalone import Standalone

TOPIC = "persistent://public/default/holes"
SUBSCRIPTION = "holes"
QUIET_SECONDS = 3.0


def connect(platform: Standalone) -> pulsar.Client:
    log = str(platform.data_dir.parent / "client.log")
    return pulsar.Client(
        platform.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, log)
    )


def subscribe(client: pulsar.Client, count: int) -> list[pulsar.Consumer]:
    return [
        client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1000,
            batch_index_ack_enabled=True,
        )
        for _ in range(count)
    ]


def publish(client: pulsar.Client, messages: int, batching: bool) -> None:
    producer = client.create_producer(
        TOPIC, batching_enabled=batching, block_if_queue_full=True, max_pending_messages=1000
    )
    for number in range(messages):
        producer.send_async(struct.pack(">Q", number) + bytes(92), lambda _result, _id: None)
    producer.flush()
    producer.close()


def drain(consumers: list[pulsar.Consumer], keep: frozenset[int] | None) -> Counter[int]:
    """Receive until nothing comes; acknowledge what is not in ``keep`` (None: nothing)."""
    seen: Counter[int] = Counter()
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        for consumer in consumers:
            for _ in range(500):
                try:
                    message = consumer.receive(timeout_millis=1)
                except pulsar.Timeout:
                    break
                number = struct.unpack_from(">Q", message.data())[0]
                seen[number] += 1
                quiet_since = time.monotonic()
                if keep is not None and number not in keep:
                    consumer.acknowledge(message)
    return seen


def run(args: argparse.Namespace) -> int:
    rng = random.Random(args.seed)
    holes = frozenset(rng.sample(range(args.messages), args.holes))
    with tempfile.TemporaryDirectory(prefix="magnetar-holes-") as folder:
        platform = Standalone(Path(folder) / "data")
        platform.start()
        client = connect(platform)
        consumers = subscribe(client, args.consumers)
        publish(client, args.messages, args.batching)
        first = drain(consumers, holes)
        if args.kill:
            time.sleep(1.0)
            platform.kill()
            client.close()
        else:
            client.close()
            platform.stop()
        ready = platform.start()
        client = connect(platform)
        again = drain(subscribe(client, args.consumers), None)
        client.close()
        platform.stop()
    result = {
        "seed": args.seed,
        "received_first": len(first),
        "unacknowledged": len(holes),
        "came_again": len(again),
        "missing": len(holes - again.keys()),
        "acknowledged_but_came_again": len(again.keys() - holes),
        "twice": sum(1 for count in again.values() if count > 1),
        "restart_seconds": round(ready, 3),
    }
    print(json.dumps(result))
    good = len(first) == args.messages and set(again) == holes and result["twice"] == 0
    print("PASS" if good else f"FAIL: repeat with --seed {args.seed}")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--holes", type=int, default=50_000)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--batching", action="store_true", help="publish batches")
    parser.add_argument("--kill", action="store_true", help="SIGKILL instead of SIGTERM")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
