"""A small client of the platform's REST."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import click
import httpx

from magnetar.cli.credentials import credential_options, shown
from magnetar.env.network.tls import trusting
from magnetar.model.errors import ConfigError, RestError
from magnetar.model.host_names import is_host_name

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30
REDIRECTS_MAX = 5

_url = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="MAGNETAR_URL",
    show_envvar=True,
    help="The platform's HTTP address.",
)


def url_option(command: F) -> F:
    """``--url``, and what is shown there."""
    return _url(credential_options(command))


class RestClient:
    """Requests to one platform. All raise ``RestError`` with the platform's own reason."""

    def __init__(self, url: str) -> None:
        self._url = _checked(url).rstrip("/")
        credentials = shown()
        self._headers = (
            {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
        )
        self._client = httpx.Client(
            timeout=TIMEOUT_S, trust_env=False, verify=_context(credentials.trust)
        )

    def get(self, path: str, **query: str | int) -> Any:
        return _json(self._send("GET", path, query))

    def get_or_none(self, path: str, **query: str | int) -> Any:
        """None if nothing is said there."""
        answer = self._send("GET", path, query)
        return None if answer.status_code == 204 else _json(answer)

    def get_health(self) -> Any:
        """The parts of the platform; one that is not well answers too (with status 503)."""
        return _json(self._send("GET", "/health", {}, accepted=(503,)))

    def put(self, path: str, body: object = None, **query: str | int) -> None:
        self._send("PUT", path, query, body)

    def post(self, path: str, body: object) -> Any:
        return self._send("POST", path, {}, body).json()

    def send_post(self, path: str, body: object = None, **query: str | int) -> None:
        """Where no answer is expected."""
        self._send("POST", path, query, body)

    def delete(self, path: str, **query: str | int) -> None:
        self._send("DELETE", path, query)

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str | int],
        body: object = None,
        accepted: Collection[int] = (),
    ) -> httpx.Response:
        try:
            answer = self._follow(method, httpx.URL(self._url + path, params=query), body)
        except httpx.ConnectError as error:
            if "SSL" in str(error):
                raise RestError(
                    f"{self._url} answers, and no TLS comes about with it: {error}; name the "
                    "authority that signed its certificate with --tls-trust, or, where it has "
                    "none, an http:// address"
                ) from error
            raise RestError(
                f"no platform answers at {self._url} ({error}); start one with "
                "`magnetar standalone`, or name another with --url"
            ) from error
        except httpx.RemoteProtocolError as error:
            raise RestError(
                f"{method} {self._url}{path} failed: {error} It may be no HTTP address, or one "
                "of TLS (https://): name another with --url"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RestError(f"{method} {self._url}{path} failed: {error}") from error
        if answer.is_error and answer.status_code not in accepted:
            unshown = answer.status_code == httpx.codes.UNAUTHORIZED and not self._headers
            nothing = "; no token was shown: give one (--token-file)" if unshown else ""
            raise RestError(_reason(answer) + nothing)
        return answer

    def _follow(self, method: str, url: httpx.URL, body: object) -> httpx.Response:
        """Brokers send on what another of them must answer. The library would take the token off;
        they are of one cluster, but none may lead from TLS to where there is none."""
        for _ in range(REDIRECTS_MAX):
            answer = self._client.request(
                method, url, json=body if body is not None else None, headers=self._headers
            )
            if answer.next_request is None:
                return answer
            before, url = url, answer.next_request.url
            if before.scheme == "https" and url.scheme != "https":
                raise RestError(f"{before} leads to {url}, which is not by TLS")
        raise RestError(f"{method} {self._url} was sent on {REDIRECTS_MAX} times; try again")


def _checked(url: str) -> str:
    """Raises ``ConfigError`` for what the library would read otherwise, or fail with: a port past
    the last one is another port to it, and what follows a query is a part of that."""
    given = url.strip()
    try:
        parts = urlsplit(given)
        fits = is_host_name(parts.hostname or "") and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ConfigError(f"--url {url!r} cannot be used; accepted: http://HOST:PORT")
    return given


def _context(trust: str) -> ssl.SSLContext | bool:
    """Raises ``ConfigError``."""
    if not trust:
        return True
    try:
        return trusting(trust)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tls-trust {trust} cannot be used: {error}") from error


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise RestError(
            f"{answer.request.url} answered {answer.status_code} with what is no JSON; it is not "
            "the platform's HTTP address, or a proxy answers for it: name it with --url"
        ) from error


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and "reason" in body:
        return str(body["reason"])
    return f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}"


def topic_path(topic: str) -> str:
    """``/admin/v2/persistent/...`` of a topic given in any of the usual ways: ``flights``,
    ``public/default/flights``, ``persistent://public/default/flights``.
    """
    return f"/admin/v2/persistent/{_segments(topic)}"


def namespace_path(namespace: str, root: str = "/admin/v2/namespaces") -> str:
    """``/admin/v2/namespaces/...`` of ``TENANT/NAMESPACE``."""
    return f"{root}/{_quoted('namespace', namespace, namespace.split('/'), 'TENANT/NAMESPACE', 2)}"


def tenant_path(tenant: str, root: str = "/admin/v2/namespaces") -> str:
    """The same of ``TENANT``."""
    return f"{root}/{_quoted('tenant', tenant, tenant.split('/'), 'TENANT', 1)}"


def subscription_segment(subscription: str) -> str:
    """Quoted twice, as Pulsar's clients do: a segment, of a form field."""
    return quote(quote(subscription, safe=""), safe="")


def schema_path(topic: str) -> str:
    """``/admin/v2/schemas/...`` of a topic, given in the same ways."""
    return f"/admin/v2/schemas/{_segments(topic)}"


def check_topic(topic: str) -> None:
    """Raises ``ConfigError`` for what names no topic."""
    _segments(topic)


def _segments(topic: str) -> str:
    name = topic.removeprefix("persistent://")
    if "://" in name:
        raise ConfigError(f"topic {topic!r} cannot be used; accepted: persistent topics only")
    parts = name.split("/") if "/" in name else ["public", "default", name]
    return _quoted("topic", topic, parts, "[TENANT/NAMESPACE/]TOPIC", 3)


def _quoted(what: str, given: str, parts: Sequence[str], accepted: str, count: int) -> str:
    """Raises ``ConfigError``. A part that is a dot or two would be another path to whoever reads
    the URL."""
    if len(parts) != count or not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise ConfigError(f"{what} {given!r} cannot be used; accepted: {accepted}")
    return "/".join(quote(part, safe="") for part in parts)
