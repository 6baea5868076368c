"""Where the server is, and what all kinds of work need of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

PERSISTENT = "/admin/v2/persistent/public/default"


class UnexpectedAnswerError(Exception):
    pass


@dataclass(frozen=True)
class Server:
    """``rest``: its HTTP interface."""

    broker_port: int
    http_port: int
    kafka_port: int
    rest: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        url = f"http://127.0.0.1:{self.http_port}"
        object.__setattr__(self, "rest", httpx.Client(base_url=url, timeout=60))

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    def ask(self, method: str, path: str, json: object = None, **query: str) -> httpx.Response:
        """Raises ``UnexpectedAnswerError`` unless it was done."""
        body = {} if json is None else {"json": json}
        answer = self.rest.request(method, path, params=query, **body)  # type: ignore[arg-type]
        if not answer.is_success:
            raise UnexpectedAnswerError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def delete_topic(self, name: str, *, partitioned: bool = False) -> None:
        path = f"{PERSISTENT}/{name}" + ("/partitions" if partitioned else "")
        self.ask("DELETE", path, force="true")
