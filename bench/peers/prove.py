"""The loss comparison with Kafka's own cluster beside ours: the same faults, load and counts.

    python -m bench.peers.prove KEPT [--scenario NAME]... [--out DIR] [--seed N]

``KEPT`` is where Kafka's jars are fetched to, by Maven, and stay. The page is that of ``magnetar
prove``, with Kafka's lanes beside those of the partition engine; the exit code is 1 when something
did not come out as expected, of theirs too (docs/prove.md).
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from bench.peers.kafka import fetched_server
from bench.peers.kafka_stage import KafkaStage
from magnetar.config import LoggingConfig
from magnetar.log.policy import Engine
from magnetar.logs import configure
from magnetar.model.errors import MagnetarError
from magnetar.proving.counting import EXPOSED, Expected
from magnetar.proving.pages import verdict
from magnetar.proving.peers import Peer
from magnetar.proving.running import run, write
from magnetar.proving.scenarios import EXPOSED_MESSAGES, chosen


def kafka_peer(jars: Path) -> Peer:
    return Peer(
        "Kafka 4.1",
        Engine.PARTITION,
        partial(KafkaStage, jars),
        notes={
            "isr-shrinks": (
                "with min ISR 2, who left the set when it fell below that may lead (eligible "
                "leader replicas, KIP-966); with min ISR 1 and unclean election off nobody may but "
                "the last one, which after a kill leads again as the last known leader",
            ),
            "cut-from-metadata": (
                "a leader that does not reach its controller never ends by itself: it answers "
                "acks=1 as long as somebody asks it, which is 20 s here: the count says how long "
                "that was, and no more",
            ),
            "power-cut-synced": (
                "it syncs each batch here (`log.flush.interval.messages=1`), which it does not as "
                "it is shipped",
            ),
            "power-cut-unsynced": (
                "as it is shipped. Unclean election off is no help: when brokers come back from an "
                "unclean end, nobody is in sync and nobody eligible, and the last known leader "
                "leads with what its disk has (KIP-966; the controller's log says UNCLEAN)",
            ),
        },
        differs={
            ("power-cut-unsynced", "partition-clean"): Expected(
                lost=EXPOSED, exposed=EXPOSED_MESSAGES, back=None
            ),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kept", type=Path)
    parser.add_argument("--scenario", dest="names", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("out/prove"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    configure(LoggingConfig(level="error"))
    try:
        wanted = chosen(args.names)
        peer = kafka_peer(fetched_server(args.kept))
        result = run(wanted, args.seed, lambda text: print(text, flush=True), [peer])
    except MagnetarError as error:
        sys.exit(str(error))
    page = write(result, args.out)
    print(f"{verdict(result)}\n{page}")
    sys.exit(0 if result.as_expected else 1)


if __name__ == "__main__":
    main()
