"""What a group has committed, as its members ask for it when they begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.offset_messages import OffsetFetchRequest
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar_sim.kafka.group_history import GroupHistory
from magnetar_sim.kafka.kafka_client import GROUP, KafkaClient, Place

FETCH_VERSION: Final = 7


async def fetch_committed(
    client: KafkaClient, group: GroupHistory, name: str, places: Sequence[Place], stable: bool
) -> dict[Place, int]:
    """Where to begin; as often as it takes. ``stable``: what an open transaction is to commit is
    waited for; ``name``: who asks."""
    while True:
        least = {place: group.least(place) for place in places}
        topics: dict[str, TopicPartitions] = {}
        for topic_name, index in places:
            topics.setdefault(topic_name, TopicPartitions(topic_name, [])).partitions.append(index)
        request = OffsetFetchRequest(group.name, [*topics.values()], require_stable=stable)
        answer = await client.settled(
            GROUP,
            group.name,
            (ApiKey.OFFSET_FETCH, FETCH_VERSION, request),
            lambda said: int(said.error_code),
        )
        if answer.error_code != ErrorCode.NONE:
            client.broken(f"{name} fetches offsets: {answer.error_code}")
        parts = {
            (topic.name, part.index): part for topic in answer.topics for part in topic.partitions
        }
        codes = {part.error_code for part in parts.values()} - {ErrorCode.NONE}
        if not codes:
            return {
                place: group.fetch(place, parts[place].offset, least[place], name)
                for place in places
            }
        client.note(f"{name} fetches offsets: {codes}")
        if codes != {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
            client.broken(f"{name} fetches offsets: {codes}")
        await client.pause()
