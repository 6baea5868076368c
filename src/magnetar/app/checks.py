"""The health checks of parts that ``app`` puts together (``env.health``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.app.securing import open_server_tls
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.ledgers.read_failures import REMEDY
from magnetar.config import LedgerConfig, TlsConfig
from magnetar.env.files.descriptors import DescriptorPlan, open_descriptors
from magnetar.env.health import WELL, Check, PartHealth
from magnetar.env.metadata import MetadataStore
from magnetar.env.network.connections import Connections
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.seam import TableLag
from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.protocols.kafka.unread import REMEDY as REMEDY_UNREAD
from magnetar.protocols.kafka.unread import UnreadPlaces
from magnetar.topics.registry import Topics

if TYPE_CHECKING:
    from magnetar.admin.peers import Transport

NAMED_MAX: Final = 5
"""Topics named in one answer; the log of the process names all."""
READ_AGAIN_S: Final = 2.0
"""Of one answer: what could not be read is read again."""
SOUND_DISK: Final = "look at the disk, and start the bookie again when it is sound"
FITTING: Final = (
    "write certificate, key and trusted certificates that fit; those from before count until then, "
    "as long as the process lives"
)
RENEWED: Final = (
    "put a renewed certificate, and its key, in the place of the files (no restart is needed), or "
    "set the clock right"
)
REFUSED: Final = (
    "start more bookies, or give the read-only ones what they say that they lack: space, a sound "
    "disk and a new start, or an operator's word (magnetar bookie read-only off ID)"
)


def metadata_check(metadata: MetadataStore) -> Check:
    """The store answers. Without it nothing is opened, created or rolled over."""

    async def check() -> PartHealth:
        await metadata.sync()  # all the way: a quorum of ZooKeeper, the thread of SQLite
        return WELL

    return check


def tls_check(config: TlsConfig, clock_s: Callable[[], float]) -> Check:
    """What is shown to clients by TLS counts now, and the files fit together. Clients say only that
    they cannot connect, and those without TLS are served on: nothing else would tell."""

    async def check() -> PartHealth:
        return await asyncio.to_thread(_tls_health, config, clock_s())

    return check


def _tls_health(config: TlsConfig, now_s: float) -> PartHealth:
    from cryptography import x509  # a start without TLS does not pay for it

    name = config.certificate_file
    try:
        open_server_tls(config)
        own = x509.load_pem_x509_certificates(Path(name).read_bytes())[0]
    except (ConfigError, OSError, ValueError) as error:
        return PartHealth(False, str(error), FITTING)
    begin, end = own.not_valid_before_utc, own.not_valid_after_utc
    if begin.timestamp() <= now_s < end.timestamp():
        return WELL
    what = "has expired" if now_s >= end.timestamp() else "does not count yet"
    times = f"it counts from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    return PartHealth(False, f"the certificate in {name} {what}: {times}", RENEWED)


def descriptors_check(plan: DescriptorPlan, connections: Connections) -> Check:
    """There are file descriptors for more connections, and for storage."""

    async def check() -> PartHealth:
        in_use = open_descriptors()
        files = in_use - connections.count
        if connections.count < plan.connections_max and files <= plan.others_max * 9 // 10:
            return WELL
        refused = connections.count >= plan.connections_max
        return PartHealth(
            False,
            f"{in_use} of {plan.limit} file descriptors are in use, {connections.count} by "
            f"connections (at most {plan.connections_max})"
            + ("; more connections are refused" if refused else ""),
            "raise the limit on open files (ulimit -n, LimitNOFILE) and start this process again, "
            "or have fewer connections",
        )

    return check


def topics_check(topics: Topics) -> Check:
    """The logs of the open topics take what is published, and give what is read."""

    async def check() -> PartHealth:
        stored, read = _stored(topics), _read(topics)
        if stored.ok or read.ok:
            return read if stored.ok else stored
        both = stored.problem, read.problem
        return PartHealth(False, "; ".join(both), f"{stored.remedy}; {read.remedy}")

    return check


def _read(topics: Topics) -> PartHealth:
    """Whether any subscription has come to an entry that could not be read."""
    unread = [
        (str(topic.name), name, found)
        for topic in topics.loaded()
        for name, each in topic.subscriptions.items()
        if (found := each.dispatcher.feed.unread) is not None
    ]
    if not unread:
        return WELL
    unread.sort()
    listed = "; ".join(
        f"{name} of {topic} at {found.place}: {found.why}"
        for topic, name, found in unread[:NAMED_MAX]
    )
    topic, name, first = unread[0]
    return PartHealth(
        False,
        f"{len(unread)} subscriptions wait for entries that cannot be read: {listed}"
        + ("; ..." if len(unread) > NAMED_MAX else ""),
        "bring back bookies that have them; if no sound copy is left, go on without the entry: "
        f"magnetar topics seek {topic} --subscription {name} --to {first.behind}",
    )


def other_process_check(transport: Transport, url: str) -> Check:
    """Another process, as its own ``/health`` says; what is wrong there by the names that its parts
    have there. ``url``: of its HTTP."""

    async def check() -> PartHealth:
        try:
            status, found = await transport.ask("GET", f"{url}/health", {}, None)
        except MagnetarError as error:
            remedy = "see whether that process runs, and its log"
            return PartHealth(False, f"{url}/health does not answer: {error}", remedy)
        if status in (401, 403):
            remedy = "give brokers a token (security.own_token_file), or set security.open_health"
            return PartHealth(False, f"{url}/health refuses to answer this broker", remedy)
        parts = found.get("parts") if isinstance(found, dict) else None
        if not isinstance(parts, list):
            remedy = "see that http.health_of is the address of a server of this platform"
            return PartHealth(False, f"{url}/health answers {status}: {found}", remedy)
        unwell = [each for each in parts if not each["ok"]]
        return PartHealth(
            not unwell,
            "; ".join(f"{each['part']}: {each['problem']}" for each in unwell),
            "; ".join(dict.fromkeys(each["remedy"] for each in unwell)),
        )

    return check


def unread_check(unread: UnreadPlaces) -> Check:
    """What Kafka's clients ask for can be read."""

    async def check() -> PartHealth:
        found = unread.listed()
        if not found:
            return WELL
        listed = "; ".join(f"{each.topic}, {each.place}: {each.why}" for each in found[:NAMED_MAX])
        more = "; ..." if len(found) > NAMED_MAX else ""
        return PartHealth(
            False,
            f"{len(found)} places that Kafka's clients asked for cannot be read: {listed}{more}",
            REMEDY_UNREAD,
        )

    return check


