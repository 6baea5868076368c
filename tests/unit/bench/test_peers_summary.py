"""One table of ratios out of what the parts have measured."""

from __future__ import annotations

import json

import pytest

from bench import results
from bench.peers import __main__ as peers
from bench.peers import summary
from bench.peers.summary import Compared


def one(rows: list[Compared]) -> Compared:
    (row,) = rows
    return row


def test_a_load_is_one_row_of_all_its_figures() -> None:
    own = {"small: msg/s": [300.0, 1.0, 150.0], "small: CPU us": [2.0], "small: p99 ms": [4.0]}
    its = {"small: msg/s": [100.0], "small: CPU us": [5.0], "small: p99 ms": [2.0]}
    row = one(summary.of_rounds("Pulsar", own, its))
    assert row == Compared("Pulsar", "small", {"rate": 1.5, "CPU": 2.5, "p99": 0.5})
    assert row.reached
    assert row.reached_p99 is None, "no fixed rate"


@pytest.mark.parametrize(
    ("ratios", "reached"),
    [({"rate": 1.5}, True), ({"rate": 1.4, "CPU": 2.0}, True), ({"rate": 1.4, "CPU": 1.9}, False),
     ({"p50": 9.0}, None)],
)  # fmt: skip
def test_the_goal_is_a_rate_or_half_the_cpu(ratios: dict[str, float], reached: bool | None) -> None:
    assert Compared("Kafka", "load", ratios).reached is reached


def test_paced_loads_beside_pulsar_have_a_goal_of_p99() -> None:
    ratios = {"CPU": 3.0, "p99": 1.9}
    assert Compared("Pulsar", "1 KiB, 5 000/s", ratios).reached_p99 is False
    assert Compared("Pulsar", "1 KiB, 20 000/s", {**ratios, "p99": 2.0}).reached_p99
    assert Compared("Kafka", "at 20 000/s", ratios).reached_p99 is None


def test_what_one_side_did_not_reach_has_no_row() -> None:
    assert summary.of_rounds("Pulsar", {"over 10000 topics: CPU us": [1.0]}, {}) == []


def test_what_cost_one_side_nothing_has_no_ratio() -> None:
    name = "memory of a topic, 1000 topics, KiB"
    assert summary.of_rounds("Pulsar", {name: [0.0, 0.0, 3.0]}, {name: [160.0]}) == []


def test_what_is_no_load_stands_in_a_table_of_its_own() -> None:
    rows = summary.of_rounds(
        "Pulsar", {"memory after it, MiB": [2.0]}, {"memory after it, MiB": [8]}
    )
    assert summary.lines(rows) == ([], [["Pulsar", "memory after it, MiB", "4.00"]])


def test_each_of_our_engines_is_held_against_kafka_of_its_flush_policy() -> None:
    rounds = {
        "Kafka 4, each batch": {"produce, MB/s": [10.0], "lag of the load p99, ms": [1.0]},
        "partition, each batch": {"produce, MB/s": [20.0], "lag of the load p99, ms": [1.0]},
        "ledger, journal synced": {"produce, MB/s": [30.0]},
        "Kafka 4, kernel": {"produce, MB/s": [40.0]},
        "partition, kernel": {"produce, MB/s": [40.0]},
    }
    found = {row.row: row.ratios["rate"] for row in summary.of_kafka({"rounds": rounds})}
    assert found == {
        "produce (partition, each batch)": 2.0,
        "produce (ledger, journal synced)": 3.0,
        "produce (partition, kernel)": 1.0,
    }


def test_seconds_of_the_same_rows_are_a_rate() -> None:
    def side(name: str, wall: float, cpu: float) -> dict[str, object]:
        rounds = [{"wall": wall, "spark": cpu, "servers": cpu}]
        return {"case": "write", "bytes": 100, "side": name, "rows": 1, "rounds": rounds}

    waited = {
        name: [{"latency_ms": {"p50": ms, "p99": ms, "p99_9": ms}}]
        for name, ms in (("exactly once", 2.0), ("Kafka", 1.0))
    }
    costs = [side("exactly once", 1.0, 1.0), side("Kafka", 2.0, 3.0), side("ceiling", 1.0, 1.0)]
    write, micro = summary.of_spark({"costs": costs, "micro_batches": waited})
    assert write.row == "write, 100 B (exactly once)"
    assert write.ratios == pytest.approx({"rate": 2.0, "CPU": 3.0})
    assert micro.ratios == {"p50": 0.5, "p99": 0.5, "p99.9": 0.5}
    assert micro.reached is None


def test_the_page_is_made_of_the_results_that_are_there(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    where = {"commit": "abc", "cpu": "fast", "cores": "2", "cpu_pressure_percent": "50"}
    rounds = {"Magnetar": {"1 KiB: adds/s": [1.0]}, "BookKeeper 4.17.2": {"1 KiB: adds/s": [1.0]}}
    report = {"measured": "today", "machine": where, "rounds": rounds}
    (results.RESULTS / "bookies.json").write_text(json.dumps(report))
    found, text = peers.page()
    assert found["rows"] == [
        {"part": "BookKeeper", "row": "1 KiB", "ratios": {"rate": 1.0}, "goal": False,
         "goal_p99": None}
    ]  # fmt: skip
    assert "0 of 1 loads" in text
    assert "no result yet" in text
    assert "yes: CPU only counts" in text
    assert "abc" in text
