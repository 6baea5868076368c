"""Which broker gets a bundle that nobody owns.

The one with the least load, of those that take any. Load is what brokers report of themselves
(``reports``), and what was sent to them since: reports are seconds old, and in these a whole
namespace may be asked for. Where loads are the same a hash of bundle and broker decides, so that
several brokers that are asked at once mostly say the same.

A bundle that was sent to a broker and is still nobody's is sent there again: clients that ask for
its topics meanwhile must not be spread over brokers, of which all but one would send them on.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle

MESSAGES_PER_S_OF_A_BUNDLE = 2000.0
"""Messages in and out a second that weigh as much as a bundle does by itself."""


class BundlePlacement:
    """The choices of one broker, for bundles that it is asked for."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[BrokerReport, dict[Bundle, None]]] = {}
        """By broker: its report then, and what was sent to it since that."""

    def choose(self, bundle: Bundle, reports: Mapping[str, BrokerReport]) -> str | None:
        """The id of a broker in ``reports``; None if none takes bundles now."""
        self._forget_old(reports)
        able = [name for name, report in reports.items() if report.takes_bundles]
        if not able:
            return None
        for name in able:
            if name in self._sent and bundle in self._sent[name][1]:
                return name
        loads = {name: self._load(name, reports[name]) for name in able}
        least = min(loads.values())
        equal = [name for name in able if loads[name] == least]
        chosen = min(equal, key=lambda name: _tie(bundle, name))
        self._sent.setdefault(chosen, (reports[chosen], {}))[1][bundle] = None
        return chosen

    def _forget_old(self, reports: Mapping[str, BrokerReport]) -> None:
        """A report that came since counts what was taken."""
        for name, (report, _) in list(self._sent.items()):
            now = reports.get(name)
            if now is not report and now != report:  # mostly the same object: there are many
                del self._sent[name]

    def _load(self, name: str, report: BrokerReport) -> float:
        sent = len(self._sent[name][1]) if name in self._sent else 0
        return load_of(report) + sent


def load_of(report: BrokerReport) -> float:
    """How much a broker has to do, in bundles that move nothing."""
    messages_per_s = report.messages_in_per_s + report.messages_out_per_s
    return report.bundles + messages_per_s // MESSAGES_PER_S_OF_A_BUNDLE


def _tie(bundle: Bundle, broker: str) -> int:
    return crc32(f"{bundle} {broker}".encode())
