"""What this process's partitions take of its disk, as Kafka's admins ask for it
(``protocols.kafka.services.PartitionDirectory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from magnetar.env.files.disk import DiskSpace
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.serving.partition_names import DEFAULT
from magnetar.log.policy import PieceRule
from magnetar.protocols.kafka.services import KeptReplica


class HostDirectory:
    """Of one ``PartitionHost``."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    @property
    def path(self) -> str:
        return str(self._host.directory.path.absolute())

    @property
    def pieces(self) -> PieceRule:
        limits = self._host.directory.policy.segments
        return PieceRule(limits.segment_bytes_max, limits.segment_age_ms_max)

    async def space(self) -> DiskSpace:
        """Raises ``OSError``."""
        return await self._host.space()

    def kept(self) -> Sequence[KeptReplica]:
        """Sizes are read while lanes append: each is one that it had."""
        return [
            KeptReplica(
                kafka_name(topic),
                number,
                replica.source.byte_count,
                max(0, replica.high_watermark - replica.source.log_end),
            )
            for (topic, number), replica in sorted(self._host.replicas.items())
            if replica.failure is None
        ]


def kafka_name(topic: str) -> str:
    """Of a partition's topic, by its directory's name (``partition_names``)."""
    words = unquote(topic).split("/", len(DEFAULT))
    if len(words) <= len(DEFAULT):
        return unquote(topic)
    tenant, namespace, _, local = words
    return f"{tenant}/{namespace}/{local}"
