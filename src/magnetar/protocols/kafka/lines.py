"""A broker's connections to others, by Kafka's protocol: numbered requests, and answers.

``PeerLine`` asks; ``LeaderLine`` is a follower's to the broker that leads: Fetch, one under way. A
follower names itself as Kafka's do (``replica_id``), and its log directory's lineage in a tagged
field, which a server that does not know it passes over.

Where brokers ask who their clients are, this side shows its own token first, by OAUTHBEARER, and
again on the same connection (KIP-368) before what was said of its time is over. That is done while
nothing else is asked: between its two requests a server takes no other.

Why: docs/adr/0157-kafkas-clients-show-who-they-are.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from magnetar.env.network.asking import AskingConnection
from magnetar.env.network.connections import Connections
from magnetar.model.errors import LeaderUnreachableError, ServiceNotReadyError
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchResponse
from magnetar.wire.kafka.primitives import FieldReader
from magnetar.wire.kafka.sasl_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from magnetar.wire.sasl.oauthbearer import OAUTHBEARER, bearer_message

CONNECT_S: Final = 5.0
FETCH_VERSION: Final = 12
"""The newest that names topics by their names."""
NUMBER_MAX: Final = 0x7FFF_FFFF
RENEWED_AT: Final = 0.8
"""Of the time for which a token was said to count."""


@dataclass(frozen=True, slots=True)
class BrokerWay:
    """How brokers are reached. ``token``: what this one shows, read when it is needed. ``tls``:
    what their certificates are held against. Both None: neither is asked for."""

    token: Callable[[], str] | None = None
    tls: Callable[[], ssl.SSLContext] | None = None


class KafkaLine(AskingConnection[Any]):
    """To one broker. ``gone``: what is raised when it is of no use, as of ``AskingConnection``."""

    bytes_max: int = 16 << 20
    peer_role = "broker"
    gone: type[Exception] = ConnectionError
    client_id = "magnetar"

    def __init__(self, connections: Connections, way: BrokerWay) -> None:
        super().__init__(self.bytes_max, connections, self.peer_role, self.gone)
        self._way = way
        self._asked: dict[int, tuple[ApiKey, int]] = {}
        """Which API in which version the question with that number is of."""
        self._number = 0
        self._renewed_s: float | None = None
        self._retired = False

    @property
    def waits(self) -> bool:
        """Some question has no answer yet."""
        return bool(self._asked)

    @property
    def is_stale(self) -> bool:
        """It is time to show the token again."""
        return self._renewed_s is not None and self._loop.time() >= self._renewed_s

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        for start, end in bounds:
            # Its bytes are of use in this call only, and byte fields are views of them.
            frame = memoryview(bytes(view[start:end]))
            asked = self._asked.get(int.from_bytes(frame[:4], "big"))
            if asked is not None:
                self.answered(*read_response(*asked, FieldReader(frame)))

    async def ask_api(self, api_key: ApiKey, version: int, request: Any, within_s: float) -> Any:
        """Raises ``gone``."""
        number = self._number = (self._number + 1) & NUMBER_MAX
        frame = encode_request(api_key, version, number, self.client_id, request)
        self._asked[number] = api_key, version
        try:
            return await self.ask(frame, number, within_s)
        finally:
            del self._asked[number]
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close it when all that is asked has its answer."""
        self._retired = True
        if not self._asked:
            self.close()

    async def introduce(self) -> None:
        """Show this broker's token, if it has one. Raises ``gone``."""
        if self._way.token is None:
            return
        assert not self.waits, "nothing comes between"
        token = self._way.token()
        chosen = await self.ask_api(
            ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(OAUTHBEARER), CONNECT_S
        )
        if chosen.error_code:
            self._refused(f"it takes no tokens, but {', '.join(chosen.mechanisms) or 'nobody'}")
        request = SaslAuthenticateRequest(bearer_message(token))
        shown = await self.ask_api(ApiKey.SASL_AUTHENTICATE, 2, request, CONNECT_S)
        if shown.error_code or shown.auth_bytes:
            self._refused("it does not accept this broker's token (security.own_token_file)")
        self._renewed_s = None
        if shown.session_lifetime_ms > 0:
            self._renewed_s = self._loop.time() + RENEWED_AT * shown.session_lifetime_ms / 1000

    def _refused(self, why: str) -> None:
        self.end(f"{self._peer_role} {self.peer}: {why}")
        raise self._gone(self.why)


class PeerLine(KafkaLine):
    """Raises ``ServiceNotReadyError``."""

    gone = ServiceNotReadyError


class LeaderLine(KafkaLine):
    """``log.partition.replication.fetcher.Line``. Raises ``LeaderUnreachableError``."""

    bytes_max = 64 << 20
    peer_role = "leading broker"
    gone = LeaderUnreachableError
    client_id = "magnetar-replica"

    async def ask_fetch(self, request: ClientFetchRequest, within_s: float) -> FetchResponse:
        """Raises ``LeaderUnreachableError``; the line is of no use then."""
        if self.is_stale:
            await self.introduce()
        answer = await self.ask_api(ApiKey.FETCH, FETCH_VERSION, request, within_s)
        assert isinstance(answer, FetchResponse)
        return answer


L = TypeVar("L", bound=KafkaLine)


async def connect_line(
    kind: type[L], connections: Connections, way: BrokerWay, host: str, port: int
) -> L:
    """A connection to the broker there, which knows this one. Raises ``kind.gone``."""
    loop = asyncio.get_running_loop()
    secured: dict[str, Any] = {} if way.tls is None else {"ssl": way.tls()}
    try:
        async with asyncio.timeout(CONNECT_S):
            _, line = await loop.create_connection(
                lambda: kind(connections, way), host, port, **secured
            )
    except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
        why = str(error) or f"no answer in {CONNECT_S:.0f} s"
        raise kind.gone(f"broker {host}:{port} is not reached ({why}); ask again") from error
    try:
        await line.introduce()
    except BaseException:
        line.abort()
        raise
    return line
