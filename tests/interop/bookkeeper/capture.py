"""Records what BookKeeper's Java client and our bookie say to each other, for the golden frames.

Run: ``python -m tests.interop.bookkeeper.capture WORK_DIR`` (needs what the peer test needs).
Writes ``tests/golden/bookie/java-client-VERSION.json``: a few frames of each kind, in hex.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.serving.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.metrics import Metrics
from magnetar.model.ids import BookieId
from magnetar.wire.bookie import bookie_pb2 as pb
from magnetar.wire.bookie.metadata_service import BookieServiceInfo

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden" / "bookie"
FRAME_BYTES_MAX = 400
EACH_KIND_MAX = 3


class Recorder:
    """A proxy in front of the bookie that keeps the first frames of each kind."""

    def __init__(self, bookie_port: int) -> None:
        self._bookie_port = bookie_port
        self._kinds: Counter[str] = Counter()
        self.frames: list[dict[str, str]] = []

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._bookie_port)
        await asyncio.gather(
            self._pump("client", reader, up_writer), self._pump("bookie", up_reader, writer)
        )

    async def _pump(
        self, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                prefix = await reader.readexactly(4)
                body = await reader.readexactly(struct.unpack(">I", prefix)[0])
                self._keep(side, body)
                writer.write(prefix + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _keep(self, side: str, body: bytes) -> None:
        kind = f"{side} {kind_of(side, body)}"
        self._kinds[kind] += 1
        if len(body) <= FRAME_BYTES_MAX and self._kinds[kind] <= EACH_KIND_MAX:
            self.frames.append({"kind": kind, "body": body.hex()})


def kind_of(side: str, body: bytes) -> str:
    if body[0] == 2:
        status = "" if side == "client" or body[1] == 3 else f" status {body[7]}"
        return f"v2 operation {body[1]} flags {body[3]}{status}"
    if side == "client":
        request = pb.Request.FromString(body)
        read = request.readRequest
        name = pb.OperationType.Name(request.header.operation)
        long_poll = " long poll" if read.HasField("previousLAC") else ""
        fence = " fence" if read.flag == 1 and read.HasField("flag") else ""
        return f"v3 {name}{long_poll}{fence}"
    response = pb.Response.FromString(body)
    return f"v3 {pb.OperationType.Name(response.header.operation)} {response.status}"


async def record(work_dir: Path, zookeeper: str, data: Path) -> list[dict[str, str]]:
    store = await ZooKeeperMetadataStore.open(f"zk://{zookeeper}/magnetar")
    manager = LedgerManager(store)
    await manager.initialize()
    config = BookieConfig(
        ledger_directories=(data / "ledgers",),
        journal=JournalConfig(directories=(data / "journal",)),
    )
    bookie = Bookie(config, Metrics())
    await bookie.start()
    server = BookieServer(bookie, "127.0.0.1", 0)
    await server.start()
    recorder = Recorder(server.port)
    proxy = await asyncio.start_server(recorder.relay, "127.0.0.1", 0)
    info = BookieServiceInfo.of_address("127.0.0.1", proxy.sockets[0].getsockname()[1])
    registration = BookieRegistration(store, BookieId("peer"), info, root=manager.root)
    await registration.register(read_only=False)
    for version in ("v2", "v3"):
        run = await asyncio.create_subprocess_exec(
            HERE / "run.sh", work_dir, "peer", zookeeper, "/magnetar/ledgers", version,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await run.wait() != 0:
            raise RuntimeError(f"the Java client failed in {version}")
    await registration.close()
    proxy.close()
    await server.close()
    await bookie.close()
    await store.close()
    return recorder.frames


def main() -> None:
    work_dir = Path(sys.argv[1])
    found = re.search(r"<bookkeeper.version>([^<]+)<", (HERE / "pom.xml").read_text())
    assert found is not None
    with tempfile.TemporaryDirectory() as data, ZooKeeperServer(Path(data) / "zk") as zookeeper:
        frames = asyncio.run(record(work_dir, zookeeper.address, Path(data)))
    frames.sort(key=lambda frame: frame["kind"])
    GOLDEN.mkdir(parents=True, exist_ok=True)
    path = GOLDEN / f"java-client-{found[1]}.json"
    text = {"client": f"org.apache.bookkeeper:bookkeeper-server:{found[1]}", "frames": frames}
    path.write_text(json.dumps(text, indent=1) + "\n")
    print(f"{len(frames)} frames in {path}")


if __name__ == "__main__":
    main()
