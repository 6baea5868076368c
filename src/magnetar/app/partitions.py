"""Builds what keeps partitions: the directory of this process's replicas, and the logs on them.

Why: docs/adr/0111-partitions-behind-the-seam.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from magnetar.app.ending import end_within
from magnetar.app.process import Process
from magnetar.app.storage import Cluster
from magnetar.config import Config, PartitionConfig
from magnetar.env.files.disk_space import SpaceRules
from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.log.engines.partition_store import PartitionLogStore
from magnetar.log.managed.store import ManagedLogStore
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.log.partition.replication.state_witness import StateWitness

PARTITIONS_END_S: Final = 10.0
BATCH_SLACK_BYTES: Final = 64 << 10
"""What an entry needs beside the largest message: metadata, and what it is wrapped in."""
NOT_SET: Final = Path()


def with_partitions(config: Config, data_dir: Path) -> Config:
    """Of a process that has a data directory of its own: partitions lie there, unless it is said
    where."""
    if config.partition.directory != NOT_SET:
        return config
    return replace(config, partition=replace(config.partition, directory=data_dir / "partitions"))


def partition_policy(config: PartitionConfig, message_bytes_max: int) -> PartitionPolicy:
    """What holds for the files of all partitions."""
    return PartitionPolicy(
        sync=SyncPolicy(config.sync),
        sync_interval_ms=config.sync_interval_ms,
        segments=SegmentLimits(
            segment_bytes_max=config.segment_bytes_max,
            segment_age_ms_max=config.segment_age_ms_max,
        ),
        batch_bytes_max=message_bytes_max + BATCH_SLACK_BYTES,
    )


def space_rules(config: PartitionConfig) -> SpaceRules:
    """What is kept free of the disk."""
    return SpaceRules(
        config.disk_warn_percent / 100,
        config.disk_full_percent / 100,
        min(config.disk_low_water_percent, config.disk_full_percent) / 100,
        config.disk_free_bytes_least,
    )


async def open_partitions(process: Process, cluster: Cluster) -> PartitionLeading | None:
    """This process's replicas; None if it is to keep none. Raises ``StartError``,
    ``OtherClusterError``, ``OSError``."""
    metadata = cluster.metadata
    config, outside, stack = process.config, process.outside, process.stack
    path = config.partition.directory
    if path == NOT_SET:
        return None
    # Two processes would write the same files.
    stack.callback(outside.lock_directory(path, "partitions"))
    scope = TaskScope("partitions", ends_role(process.fate.fail))
    host = await PartitionHost.open(
        outside.disk,
        path,
        partition_policy(config.partition, config.broker.message_bytes_max),
        scope,
        now_ms=outside.clock_ms,
        draw=outside.new_token,
        broker=config.partition.broker_id,
        lag_ms_max=config.partition.replica_lag_ms_max,
        cluster=cluster.instance_id,
        witness=StateWitness(metadata, cluster.manager.stored_instance_id),
        grace_ms=config.partition.deletion_grace_ms,
        space=space_rules(config.partition),
        look_s=config.partition.disk_check_interval_ms / 1000,
    )
    end_within(stack, PARTITIONS_END_S, "partitions", host.close)
    return PartitionLeading(
        host,
        StateStore(metadata),
        replication_factor=config.partition.replication_factor,
        min_isr=config.partition.min_insync_replicas,
    )


def partition_logs(
    process: Process, metadata: MetadataStore, ledgers: ManagedLogStore, leading: PartitionLeading
) -> PartitionLogStore:
    """The logs on them. Closed with the store that joins both engines."""
    return PartitionLogStore(
        metadata,
        ledgers,
        leading,
        process.outside.disk,
        tail_bytes_max=process.config.partition.tail_cache_bytes,
        now_ms=process.outside.clock_ms,
    )
