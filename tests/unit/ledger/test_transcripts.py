"""The stories of quorum writes and recoveries, as ``transcripts/`` tells them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magnetar.ledger.recovering.recovery_plan import LacCoverage, RecoveryScan, VotingWindow
from magnetar.ledger.writing.quorum_write import FailureKind, QuorumWrite
from tests import transcript
from tests.transcript import in_words, numbers

HERE = Path(__file__).with_name("transcripts")
Words = Mapping[str, str]


class Writer:
    """A quorum write machine that says where it stands after every command."""

    def __init__(self) -> None:
        self.machine = QuorumWrite(1, 1, 1)

    def writer(self, words: Words) -> str:
        self.machine = QuorumWrite(
            int(words["ensemble"]), int(words["write_quorum"]), int(words["ack_quorum"])
        )
        return self._state()

    def _state(self) -> str:
        machine = self.machine
        down = machine.down_slots()
        return (
            f"{machine.state.value}, confirmed to {machine.last_add_confirmed} of "
            f"{machine.last_add_pushed}" + (f", down: {in_words(down)}" if down else "")
        )

    def pushed(self, words: Words) -> str:
        self.machine.pushed(int(words["count"]))
        return self._state()

    def acknowledged(self, words: Words) -> str:
        epoch = int(words.get("epoch", "0"))
        self.machine.acknowledged(int(words["slot"]), numbers(words["ids"]), epoch)
        return self._state()

    def failed(self, words: Words) -> str:
        verdict = self.machine.failed(
            int(words["slot"]), int(words["epoch"]), FailureKind(words["kind"])
        )
        return f"{verdict.value}\n{self._state()}"

    def begin_change(self, words: Words) -> str:
        first = self.machine.begin_change(numbers(words["slots"]))
        return f"new fragment at {first}\n{self._state()}"

    def change_succeeded(self, words: Words) -> str:
        told = [
            f"send {in_words(list(resend.entry_ids))} to slot {resend.slot}, epoch {resend.epoch}"
            for resend in self.machine.change_succeeded(numbers(words["slots"]))
        ]
        return "\n".join([*told, self._state()])

    def commands(self) -> dict[str, transcript.Answer]:
        return {
            "writer": self.writer,
            "pushed": self.pushed,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "begin_change": self.begin_change,
            "change_succeeded": self.change_succeeded,
        }


class Recovery:
    """Fencing, then one window of votes."""

    def __init__(self) -> None:
        self._begin(1, 1, 1, 0)

    def _begin(self, ensemble: int, write_quorum: int, ack_quorum: int, first: int) -> None:
        self.quorums = write_quorum, ack_quorum
        self.first = first
        self.coverage = LacCoverage(ensemble, write_quorum, ack_quorum)
        self.scan: RecoveryScan[int] = RecoveryScan(-1)
        self.window: VotingWindow[int] = VotingWindow(self.scan, 0, write_quorum, ack_quorum)

    def recovery(self, words: Words) -> str:
        names = ("ensemble", "write_quorum", "ack_quorum", "last_fragment")
        self._begin(*(int(words[name]) for name in names))
        return ""

    def _covered(self) -> str:
        if self.coverage.covered:
            return "fenced enough"
        return "more answers are needed" if self.coverage.possible else "cannot be fenced now"

    def fenced(self, words: Words) -> str:
        self.coverage.answered(int(words["slot"]), int(words["lac"]))
        return self._covered()

    def silent(self, words: Words) -> str:
        self.coverage.unknown(int(words["slot"]))
        return self._covered()

    def begin_scan(self, words: Words) -> str:
        self.scan = RecoveryScan(self.coverage.start_after(self.first))
        self.window = VotingWindow(self.scan, int(words["count"]), *self.quorums)
        return f"voting on {in_words(list(self.window.entry_ids))}"

    def _turns(self, entry_id: int) -> str:
        told = [f"entry {entry_id} is {self.window.vote(entry_id).decision.value}"]
        copies = self.window.take_turns()
        if copies:
            told.append(f"write again: {in_words(copies)}")
        if self.scan.end is not None:
            told.append(f"close at {self.scan.end}")
        if self.scan.blocked_at is not None:
            told.append(f"stop at {self.scan.blocked_at}, truncate nothing")
        return "\n".join(told)

    def found(self, words: Words) -> str:
        entry_id = int(words["entry"])
        self.window.vote(entry_id).found(entry_id)
        return self._turns(entry_id)

    def absent(self, words: Words) -> str:
        self.window.vote(int(words["entry"])).negative()
        return self._turns(int(words["entry"]))

    def unknown(self, words: Words) -> str:
        self.window.vote(int(words["entry"])).unknown()
        return self._turns(int(words["entry"]))

    def commands(self) -> dict[str, transcript.Answer]:
        return {
            "recovery": self.recovery,
            "fenced": self.fenced,
            "silent": self.silent,
            "scan": self.begin_scan,
            "found": self.found,
            "absent": self.absent,
            "unknown": self.unknown,
        }


def test_a_quorum_write() -> None:
    transcript.check(HERE / "quorum_write.txt", Writer().commands())


def test_recoveries() -> None:
    transcript.check(HERE / "recovery.txt", Recovery().commands())
