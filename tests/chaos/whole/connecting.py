"""What the client processes have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

import pulsar

QUIET: Final = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
AGAIN_S: Final = 0.5
GIVE_UP_S: Final = 300.0

T = TypeVar("T")


def connect(service_url: str) -> pulsar.Client:
    log = os.environ.get("MAGNETAR_CHAOS_CLIENT_LOG")
    logger = (
        pulsar.FileLogger(pulsar.LoggerLevel.Info, f"{log}-{os.getpid()}.log") if log else QUIET
    )
    return pulsar.Client(
        service_url,
        operation_timeout_seconds=30,
        connection_timeout_ms=3000,
        message_listener_threads=2,
        logger=logger,
    )


def until_it_works(ask: Callable[[], T]) -> T:
    """An application that starts while its cluster burns tries again."""
    deadline_s = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return ask()
        except pulsar.PulsarException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(AGAIN_S)
