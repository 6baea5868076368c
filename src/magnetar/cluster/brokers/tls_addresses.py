"""Where brokers are reached by TLS, by their plain addresses: those are what owners' nodes,
bindings and redirects name, and each broker's report has both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from magnetar.cluster.brokers.reports import BrokerReport


class TlsAddresses:
    """``reports``: of all brokers, kept in memory by who gives them. An empty text: there is no
    such broker, or it has no TLS."""

    def __init__(self, reports: Callable[[], Awaitable[Mapping[str, BrokerReport]]]) -> None:
        self._reports = reports
        self._known: dict[str, str] = {}

    async def of(self, url: str) -> str:
        """The TLS address of the broker at the plain ``url``, of Pulsar's protocol or of REST.
        Raises ``MetadataError``."""
        found: dict[str, str] = {}
        for report in (await self._reports()).values():
            found[report.service_url] = report.service_url_tls
            found[report.http_url] = report.http_url_tls
        self._known = found
        return self.known(url)

    def known(self, url: str) -> str:
        """As ``of``, as it was when it was asked last."""
        return self._known.get(url, "")
