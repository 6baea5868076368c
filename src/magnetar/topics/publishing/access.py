"""Which producers may be connected to a topic at the same time. Pure.

| mode | refused (or queued) when | otherwise |
|---|---|---|
| shared | an exclusive producer is connected, or one waits: busy | connected |
| exclusive | any producer is connected or waits: fenced | connected, topic epoch + 1 |
| exclusive with fencing | never | the others are fenced, connected, topic epoch + 1 |
| wait for exclusive | any producer is connected or waits: queued | connected, topic epoch + 1 |

A producer that comes back claims the topic epoch that it was given. One below the topic's is fenced
in every exclusive mode: somebody had the topic to himself since. With the topic's own it is who had
the topic last, and keeps that epoch: were it raised, whoever does not hear the answer would be
fenced by itself. A new one is stored before the producer is answered, by the caller, so that this
holds over restarts. Epochs begin anew with a topic that was deleted, at numbers that it did not
have before (``cluster.stored.counters``): its claims are none of the topic's own.

A producer's name is unique among the connected. Of the same name as a connected one

* a later incarnation of it (a higher epoch) takes its place: the same client on a new connection.
  It is one if the name was generated, or if it has the topic's epoch, as the connected one;
* one that waits, or fences the others, is decided on by its mode alone: instances of an application
  that take turns have one name, so that what each sends is deduplicated;
* others are refused as long as the connected one lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from magnetar.model.errors import ProducerBusyError, ProducerFencedError


class AccessMode(IntEnum):
    """Values are those of Pulsar's ``ProducerAccessMode``."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Verdict(IntEnum):
    CONNECT = 0
    CONNECT_WITH_NEW_EPOCH = 1
    FENCE_OTHERS = 2  # then as CONNECT_WITH_NEW_EPOCH
    QUEUE = 3


def decide(
    topic: str,
    mode: AccessMode,
    modes_connected: Mapping[str, AccessMode],
    waiting: int,
) -> Verdict:
    """What to do with a new producer.

    ``modes_connected``: the connected producers' names and modes; ``waiting``: how many are queued.
    Raises ``ProducerBusyError`` or ``ProducerFencedError``.
    """
    exclusive = next((n for n, m in modes_connected.items() if m is not AccessMode.SHARED), None)
    if mode is AccessMode.SHARED:
        if exclusive is not None or waiting:
            raise ProducerBusyError(
                f"topic {topic} has an exclusive producer ({exclusive or 'waiting for it'}); "
                "close it first"
            )
        return Verdict.CONNECT
    if mode is AccessMode.EXCLUSIVE_WITH_FENCING:
        return Verdict.FENCE_OTHERS
    if not modes_connected and not waiting:
        return Verdict.CONNECT_WITH_NEW_EPOCH
    if mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        return Verdict.QUEUE
    raise ProducerFencedError(
        f"topic {topic} has {len(modes_connected)} producers connected and {waiting} waiting; "
        "exclusive access needs none"
    )


def check_claim(topic: str, topic_epoch: int, claimed_epoch: int | None) -> None:
    """Raise ``ProducerFencedError`` if somebody had the topic to himself since the producer had.
    ``claimed_epoch``: that which it was given, None: it had none."""
    if claimed_epoch is not None and claimed_epoch < topic_epoch:
        raise ProducerFencedError(
            f"topic {topic} has had another exclusive producer since (epoch {topic_epoch}, this "
            f"producer had {claimed_epoch}); create a new producer"
        )


class Incarnation(NamedTuple):
    """What tells a producer from others of its name. ``claimed_epoch``: of the topic."""

    mode: AccessMode
    generated_name: bool
    epoch: int
    claimed_epoch: int | None = None


def replaces(new: Incarnation, old: Incarnation, topic_epoch: int | None) -> bool:
    """Whether a producer takes the place of the connected one of its name."""
    if new.epoch <= old.epoch:
        return False
    if new.generated_name and old.generated_name:
        return True
    exclusive = AccessMode.SHARED not in (new.mode, old.mode)
    return exclusive and new.claimed_epoch is not None and new.claimed_epoch == topic_epoch


def bears_namesake(mode: AccessMode) -> bool:
    """Whether a producer may be asked for while another of its name is connected."""
    return mode in (AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING)
