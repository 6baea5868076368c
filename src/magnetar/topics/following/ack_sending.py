"""What of a lent cursor's acknowledgements is sent to its owner next: the deciding machine.

The state has versions; what is sent is an image of it (``log.acknowledgements``), and an image may
be merged twice, late, and after later ones of the same reset epoch. So nothing is queued: one image
is under way, and what changes meanwhile is the next one.

An image is asked to be *stored* when somebody waits for that; else it is enough that the owner has
*taken* it: the owner stores it as it stores what its own consumers acknowledge, many cursors at a
time. What was taken and not stored goes with the owner's memory. So each answer names the owner's
*term*, another one for each opening of the cursor after an owner that did not store all: an image
of changes that another term took than all before it is no use, since that term does not know what
the former one had taken.

=============  ===========================================  ===========================
state          event                                        what follows
=============  ===========================================  ===========================
rest           something changed, or is to be stored        send the changes: under way
rest           nothing changed                              rest
rest           the owner may know less than it was told     send the whole: under way
under way      something changed                            under way; then more is sent
under way      answered, by the term that took all before   taken, or stored, up to there: rest
under way      answered by another term; it was the whole   as above; that term has taken all
under way      answered by another term; it was changes     rest; the next image is the whole
under way      failed, or the owner may know less           rest; the next image is the whole
=============  ===========================================  ===========================

"May know less": another owner, or a connection that broke. What it has stored it knows; of what
it has not, nobody knows.

At first all is taken, for the owner has said it, and nothing is known to be stored: it may have
been acknowledged there, or where it was served before, a moment ago.

Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Send(Enum):
    """An image of what."""

    CHANGES = "changes"  # since the last image that was taken from the state
    WHOLE = "whole"


class _UnderWay(NamedTuple):
    version: int
    send: Send
    stored: bool


class AckSending:
    """Of one cursor, whose state has ``version`` at the owner, in its ``term``."""

    def __init__(self, version: int, term: int) -> None:
        self.taken = version
        self.stored = version - 1
        self._term = term
        self._under_way: _UnderWay | None = None
        self._whole = False
        self._again = False

    @property
    def busy(self) -> bool:
        """An image is under way."""
        return self._under_way is not None

    def wants(self, version: int, stored: bool) -> bool:
        """Whether there is something to send, now or when the image under way is answered, so that
        all of that version is taken, or ``stored``."""
        return self._again or (self.stored if stored else self.taken) < version

    def begin(self, version: int, stored: bool) -> Send | None:
        """What to send now, of the state of that version, to be taken or ``stored``; None:
        nothing."""
        if self.busy or not self.wants(version, stored):
            return None
        send = Send.WHOLE if self._whole else Send.CHANGES
        self._under_way, self._whole, self._again = _UnderWay(version, send, stored), False, False
        return send

    def sends_whole(self) -> None:
        """Only the whole state can say what changed."""
        assert self._under_way is not None
        self._under_way = self._under_way._replace(send=Send.WHOLE)

    def answered(self, term: int) -> None:
        """What is under way was taken in that term, and is stored if that was asked for."""
        under_way = self._under_way
        assert under_way is not None
        if term != self._term and under_way.send is Send.CHANGES:
            self.failed()
            return
        self._under_way, self._term = None, term
        self.taken = under_way.version
        if under_way.stored:
            self.stored = under_way.version

    def failed(self) -> None:
        """No answer will come, or a refusal has."""
        assert self._under_way is not None
        self._under_way = None
        self.say_again()

    def say_again(self) -> None:
        """The owner may know less than it was told."""
        self._whole = self._again = True
