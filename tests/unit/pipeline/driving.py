"""A query as Spark runs it, without Spark: a log of offsets, a log of commits, restarts."""

from __future__ import annotations

import json
from typing import Any, cast

import pyarrow as pa

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import UNKNOWN_MS
from magnetar.pipeline.options.source_options import ReadOptions, parse_read_options
from magnetar.pipeline.places import Offset, from_offset, to_offset
from magnetar.pipeline.planning.micro_batches import MicroBatches
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import created_of
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.pipeline.reading.decode import read_range
from tests.unit.pipeline.fake_cluster import FakeCluster

Form = dict[str, Any]


def options(**given: str) -> ReadOptions:
    return parse_read_options({"service.url": "pulsar://127.0.0.1:1", **given})


def read_values(client: BrokerClient, part: PlannedRange, reports: LossReports) -> list[int]:
    batches = list(read_range(client, part, ("value",), reports))
    return (
        [int(value) for value in pa.Table.from_batches(batches)["value"].to_pylist()]
        if batches
        else []
    )


class Query:
    """What Spark keeps over restarts (``offsets``, ``committed``, ``delivered``), and the source's
    own objects, which it does not."""

    @classmethod
    def of(cls, settings: ReadOptions) -> Query:
        """Against a real cluster."""
        return cls(BrokerClient(settings.service_url, settings.poll_timeout_ms / 1000), settings)

    def __init__(self, cluster: FakeCluster | BrokerClient, settings: ReadOptions) -> None:
        self._client = cast(BrokerClient, cluster)
        self._options = settings
        self.offsets: list[Form] = []
        self.committed = 0  # micro-batches
        self.delivered: dict[int, list[int]] = {}
        self.lost_in_tasks = 0
        self.restart()

    def restart(self) -> None:
        self.planner = Planner(self._options, self._client)
        self._plan = MicroBatches(self.planner, self._options.limits)
        self._initial: Form | None = None

    def _initial_offset(self) -> Form:
        if self._initial is None:
            extents = self.planner.extents()
            starts = self.planner.starts(extents)
            offset = Offset(starts, created_of(extents), initial=True)
            self._initial = json.loads(json.dumps(to_offset(offset)))
        return self._initial

    def plan(self) -> bool:
        """Write the next micro-batch's end, unless one is planned already; whether there is one."""
        if len(self.offsets) > self.committed:
            return True
        start = self.offsets[-1] if self.offsets else self._initial_offset()
        offset = from_offset(start)
        if offset.initial:
            end = to_offset(Offset(offset.points, offset.created_ms, offset.lost))
        else:
            following = self._plan.after(offset, everything=False)
            end = start if following is None else to_offset(following)
        end = json.loads(json.dumps(end))
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def ranges(self) -> list[PlannedRange]:
        """Of the micro-batch that is planned."""
        number = self.committed
        first = from_offset(self.offsets[number - 1] if number else self._initial_offset())
        last = from_offset(self.offsets[number])
        if first.initial:
            return []
        starts = self._plan.starts_of(first, last)
        parts = []
        for name, point in sorted(last.points.items()):
            start, created_ms = starts[name], last.created_ms.get(name, UNKNOWN_MS)
            parts.append(
                PlannedRange(name, start.place, point.place, created_ms, start.offset, point.offset)
            )
        return [part for part in parts if not part.empty]

    def execute(self) -> None:
        """Run the planned micro-batch's tasks, and commit it."""
        values: list[int] = []
        lost = 0
        parts = self.ranges()
        self.planner.be_patient()
        self.planner.pin(parts)
        for part in parts:
            reports = LossReports(fatal=self._options.fail_on_data_loss)
            values += read_values(self._client, part, reports)
            lost += max(reports.messages, reports.losses)
        self.delivered[self.committed] = values
        self.lost_in_tasks += lost
        self.committed += 1

    def run(self) -> None:
        """Micro-batches until nothing is new."""
        for _ in range(100):
            if not self.plan():
                return
            self.execute()
        raise AssertionError("there is always something new")

    @property
    def values(self) -> list[int]:
        return [value for number in sorted(self.delivered) for value in self.delivered[number]]

    @property
    def lost(self) -> int:
        """As the last offset says, and the tasks."""
        told = from_offset(self.offsets[-1]).lost if self.offsets else {}
        return sum(told.values()) + self.lost_in_tasks
