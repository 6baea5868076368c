"""Lookups of ledgers' records in a directory's index, in a thread of their own: a disk that hangs
holds up who asks for these ledgers, and not the loop.

One job answers all that was asked for before it ended: to wake the thread costs more than most
lookups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import structlog

from magnetar.env.files.disk import Lane
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)

TOLD_AT_ONCE = 16
"""Answers that leave the thread together; who asked first waits for the last of them."""

Found: TypeAlias = Callable[[bytes | None, BookieIOError | None], None]
"""``found(record, error)``; no record and no error: there is none."""


class Lookups:
    """``find`` is called in ``lane``; it may block and raise ``BookieIOError``."""

    def __init__(self, lane: Lane, find: Callable[[int], bytes | None]) -> None:
        self._lane = lane
        self._find = find
        self._wanted: deque[tuple[int, Found]] = deque()
        self._job_to_come = False  # what is wanted now will be seen by it

    def ask(self, ledger_id: int, found: Found) -> None:
        """On the loop; ``found`` is called there, later, once."""
        self._wanted.append((ledger_id, found))
        if not self._job_to_come:
            self._job_to_come = True
            self._lane.submit(self._answer_all)

    def _answer_all(self) -> None:
        """In the lane, which alone takes from ``_wanted``."""
        self._job_to_come = False  # first: what is asked for from here on may not be seen
        while self._wanted:
            answers: list[tuple[Found, bytes | None, BookieIOError | None]] = []
            while self._wanted and len(answers) < TOLD_AT_ONCE:
                ledger_id, found = self._wanted.popleft()
                answers.append((found, *self._look_up(ledger_id)))
            self._lane.post(_tell, answers)

    def _look_up(self, ledger_id: int) -> tuple[bytes | None, BookieIOError | None]:
        try:
            return self._find(ledger_id), None
        except BookieIOError as error:
            return None, error
        except Exception as error:  # whoever waits is told, whatever it is
            log.error("lookup failed", ledger=ledger_id, error=repr(error), exc_info=error)
            return None, BookieIOError(f"ledger {ledger_id} cannot be looked up: {error!r}")


def _tell(answers: Sequence[tuple[Found, bytes | None, BookieIOError | None]]) -> None:
    for found, record, error in answers:
        found(record, error)
