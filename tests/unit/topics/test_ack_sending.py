"""A lent cursor and its owner: images that are lost, late, repeated and out of order, seeks, and
owners that change. What was answered as stored is never lost; nothing of before a seek is merged
after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest

from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.model.ids import Position
from magnetar.topics.following.ack_sending import AckSending, Send

ENTRIES = 12
NOTHING = AckImage(Position(3, -1))
TERM = 4


def chain() -> Chain:
    made = Chain([LedgerInfo(3, 4, 40, 1, 2), LedgerInfo(7, created_ms=1)])
    made.confirm(ENTRIES - 5, made.end_offset + ENTRIES - 4)
    return made


ALL = [Position(3, i) for i in range(4)] + [Position(7, i) for i in range(ENTRIES - 4)]


def test_the_table() -> None:
    sending = AckSending(5, TERM)
    assert sending.begin(5, False) is None
    assert sending.begin(6, True) is Send.CHANGES
    assert sending.busy
    assert sending.begin(7, True) is None, "one is under way"
    sending.answered(TERM)
    assert sending.stored == 6
    assert sending.begin(7, True) is Send.CHANGES
    sending.failed()
    assert (sending.stored, sending.begin(7, True)) == (6, Send.WHOLE)
    sending.answered(TERM)
    assert sending.begin(7, True) is None
    sending.say_again()
    assert sending.wants(7, False)
    assert sending.begin(7, False) is Send.WHOLE


def test_what_was_taken_is_stored_when_somebody_waits_for_that() -> None:
    sending = AckSending(0, TERM)
    assert sending.begin(1, False) is Send.CHANGES
    sending.answered(TERM)
    assert (sending.taken, sending.stored) == (1, -1)
    assert sending.begin(1, False) is None
    assert sending.wants(1, True)
    assert sending.begin(1, True) is Send.CHANGES, "which are none"
    sending.answered(TERM)
    assert sending.stored == 1
    assert not sending.wants(1, True)


def test_what_was_lent_is_not_known_to_be_stored() -> None:
    """The owner has taken it, perhaps a moment ago."""
    sending = AckSending(5, TERM)
    assert not sending.wants(5, False)
    assert sending.begin(5, True) is Send.CHANGES, "which are none"
    sending.answered(TERM + 1)
    assert sending.begin(5, True) is Send.WHOLE, "another owner may have found less"
    sending.answered(TERM + 1)
    assert sending.begin(5, True) is None


def test_an_owner_that_changes_while_an_image_is_under_way_is_told_all() -> None:
    sending = AckSending(0, TERM)
    assert sending.begin(1, True) is Send.CHANGES
    sending.say_again()
    sending.answered(TERM)
    assert sending.begin(1, True) is Send.WHOLE


def test_changes_that_another_term_took_are_no_use_to_it() -> None:
    sending = AckSending(0, TERM)
    sending.begin(1, False)
    sending.answered(TERM)
    assert sending.begin(2, True) is Send.CHANGES
    sending.answered(TERM + 1)
    assert (sending.taken, sending.stored) == (1, -1), "it does not know what the former one took"
    assert sending.begin(2, True) is Send.WHOLE
    sending.answered(TERM + 1)
    assert sending.stored == 2
    assert sending.begin(3, True) is Send.CHANGES
    sending.sends_whole()  # a reset
    sending.answered(TERM + 2)
    assert sending.stored == 3
    assert sending.begin(4, True) is Send.CHANGES
    sending.answered(TERM + 2)
    assert sending.stored == 4, "that one has taken all before"


@dataclass
class Owner:
    """``stored`` is what its next owner finds; ``state`` may be ahead of it."""

    term: int = TERM

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
        self.term += 1
        self.state = AckState(chain(), self.stored.mark_delete, self.stored.reset_epoch)
        self.state.merge(self.stored)


@dataclass
class Bound:
    """The read-only broker's side. ``answered``: what it was told is stored, if it ``waits``."""

    state: AckState = field(default_factory=lambda: AckState(chain(), Position(3, -1)))
    sending: AckSending = field(default_factory=lambda: AckSending(0, TERM))
    waits: bool = False
    answered: AckImage = NOTHING
    under_way: AckImage | None = None
    wire: list[AckImage] = field(default_factory=list)
    at_send: AckImage = NOTHING

    def begin(self, waits: bool) -> None:
        send = self.sending.begin(self.state.version, waits)
        if send is None:
            return
        self.waits = waits
        changes = self.state.take_changes()
        if changes is None or send is Send.WHOLE:
            self.sending.sends_whole()
            changes = self.state.snapshot()
        self.under_way = changes
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
            bound.begin(rng.random() < 0.5)
        elif (
            what == 6 and bound.wire
        ):  # something old or new arrives, perhaps not for the last time
            owner.merge(rng.choice(bound.wire))
        elif what == 7 and bound.under_way is not None:
            owner.merge(bound.under_way)
            if bound.waits or rng.random() < 0.2:
                owner.store()
            before = bound.sending.stored
            bound.sending.answered(owner.term)
            if bound.sending.stored > before:
                bound.answered = bound.at_send
            bound.under_way = None
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
    for _ in range(4):
        if not (bound.sending.busy or bound.sending.wants(bound.state.version, True)):
            break
        bound.begin(True)
        assert bound.under_way is not None
        owner.merge(bound.under_way)
        owner.store()
        bound.sending.answered(owner.term)
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

    def failed(self: AckSending) -> None:
        self.answered(self._term)

    return AckSending, "failed", failed


def _changes_after_a_failure() -> tuple[type, str, object]:
    """After an image that failed only what changed since then is sent."""

    def failed(self: AckSending) -> None:
        self._under_way, self._again = None, True

    return AckSending, "failed", failed


def _taken_is_stored() -> tuple[type, str, object]:
    """What the owner has taken counts as stored."""
    answered = AckSending.answered

    def stored(self: AckSending, term: int) -> None:
        answered(self, term)
        self.stored = self.taken

    return AckSending, "answered", stored


def _terms_are_one() -> tuple[type, str, object]:
    """What a former owner has taken counts as taken by this one."""
    answered = AckSending.answered

    def any_term(self: AckSending, term: int) -> None:
        answered(self, self._term)

    return AckSending, "answered", any_term


@pytest.mark.parametrize(
    "plant",
    [
        _late_after_reset,
        _dropped_at_a_change,
        _changes_after_a_failure,
        _taken_is_stored,
        _terms_are_one,
    ],
)
def test_such_histories_find_bugs(plant: Callable[[], tuple[type, str, object]]) -> None:
    owner, name, planted = plant()
    with patch.object(owner, name, planted), pytest.raises(AssertionError):
        _many_histories(60)
