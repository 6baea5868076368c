"""The results of all parts as one table of ratios. Pure.

A ratio above 1 is ours ahead, as on the pages of the parts: our rate by the peer's; the peer's CPU
time, latency, seconds or memory by ours. It is that of the medians; Spark's is the mean of the
rounds', as on its page.


The goal of a load: ``RATE_GOAL`` times the peer's rate or, where the client is the limit, the
peer's CPU time ``CPU_GOAL`` times ours; and at the rates of ``PACED`` beside Pulsar the p99
``P99_GOAL`` times ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.compare_figures import figure

RATE_GOAL: Final = 1.5
CPU_GOAL: Final = 2.0
P99_GOAL: Final = 2.0
PACED: Final = ("5 000/s", "20 000/s")

MEASURES: Final = {
    ": msg/s": "rate", ": adds/s": "rate", ": topics/s": "rate", ", MB/s": "rate",
    ": CPU us": "CPU", ", CPU s per million": "CPU",
    ": p50 ms": "p50", ": p99 ms": "p99", ": p99.9 ms": "p99.9",
    ", p50, ms": "p50", ", p99, ms": "p99", ", p99.9, ms": "p99.9",
}  # fmt: skip
"""How the name of a row of a part ends, and what that measures."""
LOAD: Final = ("rate", "CPU", "p50", "p99", "p99.9")
LEFT_OUT: Final = "lag of the load"

Rounds = Mapping[str, Sequence[float]]
"""Row -> a figure of each round."""


@dataclass(frozen=True)
class Compared:
    """A row: ``ratios`` by what they measure; ``beside`` alone where it is no load."""

    part: str
    row: str
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def is_load(self) -> bool:
        return "rate" in self.ratios or "CPU" in self.ratios

    @property
    def reached(self) -> bool | None:
        """The goal of rate or CPU; None where there is none."""
        if not self.is_load:
            return None
        rate, cpu = self.ratios.get("rate", 0.0), self.ratios.get("CPU", 0.0)
        return rate >= RATE_GOAL or cpu >= CPU_GOAL

    @property
    def reached_p99(self) -> bool | None:
        if self.part != "Pulsar" or "p99" not in self.ratios or not self.row.endswith(PACED):
            return None
        return self.ratios["p99"] >= P99_GOAL


def ratio_of(measure: str, own: Sequence[float], its: Sequence[float]) -> float:
    ours, theirs = statistics.median(own), statistics.median(its)
    return ours / max(theirs, 1e-9) if measure == "rate" else theirs / max(ours, 1e-9)


def measured(name: str) -> tuple[str, str]:
    """The load that a row of a part is about, and what of it; ``beside`` where it is none."""
    for ending, measure in MEASURES.items():
        if name.endswith(ending):
            return name.removesuffix(ending), measure
    return name, "beside"


def of_rounds(part: str, own: Rounds, its: Rounds, label: str = "") -> list[Compared]:
    """Rows that one side alone has are left out (the part's page says why), and what cost one side
    nothing: topics that found room in memory that was free before."""
    found: dict[str, Compared] = {}
    for name, values in own.items():
        if name not in its or LEFT_OUT in name:
            continue
        if not statistics.median(values) or not statistics.median(its[name]):
            continue
        load, measure = measured(name)
        row = found.setdefault(load, Compared(part, load + label))
        row.ratios[measure] = ratio_of(measure, values, its[name])
    return list(found.values())


def of_pulsar(report: Mapping[str, Any]) -> list[Compared]:
    return of_rounds("Pulsar", report["rounds"]["Magnetar"], report["rounds"]["Pulsar"])


def of_kafka(report: Mapping[str, Any]) -> list[Compared]:
    rounds = report["rounds"]
    beside = {
        "partition, each batch": "Kafka 4, each batch",
        "ledger, journal synced": "Kafka 4, each batch",
        "partition, kernel": "Kafka 4, kernel",
    }
    return [
        row
        for name, peer in beside.items()
        for row in of_rounds("Kafka", rounds[name], rounds[peer], f" ({name})")
    ]


def of_bookies(report: Mapping[str, Any]) -> list[Compared]:
    own, *others = report["rounds"].values()
    return of_rounds("BookKeeper", own, others[0])


def _cpu_s(cost: Mapping[str, float]) -> float:
    return cost["spark"] + cost["servers"]


def of_spark(report: Mapping[str, Any]) -> list[Compared]:
    costs = {
        (each["case"], each["bytes"], each["side"]): each["rounds"] for each in report["costs"]
    }
    found = []
    for (case, size, side), rounds in costs.items():
        peer = costs.get((case, size, "Kafka"))
        if side in ("Kafka", "ceiling") or peer is None:
            continue
        pairs = [
            (own, its)
            for own, its in zip(rounds, peer, strict=True)
            if min(_cpu_s(own), _cpu_s(its)) > 0  # as the part's page does, which says why
        ]
        ratios = {"rate": figure(*([one["wall"] for one in all_] for all_ in (rounds, peer))).ratio}
        if pairs:
            own_s, its_s = ([_cpu_s(pair[place]) for pair in pairs] for place in (0, 1))
            ratios["CPU"] = figure(own_s, its_s).ratio
        found.append(Compared("Spark", f"{case}, {size} B ({side})", ratios))
    waited = report["micro_batches"]
    for side in waited:
        if side == "Kafka" or not waited[side]:
            continue
        ratios = {
            name: ratio_of(name, *([run["latency_ms"][key] for run in waited[one]]
                                   for one in (side, "Kafka")))
            for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"))
        }  # fmt: skip
        found.append(Compared("Spark", f"micro-batches at 1 000/s ({side})", ratios))
    return found


def lines(rows: Iterable[Compared]) -> tuple[list[list[str]], list[list[str]]]:
    """Cells of the table of loads, and of that of what there is beside them."""
    loads, others = [], []
    for row in rows:
        if set(row.ratios) == {"beside"}:
            others.append([row.part, row.row, f"{row.ratios['beside']:.2f}"])
            continue
        cells = [f"{row.ratios[each]:.2f}" if each in row.ratios else "" for each in LOAD]
        loads.append([row.part, row.row, *cells, _said(row.reached), _said(row.reached_p99)])
    return loads, others


def _said(reached: bool | None) -> str:
    return "" if reached is None else "yes" if reached else "**no**"
