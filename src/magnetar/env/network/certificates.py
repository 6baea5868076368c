"""Names in certificates that the other end of a connection has shown."""

from __future__ import annotations

import asyncio


def peer_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name of the peer's certificate, verified by TLS; None: it has shown none, or the
    connection is plain."""
    shown = transport.get_extra_info("peercert")
    if not isinstance(shown, dict):
        return None
    names = [
        value for part in shown.get("subject", ()) for key, value in part if key == "commonName"
    ]
    # Several would be several roles.
    return str(names[0]) if len(names) == 1 else None
