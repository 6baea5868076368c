from __future__ import annotations

import pytest

from magnetar.model.errors import ProducerBusyError, ProducerFencedError
from magnetar.topics.publishing.access import (
    AccessMode,
    Incarnation,
    Verdict,
    bears_namesake,
    check_claim,
    decide,
    replaces,
)

S, E, W, F = (
    AccessMode.SHARED,
    AccessMode.EXCLUSIVE,
    AccessMode.WAIT_FOR_EXCLUSIVE,
    AccessMode.EXCLUSIVE_WITH_FENCING,
)


def verdict(mode: AccessMode, connected: dict[str, AccessMode], waiting: int = 0) -> Verdict | str:
    try:
        return decide("t", mode, connected, waiting)
    except ProducerBusyError:
        return "busy"
    except ProducerFencedError:
        return "fenced"


@pytest.mark.parametrize(
    ("mode", "nobody", "shared", "exclusive", "waiting"),
    [
        (S, Verdict.CONNECT, Verdict.CONNECT, "busy", "busy"),
        (E, Verdict.CONNECT_WITH_NEW_EPOCH, "fenced", "fenced", "fenced"),
        (W, Verdict.CONNECT_WITH_NEW_EPOCH, Verdict.QUEUE, Verdict.QUEUE, Verdict.QUEUE),
        (F, *[Verdict.FENCE_OTHERS] * 4),
    ],
)
def test_the_table(
    mode: AccessMode, nobody: object, shared: object, exclusive: object, waiting: object
) -> None:
    assert verdict(mode, {}) == nobody
    assert verdict(mode, {"x": S, "y": S}) == shared
    assert verdict(mode, {"x": E}) == exclusive
    assert verdict(mode, {}, waiting=1) == waiting


def test_stale_epochs_are_fenced() -> None:
    with pytest.raises(ProducerFencedError, match=r"epoch 3, this producer had 2"):
        check_claim("t", 3, 2)
    for claimed in (None, 3, 4):
        check_claim("t", 3, claimed)


def test_a_later_incarnation_of_a_generated_name_replaces() -> None:
    old = Incarnation(S, True, 1)
    assert replaces(Incarnation(S, True, 2), old, None)
    assert not replaces(Incarnation(S, True, 1), old, None)
    assert not replaces(Incarnation(S, False, 2), old, None)
    assert not replaces(Incarnation(S, True, 2), old._replace(generated_name=False), None)


def test_who_has_the_epoch_of_the_topic_is_the_one_that_is_connected() -> None:
    old, back = Incarnation(E, False, 0), Incarnation(E, False, 1, 3)
    assert replaces(back, old, 3)
    assert not replaces(back._replace(epoch=0), old, 3)
    assert not replaces(back._replace(claimed_epoch=None), old, 3)
    assert not replaces(back, old, 4)
    assert not replaces(back, old._replace(mode=S), 3)


def test_who_takes_turns_bears_one_of_its_name() -> None:
    assert [bears_namesake(mode) for mode in (S, E, W, F)] == [False, False, True, True]
