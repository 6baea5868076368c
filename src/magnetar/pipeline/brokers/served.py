"""Which clusters serve staged writes, as a process has just seen it.

Spark makes a stream's writer anew for every micro-batch, in two processes; a broker that served
staged writes a moment ago is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.connection import BrokerConnection, parse_service_urls
from magnetar.pipeline.brokers.link import check_serves

KNOWN_S: Final = 10.0


class Served:
    """``ask(service_url, timeout_s)`` raises ``BrokerError`` if it does not."""

    def __init__(
        self,
        ask: Callable[[str, float], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._seen_s: dict[str, float] = {}

    def check(self, service_url: str, timeout_s: float) -> None:
        """Raises as ``ask``."""
        now_s = self._clock_s()
        seen_s = self._seen_s.get(service_url)
        if seen_s is None or now_s >= seen_s + KNOWN_S:
            self._ask(service_url, timeout_s)
            self._seen_s[service_url] = now_s


def ask_served(service_url: str, timeout_s: float) -> None:
    """Raises ``BrokerError`` if nobody answers, or the broker serves no staged writes."""
    failures = []
    for address in parse_service_urls(service_url):
        try:
            connection = BrokerConnection(address, timeout_s)
        except BrokerError as error:
            failures.append(error)
            continue
        connection.close()
        check_serves(connection.greeting, str(connection))
        return
    raise failures[0]


SERVED: Final = Served(ask_served)
"""As this process has seen it."""
