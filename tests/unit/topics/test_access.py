from __future__ import annotations

import pytest

from magnetar.model.errors import ProducerBusyError, ProducerFencedError
from magnetar.topics.access import AccessMode, Verdict, decide, replaces

S, E, W, F = (
    AccessMode.SHARED,
    AccessMode.EXCLUSIVE,
    AccessMode.WAIT_FOR_EXCLUSIVE,
    AccessMode.EXCLUSIVE_WITH_FENCING,
)


def verdict(
    mode: AccessMode,
    connected: dict[str, AccessMode],
    waiting: int = 0,
    epoch: int = 3,
    claimed: int | None = None,
) -> Verdict | str:
    try:
        return decide("t", mode, connected, waiting, epoch, claimed)
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


@pytest.mark.parametrize("mode", [E, W, F])
def test_stale_epochs_are_fenced(mode: AccessMode) -> None:
    assert verdict(mode, {}, epoch=3, claimed=2) == "fenced"
    assert verdict(mode, {}, epoch=3, claimed=3) != "fenced"


def test_only_a_later_incarnation_of_a_generated_name_replaces() -> None:
    assert replaces(True, 2, True, 1)
    assert not replaces(True, 1, True, 1)
    assert not replaces(False, 2, True, 1)
    assert not replaces(True, 2, False, 1)
