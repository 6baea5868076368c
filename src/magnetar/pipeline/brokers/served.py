"""Which clusters serve staged writes, as a process has just seen it.

Spark makes a stream's writer anew for every micro-batch, in two processes; a broker that served
staged writes a moment ago is not asked again. One that is away is: it restarts, and no query is to
end for that. Who gives a wrong address is told so in ``FIRST_S``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.connection import (
    BrokerConnection,
    parse_service_urls,
    worth_another_try,
)
from magnetar.pipeline.brokers.link import check_serves

KNOWN_S: Final = 10.0
FIRST_S: Final = 10.0
"""How long a cluster is asked that this process has not seen yet. (A stream has new processes.)"""
PAUSE_S: Final = 0.2


class Served:
    """``ask(service_url, timeout_s)`` raises ``BrokerError`` if it does not."""

    def __init__(
        self,
        ask: Callable[[str, float], None],
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ask = ask
        self._sleep = sleep
        self._clock_s = clock_s
        self._seen_s: dict[str, float] = {}

    def check(self, service_url: str, timeout_s: float) -> None:
        """Asks for ``timeout_s`` if nobody answers. Raises as ``ask``."""
        now_s = self._clock_s()
        seen_s = self._seen_s.get(service_url)
        if seen_s is not None and now_s < seen_s + KNOWN_S:
            return
        until_s = now_s + (timeout_s if seen_s is not None else min(timeout_s, FIRST_S))
        while True:
            try:
                self._ask(service_url, timeout_s)
                break
            except BrokerError as error:
                if not worth_another_try(error) or self._clock_s() + PAUSE_S > until_s:
                    raise
            self._sleep(PAUSE_S)
        self._seen_s[service_url] = self._clock_s()


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
