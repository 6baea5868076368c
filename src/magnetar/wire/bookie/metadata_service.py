"""What a registered bookie says of itself: ``BookieServiceInfoFormat``, in protobuf.

The node ``available/<bookie id>`` (``available/readonly/<bookie id>``) holds it. Bookies older
than 4.12 left the node empty; their id is their address.

Source: BookKeeper's ``ZKRegistrationManager``, ``ZKRegistrationClient``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.metadata_pb2 import BookieServiceInfoFormat

RPC_PROTOCOL = "bookie-rpc"
REFUSAL_PROPERTY = "magnetar.read_only.reason"
"""Why a bookie that is registered as read-only takes no entries, for people."""
LACKS_SPACE_PROPERTY = "magnetar.read_only.lacks_space"
"""Beside it, ``true``: for want of space on its disks."""
PROCESS_PROPERTY = "magnetar.process"
"""Tells the processes of one bookie id apart; bookies of this platform have it, and no others."""
HTTP_PROTOCOL = "http"
_RPC_ENDPOINT_ID = "bookie"
_PORT_MAX = 65535


class Endpoint(NamedTuple):
    """One service of a bookie; ``protocol`` is ``bookie-rpc`` for the storage protocol."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...]
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_address(cls, host: str, port: int) -> BookieServiceInfo:
        return cls((Endpoint(_RPC_ENDPOINT_ID, host, port, RPC_PROTOCOL),))

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the storage protocol; None if the bookie does not offer it."""
        return self._offered(RPC_PROTOCOL)

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of its HTTP server; None if it says of none."""
        return self._offered(HTTP_PROTOCOL)

    def _offered(self, protocol: str) -> tuple[str, int] | None:
        for endpoint in self.endpoints:
            if endpoint.protocol == protocol:
                return endpoint.host, endpoint.port
        return None


def encode_service_info(info: BookieServiceInfo) -> bytes:
    message = BookieServiceInfoFormat()
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    message.properties.update(info.properties)
    return message.SerializeToString(deterministic=True)


def decode_service_info(bookie_id: str, data: bytes) -> BookieServiceInfo:
    """Raises ``MetadataFormatError``."""
    if not data:
        return _of_id(bookie_id)
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise _unreadable(bookie_id, str(error)) from error
    if not message.IsInitialized():
        raise _unreadable(bookie_id, "an endpoint lacks its id, host, port or protocol")
    endpoints = tuple(
        Endpoint(
            each.id, each.host, each.port, each.protocol, tuple(each.auth), tuple(each.extensions)
        )
        for each in message.endpoints
    )
    for endpoint in endpoints:
        texts: list[object] = [endpoint.id, endpoint.host, endpoint.protocol]
        if not all(isinstance(text, str) for text in texts):  # bytes stand for broken text
            raise _unreadable(bookie_id, "its address is not UTF-8")
        if not 0 <= endpoint.port <= _PORT_MAX:
            raise _unreadable(bookie_id, f"its port is {endpoint.port}")
    return BookieServiceInfo(endpoints, tuple(sorted(message.properties.items())))


def _of_id(bookie_id: str) -> BookieServiceInfo:
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise _unreadable(bookie_id, "it names no address and its id is no host:port")
    return BookieServiceInfo.of_address(host, int(port))


def _unreadable(bookie_id: str, why: str) -> MetadataFormatError:
    return MetadataFormatError(f"the registration of bookie {bookie_id} cannot be read: {why}")
