"""Stories of a group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from magnetar.protocols.kafka.coordination.classic_records import (
    ClassicGroupRecord,
    classic_from_json,
    classic_to_json,
)
from magnetar.protocols.kafka.coordination.group import Answers, ClassicGroup, Joining
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import JoinGroupResponse
from tests import transcript

STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
SESSION_MS = 10_000


class Play:
    """A group whose members are named as their ids are: ``a``, ``b`` ... Its log has what it is
    given at once, but where the story says how that goes: ``slow``, then ``store``."""

    def __init__(self) -> None:
        self.group = ClassicGroup("g", rebalance_delay_ms=100)
        self.instances: dict[str, str | None] = {}
        self.log: list[ClassicGroupRecord] = []
        self.under_way: list[tuple[int, ClassicGroupRecord]] = []
        self.is_slow = False

    def _told(self, answers: Answers, at: int) -> str:
        taken = self.group.take_record()
        if taken is not None:
            self.under_way.append(taken)
            if not self.is_slow:
                answers = answers + self._stored(ErrorCode.NONE, at)
        lines = []
        for ticket, answer in answers:
            if answer.error_code:
                said = ErrorCode(answer.error_code).name
            elif isinstance(answer, JoinGroupResponse):
                members = ",".join(each.member_id for each in answer.members)
                said = f"generation {answer.generation}, leader {answer.leader}"
                said += f", of {members}" if members else ""
            else:
                said = f"gets {answer.assignment.decode()!r}"
            lines.append(f"{ticket}: {said}")
        lines.append(f"[{self.group.state}]")
        return "\n".join(lines)

    def _join(self, words: Mapping[str, str], member_id: str) -> str:
        name = words["name"]
        instance = words.get("instance", self.instances.get(name))
        self.instances[name] = instance
        said = Joining(
            member_id,
            name,
            instance,
            f"client-{name}",
            "127.0.0.1",
            SESSION_MS,
            60_000,
            "consumer",
            (("range", b"same"),),
            skips_assignment=words.get("skips") == "yes",
        )
        at = int(words["at"])
        return self._told(self.group.join(said, f"join of {name}", at), at)

    def _stored(self, error: ErrorCode, at: int) -> Answers:
        """What was given to the log first has its outcome."""
        number, record = self.under_way.pop(0)
        if error is ErrorCode.NONE:
            self.log.append(classic_from_json(classic_to_json(record)))
        return self.group.stored(number, error, at)

    def slow(self, words: Mapping[str, str]) -> str:
        self.is_slow = True
        return ""

    def store(self, words: Mapping[str, str]) -> str:
        at = int(words["at"])
        return self._told(self._stored(ErrorCode[words.get("error", "NONE")], at), at)

    def restart(self, words: Mapping[str, str]) -> str:
        """The coordinator ends, with whoever waits; another one goes on from the log."""
        at = int(words["at"])
        self.group = ClassicGroup.restored("g", self.log[-1], 100, at)
        self.under_way, self.is_slow = [], False
        return f"generation {self.group.generation}\n{self._told([], at)}"

    def join(self, words: Mapping[str, str]) -> str:
        return self._join(words, "")

    def rejoin(self, words: Mapping[str, str]) -> str:
        return self._join(words, words["name"])

    def sync(self, words: Mapping[str, str]) -> str:
        given = [part.split(":") for part in words.get("gives", "").split(",") if part]
        answers = self.group.sync(
            words["name"],
            words.get("instance"),
            self.group.generation,
            ("consumer", None),
            [(name, part.encode()) for name, part in given],
            f"sync of {words['name']}",
            int(words["at"]),
        )
        return self._told(answers, int(words["at"]))

    def heartbeat(self, words: Mapping[str, str]) -> str:
        found = self.group.heartbeat(
            words["name"], words.get("instance"), self.group.generation, int(words["at"])
        )
        return found.name

    def commit(self, words: Mapping[str, str]) -> str:
        found = self.group.check_commit(
            words["name"], None, int(words["generation"]), int(words["at"])
        )
        return found.name

    def leave(self, words: Mapping[str, str]) -> str:
        error, answers = self.group.leave(words["name"], None, int(words["at"]))
        return f"{error.name}\n{self._told(answers, int(words['at']))}"

    def tick(self, words: Mapping[str, str]) -> str:
        return self._told(self.group.tick(int(words["at"])), int(words["at"]))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    play = Play()
    names = ("join", "rejoin", "sync", "heartbeat", "commit", "leave", "tick")
    names += ("slow", "store", "restart")
    transcript.check(path, {name: getattr(play, name) for name in names})
