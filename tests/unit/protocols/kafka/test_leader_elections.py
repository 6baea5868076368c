"""ElectLeaders: what each partition is answered."""

from __future__ import annotations

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.protocols.kafka.services import KnownReplicas
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.partition_messages import ElectLeadersRequest, PartitionsOfTopic
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run

NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


class Replicated:
    """Partitions of ``p``, by their numbers, with what an election makes of each."""

    def __init__(self, *partitions: tuple[KnownReplicas, KnownReplicas | None]) -> None:
        self.partitions = {
            parse_topic(f"p-partition-{number}"): each for number, each in enumerate(partitions)
        }
        self.asked: list[tuple[int, bool]] = []

    def replicas_of(self, name: TopicName) -> KnownReplicas | None:
        return self.partitions[name][0] if name in self.partitions else None

    async def elect(self, name: TopicName, unclean: bool) -> KnownReplicas | None:
        self.asked.append((name.partition, unclean))
        return self.partitions[name][1]


def known(leader: int) -> KnownReplicas:
    return KnownReplicas(leader, 1, (1, 2), (2,))


async def elected(
    peer: KafkaPeer, kind: int, numbers: list[int] | None
) -> dict[tuple[str, int], int]:
    asked = None if numbers is None else [PartitionsOfTopic("p", numbers)]
    answer = await peer.ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest(kind, asked))
    assert answer.error_code == 0
    return {
        (topic.name, each.index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }


def test_preferred_replicas_lead_where_they_can() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        await services.control.partitioned.create(parse_topic("p"), 4)
        replicated = services.replicated = Replicated(  # type: ignore[assignment]
            (known(1), None), (known(2), known(1)), (known(2), known(2)), (known(2), None)
        )
        codes = {
            ("p", 0): NOT_NEEDED,
            ("p", 1): ErrorCode.NONE,
            ("p", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ("p", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("p", 4): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await elected(peer, 0, [0, 1, 2, 3, 4]) == codes
        assert replicated.asked == [(1, False), (2, False), (3, False)]
        del codes["p", 0], codes["p", 4]
        assert await elected(peer, 0, None) == codes, "those that have another leader, or none"

    run(scenario)


def test_any_replica_leads_what_nobody_does() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        await services.control.partitioned.create(parse_topic("p"), 3)
        replicated = services.replicated = Replicated(  # type: ignore[assignment]
            (known(2), None), (known(-1), known(2)), (known(-1), known(-1))
        )
        assert await elected(peer, 1, [0, 1, 2]) == {
            ("p", 0): NOT_NEEDED,
            ("p", 1): ErrorCode.NONE,
            ("p", 2): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        }
        assert replicated.asked == [(1, True), (2, True)]
        answer = await peer.ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest(2, None))
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    run(scenario)
