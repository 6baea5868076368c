"""What a producer's client is told: SEND_RECEIPT, SEND_ERROR, CLOSE_PRODUCER.

Receipts are encoded per producer, with all that they have in common prepared (``wire.pulsar``).
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.model.errors import MagnetarError
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.publishing.producer import Sequences
from magnetar.wire.pulsar.errors import server_error
from magnetar.wire.pulsar.hot import ReceiptEncoder
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.replies import send_error


class SessionProducer:
    """A session's client as one of its producers knows it: a ``ProducerClient``."""

    __slots__ = ("_encode", "_encode_run", "_session", "_write", "producer_id", "publish_ended")

    def __init__(self, session: Session, producer_id: int) -> None:
        self.producer_id = producer_id
        self.publish_ended = session.publish_ended
        self._session = session
        self._write = session.write
        encoder = ReceiptEncoder(producer_id)
        self._encode, self._encode_run = encoder.encode, encoder.encode_run

    @property
    def peer(self) -> str:
        return self._session.peer

    def stored(self, sends: Sequence[Sequences], ledger_id: int, first_entry_id: int) -> None:
        if len(sends) == 1:
            sequence_id, highest = sends[0]
            self._write(self._encode(sequence_id, ledger_id, first_entry_id, highest))
        else:
            self._write(self._encode_run(sends, ledger_id, first_entry_id))

    def refused(self, send: Sequences, error: MagnetarError, final: bool) -> None:
        """``final``: the client is not told of the message, but that its producer is closed. It
        comes back at once, and is told why it may not; all that is pending fails with it, and
        others on the connection are not disturbed."""
        if final:
            self.tell_closed()
            return
        sequence_id, highest = send  # clients know a batch by its last sequence id, if they gave it
        code = server_error(error)
        frame = send_error(self.producer_id, highest or sequence_id, code, str(error))
        self._session.write(frame)

    def drop(self, tell: bool) -> None:
        session = self._session
        found = session.producers.get(self.producer_id)
        if found is not None and found.client is self:
            del session.producers[self.producer_id]
        if tell:
            self.tell_closed()

    def tell_closed(self, service_url: str = "") -> None:
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self.producer_id
        command.close_producer.request_id = 0
        if service_url:
            command.close_producer.assignedBrokerServiceUrl = service_url
            tls_url = self._session.services.known_tls_url(service_url)
            if tls_url:
                command.close_producer.assignedBrokerServiceUrlTls = tls_url
        self._session.send_command(command)

    async def is_alive(self) -> bool:
        return await self._session.is_alive()

    def abort(self) -> None:
        self._session.abort()
