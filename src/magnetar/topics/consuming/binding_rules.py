"""Who dispatches a subscription: the rules by which a topic's owner binds it to another broker.

A *binding* is a start of a broker and an epoch, which grows with every binding and with the end of
each. The owner decides, and stores what it has decided before anybody acts on it.

==========  ================================================  ==========================
state       event                                             what follows
==========  ================================================  ==========================
free        a registered broker asks for it                   bound to it, next epoch
free        a broker asks that is not registered              refused
bound       the same broker asks, also a later start of it    bound to it, next epoch
bound       another one asks, the first is registered         refused
bound       another one asks, the first is gone               bound to it, next epoch
bound       merge or release, with broker, start and epoch    taken; free, next epoch
any         merge or release, with anything else              the asker has none (any more)
bound       its broker is gone, or silent for too long        free, next epoch
bound       somebody at the owner needs the subscription      free, next epoch
==========  ================================================  ==========================

A broker that asks again gets a new epoch, so that what it said before is told from what it says
now, the late end of its former binding above all.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from magnetar.log.seam import Binding
from magnetar.model.errors import ServiceNotReadyError

ASKED_TIMES: Final = 12
"""So often a bound broker that says nothing is asked whether it serves the subscription, before it
is taken for gone. One that was bound by an answer that it never got says that it does not."""


def patience_s(silence_s: float) -> float:
    """How long a bound broker serves on while no owner answers it: it gives up before it is given
    up, which is after ``silence_s``."""
    return silence_s / 2


def is_asked(silent_s: float, silence_s: float) -> bool:
    """Whether it is time to ask a bound broker that has said nothing for so long."""
    return silent_s >= silence_s / ASKED_TIMES


def give(current: Binding, asker: Binding, starts: Mapping[str, int]) -> Binding:
    """The binding that ``asker`` gets (its epoch is of no account), where ``starts`` are those of
    the brokers that are registered. Raises ``ServiceNotReadyError``."""
    if starts.get(asker.broker_id) != asker.start:
        raise ServiceNotReadyError(
            f"broker {asker.broker_id} is not registered, as far as is known here; try again"
        )
    if current and current.broker_id != asker.broker_id and is_registered(current, starts):
        raise ServiceNotReadyError(f"the subscription is served by {current.service_url}")
    return asker._replace(epoch=current.epoch + 1)


def is_registered(binding: Binding, starts: Mapping[str, int]) -> bool:
    return starts.get(binding.broker_id) == binding.start


def holds(current: Binding, claimed: Binding) -> bool:
    """Whether what is said in the name of ``claimed`` counts."""
    return bool(current) and claimed[:3] == current[:3]


def over(current: Binding) -> Binding:
    """The subscription is the owner's again."""
    return Binding(current.epoch + 1)


def why_over(
    current: Binding, starts: Mapping[str, int], silent_s: float, silence_s: float
) -> str | None:
    """Why the binding has to end by itself, if it has, when its broker has been silent for
    ``silent_s`` and may be for ``silence_s``."""
    if not is_registered(current, starts):
        return "its broker is gone"
    return f"its broker has not spoken for {silent_s:.0f} s" if silent_s >= silence_s else None
