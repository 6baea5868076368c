"""Where a topic is served, and how many partitions it has."""

from __future__ import annotations

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.protocols.pulsar.services import Services


async def find_service_url(services: Services, name: TopicName, listener: str = "") -> str:
    """The ``pulsar://`` URL of the broker that serves ``name``: this one. The topic need not
    exist. Raises ``TopicNotFoundError`` for an unknown namespace."""
    if listener:
        # Clients tell this case from others, which they retry, by these very words.
        raise ServiceNotReadyError(f"the broker do not have {listener} listener")
    await services.namespaces.check(name)
    return services.service_url


async def find_partitions(services: Services, name: TopicName, create: bool) -> int:
    """The number of partitions, 0 for a topic without; with ``create`` a topic that does not
    exist may be made as a partitioned one, if brokers are set to. Raises ``TopicNotFoundError``
    for an unknown namespace, and, without ``create``, for an unknown topic."""
    namespaces, config = services.namespaces, services.config
    await namespaces.check(name)
    count = await namespaces.partitions(name)
    if count or services.topics.find(name) is not None:
        return count
    automatic = config.auto_create_topics and config.auto_create_partitions > 0
    if create and not (automatic and name.partition < 0):
        return 0
    if await services.topics.exists(name):
        return 0
    if not create:
        raise TopicNotFoundError(f"topic {name} does not exist")
    await namespaces.create_partitioned(name, config.auto_create_partitions)
    return await namespaces.partitions(name)
