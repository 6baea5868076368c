"""A read-only broker's connection to an owner of topics: BOUND_CURSOR, its answers, its news."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from magnetar.env.network.asking import AskingConnection
from magnetar.env.network.connections import Connections
from magnetar.model.errors import (
    BindingEndedError,
    BrokerError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import PONG_FRAME, decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandBindingNews,
    CommandBoundCursor,
    CommandBoundCursorResponse,
    LentImageResult,
)

FRAME_BYTES_MAX: Final = 64 << 20
ANSWER_S: Final = 15.0
GREETING: Final = 0
"""The id of what CONNECTED answers; requests have others."""

KINDS: Final[Mapping[int, type[MagnetarError]]] = {
    ServerError.TOPIC_NOT_FOUND: TopicNotFoundError,
    ServerError.NOT_ALLOWED: NotAllowedError,
    ServerError.SUBSCRIPTION_NOT_FOUND: SubscriptionNotFoundError,
}


class OwnerLine(AskingConnection[BaseCommand]):
    """A connection to an owner. ``told`` hears what it says unasked, ``broke`` that it is gone."""

    def __init__(
        self,
        connections: Connections,
        told: Callable[[OwnerLine, CommandBindingNews], None],
        broke: Callable[[OwnerLine], None],
    ) -> None:
        super().__init__(FRAME_BYTES_MAX, connections, "owner", ServiceNotReadyError)
        self.heard_s = self._loop.time()
        self._told = told
        self._broke = broke

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        self.heard_s = self._loop.time()
        for start, end in bounds:
            command = decode_command(view, start, end)
            if command.type == BaseCommand.PING:
                self.write(PONG_FRAME)
            elif command.type == BaseCommand.BOUND_CURSOR_RESPONSE:
                self.answered(command.bound_cursor_response.request_id, command)
            elif command.type == BaseCommand.BINDING_NEWS:
                self._told(self, command.binding_news)
            elif command.type in (BaseCommand.CONNECTED, BaseCommand.ERROR):
                self.answered(GREETING, command)

    def fail(self, why: str) -> None:
        if self.why:
            return
        super().fail(f"{self.peer}: {why}")
        self._broke(self)


def encode(request: CommandBoundCursor) -> bytes:
    return encode_command(BaseCommand(type=BaseCommand.BOUND_CURSOR, bound_cursor=request))


async def answer(line: OwnerLine, request: CommandBoundCursor) -> CommandBoundCursorResponse:
    return (await line.ask(encode(request), request.request_id, ANSWER_S)).bound_cursor_response


def refusal(line: OwnerLine, told: CommandBoundCursorResponse | LentImageResult) -> MagnetarError:
    if told.ended:
        return BindingEndedError(told.message)
    code = int(told.error)
    if code == ServerError.SERVICE_NOT_READY:
        return ServiceNotReadyError(f"the broker at {line.peer}: {told.message}")
    kind = KINDS.get(code, BrokerError)
    return kind(f"the broker at {line.peer} refuses: {told.message}")


def check_greeting(answer: BaseCommand, owner: str) -> None:
    """Raises ``ServiceNotReadyError`` unless the owner lends cursors."""
    if answer.type != BaseCommand.CONNECTED:
        raise ServiceNotReadyError(f"{owner} refused the connection: {answer.error.message}")
    connected = answer.connected
    if not connected.feature_flags.supports_bound_cursors:
        raise ServiceNotReadyError(
            f"the owner at {owner} ({connected.server_version}) does not lend subscriptions; it is "
            "of an older release"
        )
