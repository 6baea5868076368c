"""The loss comparison with other systems' own clusters beside ours: same faults, load and counts.

    python -m bench.peers.prove KEPT [--peer kafka|pulsar]... [--scenario NAME]... [--out DIR]
        [--seed N]

``KEPT`` is where their jars are fetched to, by Maven, and stay (``kafka``, ``pulsar-server``). The
page is that of ``magnetar prove``, with Kafka's lanes beside those of the partition engine, and
Pulsar's beside those of the ledger engine; a peer that cannot be had is not run, and the page says
why. The exit code is 1 when something did not come out as expected, of theirs too (docs/prove.md).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bench.peers.jars import NotFetchedError, fetched_jars
from bench.peers.kafka import fetched_server
from bench.peers.kafka_stage import KafkaStage
from bench.peers.pulsar_stage import POM, PulsarStage
from magnetar.config import LoggingConfig
from magnetar.log.policy import Engine
from magnetar.logs import configure
from magnetar.model.errors import MagnetarError
from magnetar.proving.counting import EXPOSED, Expected
from magnetar.proving.pages import verdict
from magnetar.proving.peers import Peer
from magnetar.proving.running import run, write
from magnetar.proving.scenarios import EXPOSED_MESSAGES, chosen

NO_RELAY: Final = (
    "a bookie of BookKeeper's listens at the address that it tells others: no relay can stand "
    "between it and a broker, and their link cannot be cut without privileges"
)


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


def pulsar_peer(jars: Path) -> Peer:
    not_run = {"isr-shrinks": NO_RELAY, "isolated": NO_RELAY}
    if shutil.which("javac") is None:
        not_run["ledger-loses-bookies"] = (
            "needs a JDK: there is no javac to build a user of BookKeeper's client with"
        )
    return Peer(
        "Pulsar 4.0",
        Engine.LEDGER,
        partial(PulsarStage, jars),
        notes={
            "leader-dies": (
                "two brokers and three bookies, here and below; quorums and sessions as ours; what "
                "nobody has subscribed to is kept (`defaultRetentionTimeInMinutes=-1`; as it is "
                "shipped, closed ledgers of it are deleted). Brokers do not know of "
                "acks. The lane that is called acks=1 has a producer without a name, the other one "
                "that the broker tells repeats by "
                "(`brokerDeduplicationEnabled=true`, which it is not as it is shipped)",
            ),
            "cut-from-metadata": (
                "an owner that does not reach ZooKeeper goes on "
                "(`zookeeperSessionExpiredPolicy=reconnect`, as it is shipped) until a client asks "
                "another broker, which is after 20 s here; that one fences the ledger",
            ),
            "power-cut-synced": (
                "`journalSyncData=true`, as it is shipped. BookKeeper does not sync the directory "
                "that it makes a journal in: its disks keep a file's name from the file's first "
                "sync on, as ext4 and XFS do, and POSIX does not promise",
            ),
            "power-cut-unsynced": (
                "`journalSyncData=false`, which it is not as it is shipped. The journal is then "
                "synced each second all the same (`journalPageCacheFlushIntervalMSec`): this is "
                "put off here, so that the count does not depend on when the second is over",
            ),
            "ledger-loses-bookies": (
                "BookKeeper's own client, bookies and auto-recovery, with "
                "`delayEnsembleChange=true`: without it a writer gives its ledger up at the first "
                "bookie that it cannot replace",
            ),
        },
        not_run=not_run,
    )


PEERS: Final[dict[str, tuple[Callable[[Path], Peer], Callable[[Path], Path]]]] = {
    "kafka": (kafka_peer, lambda kept: fetched_server(kept / "kafka")),
    "pulsar": (pulsar_peer, lambda kept: fetched_jars(POM, kept / "pulsar-server")),
}


def found_peer(name: str, kept: Path) -> Peer:
    """That peer; one whose lanes are not run, if it cannot be had."""
    make, fetch = PEERS[name]
    try:
        return make(fetch(kept))
    except NotFetchedError as error:
        peer = make(kept).missing(str(error))
        print(f"{peer.name} is not run: {error}", file=sys.stderr)
        return peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kept", type=Path)
    parser.add_argument("--peer", dest="peers", choices=[*PEERS], action="append", default=[])
    parser.add_argument("--scenario", dest="names", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("out/prove"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    configure(LoggingConfig(level="error"))
    kept = args.kept.resolve()
    kept.mkdir(parents=True, exist_ok=True)
    try:
        wanted = chosen(args.names)
        peers = [found_peer(name, kept) for name in args.peers or PEERS]
        result = run(wanted, args.seed, lambda text: print(text, flush=True), peers)
    except MagnetarError as error:
        sys.exit(str(error))
    page = write(result, args.out)
    print(f"{verdict(result)}\n{page}")
    sys.exit(0 if result.as_expected else 1)


if __name__ == "__main__":
    main()
