"""What a topic's owner pays for subscriptions, when it serves them and when others do.

    python -m bench.read_only_fanout [--rate 1000] [--seconds 10] [--subscriptions 0 4 8 16]
        [--brokers 1] [--quick]

A bookie, an owner and read-only brokers are processes of their own. One producer publishes 1 KiB
messages at a fixed rate; that many subscriptions, each with one consumer that acknowledges what
comes, are connected to the owner, or spread over the read-only brokers. The figure is the owner's
CPU time per published message: it should not grow with what is served elsewhere, but for what is
fixed in time (acknowledgements are merged, and cursors stored, so many times a second).
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench import results
from bench.loadgen import ConsumeLoad, ConsumeRun, PublishLoad, Target, publish
from bench.measure import machine
from bench.server import Server, broker, ledger_store

AT_OWNER, AT_READ_ONLY = "owner", "read-only"
WARMUP_S: Final = 2.0


def measure(
    owner: Server, servers: Sequence[Server], subscriptions: int, rate: float, seconds: float
) -> dict[str, Any]:
    """With the subscriptions spread over ``servers``."""
    topic = f"fanout-{len(servers)}-{servers[0].pid}-{subscriptions}"
    target = Target("127.0.0.1", owner.broker_port, topic, (owner.pid,))
    warmup, entries = int(rate * WARMUP_S), int(rate * seconds)
    # It exists, with a message, before it is followed; the pace of what comes then is the load's.
    publish(target, PublishLoad(entries=1))
    with ExitStack() as stack:
        threads = []
        for index, server in enumerate(servers):
            count = subscriptions // len(servers) + (index < subscriptions % len(servers))
            if not count:
                continue
            load = ConsumeLoad(count, warmup + entries + 1, acknowledge="individual")
            there = Target("127.0.0.1", server.broker_port, topic)
            threads.append(
                threading.Thread(target=stack.enter_context(ConsumeRun(there, load)).run)
            )
        for thread in threads:
            thread.start()
        load_now = PublishLoad(rate=rate, seconds=seconds, warmup_entries=warmup, depth=8)
        report = publish(target, load_now)
        for thread in threads:
            thread.join()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[0, 4, 8, 16])
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="3 s each")
    options = parser.parse_args()
    seconds = 3.0 if options.quick else options.seconds
    where = machine()
    quorums = ("ensemble_size", "write_quorum", "ack_quorum")
    one = tuple(word for name in quorums for word in ("--set", f"ledger.{name}=1"))
    cases, rows = [], []
    with ExitStack() as stack:
        store = stack.enter_context(ledger_store(1))
        owner = stack.enter_context(broker(store, *one))
        others = [
            stack.enter_context(broker(store, "--read-only", *one)) for _ in range(options.brokers)
        ]
        for count in options.subscriptions:
            for name, servers in ((AT_OWNER, [owner]), (AT_READ_ONLY, others)):
                report = measure(owner, servers, count, options.rate, seconds)
                cases.append({"served_by": name, "subscriptions": count, **report})
                rows.append([count, name, report["server_cpu_us_per_entry"]])
    text = results.table(("subscriptions", "served by", "owner's CPU us/message"), rows)
    results.store("read_only_fanout", {"rate": options.rate, "cases": cases}, text, where)


if __name__ == "__main__":
    main()
