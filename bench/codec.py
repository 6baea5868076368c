"""What Pulsar's codec costs per operation, on golden frames of the official client.

``python -m bench.codec`` prints nanoseconds per call, the best of seven runs, and writes
``bench/results/codec.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import machine
from bench.results import store, table
from bench.wire_client import send_frame
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.commands import command_type, decode_command
from magnetar.wire.pulsar.encoders import MessageHeaderEncoder, ReceiptEncoder
from magnetar.wire.pulsar.hot import decode_ack, decode_flow, decode_send, verify_checksum
from magnetar.wire.pulsar.metadata import batch_size, entry_metadata, publish_time_ms

GOLDEN = Path(__file__).parent.parent / "tests/golden/pulsar/pulsar-client-3.13.0"
CALLS = 20_000
RUNS = 7


def golden(name: str) -> tuple[memoryview, int, int]:
    """A captured frame as a receive buffer would hold it, without its total size."""
    frame = bytearray.fromhex((GOLDEN / f"{name}.hex").read_text())
    return memoryview(frame), 4, len(frame)


def best_ns(call: Callable[[], object]) -> int:
    """Nanoseconds per call, the loop's own cost subtracted."""

    def run(body: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(RUNS):
            begun = time.perf_counter()
            for _ in itertools.repeat(None, CALLS):
                body()
            best = min(best, time.perf_counter() - begun)
        return best

    return round((run(call) - run(lambda: None)) / CALLS * 1e9)


def operations() -> dict[str, Callable[[], object]]:
    """Name -> a call of it."""
    plain, batch, lookup = golden("send_plain"), golden("send_batch"), golden("lookup")
    one, several, part = golden("ack_one"), golden("ack_list"), golden("ack_batch_index")
    flow = golden("flow")
    large = memoryview(bytearray(send_frame(1024, 0)[0]))
    sent = decode_send(large, 4, len(large))
    payload = bytes(large[sent.payload_start : sent.payload_end])
    stored_batch = bytes(batch[0][decode_send(*batch).payload_start :])
    receipts, headers = ReceiptEncoder(3), MessageHeaderEncoder(3)
    ids, entries = itertools.count(1000), itertools.count()
    return {
        "command_type": lambda: command_type(plain[0], 4),
        "decode_command LOOKUP": lambda: decode_command(*lookup),
        "decode_send, plain": lambda: decode_send(*plain),
        "decode_send, batch": lambda: decode_send(*batch),
        "verify_checksum, 1 KiB": lambda: verify_checksum(
            large, sent.payload_start, sent.payload_end
        ),
        "decode_ack, one id": lambda: decode_ack(*one),
        "decode_ack, three ids": lambda: decode_ack(*several),
        "decode_ack, ack set": lambda: decode_ack(*part),
        "decode_flow": lambda: decode_flow(*flow),
        "receipt": lambda: receipts.encode(next(ids), 7, next(entries)),
        "message header": lambda: headers.encode(7, next(entries), 1024),
        "batch_size": lambda: batch_size(payload),
        "publish_time_ms": lambda: publish_time_ms(payload),
        "entry_metadata": lambda: entry_metadata(payload),
        "iterate_messages, batch of 5": lambda: sum(1 for _ in iterate_messages(stored_batch)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="accepted, and the same")
    parser.parse_args()
    where = machine()
    found = {name: best_ns(call) for name, call in operations().items()}
    text = table(("operation", "ns"), [[name, value] for name, value in found.items()])
    store("codec", {"ns": found}, text, where)


if __name__ == "__main__":
    main()
