"""The address of a ZooKeeper ensemble: ``zk://HOST:PORT[,HOST:PORT...]/ROOT``."""

from __future__ import annotations

import socket
from typing import NamedTuple

from magnetar.env.metadata_stores.metadata_paths import check_path
from magnetar.model.errors import ConfigError, MetadataError
from magnetar.model.host_names import is_host_name

SCHEME = "zk://"
DEFAULT_PORT = 2181
_PORT_MAX = 65535


class ZooKeeperAddress(NamedTuple):
    """``hosts`` as ``host:port,host:port``; ``root`` without a trailing ``/``, empty for none."""

    hosts: str
    root: str

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.hosts}{self.root or '/'}"


def unresolved(hosts: str) -> list[str]:
    """Names of ``host:port,host:port`` that stand for no address on this machine. Blocking."""
    found = []
    for each in hosts.split(","):
        name = each.rpartition(":")[0].removeprefix("[").removesuffix("]")
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            found.append(name)
    return found


def parse_zookeeper_url(url: str) -> ZooKeeperAddress:
    """Raises ``ConfigError`` that shows what a right one looks like."""
    if not url.startswith(SCHEME):
        raise _refused(url, f"it does not start with {SCHEME}")
    hosts, slash, root = url.removeprefix(SCHEME).partition("/")
    addresses = [_address(url, host.strip()) for host in hosts.split(",")]
    root = (slash + root).rstrip("/")
    if root:
        try:
            check_path(root)
        except MetadataError as error:
            raise _refused(url, f"its root is {root!r}") from error
    return ZooKeeperAddress(",".join(addresses), root)


def _address(url: str, host: str) -> str:
    """One ``host:port``; IPv6 addresses stand in brackets."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(DEFAULT_PORT)
    if not name or (":" in name and not name.startswith("[")):
        raise _refused(url, f"{host!r} is no HOST:PORT")
    if not is_host_name(name):
        raise _refused(url, f"{name!r} can be no host's name")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _PORT_MAX:
        raise _refused(url, f"{port!r} is no port")
    return f"{name}:{port}"


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"{url!r} is no address of ZooKeeper: {why}; expected "
        f"zk://HOST:PORT[,HOST:PORT...]/ROOT, such as zk://127.0.0.1:2181/magnetar"
    )
