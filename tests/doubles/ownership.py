"""An ownership in which some topics are another broker's."""

from __future__ import annotations

from collections.abc import Callable

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At, Owner, SoleBroker
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import ServiceNotReadyError

ELSEWHERE = At("pulsar://other:6650", "http://other:8080")


class Divided(SoleBroker):
    """Topics that ``theirs`` names are served at ``at``; a question never gives them to us."""

    def __init__(
        self, control: ControlPlane, theirs: Callable[[TopicName], bool], at: At = ELSEWHERE
    ) -> None:
        super().__init__(control.namespaces)
        self.claims: list[TopicName] = []
        self._theirs = theirs
        self._at = at

    async def owner_of(self, name: TopicName) -> Owner | None:
        return self._at if self._theirs(name) else await super().owner_of(name)

    async def locate(self, name: TopicName, authoritative: bool = False) -> Owner:
        return self._at if self._theirs(name) else await super().locate(name, authoritative)

    async def claim(self, name: TopicName) -> None:
        self.claims.append(name)
        self.check(name)

    def check(self, name: TopicName) -> None:
        if self._theirs(name):
            raise ServiceNotReadyError(f"topic {name} is served by {self._at.service_url}")

    async def verify(self, name: TopicName) -> None:
        self.check(name)


def divide(
    control: ControlPlane, theirs: Callable[[TopicName], bool], at: At = ELSEWHERE
) -> Divided:
    """From now on those topics are another broker's."""
    made = Divided(control, theirs, at)
    object.__setattr__(control, "ownership", made)
    object.__setattr__(control, "bundles", made)
    return made
