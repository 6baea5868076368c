"""How clients of Kafka's protocol come in by TLS, and how a broker reaches others by it.

Why: docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

from magnetar.app.securing import open_server_tls
from magnetar.cluster.security.own import OwnAccess
from magnetar.config import Config
from magnetar.model.errors import StartError
from magnetar.protocols.kafka.lines import BrokerWay
from magnetar.protocols.kafka.server import KafkaDoors


def open_doors(config: Config, own: OwnAccess, shares: bool) -> KafkaDoors:
    """``own``: what other brokers are shown; ``shares``: there are some. Raises ``ConfigError``,
    ``StartError``."""
    kafka = config.kafka
    if not kafka.listens:
        return KafkaDoors()
    files = open_server_tls(config.tls) if kafka.tls_port >= 0 else None
    if not shares:
        return KafkaDoors(files, config.tls)
    if own.tls is not None and kafka.tls_port < 0:
        raise StartError(
            "tls.between_brokers is on, and brokers ask one another by Kafka's protocol, too: set "
            "kafka.tls_port, or turn Kafka's protocol off (kafka.port=-1)"
        )
    between = None if own.tls is None else own.tls.context
    return KafkaDoors(files, config.tls, BrokerWay(own.token, between))
