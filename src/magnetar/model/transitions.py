"""Transition tables of deciding machines, as data.

A machine states its table once. The code takes its next state from it (``next_states``), the
page ``docs/machines.md`` is made from it, and a test walks the machine at random: what it does
must be in the table, and every line of the table must be met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class Transition(NamedTuple, Generic[State, Event]):
    """In ``state`` an ``event`` leads to ``following``; ``effect`` says what happens."""

    state: State
    event: Event
    following: State
    effect: str


def next_states(
    table: Sequence[Transition[State, Event]],
) -> Mapping[tuple[State, Event], State]:
    """The state after each event, by (state, event). A table that says two things is a defect."""
    found: dict[tuple[State, Event], State] = {}
    for line in table:
        key = (line.state, line.event)
        assert found.setdefault(key, line.following) is line.following, f"{key} leads to two states"
    return MappingProxyType(found)
