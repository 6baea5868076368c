"""Load on a Pulsar endpoint, from processes of its own.

Publish 1 KiB messages unbatched over 4 connections, 1000 outstanding each, and charge the
broker's CPU time to the entries::

    python -m bench.loadgen publish --port 6650 --connections 4 --depth 1000 \\
        --entries 400000 --warmup 40000 --pid 1234

Latency at a fixed rate, counted from when each message was due::

    python -m bench.loadgen publish --port 6650 --connections 4 --rate 20000 --seconds 20

Read everything that is in the topic, ``--connections`` times, over as many subscriptions::

    python -m bench.loadgen consume --port 6650 --messages 400000

The shapes of real clients: a Java producer (``--pieces``: every SEND written by itself, in two
pieces), acknowledgements one by one, many consumers of one subscription, and those
acknowledgements alone::

    python -m bench.loadgen publish --port 6650 --pieces --depth 1000 --entries 100000
    python -m bench.loadgen consume --port 6650 --messages 1000 --connections 100 --shared \\
        --acknowledge single
    python -m bench.loadgen acknowledge --port 6650 --messages 20000

The result is one JSON object on standard output.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from bench.acknowledging import Acknowledged, AcknowledgePhase, AcknowledgeWorker
from bench.consuming import Consumed, ConsumePhase, ConsumeWorker
from bench.measure import CpuClock, Histogram
from bench.publishing import Outcome, Phase, PublishWorker
from bench.wire_client import RefusedError


@dataclass(frozen=True)
class Target:
    """Where the load goes. ``pids``: processes whose CPU time is charged to it."""

    host: str
    port: int
    topic: str
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class PublishLoad:
    """What is published. ``batch`` 0 is unbatched; connection i uses topic i modulo ``topics``."""

    connections: int = 1
    depth: int = 1000
    entries: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    warmup_entries: int = 0
    message_bytes: int = 1024
    batch: int = 0
    topics: int = 1
    processes: int = 1
    pieces: bool = False


@dataclass(frozen=True)
class ConsumeLoad:
    """What is consumed: ``messages`` per connection. ``shared``: all connections have one
    subscription, else each has one of its own. Without ``lookup`` they are at that very broker."""

    connections: int = 1
    messages: int = 1
    batch: int = 0
    topics: int = 1
    acknowledge: str = "none"
    processes: int = 1
    shared: bool = False
    lookup: bool = True


class Workers:
    """The generator's processes: each answers "ready", then every phase with its outcome."""

    def __init__(self, targets: list[tuple[object, ...]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for arguments in targets:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, *arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers()

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def run(self, phases: list[object]) -> list[object]:
        for pipe, phase in zip(self._pipes, phases, strict=True):
            pipe.send(phase)
        return self._answers()

    def _answers(self) -> list[object]:
        answers = []
        for pipe in self._pipes:
            try:
                answer = pipe.recv()
            except EOFError as error:
                raise RefusedError("a process of the load generator died") from error
            if isinstance(answer, str):
                raise RefusedError(answer)
            answers.append(answer)
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)


def _serve(pipe: Connection, kind: str, *arguments: object) -> None:
    """The main function of a generator process."""
    makers = {
        "publish": PublishWorker,
        "consume": ConsumeWorker,
        "acknowledge": AcknowledgeWorker,
    }
    try:
        worker = makers[kind](*arguments)
        pipe.send(None)
        while True:
            pipe.send(worker.run(pipe.recv()))
    except EOFError:
        worker.close()
    except (RefusedError, OSError) as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _split(total: int, parts: int) -> list[int]:
    return [total // parts + (1 if i < total % parts else 0) for i in range(parts)]


def _topic(target: Target, index: int, topics: int) -> str:
    name = target.topic if "://" in target.topic else f"persistent://public/default/{target.topic}"
    return name if topics == 1 else f"{name}-{index % topics}"


def publish(target: Target, load: PublishLoad) -> dict[str, object]:
    """Run a publishing load and describe what happened; raises ``RefusedError``."""
    topics = [_topic(target, i, load.topics) for i in range(load.connections)]
    count = min(load.processes, load.connections)
    common = (load.message_bytes, load.batch, load.pieces)
    workers = Workers(
        [("publish", target.host, target.port, topics[i::count], *common) for i in range(count)]
    )
    try:
        if load.warmup_entries:
            warmups = _split(load.warmup_entries, count)
            workers.run([Phase(entries=part, depth=load.depth) for part in warmups])
        phases: list[object] = [
            Phase(part, load.seconds, load.rate / count, load.depth)
            for part in _split(load.entries, count)
        ]
        served, own = CpuClock(target.pids), CpuClock(workers.pids)
        outcomes = [item for item in workers.run(phases) if isinstance(item, Outcome)]
        return _publish_report(load, outcomes, served, own)
    finally:
        workers.close()


def _publish_report(
    load: PublishLoad, outcomes: list[Outcome], served: CpuClock, own: CpuClock
) -> dict[str, object]:
    served_s = served.total_s()
    entries = sum(outcome.entries for outcome in outcomes)
    seconds = max(outcome.seconds for outcome in outcomes)
    latency, lag = Histogram(), Histogram()
    for outcome in outcomes:
        latency.merge(outcome.latency)
        lag.merge(outcome.lag)
    messages = entries * max(1, load.batch)
    return {
        "load": {"kind": "publish", **asdict(load)},
        "entries": entries,
        "seconds": round(seconds, 3),
        "entries_per_s": round(entries / seconds),
        "messages_per_s": round(messages / seconds),
        "mb_per_s": round(messages * load.message_bytes / seconds / 1e6, 1),
        "latency_ms": latency.summary_ms(),
        "generator_lag_ms": lag.summary_ms() if load.rate else None,
        "server_cpu_s": round(served_s, 2),
        "server_cpu_us_per_entry": round(served_s * 1e6 / entries, 2),
        "server_cpu_in_kernel_percent": round(served.system_s() / max(served_s, 1e-9) * 100),
        "server_cpu_s_per_million_messages": round(served_s * 1e6 / messages, 4),
        "generator_cpu_us_per_entry": round(own.total_s() * 1e6 / entries, 2),
    }


class ConsumeRun:
    """Consumers that are subscribed; ``run`` lets them consume. A context manager."""

    def __init__(self, target: Target, load: ConsumeLoad) -> None:
        run = uuid.uuid4().hex[:8]
        topics = [_topic(target, i, load.topics) for i in range(load.connections)]
        names = [
            f"load-{run}" if load.shared else f"load-{run}-{i}" for i in range(load.connections)
        ]
        self._target, self._load = target, load
        self._count = count = min(load.processes, load.connections)
        where = ("consume", target.host, target.port)
        how = (load.batch, load.shared, load.lookup)
        self._workers = Workers(
            [(*where, topics[i::count], names[i::count], *how) for i in range(count)]
        )

    def run(self) -> dict[str, object]:
        """Consume and describe what happened; raises ``RefusedError``."""
        load = self._load
        phases: list[object] = [
            ConsumePhase(load.messages * part, acknowledge=load.acknowledge)
            for part in _split(load.connections, self._count)
        ]
        served, own = CpuClock(self._target.pids), CpuClock(self._workers.pids)
        totals = [item for item in self._workers.run(phases) if isinstance(item, Consumed)]
        return _consume_report(load, totals, served, own)

    def __enter__(self) -> ConsumeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()


def consume(target: Target, load: ConsumeLoad) -> dict[str, object]:
    """Run a consuming load and describe what happened; raises ``RefusedError``."""
    with ConsumeRun(target, load) as run:
        return run.run()


def acknowledge(target: Target, messages: int) -> dict[str, object]:
    """Acknowledge ``messages`` of the topic one by one, and nothing else; see ``acknowledging``."""
    name = f"load-{uuid.uuid4().hex[:8]}"
    where = (target.host, target.port, _topic(target, 0, 1))
    workers = Workers([("acknowledge", *where, name, messages)])
    try:
        served = CpuClock(target.pids)
        (total,) = workers.run([AcknowledgePhase()])
        assert isinstance(total, Acknowledged)
        return {
            "load": {"kind": "acknowledge"},
            "messages": total.messages,
            "seconds": round(total.seconds, 3),
            "server_cpu_us_per_message": round(served.total_s() * 1e6 / total.messages, 4),
        }
    finally:
        workers.close()


def _consume_report(
    load: ConsumeLoad, totals: list[Consumed], served: CpuClock, own: CpuClock
) -> dict[str, object]:
    served_s = served.total_s()
    messages = sum(total.messages for total in totals)
    seconds = max(total.seconds for total in totals)
    return {
        "load": {"kind": "consume", **asdict(load)},
        "messages": messages,
        "entries": sum(total.entries for total in totals),
        "seconds": round(seconds, 3),
        "messages_per_s": round(messages / seconds),
        "mb_per_s": round(sum(total.received_bytes for total in totals) / seconds / 1e6, 1),
        "server_cpu_s": round(served_s, 2),
        "server_cpu_us_per_message": round(served_s * 1e6 / messages, 4),
        "generator_cpu_us_per_message": round(own.total_s() * 1e6 / messages, 2),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="kind", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--host", default="127.0.0.1")
    both.add_argument("--port", type=int, default=6650)
    both.add_argument("--topic", default="load")
    both.add_argument("--topics", type=int, default=1, help="spread connections over this many")
    both.add_argument("--connections", type=int, default=1)
    both.add_argument("--processes", type=int, default=1)
    both.add_argument("--pid", type=int, action="append", default=[], help="charge its CPU time")
    both.add_argument("--batch", type=int, default=0, help="messages per entry; 0: no batches")
    pub = commands.add_parser("publish", parents=[both])
    pub.add_argument("--depth", type=int, default=1000, help="outstanding entries a connection")
    pub.add_argument("--entries", type=int, default=0)
    pub.add_argument("--seconds", type=float, default=0.0)
    pub.add_argument("--rate", type=float, default=0.0, help="entries/s in all; 0: as they go")
    pub.add_argument("--warmup", type=int, default=0, help="entries before the clock starts")
    pub.add_argument("--message-bytes", type=int, default=1024)
    pub.add_argument("--pieces", action="store_true", help="every SEND by itself, as Java does")
    con = commands.add_parser("consume", parents=[both])
    con.add_argument("--messages", type=int, required=True, help="per connection")
    modes = ("none", "individual", "cumulative", "single")
    con.add_argument("--acknowledge", choices=modes, default="none")
    con.add_argument("--shared", action="store_true", help="one subscription for a topic")
    ack = commands.add_parser("acknowledge", parents=[both])
    ack.add_argument("--messages", type=int, required=True)
    return parser


def main() -> int:
    options = _parser().parse_args()
    target = Target(options.host, options.port, options.topic, tuple(options.pid))
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        if options.kind == "publish":
            if not options.entries and not options.seconds:
                raise SystemExit("say how much: --entries N or --seconds S")
            load = PublishLoad(
                options.connections,
                options.depth,
                options.entries,
                options.seconds,
                options.rate,
                options.warmup,
                options.message_bytes,
                options.batch,
                options.topics,
                options.processes,
                options.pieces,
            )
            report = publish(target, load)
        elif options.kind == "acknowledge":
            report = acknowledge(target, options.messages)
        else:
            report = consume(
                target,
                ConsumeLoad(
                    options.connections,
                    options.messages,
                    options.batch,
                    options.topics,
                    options.acknowledge,
                    options.processes,
                    options.shared,
                ),
            )
    except (RefusedError, OSError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"started": started, **report}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
