"""How clients of Kafka's protocol come in by TLS, and how a broker reaches others by it.

Why: docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

from pathlib import Path

from magnetar.app.securing import open_own_token
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.config import Config
from magnetar.env.tls import client_tls, server_tls
from magnetar.model.errors import StartError
from magnetar.protocols.kafka.lines import BrokerWay
from magnetar.protocols.kafka.server import KafkaDoors


def open_doors(config: Config, authenticator: Authenticator | None, shares: bool) -> KafkaDoors:
    """``shares``: there are other brokers. Raises ``ConfigError``, ``StartError``."""
    kafka, tls = config.kafka, config.tls
    if not kafka.listens:
        return KafkaDoors()
    files = None
    if kafka.tls_port >= 0:
        trusted = _path(tls.trusted_file)
        files = server_tls(
            Path(tls.certificate_file), Path(tls.key_file), trusted, tls.client_certificates
        )
    between = None
    if shares and tls.between_brokers:
        if kafka.tls_port < 0:
            raise StartError(
                "tls.between_brokers is on, and brokers ask one another by Kafka's protocol, too: "
                "set kafka.tls_port, or turn Kafka's protocol off (kafka.port=-1)"
            )
        between = client_tls(
            _path(tls.trusted_file), _path(tls.certificate_file), _path(tls.key_file)
        ).context
    token = None if authenticator is None else open_own_token(config, authenticator, shares)
    return KafkaDoors(files, tls, BrokerWay(token, between))


def _path(name: str) -> Path | None:
    return Path(name) if name else None
