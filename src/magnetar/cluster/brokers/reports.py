"""What brokers say of themselves and of the bundles that they own, as it lies in the metadata.

| path | value |
|---|---|
| ``/loadbalance/brokers/<broker id>`` | ``BrokerReport``; ephemeral |
| ``/namespace/<tenant>/<namespace>/<range>`` | ``BundleOwner``; ephemeral |

Both are JSON objects with Pulsar's field names where Pulsar has them. ``start`` is a number that no
other start of a broker has: a broker that comes back under its id is another one.

Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from magnetar.cluster.bundles import Bundle
from magnetar.model.errors import BrokerMetadataError

BROKERS: Final = "/loadbalance/brokers"
OWNERS: Final = "/namespace"
REPORTED_CHANGE: Final = 0.2
"""Load that has changed by less is not worth a write, which every other broker reads."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """A broker that serves: where, and how much it has to do."""

    broker_id: str
    start: int
    service_url: str
    http_url: str
    version: str = ""
    zone: str = ""
    draining: bool = False
    """It gives away what it has, and takes no more."""
    bundles: int = 0
    topics: int = 0
    messages_in_per_s: float = 0.0
    messages_out_per_s: float = 0.0
    read_only: bool = False
    """It owns nothing: it serves subscriptions of topics that other brokers own."""
    kafka_address: str = ""
    """``host:port`` of Kafka's protocol; empty: not served."""
    kafka_tls_address: str = ""
    """As ``kafka_address``, with TLS."""
    node_id: int = -1
    """Its number as a broker of partitions' replicas, over all starts; -1: it has none."""
    lineage: int = 0
    """Of its log directory (``log.partition.log_directory``)."""
    process: int = 0
    """Which start of a process has the log directory."""
    service_url_tls: str = ""
    """As ``service_url``, by TLS (``pulsar+ssl://``); empty: not served."""
    http_url_tls: str = ""
    """As ``http_url``, by TLS (``https://``); empty: not served."""

    @property
    def takes_bundles(self) -> bool:
        return not (self.draining or self.read_only)


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """Who owns a bundle."""

    broker_id: str
    start: int
    service_url: str
    http_url: str


NAMES: Final = {
    "broker_id": "brokerId",
    "service_url": "pulsarServiceUrl",
    "http_url": "webServiceUrl",
    "service_url_tls": "pulsarServiceUrlTls",
    "http_url_tls": "webServiceUrlTls",
    "version": "brokerVersionString",
    "topics": "numTopics",
    "bundles": "numBundles",
    "messages_in_per_s": "msgRateIn",
    "messages_out_per_s": "msgRateOut",
    "read_only": "readOnly",
}
"""In JSON; other fields have their own names."""
OWNER_NAMES: Final = {**NAMES, "service_url": "nativeUrl", "http_url": "httpUrl"}

T = TypeVar("T")


def broker_path(broker_id: str) -> str:
    return f"{BROKERS}/{broker_id}"


def owner_path(bundle: Bundle) -> str:
    return f"{OWNERS}/{bundle}"


def encode_report(report: BrokerReport) -> bytes:
    return _encode(report, NAMES)


def decode_report(path: str, value: bytes) -> BrokerReport:
    """Raises ``BrokerMetadataError``."""
    return _decode(path, value, BrokerReport, NAMES)


def encode_owner(owner: BundleOwner) -> bytes:
    return _encode(owner, OWNER_NAMES)


def decode_owner(path: str, value: bytes) -> BundleOwner:
    """Raises ``BrokerMetadataError``."""
    return _decode(path, value, BundleOwner, OWNER_NAMES)


def _encode(of: Any, names: dict[str, str]) -> bytes:
    said = {names.get(each.name, each.name): getattr(of, each.name) for each in fields(of)}
    return json.dumps(said).encode()


def _decode(path: str, value: bytes, kind: type[T], names: dict[str, str]) -> T:
    try:
        said = json.loads(value)
        known = {each.name: names.get(each.name, each.name) for each in fields(kind)}  # type: ignore[arg-type]
        return kind(**{own: said[name] for own, name in known.items() if name in said})
    except (ValueError, TypeError) as error:
        raise BrokerMetadataError(
            f"{path} holds {value[:80]!r}, which is not what a broker says of itself; if no broker "
            "runs, delete it"
        ) from error


def worth_telling(told: BrokerReport, now: BrokerReport) -> bool:
    """Whether others should know that ``now`` holds, and no longer what they were ``told``."""
    if (told.draining, told.bundles) != (now.draining, now.bundles):
        return True
    return any(
        abs(before - after) > REPORTED_CHANGE * max(before, after, 1000.0)
        for before, after in (
            (told.topics, now.topics),
            (told.messages_in_per_s, now.messages_in_per_s),
            (told.messages_out_per_s, now.messages_out_per_s),
        )
    )
