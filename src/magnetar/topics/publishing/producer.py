"""One connected producer: its sends on the way to the log, and its receipts on the way back.

Its protocol queues the sends of a received chunk (views of its receive buffer) and then calls
``flush``: one ``append`` for all of them, with one answer. Outcomes come back in order, so receipts
leave in the order of the sends. A send that is not appended takes its place in that order too, be
it refused (``refuse``) or stored before (``deduplicated_producer``): it is told so after the
receipts of all sends before it, because clients match what they are told with the oldest send they
still wait for.

After a refusal that is final and after a failed append the producer takes nothing more: what came
after must not be stored before what failed is sent again.

Why: docs/adr/0062-refused-sends.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.log.seam import AppendDone, Content, Run
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import Position
from magnetar.topics.publishing.access import AccessMode, Incarnation
from magnetar.topics.publishing.resend import Resends
from magnetar.topics.throttle import TopicThrottle

log = structlog.get_logger(__name__)

_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor

NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})

METADATA_BYTES_MAX: Final = 10 << 10
"""What an entry may have above the largest message: its metadata and checksum."""

NOWHERE: Final = Position(-1, -1)
"""Where a send lies that was stored before: it is not remembered."""

Sequences: TypeAlias = tuple[int, int]
"""The first and the highest sequence id of a send; the latter 0 where the client gave none."""


_Queued: TypeAlias = tuple[
    Sequence[memoryview], Sequence[Sequences], Sequence[int], Sequence[int], int
]
"""Payloads, their sequence ids, message counts and publish times; the payloads' bytes together."""


_Run: TypeAlias = tuple[list[memoryview], list[Sequences], list[int], list[int], int]
"""The same, as it was given away."""


class ProducerClient(Protocol):
    """What a producer, and whoever ends it, knows of the client that it belongs to."""

    @property
    def peer(self) -> str: ...

    def stored(self, sends: Sequence[Sequences], ledger_id: int, first_entry_id: int) -> None:
        """Tell that ``sends`` are durable, under consecutive entry ids."""
        ...

    def refused(self, send: Sequences, error: MagnetarError, final: bool) -> None:
        """Tell that a send is refused; ``final``: and all that follow, so that the client does
        not wait for them."""
        ...

    def publish_ended(self, byte_count: int) -> None:
        """An append of that many bytes has its outcome."""
        ...

    def drop(self, tell: bool) -> None:
        """The producer was closed here; ``tell``: its client looks up again and comes back."""
        ...

    def tell_closed(self, service_url: str = "") -> None:
        """The producer was closed here; its client comes back, to the broker at ``service_url``
        if it is not empty."""
        ...

    async def is_alive(self) -> bool:
        """Whether the peer says anything when it is asked to."""
        ...

    def abort(self) -> None: ...


class Destination(Protocol):
    """What a producer knows of its topic."""

    name: TopicName
    epoch: int | None

    @property
    def delay_ms_max(self) -> int:
        """The longest delay that a message may ask for; 0: any."""
        ...

    def publish(self, payloads: Sequence[memoryview], done: AppendDone, content: Content) -> None:
        """Append entries; the payloads are copied before this returns."""
        ...

    def entries_confirmed(self, count: int, byte_count: int, message_count: int) -> None: ...

    def append_failed(self, error: MagnetarError) -> None:
        """Called once per append that fails."""
        ...

    def condemn(self, producer: Producer, reason: str) -> None:
        """The producer sent what cannot be accepted; it is refused if it reconnects."""
        ...

    def remove_producer(self, producer: Producer) -> None:
        """The producer's client left."""
        ...

    def forget_leaving(self, producer: Producer) -> None:
        """The last send of a producer that is gone has its outcome."""
        ...


class NotAppended(NamedTuple):
    """A send that is not appended, and answered once ``after`` outcomes are there: with an error,
    or, if it is None, as stored somewhere before. ``byte_count``: what waits with it, of which the
    client is told as of an append's (``publish_ended``)."""

    after: int
    send: Sequences
    error: MagnetarError | None
    final: bool
    byte_count: int = 0


class SearchFirst(Exception):
    """No error: the first send of a producer that has come back, and the log must be looked through
    (``search``) before it is taken."""

    def __init__(self, producer: Producer, sequence_id: int) -> None:
        self.producer = producer
        self.sequence_id = sequence_id


class SendLimits(NamedTuple):
    """What the topic's policy says of what is sent to it. ``throttle``: what each send passes
    before it is taken; ``bytes_max``: of a message or batch; 0: as the broker is configured."""

    throttle: TopicThrottle | None
    bytes_max: int


