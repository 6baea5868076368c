"""Clients that own one log, one after the other: who takes over when, and what becomes of the one
before."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar_sim.cluster.cluster import Client, Cluster

OWNERS_MAX: Final = 4


def owners_in_turn(
    cluster: Cluster,
    rng: random.Random,
    end_s: float,
    prefix: str,
    own: Callable[[int, Client, float], Coroutine[Any, Any, None]],
) -> list[Client]:
    """``own`` runs at each, with its number and when it is to begin. The owner before may be
    killed, paused, or know nothing of it."""
    owners = [cluster.client(f"{prefix}{i + 1}") for i in range(rng.randint(1, OWNERS_MAX))]
    takeovers = sorted(rng.uniform(0.5, end_s) for _ in owners[1:])
    loop = cluster.loop
    for number, (owner, begin_s) in enumerate(zip(owners, [0.0, *takeovers], strict=True)):
        owner.process.spawn(own(number, owner, begin_s), "owner")
        if number == 0:
            continue
        before, fate = owners[number - 1], rng.random()
        if fate < 0.4:
            loop.call_at(max(begin_s - rng.random(), loop.time()), before.kill)
        elif fate < 0.7:
            loop.call_at(max(begin_s - rng.random(), loop.time()), before.process.pause)
            loop.call_at(begin_s + 4 * rng.random(), before.process.resume)
    return owners
