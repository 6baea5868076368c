"""The type of the fixture ``counts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Counts: TypeAlias = Callable[[str], None]
