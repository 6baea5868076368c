"""A broker that stores nothing: the ceiling of the load generator and of the wire codec.

It parses and checks every SEND as the real one must, and acknowledges at once; consumers get
whatever entry came last, over and over. ``python -m bench.null_broker`` prints its port; what
``bench.loadgen`` measures against it is what the generator, the kernel and the codec cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import uvloop

from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import FramedConnection
from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar import replies
from magnetar.wire.pulsar.commands import command_type, decode_command, encode_command
from magnetar.wire.pulsar.encoders import MessageHeaderEncoder, ReceiptEncoder
from magnetar.wire.pulsar.hot import decode_flow, decode_send, verify_checksum
from magnetar.wire.pulsar.metadata import batch_size
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse

FRAME_BYTES_MAX = 6 * 1024 * 1024
LEDGER_ID = 1


class NullSession(FramedConnection):
    """One client."""

    def __init__(self, last_entry: list[bytes], connections: Connections) -> None:
        super().__init__(FRAME_BYTES_MAX, connections)
        self._last_entry = last_entry
        self._receipts: dict[int, ReceiptEncoder] = {}
        self._headers: dict[int, MessageHeaderEncoder] = {}
        self._entry_id = 0
        self._handlers: dict[int, Callable[[BaseCommand], BaseCommand | None]] = {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.LOOKUP: self._lookup,
            BaseCommand.PRODUCER: self._producer,
            BaseCommand.SUBSCRIBE: self._subscribe,
        }

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        out = []
        for start, end in bounds:
            kind = command_type(view, start)
            if kind == BaseCommand.SEND:
                send = decode_send(view, start, end)
                verify_checksum(view, send.payload_start, send.payload_end)
                if not self._last_entry:
                    self._last_entry.append(bytes(view[send.payload_start : send.payload_end]))
                encoder = self._receipts[send.producer_id]
                out.append(encoder.encode(send.sequence_id, LEDGER_ID, self._entry_id))
                self._entry_id += 1
            elif kind == BaseCommand.FLOW:
                flow = decode_flow(view, start, end)
                out += self._messages(self._headers[flow.consumer_id], flow.permits)
            elif kind != BaseCommand.ACK:
                self._control(decode_command(view, start, end))
        if out:
            self.write(b"".join(out))

    def _messages(self, header: MessageHeaderEncoder, permits: int) -> list[bytes]:
        if not self._last_entry:
            raise ProtocolError("publish something first: there is no entry to deliver")
        payload = self._last_entry[0]
        size = batch_size(payload)
        out = []
        for _ in range(-(-permits // size)):
            out += [header.encode(LEDGER_ID, self._entry_id, len(payload)), payload]
            self._entry_id += 1
        return out

    def _control(self, command: BaseCommand) -> None:
        handler = self._handlers.get(command.type)
        if handler is None:
            raise ProtocolError(f"not here: {command.type}")
        reply = handler(command)
        if reply is not None:
            self.write(encode_command(reply))

    def _connect(self, command: BaseCommand) -> BaseCommand:
        reply = BaseCommand(type=BaseCommand.CONNECTED)
        reply.connected.server_version = "null"
        return reply

    def _lookup(self, command: BaseCommand) -> BaseCommand:
        assert self.transport is not None
        port = self.transport.get_extra_info("sockname")[1]
        reply = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        reply.lookupTopicResponse.brokerServiceUrl = f"pulsar://127.0.0.1:{port}"
        reply.lookupTopicResponse.response = CommandLookupTopicResponse.Connect
        reply.lookupTopicResponse.request_id = command.lookupTopic.request_id
        return reply

    def _producer(self, command: BaseCommand) -> BaseCommand:
        producer_id = command.producer.producer_id
        self._receipts[producer_id] = ReceiptEncoder(producer_id)
        reply = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        reply.producer_success.request_id = command.producer.request_id
        reply.producer_success.producer_name = "null"
        return reply

    def _subscribe(self, command: BaseCommand) -> None:
        consumer_id = command.subscribe.consumer_id
        self._headers[consumer_id] = MessageHeaderEncoder(consumer_id)
        self.write(replies.success(command.subscribe.request_id))


async def serve() -> None:
    """Serve until killed."""
    last_entry: list[bytes] = []
    connections = Connections()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullSession(last_entry, connections), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
