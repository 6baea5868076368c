"""One lane at work: a producer that sends one numbered message after the other and waits for each,
and in the end reads all that is there.

Rules:

* A number that is not acknowledged is sent again, to whoever leads then, as a client does, until it
  is. So a lane's acknowledged numbers ascend, and what comes out of order was not sent so.
* With acks=all the producer is one whose messages are not stored twice; else it is not.
* Leaders are looked up at the broker that the lane was at last, or, when that has failed it, at
  the others first: a broker that is cut off says what was true.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.log.policy import Engine
from magnetar.model.errors import MagnetarError
from magnetar.proving.counting import Back, LaneSpec, Observed, count
from magnetar.proving.speaking import Address, ReadMessage, RefusedError, TopicLine
from magnetar.proving.stage import Stage

ANSWER_S: Final = 1.5
"""After which a message is sent again."""
HELD_S: Final = 30.0
"""For a message whose answer is not waited for."""
PAUSE_S: Final = 0.1


class Acknowledged(NamedTuple):
    """``leader``: the broker that said so, ``offset``: where; ``at_s``: when, monotonic."""

    number: int
    leader: int
    offset: int
    at_s: float


def last_told(acknowledged: Sequence[Acknowledged], leader: int) -> int:
    """The offset of what that broker acknowledged last, by the clock; -1: of nothing. It may have
    led before, and have lost since what had greater ones."""
    told = [each for each in acknowledged if each.leader == leader]
    return max(told, key=lambda each: each.at_s).offset if told else -1


class TopicLane:
    """See the module's text. One thread at a time."""

    def __init__(self, stage: Stage, spec: LaneSpec, topic: str, leader: int) -> None:
        self.spec = spec
        self.topic = topic
        self.first_leader = leader
        self.acknowledged: list[Acknowledged] = []
        self.refused = 0
        """Messages that were not taken while the fault lasted, where that is counted."""
        self.resent = 0
        self.next_number = 0
        self.doubted: int | None = None
        """The broker that failed last: what it says of leaders is believed last."""
        self._stage = stage
        self._speaker = stage.protocol.speaker(topic, spec.acks)
        self._line: TopicLine | None = None
        self._at = leader

    @property
    def at(self) -> int:
        """The broker that the lane was at last."""
        return self._at

    @property
    def told_s(self) -> float:
        """When the last message was acknowledged."""
        return self.acknowledged[-1].at_s if self.acknowledged else 0.0

    # -- producing ----------------------------------------------------------------------------

    def produce(self, messages: int, until: Callable[[], bool] = lambda: False) -> int:
        """That many more are acknowledged, if it is not over before; how many were."""
        for done in range(messages):
            while not self._send():
                if until():
                    return done
                time.sleep(PAUSE_S)
            if until():
                return done + 1
        return messages

    def _send(self) -> bool:
        """The next number, once."""
        try:
            line = self._connected()
            offset = self._ask(line)
        except (OSError, MagnetarError) as error:
            self._failed(error)
            return False
        self.acknowledged.append(Acknowledged(self.next_number, self._at, offset, time.monotonic()))
        self.next_number += 1
        return True

    def _ask(self, line: TopicLine) -> int:
        try:
            return line.answer(line.send(self.next_number, ANSWER_S), ANSWER_S)
        except OSError:
            self.resent += 1  # it may be stored, and is sent again
            raise

    def _connected(self) -> TopicLine:
        if self._line is None:
            view = self._stage.view(self.topic, but=self.doubted)
            if view.leader not in view.nodes:
                raise MagnetarError(f"{self.topic} has no leader now")
            self._line = self._speaker.connect(view.nodes[view.leader])
            self._at = view.leader
            self._line.begin()
        return self._line

    def _failed(self, error: Exception) -> None:
        if isinstance(error, RefusedError) and error.stays:
            return
        if self._line is not None:
            self._line.close()
            self._line = None
            self.doubted = self._at

    # -- sending without waiting --------------------------------------------------------------

    def send_unanswered(self, messages: int) -> list[int]:
        """Send that many to the leader that the lane is at, and wait for none."""
        line = self._connected()
        sent = []
        for _ in range(messages):
            sent.append(line.send(self.next_number, HELD_S))
            self.next_number += 1
        self._held = line, sent, self.next_number - messages
        self._line = None  # the lane goes on with another, and by another name
        self._speaker.begin_anew()
        self.doubted = self._at
        return sent

    def answers(self, within_s: float) -> list[Acknowledged]:
        """To what was sent without waiting: those that were acknowledged."""
        line, sent, first = self._held
        found = []
        try:
            for number, each in enumerate(sent, first):
                with contextlib.suppress(RefusedError):
                    offset = line.answer(each, within_s)
                    found.append(Acknowledged(number, self.first_leader, offset, time.monotonic()))
        except OSError:
            pass  # the broker has ended
        finally:
            line.close()
        self.acknowledged += found
        return found

    # -- reading ------------------------------------------------------------------------------

    def wait_readable(self) -> None:
        """Until all that was acknowledged may be read: every copy that counts has it."""
        last = self.acknowledged[-1].offset

        def readable() -> bool:
            return self._speaker.read(self._leader()[1], last + 1)[1] > last

        self._stage.wait(readable, f"{self.topic} is readable up to {last}")

    def wait_in_sync(self) -> None:
        """Until every broker is in sync."""
        if self.spec.engine is Engine.PARTITION:
            wanted = self._stage.settings.brokers
            self._stage.wait(
                lambda: len(self._stage.view(self.topic).in_sync) == wanted,
                f"{self.topic} is in sync",
            )

    def led(self) -> bool:
        """Whether anybody leads it."""
        view = self._stage.view(self.topic)
        return view.leader in view.nodes

    def read(self) -> list[ReadMessage]:
        """All that is there, once what its leader has acknowledged may be read: with acks=1 that is
        later than the answer."""
        return self._stage.wait(lambda: (self._read(),), f"{self.topic} is read")[0]

    def _read(self) -> list[ReadMessage]:
        leader, address = self._leader()
        found, end = self._speaker.read(address)
        last = last_told(self.acknowledged, leader)
        if end <= last:
            raise MagnetarError(
                f"broker {leader} has acknowledged offset {last} of {self.topic}, and it may be "
                f"read up to {end}"
            )
        return found

    def _leader(self) -> tuple[int, Address]:
        """As others say than who failed last: one that is cut off takes itself for the leader."""
        view = self._stage.view(self.topic, but=self.doubted)
        if view.leader not in view.nodes:
            raise MagnetarError(f"{self.topic} has no leader")
        return view.leader, view.nodes[view.leader]

    # -- what has come of it ------------------------------------------------------------------

    def deposed(self, fault_s: float, read: Sequence[ReadMessage]) -> int:
        """How many messages its first leader acknowledged after the fault that it had not shared
        when the next leader began: those from the offset on at which the next epoch begins."""
        first = read[0].epoch
        begins = min((each.offset for each in read if each.epoch > first), default=None)
        return sum(
            begins is not None
            and each.leader == self.first_leader
            and each.at_s > fault_s
            and each.offset >= begins
            for each in self.acknowledged
        )

    def observed(self, fault_s: float, exposed: int, read: Sequence[ReadMessage]) -> Observed:
        """``fault_s``: when the lane's leader was lost, monotonic."""
        told = [each.number for each in self.acknowledged]
        lost, duplicated, reordered = count(told, [each.number for each in read])
        found = Observed(len(told), exposed, lost, duplicated, reordered)
        found.refused, found.resent = self.refused, self.resent
        after = [each for each in self.acknowledged if each.at_s > fault_s]
        if after:
            found.unavailable_s = min(each.at_s for each in after) - fault_s
            first = min(after, key=lambda each: each.at_s)
            found.back = Back.SAME if first.leader == self.first_leader else Back.ANOTHER
        return found

    def leave(self) -> None:
        """Another is to be asked who leads."""
        self.close()
        self.doubted = self._at

    def lose_line(self) -> None:
        """Whoever it was connected to is gone."""
        self.close()
        self.doubted = None

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
