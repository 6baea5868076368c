"""What a lane waits for before it counts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from magnetar.log.policy import Engine
from magnetar.model.errors import MagnetarError
from magnetar.proving import client as client_module
from magnetar.proving.client import BrokerLine, KafkaProtocol
from magnetar.proving.counting import Expected, LaneSpec
from magnetar.proving.lane import Acknowledged, TopicLane, last_told
from magnetar.proving.speaking import Address, PartitionView, ReadMessage
from magnetar.proving.stage import Stage

T = TypeVar("T")


class _Stage:
    """Broker 2 leads, and is at ``address``."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.protocol = KafkaProtocol()
        self.refused: list[str] = []
        self.not_asked: list[int | None] = []

    def view(self, _topic: str, but: int | None = None) -> PartitionView:
        self.not_asked.append(but)
        return PartitionView(2, 1, (1, 2), (2,), {2: self.address})

    def wait(self, what: Callable[[], T | None], _said: str) -> T:
        while True:
            try:
                if found := what():
                    return found
            except MagnetarError as error:
                self.refused.append(str(error))


def test_what_the_leader_has_acknowledged_is_read_before_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With acks=1 the answer comes before followers have it: 50 of a lane were counted as lost that
    could not be read yet."""
    readable = iter((1, 2, 3))

    def fetch(_line: BrokerLine, _topic: str, offset: int) -> tuple[list[ReadMessage], int, int]:
        end = next(readable)
        return [ReadMessage(number, number, 1) for number in range(offset, end)], end, end

    monkeypatch.setattr(client_module, "fetch", fetch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stage = _Stage(listener.getsockname())
        spec = LaneSpec("lane", Engine.PARTITION, 1, Expected())
        lane = TopicLane(cast(Stage, stage), spec, "topic", leader=1)
        lane.acknowledged = [Acknowledged(n, 2, n, float(n)) for n in range(3)]
        lane.doubted = 1
        assert [each.number for each in lane.read()] == [0, 1, 2]
    assert len(stage.refused) == 2
    assert "acknowledged offset 2" in stage.refused[0]
    assert set(stage.not_asked) == {1}, "who is cut off would send it to itself"


def test_what_a_leader_lost_before_it_led_again_is_not_waited_for() -> None:
    told = [
        Acknowledged(0, 1, 0, 1.0),
        Acknowledged(1, 1, 250, 2.0),
        Acknowledged(4, 1, 7, 5.0),  # after it had lost everything, and led again
        Acknowledged(3, 2, 90, 4.0),
    ]
    assert last_told(told, 1) == 7
    assert last_told(told, 2) == 90
    assert last_told(told, 3) == -1
