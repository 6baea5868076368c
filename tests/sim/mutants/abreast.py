"""Ring 2: bookies that handle the adds of several ledgers in one chunk wrongly."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from magnetar.bookie.journal.journal import Request
from magnetar.bookie.journal.journal_format import ENTRY
from magnetar.bookie.ledgers import adds
from magnetar.bookie.ledgers.adds import Adds
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _answered_before_the_commit() -> AbstractContextManager[None]:
    """The runs of a chunk are answered when the journal has been asked to store them."""
    original = Adds._append_group

    def append(self: Any, group: Any, done: Any) -> None:
        original(self, group, lambda *_: None)
        if group is not None:
            asyncio.get_running_loop().call_soon(done, None, group.runs, ())

    return replaced((Adds, "_append_group", append))


def _one_run_journaled() -> AbstractContextManager[None]:
    """Of the runs of a chunk the journal gets the last one's entries."""

    def append(self: Any, group: Any, done: Any) -> None:
        if group is not None:
            answer = partial(adds._tell_all, done, group.runs)
            entries = list(group.runs[-1].entries)
            size = sum(map(len, entries))
            group.journal.append(Request(ENTRY, entries, size, answer, ()))

    return replaced((Adds, "_append_group", append))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, kind="abreast")


ABREAST: tuple[Mutant, ...] = (
    _mutant("the runs of a chunk are answered before their commit", _answered_before_the_commit),
    _mutant("of the runs of a chunk the last one is journaled", _one_run_journaled),
)