def _stored(topics: Topics) -> PartHealth:
    """Whether what was published a moment ago was stored."""
    why = {str(each.name): each.storage_problem for each in topics.loaded()}
    failing = sorted(name for name, problem in why.items() if problem)
    if not failing:
        return WELL
    named = ", ".join(failing[:NAMED_MAX])
    return PartHealth(
        False,
        f"{len(failing)} topics could not store messages a moment ago: {named}"
        + (", ..." if len(failing) > NAMED_MAX else "")
        + f" ({why[failing[0]]})",
        "see bookies and metadata here, and the log; producers try again by themselves",
    )


def partitions_check(host: PartitionHost) -> Check:
    """Their disk has room, and those that were asked for could be opened."""

    async def check() -> PartHealth:
        problems, remedies = [], []
        if host.room.why:
            problems.append(host.room.why)
            remedies.append("make room on that disk, or move partition.directory to a larger one")
        if unusable := dict(host.unusable):
            why = "; ".join(str(unusable[each]) for each in sorted(unusable)[:NAMED_MAX])
            more = "; ..." if len(unusable) > NAMED_MAX else ""
            problems.append(f"{len(unusable)} partitions cannot be opened: {why}{more}")
            remedies.append(
                "do what is said there and have a client ask for the topic again, or delete it"
            )
        return PartHealth(not problems, "; ".join(problems), "; ".join(remedies))

    return check


class TablesLag(NamedTuple):
    """Of all open topics that have a table."""

    topics: int
    ledgers: int
    stored_bytes: int
    closed_ms: int  # when the first ledger that waits was closed; 0: none waits
    failing: int


