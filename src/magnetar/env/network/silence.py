"""Whether a server that is asked has fallen silent: rules for one connection. Pure.

A connection over which nothing arrives any more (a link that drops packets, a server that is
stopped) stays open. Who asks one question after the other sees that no answer comes.

* It is silent when a question is open and nothing was heard for ``bound_s``: no answer, nor the end
  of a question by other means. Time without an open question does not count.
* Whoever looks late (the process stood still) has not heard what has arrived meanwhile: it looks
  again ``GRACE_S`` later.
"""

from __future__ import annotations

from typing import Final

SILENT_SHARE: Final = 2 / 3
"""Of a session timeout: without an answer for so long the connection is taken for lost."""
GRACE_S: Final = 0.5
LATE_S: Final = 0.5


class Silence:
    """Times are of one clock, in seconds."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._open = 0
        self._since_s = 0.0
        self._look_s: float | None = None

    def asked(self, now_s: float) -> float | None:
        """In how many seconds to look; None: that is arranged."""
        if not self._open:
            self._since_s = now_s
        self._open += 1
        if self._look_s is not None:
            return None
        return self._next_look(now_s, self._bound_s)

    def heard(self, now_s: float) -> None:
        """A question has ended."""
        self._open -= 1
        self._since_s = now_s

    def look(self, now_s: float) -> tuple[bool, float | None]:
        """Whether it is silent, and in how many seconds to look again; None: not before the next
        question."""
        assert self._look_s is not None, "a look was asked for"
        late = now_s - self._look_s > LATE_S
        self._look_s = None
        if not self._open:
            return False, None
        left_s = self._since_s + self._bound_s - now_s
        if left_s > 0:
            return False, self._next_look(now_s, left_s)
        if late:
            return False, self._next_look(now_s, GRACE_S)
        return True, self._next_look(now_s, self._bound_s)

    def _next_look(self, now_s: float, in_s: float) -> float:
        self._look_s = now_s + in_s
        return in_s
