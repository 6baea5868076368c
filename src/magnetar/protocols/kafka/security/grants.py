"""What the client of one connection may do, as far as it was asked lately.

Each request asks once for each topic, group or transactional id that it names, never for a record.
What was granted is remembered for ``KEPT_S``: no longer does a permission that was taken away go on
to count on connections that are open. What was refused is asked anew each time.

=====================  =======================================================================
of                     in Kafka's requests
=====================  =======================================================================
a topic                ``produce``, ``consume``, either of both to see it, its tenant's admin
a group                ``consume`` of the namespace that its name says (``names.namespace_of``)
a transactional id     ``produce`` of the namespace that its name says
the cluster            super-users: other brokers are
=====================  =======================================================================

Why: docs/adr/0158-kafkas-requests-are-authorized-in-one-place.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.cluster.security.access import Access
from magnetar.cluster.security.permissions import Action
from magnetar.cluster.security.principals import Principal
from magnetar.cluster.topic_name import TopicName, parse_namespace
from magnetar.model.errors import InvalidTopicNameError, NotAllowedError, TopicNotFoundError
from magnetar.protocols.kafka.names import namespace_of, topic_of

KEPT_S: Final = 10.0
KEPT_MAX: Final = 10_000


class Grants:
    """Of a client that is known. ``now_s``: of any clock that goes forward."""

    def __init__(self, access: Access, principal: Principal, now_s: Callable[[], float]) -> None:
        self._access = access
        self._now_s = now_s
        self._until_s: dict[tuple[Action, str], float] = {}
        self.principal = principal

    @property
    def cluster(self) -> bool:
        """It may do what concerns no topic, group or transaction of somebody's."""
        return self._access.is_super_user(self.principal)

    def known(self, action: Action, name: str) -> bool:
        """Whether the topic was granted lately: an answer in this turn of the loop."""
        until_s = self._until_s.get((action, name))
        return until_s is not None and self._now_s() < until_s

    async def topic(self, action: Action, name: str) -> bool:
        """``name``: as Kafka's clients say it. Raises ``MetadataError``."""
        if self.known(action, name):
            return True
        try:
            topic = topic_of(name)
        except (InvalidTopicNameError, NotAllowedError):
            # It is no topic's: the request's own handler says what is wrong with it.
            return True
        granted = await self._allows(action, topic)
        if granted:
            if len(self._until_s) >= KEPT_MAX:
                self._until_s.clear()
            self._until_s[action, name] = self._now_s() + KEPT_S
        return granted

    async def group(self, group_id: str) -> bool:
        """Raises ``MetadataError``."""
        return await self._allows(Action.CONSUME, namespace_of(group_id))

    async def transactional_id(self, name: str) -> bool:
        """Raises ``MetadataError``."""
        return await self._allows(Action.PRODUCE, namespace_of(name))

    async def _allows(self, action: Action, of: TopicName | str) -> bool:
        if self.cluster:
            return True
        try:
            if isinstance(of, str):
                parse_namespace(of)
            return await self._access.allows(self.principal, action, of)
        except (InvalidTopicNameError, TopicNotFoundError):  # of the namespace
            return False
