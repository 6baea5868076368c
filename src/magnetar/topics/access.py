"""Which producers may be connected to a topic at the same time. Pure.

| mode | refused (or queued) when | otherwise |
|---|---|---|
| shared | an exclusive producer is connected, or one waits: busy | connected |
| exclusive | any producer is connected or waits: fenced | connected, topic epoch + 1 |
| exclusive with fencing | never | the others are fenced, connected, topic epoch + 1 |
| wait for exclusive | any producer is connected or waits: queued | connected, topic epoch + 1 |

A producer that comes back with a topic epoch below the topic's is fenced in every exclusive mode:
somebody had the topic to himself since. The epoch is stored before the producer is answered, by
the caller, so that this holds over restarts. A producer's name is unique among the connected; one
with a generated name is replaced by a later incarnation of itself (a higher epoch), which is the
same client on a new connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

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
    topic_epoch: int,
    claimed_epoch: int | None,
) -> Verdict:
    """What to do with a new producer.

    ``modes_connected``: the connected producers' names and modes; ``waiting``: how many are
    queued; ``claimed_epoch``: the topic epoch that the producer had before, None for a new one.
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
    if claimed_epoch is not None and claimed_epoch < topic_epoch:
        raise ProducerFencedError(
            f"topic {topic} has had another exclusive producer since (epoch {topic_epoch}, this "
            f"producer had {claimed_epoch}); create a new producer"
        )
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


def replaces(generated_name: bool, epoch: int, old_generated: bool, old_epoch: int) -> bool:
    """Whether a producer takes the place of the connected one of its name."""
    return generated_name and old_generated and epoch > old_epoch
