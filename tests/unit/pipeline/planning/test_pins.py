"""Pins: the driver takes them, whoever reads renews them, and their failing ends no query."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.options.source_options import PIN_MS, PIN_MS_MAX, TriggerLimits
from magnetar.pipeline.places import START, Offset, Place
from magnetar.pipeline.planning.micro_batches import MicroBatches
from magnetar.pipeline.planning.pins import PINS_MAX, PinRenewal, Pins
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import created_of
from magnetar.pipeline.planning.splits import PlannedRange
from tests.unit.pipeline.driving import options
from tests.unit.pipeline.planning.test_planner import A, B, cluster_of, planner


def part(topic: str, ledger_id: int) -> PlannedRange:
    return PlannedRange(topic, Place(ledger_id, 0, 0), Place(99, 0, 0))


def test_a_batch_read_holds_what_it_reads() -> None:
    cluster = cluster_of(a=3, b=5)
    plan = planner(cluster)
    pins = plan.pin([part(A, 1), part(B, 2)])
    assert pins is not None
    assert pins.ledger_ids == {A: 1, B: 2}
    assert cluster.logs[A].holds == {pins.holder: (1, PIN_MS)}
    assert cluster.logs[B].holds == {pins.holder: (2, PIN_MS)}
    assert pickle.loads(pickle.dumps(pins)) == pins
    asked = len(cluster.questions)
    plan.pin([part(A, 1)])
    assert len(cluster.questions) == asked, "it is held already"


def test_without_a_time_nothing_is_held() -> None:
    cluster = cluster_of(a=3, b=5)
    assert planner(cluster, pinTimeoutMs="0").pin([part(A, 1)]) is None
    assert not cluster.logs[A].holds
    with pytest.raises(ConfigError, match="pinTimeoutMs"):
        options(topics="a", pinTimeoutMs=str(PIN_MS_MAX + 1))


def test_a_stream_holds_from_where_its_micro_batch_begins() -> None:
    cluster = cluster_of(a=3)
    plan = Planner(options(topics="a", pinTimeoutMs="5000"), cast(BrokerClient, cluster))
    batches = MicroBatches(plan, TriggerLimits())
    extents = plan.extents()
    offset = Offset(plan.starts(extents), created_of(extents))
    assert not cluster.logs[A].holds
    for ledger_id in (-1, 1, 2):
        following = batches.after(offset, everything=True)
        assert following is not None
        assert cluster.logs[A].holds == {plan.holder: (ledger_id, 5000)}
        offset = following
        cluster.logs[A].roll()
        cluster.publish(A, 1)
    plan.unpin()
    assert cluster.logs[A].holds == {plan.holder: (0, 0)}


def test_a_broker_that_holds_nothing_ends_no_query(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_of(a=3, b=5)
    cluster.logs[A].holds_refused = True
    plan = planner(cluster)
    for _ in range(2):
        assert plan.extents(read_from={A: START})[A].end_offset == 3
    said = caplog.text
    assert said.count(f"{A}: what is read there is not held against trimming") == 1
    assert "100 readers" in said
    assert cluster.logs[B].holds == {plan.holder: (-1, PIN_MS)}


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def s(self) -> float:
        return self.now_s

    def ms(self) -> int:
        return int(self.now_s * 1000)


def test_tasks_renew_all_pins_of_their_read_in_time() -> None:
    cluster, clock = cluster_of(a=3, b=5), Clock()
    renewal = PinRenewal(clock.ms, clock.s)
    client = cast(BrokerClient, cluster)
    pins = Pins("h", 30_000, clock.ms(), {A: 1, B: 2})

    def batches(*seconds: float) -> Any:
        for number, passed in enumerate(seconds):
            clock.now_s += passed
            yield number

    assert list(renewal.renewing(client, pins, batches(1, 8))) == [0, 1]
    assert not cluster.logs[A].holds
    assert list(renewal.renewing(client, pins, batches(2, 0))) == [0, 1]  # 11 s after planning
    assert cluster.logs[A].holds == {"h": (1, 30_000)}
    assert cluster.logs[B].holds == {"h": (2, 30_000)}
    asked = len(cluster.questions)
    assert list(renewal.renewing(client, pins, batches(1, 5))) == [0, 1]  # another task
    assert len(cluster.questions) == asked
    assert list(renewal.renewing(client, pins, batches(5, 0))) == [0, 1]
    assert len(cluster.questions) == asked + 2
    assert list(PinRenewal(clock.ms, clock.s).renewing(client, None, batches(100))) == [0]
    assert len(cluster.questions) == asked + 2


def test_a_task_that_comes_late_renews_before_it_reads() -> None:
    cluster, clock = cluster_of(a=3), Clock()
    pins = Pins("h", 30_000, clock.ms() - 25_000, {A: 1})
    reading = PinRenewal(clock.ms, clock.s).renewing(cast(BrokerClient, cluster), pins, iter([7]))
    assert next(reading) == 7
    assert cluster.logs[A].holds == {"h": (1, 30_000)}


def test_a_renewal_that_fails_ends_no_task(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = cluster_of(a=3), Clock()
    pins = Pins("h", 3_000, 0, {A: 1})
    cluster.failures = 1
    reading = PinRenewal(clock.ms, clock.s).renewing(cast(BrokerClient, cluster), pins, iter([7]))
    assert list(reading) == [7]
    assert "not held against trimming: the connection broke" in caplog.text


def test_of_many_partitions_a_task_renews_its_own() -> None:
    ledger_ids = {f"t-partition-{number}": number for number in range(PINS_MAX + 1)}
    pins = Pins("h", 30_000, 0, ledger_ids)
    assert pins.for_task("t-partition-7").ledger_ids == {"t-partition-7": 7}
    few = Pins("h", 30_000, 0, {A: 1, B: 2})
    assert few.for_task(A) is few
