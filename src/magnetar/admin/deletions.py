"""``DeletionService``: namespaces and tenants are deleted.

Rules:

* What has topics is deleted with ``force`` only; a refusal changes nothing, and sends nobody away.
* A namespace says that it goes before it is looked at for the last time, so what others make in it
  meanwhile is found here, or taken back there (``cluster.namespaces``).
* Its node goes last. A deletion by force deletes what it can, names what is left and why, and can
  be asked for again; until then nothing is opened in the namespace. (A metadata store that does not
  answer ends it at once.) Without force nothing was deleted, and the namespace stays.
* What the platform makes again by itself is not deleted (``KEPT``).

Why: docs/adr/0187-namespaces-say-that-they-go.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from magnetar.admin.brokers import BrokerService
from magnetar.admin.topics import OPENED_AT_A_TIME, TopicService
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.topic_name import (
    DEFAULT_NAMESPACE,
    KAFKA_GROUPS,
    TopicName,
    parse_namespace,
    parse_tenant,
)
from magnetar.model.errors import (
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.topics.partitioned_deletion import STORE_AWAY
from magnetar.topics.parts import each_of, together

log = structlog.get_logger(__name__)

KEPT: Final[Mapping[str, str]] = {
    DEFAULT_NAMESPACE: "it is made at every start, for topics that are named without one",
    KAFKA_GROUPS: "groups and transactions of Kafka's clients are kept there",
}
UNDO_WAITS_S: Final = (0.0, 1.0, 5.0)
ROUNDS_MAX: Final = 5
"""Looks at a namespace that is being emptied; what came while it was not yet known to go."""


class DeletionService:
    def __init__(self, control: ControlPlane, topics: TopicService, brokers: BrokerService) -> None:
        self._control = control
        self._namespaces = control.namespaces
        self._topics = topics
        self._brokers = brokers

    async def delete_tenant(self, tenant: str, force: bool = False) -> None:
        """With ``force`` with its namespaces. Raises ``TopicNotFoundError``, ``NotAllowedError``,
        and as ``delete_namespace``."""
        name = parse_tenant(tenant)
        for namespace in await self._namespaces.namespaces(name):
            self._check_deletable(namespace)
        if force:
            found = await self._namespaces.namespaces(name)
            what = f"namespaces of tenant {name}"
            await each_of(what, found, "deleted", self._delete_namespace, str, STORE_AWAY)
        await self._namespaces.delete_tenant(name)
        log.info("tenant is deleted", tenant=name)

    async def _delete_namespace(self, namespace: str) -> None:
        with suppress(TopicNotFoundError):  # another was faster
            await self.delete_namespace(namespace, force=True)

    async def delete_namespace(self, namespace: str, force: bool = False) -> None:
        """With ``force`` with its topics, whoever is connected to them. Raises
        ``TopicNotFoundError``, ``NotAllowedError`` while it has topics, and what deleting topics
        does."""
        name = parse_namespace(namespace)
        await self._namespaces.value(name)
        self._check_deletable(name)
        if not force:
            await self._check_empty(name)
        version = await self._namespaces.begin_deletion(name)
        if force:
            await self._empty(name)
            await self._end(name, version)
        else:
            await self._end_empty(name, version)
        log.info("namespace is deleted", namespace=name)

    async def _end_empty(self, namespace: str, version: int) -> None:
        """Nothing of it was deleted: whatever keeps it from going, it stays as it was."""
        try:
            await self._check_empty(namespace)  # what was made until it was known to go
            await self._end(namespace, version)
        except BaseException:
            await self._undo(namespace)
            raise

    async def _end(self, namespace: str, version: int) -> None:
        await self._forget(namespace)
        await self._namespaces.end_deletion(namespace, version)

    async def _undo(self, namespace: str) -> None:
        """The store may be away for a moment, as for what failed before."""
        for wait_s in UNDO_WAITS_S:
            await asyncio.sleep(wait_s)
            try:
                await self._namespaces.undo_deletion(namespace)
            except TopicNotFoundError:
                return  # it is gone, though nobody could say so
            except MagnetarError as error:
                log.warning(
                    "a namespace is not deleted, and nothing is opened in it before somebody asks "
                    "again",
                    namespace=namespace,
                    error=str(error),
                )
            else:
                return

    def _check_deletable(self, namespace: str) -> None:
        why = KEPT.get(namespace)
        if why is not None:
            raise NotAllowedError(f"namespace {namespace} cannot be deleted: {why}")

    async def _check_empty(self, namespace: str) -> None:
        """Raises ``NotAllowedError`` if it has a topic: then it stays, whoever began to delete
        it."""
        partitioned, topics = await self._topics.all_of(namespace)
        topics = topics or partitioned  # of one that cannot be read no partition is known
        if topics:
            await self._namespaces.undo_deletion(namespace)
            shown = ", ".join(each.local for each in topics[:5])
            raise NotAllowedError(
                f"namespace {namespace} has {len(topics)} topics ({shown[:500]}"
                f"{', ...' if len(topics) > 5 else ''}); delete them first, or force it"
            )

    async def _empty(self, namespace: str) -> None:
        for _ in range(ROUNDS_MAX):
            partitioned, topics = await self._topics.all_of(namespace)
            if not partitioned and not topics:
                return
            failed: dict[str, MagnetarError] = {}
            for whole in partitioned:
                await self._tried(self._delete_partitioned, whole, failed)
            gone = set(partitioned)
            rest = [each for each in topics if each.partitioned not in gone]
            for start in range(0, len(rest), OPENED_AT_A_TIME):
                some = rest[start : start + OPENED_AT_A_TIME]
                trying = (self._tried(self._delete, each, failed) for each in some)
                for outcome in await asyncio.gather(*trying, return_exceptions=True):
                    if outcome is not None:  # when nothing is under way any more
                        raise outcome
            if failed:
                count = len(partitioned) + len(rest)
                well = f"{count - len(failed)} of the {count} topics of {namespace} are deleted"
                raise together(well, failed)
        raise ServiceNotReadyError(
            f"namespace {namespace} gets topics faster than they are deleted; delete it again"
        )

    async def _tried(
        self,
        delete: Callable[[TopicName], Awaitable[None]],
        topic: TopicName,
        failed: dict[str, MagnetarError],
    ) -> None:
        """What keeps one topic keeps none of the others. Raises ``STORE_AWAY``."""
        try:
            await delete(topic)
        except STORE_AWAY:
            raise
        except MagnetarError as error:
            failed[topic.local] = error

    async def _delete_partitioned(self, topic: TopicName) -> None:
        with suppress(TopicNotFoundError):  # another was faster
            await self._topics.delete_partitioned(str(topic), force=True)

    async def _delete(self, topic: TopicName) -> None:
        with suppress(TopicNotFoundError):  # another was faster
            await self._topics.delete_wherever(topic, force=True)

    async def _forget(self, namespace: str) -> None:
        """What is said of topics that are not there, and who serves them: one that is made anew
        under its name has nothing of it."""
        await self._brokers.unload_namespace(namespace)
        await self._control.policies.forget_namespace(namespace)
        await self._control.schemas.forget_namespace(namespace)
        await self._control.counters.forget_namespace(namespace)
        await self._control.partitioned.forget_namespace(namespace)
        await self._topics.forget_namespace(namespace)
