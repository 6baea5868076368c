"""The rows of a comparison: what each measures, against servers of one source tree.

Every figure is CPU microseconds (user and system, all threads) per message, entry or row, of the
process that is compared: the server, or the ledger writer, or Spark. The load comes from this
checkout's generator, the same for both sides; of the other tree only the commands (``magnetar
standalone``, ``magnetar bookie``), the public ledger library and the Spark format are used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from bench import ledger_clients
from bench.bookie_pieces import PieceWriter
from bench.compare_spark import SparkSide
from bench.ledger_writing import PipelinedLoad
from bench.loadgen import (
    ConsumeLoad,
    ConsumeRun,
    PublishLoad,
    Target,
    acknowledge,
    consume,
    publish,
)
from bench.measure import CpuClock
from bench.server import Server, ledger_store, standalone_on, work_directory

Costs: TypeAlias = dict[str, float]
"""CPU microseconds by row."""

UNBATCHED = "publish, bursts"
BATCHED = "publish, batches of 100, bursts"
PIECES = "publish, small pieces (Java)"
PACED_PIECES = "publish, small pieces, 4 000 a second"
BATCHED_PIECES = "publish, batches of 100, small pieces"
MANY = "publish, 64 producers with one outstanding"
EXCLUSIVE = "dispatch, exclusive, single acknowledgements"
FAN_OUT = "fan-out to 10, published and acknowledged"
SHARED = "dispatch, shared by 100, single acknowledgements"
ACKNOWLEDGE = "cursor, single acknowledgements alone"
CATCH_UP = "catch-up after a restart"
BOOKIE = "bookie, small pieces (Java)"
WRITER = "ledger writer, E3 Qw3 Qa2, 1 an append"
WRITER_BOOKIES = "its bookies, a copy"
SCAN_VALUES = "Spark scan, values"
SCAN_ALL = "Spark scan, all columns"
ROWS = (
    UNBATCHED, BATCHED, PIECES, PACED_PIECES, BATCHED_PIECES, MANY, EXCLUSIVE, FAN_OUT, SHARED,
    ACKNOWLEDGE, CATCH_UP, BOOKIE, WRITER, WRITER_BOOKIES, SCAN_VALUES, SCAN_ALL,
)  # fmt: skip
SCAN_TOPIC = "scan"
SCANS = 2  # of each kind: what Java does besides varies by a fifth from scan to scan
FAN = 10
PACE = 4000.0
"""Slow enough that the server has nothing to do between two pieces, on a machine that is not busy:
what a message costs that comes alone, without luck in what the kernel joins."""


class Sizes:
    """How much each row does; ``quick`` is for a look whether everything works."""

    def __init__(self, quick: bool) -> None:
        part = 5 if quick else 1
        self.bursts = 100_000 // part
        self.batches = 5_000 // part  # of 100 messages of 100 bytes
        self.pieces = 30_000 // part
        self.paced_s = 2.5 / part
        self.batched_pieces = 2_500 // part
        self.many = 20_000 // part
        self.fan_out = 5_000 // part
        self.shared_each = 200 // part  # for each of 100 consumers
        self.acknowledge = 15_000 // part
        self.bookie = 30_000 // part
        self.writer_s = 2.0 / part
        self.scan_batches = 4_000 // part


def measure(source: Path, spark: SparkSide | None, sizes: Sizes) -> Costs:
    """All rows once, for one source tree."""
    costs: Costs = {}
    with work_directory() as data_dir:
        with standalone_on(data_dir, source=source) as server:
            _publishing(server, sizes, costs)
            _dispatching(server, sizes, costs)
            if spark is not None:
                _scanning(server, spark, sizes, costs)
        with standalone_on(data_dir, source=source) as server:
            load = ConsumeLoad(messages=sizes.bursts)
            costs[CATCH_UP] = _per_message(consume(_target(server, "bursts"), load))
    _storing(source, sizes, costs)
    return costs


def _target(server: Server, topic: str) -> Target:
    return Target("127.0.0.1", server.broker_port, topic, (server.pid,))


def _per_message(report: dict[str, object]) -> float:
    value = report.get("server_cpu_us_per_message")
    if value is None:
        value = report["server_cpu_s_per_million_messages"]
    assert isinstance(value, float)
    return value


def _publishing(server: Server, sizes: Sizes, costs: Costs) -> None:
    loads = {
        UNBATCHED: ("bursts", PublishLoad(entries=sizes.bursts)),
        BATCHED: ("batches", PublishLoad(entries=sizes.batches, message_bytes=100, batch=100)),
        PIECES: ("pieces", PublishLoad(entries=sizes.pieces, pieces=True)),
        PACED_PIECES: (
            "paced",
            PublishLoad(rate=PACE, seconds=sizes.paced_s, pieces=True),
        ),
        BATCHED_PIECES: (
            "batched-pieces",
            PublishLoad(entries=sizes.batched_pieces, pieces=True, message_bytes=100, batch=100),
        ),
        MANY: ("many", PublishLoad(connections=64, depth=1, entries=sizes.many)),
    }
    publish(_target(server, "warm-up"), PublishLoad(entries=sizes.pieces))
    for row, (topic, load) in loads.items():
        costs[row] = _per_message(publish(_target(server, topic), load))


def _dispatching(server: Server, sizes: Sizes, costs: Costs) -> None:
    pieces = _target(server, "pieces")
    load = ConsumeLoad(messages=sizes.pieces, acknowledge="single")
    costs[EXCLUSIVE] = _per_message(consume(pieces, load))
    costs[FAN_OUT] = _fan_out(server, sizes)
    shared = ConsumeLoad(100, sizes.shared_each, acknowledge="single", shared=True)
    costs[SHARED] = _per_message(consume(pieces, shared))
    costs[ACKNOWLEDGE] = _per_message(acknowledge(pieces, sizes.acknowledge))


def _fan_out(server: Server, sizes: Sizes) -> float:
    """Per delivered message; what publishing it costs is in it."""
    target = _target(server, "fan-out")
    load = ConsumeLoad(FAN, sizes.fan_out, acknowledge="single")
    with ConsumeRun(target, load) as consumers, ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(consumers.run)
        publish(target, PublishLoad(entries=sizes.fan_out, depth=100))
        return _per_message(under_way.result())


def _scanning(server: Server, spark: SparkSide, sizes: Sizes, costs: Costs) -> None:
    publish(
        _target(server, SCAN_TOPIC),
        PublishLoad(entries=sizes.scan_batches, batch=100, message_bytes=100),
    )
    rows = sizes.scan_batches * 100
    spark.warm_up(server.broker_port, SCAN_TOPIC)
    for row, columns in ((SCAN_VALUES, "value"), (SCAN_ALL, "")):
        spent_s = sum(spark.scan(server.broker_port, SCAN_TOPIC, columns) for _ in range(SCANS))
        costs[row] = spent_s / SCANS / rows * 1e6


def _storing(source: Path, sizes: Sizes, costs: Costs) -> None:
    with ledger_store(3, source) as store:
        bookie = store.bookies[0]
        writer = PieceWriter(bookie.port)
        try:
            writer.add(sizes.bookie // 5)
            clock = CpuClock([bookie.pid])
            writer.add(sizes.bookie)
            costs[BOOKIE] = clock.total_s() / sizes.bookie * 1e6
        finally:
            writer.close()
        load = PipelinedLoad(
            store.metadata_url, (3, 3, 2), payload_bytes=1024, ledgers=1, batch=1, depth=2000,
            seconds=sizes.writer_s, pids=store.pids,
        )  # fmt: skip
        report = ledger_clients.run("bench.ledger_writing", "pipelined", load, source)
        costs[WRITER] = report["writer_cpu_us"]
        costs[WRITER_BOOKIES] = report["bookie_cpu_us"]
