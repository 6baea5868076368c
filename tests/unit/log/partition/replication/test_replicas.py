"""A replica whose files lack what they held leaves the in-sync set, however syncs go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from magnetar.log.partition.hosting import HostedReplica, PartitionHost
from magnetar.log.partition.limits import PartitionPolicy, SyncPolicy
from magnetar.log.partition.replication.damaged import advice
from magnetar.log.partition.replication.election import Live, LiveBroker
from magnetar.log.partition.replication.fetcher import FetchLimits
from magnetar.log.partition.replication.leader import PartitionLeader
from magnetar.log.partition.replication.partition_state import NO_LEADER, Member, PartitionState
from magnetar.log.partition.replication.replicas import Replicas, _OwnReplica
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import BadVersionError, LogClosedError, LogDamagedError

ME, TWO, THREE = Member(1, 11), Member(2, 12), Member(3, 13)
LIVE: Live = {each.broker: LiveBroker(100 + each.broker, each.lineage) for each in (ME, TWO, THREE)}


def replicas() -> Replicas:
    """Of broker 1, where syncs are waited for."""
    host = SimpleNamespace(
        me=ME,
        directory=SimpleNamespace(policy=PartitionPolicy()),
        closed=False,
        now_ms=lambda: 1_700_000_000_000,
    )
    unused = cast("object", None)
    return Replicas(
        cast(PartitionHost, host),
        unused,  # type: ignore[arg-type]
        unused,  # type: ignore[arg-type]
        unused,  # type: ignore[arg-type]
        unused,  # type: ignore[arg-type]
        FetchLimits(),
    )


def state(*isr: Member, leader: int, elr: tuple[Member, ...] = ()) -> PartitionState:
    start = LIVE[leader].start if leader in LIVE else 0
    return PartitionState((1, 2, 3), 1, isr, elr, leader, start, 7)


def test_a_damaged_follower_is_in_sync_no_more() -> None:
    before = state(ME, TWO, THREE, leader=2)
    found = replicas()._disbelieved(before, LIVE)
    assert found is not None
    assert found.isr == (TWO, THREE)
    assert found.elr == ()
    assert found.leader == 2
    assert not found.counts_on(ME)  # so that it may be made anew, without its folder
    # Its leader is told by the new epoch: it would count on what that follower fetched.
    assert found.leader_epoch == 8


def test_a_damaged_leader_is_followed_by_another() -> None:
    found = replicas()._disbelieved(state(ME, TWO, leader=1), LIVE)
    assert found is not None
    assert (found.leader, found.isr, found.elr) == (2, (TWO,), ())
    assert found.leader_epoch == 8


def test_it_is_not_eligible_either() -> None:
    found = replicas()._disbelieved(state(TWO, leader=2, elr=(ME,)), LIVE)
    assert found is not None
    assert found.elr == ()
    assert not found.counts_on(ME)


def test_the_only_one_that_counts_stays_and_nobody_leads() -> None:
    """Whoever else is assigned lacks more: an operator's word is needed."""
    found = replicas()._disbelieved(state(ME, leader=1), LIVE)
    assert found is not None
    assert found.leader == NO_LEADER
    assert found.counts_on(ME)


def test_one_whose_disk_failed_is_copied_in_the_same_epoch() -> None:
    found = replicas()._given_up(state(ME, TWO, THREE, leader=2), LIVE)
    assert found is not None
    assert (found.isr, found.leader_epoch) == ((TWO, THREE), 7)


def test_one_that_counted_what_was_not_synced_is_believed_no_more() -> None:
    """Where syncs are not waited for, a log that failed may lack what others were told it has."""
    for sync in SyncPolicy:
        found = replicas()
        found._host.directory.policy = PartitionPolicy(sync=sync)  # type: ignore[misc]
        given_up = found._given_up(state(ME, TWO, leader=2), LIVE)
        assert given_up is not None
        assert given_up.isr == (TWO,)
        assert given_up.leader_epoch == (7 if sync.durable else 8)


