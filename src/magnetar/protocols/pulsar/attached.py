"""Producers and consumers that clients have, counted: those of a connection, those of all, and the
bytes of names and properties that are kept for them. Pure.

A connection is cheap for who opens it, and each producer or consumer on it costs the broker some
kilobytes, and what its client says of it, for as long as it is there. Topics and subscriptions have
bounds of their own, which who makes new ones does not meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from magnetar.config import BrokerConfig
from magnetar.model.errors import TooManyConnectionsError


class Described(Protocol):
    """A producer or a consumer, with what its client calls it and says of it."""

    @property
    def name(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


T = TypeVar("T", bound=Described)


@dataclass(slots=True)
class AttachedTotals:
    """Over all connections."""

    config: BrokerConfig
    count: int = 0
    byte_count: int = 0

    def check_room(self, of_connection: int) -> None:
        """Whether there may be one more, on a connection that has ``of_connection``. Raises
        ``TooManyConnectionsError``."""
        config = self.config
        if of_connection >= config.attached_per_connection_max:
            raise TooManyConnectionsError(
                f"this connection has {of_connection} producers and consumers, the most allowed "
                "(broker.attached_per_connection_max): close some, or use another connection"
            )
        if self.count >= config.attached_max:
            raise TooManyConnectionsError(
                f"this broker has {self.count} producers and consumers, the most allowed "
                "(broker.attached_max)"
            )
        if self.byte_count >= config.attached_bytes_max:
            raise TooManyConnectionsError(
                f"producers and consumers of this broker have names and properties of "
                f"{self.byte_count} bytes, the most allowed (broker.attached_bytes_max): give them "
                "shorter ones"
            )

    def added(self, item: Described) -> None:
        self.count += 1
        self.byte_count += kept_bytes(item)

    def removed(self, item: Described) -> None:
        self.count -= 1
        self.byte_count -= kept_bytes(item)


def kept_bytes(item: Described) -> int:
    """About: characters are taken for bytes."""
    pairs = item.properties.items()
    return len(item.name) + sum(len(key) + len(value) for key, value in pairs)


class Attached(dict[int, T]):
    """A connection's producers, or its consumers, by the ids that its client gave them."""

    def __init__(self, totals: AttachedTotals) -> None:
        super().__init__()
        self._totals = totals

    def __setitem__(self, number: int, item: T) -> None:
        old = self.get(number)
        if old is not None:
            self._totals.removed(old)
        super().__setitem__(number, item)
        self._totals.added(item)

    def __delitem__(self, number: int) -> None:
        self._totals.removed(self[number])
        super().__delitem__(number)

    def pop(self, number: int, default: Any = None) -> Any:
        """None for one that is not there."""
        found = self.get(number)
        if found is None:
            return default
        del self[number]
        return found

    def clear(self) -> None:
        for item in self.values():
            self._totals.removed(item)
        super().clear()
