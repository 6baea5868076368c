"""Runs whose topics store nothing twice: how their brokers are configured, and how often producers
send again what they have receipts for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from magnetar.config import BrokerConfig, LedgerConfig

SHARE: Final = 0.2
"""Of the runs with brokers."""
KEEPS_ALL_SHARE: Final = 0.7
"""Of those: nothing is trimmed, so that what is stored can be seen to be."""
ANSWERED_KEPT: Final = 25
"""Entries that a producer has receipts for and may send again."""


class Deduplication:
    """Of the run of ``seed``. By a generator of its own: the other runs stay what they were. (Its
    number leaves those seeds without it that tests hold on to.)"""

    def __init__(self, seed: int, share: float = SHARE) -> None:
        self.random = rng = random.Random(f"{seed}/deduplication 1")
        self.on = rng.random() < share
        self.repeats = rng.choice((0.3, 1.0)) if self.on else 0.0
        """The chance that a producer that comes back sends again what was answered."""
        self._snapshot_entries = rng.choice((1, 4, 30))
        self._keeps_all = rng.random() < KEEPS_ALL_SHARE

    def configured(self, config: BrokerConfig) -> BrokerConfig:
        """``config`` of brokers that deduplicate, if this run's do."""
        if not self.on:
            return config
        return replace(
            config, deduplication=True, deduplication_snapshot_entries=self._snapshot_entries
        )

    def retained(self, config: LedgerConfig) -> LedgerConfig:
        """``config``, and nothing is trimmed in most of this run's kind."""
        if not (self.on and self._keeps_all):
            return config
        return replace(config, retention_ms=-1, retention_bytes=-1)


def deduplicates(seed: int) -> bool:
    """Whether topics of the run of ``seed`` do, if it is one with brokers."""
    return Deduplication(seed).on
