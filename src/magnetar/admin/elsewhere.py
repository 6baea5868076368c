"""Questions that another broker must answer: about topics and bundles that it owns."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from magnetar.model.errors import BrokerError

AUTHORITATIVE: Final[ContextVar[bool]] = ContextVar("authoritative", default=False)
"""Whether the request under way was sent here by a broker that has chosen this one to own what it
is about. Set per request (``note_authoritative``)."""


class ServedElsewhereError(BrokerError):
    """Another broker serves it; ``http_url`` is its REST. ``candidate``: it is to take it first."""

    def __init__(self, what: object, http_url: str, candidate: bool = False) -> None:
        super().__init__(f"{what} is served by the broker at {http_url}; ask there")
        self.http_url = http_url
        self.candidate = candidate


async def note_authoritative(authoritative: bool = False) -> None:
    """For routes: what brokers add when they send a request on."""
    AUTHORITATIVE.set(authoritative)
