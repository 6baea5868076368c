"""What a lane asks of a system's brokers, whatever their protocol: blocking, one request at a time,
without anything that happens by itself. What is sent, to whom and how often is the lane's to say,
so that a count has one reason.

Why: docs/adr/0172-pulsars-cluster-in-the-comparison.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.model.errors import MagnetarError

ALL: Final = -1
"""Of ``acks``."""
CONNECT_S: Final = 2.0
LOOK_S: Final = 1.5
"""For who leads: whoever does not answer soon is asked no more."""

Address = tuple[str, int]


class RefusedError(MagnetarError):
    """A broker has answered with an error. ``stays``: it leads, and may take the same later."""

    def __init__(self, text: str, stays: bool = False) -> None:
        super().__init__(text)
        self.stays = stays


class PartitionView(NamedTuple):
    """What a broker says of a topic. ``nodes``: where brokers are, by number."""

    leader: int
    epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    nodes: dict[int, Address]


class ReadMessage(NamedTuple):
    """A message as it is read. ``offset``: where it is, ascending; ``epoch``: of the leader that
    wrote it."""

    number: int
    offset: int
    epoch: int


class TopicLine(ABC):
    """A connection to one broker. After an ``OSError`` it is of no use."""

    @abstractmethod
    def begin(self) -> None:
        """Say who produces; once, before anything is sent. Raises ``OSError``,
        ``RefusedError``."""

    @abstractmethod
    def send(self, number: int, within_s: float) -> int:
        """The message ``number``, for which the broker may take so long; returns what ``answer``
        takes. Raises ``OSError``."""

    @abstractmethod
    def answer(self, sent: int, within_s: float) -> int:
        """Where it is stored, ascending. Answers are asked for in the order of what was sent.
        Raises ``OSError`` (``TimeoutError`` too), ``RefusedError``."""

    @abstractmethod
    def close(self) -> None: ...


class Speaker(ABC):
    """The producer and the reader of one topic, over all its lines: it knows who it is."""

    @abstractmethod
    def connect(self, address: Address) -> TopicLine:
        """Raises ``OSError``, ``RefusedError``."""

    @abstractmethod
    def begin_anew(self) -> None:
        """As another producer from now on."""

    @abstractmethod
    def read(self, address: Address, offset: int = 0) -> tuple[list[ReadMessage], int]:
        """(all that is there from ``offset`` on, an offset behind the last that may be read).
        Raises ``OSError``, ``MagnetarError``."""


class Protocol(ABC):
    """How brokers are asked about topics, and for whom."""

    @abstractmethod
    def look(self, address: Address, topic: str) -> PartitionView:
        """Raises ``OSError``, ``RefusedError``."""

    @abstractmethod
    def create_topic(
        self, address: Address, topic: str, replicas: int, configs: Mapping[str, str]
    ) -> None:
        """With one partition. Raises ``OSError``, ``RefusedError``."""

    @abstractmethod
    def speaker(self, topic: str, acks: int) -> Speaker:
        """With acks=all (-1) one whose messages are not stored twice."""
