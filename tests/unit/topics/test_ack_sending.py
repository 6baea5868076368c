"""A lent cursor and its owner: images that are lost, late, repeated and out of order, seeks, and
owners that change. What was answered is never lost; nothing of before a seek is merged after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest

from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.model.ids import Position
from magnetar.topics.ack_sending import AckSending, Send

ENTRIES = 12
NOTHING = AckImage(Position(3, -1))


def chain() -> Chain:
    made = Chain([LedgerInfo(3, 4, 40, 1, 2), LedgerInfo(7, created_ms=1)])
    made.confirm(ENTRIES - 5, made.end_offset + ENTRIES - 4)
    return made


ALL = [Position(3, i) for i in range(4)] + [Position(7, i) for i in range(ENTRIES - 4)]


def test_the_table() -> None:
    sending = AckSending(5)
    assert sending.begin(5) is None
    assert sending.begin(6) is Send.CHANGES
    assert sending.busy
    assert sending.begin(7) is None, "one is under way"
    sending.answered()
    assert sending.stored == 6
    assert sending.begin(7) is Send.CHANGES
    sending.failed()
    assert (sending.stored, sending.begin(7)) == (6, Send.WHOLE)
    sending.answered()
    assert sending.begin(7) is None
    sending.say_again()
    assert sending.wants(7)
    assert sending.begin(7) is Send.WHOLE


def test_an_owner_that_changes_while_an_image_is_under_way_is_told_all() -> None:
    sending = AckSending(0)
    assert sending.begin(1) is Send.CHANGES
    sending.say_again()
    sending.answered()
    assert sending.begin(1) is Send.WHOLE


@dataclass
class Owner:
    """``stored`` is what its next owner finds; ``state`` may be ahead of it."""

    state: AckState = field(default_factory=lambda: AckState(chain(), Position(3, -1)))
    stored: AckImage = NOTHING

    def merge(self, image: AckImage) -> None:
        self.state.take_over(image)

    def store(self) -> None:
        """What is stored is found again: by its changes, or as a whole."""
        changes = self.state.take_changes()
        kept = AckState(chain(), self.stored.mark_delete, self.stored.reset_epoch)
        kept.merge(self.stored)
        kept.merge(self.state.snapshot() if changes is None else changes)
        self.stored = kept.snapshot()
        assert self.stored == self.state.snapshot(), "changes say all that was merged"

    def fail_over(self) -> None:
        self.state = AckState(chain(), self.stored.mark_delete, self.stored.reset_epoch)
        self.state.merge(self.stored)


@dataclass
class Bound:
    """The read-only broker's side. ``answered``: what it was told is stored."""

    state: AckState = field(default_factory=lambda: AckState(chain(), Position(3, -1)))
    sending: AckSending = field(default_factory=lambda: AckSending(0))
    answered: AckImage = NOTHING
    under_way: AckImage | None = None
    wire: list[AckImage] = field(default_factory=list)
    at_send: AckImage = NOTHING

    def begin(self) -> None:
        send = self.sending.begin(self.state.version)
        if send is None:
            return
        changes = self.state.take_changes()
        whole = changes is None or send is Send.WHOLE
        self.under_way = self.state.snapshot() if changes is None or whole else changes
        self.wire.append(self.under_way)
        self.at_send = self.state.snapshot()


def act(bound: Bound, rng: random.Random) -> None:
    position, what = rng.choice(ALL), rng.randrange(12)
    if what == 0:
        bound.state.reset(bound.state._chain.last_at(position._replace(entry_id=-1)))
    elif what == 1:
        bound.state.acknowledge_cumulative(position)
    elif what < 4:
        bound.state.acknowledge_batch(position, 8, [rng.randrange(256)])
    else:
        bound.state.acknowledge([position])


def covers(owner: AckImage, answered: AckImage) -> bool:
    if owner.reset_epoch != answered.reset_epoch:
        return owner.reset_epoch > answered.reset_epoch
    joined = AckState(chain(), owner.mark_delete, owner.reset_epoch)
    joined.merge(owner)
    joined.merge(answered)
    return joined.snapshot() == owner


@pytest.mark.parametrize("seed", range(300))
def test_what_was_answered_is_never_lost(seed: int) -> None:
    rng = random.Random(seed)
    owner, bound = Owner(), Bound()
    for _ in range(80):
        what = rng.randrange(10)
        if what < 4:
            act(bound, rng)
        elif what < 6:
            bound.begin()
        elif (
            what == 6 and bound.wire
        ):  # something old or new arrives, perhaps not for the last time
            owner.merge(rng.choice(bound.wire))
        elif what == 7 and bound.under_way is not None:
            owner.merge(bound.under_way)
            owner.store()
            bound.sending.answered()
            bound.answered, bound.under_way = bound.at_send, None
        elif what == 8 and bound.under_way is not None:
            bound.sending.failed()
            bound.under_way = None
        elif what == 9:
            owner.fail_over()
            if rng.random() < 0.7:
                bound.sending.say_again()
        assert covers(owner.stored, bound.answered)
        assert covers(owner.state.snapshot(), bound.answered)
        assert owner.state.reset_epoch <= bound.state.reset_epoch
    while bound.sending.busy or bound.sending.wants(bound.state.version):
        bound.begin()
        assert bound.under_way is not None
        owner.merge(bound.under_way)
        owner.store()
        bound.sending.answered()
    assert owner.stored == bound.state.snapshot()
    for late in bound.wire:  # whatever comes still
        owner.merge(late)
    assert owner.state.snapshot() == bound.state.snapshot()


def _many_histories(count: int) -> None:
    for seed in range(count):
        test_what_was_answered_is_never_lost(seed)


def _late_after_reset() -> tuple[type, str, object]:
    """An image of before a seek is merged after it."""
    take_over = AckState.take_over

    def any_epoch(self: AckState, image: AckImage) -> bool:
        newer = max(image.reset_epoch, self.reset_epoch)
        return take_over(self, replace(image, reset_epoch=newer))

    return AckState, "take_over", any_epoch


def _dropped_at_a_change() -> tuple[type, str, object]:
    """What was under way when the owner changed counts as stored."""
    return AckSending, "failed", AckSending.answered


def _changes_after_a_failure() -> tuple[type, str, object]:
    """After an image that failed only what changed since then is sent."""

    def failed(self: AckSending) -> None:
        self._under_way, self._again = None, True

    return AckSending, "failed", failed


@pytest.mark.parametrize(
    "plant", [_late_after_reset, _dropped_at_a_change, _changes_after_a_failure]
)
def test_such_histories_find_bugs(plant: Callable[[], tuple[type, str, object]]) -> None:
    owner, name, planted = plant()
    with patch.object(owner, name, planted), pytest.raises(AssertionError):
        _many_histories(60)