def test_what_is_told_of_a_damaged_replica_depends_on_the_others() -> None:
    whole = advice(state(ME, THREE, leader=1), 1)
    assert "broker 3 has all that is committed" in whole
    assert "remove this replica's folder" in whole
    assert "all that is committed" in advice(state(leader=NO_LEADER, elr=(ME, TWO)), 1)
    alone = advice(state(ME, leader=1), 1)
    for said in (
        "brokers 2, 3 have what was stored before they fell behind",
        "are cut to what is here",
        "write nothing here",
        "partition.unclean_leader_election=true",
    ):
        assert said in alone
    assert advice(PartitionState((1,), 1, (ME,), (), 1, 101, 7), 1) == ""


def test_what_is_given_up_is_said_once_for_each_cause() -> None:
    found = replicas()
    kept = _OwnReplica(("orders", 0))
    kept.busy = True  # nobody plays it here
    with structlog.testing.capture_logs() as logs:
        for error in ("gone", "gone", "damaged"):
            found._has_failed(kept, LogDamagedError(error))
            kept.failed = False  # it is tried again
    assert [each["error"] for each in logs] == ["gone", "damaged"]


def test_one_that_fails_while_it_learns_its_part_is_not_fetched_for() -> None:
    """Its fetcher would ask for it at once again and again, for nothing of it is stored."""
    found, kept = replicas(), _OwnReplica(("orders", 0))
    kept.busy = True  # played by this test

    class Hosted:
        topic_id = ""
        machine = SimpleNamespace(follower=None, leader=None, version=0)

        async def learnt(self, _wanted: object) -> None:
            self.machine.follower = SimpleNamespace(leader=2)
            found._has_failed(kept, LogDamagedError("a sync of what came before"))

        def fail(self, _error: Exception) -> None: ...

        def advanced(self) -> None: ...

    kept.hosted = cast(HostedReplica, Hosted())
    found._follow = lambda *each: followed.append(each)  # type: ignore[method-assign]
    followed: list[object] = []
    asyncio.run(found._take(kept, VersionedState(state(TWO, leader=2), 1)))
    assert kept.failed
    assert followed == []


class Opening:
    """A host that notes what is asked of it, and the replicas that it gives out."""

    def __init__(self) -> None:
        self.me = ME
        self.asked: list[object] = []
        self.cut: dict[object, int] = {}

    async def doom(self, partition: object) -> None:
        self.asked.append(("doom", partition))

    async def replica(self, _partition: object, topic_id: str, *, counted_on: bool) -> object:
        self.asked.append((topic_id, counted_on))
        return Opened(topic_id)


class Opened:
    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.machine = SimpleNamespace(follower=None, leader=None, version=0)
        self.learnt_of: list[VersionedState] = []
        self.watched = 0
        self.failure: Exception | None = None
        self.doomed = False

    def watch(self, _told: object) -> object:
        self.watched += 1

        def end() -> None:
            self.watched -= 1

        return end

    async def learnt(self, wanted: VersionedState) -> None:
        self.learnt_of.append(wanted)

    def advanced(self) -> None: ...


@pytest.mark.parametrize(
    ("stored", "counted_on"),
    [
        (state(ME, TWO, leader=2), True),
        (state(TWO, leader=2, elr=(ME,)), True),
        (state(TWO, leader=2), False),
        (state(Member(1, 99), TWO, leader=2), False),  # what this broker's lost disks had
        (PartitionState((1,), 1, ()), True),
    ],
)
def test_a_folder_that_is_gone_is_made_anew_only_where_nobody_counts_on_it(
    stored: PartitionState, counted_on: bool
) -> None:
    """What opens the log is told: of a replica in sync an empty folder would deny what others were
    told is stored."""
    found, host = replicas(), Opening()
    found._host = cast(PartitionHost, host)
    asyncio.run(found._take(_OwnReplica(("orders", 0)), VersionedState(stored, 1)))
    assert host.asked == [("", counted_on)]


