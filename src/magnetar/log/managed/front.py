"""The front of a log on ledgers: it goes ledger by ledger, as retention and subscriptions let it.
And its epochs: whichever owner wrote an entry, what was readable once is never cut off. Implements
``log.seam.LogFront`` and ``LogEpochs``.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.model.errors import NotAllowedError


class WholeLedgers:
    """See the module's text."""

    offset = 0

    def __init__(self, name: str) -> None:
        self._name = name

    async def delete_before(self, offset: int) -> int:
        """See the seam."""
        raise NotAllowedError(
            f"log {self._name} is on ledgers, whose records are not deleted one by one; use "
            "retention, or the engine 'partition'"
        )


class EpochsOfLedgers:
    """``end_offset``: of what can be read now."""

    def __init__(self, epoch: int, end_offset: Callable[[], int]) -> None:
        self._epoch = epoch
        self._end_offset = end_offset

    async def end_of(self, epoch: int) -> tuple[int, int]:
        """See the seam."""
        return (epoch, self._end_offset()) if 0 <= epoch <= self._epoch else (-1, -1)
