"""The job ``audit``: is everything that a topic was given still there, once, on every bookie?

Every copy of every confirmed entry is read from the bookie that is to hold it, by tasks of Spark of
some ledgers each, all bookies side by side. What is found, each by its id:

===============  ================================================================================
fault            what it is
===============  ================================================================================
``missing``      a bookie does not have a copy that it is to have
``damaged``      a copy's digest is wrong, or the bookie cannot read it
``differs``      a copy is sound, and says something else than the others
``unreadable``   copies are sound, and are no message that a consumer could read
``count``        the broker, a ledger and its entries do not agree on how much there is
``gap``          a producer's sequence ids leave out some
``duplicate``    a message of a producer is in the log twice
``order``        a message of a producer comes after a later one
===============  ================================================================================

A bookie that does not answer makes copies *unchecked*: the report is not ``ok`` then either, and
does not say that anything is wrong; so do ledgers of which nobody tells where they lie. What came
after the audit began is read, and not counted.
Nothing is changed. Ledgers that are only in the topic's table have no copies to read: they are
counted, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.log.seam import StoredAt
from magnetar.model.errors import BrokerError, ConfigError, TopicNotFoundError
from magnetar.pipeline.brokers.log_watch import LogWatch, job_watch
from magnetar.pipeline.brokers.topic_reader import LogAnswer
from magnetar.pipeline.jobs.audit_reading import AuditPiece, LedgerFound, PieceFound, audit_piece
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import (
    Job,
    OptionKind,
    Report,
    argument,
    option,
    service_url_option,
)
from magnetar.pipeline.jobs.sequences import IdRun, IdSteps, Oddity, judge, steps_of
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import NO_OFFSETS
from magnetar.pipeline.topic_names import full_topic
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

FAULTS: Final = (
    "missing", "damaged", "differs", "unreadable", "count", "gap", "duplicate", "order",
)  # fmt: skip
LISTED_MAX: Final = 10_000
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 8 << 20, 512 << 20
PIECES_PER_CORE: Final = 4
PIECE_LEDGERS_MAX: Final = 500
ASK_PLACES: Final = 100


@dataclass(frozen=True)
class AuditOptions:
    """What is audited, and how fast."""

    topics: tuple[str, ...] = argument("Topics; all their partitions.", default=())
    namespace: str | None = option("All topics of TENANT/NAMESPACE.", default=None)
    service_url: str = service_url_option()
    ignore: tuple[str, ...] = option(
        "A fault that is none here, as 'gap' where applications number messages their own way; "
        "repeatable.",
        default=(),
        choices=FAULTS,
    )
    rate: int = option(
        "Bytes that each task reads in a second; 0: not bounded.", default=0, kind=OptionKind.BYTES
    )
    timeout: int = option(
        "How long a broker or a bookie may take to answer.",
        default=30_000,
        kind=OptionKind.DURATION_MS,
    )


@dataclass
class AuditFinding:
    """Where something is wrong. Of copies: the bookie, and entries, ``every`` so many of which are
    meant; of producers: the sequence ids. -1: it is not about one."""

    fault: str
    topic: str
    ledger_id: int
    first_entry_id: int = -1
    last_entry_id: int = -1
    every: int = 1
    bookie_id: str = ""
    producer: str = ""
    first_sequence_id: int = -1
    last_sequence_id: int = -1
    why: str = ""


@dataclass
class AuditReport(Report):
    """``copies`` and ``byte_count``: read and sound. ``only_in_table``: ledgers that bookies do not
    have any more, and that were not read. ``unjudged``: producers whose sequence ids
    leave out so many that the gaps were not told."""

    partitions: int = 0
    ledgers: int = 0
    entries: int = 0
    messages: int = 0
    copies: int = 0
    byte_count: int = 0
    pieces: int = 0
    producers: int = 0
    producers_begun_anew: int = 0
    deleted_meanwhile: int = 0
    only_in_table: int = 0
    unreadable_entries: int = 0
    findings: list[AuditFinding] = field(default_factory=list)
    findings_left_out: int = 0
    unchecked: list[AuditFinding] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings and not self.unchecked

    def lines(self) -> Iterator[str]:
        for each in (*self.findings, *self.unchecked):
            yield _line(each)
        if self.findings_left_out:
            yield f"and {self.findings_left_out:,} findings more"
        for producer in self.unjudged:
            yield f"producer {producer}: its sequence ids follow no rule; gaps were not looked for"
        if self.only_in_table:
            yield (
                f"{self.only_in_table:,} ledgers are only in the topic's table, and were not read: "
                "bookies have no copies of them (docs/tables.md)"
            )
        if self.dry_run:
            yield (
                f"{self.partitions:,} partitions, {self.ledgers:,} ledgers, {self.entries:,} "
                f"entries, {self.byte_count:,} bytes a copy would be read in {self.pieces:,} tasks"
            )
            return
        if self.deleted_meanwhile:
            yield f"{self.deleted_meanwhile:,} ledgers were deleted while they were read"
        yield (
            f"{self.partitions:,} partitions, {self.ledgers:,} ledgers, {self.entries:,} entries, "
            f"{self.messages:,} messages of {self.producers:,} producers: {self.copies:,} sound "
            f"copies ({self.byte_count:,} bytes) in {self.seconds:g} s"
        )
        yield "everything is there, once" if self.ok else "NOT everything is as it must be"


def _line(each: AuditFinding) -> str:
    where = each.topic + (f" ledger {each.ledger_id}" if each.ledger_id >= 0 else "")
    if each.first_entry_id >= 0:
        to = f" to {each.last_entry_id}" if each.last_entry_id > each.first_entry_id else ""
        where += f" entry {each.first_entry_id}{to}"
    where += f" at {each.bookie_id}" if each.bookie_id else ""
    if each.producer:
        first, last = each.first_sequence_id, each.last_sequence_id
        where += f", producer {each.producer}" + (f" #{first}" if first >= 0 else "")
        where += f" to #{last}" if last > first else ""
    return f"{each.fault}: {where}: {each.why}"


def audit(options: AuditOptions, context: JobContext) -> AuditReport:
    """Raises ``BrokerError``; ``TopicNotFoundError`` for a topic that was named."""
    if bool(options.topics) is (options.namespace is not None):
        raise ConfigError("give topics, or --namespace")
    timeout_s = options.timeout / 1000
    logs = job_watch(options.service_url, timeout_s)
    try:
        logs.wait_for_broker()
        names = _partitions(options, logs)
        report = AuditReport(partitions=len(names))
        plans = list(_plans(options, logs, names, report))
        pieces = [piece for plan in plans for piece in _pieces(options, plan, context)]
        report.only_in_table = sum(len(plan.ledgers) - len(plan.at_bookies) for plan in plans)
        report.pieces = len(pieces)
        if context.dry_run:
            _count_planned(report, pieces)
            return report
        found = context.spread("groups of ledgers", pieces, audit_piece)
        for plan in plans:
            own = [each for each in found if each.topic == plan.topic]
            _judge(options, plan, own, report)
            try:
                _judge_untold(plan, _untold(logs, plan, own), report)
            except BrokerError as error:
                why = f"its broker does not say whether ledgers of it were deleted: {error}"
                report.unchecked.append(AuditFinding("unchecked", plan.topic, -1, why=why))
    finally:
        logs.close()
    return report


@dataclass
class _Plan:
    """A partition's log when the audit began. ``offsets``: that of each ledger's first message, and
    of the end; ``NO_OFFSETS`` for what the broker could not tell, and ``untold`` says why."""

    topic: str
    answer: LogAnswer
    offsets: Sequence[int]
    untold: Mapping[int, str]

    @property
    def ledgers(self) -> tuple[LedgerFacts, ...]:
        return self.answer.ledgers

    @property
    def at_bookies(self) -> list[LedgerFacts]:
        return [each for each in self.ledgers if each.stored != StoredAt.TABLE]


def _partitions(options: AuditOptions, logs: LogWatch) -> list[str]:
    if options.namespace is not None:
        return sorted(logs.topics(options.namespace))
    found = [name for topic in options.topics for name in logs.partitions(full_topic(topic))]
    return list(dict.fromkeys(found))


def _plans(
    options: AuditOptions, logs: LogWatch, names: Iterable[str], report: AuditReport
) -> Iterator[_Plan]:
    """A partition that its broker cannot tell of leaves the others to be audited, and so does one
    that was deleted since the namespace was listed; one that was named may be misspelt."""
    for name in names:
        try:
            yield _plan(options, logs, name)
        except TopicNotFoundError:
            if options.namespace is None:
                raise
            report.partitions -= 1
        except BrokerError as error:
            why = f"its broker does not serve it: {error}"
            report.unchecked.append(AuditFinding("unchecked", name, -1, why=why))


def _plan(options: AuditOptions, logs: LogWatch, topic: str) -> _Plan:
    answer = logs.ask(topic, LogQuestion(ledgers=True))
    if not answer.ledgers and answer.extent.end_offset == NO_OFFSETS:
        raise ConfigError(
            f"the broker of {topic} at {options.service_url} does not tell its ledgers: an audit "
            "needs a broker of Magnetar's, of a release that does"
        )
    offsets: list[int] = []
    untold: dict[int, str] = {}
    for first in range(0, len(answer.ledgers), ASK_PLACES):
        chosen = [each.ledger_id for each in answer.ledgers[first : first + ASK_PLACES]]
        try:
            offsets += _offsets(logs, topic, chosen)
        except BrokerError:
            for ledger_id in chosen:  # of which one it cannot tell
                try:
                    offsets += _offsets(logs, topic, [ledger_id])
                except BrokerError as error:
                    untold[ledger_id] = str(error)
                    offsets.append(NO_OFFSETS)
    return _Plan(topic, answer, [*offsets, answer.extent.end_offset], untold)


def _offsets(logs: LogWatch, topic: str, ledger_ids: Sequence[int]) -> Sequence[int]:
    """Of each ledger's first message. Asked once: a broker that has just told of the log and cannot
    tell this has a record of it that is wrong."""
    question = LogQuestion()
    for ledger_id in ledger_ids:
        question.places.add(ledger_id=ledger_id, entry_id=0, batch_index=0)
    return logs.ask(topic, question, patient=False).of_places


def _pieces(options: AuditOptions, plan: _Plan, context: JobContext) -> Iterator[AuditPiece]:
    """Neighbouring ledgers of about one size together."""
    there = plan.at_bookies
    total = sum(each.stored_bytes for each in there)
    cores = 1 if context.dry_run else context.parallelism
    wanted = total // (cores * PIECES_PER_CORE)
    wanted = min(max(wanted, PIECE_BYTES_MIN), PIECE_BYTES_MAX)
    end = plan.answer.extent.end
    group: list[LedgerFacts] = []
    for number, facts in enumerate(there):
        group.append(facts)
        full = sum(each.stored_bytes for each in group) >= wanted
        if full or len(group) == PIECE_LEDGERS_MAX or number == len(there) - 1:
            yield AuditPiece(
                options.service_url,
                plan.topic,
                tuple(group),
                end.ledger_id,
                end.entry_id,
                options.rate,
                options.timeout / 1000,
            )
            group = []


def _count_planned(report: AuditReport, pieces: Iterable[AuditPiece]) -> None:
    ledgers = [facts for piece in pieces for facts in piece.ledgers]
    report.ledgers = len(ledgers)
    report.entries = sum(each.entries for each in ledgers)
    report.byte_count = sum(each.stored_bytes for each in ledgers)


def _judge(
    options: AuditOptions, plan: _Plan, found: Sequence[PieceFound], report: AuditReport
) -> None:
    ledgers = [each for piece in found for each in piece.ledgers]
    for each in ledgers:
        _add_counts(report, each)
    untidy = _untidy(found)
    report.unjudged += [name for name, steps in untidy.items() if not steps.back]
    runs = (run for piece in found for run in piece.runs if run.producer not in untidy)
    judged = judge(runs)
    report.producers += judged.producers
    report.producers_begun_anew += judged.begun_anew
    findings = [
        *_of_copies(plan.topic, ledgers),
        *_of_contents(plan.topic, ledgers),
        *_of_counts(plan, ledgers),
        *(_of_producer(plan.topic, each) for each in judged.oddities),
        *_of_untidy(plan.topic, untidy),
    ]
    for finding in findings:
        if finding.fault in options.ignore:
            continue
        if len(report.findings) < LISTED_MAX:
            report.findings.append(finding)
        else:
            report.findings_left_out += 1
    report.unchecked += _unchecked(plan.topic, ledgers)


def _untidy(found: Sequence[PieceFound]) -> dict[str, IdSteps]:
    """Of producers with more runs in a piece than are told: how their ids go, in all pieces."""
    names = {name for piece in found for name in piece.untidy}
    parts: dict[str, list[IdRun | IdSteps]] = {name: [] for name in sorted(names)}
    for piece in found if names else ():
        for name, steps in piece.untidy.items():
            parts[name].append(steps)
        for run in piece.runs:
            if run.producer in names:
                parts[run.producer].append(run)
    return {name: steps_of(each) for name, each in parts.items()}


def _of_untidy(topic: str, untidy: Mapping[str, IdSteps]) -> Iterator[AuditFinding]:
    for name, steps in untidy.items():
        if steps.back:
            why = (
                f"its sequence ids went back {steps.back} times: messages are in the log twice, or "
                "out of order, too often to be told apart"
            )
            yield AuditFinding("order", topic, -1, producer=name, why=why)


def _of_contents(topic: str, ledgers: Iterable[LedgerFound]) -> Iterator[AuditFinding]:
    for each in ledgers:
        if each.unreadable:
            first = each.first_unreadable
            why = f"{each.unreadable} entries, of which this is the first, are no messages"
            yield AuditFinding("unreadable", topic, each.verified.ledger_id, first, first, why=why)


def _untold(logs: LogWatch, plan: _Plan, found: Sequence[PieceFound]) -> list[int]:
    """Ledgers of which no broker told where they lie, and that are still the topic's: they were not
    deleted meanwhile. Raises ``BrokerError``."""
    ledgers = [each for piece in found for each in piece.ledgers]
    gone = {each.verified.ledger_id for each in ledgers if each.verified.gone}
    if not gone:
        return []
    try:
        listed = logs.ask(plan.topic, LogQuestion(ledgers=True)).ledgers
    except TopicNotFoundError:
        return []
    return [
        each.ledger_id
        for each in listed
        if each.ledger_id in gone and each.stored != StoredAt.TABLE
    ]


def _judge_untold(plan: _Plan, untold: Sequence[int], report: AuditReport) -> None:
    """All of a topic: it is kept on a partition, of which bookies have nothing. Some: whoever has
    their metadata has lost them."""
    report.deleted_meanwhile -= len(untold)
    report.ledgers += len(untold)
    if len(untold) < len(plan.at_bookies):
        why = "its broker has it, and the metadata store does not: nobody finds its copies"
        report.findings += [AuditFinding("missing", plan.topic, each, why=why) for each in untold]
        return
    why = (
        "its broker does not tell where it lies: bookies have nothing of a topic on a partition "
        "(engine=partition), or its metadata are lost"
    )
    report.unchecked += [AuditFinding("unchecked", plan.topic, each, why=why) for each in untold]


def _add_counts(report: AuditReport, each: LedgerFound) -> None:
    report.deleted_meanwhile += each.verified.gone
    report.ledgers += not each.verified.gone
    report.entries += each.verified.entries
    report.copies += each.verified.copies
    report.byte_count += each.verified.byte_count
    report.messages += each.messages
    report.unreadable_entries += each.unreadable


def _of_copies(topic: str, ledgers: Iterable[LedgerFound]) -> Iterator[AuditFinding]:
    for each in ledgers:
        for found in each.verified.findings:
            ids = found.entry_ids
            yield AuditFinding(
                found.fault.value,
                topic,
                each.verified.ledger_id,
                ids[0],
                ids[-1],
                ids.step,
                bookie_id=str(found.bookie_id),
                why=found.why,
            )


def _of_counts(plan: _Plan, ledgers: Sequence[LedgerFound]) -> Iterator[AuditFinding]:
    """Whether the broker counts messages as they are, ledger by ledger."""
    by_id = {each.verified.ledger_id: each for each in ledgers}
    for number, facts in enumerate(plan.ledgers):
        if facts.stored == StoredAt.TABLE:
            continue
        each = by_id[facts.ledger_id]
        for fault in each.counts:
            entry_id = fault.entry_id
            yield AuditFinding(
                "count", plan.topic, facts.ledger_id, entry_id, entry_id, why=fault.why
            )
        if facts.ledger_id in plan.untold:
            why = f"the broker cannot tell which messages it holds: {plan.untold[facts.ledger_id]}"
            yield AuditFinding("count", plan.topic, facts.ledger_id, why=why)
        start, end = plan.offsets[number : number + 2]
        judged = not (each.verified.gone or each.unreadable or each.verified.unchecked)
        if NO_OFFSETS in (start, end) or not judged:
            continue
        counted = end - start
        if counted != each.messages:
            why = f"the broker counts {counted} messages, its readable entries hold {each.messages}"
            yield AuditFinding("count", plan.topic, facts.ledger_id, why=why)


def _of_producer(topic: str, each: Oddity) -> AuditFinding:
    ledger_id, entry_id = each.at
    return AuditFinding(
        each.fault,
        topic,
        ledger_id,
        entry_id,
        entry_id,
        producer=each.producer,
        first_sequence_id=each.first,
        last_sequence_id=each.last,
        why=each.why,
    )


def _unchecked(topic: str, ledgers: Iterable[LedgerFound]) -> Iterator[AuditFinding]:
    for each in ledgers:
        for one in each.verified.unchecked:
            yield AuditFinding(
                "unchecked",
                topic,
                each.verified.ledger_id,
                one.first,
                one.last,
                bookie_id=str(one.bookie_id),
                why=one.why,
            )


AUDIT: Final = Job(
    "audit",
    "Read every copy of every message of topics, and see that all is there, once.",
    AuditOptions,
    audit,
    notes="""Ends with 1 when a copy is missing, damaged or unlike others, when counts disagree, or
when a message of a producer is twice in the log, or not at all.

\b
Examples:
  magnetar pipeline audit flights
  magnetar pipeline audit --namespace public/default --ignore gap --report audit.json""",
)