def test_a_topic_made_anew_between_two_looks_has_nothing_of_the_former_one() -> None:
    found, host, kept = replicas(), Opening(), _OwnReplica(("orders", 0))
    found._host = cast(PartitionHost, host)
    former, new = (
        VersionedState(replace(state(ME, leader=1), topic_id=topic_id), 1)
        for topic_id in ("aa", "bb")
    )

    async def scenario() -> None:
        await found._take(kept, former)
        before = cast(Opened, kept.hosted)
        await found._take(kept, former)
        assert cast(Opened, kept.hosted) is before
        await found._take(kept, new)
        now = cast(Opened, kept.hosted)
        assert (now.topic_id, now.learnt_of) == ("bb", [new])
        assert before.learnt_of == [former, former]
        assert (before.watched, now.watched) == (0, 1)
        await found._take(kept, None)
        assert kept.hosted is None
        assert now.watched == 0

    asyncio.run(scenario())
    doomed = ("doom", ("orders", 0))
    assert host.asked == [("aa", True), doomed, ("bb", True), doomed]


def test_a_follower_of_another_leader_is_fetched_for_from_that_one() -> None:
    found, kept = replicas(), _OwnReplica(("orders", 0))
    two, three = SimpleNamespace(leader=2), SimpleNamespace(leader=3)
    parts = [two, two, three, None]

    class Following(Opened):
        async def learnt(self, wanted: VersionedState) -> None:
            self.machine.follower = parts.pop(0)

    happened: list[object] = []
    found._follow = lambda *each: happened.append(each[1])  # type: ignore[method-assign]
    found._unfollow = lambda partition: happened.append("stop")  # type: ignore[method-assign]
    kept.hosted = cast(HostedReplica, Following(""))

    async def scenario() -> None:
        while parts:
            await found._take(kept, VersionedState(state(ME, TWO, THREE, leader=2), 1))

    asyncio.run(scenario())
    assert happened == ["stop", 2, "stop", 3, "stop"]


def test_what_a_follower_stores_has_dates() -> None:
    """Its segments began in the first days of 1970, by a clock that begins with the machine: when
    it led, those whose records say no time were too old to be kept."""
    found = replicas()

    def unused(fetching: Coroutine[object, object, None], _name: str) -> None:
        fetching.close()

    found._scope = SimpleNamespace(spawn=unused)  # type: ignore[assignment]
    found._image = cast(StateImage, SimpleNamespace(refresh=None))
    found._follow(("orders", 0), 2, cast(HostedReplica, Opened("")))
    fetcher, _ = found._fetchers[2]
    assert fetcher._now_ms() == found._host.now_ms() == 1_700_000_000_000


class Proposing:
    """A leader with a change to store."""

    def __init__(self, epoch: int, isr: tuple[Member, ...]) -> None:
        self.state = replace(state(ME, TWO, THREE, leader=1), leader_epoch=epoch)
        self.proposed = replace(self.state, isr=isr)
        self.pending: object = object()
        self.withdrawn = self.doubted = 0

    def proposal(self) -> PartitionState:
        return self.proposed

    def withdraw(self) -> None:
        self.withdrawn += 1

    def in_doubt(self) -> None:
        self.doubted += 1


