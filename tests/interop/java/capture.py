"""Record what Pulsar's Java client sends, for ``tests/golden``.

Run: ``python -m tests.interop.java.capture WORK_DIR`` (needs what the peer test needs). Writes
``tests/golden/pulsar/java-client-VERSION.json``: the client's frames in order, at most
``EACH_KIND_MAX`` of a kind, in hex, with the number of their connection. They are played in
``tests/unit/protocols/pulsar/test_golden_java.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from magnetar.wire.pulsar.commands import COMMAND_NAMES, decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.standalone import Standalone

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden" / "pulsar"
FRAME_BYTES_MAX = 2000
EACH_KIND_MAX = 100
STEPS = (
    "consume Exclusive", "json schema", "dead letter", "reader", "seek",
    "batch index acknowledgement", "auto produce and consume", "pattern", "delayed",
    "key shared is refused", "transactions are refused",
)  # fmt: skip


class Recorder:
    """A proxy in front of the broker that keeps what clients send through it, and names itself in
    the answers to lookups."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._kinds: Counter[str] = Counter()
        self._connections = 0
        self.port = 0
        self.frames: list[dict[str, str | int]] = []

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._broker_port)
        self._connections += 1
        await asyncio.gather(
            self._up(self._connections, reader, up_writer), self._down(up_reader, writer)
        )

    async def _up(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async for frame in frames(reader, writer):
            command = decode_command(memoryview(frame), 4, len(frame))
            kind = COMMAND_NAMES[int(command.type)]
            self._kinds[kind] += 1
            if len(frame) <= FRAME_BYTES_MAX and self._kinds[kind] <= EACH_KIND_MAX:
                self.frames.append({"connection": connection, "kind": kind, "frame": frame.hex()})
            writer.write(frame)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frame in frames(reader, writer):
            command = decode_command(memoryview(frame), 4, len(frame))
            if command.type == BaseCommand.LOOKUP_RESPONSE:
                command.lookupTopicResponse.brokerServiceUrl = f"pulsar://127.0.0.1:{self.port}"
                frame = encode_command(command)
            writer.write(frame)
            await writer.drain()


async def frames(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """Whole frames, until either end closes; then the other is closed."""
    try:
        while True:
            prefix = await reader.readexactly(4)
            yield prefix + await reader.readexactly(int.from_bytes(prefix, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def record(work_dir: Path, broker_port: int) -> list[dict[str, str | int]]:
    recorder = Recorder(broker_port)
    proxy = await asyncio.start_server(recorder.relay, "127.0.0.1", 0)
    recorder.port = proxy.sockets[0].getsockname()[1]
    run = await asyncio.create_subprocess_exec(
        HERE / "run.sh", work_dir, "peer", f"pulsar://127.0.0.1:{recorder.port}", *STEPS
    )
    if await run.wait() != 0:
        raise RuntimeError("the Java client failed")
    proxy.close()
    return recorder.frames


def main() -> None:
    work_dir = Path(sys.argv[1])
    found = re.search(r"<pulsar.version>([^<]+)<", (HERE / "pom.xml").read_text())
    assert found is not None
    with tempfile.TemporaryDirectory() as data, Standalone(Path(data) / "data") as standalone:
        sent = asyncio.run(record(work_dir, standalone.broker_port))
    path = GOLDEN / f"java-client-{found[1]}.json"
    text = {"client": f"org.apache.pulsar:pulsar-client-original:{found[1]}", "frames": sent}
    path.write_text(json.dumps(text, indent=1) + "\n")
    print(f"{len(sent)} frames in {path}")


if __name__ == "__main__":
    main()
