"""What of a lent cursor's acknowledgements is sent to its owner next: the deciding machine.

The state has versions; what is sent is an image of it (``log.acknowledgements``), and an image may
be merged twice, late, and after later ones of the same reset epoch. So nothing is queued: one image
is under way, and what changes meanwhile is the next one.

=============  ===========================================  ===========================
state          event                                        what follows
=============  ===========================================  ===========================
rest           something changed                            send the changes: under way
rest           nothing changed                              rest
rest           the owner may know less than it has said     send the whole: under way
under way      something changed                            under way; then more is sent
under way      answered                                     all up to its version is stored: rest
under way      failed, or the owner may know less           rest; the next image is the whole
=============  ===========================================  ===========================

"May know less": another owner, or a connection that broke. What it has answered it knows; of what
it has not, nobody knows.

Pure.
"""

from __future__ import annotations

from enum import Enum


class Send(Enum):
    """An image of what."""

    CHANGES = "changes"  # since the last image that was taken
    WHOLE = "whole"


class AckSending:
    """Of one cursor, whose state has ``version`` at the owner."""

    def __init__(self, version: int) -> None:
        self.stored = version
        self._under_way: int | None = None
        self._whole = False
        self._again = False

    @property
    def busy(self) -> bool:
        """An image is under way."""
        return self._under_way is not None

    def wants(self, version: int) -> bool:
        """Whether there is something to send, now or when the image under way is answered."""
        return self._again or self.stored < version

    def begin(self, version: int) -> Send | None:
        """What to send now, of the state of that version; None: nothing."""
        if self.busy or not self.wants(version):
            return None
        send = Send.WHOLE if self._whole else Send.CHANGES
        self._under_way, self._whole, self._again = version, False, False
        return send

    def answered(self) -> None:
        assert self._under_way is not None
        self.stored, self._under_way = self._under_way, None

    def failed(self) -> None:
        """No answer will come, or a refusal has."""
        assert self._under_way is not None
        self._under_way = None
        self.say_again()

    def say_again(self) -> None:
        """The owner may know less than it was sent."""
        self._whole = self._again = True