class Storing:
    """The store and the brokers around one proposal; ``meanwhile`` runs while brokers are asked."""

    def __init__(self, found: Replicas, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.replaced: list[PartitionState] = []
        self.told: list[VersionedState] = []
        self.there: VersionedState | None = None
        found._brokers = self  # type: ignore[assignment]
        found._image = cast(StateImage, SimpleNamespace(store=self, stored=self._stored))

    async def look(self) -> list[object]:
        self.meanwhile()
        return []

    async def replace(
        self, _topic: str, _number: int, old: VersionedState, new: PartitionState
    ) -> VersionedState:
        self.replaced.append(new)
        if self.there is not None:
            raise BadVersionError("somebody else was first")
        return VersionedState(new, old.version + 1)

    async def read_newest(self, _topic: str, _number: int) -> VersionedState:
        assert self.there is not None
        return self.there

    def _stored(self, _partition: object, stored: VersionedState) -> None:
        self.told.append(stored)


def led(found: Replicas, leader: Proposing) -> _OwnReplica:
    kept = _OwnReplica(("orders", 0))
    hosted = Opened("")
    hosted.machine.leader = leader
    kept.hosted = cast(HostedReplica, hosted)
    found._live = lambda: _all_live(found)  # type: ignore[method-assign]
    return kept


async def _all_live(found: Replicas) -> Live:
    await found._brokers.look()
    return LIVE


def test_a_former_leader_stores_nothing_over_what_is_learnt_meanwhile() -> None:
    """It would be stored with the version of the newer state: an in-sync set of another epoch."""
    found, former, now = replicas(), Proposing(7, (ME,)), Proposing(9, (ME, TWO))
    kept = led(found, former)

    def learn() -> None:
        assert kept.hosted is not None
        kept.hosted.machine.leader = cast(PartitionLeader, now)

    storing = Storing(found, learn)
    asyncio.run(found._store(kept, cast(PartitionLeader, former)))
    assert (storing.replaced, storing.told) == ([], [])
    storing.meanwhile = lambda: None
    asyncio.run(found._store(kept, cast(PartitionLeader, now)))
    assert storing.replaced == [now.proposed]
    assert [each.state for each in storing.told] == [now.proposed]


def test_a_change_that_somebody_else_was_first_with_is_in_doubt_until_it_is_read() -> None:
    found, leader = replicas(), Proposing(7, (ME,))
    kept, storing = led(found, leader), Storing(found)
    storing.there = VersionedState(replace(leader.state, leader=2, leader_epoch=8), 5)
    asyncio.run(found._store(kept, cast(PartitionLeader, leader)))
    assert leader.doubted == 1
    assert storing.told == [storing.there]
    assert not kept.proposing


def test_a_log_is_used_no_more_whatever_has_failed_of_its_replica() -> None:
    """Else it would be found open, and a sync that failed be taken for one that has not."""
    found, kept = replicas(), _OwnReplica(("orders", 0))
    kept.busy = True  # nobody plays it here
    failures: list[Exception] = []

    class Failing(Opened):
        def fail(self, error: Exception) -> None:
            failures.append(error)

    former, now = Failing(""), Failing("")
    kept.hosted = cast(HostedReplica, now)
    former.failure = now.failure = OSError("of the one before")
    found._moved(kept, cast(HostedReplica, former))
    assert (failures, kept.failed) == ([], False)
    now.failure = OSError("a sync")
    found._moved(kept, cast(HostedReplica, now))
    assert (failures, kept.failed) == ([now.failure], True)


def test_what_ends_with_its_broker_has_not_failed() -> None:
    """One that is to end while its metadata store is away closes its logs while they are played."""
    found = replicas()
    found._host.closed = True  # type: ignore[misc]
    kept = _OwnReplica(("orders", 0))
    kept.busy = True  # nobody plays it here
    with structlog.testing.capture_logs() as logs:
        found._has_failed(kept, LogClosedError("orders-0 is closed here"))
    assert not kept.failed, "nobody is told that it is out of sync"
    assert not logs


@pytest.mark.parametrize("damaged", [False, True])
def test_a_log_that_failed_is_not_opened_before_the_store_has_let_its_replica_go(
    damaged: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.log.partition.replication.replicas.PAUSE_S", 0.0)
    monkeypatch.setattr("magnetar.log.partition.replication.replicas.REOPEN_S", 0.0)
    found, kept = replicas(), _OwnReplica(("orders", 0))
    kept.failed, kept.damaged = True, damaged
    answers = [False, False, True]  # twice the store cannot be asked

    async def step_down(_partition: object, change: object) -> bool:
        assert change == (found._disbelieved if damaged else found._given_up)
        return answers.pop(0)

    found._step_down = step_down  # type: ignore[method-assign]
    asyncio.run(found._recover(kept))
    assert answers == []
    assert not kept.failed
