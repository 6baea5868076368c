"""Logs that are recovered before they are opened: all that they hold can be read."""

from __future__ import annotations


class Whole:
    """Implements ``log.seam.Opening``."""

    end_offset = 0

    async def wait_whole(self) -> None:
        """It is."""
