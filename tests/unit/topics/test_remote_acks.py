"""What a lent cursor's store tells its owner, and whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.flush_timer import FlushTimer
from magnetar.env.tasks import TaskScope, fails
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.model.errors import (
    BindingEndedError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position
from magnetar.topics.consuming.bound import SeatsTaken
from magnetar.topics.following import remote_acks
from magnetar.topics.following.remote_acks import Borrowed, CursorOwners, LentCursor, RemoteAckStore
from magnetar_sim.world.virtual_time import run_virtual

TOPIC = parse_topic("public/default/t")


class Site:
    """A store, and its owner, whose answers wait for ``gate``."""

    def __init__(self, scope: TaskScope) -> None:
        self.chain = Chain([LedgerInfo(1, created_ms=1)])
        self.chain.confirm(9, 10)
        self.state = AckState(self.chain, Position(1, -1))
        self.gate = asyncio.Event()
        self.gate.set()
        self.term = 1
        self.failures: list[MagnetarError] = []
        self.calls: list[str] = []
        self.held = Position(1, -1)
        self.images: list[AckImage] = []
        self.ended: list[MagnetarError] = []
        owners = SimpleNamespace(
            merge=self._merge,
            open_topic=self._open_topic,
            release=self._release,
            delete=self._delete,
            keep=self._keep,
            forget=lambda _topic, _name: self.calls.append("forget"),
        )
        cursor = LentCursor(TOPIC, "s", 1)
        self.store = RemoteAckStore(
            Borrowed(cursor, AckImage(Position(1, -1)), 1, {}),
            self.state,
            cast(CursorOwners, owners),
            scope,
            FlushTimer(5),
            10.0,
            self.ended.append,
        )

    async def _merge(self, _cursor: LentCursor, image: AckImage, stored: bool) -> int:
        self.calls.append("store" if stored else "take")
        self.images.append(image)
        await self.gate.wait()
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        self.held = max(self.held, image.mark_delete)
        return self.term

    async def _open_topic(self, _topic: object, create: bool) -> Position:
        assert not create
        self.calls.append("open")
        return Position(1, 9)

    async def _release(self, _cursor: LentCursor) -> None:
        self.calls.append("release")

    async def _delete(self, _cursor: LentCursor) -> None:
        self.calls.append("delete")

    async def _keep(self, _cursor: LentCursor, _seats: SeatsTaken | None) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def acknowledge(self, entry_id: int) -> None:
        self.state.acknowledge_cumulative(Position(1, entry_id))
        self.store.mark_dirty()


def run(scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        defects: list[BaseException] = []
        scope = TaskScope("acknowledgements", fails(lambda _task, error: defects.append(error)))
        async with asyncio.timeout(300):
            await scenario(Site(scope))
        await scope.close()
        assert defects == []

    run_virtual(main())


def test_what_is_acknowledged_meanwhile_is_not_said_to_be_stored() -> None:
    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        site.gate.clear()
        first = asyncio.ensure_future(site.store.wait_stored())
        await asyncio.sleep(0.001)
        site.acknowledge(5)
        second = asyncio.ensure_future(site.store.wait_stored())
        await asyncio.sleep(0.001)
        site.gate.set()
        await first
        assert site.store.stored_mark_delete == Position(1, 2)
        assert not second.done()
        await second
        assert site.held == site.store.stored_mark_delete == Position(1, 5)

    run(scenario)


def test_what_only_a_former_term_has_taken_is_not_said_to_be_stored() -> None:
    """The owner ended with what it had taken, and another has stored what came after."""

    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        await asyncio.sleep(0.1)
        assert site.calls == ["take"]
        site.term, site.held = 2, Position(1, -1)
        stored = asyncio.ensure_future(site.store.wait_stored())
        await stored
        assert site.calls == ["take", "store", "store"], "the second time all of it"
        assert site.held == Position(1, 2)

    run(scenario)


def test_what_was_lent_is_not_said_to_be_stored_before_the_owner_has_said_so() -> None:
    """It was acknowledged at the owner a moment ago, and a client that came over asks once more."""

    async def scenario(site: Site) -> None:
        site.gate.clear()
        stored = asyncio.ensure_future(site.store.wait_stored())
        await asyncio.sleep(1.0)
        assert (site.calls, stored.done()) == (["store"], False)
        site.gate.set()
        await stored
        await site.store.wait_stored()
        assert site.calls == ["store"], "once it is stored nobody is asked again"

    run(scenario)


def test_what_nobody_has_used_is_given_back_without_being_stored() -> None:
    """The owner would take a ledger for each."""

    async def scenario(site: Site) -> None:
        await site.store.close()
        assert site.calls == ["release", "forget"]

    run(scenario)


def test_what_was_acknowledged_is_stored_before_it_is_given_back() -> None:
    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        await site.store.close()
        assert site.calls == ["store", "release", "forget"]
        assert site.held == Position(1, 2)

    run(scenario)


def test_what_is_only_taken_does_not_count_as_stored() -> None:
    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        await asyncio.sleep(0.1)
        assert (site.calls, site.held) == (["take"], Position(1, 2))
        assert site.store.stored_mark_delete == Position(1, -1)
        await site.store.wait_stored()
        assert site.store.stored_mark_delete == Position(1, 2)

    run(scenario)


def test_after_a_failure_all_is_sent_once_more() -> None:
    """Nobody knows what of it the owner has taken."""

    async def scenario(site: Site) -> None:
        site.failures = [ServiceNotReadyError("the connection broke")]
        site.state.acknowledge([Position(1, 3)])
        site.store.mark_dirty()
        await asyncio.sleep(0.5)
        site.state.acknowledge([Position(1, 5)])
        site.store.mark_dirty()
        await asyncio.sleep(0.5)
        told = [sorted(image.holes.get(1, ())) for image in site.images]
        assert told == [[3], [3], [5]]

    run(scenario)


def test_an_owner_that_does_not_answer_is_asked_less_and_less_often() -> None:
    async def scenario(site: Site) -> None:
        site.failures = [ServiceNotReadyError("away")] * 1000
        site.acknowledge(2)
        await asyncio.sleep(9.0)
        assert 5 < 1000 - len(site.failures) < 15
        site.failures.clear()
        await site.store.wait_stored()
        assert site.held == Position(1, 2)

    run(scenario)


def test_what_the_owner_refuses_to_take_ends_the_binding() -> None:
    """It would refuse it for ever, and whoever waits would wait as long as that."""

    async def scenario(site: Site) -> None:
        site.failures = [NotAllowedError("past the end of the log")] * 9
        site.acknowledge(2)
        with pytest.raises(NotAllowedError, match="past the end"):
            await site.store.wait_stored()
        assert (site.calls, len(site.ended)) == (["store", "forget"], 1)

    run(scenario)


def test_nothing_is_sent_for_what_was_deleted() -> None:
    async def scenario(site: Site) -> None:
        await site.store.mark_deleted()
        site.acknowledge(4)
        await asyncio.sleep(1.0)
        assert site.calls == ["delete", "forget"]
        with pytest.raises(BindingEndedError, match="was deleted"):
            await site.store.wait_stored()
        assert site.ended == [], "who has deleted it knows"

    run(scenario)


def test_an_owner_that_knows_no_such_binding_ends_it_when_it_has_asked() -> None:
    async def scenario(site: Site) -> None:
        async def seats() -> SeatsTaken | None:
            return SeatsTaken(1, 2)

        site.failures = [ServiceNotReadyError("not now")]
        site.store.keep(seats())
        await asyncio.sleep(0.1)
        assert site.ended == [], "it asks again"
        site.failures = [BindingEndedError("it is another's")]
        site.store.keep(seats())
        await asyncio.sleep(0.1)
        assert [str(each) for each in site.ended] == ["it is another's"]

    run(scenario)


def test_nothing_is_said_of_what_was_trimmed_meanwhile() -> None:
    """The owner's log does not hold it any more."""

    async def scenario(site: Site) -> None:
        site.state.acknowledge([Position(1, 3)])
        site.chain.close_last(10, 100, 2)
        site.chain.open_ledger(LedgerInfo(2, created_ms=3, first_offset=10))
        site.chain.trim(1)
        site.store.mark_dirty()
        await site.store.wait_stored()
        (image,) = site.images
        assert image.holes == {}

    run(scenario)


