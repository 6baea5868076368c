"""What is said before the first append of the room that a partition's disk has."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.disk import DiskSpace
from magnetar.log.managed.store import policy_of
from magnetar.log.policy import Engine
from magnetar.model.errors import NoSpaceError
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.partition.world import PartitionWorld


def test_a_disk_that_cannot_tell_its_space_is_not_called_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks is told of want of space and of nothing else; the append tells the rest."""
    spaces: list[DiskSpace | OSError] = [
        DiskSpace(1 << 30, 1 << 29),
        OSError(errno.EIO, "Input/output error"),
        DiskSpace(1 << 30, 1 << 20),
    ]

    def space(path: Path) -> DiskSpace:
        told = spaces.pop(0)
        if isinstance(told, OSError):
            raise told
        return told

    async def scenario() -> None:
        parts, process, config = PartitionWorld(), Process(World()), LedgerConfig()
        policy = replace(policy_of(config), engine=Engine.PARTITION)
        async with parts.running():
            store = parts.store(process, process.store(config), policy, 100)
            log = await store.open(NAME)
            assert parts.host is not None
            monkeypatch.setattr(parts.host.disk, "space", space)
            await store.check_space(NAME)
            await store.check_space(NAME)
            with pytest.raises(NoSpaceError):
                await store.check_space(NAME)
            assert not spaces
            await log.close()

    asyncio.run(scenario())
