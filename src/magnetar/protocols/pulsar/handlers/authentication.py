"""CONNECT and AUTH_RESPONSE where clients must show who they are.

| ``auth_method_name`` | ``auth_data`` |
|---|---|
| ``token`` | a JSON Web Token |
| ``basic`` | ``name:password`` |
| ``tls`` | nothing: the certificate of the connection |
| ``none``, or nothing | nothing: the certificate, if there is one; else it is anonymous |
| another | whatever: it is anonymous |

Who is anonymous has ``security.anonymous_role``, or is refused where that is not set. A client
that is refused hears AuthenticationError, and is disconnected; the clients of C++ and Go hear it
with their requests, and nothing else. What a password costs in CPU is done on a thread; the
connection is not read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from magnetar.cluster.security.access import Access
from magnetar.cluster.security.authenticator import Authenticator
from magnetar.cluster.security.principals import Principal, refusal
from magnetar.env.tasks import fails
from magnetar.model.errors import AuthenticationError, ProtocolError
from magnetar.protocols.pulsar.clients import hears_refused_connect
from magnetar.protocols.pulsar.identity import Identity
from magnetar.protocols.pulsar.session import Paused, Session
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandConnect
from magnetar.wire.pulsar.replies import NO_REQUEST_ID, error

log = structlog.get_logger(__name__)

DATA_BYTES_MAX: Final = 64 << 10
DENIED_S: Final = 5.0
"""How long a client that is refused is told so."""
BASIC: Final = "basic"


def authenticate(session: Session, request: CommandConnect, accept: Callable[[], None]) -> None:
    """Find out who a client is that has sent CONNECT, and ``accept`` it or end the connection."""
    access = session.services.access
    assert access is not None, "asked only where somebody asks"

    def refuse(why: str) -> None:
        if hears_refused_connect(request.client_version):
            session.end_refused(why)
        elif not session.closed:
            _deny(session, why, accept)

    if request.original_principal or request.original_auth_data or request.proxy_to_broker_url:
        refuse("it speaks for another client: proxies are not served")
        return
    method, data = request.auth_method_name, request.auth_data
    refreshes = request.feature_flags.supports_auth_refresh

    def known(principal: Principal) -> None:
        clock = session.services.clock
        session.identity = Identity(session, principal, method, refreshes, clock)
        accept()

    _find_out(session, access, (method, data), known, refuse)


def _deny(session: Session, why: str, accept: Callable[[], None]) -> None:
    """Say CONNECTED to a client that hears nothing else, and that it is refused to each of its
    requests, for a while."""
    session.services.connections.say_refused(session.peer, f"authentication failed: {why}")
    session.denied = True
    accept()
    session.resume(Paused.AUTHENTICATION)
    asyncio.get_running_loop().call_later(DENIED_S, session.close)


def respond(session: Session, command: BaseCommand) -> None:
    """AUTH_RESPONSE: what the client shows when it is asked again."""
    identity, access = session.identity, session.services.access
    if identity is None or access is None:
        session.write(error(NO_REQUEST_ID, ServerError.NOT_ALLOWED, "AUTH_RESPONSE is not served"))
        return
    if not identity.asked:
        raise ProtocolError("AUTH_RESPONSE without AUTH_CHALLENGE")
    answer, found = command.authResponse.response, identity
    if answer.auth_method_name != identity.method:
        session.end_refused("it shows something of another kind than before")
        return

    def known(principal: Principal) -> None:
        if principal.role != found.principal.role:
            session.end_refused(f"it was {found.principal.role}, and now is {principal.role}")
        else:
            found.renew(principal)

    shown = answer.auth_method_name, answer.auth_data
    _find_out(session, access, shown, known, session.end_refused)


def _find_out(
    session: Session,
    access: Access,
    shown: tuple[str, bytes],
    known: Callable[[Principal], None],
    refuse: Callable[[str], None],
) -> None:
    method, data = shown
    if method != BASIC:
        try:
            known(_principal(session, access.authenticator, method, data))
        except AuthenticationError as refused:
            refuse(refused.why)
        return

    async def find_out() -> None:
        try:
            principal = await access.by_basic(_text(data))
        except AuthenticationError as refused:
            refuse(refused.why)
            return
        if not session.closed:
            known(principal)
            session.resume(Paused.AUTHENTICATION)

    def failed(_task: str, _error: BaseException) -> None:
        session.close()

    session.pause(Paused.AUTHENTICATION)
    session.services.scope.spawn(find_out(), f"password of {session.peer}", fails(failed))


def _principal(
    session: Session, authenticator: Authenticator, method: str, data: bytes
) -> Principal:
    if method == "token":
        return authenticator.by_token(_text(data))
    if method in ("tls", "none", ""):
        name = session.certificate_name()
        if name is not None:
            return authenticator.by_certificate(name)
        if method == "tls":
            raise refusal("it shows no certificate, or does not speak TLS")
        return authenticator.anonymous()
    why = f"method {method[:40]!r} is not served; served are token, basic and tls"
    found = authenticator.anonymous(why)
    log.info("client is anonymous", peer=session.peer, role=found.role, why=why)
    return found


def _text(data: bytes) -> str:
    try:
        return data[:DATA_BYTES_MAX].decode()
    except UnicodeDecodeError:
        raise refusal("what it shows is no text") from None
