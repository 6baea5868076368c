"""Figures can be trusted only as far as what computes them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from bench.measure import (
    CpuClock,
    Histogram,
    process_tree,
    resident_mib,
    scheduled_seconds,
    tree_cpu_seconds,
)


def test_percentiles_are_within_a_bucket_of_the_truth() -> None:
    rng = random.Random(1)
    samples = sorted(rng.lognormvariate(-7, 1.5) for _ in range(20_000))
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    for percent in (50.0, 90.0, 99.0, 99.9, 100.0):
        rank = -(-len(samples) * percent // 100)
        truth_ms = samples[int(rank) - 1] * 1e3
        assert histogram.percentile_ms(percent) == pytest.approx(truth_ms, rel=0.02)


def test_counts_and_merging() -> None:
    few, many = Histogram(), Histogram()
    few.record(1.0, 1)
    many.record(0.001, 99)
    many.merge(few)
    assert many.percentile_ms(99) == pytest.approx(1.0, rel=0.02)
    assert many.percentile_ms(99.5) == pytest.approx(1000.0, rel=0.02)
    assert Histogram().percentile_ms(50) == 0.0


def test_cpu_and_memory_of_this_process() -> None:
    clock = CpuClock([os.getpid()])
    stop = time.process_time() + 0.1
    while time.process_time() < stop:
        pass
    assert 0.05 <= clock.total_s() <= 0.5
    assert resident_mib(os.getpid()) > 5
    assert os.getpid() in process_tree([os.getpid()])


def test_the_time_of_a_tree_keeps_what_its_children_used() -> None:
    pid = os.getpid()
    before_s = tree_cpu_seconds([pid])
    work = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert tree_cpu_seconds([pid]) - before_s >= 0.15
    assert tree_cpu_seconds([2**22 + 1]) == 0.0


def test_scheduled_time_is_finer_than_a_tick() -> None:
    pid = os.getpid()
    before_s = scheduled_seconds(pid)
    begun_s = time.process_time()
    while time.process_time() - begun_s < 0.05:
        pass
    assert scheduled_seconds(pid) - before_s >= 0.04
    assert scheduled_seconds(2**22 + 1) == 0.0
