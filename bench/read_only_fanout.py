"""What a topic's owner pays for subscriptions, when it serves them and when others do.

    python -m bench.read_only_fanout [--rate 20000] [--batch 20] [--bytes 100] [--seconds 10]
        [--subscriptions 0 4 8 16] [--brokers 1 2 4] [--elsewhere] [--quick]

A bookie, an owner and read-only brokers are processes of their own. One producer publishes at a
fixed rate, ``--batch`` messages to an entry (0: one); that many subscriptions, each with one
consumer that acknowledges every entry, are connected to the owner, or spread over the read-only
brokers. The figure is the owner's CPU time per published message: it should not grow with what is
served elsewhere, but for what is fixed in time (acknowledgements are merged, and cursors stored, so
many times a second). ``--elsewhere``: without the rows of what the owner serves.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from bench import results
from bench.loadgen import ConsumeLoad, ConsumeRun, PublishLoad, Target, publish
from bench.measure import machine
from bench.read_only_tail import dispatched, steer
from bench.server import Server, broker, ledger_store

AT_OWNER, READ_ONLY = "owner", "read-only"
WARMUP_S: Final = 2.0


class Shape(NamedTuple):
    """What is published: ``rate`` in messages per second."""

    rate: float
    batch: int
    message_bytes: int
    seconds: float


def measure(
    owner: Server, servers: Sequence[Server], subscriptions: int, shape: Shape
) -> dict[str, Any]:
    """With the subscriptions spread over ``servers``."""
    topic = f"fanout-{len(servers)}-{servers[0].pid}-{subscriptions}"
    target = Target("127.0.0.1", owner.broker_port, topic, (owner.pid,))
    each, kind = max(1, shape.batch), (shape.batch, shape.message_bytes)
    entry_rate = shape.rate / each
    warmup, entries = int(entry_rate * WARMUP_S), int(entry_rate * shape.seconds)
    # It exists, with a message, before it is followed; the pace of what comes then is the load's.
    publish(target, _load(kind, entries=1))
    with ExitStack() as stack:
        threads = []
        for index, server in enumerate(servers):
            count = subscriptions // len(servers) + (index < subscriptions % len(servers))
            if not count:
                continue
            messages = each * (warmup + entries + 1)
            load = ConsumeLoad(
                count, messages, shape.batch, acknowledge="individual", lookup=server is owner
            )
            there = Target("127.0.0.1", server.broker_port, topic)
            threads.append(
                threading.Thread(target=stack.enter_context(ConsumeRun(there, load)).run)
            )
        for thread in threads:
            thread.start()
        load_now = _load(kind, rate=entry_rate, seconds=shape.seconds, warmup_entries=warmup)
        before = sum(map(dispatched, servers))
        report = publish(target, load_now)
        for thread in threads:
            thread.join()
    served = sum(map(dispatched, servers)) - before
    wanted = subscriptions * entries
    assert served >= wanted, f"{served} entries were served there, not {wanted}"
    return report


def _load(kind: tuple[int, int], **how: Any) -> PublishLoad:
    batch, message_bytes = kind
    return PublishLoad(depth=8, batch=batch, message_bytes=message_bytes, **how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20000, help="messages per second")
    parser.add_argument("--batch", type=int, default=20, help="messages in an entry")
    parser.add_argument("--bytes", type=int, default=100, help="of a message")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[0, 4, 8, 16])
    parser.add_argument("--brokers", type=int, nargs="+", default=[1])
    parser.add_argument("--elsewhere", action="store_true")
    parser.add_argument("--quick", action="store_true", help="3 s each")
    options = parser.parse_args()
    seconds = 3.0 if options.quick else options.seconds
    shape = Shape(options.rate, options.batch, options.bytes, seconds)
    where = machine()
    quorums = ("ensemble_size", "write_quorum", "ack_quorum")
    one = tuple(word for name in quorums for word in ("--set", f"ledger.{name}=1"))
    cases, rows = [], []
    with ExitStack() as stack:
        store = stack.enter_context(ledger_store(1))
        owner = stack.enter_context(broker(store, *one))
        others = [
            stack.enter_context(broker(store, "--read-only", *one))
            for _ in range(max(options.brokers))
        ]
        steer(owner, {"to": "any"})  # or they would be sent back to the owner
        ways = [] if options.elsewhere else [(AT_OWNER, [owner])]
        ways += [(f"{count} {READ_ONLY}", others[:count]) for count in options.brokers]
        for count in options.subscriptions:
            for name, servers in ways if count else ways[-1:]:
                report = measure(owner, servers, count, shape)
                cases.append({"served_by": name, "subscriptions": count, **report})
                cost = report["server_cpu_s_per_million_messages"]
                rows.append([count, name, report["messages_per_s"], cost])
    columns = ("subscriptions", "served by", "messages/s", "owner's CPU us/message")
    text = results.table(columns, rows)
    results.store("read_only_fanout", {"shape": shape._asdict(), "cases": cases}, text, where)


if __name__ == "__main__":
    main()
