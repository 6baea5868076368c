"""Stories of a group whose coordinator assigns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from magnetar.protocols.kafka.consumers.consumer_group import (
    ConsumerGroup,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from magnetar.protocols.kafka.consumers.consumer_records import ConsumerMemberKey, ConsumerRecords
from magnetar.protocols.kafka.consumers.id_partitions import (
    IdPartitions,
    TopicIdPartition,
    TopicShape,
)
from magnetar.wire.kafka.errors import ErrorCode
from tests import transcript

STORIES = sorted((Path(__file__).parent / "transcripts" / "consumers").glob("*.txt"))
TOPIC = uuid.UUID(int=1)
SESSION_MS, REBALANCE_MS, MEMBERS_MAX = 45_000, 60_000, 10


def partitions(text: str) -> IdPartitions:
    return frozenset(TopicIdPartition(TOPIC, number) for number in transcript.numbers(text))


def in_words(held: IdPartitions) -> str:
    return transcript.in_words(sorted(each.partition for each in held))


class Play:
    """A group that reads one topic; whatever has changed is stored."""

    def __init__(self) -> None:
        self.group = ConsumerGroup("g", SESSION_MS, MEMBERS_MAX)
        self.records = ConsumerRecords()

    def topic(self, words: Mapping[str, str]) -> str:
        shape = TopicShape(TOPIC, int(words["partitions"]))
        self.group.learn({"t"}, {"t": shape}, {}, int(words["at"]))
        return self._state()

    def _state(self) -> str:
        for key, value in self.group.take_changes():
            if isinstance(key, ConsumerMemberKey):
                self.records.set_member(key, value)  # type: ignore[arg-type]
            else:
                self.records.set_group(key, value)  # type: ignore[arg-type]
        return f"[{self.group.phase}, epoch {self.group.epoch}]"

    def _told(self, answer: HeartbeatAnswer) -> str:
        said = answer.error.name
        if answer.error is ErrorCode.NONE:
            said = f"epoch {answer.epoch}"
            if answer.assigned is not None:
                said += f", has {in_words(answer.assigned)}"
        return f"{said}\n{self._state()}"

    def join(self, words: Mapping[str, str]) -> str:
        said = ConsumerHeartbeat(
            words["name"],
            "",
            0,
            words.get("instance"),
            rebalance_ms=REBALANCE_MS,
            names=("t",),
            owned=frozenset(),
        )
        return self._told(self.group.heartbeat(said, int(words["at"])))

    def heartbeat(self, words: Mapping[str, str]) -> str:
        owned = partitions(words["has"]) if "has" in words else None
        said = ConsumerHeartbeat(
            words["name"], "", int(words["epoch"]), words.get("instance"), owned=owned
        )
        return self._told(self.group.heartbeat(said, int(words["at"])))

    def commit(self, words: Mapping[str, str]) -> str:
        return self.group.check_commit(words["name"], int(words["epoch"])).name

    def tick(self, words: Mapping[str, str]) -> str:
        out = self.group.tick(int(words["at"]))
        return "\n".join([*out, self._state()])

    def move(self, words: Mapping[str, str]) -> str:
        """Another coordinator, from what is stored."""
        now_ms, topics = int(words["at"]), self.group.topics
        self.group = ConsumerGroup.restored(
            "g",
            self.records.groups["g"],
            self.records.members("g"),
            SESSION_MS,
            MEMBERS_MAX,
            now_ms,
        )
        self.group.learn({"t"}, topics, {}, now_ms)
        return self._state()


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    play = Play()
    names = ("topic", "join", "heartbeat", "commit", "tick", "move")
    transcript.check(path, {name: getattr(play, name) for name in names})