def tables_lag(lags: Iterable[TableLag]) -> TablesLag:
    """The sum of them."""
    all_ = list(lags)
    return TablesLag(
        len(all_),
        sum(lag.ledgers for lag in all_),
        sum(lag.stored_bytes for lag in all_),
        min((lag.closed_ms for lag in all_ if lag.ledgers), default=0),
        sum(bool(lag.problem) for lag in all_),
    )


def tables_check(topics: Topics, lag_ms_max: int, now_ms: Callable[[], int]) -> Check:
    """The tables of the open topics are filled: no job fails, and no ledger waits for too long.
    What retention would have deleted meanwhile is said, too."""

    async def check() -> PartHealth:
        of_topic = {str(topic.name): topic.log for topic in topics.loaded()}
        lags = {name: lag for name, log in of_topic.items() if (lag := log.tabled.lag) is not None}
        failing = {name: lag.problem for name, lag in lags.items() if lag.problem}
        late = {
            name: lag
            for name, lag in lags.items()
            if lag.ledgers and now_ms() - lag.closed_ms > lag_ms_max
        }
        if not failing and not late:
            return WELL
        problems = []
        if failing:
            name, problem = min(failing.items())
            problems.append(
                f"the tables of {len(failing)} topics cannot be filled: {_named(failing)}; "
                f"{name}: {problem}"
            )
        if late:
            sums = tables_lag(late.values())
            waited_h = (now_ms() - sums.closed_ms) / 3_600_000
            kept = sum(len(of_topic[name].stats().awaiting_table) for name in late)
            problems.append(
                f"the tables of {len(late)} topics are behind: {_named(late)}; {sums.ledgers} "
                f"closed ledgers ({sums.stored_bytes} bytes) are not in them, the first since "
                f"{waited_h:.1f} h (at most ledger.table_lag_ms_max); retention would have deleted "
                f"{kept} of them, and waits"
            )
        return PartHealth(
            False,
            "; ".join(problems),
            "run magnetar pipeline table TOPIC (--status says what waits); if the table is not "
            "wanted any more, magnetar pipeline detach TOPIC",
        )

    return check


def _named(topics: Iterable[str]) -> str:
    names = sorted(topics)
    return ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")


def bookies_check(registry: BookieRegistry, config: LedgerConfig) -> Check:
    """Enough bookies take new entries for a ledger to be made."""

    async def check() -> PartHealth:
        writable, refused = await registry.available(), await registry.refusals()
        if len(writable) >= config.ensemble_size:
            return WELL
        problem = (
            f"{len(writable)} registered bookies take new entries, and a ledger needs "
            f"{config.ensemble_size} (ledger.ensemble_size): nothing can be published to a new "
            "ledger"
        )
        if refused:
            listed = "; ".join(f"{each}: {told.reason}" for each, told in sorted(refused.items()))
            return PartHealth(
                False,
                f"{problem}; read-only: {listed}",
                "free space on the disks of the read-only bookies, or start more bookies"
                if all(told.lacks_space for told in refused.values())
                else REFUSED,
            )
        return PartHealth(False, problem, "start bookies until there are enough")

    return check


def bookie_check(bookie: Bookie) -> Check:
    """It takes entries, unless an operator wants it so, and knows what it holds."""

    async def check() -> PartHealth:
        info = bookie.info()
        if info.failed_directories:
            listed = ", ".join(info.failed_directories)
            return PartHealth(False, f"ledger directories failed: {listed}", "replace the disk")
        if bookie.refusal is not None and not bookie.writes_refused:
            remedy = "make room, or start more bookies" if bookie.lacks_space else SOUND_DISK
            return PartHealth(False, bookie.refusal, remedy)
        if info.limbo:
            return PartHealth(
                False,
                "it has lost entries and denies nothing",
                "when no ledger lacks copies (magnetar recovery list), start it once with "
                "--leave-limbo (also if no other bookie has copies: what is lost is lost then)",
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_AGAIN_S):
                await bookie.read_failed_again()
        if problem := bookie.read_failures.problem:
            return PartHealth(False, problem, REMEDY)
        return WELL

    return check
