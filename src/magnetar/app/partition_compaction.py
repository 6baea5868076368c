"""Compaction of this process's replicas of partitions: what its policies say of them, its metrics,
and its health.

Why: docs/adr/0173-partitions-are-compacted.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from magnetar.app.checks import NAMED_MAX
from magnetar.app.partition_directory import kafka_name
from magnetar.cluster.topic_name import parse_topic
from magnetar.config import PartitionConfig
from magnetar.env.health import WELL, Check, PartHealth
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.compaction_rounds import CompactionCounts, CompactionRounds
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.limits import Kept
from magnetar.log.partition.serving.keeping import kept_of
from magnetar.metrics import Metrics
from magnetar.model.errors import InvalidTopicNameError, TopicNotFoundError
from magnetar.topics.policies_in_force import PoliciesInForce


class PartitionCompaction:
    """Of one ``PartitionHost``; ``run`` until cancelled."""

    def __init__(
        self,
        host: PartitionHost,
        policies: PoliciesInForce,
        config: PartitionConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._policies = policies
        self._folded = CompactionCounts()
        self._rounds = CompactionRounds(
            host,
            self._kept_of,
            now_ms,
            config.compaction_interval_ms,
            config.compaction_key_bytes_max,
        )
        self.run = self._rounds.run

    async def _kept_of(self, partition: Partition) -> Kept | None:
        try:
            name = parse_topic(kafka_name(partition[0]))
            return kept_of((await self._policies.of(name)).log)
        except (InvalidTopicNameError, TopicNotFoundError):
            return None  # its files wait for what becomes of them

    def fold(self, metrics: Metrics) -> None:
        """What was counted since it was folded in last."""
        counts, before = self._rounds.counts, self._folded
        metrics.compaction_logs.set(counts.compacted_logs)
        metrics.compaction_dirty_ratio_max.set(counts.dirty_ratio)
        metrics.compaction_failing_logs.set(len(self._rounds.trouble))
        metrics.compaction_passes_total.inc(counts.passes - before.passes)
        metrics.compaction_failures_total.inc(counts.failures - before.failures)
        metrics.compaction_read_bytes_total.inc(counts.read_bytes - before.read_bytes)
        # A log whose small segments become one may be a little larger afterwards.
        metrics.compaction_freed_bytes_total.inc(max(0, counts.freed_bytes - before.freed_bytes))
        metrics.compaction_seconds_total.inc(counts.seconds - before.seconds)
        self._folded = replace(counts, freed_bytes=max(counts.freed_bytes, before.freed_bytes))

    def check(self) -> Check:
        """No log fails to be compacted."""

        async def check() -> PartHealth:
            trouble = dict(self._rounds.trouble)
            if not trouble:
                return WELL
            names = [f"{kafka_name(topic)}-{number}" for topic, number in sorted(trouble)]
            first = trouble[min(trouble)]
            return PartHealth(
                False,
                f"{len(names)} partitions are not compacted: {', '.join(names[:NAMED_MAX])}"
                + (", ..." if len(names) > NAMED_MAX else "")
                + f" ({names[0]}, tried {first.times} times: {first.why})",
                "they grow until they are; mend what is said, or set their topics' cleanup.policy "
                "to delete; they are tried again by themselves",
            )

        return check
