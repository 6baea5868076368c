"""How the faults of ``scenarios`` are made, on a stage of real processes.

Each function takes a ``Making`` and returns what was observed of each lane, by its name. The order
of effects is what makes a count exact, and is said where it matters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.log.policy import Engine
from magnetar.proving.counting import Back, Observed
from magnetar.proving.lane import TopicLane
from magnetar.proving.magnetar_stage import MagnetarStage
from magnetar.proving.network import CLIENT
from magnetar.proving.scenarios import AFTER, BEFORE, EXPOSED_MESSAGES, Scenario
from magnetar.proving.speaking import ALL
from magnetar.proving.stage import Settings, Stage

WAIT_S: Final = 90.0
PATIENCE_S: Final = 6.0
ALONE_S: Final = 12.0
"""Longer than it takes until the leader is alone in sync."""
LEADER_AWAY_S: Final = 12.0
PAUSED_MESSAGES: Final = 20
LEADS_ON_S: Final = 20.0
"""How long clients stay with a leader that is cut off, if it does not end before."""
NEVER_MS: Final = 600_000
SOON_MS: Final = 1500

Outcome = Mapping[str, Observed]
OpenStage = Callable[[Path, Settings], Stage]


class Making(NamedTuple):
    """``folder``: of the scenario, which nobody else uses; ``open_stage``: whose cluster it is."""

    scenario: Scenario
    folder: Path
    seed: int
    say: Callable[[str], None]
    open_stage: OpenStage = MagnetarStage

    def stage(self, settings: Settings) -> Stage:
        """To be entered."""
        return self.open_stage(self.folder, settings)


class Play:
    """The lanes of a scenario on a stage: all topics at one broker, ``leader``."""

    def __init__(self, making: Making, stage: Stage) -> None:
        self.stage = stage
        self.lanes: list[TopicLane] = []
        leader: int | None = None
        for spec in making.scenario.lanes:
            topic, leader = stage.create(spec, making.scenario.name, leader)
            self.lanes.append(TopicLane(stage, spec, topic, leader))
        assert leader is not None
        self.leader = leader
        self.server = stage.leader_of(leader)

    def before(self) -> None:
        """Messages that are on every copy."""
        self.each(lambda lane: lane.produce(1))
        self.each(TopicLane.wait_in_sync)
        self.each(lambda lane: lane.produce(BEFORE - 1))
        self.each(TopicLane.wait_readable)

    def each(self, work: Callable[[TopicLane], object]) -> None:
        """In all lanes at once."""
        with ThreadPoolExecutor(len(self.lanes)) as threads:
            for done in [threads.submit(work, lane) for lane in self.lanes]:
                done.result()

    def expose(self, messages: int, patience_s: float) -> dict[TopicLane, int]:
        """All lanes send so many to the leader; how many each was told are stored. One gives up
        that was told of none for ``patience_s``."""
        told: dict[TopicLane, int] = {}

        def work(lane: TopicLane) -> None:
            begun_s = time.monotonic()

            def late() -> bool:
                return time.monotonic() - max(begun_s, lane.told_s) > patience_s

            told[lane] = lane.produce(messages, until=late)

        self.each(work)
        return told

    def doubt(self) -> None:
        """What the leader says of leaders is not asked first any more."""
        for lane in self.lanes:
            lane.doubted = self.leader

    def after(self, within_s: float = WAIT_S) -> None:
        """All lanes go on, with whoever leads."""
        late = _after(within_s)
        self.each(lambda lane: lane.produce(AFTER, until=late))

    def read(self, fault_s: float, exposed: Mapping[TopicLane, int] | None) -> dict[str, Observed]:
        """``exposed`` None: on partitions, what a deposed leader acknowledged."""
        found: dict[str, Observed] = {}

        def work(lane: TopicLane) -> None:
            if lane.spec.expected.back is Back.NOBODY and not lane.led():
                found[lane.spec.name] = Observed(len(lane.acknowledged), refused=lane.refused)
                lane.close()
                return
            read = lane.read()
            if exposed is not None:
                alone = exposed.get(lane, 0)
            else:
                partition = lane.spec.engine is Engine.PARTITION
                alone = lane.deposed(fault_s, read) if partition else 0
            found[lane.spec.name] = lane.observed(fault_s, alone, read)
            lane.close()

        self.each(work)
        return found

    def fetches(self) -> list[tuple[str, str]]:
        """The links by which followers fetch from the leader."""
        return [(other, self.server.name) for other in self.stage.others(self.leader)]


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() > end_s


def leader_dies(making: Making) -> Outcome:
    with making.stage(Settings(replica_lag_ms_max=NEVER_MS)) as stage:
        play = Play(making, stage)
        play.before()
        making.say("followers are kept from fetching")
        stage.network.cut(*play.fetches())
        # What followers had asked for before is answered into the cut: the first message may be
        # the answer, and it is dropped.
        exposed = play.expose(EXPOSED_MESSAGES, PATIENCE_S)
        making.say(f"{play.server.name} is killed")
        fault_s = time.monotonic()
        play.server.kill()
        stage.network.heal()
        play.doubt()
        play.after()
        alone = _only_copies(play, exposed, acks=1)
        return play.read(fault_s, alone)


def _only_copies(play: Play, told: Mapping[TopicLane, int], acks: int) -> dict[TopicLane, int]:
    """Of partitions: what the leader acknowledged while nobody fetched."""
    return {
        lane: number
        for lane, number in told.items()
        if lane.spec.engine is Engine.PARTITION and lane.spec.acks == acks
    }


def isr_shrinks(making: Making) -> Outcome:
    with making.stage(Settings(bookies=5, replica_lag_ms_max=SOON_MS)) as stage:
        play = Play(making, stage)
        play.before()
        making.say("the leader is cut off from followers and two bookies")
        bookies = [(play.server.name, each.name) for each in stage.bookies[:2]]
        stage.network.cut(*play.fetches(), *bookies)
        # A follower that has all there is does not fall behind: the first message of each lane
        # makes them, and is taken, or refused, when the leader is alone.
        exposed = play.expose(EXPOSED_MESSAGES, ALONE_S)
        for lane, told in exposed.items():
            lane.refused = EXPOSED_MESSAGES - told
        for lane in play.lanes:
            if lane.spec.engine is Engine.PARTITION:
                stage.wait(
                    partial(_alone, stage, lane), f"{lane.topic} has its leader alone in sync"
                )
        making.say(f"{play.server.name} is killed, alone in sync")
        fault_s = time.monotonic()
        play.server.kill()
        stage.network.heal()
        play.doubt()
        back = threading.Timer(LEADER_AWAY_S, lambda: None)
        with ThreadPoolExecutor(1) as threads:
            going_on = threads.submit(play.after)
            back.start()
            back.join()
            making.say(f"{play.server.name} is started again")
            stage.start(play.server)
            going_on.result()
        lossy = {
            lane: count
            for lane, count in _only_copies(play, exposed, ALL).items()
            if lane.spec.unclean and lane.spec.min_isr == 1
        }
        return play.read(fault_s, lossy)


def _alone(stage: Stage, lane: TopicLane) -> bool:
    """As its leader says it, whom no other can keep from storing it."""
    return list(stage.view(lane.topic).in_sync) == [lane.first_leader]


def cut_from_metadata(making: Making) -> Outcome:
    with making.stage(Settings()) as stage:
        play = Play(making, stage)
        play.before()
        making.say(f"{play.server.name}'s link to the {stage.metadata_name} is cut")
        fault_s = time.monotonic()
        stage.network.cut((play.server.name, stage.metadata_name))

        def work(lane: TopicLane) -> None:
            """With the leader as long as it answers; then with another, which the cut one does
            not name."""
            lane.doubted = play.leader
            late = _after(LEADS_ON_S)
            lane.produce(1 << 30, until=lambda: lane.at != play.leader or late())
            if lane.at == play.leader:
                lane.leave()  # it would answer for ever, as far as anybody knows
            lane.produce(AFTER, until=_after(WAIT_S))

        play.each(work)
        making.say("all are served by another")
        last_s = {lane: _last_of(lane, play.leader, fault_s) for lane in play.lanes}
        found = play.read(fault_s, None)
        for lane in play.lanes:
            _gap(found[lane.spec.name], lane, last_s[lane])
        return found


def _last_of(lane: TopicLane, leader: int, fault_s: float) -> float:
    told = [each.at_s for each in lane.acknowledged if each.leader == leader]
    return max([fault_s, *told])


def _gap(found: Observed, lane: TopicLane, last_s: float) -> None:
    """Of a lane that went on with its leader: unavailable from the last that this took."""
    after = [each for each in lane.acknowledged if each.at_s > last_s]
    first = min(after, key=lambda each: each.at_s, default=None)
    if first is not None:
        found.unavailable_s = first.at_s - last_s
        found.back = Back.SAME if first.leader == lane.first_leader else Back.ANOTHER


def isolated(making: Making) -> Outcome:
    with making.stage(Settings()) as stage:
        play = Play(making, stage)
        play.before()
        making.say(f"{play.server.name} is cut off from everybody")
        me = play.server.name
        servers = [stage.metadata_name, *(each.name for each in (*stage.bookies, *stage.brokers))]
        fault_s = time.monotonic()
        stage.network.cut(
            *((me, other) for other in servers),
            *((other, me) for other in (CLIENT, *servers)),
        )
        play.doubt()
        play.after()
        return play.read(fault_s, {})


def paused(making: Making) -> Outcome:
    with making.stage(Settings()) as stage:
        play = Play(making, stage)
        play.before()
        making.say(f"{play.server.name} is paused")
        fault_s = time.monotonic()
        play.server.pause()
        for lane in play.lanes:
            lane.send_unanswered(PAUSED_MESSAGES)
        play.after()
        making.say(f"{play.server.name} goes on")
        play.server.resume()
        play.each(lambda lane: lane.answers(5.0))
        return play.read(fault_s, None)
