"""The story of a partition's replicas, as ``transcripts/`` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.follower import AppendAnswer, CutTo
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.replica import PartitionReplica
from magnetar.model.errors import NotEnoughReplicasError, PartitionError
from tests import transcript
from tests.transcript import numbers

HERE = Path(__file__).with_name("transcripts")
Words = Mapping[str, str]


class Replica:
    """A broker's process, and the epochs of its log's batches, one record each."""

    def __init__(self, number: int, start: int, log: list[int]) -> None:
        self.number, self.start, self.log = number, start, log
        self.epochs = LeaderEpochs()
        for offset, epoch in enumerate(log):
            self.epochs.assign(epoch, offset)
        self.machine = PartitionReplica(
            Member(number, number), start, high_watermark=0, lag_ms_max=30_000
        )


class Partition:
    """Brokers 1 to N and the stored state."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.version = 0
        self.state = PartitionState((1,), 1, isr=())
        self.brokers: dict[int, Replica] = {}
        self.live: dict[int, LiveBroker] = {}

    def partition(self, words: Words) -> str:
        replicas = tuple(numbers(words["replicas"]))
        isr = tuple(Member(number, number) for number in replicas)
        self.state = PartitionState(replicas, int(words["min_isr"]), isr=isr)
        for number in replicas:
            self.brokers[number] = Replica(number, 1, [])
            self.live[number] = LiveBroker(1, number)
        return self._elect()

    def _elect(self) -> str:
        found = election.elect(self.state, self.live)
        return self._store(found) if found is not None else "no change"

    def _store(self, state: PartitionState) -> str:
        self.state, self.version = state, self.version + 1
        isr, elr = ([str(each.broker) for each in part] for part in (state.isr, state.elr))
        leader = f"broker {state.leader} leads" if state.leader > 0 else "nobody leads"
        also = f", eligible {' '.join(elr)}" if elr else ""
        return f"{leader} epoch {state.leader_epoch}, in sync {' '.join(isr) or '-'}{also}"

    def learn(self, words: Words) -> str:
        for number in numbers(words["brokers"]):
            broker = self.brokers[number]
            broker.machine.learnt(
                self.state, self.version, broker.epochs,
                log_start=0, log_end=len(broker.log), stored_end=len(broker.log),
                now_ms=self.now_ms,
            )  # fmt: skip
        return ""

    def dies(self, words: Words) -> str:
        del self.live[int(words["broker"])]
        return self._elect()

    def starts(self, words: Words) -> str:
        """With what of its log was synced."""
        number = int(words["broker"])
        before = self.brokers[number]
        log = before.log[: int(words.get("synced", len(before.log)))]
        self.brokers[number] = Replica(number, before.start + 1, log)
        self.live[number] = LiveBroker(before.start + 1, number)
        return self._elect()

    def append(self, words: Words) -> str:
        broker = self.brokers[int(words["broker"])]
        leader = broker.machine.leader
        assert leader is not None
        try:
            leader.check_append()
        except NotEnoughReplicasError as error:
            if "all" in words:
                return f"refused: {error}"
        broker.log += [leader.epoch] * int(words["count"])
        leader.appended(len(broker.log))
        return self._log(broker)

    def sync(self, words: Words) -> str:
        broker = self.brokers[int(words["broker"])]
        assert broker.machine.leader is not None
        broker.machine.leader.stored(len(broker.log))
        return self._log(broker)

    def _log(self, broker: Replica) -> str:
        return (
            f"log {''.join(map(str, broker.log)) or '-'}, "
            f"high watermark {broker.machine.high_watermark}"
        )

    def fetch(self, words: Words) -> str:
        """A fetch, its answer, and what follows from it."""
        broker = self.brokers[int(words["broker"])]
        follower = broker.machine.follower
        assert follower is not None
        leader = self.brokers[int(words.get("of", follower.leader))]
        request = follower.next_fetch()
        asked = f"asks for {request.offset} after epoch {request.last_epoch}"
        assert leader.machine.leader is not None
        try:
            grant = leader.machine.leader.fetched(request, self.now_ms)
        except PartitionError as error:
            return f"{asked}: {error}"
        batches = leader.log[request.offset : grant.end_offset]
        step = follower.answered(request, grant, bool(batches))
        if isinstance(step, CutTo):
            del broker.log[step.end_offset :]
            broker.epochs.truncate(step.end_offset)
            follower.cut(step.end_offset)
            return f"{asked}: the logs part; cut to {step.end_offset}\n{self._log(broker)}"
        if isinstance(step, AppendAnswer):
            for offset, epoch in enumerate(batches, request.offset):
                broker.epochs.assign(epoch, offset)
            broker.log += batches
            follower.stored(len(broker.log), grant.high_watermark)
        return f"{asked}\n{self._log(broker)}"

    def wait(self, words: Words) -> str:
        self.now_ms += int(words["ms"])
        return ""

    def tick(self, words: Words) -> str:
        leader = self.brokers[int(words["broker"])].machine.leader
        assert leader is not None
        leader.tick(self.now_ms)
        return self._wants(leader.pending)

    def _wants(self, pending: tuple[Member, ...] | None) -> str:
        if pending is None:
            return "in sync as stored"
        return f"asks to store in sync {' '.join(str(each.broker) for each in pending)}"

    def store(self, words: Words) -> str:
        """The leader's change is stored; it has not heard so."""
        leader = self.brokers[int(words["broker"])].machine.leader
        assert leader is not None
        proposal = leader.proposal()
        if proposal is None:
            return "nothing to store"
        if self.brokers[int(words["broker"])].machine.version != self.version:
            leader.in_doubt()
            return "refused: the state has changed"
        return self._store(proposal)

    def show(self, words: Words) -> str:
        return self._log(self.brokers[int(words["broker"])])


def test_a_partition() -> None:
    partition = Partition()
    names = (
        "partition", "learn", "append", "sync", "fetch", "wait", "tick", "store", "dies", "starts",
        "show",
    )  # fmt: skip
    transcript.check(HERE / "partition.txt", {name: getattr(partition, name) for name in names})
