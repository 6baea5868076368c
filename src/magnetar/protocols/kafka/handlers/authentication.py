"""SaslHandshake and SaslAuthenticate: a client shows who it is (``sasl_gate``, ``sasl_exchange``).

What fails is answered after ``FAILED_S``, and ends the connection: who guesses waits as long as who
was wrong once. Why it fails stands in this broker's log, and in no answer.

Where nobody must show anything, both are answered with ``ILLEGAL_SASL_STATE``, as Kafka does on a
listener without SASL.

Why: docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from magnetar.cluster.security.principals import REFUSED
from magnetar.model.errors import AuthenticationError, ProtocolError
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.sasl_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

log = structlog.get_logger(__name__)

FAILED_S: Final = 0.1
NOT_NEEDED: Final = "this listener asks nobody who they are; use security.protocol without SASL"
NO_HANDSHAKE: Final = "SaslHandshake comes first"


async def handshake(
    session: KafkaSession, head: RequestHead, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    gate, access = session.gate, session.services.access
    if gate is None or access is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    offered = list(gate.mechanisms)
    if not gate.choose(request.mechanism):
        session.services.connections.refusals.say(
            "SASL mechanism refused", session.peer, mechanism=request.mechanism[:40]
        )
        session.services.traffic.failed_authentications += 1
        session.refused()
        return SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered)
    session.begin_exchange(access, bare_tokens=head.version == 0)
    return SaslHandshakeResponse(ErrorCode.NONE, offered)


async def authenticate(
    session: KafkaSession, head: RequestHead, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    gate, exchange = session.gate, session.exchange
    if gate is None:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, NOT_NEEDED)
    if exchange is None or not gate.exchanging:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, NO_HANDSHAKE)
    try:
        step = await exchange.step(request.auth_bytes)
    except AuthenticationError as error:
        return await _failed(session, "" if exchange.is_refused else error.why)
    except ProtocolError as error:
        return await _failed(session, str(error))
    if step.refused:
        _say_failed(session, step.refused)
    if step.principal is None:
        gate.went_on()
        return SaslAuthenticateResponse(auth_bytes=step.answer)
    now_s = session.services.clock()
    before = gate.principal
    if not gate.proved(step.principal, now_s):
        assert before is not None
        return await _failed(
            session, f"{before.role} shows to be {step.principal.role}", moved=True
        )
    session.known()
    log.debug("client is known", peer=session.peer, role=step.principal.role, by=gate.mechanism)
    return SaslAuthenticateResponse(
        auth_bytes=step.answer, session_lifetime_ms=gate.lifetime_ms(now_s)
    )


async def _failed(
    session: KafkaSession, why: str, *, moved: bool = False
) -> SaslAuthenticateResponse:
    """``why`` empty: it was said. ``moved``: the gate knows."""
    gate = session.gate
    assert gate is not None
    if not moved:
        gate.failed()
    if why:
        _say_failed(session, why)
    await asyncio.sleep(FAILED_S)
    session.refused()
    return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)


def _say_failed(session: KafkaSession, why: str) -> None:
    assert session.gate is not None
    session.services.traffic.failed_authentications += 1
    mechanism = session.gate.mechanism
    session.services.connections.refusals.say(
        "authentication failed", session.peer, warn=True, mechanism=mechanism, why=why
    )