class ProducerFacts(NamedTuple):
    """What is known of a producer when it comes. ``properties``: what its application says of it;
    ``client_version``: what its client calls itself."""

    producer_id: int
    name: str
    mode: AccessMode
    epoch: int
    generated_name: bool
    connected_at_ms: int
    properties: Mapping[str, str] = NO_PROPERTIES
    client_version: str = ""


class Producer:
    """A producer of one topic, on one connection."""

    def __init__(self, client: ProducerClient, topic: Destination, facts: ProducerFacts) -> None:
        self.client = client
        self.topic = topic
        self.producer_id = facts.producer_id
        self.name = facts.name
        self.mode = facts.mode
        self.epoch = facts.epoch
        self.generated_name = facts.generated_name
        self.connected_at_ms = facts.connected_at_ms
        self.properties = facts.properties
        self.client_version = facts.client_version
        self.closed = False
        """Takes no more sends; receipts for earlier ones still leave."""
        self.gone = False
        """Its client was told so, or left: nothing is written for it any more."""
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.resends: Resends | None = None
        """What an earlier incarnation stored and this one may send again."""
        self.limits: SendLimits | None = None
        """What its sends are looked at for, one by one; None, as a rule: for nothing."""
        # The first send of a chunk, mostly its only one, and lists of the others: what is in small
        # tuples on its whole way costs less than lists do.
        self._first: tuple[memoryview, Sequences, int, int] | None = None
        self._run: _Run | None = None  # what began a chunk, and is alone then
        self._payloads: list[memoryview] = []
        self._sequences: list[Sequences] = []
        self._messages: list[int] = []
        self._times_ms: list[int] = []
        self._appends = 0
        self._outcomes = 0
        """Of those; they come in order, so two counts are all that must be known of them."""
        self._beside: deque[NotAppended] | None = None  # made when it is needed, which is rare
        self._drained: asyncio.Future[None] | None = None

    def queue(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        payload: memoryview,
        message_count: int = 1,
        publish_time_ms: int = 0,
    ) -> bool:
        """Take a send of the current chunk, which holds that many messages; True if it is the
        first since the last ``flush``. Raises ``SearchFirst``, and has not taken it then."""
        if self.closed:
            return False
        if self.resends is not None and self._answer_resend(
            sequence_id, highest_sequence_id, payload
        ):
            return False
        if self._first is None:
            sends = (sequence_id, highest_sequence_id)
            self._first = (payload, sends, message_count, publish_time_ms)
            return True
        self._payloads.append(payload)
        self._sequences.append((sequence_id, highest_sequence_id))
        self._messages.append(message_count)
        self._times_ms.append(publish_time_ms)
        return False

    def queue_run(
        self,
        payloads: list[memoryview],
        sends: list[Sequences],
        message_counts: list[int],
        times_ms: list[int],
        byte_count: int,
    ) -> bool:
        """As ``queue`` for several sends, at least one, that begin a chunk; the lists are given
        away. Requires that nobody has come back with this producer (``resends``). A chunk of many
        producers has several runs of one: who finds them looks for it among the last few only."""
        assert self._first is None, "it begins the chunk"
        if self.closed:
            return False
        if self._run is not None:
            earlier = self._run
            earlier[0].extend(payloads)
            earlier[1].extend(sends)
            earlier[2].extend(message_counts)
            earlier[3].extend(times_ms)
            self._run = (*earlier[:4], earlier[4] + byte_count)
            return False
        self._run = (payloads, sends, message_counts, times_ms, byte_count)
        return True

    def _answer_resend(
        self, sequence_id: int, highest_sequence_id: int, payload: memoryview
    ) -> bool:
        """Answer a send whose entry the log holds already. Such sends come before all others of
        this incarnation, so their receipts are in order."""
        assert self.resends is not None
        if not self.resends.searched(sequence_id):
            raise SearchFirst(self, sequence_id)
        found = self.resends.find(sequence_id, payload)
        if found is None:
            self.resends = None
            return False
        self.client.stored(((sequence_id, highest_sequence_id),), found.ledger_id, found.entry_id)
        return True

    async def search(self, sequence_id: int) -> None:
        """After ``SearchFirst``. A search that fails ends the producer, whose client comes back."""
        if self.resends is None:
            return
        try:
            await self.resends.search(sequence_id)
        except MagnetarError as error:
            log.warning("resends not found", topic=str(self.topic.name), error=str(error))
            self.topic.remove_producer(self)
            self.client.drop(tell=True)

    def flush(self) -> int:
        """Append what is queued; the views need be valid no longer. Returns its bytes."""
        payloads: Sequence[memoryview]
        sends: Sequence[Sequences]
        messages: Sequence[int]
        times_ms: Sequence[int]
        if self._run is not None:
            payloads, sends, messages, times_ms, byte_count = self._run
            self._run = None
        elif self._first is not None:
            payloads, sends, messages, times_ms, byte_count = self._queued()
        else:
            return 0
        self._appends += 1
        done = partial(self._answered, sends, messages, byte_count)
        self.topic.publish(payloads, done, _new(Content, (messages, times_ms, None, True)))
        return byte_count

    def _queued(self) -> _Queued:
        """What was queued one by one."""
        assert self._first is not None
        payload, send, message_count, time_ms = self._first
        self._first = None
        if not self._payloads:
            return (payload,), (send,), (message_count,), (time_ms,), len(payload)
        payloads, sends = [payload, *self._payloads], [send, *self._sequences]
        messages, times_ms = [message_count, *self._messages], [time_ms, *self._times_ms]
        self._payloads.clear()
        self._sequences.clear()
        self._messages.clear()
        self._times_ms.clear()
        return payloads, sends, messages, times_ms, sum(map(len, payloads))

    def refuse(self, send: Sequences, error: MagnetarError, final: bool) -> None:
        """Answer a send with an error, in its turn. ``flush`` was called before.

        ``final``: the client would answer it by sending the same again, so the producer ends with
        it and is refused when it reconnects. If not, the client gives that message up and goes on.
        """
        if self.closed:
            return
        if final:
            self.closed = True
            self.topic.condemn(self, str(error))
        self.answer_in_turn(NotAppended(self._appends, send, error, final))

    def answer_in_turn(self, answer: NotAppended) -> None:
        """``answer`` leaves when its turn comes, perhaps at once."""
        if self._beside is None:
            self._beside = deque()
        self._beside.append(answer)
        self._release()

    def forget_repeats(self) -> None:
        """Sends that were to be told that they are stored are told nothing."""
        if self._beside is None:
            return
        self.client.publish_ended(sum(each.byte_count for each in self._beside))
        self._beside = deque(each for each in self._beside if each.error is not None)

    def left(self) -> None:
        """Its client is told nothing more, or is gone."""

    @property
    def incarnation(self) -> Incarnation:
        """Among those of its name."""
        return Incarnation(self.mode, self.generated_name, self.epoch)

    @property
    def last_sequence_id(self) -> int:
        """What its client is told of earlier incarnations; -1: nothing is known."""
        return -1

    def _answered(
        self,
        sends: Sequence[Sequences],
        messages: Sequence[int],
        byte_count: int,
        error: MagnetarError | None,
        runs: Sequence[Run],
    ) -> None:
        """The log's answer (``log.seam.AppendDone``) to the oldest append, of ``sends``."""
        count = 0
        for ledger_id, first_entry_id, entries in runs:
            if not self.gone:
                part = sends if entries == len(sends) else sends[count : count + entries]
                self.client.stored(part, ledger_id, first_entry_id)
            count += entries
        if count:
            # Bytes and messages are known of the whole alone: what an append that failed stored
            # counts as entries only.
            stored_bytes, message_count = (byte_count, sum(messages)) if error is None else (0, 0)
            self.entries_in += count
            self.bytes_in += stored_bytes
            self.messages_in += message_count
            self.topic.entries_confirmed(count, stored_bytes, message_count)
        if error is not None:
            self.closed = True
        self._outcomes += 1
        assert self._outcomes <= self._appends, "an append was answered twice"
        self.client.publish_ended(byte_count)
        if self._beside or self.gone or self._drained is not None:
            self._release()
        if error is not None:
            self.topic.append_failed(error)

    def _release(self) -> None:
        """Answer what stands beside and whose turn has come; end ``wait_drained`` when all is
        answered."""
        beside = self._beside
        while beside and beside[0].after <= self._outcomes:
            _, send, error, final, byte_count = beside.popleft()
            if byte_count:
                self.client.publish_ended(byte_count)
            if self.gone:
                continue
            if error is None:
                self.client.stored((send,), *NOWHERE)
            else:
                self.client.refused(send, error, final)
        if self.pending:
            return
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self.gone:
            self.topic.forget_leaving(self)

    @property
    def pending(self) -> bool:
        """Sends of it have no outcome yet."""
        return self._outcomes < self._appends or bool(self._beside)

    async def wait_drained(self) -> None:
        """Wait until every send so far has its outcome; takes no more from now on."""
        self.closed = True
        if self.pending:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await self._drained
