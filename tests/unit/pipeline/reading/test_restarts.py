"""Random lives of a query: topics are written, rolled, trimmed, deleted, made anew and grown,
brokers restart and the query restarts, before, between and within micro-batches.

The model knows every message. Whatever happens:

* what is delivered is delivered once, in order within a log;
* a message that retention deleted before it was read, or that went with its topic, is not passed
  over silently: the query ends (``failOnDataLoss``), or goes on and counts it;
* nothing waits for what cannot come (patience is half a second here).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from magnetar.model.errors import DataLossError
from magnetar.pipeline.brokers import log_watch
from magnetar.pipeline.places import from_offset
from magnetar.pipeline.reading import range_reading
from tests.unit.pipeline.driving import Query, options
from tests.unit.pipeline.fake_cluster import FakeCluster

PREFIX = "persistent://public/default/"
TOPICS = [f"{PREFIX}{name}" for name in ("plain", "many")]
EXAMPLES, STEPS = 300, 25


class Lives(RuleBasedStateMachine):
    """See the module. ``losing``: ``failOnDataLoss=false``."""

    losing = True

    @initialize(most=st.sampled_from([None, 1, 3, 10]), latest=st.booleans())
    def begin(self, most: int | None, latest: bool) -> None:
        self.cluster = FakeCluster()
        self.cluster.make(TOPICS[0])
        self.cluster.make(TOPICS[1], 2)
        self.appended: dict[str, list[int]] = {}  # of each log, by partition and creation
        self.dropped: set[int] = set()  # with a topic that was deleted
        self.before_start: set[int] = set()
        self.deleted = False
        self.owed: int | None = None  # a loss must be told: more than were told then
        self.write(0, 3, False)
        self.write(1, 5, True)
        given: dict[str, str] = {"topics": "plain,many", "failOnDataLoss": str(not self.losing)}
        if most is not None:
            given["maxOffsetsPerTrigger"] = str(most)
        if latest:
            given["startingOffsets"] = "latest"
            self.before_start = set(self._all())
        self.query = Query(self.cluster, options(**given))
        self.query.plan()  # pins the start
        self.query.execute()

    def _all(self) -> list[int]:
        return [value for values in self.appended.values() for value in values]

    def _names(self) -> list[str]:
        return sorted(self.cluster.logs)

    # -- what happens to topics ---------------------------------------------------------------

    @rule(which=st.integers(0, 5), count=st.integers(1, 6), batched=st.booleans())
    def write(self, which: int, count: int, batched: bool) -> None:
        names = self._names()
        if names:
            name = names[which % len(names)]
            log = f"{name}@{self.cluster.logs[name].created_ms}"
            values = self.cluster.publish(name, count, batched)
            self.appended.setdefault(log, []).extend(values)

    @rule(which=st.integers(0, 5))
    def roll(self, which: int) -> None:
        names = self._names()
        if names:
            self.cluster.logs[names[which % len(names)]].roll()

    @rule(which=st.integers(0, 5), count=st.integers(1, 3))
    def trim(self, which: int, count: int) -> None:
        names = self._names()
        if names:
            self.cluster.logs[names[which % len(names)]].trim(count)

    def roll_and_trim(self, which: int) -> None:
        self.roll(which)
        self.trim(which, 9)

    @rule(which=st.integers(0, 1), again=st.booleans(), partitions=st.integers(1, 3))
    def delete(self, which: int, again: bool, partitions: int) -> None:
        topic = TOPICS[which]
        self.deleted = True
        for name in self.cluster.names_of(topic):
            if name in self.cluster.logs:
                self._drop(name)
        self.cluster.delete(topic)
        if again:
            self.cluster.make(topic, partitions if which else 0)

    def _drop(self, name: str) -> None:
        log = self.cluster.logs[name]
        values = set(log.values())
        self.dropped |= values
        known = from_offset(self.query.offsets[-1])
        unread = values - set(self.query.values) - self.before_start
        if unread and known.created_ms.get(name) == log.created_ms and self.owed is None:
            self.owed = self.query.lost

    @rule()
    def grow(self) -> None:
        count = self.cluster.partition_counts.get(TOPICS[1], 0)
        if 0 < count < 5:
            self.cluster.make(TOPICS[1], count + 1)

    @rule(times=st.integers(1, 2))
    def brokers_restart(self, times: int) -> None:
        self.cluster.failures = times

    # -- what the query does --------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.cluster.failures = 0  # a query that starts waits here for nobody
        self.query.restart()

    @rule()
    def plan_only(self) -> None:
        self._do(self.query.plan)

    @rule(which=st.integers(0, 1), again=st.booleans(), restarts=st.booleans())
    def a_topic_goes_behind_a_plan(self, which: int, again: bool, restarts: bool) -> None:
        self.plan_only()
        self.delete(which, again, 2)
        if restarts:
            self.restart()

    @rule()
    def micro_batch(self) -> None:
        self._do(self._one)

    @rule(
        after=st.integers(0, 4),
        which=st.integers(0, 5),
        again=st.booleans(),
        kind=st.integers(0, 3),
    )
    def micro_batch_and_meanwhile(self, after: int, which: int, again: bool, kind: int) -> None:
        """Something happens while a task reads."""
        left = [after]

        def happen() -> None:
            left[0] -= 1
            if left[0] == -1:
                events: list[Any] = [
                    lambda: self.roll_and_trim(which),
                    lambda: self.delete(which % 2, again, 2),
                    lambda: self.write(which, 3, again),
                    lambda: self.brokers_restart(1),
                ]
                events[kind]()

        self.cluster.before_entry = happen
        self._do(self._one)
        self.cluster.before_entry = lambda: None

    def _one(self) -> None:
        if self.query.plan():
            self.query.execute()

    def _do(self, step: Any) -> None:
        try:
            step()
        except DataLossError:
            assert not self.losing, "losses are counted"
            assert self._something_is_lost(), "nothing was lost"
            self.cluster.before_entry = lambda: None
            self._begin_anew()

    def _something_is_lost(self) -> bool:
        """A message that was not delivered yet cannot be any more, or a topic was deleted."""
        seen = set(self.query.values) | self.before_start
        gone = {value for log in self.cluster.logs.values() for value in log.gone}
        return self.deleted or not gone <= seen

    def _begin_anew(self) -> None:
        """As the error says: a new checkpoint, from what is there."""
        self.cluster.failures = 0
        for topic in TOPICS:
            self.cluster.make(
                topic, self.cluster.partition_counts.get(topic, 2 * (topic == TOPICS[1]))
            )
        self.before_start = set(self._all()) - {
            value for log in self.cluster.logs.values() for value in log.values()
        }
        self.deleted = False
        self.owed = None
        self.query = Query(self.cluster, options(topics="plain,many"))
        self.query.plan()
        self.query.execute()

    # -- what holds ---------------------------------------------------------------------------

    @invariant()
    def delivered_once_and_in_order(self) -> None:
        if not hasattr(self, "query"):
            return
        counts = Counter(self.query.values)
        assert max(counts.values(), default=1) == 1, counts.most_common(3)
        assert not set(counts) & self.before_start
        for values in self.appended.values():
            of_log = [value for value in self.query.values if value in set(values)]
            assert of_log == sorted(of_log)

    @precondition(lambda self: hasattr(self, "query"))
    @rule()
    def catch_up(self) -> None:
        """Everything that is there is delivered; what is not is counted."""
        self.cluster.failures = 0
        self._do(self.query.run)
        self._do(self.query.run)  # of the new one, if it began anew
        seen = set(self.query.values)
        there = {value for log in self.cluster.logs.values() for value in log.values()}
        assert there - self.before_start <= seen
        missing = set(self._all()) - self.before_start - seen
        if self.owed is not None:
            assert self.losing, "a topic was deleted, and nobody said so"
            assert self.query.lost > self.owed
            self.owed = None
        if self.losing:
            assert (self.query.lost > 0) >= bool(missing - self._unseen_topics())
            if not self.deleted:
                assert self.query.lost == len(missing)
        else:
            assert not missing - self._unseen_topics()

    def _unseen_topics(self) -> set[int]:
        """What was written to logs that were deleted before the query could know of them."""
        return self.dropped if self.deleted else set()

    def teardown(self) -> None:
        if hasattr(self, "query"):
            self.catch_up()


class FatalLives(Lives):
    losing = False


@pytest.mark.parametrize("lives", [Lives, FatalLives], ids=["counted", "fatal"])
def test_lives_of_a_query(
    lives: type[Lives], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_watch, "PAUSE_S", 0.001)
    monkeypatch.setattr(range_reading, "PAUSE_S", 0.001)
    caplog.set_level(logging.CRITICAL, "magnetar.pipeline")
    run_state_machine_as_test(
        lives,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_replayed_micro_batch_is_the_same_after_a_restart() -> None:
    cluster = FakeCluster()
    cluster.make(TOPICS[0])
    cluster.publish(TOPICS[0], 7, batched=True)
    query = Query(cluster, options(topics="plain", maxOffsetsPerTrigger="4"))
    query.plan()
    query.execute()
    query.plan()
    planned = query.ranges()
    query.restart()
    cluster.logs[TOPICS[0]].roll()
    cluster.publish(TOPICS[0], 5)
    assert query.ranges() == planned
    query.run()
    assert query.values == list(range(12))
    assert [len(query.delivered[number]) for number in range(4)] == [0, 4, 4, 4]
    assert from_offset(query.offsets[-1]).lost == {}
