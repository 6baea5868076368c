"""Ledgers by themselves, as ``ledger_faults`` has them written and read: by whose client is a
stage's to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from magnetar.proving.servers import Server
from magnetar.proving.stage import Stage


class Owner(ABC):
    """Who writes one ledger."""

    ledger_id: int

    @abstractmethod
    async def append(self, messages: int) -> None:
        """So many more entries, each with its id; returns when all are acknowledged."""

    @abstractmethod
    async def close(self) -> None:
        """In order: the ledger has an end."""

    @abstractmethod
    async def abandon(self) -> None:
        """It is gone, and has closed nothing."""


class LedgerWork(ABC):
    """Each call is of a client that knows nothing of what others have seen."""

    @abstractmethod
    def owner(self, ack_quorum: int) -> AbstractAsyncContextManager[Owner]:
        """Of a new ledger on E3 Qw2."""

    @abstractmethod
    async def read(self, ledger_id: int) -> list[int]:
        """The numbers that some replica gives; an open ledger is recovered first. Raises
        ``LedgerRecoveryError``."""


class LedgerStage(Stage):
    """One whose bookies are there without brokers, too."""

    metadata_url: str = ""
    """Where ledgers' metadata are, in BookKeeper's format."""

    @abstractmethod
    def ledgers(self) -> LedgerWork: ...

    @abstractmethod
    def add_bookie(self) -> Server:
        """A new, empty one joins."""

    @abstractmethod
    def auto_recovery(self) -> Server:
        """A process that repairs as soon as a bookie is gone."""