def test_after_a_failure_the_topic_is_opened_first() -> None:
    async def scenario(site: Site) -> None:
        site.failures = [ServiceNotReadyError("the owner has gone")]
        site.acknowledge(2)
        await site.store.wait_stored()
        assert site.calls == ["store", "open", "store"]
        site.acknowledge(3)
        await site.store.wait_stored()
        assert site.calls[3:] == ["store"], "not once it is open"

    run(scenario)


def test_an_owner_that_fails_now_and_then_is_not_given_up() -> None:
    async def scenario(site: Site) -> None:
        for entry_id in range(5):
            site.failures = [ServiceNotReadyError("away for a moment")]
            site.acknowledge(entry_id)
            await site.store.wait_stored()
            await asyncio.sleep(4.0)
        assert site.ended == []
        site.failures = [ServiceNotReadyError("away")] * 1000
        site.acknowledge(7)
        with pytest.raises(BindingEndedError, match="is given up"):
            await site.store.wait_stored()
        assert len(site.ended) == 1

    run(scenario)


def test_an_owner_that_is_long_silent_before_each_refusal_is_given_up_in_time() -> None:
    """It has not heard of us since it was asked first, and takes the binding for abandoned after
    twice as long as we wait."""

    async def scenario(site: Site) -> None:
        owners, loop = site.store._owners, asyncio.get_running_loop()
        begun_s = loop.time()

        async def silent(_cursor: LentCursor, _image: AckImage, stored: bool) -> int:
            await asyncio.sleep(9.0)
            raise ServiceNotReadyError("no answer")

        owners.merge = silent  # type: ignore[method-assign]
        site.acknowledge(2)
        with pytest.raises(BindingEndedError, match="is given up"):
            await site.store.wait_stored()
        assert loop.time() - begun_s < 20.0
        assert len(site.ended) == 1

    run(scenario)


def test_who_waits_hears_that_the_binding_has_ended_and_nothing_is_sent_then() -> None:
    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        site.gate.clear()
        waiting = asyncio.ensure_future(site.store.wait_stored())
        await asyncio.sleep(0.001)
        site.store.fail(BindingEndedError("it was ended"))
        with pytest.raises(BindingEndedError, match="was ended"):
            await waiting
        site.gate.set()
        await asyncio.sleep(1.0)
        assert site.held == Position(1, -1), "what was on its way is given up"
        site.store.fail(BindingEndedError("once more"))
        assert [str(each) for each in site.ended] == ["it was ended"]
        with pytest.raises(BindingEndedError):
            await site.store.wait_stored()
        site.acknowledge(4)
        await asyncio.sleep(1.0)
        assert site.calls == ["store", "forget"]

    run(scenario)


def test_what_no_owner_takes_back_is_over_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_acks, "RELEASE_S", 2.0)

    async def scenario(site: Site) -> None:
        site.acknowledge(2)
        site.gate.clear()
        with pytest.raises(ServiceNotReadyError, match="no owner answered in 2 s"):
            await site.store.close()
        with pytest.raises(BindingEndedError, match="given back"):
            await site.store.wait_stored()
        assert site.ended == [], "who closes it knows"

    run(scenario)
