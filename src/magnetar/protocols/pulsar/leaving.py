"""A consumer that was told SUCCESS here, and that another broker is to serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from magnetar.model.ids import Position
from magnetar.topics.consuming.subscription import Kind
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe


class Leaving:
    """``start``: what it reads first if its subscription is new, or a reader's. ``permits``: what
    its client has asked for. ``end_wait`` ends what is left of its time."""

    __slots__ = ("end_wait", "kind", "permits", "request", "service_url", "start", "topic")

    def __init__(
        self,
        topic: SubscribableTopic,
        request: CommandSubscribe,
        kind: Kind,
        start: Position,
        service_url: str,
    ) -> None:
        self.topic = topic
        self.request = request
        self.kind = kind
        self.start = start
        self.service_url = service_url
        self.permits = 0
        self.end_wait: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        return self.request.consumer_name

    @property
    def properties(self) -> Mapping[str, str]:
        return {item.key: item.value for item in self.request.metadata}

    def end(self) -> None:
        """It is on its way no more."""
        if self.end_wait is not None:
            self.end_wait()
