"""Other brokers' REST, for requests that are about several topics: the partitions of one topic may
have as many owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from magnetar.admin.views import View
from magnetar.cluster.brokers.tls_addresses import TlsAddresses
from magnetar.cluster.security.own import OwnAccess
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import (
    BrokerError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

V = TypeVar("V", bound=View)

TIMEOUT_S: Final = 30.0
REDIRECTS_MAX: Final = 5

ERRORS: Final[Mapping[int, type[MagnetarError]]] = {
    404: TopicNotFoundError,
    409: NotAllowedError,
    503: ServiceNotReadyError,
}
"""What an answer's status means; the body says why."""


class PeerError(BrokerError):
    """Another broker cannot be asked, or its answer is none that is expected."""


class PeerAnswer(NamedTuple):
    status: int
    body: Any


def read_answer(view: type[V], body: object, http_url: str) -> V:
    """What the broker at ``http_url`` has answered. Raises ``PeerError`` for what is no ``view``:
    it may be of another release."""
    try:
        return view.model_validate(body)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise PeerError(
            f"the broker at {http_url} answers what cannot be read here ({where}: "
            f"{fault['msg']}); is it of another release? Ask it itself"
        ) from error


class Transport(Protocol):
    """HTTP, following redirects."""

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        """Raises ``PeerError`` when there is no answer."""
        ...


class PeerRequest(NamedTuple):
    """``path`` is encoded."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: object = None


def about_topic(
    method: str,
    name: TopicName,
    what: str = "",
    query: Mapping[str, str] | None = None,
    body: object = None,
) -> PeerRequest:
    """``what`` of the topic, as a path."""
    topic = f"{name.namespace}/{quote(name.local, safe='')}"
    return PeerRequest(method, f"/admin/v2/persistent/{topic}{what}", query or {}, body)


def subscription_path(subscription: str) -> str:
    """Below a topic's. Encoded twice, as Pulsar's clients do it."""
    return f"/subscription/{quote(quote(subscription, safe=''), safe='')}"


class Peers:
    """Questions to other brokers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def ask(self, http_url: str, request: PeerRequest) -> Any:
        """Ask the broker at ``http_url``, which owns what the request is about, or is to own it.
        Raises the error that its answer stands for."""
        url = http_url + request.path
        query = {"authoritative": "true", **request.query}
        answer = await self._transport.ask(request.method, url, query, request.body)
        if answer.status < 300:
            return answer.body
        reason = answer.body.get("reason") if isinstance(answer.body, dict) else None
        text = str(reason or f"{request.method} {url} was answered with {answer.status}")
        if answer.status == 404 and "/subscription/" in request.path:
            raise SubscriptionNotFoundError(text)
        raise ERRORS.get(answer.status, PeerError)(text)


class HttpTransport:
    """The real one. Its library is imported when it is first used: most brokers ask nobody.

    ``own``: what this broker shows. Redirects are followed here, since the library takes the token
    off a request that goes to another address; they are other brokers', and by TLS stay by TLS.
    """

    def __init__(self, own: OwnAccess | None = None, addresses: TlsAddresses | None = None) -> None:
        self._own = own or OwnAccess()
        self._addresses = addresses
        self._client: Any = None
        self._context: Any = None
        self._retired: list[Any] = []  # with certificates of before; some may be in use

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        import httpx

        token = self._own.token
        headers = {} if token is None else {"Authorization": f"Bearer {token()}"}
        try:
            client, target = self._connected(), httpx.URL(await self._reached(url))
            target, sent = target.copy_merge_params(dict(query)), 0
            while True:
                answer = await client.request(
                    method, target, json=body if body is not None else None, headers=headers
                )
                if answer.next_request is None or sent >= REDIRECTS_MAX:
                    break
                target = httpx.URL(await self._reached(str(answer.next_request.url)))
                sent += 1
            return PeerAnswer(answer.status_code, answer.json() if answer.content else None)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PeerError(f"the broker at {url} cannot be asked: {error!r}") from error

    def _connected(self) -> Any:
        import httpx

        context = None if self._own.tls is None else self._own.tls.context()
        if self._client is not None and context is not self._context:
            self._retired.append(self._client)
            self._client = None
        if self._client is None:
            self._context = context
            verify = True if context is None else context
            self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False, verify=verify)
        return self._client

    async def _reached(self, url: str) -> str:
        """By TLS, if brokers are asked so. Raises ``PeerError``."""
        if self._own.tls is None or self._addresses is None or url.startswith("https://"):
            return url
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        found = await self._addresses.of(f"{scheme}://{host}")
        if not found:
            raise PeerError(
                f"the broker at {url} has no TLS (http.tls_port), and brokers are to be asked by "
                "it (tls.between_brokers)"
            )
        return f"{found}{slash}{path}"

    async def close(self) -> None:
        for client in (self._client, *self._retired):
            if client is not None:
                await client.aclose()


class NoPeers:
    """Of a cluster with one broker."""

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        raise PeerError(f"there is no other broker to ask {url}")
