"""Devices of a simulated disk: what fails, fills and slows down together.

A machine has one for everything, or besides it one per directory that is mounted by itself. What
is said of the whole disk (``SimDisk``) holds for all of its devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Device:
    """``capacity_bytes`` None: as much as the machine has. Times are those of the loop, seconds."""

    root: Path | None
    slowness: float = 1.0
    fails_reads: bool = False
    fails_writes: bool = False
    capacity_bytes: int | None = None
    busy_until_s: float = 0.0
    hindered_s: float = -1.0
    """Until when an operation has failed, or taken longer than it should."""

    def holds(self, path: Path) -> bool:
        return self.root is None or path.is_relative_to(self.root)

    @property
    def sound(self) -> bool:
        """Nothing is wrong with it by itself."""
        fails = self.fails_reads or self.fails_writes
        return not fails and self.slowness == 1.0 and self.capacity_bytes is None

    def heal(self) -> None:
        self.fails_reads = self.fails_writes = False
        self.slowness = 1.0
        self.capacity_bytes = None
