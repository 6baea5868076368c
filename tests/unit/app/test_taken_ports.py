"""A server whose port is taken leaves nothing behind: above all no cookie, with which no other
directory may begin under the bookie's name."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.app import roles, standalone
from magnetar.config import BookieConfig, BrokerConfig, Config, HttpConfig, MetadataConfig
from magnetar.model.errors import StartError


def test_a_bookie_whose_port_is_taken_does_not_begin(tmp_path: Path) -> None:
    async def run(port: int) -> None:
        config = Config(
            data_dir=tmp_path / "data",
            bookie=BookieConfig(port=port),
            http=HttpConfig(port=-1),
            metadata=MetadataConfig(url="zk://127.0.0.1:9/nobody-is-asked"),
        )
        await roles.run_bookie(config, False, lambda line: None, asyncio.Event())

    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(StartError, match=r"bookie\.port = .*another process listens"),
    ):
        asyncio.run(run(other.getsockname()[1]))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("part", ["broker", "kafka"])
def test_a_standalone_whose_port_is_taken_makes_no_storage(tmp_path: Path, part: str) -> None:
    async def run(port: int) -> None:
        config = Config(data_dir=tmp_path, broker=BrokerConfig(port=0), http=HttpConfig(port=0))
        config = replace(config, **{part: replace(getattr(config, part), port=port)})
        await standalone.run(config, 1, False, lambda line: None, asyncio.Event())

    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(StartError, match=rf"{part}\.port = .*another process listens"),
    ):
        asyncio.run(run(other.getsockname()[1]))
    assert [each.name for each in tmp_path.iterdir()] == ["LOCK"]
